"""The optimum of small instances by trying every plan, and solvers compared with it.

    python -m benchmarks.brute_force [--instances 500] [--seed 0] [--solvers HIGHS,HIGHS-MILP] [--mps]

Written apart from the solver: memory by going through a stage's tasks, time by playing the schedule for all
plans at once; only the schedule's order of tasks is shared.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan, as_grid
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule, ScheduleSpec
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, Pairing, PipelineProblem, StageTimes

Choice = tuple[int, ...]
"""Layers of one chunk: how many by kind, then how many by recompute mode (full, select)."""


@dataclass(frozen=True)
class BruteForce:
    """Best step time over every plan (inf when there is none), a plan that attains it, and how many were tried."""

    objective: float
    plan: PipelinePlan | None
    plans: int


def enumerate_optimum(problem: PipelineProblem, most_plans: int = 2_000_000) -> BruteForce | None:
    """Try every plan.

    Returns
    -------
    BruteForce or None
        None when there are more than `most_plans` plans within memory.
    """
    several = [problem.replace(uniform_recompute=(choice,)) for choice in problem.uniform_recompute]
    several = several if len(several) > 1 else _by_place(problem)
    problem = problem if len(several) > 1 else several[0]
    if len(several) > 1:
        found = [enumerate_optimum(one, most_plans) for one in several]
        counted = [one for one in found if one is not None]
        if len(counted) < len(found):
            return None
        best_one = min(counted, key=lambda one: one.objective)
        return BruteForce(best_one.objective, best_one.plan, sum(one.plans for one in counted))
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    modes = [*(mode for mode in (FULL, SELECT) if mode in problem.recompute_ratio), *problem.choices]
    best, best_plan, tried = math.inf, None, 0
    stage_choices: dict[tuple[int, tuple[tuple[int, ...], ...]], list[tuple[Choice, ...]]] = {}
    splits: list[list[list[tuple[Choice, ...]]]] = []
    for split in _splits(problem, schedule):
        by_stage: list[list[tuple[Choice, ...]]] = []
        for s in range(problem.stages):
            by_chunk = tuple(split[schedule.position(v, s)] for v in range(problem.interleaves))
            if (s, by_chunk) not in stage_choices:
                stage_choices[s, by_chunk] = _stage_choices(problem, schedule, s, by_chunk, modes)
            by_stage.append(stage_choices[s, by_chunk])
        count = math.prod(map(len, by_stage))
        tried += count
        if tried > most_plans:
            return None  # before any plan is timed
        if count:
            splits.append(by_stage)
    for by_stage in splits:
        times = _play_all(problem, schedule, by_stage, modes)
        if problem.lenders:
            times = np.where(lenders_hold(problem, schedule, by_stage, modes), times, np.inf)
        winner = int(times.argmin())
        if times[winner] < best:
            best = float(times[winner])
            best_plan = _as_plan(problem, by_stage, winner, modes)
    return BruteForce(best, best_plan, tried)


def _by_place(problem: PipelineProblem) -> list[PipelineProblem]:
    """The problem with every row of places of its pinned kinds that does not fall."""
    rows = itertools.product(*(kind.places or (None,) for kind in problem.kinds))
    last = problem.stages * problem.interleaves - 1
    result = []
    for row in rows:
        pinned = [last if at is None else at for at, kind in zip(row, problem.kinds, strict=True) if kind.pinned_last]
        if all(a <= b for a, b in itertools.pairwise(pinned)):
            kinds = [replace(k, places=() if at is None else (at,)) for at, k in zip(row, problem.kinds, strict=True)]
            result.append(problem.replace(kinds=tuple(kinds)))
    return result


def random_problem(rng: np.random.Generator, most_kinds: int = 3) -> PipelineProblem:
    """A small instance: up to 4 stages, 3 virtual stages, 10 layers, 3 recompute modes, several kinds, lags, tails."""
    stages = int(rng.integers(1, 5))
    name = str(rng.choice(["gpipe", "1f1b", "interleaved", "megatron-interleaved", "seqpipe", "zbv"]))
    interleaves = {"gpipe": 1, "1f1b": 1, "zbv": 2}.get(name, int(rng.integers(1, 4)))
    micro_batches = int(rng.integers(1, 4)) * stages if name == "megatron-interleaved" else int(rng.integers(1, 10))
    spec = ScheduleSpec(name, bool(rng.integers(2)), int(rng.integers(2, 4)) if name == "seqpipe" else 1)
    empty_chunks = rng.random() < 0.15
    chunks = stages * interleaves
    layers = int(rng.integers(1 if empty_chunks else chunks, max(chunks, 10) + 1))
    kind_count = int(rng.integers(1, min(most_kinds, layers) + 1))
    cuts = sorted(rng.choice(np.arange(1, layers), kind_count - 1, replace=False).tolist()) if kind_count > 1 else []
    counts = np.diff([0, *cuts, layers]).tolist()
    modes = [[FULL], [FULL, SELECT], [SELECT], []][int(rng.choice(4, p=[0.45, 0.4, 0.1, 0.05]))]
    kinds = [_random_kind(rng, f"kind{index}", count, modes) for index, count in enumerate(counts)]
    if rng.random() < 0.2:
        kinds.append(_random_kind(rng, "mtp", 1, modes, pinned=True))
    decimals = int(rng.integers(0, 3))
    mean = sum(kind.count * (kind.layer_mib + 0.6 * stages * kind.activation_mib[NONE]) for kind in kinds) / stages
    limit = round(float(mean * rng.uniform(0.6, 1.6) + 60), decimals)
    fixed_layers, most_layers, fixed_recompute = {}, {}, {}
    if rng.random() < 0.2:
        chunk = (int(rng.integers(interleaves)), int(rng.integers(stages)))
        fixed_layers[chunk] = int(rng.integers(1, 4))
    if rng.random() < 0.2:
        most_layers[int(rng.integers(interleaves)), int(rng.integers(stages))] = int(rng.integers(1, 5))
    if modes and rng.random() < 0.2:
        fixed_recompute[str(rng.choice(modes)), int(rng.integers(interleaves)), int(rng.integers(stages))] = int(
            rng.integers(0, 3)
        )
    return PipelineProblem(
        stages,
        interleaves,
        micro_batches,
        tuple(kinds),
        tuple(np.round(rng.uniform(0, 60, stages), decimals).tolist()),
        (limit,) * stages if rng.random() < 0.7 else tuple(np.round(limit * rng.uniform(0.8, 1.3, stages), 1).tolist()),
        spec,
        backward_ratio=round(float(rng.uniform(1, 3)), 3),
        recompute_ratio={mode: round(float(rng.uniform(0.1, 1.2)), 3) for mode in modes},
        head_forward=round(float(rng.uniform(0, 2)), 3) if rng.random() < 0.7 else 0.0,
        embedding_forward=round(float(rng.uniform(0, 0.5)), 3) if rng.random() < 0.3 else 0.0,
        lag=round(float(rng.uniform(0, 0.5)), 3) if rng.random() < 0.5 else 0.0,
        tail=tuple(np.round(rng.uniform(0, 3, stages), 3).tolist()) if rng.random() < 0.3 else (),
        weight_gradient_share=round(float(rng.uniform(0.2, 0.7)), 2),
        min_layers=0 if empty_chunks else 1,
        fixed_layers=fixed_layers,
        max_layers=most_layers,
        fixed_recompute=fixed_recompute,
    )


def comparable_problem(
    rng: np.random.Generator, most_plans: int = 200_000, most_kinds: int = 3
) -> tuple[PipelineProblem, BruteForce]:
    """The next random instance that can be tried out in full, with its optimum."""
    while True:
        problem = random_problem(rng, most_kinds)
        found = enumerate_optimum(problem, most_plans)
        if found is not None:
            return problem, found


def with_unlike_lags(problem: PipelineProblem, rng: np.random.Generator) -> PipelineProblem:
    """The problem with transfers unlike by boundary between chunks, of two kinds or all unlike."""
    boundaries = problem.stages * problem.interleaves - 1
    known = np.round(rng.uniform(0, 0.6, 2 if rng.random() < 0.6 else max(boundaries, 1)), 3)
    return problem.replace(lags=tuple(known[rng.integers(0, len(known), boundaries)].tolist()))


def with_unlike_stages(problem: PipelineProblem, rng: np.random.Generator) -> PipelineProblem:
    """The problem on stages of unlike speed and memory, two kinds of them or as many as stages."""
    S = problem.stages
    kinds = int(rng.integers(2, 4)) if rng.random() < 0.7 else S
    of = np.sort(rng.integers(0, kinds, S)) if rng.random() < 0.5 else rng.integers(0, kinds, S)
    slowness, shares = np.round(rng.uniform(0.4, 2.5, kinds), 3), rng.uniform(0.75, 1.4, kinds)
    limits = np.round(np.array(problem.limit_mib) * shares[of], 1)
    return problem.replace(slowness=tuple(slowness[of].tolist()), limit_mib=tuple(limits.tolist()))


def with_unlike_ratios(problem: PipelineProblem, rng: np.random.Generator) -> PipelineProblem:
    """The problem on stages of which each, or each of two kinds, has time ratios of its own."""
    cards = 2 if rng.random() < 0.7 else problem.stages
    times = []

    def factor() -> float:
        return float(rng.uniform(0.5, 2.0))

    for _ in range(cards):
        dearer = factor()
        choices = {
            kind.name: {
                name: replace(one, forward=round(one.forward * dearer, 3), backward=round(one.backward * factor(), 3))
                for name, one in kind.choices.items()
            }
            for kind in problem.kinds
        }
        times.append(
            StageTimes(
                {kind.name: round(kind.forward * factor(), 3) for kind in problem.kinds},
                round(problem.backward_ratio * factor(), 3),
                {mode: round(ratio * factor(), 3) for mode, ratio in problem.recompute_ratio.items()},
                choices,
            )
        )
    of = rng.integers(0, cards, problem.stages).tolist()
    return problem.replace(stage_times=tuple(times[card] for card in of))


def with_entries(problem: PipelineProblem, rng: np.random.Generator) -> PipelineProblem:
    """The problem with MTP layers, at times a head of its own, on a chunk of several; chunks for entries alone."""
    modes = list(problem.recompute_ratio)
    chunks, kinds = problem.stages * problem.interleaves, [kind for kind in problem.kinds if not kind.pinned]
    for name in ("mtp", "head") if rng.random() < 0.4 else ("mtp",):
        some = np.arange(max(0, chunks - 3), chunks)
        places = {*rng.choice(some, min(len(some), int(rng.integers(1, 4))), replace=False).tolist()}
        places |= {chunks - 1} if name == "head" else set()
        one = _random_kind(rng, name, int(rng.integers(1, 3)) if name == "mtp" else 1, modes, pinned=True)
        more = float(one.count) if name == "mtp" and rng.random() < 0.6 else 0.0
        kinds.append(replace(one, places=tuple(sorted(places)), hand_over=more))
    return problem.replace(
        kinds=tuple(kinds),
        entries_alone=bool(rng.random() < 0.7),
        limit_mib=tuple(limit + 30.0 for limit in problem.limit_mib),
    )


def with_tower(problem: PipelineProblem, rng: np.random.Generator) -> PipelineProblem:
    """The problem with an encoder on the first chunk, whose backward has another ratio than the other layers'."""
    at = sum(not kind.pinned for kind in problem.kinds)
    one = _random_kind(rng, "vision", int(rng.integers(1, 4)), list(problem.recompute_ratio), pinned=True)
    added = [round(float(rng.uniform(0.1, 1.5)), 3) if rng.random() < 0.7 else 0.0 for _ in range(2)]
    tower = replace(
        one,
        forward=one.forward if rng.random() < 0.5 else 0.0,
        activation_mib={**dict.fromkeys(problem.choices, 0.0), **one.activation_mib},
        choices={name: LayerChoice() for name in problem.choices},
        pinned_last=False,
        pinned_first=True,
        added_forward=added[0],
        added_backward=added[1],
    )
    times = tuple(
        replace(
            stage,
            forward={**stage.forward, "vision": tower.forward},
            choices={**stage.choices, "vision": tower.choices},
        )
        for stage in problem.stage_times
    )
    return problem.replace(
        kinds=(*problem.kinds[:at], tower, *problem.kinds[at:]),
        stage_times=times,
        fixed_layers={**problem.fixed_layers, (0, 0): 0} if rng.random() < 0.2 else problem.fixed_layers,
        entries_alone=bool(rng.random() < 0.5),
        limit_mib=tuple(limit + float(rng.uniform(60.0, 360.0)) for limit in problem.limit_mib),
    )


def with_spread_tower(problem: PipelineProblem, rng: np.random.Generator) -> PipelineProblem:
    """The problem with an encoder on several of the first chunks, which hold nothing else but the last one at times,
    and with an embedding in front of the free layers."""
    behind = [place for kind in problem.pinned_kinds for place in problem.places_of(kind)]
    last = min([problem.stages * problem.interleaves - 1, *behind])
    lead = int(rng.integers(1, min(3, last + 1) + 1))
    begins = lead if lead <= last and rng.random() < 0.4 else lead - 1
    runs = [("vision" if not place else f"vision#{place + 1}", place) for place in range(lead)]
    one, added = with_tower(problem, rng), dict[str, LayerKind]()
    (tower,) = (kind for kind in one.kinds if kind.pinned_first)
    for name, place in (*runs, ("embedding", begins)):
        more = (round(float(rng.uniform(0.1, 1.5)), 3) for _ in range(2))
        forward, backward = (time if rng.random() < 0.7 else 0.0 for time in more)
        added[name] = replace(
            tower,
            name=name,
            count=1 if name == "embedding" else int(rng.integers(1, 4)),
            places=(place,),
            added_forward=forward,
            added_backward=backward,
        )
    times = tuple(
        replace(
            stage,
            forward={**stage.forward, **{name: kind.forward for name, kind in added.items()}},
            choices={**stage.choices, **{name: kind.choices for name, kind in added.items()}},
        )
        for stage in one.stage_times
    )
    at = one.kinds.index(tower)
    given = {chunk: 0 for chunk in problem.placement.chunks[:begins]}
    return one.replace(
        kinds=(*one.kinds[:at], *added.values(), *one.kinds[at + 1 :]),
        stage_times=times,
        fixed_layers={**{chunk: n for chunk, n in problem.fixed_layers.items() if chunk not in given}, **given},
    )


def with_depths(problem: PipelineProblem, rng: np.random.Generator) -> PipelineProblem:
    """The problem with one to four MTP layers, each on a chunk of its own choice, and often a memory that those on one
    stage share; with a head on a chunk of several in one of four."""
    modes = list(problem.recompute_ratio)
    chunks, kinds = problem.stages * problem.interleaves, [kind for kind in problem.kinds if not kind.pinned]
    one = _random_kind(rng, "mtp", 1, modes, pinned=True)
    shared = round(float(rng.uniform(5, 60)), 1) if rng.random() < 0.7 else 0.0
    unlike, farthest = rng.random() < 0.3, int(rng.integers(1, 5))
    for depth in range(int(rng.integers(1, 5))):
        first = max(0, chunks - int(rng.integers(1, farthest + 1)))
        own = _random_kind(rng, "mtp", 1, modes, pinned=True) if unlike else one
        kinds.append(
            replace(
                own,
                name=f"mtp#{depth + 1}" if depth else "mtp",
                places=tuple(range(first, chunks)),
                hand_over=float(rng.random() < 0.7),
                shared_mib=round(shared * float(rng.uniform(0.5, 1)), 1) if unlike else shared,
            )
        )
    if rng.random() < 0.25:
        head = _random_kind(rng, "head", 1, modes, pinned=True)
        kinds.append(replace(head, places=tuple(range(max(0, chunks - 2), chunks)), shared_mib=10.0))
    return problem.replace(
        kinds=tuple(kinds),
        entries_alone=bool(rng.random() < 0.7),
        limit_mib=tuple(limit + float(rng.uniform(60.0, 240.0)) for limit in problem.limit_mib),
    )


def with_cadence(problem: PipelineProblem, rng: np.random.Generator) -> PipelineProblem:
    """The problem with every n-th layer of a kind of its own behind which the others lie on the same chunk, or with
    runs of its own that lie so."""
    runs = list(problem.placed_kinds)
    if rng.random() < 0.4 and len(runs) > 1:
        kinds = [replace(kind, joined=bool(k and rng.random() < 0.5)) for k, kind in enumerate(runs)]
        return problem.replace(kinds=tuple(kinds))
    every, offset = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    layers = int(rng.integers(problem.stages * problem.interleaves, 3 * problem.stages * problem.interleaves + 4))
    shared = [max(number - offset, 0) % every != 0 for number in range(1, min(layers, 16) + 1)]
    groups = [(of, len(list(group))) for of, group in itertools.groupby(shared)]
    kinds = [
        replace(runs[-1 if of else 0], name=f"run{k}", count=count, joined=of) for k, (of, count) in enumerate(groups)
    ]
    weight = sum(kind.count * (kind.layer_mib + 0.6 * problem.stages * kind.activation_mib[NONE]) for kind in kinds)
    limit = 40 + float(weight / problem.stages * rng.uniform(0.9, 2.0))
    return problem.replace(kinds=tuple(kinds), limit_mib=(round(limit, 1),) * problem.stages)


def with_choices(problem: PipelineProblem, rng: np.random.Generator, most_choices: int = 5) -> PipelineProblem:
    """The problem with choices added, at most `most_choices` with recompute modes; two of three with a host limit.

    Some cost time and save little, so that the solver must find what dominates them.
    """
    names = tuple(
        f"choice{index}" for index in range(int(rng.integers(1, most_choices + 1 - len(problem.recompute_ratio))))
    )
    kinds = []
    for kind in problem.kinds:
        kept, choices = dict(kind.activation_mib), {}
        for name in names:
            away = float(rng.uniform(0.1, 1.0)) * kept[NONE]
            kept[name] = round(kept[NONE] - away, 1)
            hosted = rng.random() < 0.6
            spread = np.round(rng.uniform(0, 0.5, 3) * (rng.random(3) < 0.6), 3)
            moved = float(rng.uniform(0, 0.7)) * kind.layer_mib if rng.random() < 0.3 else 0.0
            choices[name] = LayerChoice(
                float(spread[0]),
                float(spread[1]),
                float(spread[2]) if rng.random() < 0.3 else 0.0,
                -round(moved, 1),
                round(away, 1) if hosted else 0.0,
                round(moved, 1),
            )
        kinds.append(replace(kind, activation_mib=kept, choices=choices))
    mean = sum(
        k.count * max(c.host_states_mib + problem.stages * c.host_mib for c in k.choices.values()) for k in kinds
    )
    host = np.round(mean / problem.stages * rng.uniform(0.1, 1.2, problem.stages), 1)
    limits = np.round(np.array(problem.limit_mib) * rng.uniform(0.8, 1.0), 1)
    return problem.replace(
        kinds=tuple(kinds),
        choices=names,
        host_limit_mib=tuple(host.tolist()) if rng.random() < 0.67 else (),
        limit_mib=tuple(limits.tolist()),
    )


def with_lenders(problem: PipelineProblem, rng: np.random.Generator) -> PipelineProblem:
    """The problem, on two stages or more, with choices of which some keep activations on another stage: the mirrored
    one as in BPipe, one for all as in torchtitan, or any; on devices of which some have little memory."""
    S = problem.stages
    lending = {name: bool(rng.random() < 0.6) for name in problem.choices}
    lending[problem.choices[0]] = True

    def lent(kind: LayerKind, choices: Mapping[str, LayerChoice]) -> dict[str, LayerChoice]:
        cheap = round(float(rng.uniform(0.0, 0.4)), 3)
        return {
            name: replace(
                one, forward=round(one.forward * cheap, 3), backward=round(one.backward * cheap, 3), host_mib=0.0,
                lent_mib=round(kind.activation_mib[NONE] - kind.activation_mib[name], 1),
            )
            if lending[name] else one
            for name, one in choices.items()
        }  # fmt: skip

    kinds = tuple(replace(kind, choices=lent(kind, kind.choices)) for kind in problem.kinds)
    times = tuple(
        replace(one, choices={kind.name: lent(kind, one.choices[kind.name]) for kind in problem.kinds})
        for one in problem.stage_times
    )
    form = rng.random()
    if form < 0.4:
        lenders = [S - 1 - s if s < S // 2 else -1 for s in range(S)]
    elif form < 0.7:
        one = int(rng.integers(S))
        lenders = [-1 if s == one or rng.random() < 0.2 else one for s in range(S)]
    else:
        lends = np.flatnonzero(rng.random(S) < 0.5).tolist() or [S - 1]
        lenders = [-1 if s in lends else int(rng.choice(lends)) for s in range(S)]
    ruled = tuple((mode, most) for mode, most in problem.uniform_recompute if not lending.get(mode))
    shares = np.where(np.array(lenders) < 0, rng.uniform(0.9, 1.8, S), rng.uniform(0.7, 1.1, S))
    return problem.replace(
        kinds=kinds,
        uniform_recompute=ruled,
        stage_times=times,
        lenders=tuple(lenders),
        lent_limit_mib=(round(float(rng.uniform(10, 200)), 1),) * S if rng.random() < 0.2 else (),
        limit_mib=tuple(np.round(np.array(problem.limit_mib) * shares, 1).tolist()),
    )


def under_one_choice(problem: PipelineProblem, rng: np.random.Generator) -> PipelineProblem:
    """The problem with up to four of its modes and counts, one of which must hold for every chunk alike."""
    choices = [(mode, most) for mode in problem.searched_modes for most in range(problem.layers + 1)]
    kept = sorted(rng.choice(len(choices), min(len(choices), int(rng.integers(1, 5))), replace=False))
    return problem.replace(uniform_recompute=tuple(choices[index] for index in kept))


def random_plan(problem: PipelineProblem, rng: np.random.Generator, attempts: int = 20) -> PipelinePlan | None:
    """Any plan that keeps the problem's rules and fits its memory; None where `attempts` attempts find none."""
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    modes = [*(mode for mode in (FULL, SELECT) if mode in problem.recompute_ratio), *problem.choices]
    several = _by_place(problem)
    problem = several[int(rng.integers(len(several)))]
    splits = list(_splits(problem, schedule))
    for _ in range(attempts if splits else 0):
        split = splits[int(rng.integers(len(splits)))]
        by_stage = []
        for s in range(problem.stages):
            by_chunk = tuple(split[schedule.position(v, s)] for v in range(problem.interleaves))
            by_stage.append(_stage_choices(problem, schedule, s, by_chunk, modes))
        if not all(by_stage):
            continue
        allowed = np.arange(math.prod(map(len, by_stage)))
        if problem.lenders:
            allowed = np.flatnonzero(lenders_hold(problem, schedule, by_stage, modes))
        if len(allowed):
            return _as_plan(problem, by_stage, int(rng.choice(allowed)), modes)
    return None


def _random_kind(
    rng: np.random.Generator, name: str, count: int, modes: list[str], *, pinned: bool = False
) -> LayerKind:
    decimals = int(rng.integers(0, 3))
    kept = round(float(rng.uniform(5, 40)), decimals)
    activation = {NONE: kept}
    for mode in modes:
        # Now and then a mode saves nothing: the profile of the contract has such a one.
        activation[mode] = kept if rng.random() < 0.1 else round(kept * float(rng.uniform(0.05, 0.8)), decimals)
    return LayerKind(
        name,
        count,
        round(float(rng.uniform(0.3, 1.2)), 3),
        round(float(rng.uniform(5, 80)), decimals),
        activation,
        pinned_last=pinned,
    )


def _splits(problem: PipelineProblem, schedule: Schedule) -> Iterator[list[tuple[int, ...]]]:
    """Layers by kind of every chunk, in model order: the model's line of layers cut into runs."""
    line = [index for index, kind in enumerate(problem.kinds) if not kind.pinned for _ in range(kind.count)]
    for cuts in itertools.combinations_with_replacement(range(len(line) + 1), schedule.chunks - 1):
        ends = [0, *cuts, len(line)]
        split = []
        for place in range(schedule.chunks):
            run = line[ends[place] : ends[place + 1]]
            chunk = schedule.chunk_at(place)
            pinned = _pinned(problem, schedule, *chunk)
            alone = problem.entries_alone and (pinned or place in (0, schedule.chunks - 1))
            alone = alone or (any(kind.pinned_first for kind in pinned) and problem.fixed_layers.get(chunk) == 0)
            if len(run) < problem.min_layers and not alone:
                break
            if run and problem.kinds[run[0]].joined:
                break
            if run and any(kind.places and kind.pinned_last and kind.places[0] < place for kind in problem.kinds):
                break
            if len(run) > problem.max_layers.get(chunk, len(run)):
                break
            if len(run) != problem.fixed_layers.get(chunk, len(run)):
                break
            split.append(tuple(run.count(index) for index in range(len(problem.kinds))))
        else:
            yield split


def _stage_choices(
    problem: PipelineProblem,
    schedule: Schedule,
    s: int,
    by_chunk: tuple[tuple[int, ...], ...],
    modes: list[str],
) -> list[tuple[Choice, ...]]:
    """Every recompute of a stage's chunks that fits its memory, as one `Choice` an interleave."""
    options = []
    for v, counts in enumerate(by_chunk):
        total = sum(counts)
        options.append(
            [
                (*counts, *taken)
                for taken in _counts(total, len(modes))
                if all(
                    taken[index] == problem.fixed_recompute.get((mode, v, s), taken[index])
                    for index, mode in enumerate(modes)
                )
                and all(
                    taken[index] == (min(most, total) if mode == of else 0)
                    for of, most in problem.uniform_recompute
                    for index, mode in enumerate(modes)
                    if not any(mode in k.choices and k.choices[mode].lent_mib for k in problem.kinds)
                )
            ]
        )
    if not all(options):
        return []
    device, host = (_peaks(problem, schedule, s, options, modes, side) for side in (0, 1))
    fits = device <= problem.limit_mib[s] + 1e-6
    if problem.host_limit_mib:
        fits &= host <= problem.host_limit_mib[s] + 1e-6
    if problem.lent_limit_mib:
        fits &= _peaks(problem, schedule, s, options, modes, 2) <= problem.lent_limit_mib[s] + 1e-6
    return list(itertools.compress(itertools.product(*options), fits.ravel()))


def _counts(total: int, modes: int) -> Iterator[Choice]:
    """All counts of n modes that are `total` together at most."""
    if not modes:
        yield ()
        return
    for first in range(total + 1):
        for rest in _counts(total - first, modes - 1):
            yield (first, *rest)


def _modes_of(problem: PipelineProblem, choice: Choice, modes: list[str]) -> list[tuple[LayerKind, str]]:
    kinds = [kind for kind, count in zip(problem.kinds, choice, strict=False) for _ in range(count)]
    taken = [mode for mode, count in zip(modes, choice[len(problem.kinds) :], strict=True) for _ in range(count)]
    return list(zip(kinds, [*taken, *[NONE] * (len(kinds) - len(taken))], strict=True))


def _pinned(problem: PipelineProblem, schedule: Schedule, v: int, s: int) -> list[LayerKind]:
    place, last = schedule.position(v, s), schedule.chunks - 1
    return [
        kind
        for kind in problem.kinds
        if kind.pinned and place == (kind.places[0] if kind.places else 0 if kind.pinned_first else last)
        for _ in range(kind.count)
    ]


def _peaks(
    problem: PipelineProblem, schedule: Schedule, s: int, options: list[list[Choice]], modes: list[str], side: int
) -> NDArray[np.float64]:
    """Peak memory of the device (`side` 0), its host (1) or its lender (2) under every combination of the chunks'
    options."""
    moments = _moments(problem, schedule, s)
    whole: Any = problem.static_mib[s] + _kept_once(problem, schedule, s) if side == 0 else 0.0
    kept: list[NDArray[np.float64]] = []
    for v, of_chunk in enumerate(options):
        across = tuple(-1 if axis == v else 1 for axis in range(len(options)))
        both = np.array([_memory(problem, schedule, v, s, one, modes)[side] for one in of_chunk])
        whole = whole + both[:, 0].reshape(across)
        kept.append(both[:, 1].reshape(across))
    sums = [reduce(np.add, map(np.multiply, kept, counts)) for counts in moments]
    return np.asarray(whole + np.max(sums, axis=0))


def _moments(problem: PipelineProblem, schedule: Schedule, s: int) -> set[tuple[int, ...]]:
    """Micro-batches alive on a stage by virtual stage, at every moment of the step."""
    last = WEIGHT_GRADIENT if schedule.spec.traits.split_backward else BACKWARD
    alive = [0] * problem.interleaves
    moments = {tuple(alive)}
    for direction, v, _, _ in schedule.order[s].tolist():
        alive[v] += (direction == FORWARD) - (direction == last)
        moments.add(tuple(alive))
    return moments


def _kept_once(problem: PipelineProblem, schedule: Schedule, s: int) -> float:
    """MiB that the pinned kinds of a stage hold once, those named alike up to a # together."""
    by_chunk = [kind for v in range(problem.interleaves) for kind in _pinned(problem, schedule, v, s)]
    names = {kind.name.split("#")[0] for kind in by_chunk}
    return float(sum(max(kind.shared_mib for kind in by_chunk if kind.name.split("#")[0] == name) for name in names))


def _memory(
    problem: PipelineProblem, schedule: Schedule, v: int, s: int, one: Choice, modes: list[str]
) -> tuple[tuple[float, float], tuple[float, float], tuple[float, float]]:
    """(states, activations of a micro-batch) of a chunk on its device, the same on its host and on its lender."""
    layers = _modes_of(problem, one, modes) + [(kind, NONE) for kind in _pinned(problem, schedule, v, s)]
    moved = [kind.choices[mode] for kind, mode in layers if mode in problem.choices]
    parts = problem.schedule.seq_splits
    return (
        (
            sum(kind.layer_mib for kind, _ in layers) + sum(choice.states_mib for choice in moved),
            sum(kind.activation_mib[mode] for kind, mode in layers) / parts,
        ),
        (sum(choice.host_states_mib for choice in moved), sum(choice.host_mib for choice in moved) / parts),
        (0.0, sum(choice.lent_mib for choice in moved) / parts),
    )


def lenders_hold(
    problem: PipelineProblem, schedule: Schedule, by_stage: list[list[tuple[Choice, ...]]], modes: list[str]
) -> NDArray[np.bool_]:
    """Whether every lender holds its own peak and the most that each of its borrowers ever keeps there, for
    every combination of the stages' choices, bool [plans] in row-major order."""
    shape, needs = tuple(map(len, by_stage)), [np.zeros(()) for _ in by_stage]
    for s, choices in enumerate(by_stage):
        across = tuple(-1 if axis == s else 1 for axis in range(problem.stages))
        moments = np.array(sorted(_moments(problem, schedule, s)))
        known = {
            (v, one): _memory(problem, schedule, v, s, one, modes) for choice in choices for v, one in enumerate(choice)
        }
        table = np.array([[known[v, one] for v, one in enumerate(choice)] for choice in choices])
        peaks = table[:, :, :, 0].sum(axis=1) + np.einsum("nvk,mv->nmk", table[:, :, :, 1], moments).max(axis=1)
        own = (problem.static_mib[s] + _kept_once(problem, schedule, s) + peaks[:, 0]).reshape(across)
        lent = peaks[:, 2].reshape(across)
        needs[s] = needs[s] + own
        lender = problem.lenders[s]
        if lender < 0:
            needs[s] = np.where(lent > 0, np.inf, needs[s])
        else:
            needs[lender] = needs[lender] + lent
    fits = np.ones(shape, dtype=bool)
    for s, need in enumerate(needs):
        fits &= need <= problem.limit_mib[s] + 1e-6
    return fits.ravel()


def _play_all(
    problem: PipelineProblem, schedule: Schedule, by_stage: list[list[tuple[Choice, ...]]], modes: list[str]
) -> NDArray[np.float64]:
    """Step time of every combination of the stages' choices, float64 [plans] in row-major order."""
    shape = tuple(map(len, by_stage))
    durations: dict[tuple[int, int, int, int], NDArray[np.float64]] = {}
    beside = _passes(problem, schedule) if problem.pairing is not None else {}
    for s, choices in enumerate(by_stage):
        across = tuple(-1 if axis == s else 1 for axis in range(problem.stages))
        for v in range(problem.interleaves):
            known = {one: _times(problem, schedule, v, s, one, modes) for one in {choice[v] for choice in choices}}
            rows = np.array([known[choice[v]] for choice in choices])
            for direction in range(rows.shape[1]):
                for other in range(-1, problem.interleaves if problem.pairing is not None else 0):
                    alone = [_alone(problem, schedule, (v, s, other), choice, direction) for choice in choices]
                    durations[direction, v, s, other] = (rows[:, direction] + alone).reshape(across)
    whole = [] if schedule.whole is None else np.argwhere(schedule.whole).tolist()
    late = {(schedule.position(int(schedule.order[s, k, 1]), s), int(schedule.order[s, k, 2])) for s, k in whole}
    ended: dict[tuple[int, int, int, int], NDArray[np.float64]] = {}
    clock = [np.zeros((1,) * problem.stages) for _ in range(problem.stages)]
    queue = [list(map(tuple, order)) for order in schedule.order.tolist()]
    while any(queue):
        for s in range(problem.stages):
            while queue[s]:
                direction, v, micro_batch, split = queue[s][0]
                place = schedule.position(v, s)
                if direction == FORWARD:
                    source = (FORWARD, place - 1) if place else None
                elif direction == WEIGHT_GRADIENT:
                    source = (BACKWARD, place)
                else:
                    source = (FORWARD, place) if place == schedule.chunks - 1 else (BACKWARD, place + 1)
                    if (place + 1, micro_batch) in late:
                        source = (WEIGHT_GRADIENT, place + 1)
                if source is not None:
                    needed = (*source, micro_batch, split)
                    if needed not in ended:
                        break
                    lag = 0.0
                    if schedule.chunk_at(source[1])[1] != s:
                        boundary = min(source[1], place)
                        lag = problem.lags[boundary] if problem.lags else problem.lag
                        lag *= 1 + sum(k.hand_over for k in problem.kinds if k.places and k.places[0] <= boundary)
                    clock[s] = np.maximum(clock[s], ended[needed] + lag)
                other = beside.get((s, direction, v, micro_batch), -1)
                clock[s] = clock[s] + durations[direction, v, s, other]
                ended[direction, place, micro_batch, split] = clock[s]
                queue[s].pop(0)
    tails = problem.tail or (0.0,) * problem.stages
    times = np.zeros(shape)
    for s in range(problem.stages):
        times = np.maximum(times, clock[s] + tails[s])
    return times.ravel()


def _passes(problem: PipelineProblem, schedule: Schedule) -> dict[tuple[int, int, int, int], int]:
    """The interleave beside which each (stage, direction, interleave, micro-batch) of a combined pass runs.

    DualPipeV as MindSpeed counts its phases (dualpipev_schedules.py, ``generate_dualpipev_schedule`` and the loop
    over ``overlap``, ``1b1overlap`` and ``interleaved_backward``); interleaved 1F1B by its warm-up.
    """
    S, V, m = problem.stages, problem.interleaves, problem.micro_batches
    found = {}
    for s in range(S):
        if problem.schedule.v_shape:
            forwards = [2 * (S - 1 - s) + s + 1, s + 1 + S - 1 - s]
            backwards = [0, S - 1 - s]
            ahead, skipped = 0, s < S - 1
            for _ in range(2 * m - 4 * S + 2 * s + 2 + 2 * (S - 1 - s) + s + 1):
                behind = 1 - ahead
                if forwards[ahead] < m:
                    if skipped:
                        found[s, FORWARD, ahead, forwards[ahead]] = behind
                        found[s, BACKWARD, behind, backwards[behind]] = ahead
                    forwards[ahead] += 1
                skipped = True
                backwards[behind] += 1
                ahead = behind
        else:
            warm_up = 2 * (S - 1 - s) + (V - 1) * S + 1
            tasks = [[task for task in schedule.order[s].tolist() if task[0] == way] for way in (FORWARD, BACKWARD)]
            for (_, v, i, _), (_, w, k, _) in zip(tasks[0][warm_up:], tasks[1], strict=False):
                found[s, FORWARD, v, i], found[s, BACKWARD, w, k] = w, v
    return found


def _alone(
    problem: PipelineProblem,
    schedule: Schedule,
    task: tuple[int, int, int],
    choice: tuple[Choice, ...],
    direction: int,
) -> float:
    """Exposed time of a task (virtual stage, stage, virtual stage beside it) for layers without one beside them."""
    v, s, other = task
    if problem.pairing is None or direction == WEIGHT_GRADIENT:
        return 0.0
    by_chunk = [[kind for kind, n in zip(problem.kinds, one, strict=False) for _ in range(n)] for one in choice]
    own, theirs = by_chunk[v], by_chunk[other] if other >= 0 else []
    exposed = [kind.exposed_backward if direction == BACKWARD else kind.exposed_forward for kind in own]
    if problem.pairing.positions is not None:
        empty = problem.pairing.positions - len(theirs)  # they come first on the way back
        left = exposed[:empty]
    else:
        longer = max(0, len(own) - len(theirs))
        left = exposed[:longer] if direction == BACKWARD else exposed[len(own) - longer :]
    pinned = _pinned(problem, schedule, v, s)
    return (
        sum(left) + sum(kind.exposed_backward if direction == BACKWARD else kind.exposed_forward for kind in pinned)
    ) * (problem.slowness[s] if problem.slowness else 1.0)


def with_pairs(problem: PipelineProblem, rng: np.random.Generator) -> PipelineProblem:
    """The problem under a schedule that combines passes, whose kinds expose their communication beside no layer."""
    S, V = problem.stages, problem.interleaves
    v_shape = V == 2 and rng.random() < 0.7
    micro_batches = 2 * S + int(rng.integers(0, 5)) if v_shape else S * int(rng.integers(1, 6))
    kinds = []
    for kind in problem.kinds:
        exposed = np.round(rng.uniform(0.1, 1.5, 2) * kind.forward, 3) if rng.random() < 0.7 else np.zeros(2)
        kinds.append(replace(kind, exposed_forward=float(exposed[0]), exposed_backward=float(exposed[1])))
    spec = ScheduleSpec("dualpipev", whole_drain=bool(rng.integers(2)))
    positions = -(-problem.layers // (S * V)) + int(rng.integers(0, 3)) if rng.random() < 0.7 else None
    return problem.replace(
        micro_batches=micro_batches,
        kinds=tuple(kinds),
        schedule=spec if v_shape else ScheduleSpec("megatron-interleaved", one_ahead=True),
        pairing=Pairing(positions),
        max_layers=problem.max_layers if positions is None else dict.fromkeys(np.ndindex(V, S), positions),
    )


def _times(
    problem: PipelineProblem, schedule: Schedule, v: int, s: int, choice: Choice, modes: list[str]
) -> tuple[float, ...]:
    layers = _modes_of(problem, choice, modes)
    place = schedule.position(v, s)
    here = problem.stage_times[s] if problem.stage_times else StageTimes.of(problem)
    phi, ratios = here.forward, here.recompute_ratio
    forward = sum(phi[kind.name] for kind, _ in layers)
    forward += sum(phi[kind.name] for kind in _pinned(problem, schedule, v, s))
    forward += problem.embedding_forward * (place == 0) + problem.head_forward * (place == schedule.chunks - 1)
    again = sum(ratios[mode] * phi[kind.name] for kind, mode in layers if mode in ratios)
    chosen = [here.choices[kind.name][mode] for kind, mode in layers if mode in problem.choices]
    backward = here.backward_ratio * forward
    more = [sum(getattr(one, name) for one in chosen) for name in ("forward", "backward", "weight_gradient")]
    for kind in _pinned(problem, schedule, v, s):
        more[0], more[1] = more[0] + kind.added_forward, more[1] + kind.added_backward
    splits = problem.schedule.seq_splits / (problem.slowness[s] if problem.slowness else 1.0)
    if schedule.spec.traits.split_backward:
        weight = problem.weight_gradient_share * backward
        inputs = backward - weight + again + more[1]
        return (forward + more[0]) / splits, inputs / splits, (weight + more[2]) / splits
    return (forward + more[0]) / splits, (backward + again + more[1] + more[2]) / splits


def _as_plan(
    problem: PipelineProblem, by_stage: list[list[tuple[Choice, ...]]], winner: int, modes: list[str]
) -> PipelinePlan:
    picked = [
        choices[index]
        for choices, index in zip(by_stage, np.unravel_index(winner, tuple(map(len, by_stage))), strict=True)
    ]
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    grids = [
        as_grid([[picked[s][v][entry] for s in range(problem.stages)] for v in range(problem.interleaves)])
        for entry in range(len(problem.kinds) + len(modes))
    ]
    layers = dict(zip((kind.name for kind in problem.kinds), grids, strict=False))
    for kind in problem.kinds:
        if kind.pinned:
            rows = [
                [_pinned(problem, schedule, v, s).count(kind) for s in range(problem.stages)]
                for v in range(problem.interleaves)
            ]
            layers[kind.name] = as_grid(rows)
    return PipelinePlan(layers, dict(zip(modes, grids[len(problem.kinds) :], strict=True)))


def faults(problem: PipelineProblem, truth: BruteForce, solver: str, *, mps: bool = False) -> list[str]:
    """Deviations of a solver's answer, its plan, or its model file under CBC from the optimum."""
    from taylor.pipeline_solver.check.checker import check
    from taylor.pipeline_solver.model.solution import INFEASIBLE, OPTIMAL
    from taylor.pipeline_solver.solving.solve import solve

    solution = solve(problem, SolveOptions(solver=solver))
    if truth.plan is None:
        return [] if solution.status == INFEASIBLE else [f"{solver}: {solution.status}, though no plan exists"]
    if solution.status != OPTIMAL or solution.objective is None or solution.plan is None:
        return [f"{solver}: {solution.status}, though a plan takes {truth.objective}: {solution.message}"]
    found = [f"{solver}: {fault}" for fault in check(problem, solution.plan, solution.objective)]
    if abs(solution.objective - truth.objective) > 1e-6 * max(1.0, truth.objective):
        found.append(f"{solver}: {solution.objective} instead of {truth.objective}")
    if mps:
        value = _mps_optimum(problem, solution)
        if abs(value - truth.objective) > 1e-6 * max(1.0, truth.objective):
            found.append(f"{solver}: the model file's optimum under CBC is {value}, not {truth.objective}")
    return found


def _mps_optimum(problem: PipelineProblem, solution: object) -> float:
    import pulp

    from taylor.pipeline_solver.milp.cbc import cbc_path
    from taylor.pipeline_solver.milp.model_files import write_mps
    from taylor.pipeline_solver.model.solution import Solution

    assert isinstance(solution, Solution)
    with tempfile.TemporaryDirectory() as folder:
        path = write_mps(problem, solution, Path(folder) / "model.mps")
        # Without the row that states the proof: the cuts alone must do.
        text = "\n".join(line for line in path.read_text().splitlines() if "proven_bound" not in line)
        path.write_text(text + "\n")
        variables, model = pulp.LpProblem.fromMPS(str(path))
        model.solve(pulp.COIN_CMD(path=cbc_path(), msg=False))
        return float(variables["step_time"].value())


def main() -> int:
    """Compare solvers with the enumeration on random instances; exit 1 on any difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--solvers", default="HIGHS,HIGHS-MILP")
    parser.add_argument("--mps", action="store_true", help="also solve each model file with CBC")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    wrong, infeasible, plans, began = 0, 0, 0, time.monotonic()
    for number in range(arguments.instances):
        problem, truth = comparable_problem(rng)
        plans += truth.plans
        infeasible += truth.plan is None
        for solver in arguments.solvers.split(","):
            for fault in faults(problem, truth, solver, mps=arguments.mps):
                wrong += 1
                print(f"instance {number} (seed {arguments.seed}): {fault}\n  {problem}", flush=True)
    print(
        f"{arguments.instances} instances ({infeasible} without a plan), {plans} plans tried, {wrong} differences, "
        f"{time.monotonic() - began:.1f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
