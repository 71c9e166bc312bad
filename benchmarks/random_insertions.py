"""Encoders in the bubbles of random small pipelines, by the thousand: the best insertion against all of them.

    python -m benchmarks.random_insertions [--instances 2000] [--processes 2] [--fresh]

Each instance is a random plan of a random small problem, of any schedule, and an encoder of up to three layers, frozen
or trained, with a transfer or without, whose memory binds or does not. The enumeration puts every micro-batch on every
stage and every layer in every idle window of the checker's own simulation, in every order of micro-batches within a
window; forwards come before backwards there. The step is compared to 1e-9, the insertions go through the checker, and
of every fifth the model file is solved by HiGHS and CBC. Portions are kept as those of `benchmarks.random_instances`.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import inf
from pathlib import Path

import numpy as np

from benchmarks.brute_force import random_plan, random_problem
from benchmarks.random_instances import (
    FOLDER,
    OF_A_PORTION,
    SAME,
    SAME_BY_A_READER,
    figures,
    least_plans,
    values_by_readers,
)
from benchmarks.reliability.campaign import Part, Portion, Result, add_run_options, run_alone, split
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.check.checker import exact_peak_memory, exact_step_time, exact_task_times
from taylor.pipeline_solver.check.insertion import check_insertion
from taylor.pipeline_solver.milp.insertion_milp import insertion_model
from taylor.pipeline_solver.milp.linear_form import write_mps_file
from taylor.pipeline_solver.model.insertion import EncoderWork
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.solving.insertion import best_insertion
from taylor.pipeline_solver.timing.idle_windows import idle_windows

INSTANCES = 2000
MOST_OPTIONS = 4_000
"""Most pairs of forwards and backwards of one stage that are tried for a set of micro-batches."""
MOST_SPLITS = 2_000
"""Most splits of an instance's layers, of which its plan is one."""
EVERY_MODEL_FILE = 5
FORWARD, BACKWARD = 0, 1
LEAST_WINDOW = 1e-9

Placing = tuple[tuple[int, ...], ...]
"""Windows of the pieces of each micro-batch, in rising order."""


@dataclass(frozen=True)
class StageFacts:
    """What the enumeration knows of one stage: its idle windows, when its micro-batches are needed and there, its tail,
    and how many it can keep."""

    windows: tuple[tuple[float, float], ...]
    needed: tuple[float, ...]
    there: tuple[float, ...]
    tail: float
    alive: int


def facts_of(problem: PipelineProblem, plan: PipelinePlan, work: EncoderWork) -> list[StageFacts]:
    """Facts of every stage, from the checker's simulation and memory."""
    tasks = exact_task_times(problem, plan)
    first: dict[int, list[float]] = {FORWARD: [inf] * problem.micro_batches, BACKWARD: [0.0] * problem.micro_batches}
    for (direction, v, micro_batch, _), start, end in tasks[0]:
        if v == 0 and direction == FORWARD:
            first[FORWARD][micro_batch] = min(first[FORWARD][micro_batch], float(start))
        elif v == 0 and direction == BACKWARD:
            first[BACKWARD][micro_batch] = max(first[BACKWARD][micro_batch], float(end))
    found = []
    for s, peak in enumerate(exact_peak_memory(problem, plan)):
        spans = [(float(start), float(end)) for _, start, end in tasks[s]]
        gaps = [(a[1], b[0]) for a, b in itertools.pairwise(spans) if b[0] - a[1] > LEAST_WINDOW]
        lag = work.lag if s else 0.0
        free = problem.limit_mib[s] + 1e-6 - float(peak)
        alive = problem.micro_batches if free >= 0 else 0
        if work.kept_mib and work.backward:
            alive = max(0, min(alive, int(free // work.kept_mib)))
        found.append(
            StageFacts(
                ((-inf, spans[0][0]), *gaps, (spans[-1][1], inf)),
                tuple(time - lag for time in first[FORWARD]),
                tuple(time + lag for time in first[BACKWARD]),
                problem.tail[s] if problem.tail else 0.0,
                alive,
            )
        )
    return found


def placings(open_to: Sequence[Sequence[int]], pieces: int) -> Iterator[Placing]:
    """Every way to put the pieces of each micro-batch in the windows that are open to it."""
    return itertools.product(*(itertools.combinations_with_replacement(windows, pieces) for windows in open_to))


def ends_of(stage: StageFacts, work: EncoderWork, subset: Sequence[int]) -> list[tuple[float, float]] | None:
    """Delay and end of the stage for every way to run these micro-batches; None where there are too many."""
    windows = list(enumerate(stage.windows))
    fits = [
        [g for g, (start, end) in windows if min(end, stage.needed[j]) - start >= work.forward - SAME] for j in subset
    ]
    back = [
        [g for g, (start, end) in windows if g and end - max(start, stage.there[j]) >= work.backward - SAME]
        for j in subset
        if work.backward
    ]
    counted = [sum(1 for _ in itertools.islice(placings(one, work.pieces), MOST_OPTIONS)) for one in (fits, back)]
    if counted[0] * counted[1] > MOST_OPTIONS:
        return None
    forwards = _forwards(stage, work, subset, fits)
    if not work.backward:
        return [(delay, -inf) for delay in forwards.values()] if stage.alive or not subset else []
    end_of = partial(_end_of, stage, work.backward)
    found = []
    for placing in placings(back, work.pieces):
        for (took, begins), delay in forwards.items():
            spans = list(zip(begins, (own[-1] for own in placing), strict=True))
            if max((sum(a <= g <= b for a, b in spans) for g, _ in windows), default=0) > stage.alive:
                continue
            ends = [end_of(g, _in_window(g, subset, placing), start + took[g]) for g, (start, _) in windows if g]
            if inf not in ends:
                found.append((delay, max(ends)))
    return found


def _in_window(g: int, subset: Sequence[int], placing: Placing) -> tuple[tuple[int, int], ...]:
    """Micro-batches with pieces in a window, and how many."""
    return tuple((j, own.count(g)) for j, own in zip(subset, placing, strict=True) if g in own)


def _forwards(
    stage: StageFacts, work: EncoderWork, subset: Sequence[int], fits: Sequence[Sequence[int]]
) -> dict[tuple[tuple[float, ...], tuple[int, ...]], float]:
    """Least delay by the time that forwards take in each window and the first window of each micro-batch."""
    found: dict[tuple[tuple[float, ...], tuple[int, ...]], float] = {}
    for placing in placings(fits, work.pieces):
        each = [_in_time(stage, work, g, _in_window(g, subset, placing)) for g in range(len(stage.windows))]
        delay = max(least for least, _ in each)
        if delay < inf:
            key = tuple(total for _, total in each), tuple(own[0] for own in placing)
            found[key] = min(delay, found.get(key, inf))
    return found


@lru_cache(maxsize=2**16)
def _end_of(stage: StageFacts, piece: float, g: int, own: tuple[tuple[int, int], ...], begun: float) -> float:
    """Earliest end of the backwards of a window after its forwards: -inf without any, inf where they do not fit."""
    best = inf
    for order in itertools.permutations(own):
        at = begun
        for j, count in order:
            at = max(at, stage.there[j]) + count * piece
        best = min(best, at)
    if not own:
        return -inf
    return best if best <= stage.windows[g][1] + SAME else inf


def _in_time(stage: StageFacts, work: EncoderWork, g: int, own: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Least delay under which the forwards of a window are in time, infinite where they never are, and their time."""
    start, end = stage.windows[g]
    total, best = sum(count for _, count in own) * work.forward, inf
    for order in itertools.permutations(own):
        delay, at = 0.0, 0.0
        for j, count in order:
            at += count * work.forward
            limit = min(end, stage.needed[j])
            if start == -inf:
                delay = max(delay, at - limit)
            elif start + at > limit + SAME:
                delay = inf
        best = min(best, delay)
    return best, total


def least_step(problem: PipelineProblem, plan: PipelinePlan, work: EncoderWork) -> tuple[float, int] | None:
    """The least step of all insertions, infinite where there is none, and how many were tried; None for too many."""
    stages, alone = facts_of(problem, plan, work), float(exact_step_time(problem, plan))
    several: dict[tuple[int, tuple[int, ...]], list[tuple[float, float]]] = {}
    tried, best = 0, inf
    for where in itertools.product(range(problem.stages), repeat=problem.micro_batches):
        together = [(0.0, alone)]
        for s, stage in enumerate(stages):
            subset = tuple(j for j, at in enumerate(where) if at == s)
            if (s, subset) not in several:
                every = ends_of(stage, work, subset)
                if every is None:
                    return None
                tried += len(every)
                several[s, subset] = _front([(delay, end + stage.tail) for delay, end in every])
            pairs = itertools.product(together, several[s, subset])
            together = _front([(max(one[0], two[0]), max(one[1], two[1])) for one, two in pairs])
        best = min([best, *(delay + end for delay, end in together)])
    return best, tried


def _front(options: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those of which no other has both a shorter delay and an earlier end."""
    front: list[tuple[float, float]] = []
    for delay, end in sorted(options):
        if not front or end < front[-1][1]:
            front.append((delay, end))
    return front


def instance(seed: int, number: int) -> tuple[PipelineProblem, PipelinePlan, EncoderWork, float, int]:
    """The instance of a number, the same on every machine, with its best step: the first of few enough insertions."""
    rng = np.random.default_rng([seed, number, 9])
    while True:
        problem = random_problem(rng)
        problem = problem.replace(micro_batches=min(problem.micro_batches, 4))
        if least_plans(problem) > MOST_SPLITS:
            continue
        try:
            plan = random_plan(problem, rng)
        except ValueError:  # a schedule that has no such number of micro-batches
            continue
        if plan is None:
            continue
        trained = rng.random() < 0.6
        times = np.round(rng.uniform(0.1, 2.5, 3), 3).tolist()
        work = EncoderWork(
            int(rng.integers(1, 4)),
            times[0],
            times[1] if trained else 0.0,
            times[2] if rng.random() < 0.6 else 0.0,
            round(float(rng.uniform(1, 30)), 1) if trained and rng.random() < 0.7 else 0.0,
        )
        if (found := least_step(problem, plan, work)) is not None:
            return problem, plan, work, *found


def portion(seed: int, first: int, count: int) -> Result:
    """Some instances, one after the other."""
    faults: list[str] = []
    tried = checked = files = infeasible = 0
    for number in range(first, first + count):
        problem, plan, work, truth, plans = instance(seed, number)
        tried, infeasible = tried + plans, infeasible + (truth == inf)
        result = best_insertion(problem, plan, work)
        found: list[str] = []
        step = inf if result.insertion is None else result.insertion.step
        if not result.proven or (step != truth and abs(step - truth) > SAME * max(1.0, truth)):
            found.append(f"{step!r} instead of {truth!r}, proven: {result.proven}")
        if result.insertion is not None:
            checked += 1
            found += [f"checker: {fault}" for fault in check_insertion(problem, plan, work, result.insertion)]
            if idle_windows(problem, plan, work).least_step(work) > truth * (1 + SAME):
                found.append("the lower bound is above the best step")
            if number % EVERY_MODEL_FILE == 0:
                files += 1
                found += model_file_faults(problem, plan, work, truth)
        faults += [f"instance {number}: {fault}" for fault in found]
    return {"instances": count, "plans": tried, "checked": checked, "files": files, "infeasible": infeasible,
            "faults": faults}  # fmt: skip


def model_file_faults(problem: PipelineProblem, plan: PipelinePlan, work: EncoderWork, optimum: float) -> list[str]:
    """Deviations of HiGHS or CBC, reading the model file, from the optimum."""
    with tempfile.TemporaryDirectory() as folder:
        form = insertion_model(idle_windows(problem, plan, work), work).form
        values = values_by_readers(write_mps_file(form, Path(folder) / "model.mps"), "step")
    return [
        f"the model file's optimum under {name} is {value!r}, not {optimum!r}"
        for name, value in values.items()
        if abs(value - optimum) > SAME_BY_A_READER * max(1.0, optimum)
    ]


def campaign(instances: int = INSTANCES, seed: int = 0) -> Part:
    """The campaign in portions."""
    firsts = list(itertools.accumulate(split(instances, -(-instances // OF_A_PORTION)), initial=0))
    portions = [
        Portion(f"{seed}-{first:05d}", portion, {"seed": seed, "first": first, "count": after - first})
        for first, after in itertools.pairwise(firsts)
    ]
    sources = ("pipeline", "pipeline_solver", "benchmarks/brute_force.py", "benchmarks/random_insertions.py")
    rows = partial(figures, name="encoders in bubbles")
    return Part("bubbles", lambda _: portions, rows, at_once=64, sources=sources)


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing of the campaign, name every difference and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_options(parser, INSTANCES, FOLDER)
    chosen = parser.parse_args(arguments)
    return run_alone(campaign(chosen.instances, chosen.seed), chosen)


if __name__ == "__main__":
    sys.exit(main())
