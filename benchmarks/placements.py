"""Placements of chunks chosen with the order of tasks: tiny instances against an enumeration, recipes against shapes.

    python -m benchmarks.placements [--instances 2000] [--seed 0]
    python -m benchmarks.placements --recipes [FOLDER] [--only TEXT] [--time_limit SECONDS]

Without ``--recipes``: chunks with random times, transfers and memory on two or three stages. The enumeration takes
every assignment of the chunks to the stages, those that exchange like stages too, and every order of tasks on it: it
extends partial orders by any task that can be next, and leaves off only what takes as long as the search's answer or is
no better than another partial order of the same tasks. It shares no code with the search. With
``--recipes``: those of LLaMA3 70B, 405B and DeepSeek-V3, each on the better of a loop and a V and on any placement.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from benchmarks.mlperf_layouts import mlperf_configs
from benchmarks.recipe_plans import recipe_file
from benchmarks.recipes import RECIPES, recipe_configs
from taylor.base.errors import TaylorError
from taylor.pipeline.schedule import SEARCHED_FREE
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.orders.placement_search import ChunkTasks, PlacementFound, search_placement
from taylor.workflows.solving.solve_file import solve_stated

MODELS = ("llama3_70b", "llama3-70b", "405b", "deepseek")
CLOSE = 1e-9
"""Relative difference of two step times that rounding makes."""

Task = tuple[int, int]
"""Direction (0 forward, 1 input gradient, 2 weight gradient) and chunk."""


def random_chunks(rng: np.random.Generator) -> ChunkTasks:
    """The chunks of a tiny instance, with memory that binds or does not."""
    sizes = LARGEST if rng.random() < 0.02 else SIZES
    stages, interleaves, micro_batches = sizes[int(rng.integers(len(sizes)))]
    chunks = stages * interleaves
    times = rng.integers(1, 6, (3, chunks)) if rng.random() < 0.6 else np.tile(rng.integers(1, 4, (3, 1)), chunks)
    if rng.random() < 0.4:
        times[:, -1] += rng.integers(0, 4)
    kept, states = rng.integers(1, 4, chunks).astype(float), rng.integers(0, 3, chunks).astype(float)
    ends = rng.integers(0, 3, 2).astype(float)
    free_there = (
        (kept.sum() / stages) * rng.uniform(1.0, 2.5 if rng.random() < 0.7 else 9.0) + states.sum() / stages + 3
    )
    free = np.full((2, stages), free_there)
    free[0, 0], free[0, -1] = free_there - ends[0], free_there - ends[1]
    free[1, 0] = free_there - ends.sum()
    tail = np.full((2, stages), float(rng.integers(0, 2)))
    lag = rng.integers(0, 3, chunks - 1).astype(float)
    return ChunkTasks(stages, micro_batches, times.astype(float), lag, states, kept, free, tail)


SIZES = ((2, 2, 1), (2, 2, 2), (2, 2, 3), (2, 3, 1), (2, 3, 2), (3, 2, 1), (3, 2, 2))
"""Stages, virtual stages and micro-batches of tiny instances."""
LARGEST = ((2, 3, 3), (3, 2, 3))
"""Those of one in fifty, which take seconds."""


def assignments(tasks: ChunkTasks) -> Iterator[tuple[int, ...]]:
    """Every way to give each stage as many chunks, the first chunk on stage 0, the last there or on the last stage."""
    chunks = tasks.durations.shape[1]
    for stage_of in itertools.product(range(tasks.stages), repeat=chunks):
        even = all(stage_of.count(s) == tasks.interleaves for s in range(tasks.stages))
        if even and stage_of[0] == 0 and stage_of[-1] in (0, tasks.stages - 1):
            yield stage_of


def faster_than(tasks: ChunkTasks, answer: float) -> tuple[int, ...] | None:
    """An assignment with an order that takes less than the answer; None where none does."""
    return next((one for one in assignments(tasks) if _has_faster_order(tasks, one, answer * (1 - CLOSE))), None)


def _has_faster_order(tasks: ChunkTasks, stage_of: Sequence[int], answer: float) -> bool:
    """Return whether some order on an assignment takes less; partial orders grow task by task, breadth first.

    A partial order matters by when each stage is free and when results arrive that another stage still waits for.
    """
    chunks, m, S = tasks.durations.shape[1], tasks.micro_batches, tasks.stages
    every = [(direction, c) for direction in range(3) for c in range(chunks)]
    time_of = [float(tasks.durations[task]) for task in every]
    at = [stage_of[c] for _, c in every]
    end = int(stage_of[-1] == 0)
    states = np.bincount(stage_of, weights=tasks.states_mib, minlength=S)
    free = (tasks.free_mib[end] - states + 1e-6).tolist()
    need = [_input(tasks, stage_of, *task) for task in every]
    sources = {k: source[0] for k, source in enumerate(need) if source is not None}
    waits = {source: k for k, source in sources.items() if at[source] != at[k]}
    behind = _least_behind(tasks, need, time_of)
    limit = [answer - tail for tail in tasks.tail[end].tolist()]
    if any(
        m * sum(time for time, s in zip(time_of, at, strict=True) if s == stage) >= limit[stage] for stage in range(S)
    ):
        return False
    # By the number of tasks of each kind that have begun: the clocks of stages, and the ends that are waited for.
    layer: dict[tuple[int, ...], list[State]] = {(0,) * len(every): [((0.0,) * S, ((),) * len(every))]}
    for _ in range(len(every) * m):
        after: dict[tuple[int, ...], list[State]] = {}
        for counts, partial in layer.items():
            kept = [0.0] * S
            left = [0.0] * S
            for k, n in enumerate(counts):
                direction, c = every[k]
                kept[at[k]] += n * tasks.kept_mib[c] * ((direction == 0) - (direction == 2))
                left[at[k]] += (m - n) * time_of[k]
            for k, (direction, c) in enumerate(every):
                n, s, source = counts[k], at[k], need[k]
                if n == m or (direction == 0 and kept[s] + tasks.kept_mib[c] > free[s]):
                    continue
                if source is not None and counts[source[0]] <= n:
                    continue
                reached = (*counts[:k], n + 1, *counts[k + 1 :])
                crosses = source is not None and waits.get(source[0]) == k
                for clocks, ends in partial:
                    now = list(ends)
                    begin = clocks[s]
                    if source is not None and crosses:
                        begin = max(begin, ends[source[0]][0] + source[1])
                        now[source[0]] = ends[source[0]][1:]
                    finish = begin + time_of[k]
                    if max(begin + left[s], finish + behind[k]) >= limit[s]:
                        continue
                    if k in waits:
                        now[k] = (*ends[k], finish)
                    _keep(after.setdefault(reached, []), ((*clocks[:s], finish, *clocks[s + 1 :]), tuple(now)))
        layer = {counts: found for counts, found in after.items() if found}
    return any(layer.values())


State = tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]
"""Times when stages are free, and by kind of task the ends of those whose results another stage waits for."""


def _least_behind(tasks: ChunkTasks, need: Sequence[tuple[int, float] | None], time_of: Sequence[float]) -> list[float]:
    """Least time from the end of a task to the end of the step, by the tasks that wait for it; tails left out."""
    chunks = tasks.durations.shape[1]
    behind = [0.0] * len(need)
    order = [*range(chunks), *reversed(range(chunks, 2 * chunks)), *range(2 * chunks, 3 * chunks)]
    for k in reversed(order):
        source = need[k]
        if source is not None:
            behind[source[0]] = max(behind[source[0]], source[1] + time_of[k] + behind[k])
    return behind


def _input(tasks: ChunkTasks, stage_of: Sequence[int], direction: int, c: int) -> tuple[int, float] | None:
    """Number of the task that a task waits for, and the transfer time between them."""
    chunks = tasks.durations.shape[1]
    if direction == 2 or (direction == 1 and c == chunks - 1):
        return (direction - 1) * chunks + c, 0.0
    other = c - 1 if direction == 0 else c + 1
    if other < 0:
        return None
    lag = float(tasks.lag[min(c, other)]) if stage_of[c] != stage_of[other] else 0.0
    return direction * chunks + other, lag


def _keep(states: list[State], new: State) -> None:
    """Add a state of some tasks unless another one is nowhere later; drop those that it is nowhere later than."""

    def no_later(one: State, other: State) -> bool:
        return all(a <= b for a, b in zip(one[0], other[0], strict=True)) and all(
            a <= b for mine, others in zip(one[1], other[1], strict=True) for a, b in zip(mine, others, strict=True)
        )

    if not any(no_later(one, new) for one in states):
        states[:] = [one for one in states if not no_later(new, one)]
        states.append(new)


def played(tasks: ChunkTasks, found: PlacementFound) -> float:
    """Step time of a found order, task by task from its words; infinite where it does not fit or stops."""
    chunks, S = tasks.durations.shape[1], tasks.stages
    stage_of, end = found.placement.stage_of, int(found.placement.stage_of[-1] == 0)
    own = [[c for c in range(chunks) if stage_of[c] == s] for s in range(S)]
    words = [[("FBW".index(part[0]), own[s][int(part[1:])]) for part in found.order.words[s].split()] for s in range(S)]
    ends: dict[tuple[int, int, int], float] = {}
    done: dict[Task, int] = {}
    clock = [0.0] * S
    at, kept = [0] * S, [sum(tasks.states_mib[c] for c in own[s]) for s in range(S)]
    moved = True
    while moved:
        moved = False
        for s in range(S):
            while at[s] < len(words[s]):
                direction, c = words[s][at[s]]
                n, source = done.get((direction, c), 0), _input(tasks, stage_of, direction, c)
                awaited = None if source is None else (source[0] // chunks, source[0] % chunks, n)
                if awaited is not None and awaited not in ends:
                    break
                kept[s] += tasks.kept_mib[c] * ((direction == 0) - (direction == 2))
                if kept[s] > tasks.free_mib[end, s] + 1e-6:
                    return np.inf
                ready = 0.0 if source is None or awaited is None else ends[awaited] + source[1]
                clock[s] = max(clock[s], ready) + tasks.durations[direction, c]
                ends[direction, c, n] = clock[s]
                done[direction, c] = n + 1
                at[s] += 1
                moved = True
    whole = all(at[s] == 3 * len(own[s]) * tasks.micro_batches for s in range(S))
    return max(clock[s] + tasks.tail[end, s] for s in range(S)) if whole else np.inf


def faults_of(tasks: ChunkTasks) -> str:
    """What the search and the enumeration disagree on; empty where they agree."""
    try:
        found = search_placement(tasks, [])
    except ValueError:
        return "a placement has an order" if faster_than(tasks, np.inf) else ""
    if not found.order.proven:
        return f"not proven: {found.order.step} against {found.order.bound}"
    step = played(tasks, found)
    if abs(step - found.order.step) > CLOSE * step:
        return f"{found.placement.stage_of} takes {step}, not {found.order.step}"
    faster = faster_than(tasks, found.order.step)
    return f"{faster} takes less than {found.order.step}" if faster else ""


def compare_recipes(arguments: list[str]) -> int:
    """Print each recipe's best plan and order on a loop or a V beside that on any placement; 1 where it is worse."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=RECIPES)
    parser.add_argument("--time_limit", type=float, default=60.0, help="seconds of a recipe")
    parser.add_argument("--only", default="", help="recipes with this text in their name")
    chosen = parser.parse_args(arguments)
    worse, known = 0, set()
    for row, config in chain(recipe_configs(chosen.folder), mlperf_configs(chosen.folder)):
        name = row["script"].removesuffix(".sh")
        if config.strategy.pp == 1 or name in known or chosen.only not in name or not any(m in name for m in MODELS):
            continue
        known.add(name)
        vpp = max(2, config.strategy.vpp)
        try:
            file, memory = recipe_file(config, row["system"], 0.0)
            file = replace(file, job=replace(file.job, schedule=SEARCHED_FREE, vpp=vpp))
            asked = file.running_as(vpp, config.schedule.renamed(SEARCHED_FREE))
            planned = solve_stated(asked, memory, SolveOptions(time_limit=chosen.time_limit, workers=1))
        except TaylorError as error:
            print(name, error, file=sys.stderr, flush=True)
            continue
        order, step, problem = planned.order, planned.solution.objective, planned.problem
        if order is None or order.placement is None or order.shape_step is None or step is None:
            continue
        gain, bound = order.shape_step / step - 1, planned.solution.bound or 0.0
        worse += gain < -CLOSE
        print(
            f"{name} | PP{problem.stages} VP{vpp} m{problem.micro_batches} | {order.shape} {order.shape_step:.3f} | "
            f"{order.placement.name} {step:.3f} | {gain:.2%} | at most {order.shape_step / bound - 1:.2%} | "
            f"{' '.join(map(str, order.placement.stage_of))}",
            flush=True,
        )
    return int(worse > 0)


def main(arguments: list[str] | None = None) -> int:
    """Compare and print; 1 where anything differs."""
    given = sys.argv[1:] if arguments is None else arguments
    if "--recipes" in given:
        return compare_recipes([one for one in given if one != "--recipes"])
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--instances", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(given)
    began, wrong = time.monotonic(), 0
    for number in range(chosen.instances):
        tasks = random_chunks(np.random.default_rng([chosen.seed, number]))
        if fault := faults_of(tasks):
            wrong += 1
            print(f"instance {number}: {fault}", flush=True)
        if number % 100 == 99:
            print(f"{number + 1} instances, {wrong} differ, {time.monotonic() - began:.0f} s", file=sys.stderr)
    print(f"{chosen.instances} instances: {wrong} differences")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
