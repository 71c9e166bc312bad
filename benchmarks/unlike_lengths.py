"""Plans for micro-batches of unlike cost, against every plan and against fresh samples.

Run from the repository's root: ``python -m benchmarks.unlike_lengths [--instances 500] [--seed 0]``, and
``python -m benchmarks.unlike_lengths --large`` for 16 stages and 32 scenarios.

The optimum of a small instance is found by playing every plan that fits in every scenario, without the event graph: in
exact arithmetic for the plan that the solver returns. Only the schedule's order of tasks and the memory of a plan are
shared with the product.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.plan import FULL, NONE, PipelinePlan, as_grid
from taylor.pipeline.schedule import BACKWARD, FORWARD, ScheduleSpec
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.evaluate import over_limits_mib
from taylor.pipeline_solver.unlike.scenarios import ScenarioGraph, Scenarios
from taylor.pipeline_solver.unlike.solve import ExpectedStep, solve_expected

Array = NDArray[np.float64]


def random_scenarios(rng: np.random.Generator, number: int, micro_batches: int, spread: float = 0.8) -> Scenarios:
    """Steps whose samples' lengths are lognormal: a part of the time grows with the length, a part with its square."""
    lengths = np.clip(rng.lognormal(0.0, spread, (number, micro_batches)), 0.1, 6.0)
    layers = 0.7 * lengths + 0.3 * lengths**2
    return Scenarios(layers / layers.mean(), lengths / lengths.mean())


def random_problem(rng: np.random.Generator) -> PipelineProblem:
    """One to three stages, one or two kinds of up to six layers, one or two virtual stages."""
    stages = int(rng.integers(1, 4))
    interleaves = int(rng.integers(1, 3)) if stages > 1 else 1
    least = stages * interleaves
    first = int(rng.integers(0, 3))
    rest = int(rng.integers(max(1, least - first), max(7 - first, least - first + 1)))
    kinds = [
        LayerKind("a", first, round(rng.uniform(0.3, 1.5), 2), 20.0, {NONE: 8.0, FULL: 1.0}),
        LayerKind("b", rest, 1.0, 30.0, {NONE: 10.0, FULL: 1.0}),
    ]
    layers = first + rest
    fair = layers * (30 + 10 * stages) / stages
    return PipelineProblem(
        stages,
        interleaves,
        stages * int(rng.integers(1, 4)),
        tuple(kind for kind in kinds if kind.count),
        (5.0,) * stages,
        (round(fair * rng.uniform(0.8, 1.6), 1),) * stages,
        ScheduleSpec("interleaved") if interleaves > 1 else ScheduleSpec(),
        backward_ratio=round(rng.uniform(1.0, 2.5), 2),
        head_forward=round(rng.uniform(0.0, 2.0), 2),
        embedding_forward=round(rng.uniform(0.0, 0.3), 2),
        lag=round(rng.choice([0.0, 0.05, 0.3]), 2),
        tail=tuple(round(rng.uniform(0, 2), 2) for _ in range(stages)) if rng.random() < 0.3 else (),
    )


def every_plan(problem: PipelineProblem) -> Iterator[PipelinePlan]:
    """Every plan that fits: layers in order of kinds, at least `min_layers` a chunk, the first of each recomputed."""
    stages, interleaves = problem.stages, problem.interleaves
    names = [kind.name for kind in problem.kinds for _ in range(kind.count)]
    chunks, total = stages * interleaves, len(names)
    for cuts in itertools.combinations(range(1, total), chunks - 1):
        borders = (0, *cuts, total)
        sizes = [b - a for a, b in itertools.pairwise(borders)]
        layers = {kind.name: [[0] * stages for _ in range(interleaves)] for kind in problem.kinds}
        for at, (a, b) in enumerate(itertools.pairwise(borders)):
            for name in names[a:b]:
                layers[name][at // stages][at % stages] += 1
        grids = {name: as_grid(grid) for name, grid in layers.items()}
        for again in itertools.product(*(range(size + 1) for size in sizes)):
            counts = [[again[v * stages + s] for s in range(stages)] for v in range(interleaves)]
            plan = PipelinePlan(grids, {FULL: as_grid(counts)})
            if over_limits_mib(problem, plan) <= 1e-6:
                yield plan


def played(problem: PipelineProblem, times: ChunkTimes, layers: Any, ends: Any, maximum: Any, zero: Any) -> Any:
    """Step in one scenario, task by task as the schedule orders them.

    Parameters
    ----------
    times : ChunkTimes
        Of one plan in any arithmetic, or of many as arrays [plans].
    layers, ends : sequence of number [m]
    maximum : callable
        The larger of two numbers, or of two arrays entry by entry.
    zero : number
        A 0 of that arithmetic.
    """
    order = schedule_of(problem).order
    stages, chunks = problem.stages, problem.stages * problem.interleaves
    done: dict[tuple[int, int, int], Any] = {}
    free, next_task = [zero] * stages, [0] * stages
    while any(at < order.shape[1] for at in next_task):
        moved = False
        for s in range(stages):
            while next_task[s] < order.shape[1]:
                direction, v, m = (int(each) for each in order[s, next_task[s], :3])
                at = v * stages + s
                needs = (FORWARD, at - 1, m) if direction == FORWARD else (BACKWARD, at + 1, m)
                if direction == BACKWARD and at == chunks - 1:
                    needs = (FORWARD, at, m)
                ready = zero
                if not (direction == FORWARD and at == 0):
                    if needs not in done:
                        break
                    ready = done[needs] + (times.lag if needs[1] % stages != s else zero)
                once = layers[m] * times.inside[at] + ends[m] * times.outside[at]
                length = once if direction == FORWARD else times.beta * once + layers[m] * times.again[at]
                free[s] = maximum(free[s], ready) + length
                done[direction, at, m] = free[s]
                next_task[s] += 1
                moved = True
        if not moved:
            raise AssertionError("the schedule deadlocks")
    ended = [end + tail for end, tail in zip(free, times.tails, strict=True)]
    return reduce(maximum, ended)


class ChunkTimes(NamedTuple):
    """Times of chunks in model order: layers, embedding and head, recompute; and what is the same for all plans."""

    inside: list[Any]
    outside: list[Any]
    again: list[Any]
    beta: Any
    lag: Any
    tails: list[Any]


def chunk_times(problem: PipelineProblem, plan: PipelinePlan, number: Any) -> ChunkTimes:
    """Times of one plan's chunks as numbers that `number` makes of floats."""
    chunks = problem.stages * problem.interleaves
    inside, again, outside = [], [], [number(0.0)] * chunks
    outside[0] += number(problem.embedding_forward)
    outside[-1] += number(problem.head_forward)
    ratio = number(problem.recompute_ratio[FULL])
    for at in range(chunks):
        v, s = divmod(at, problem.stages)
        kinds = [number(kind.forward) for kind in problem.kinds for _ in range(plan.layers[kind.name][v][s])]
        count = plan.recompute[FULL][v][s] if FULL in plan.recompute else 0
        inside.append(sum(kinds, start=number(0.0)))
        again.append(ratio * sum(kinds[:count], start=number(0.0)))
    tails = [number(value) for value in problem.tail or (0.0,) * problem.stages]
    return ChunkTimes(inside, outside, again, number(problem.backward_ratio), number(problem.lag), tails)


def together(each: Sequence[ChunkTimes]) -> ChunkTimes:
    """Times of many plans as arrays [plans]."""
    return each[0]._replace(
        inside=[np.array(column) for column in zip(*(one.inside for one in each), strict=True)],
        again=[np.array(column) for column in zip(*(one.again for one in each), strict=True)],
    )


@dataclass(frozen=True)
class Compared:
    """One instance: number of plans, least mean over all, and the solver's answer."""

    plans: int
    least: float
    found: ExpectedStep
    exact: float

    @property
    def faults(self) -> list[str]:
        """What contradicts the enumeration."""
        found, wrong = self.found, []
        if not self.plans:
            return [] if found.infeasible and found.plan is None else ["a plan where none fits"]
        if found.plan is None:
            return ["no plan where one fits"]
        if abs(found.mean - self.least) > 1e-6 * self.least:
            wrong.append(f"mean {found.mean} is not the least, {self.least}")
        if found.bound > self.least * (1 + 1e-9):
            wrong.append(f"bound {found.bound} above the least mean {self.least}")
        if abs(self.exact - found.mean) > 1e-9 * self.least:
            wrong.append(f"mean {found.mean} is {self.exact} in exact arithmetic")
        return wrong


def compare(rng: np.random.Generator) -> Compared:
    """Draw an instance, try every plan, and solve it."""
    problem = random_problem(rng)
    scenarios = random_scenarios(rng, int(rng.integers(1, 5)), problem.micro_batches)
    plans = list(every_plan(problem))
    means = np.zeros(len(plans))
    if plans:
        times = together([chunk_times(problem, plan, float) for plan in plans])
        for layers, ends in zip(scenarios.layers, scenarios.ends, strict=True):
            means += played(problem, times, layers, ends, np.maximum, 0.0) / len(scenarios)
    found = solve_expected(problem, scenarios, gap=0.0, time_limit=60.0)
    exact = 0.0
    if found.plan is not None:
        of_plan = chunk_times(problem, found.plan, Fraction)
        steps = [
            played(problem, of_plan, list(map(Fraction, layers)), list(map(Fraction, ends)), max, Fraction(0))
            for layers, ends in zip(scenarios.layers.tolist(), scenarios.ends.tolist(), strict=True)
        ]
        exact = float(sum(steps, start=Fraction(0)) / len(steps))
    return Compared(len(plans), float(means.min()) if plans else np.inf, found, exact)


def large(seed: int = 0) -> str:
    """16 stages, 64 micro-batches, 32 scenarios, 80 layers; and both plans on 200 fresh samples."""
    rng = np.random.default_rng(seed)
    kind = LayerKind("dense", 80, 1.0, 100.0, {NONE: 10.0, FULL: 1.0})
    problem = PipelineProblem(
        16, 1, 64, (kind,), (50.0,) * 16, (1000.0,) * 16, head_forward=1.3, embedding_forward=0.1, lag=0.02
    )
    scenarios, fresh = random_scenarios(rng, 32, 64), random_scenarios(rng, 200, 64)
    usual = solve(problem, SolveOptions(time_limit=30.0)).plan
    found = solve_expected(problem, scenarios, gap=0.001, time_limit=60.0, start=usual)
    if usual is None or found.plan is None:
        return "no plan"
    graph, other = ScenarioGraph(problem, fresh), ScenarioGraph(problem, fresh.largest_first())
    means = [graph.step_times(plan).mean() for plan in (usual, found.plan)]
    return (
        f"gap {found.gap:.2%} in {found.seconds:.1f} s, {found.rounds} rounds; on fresh samples the plan for the mean "
        f"length takes {means[0]:.1f}, this one {means[1]:.1f} ({means[1] / means[0] - 1:+.2%}), largest first "
        f"{other.step_times(found.plan).mean():.1f}"
    )


def main() -> int:
    """Compare instances, or measure large ones; 1 where something contradicts."""
    parser = argparse.ArgumentParser(description="plans for micro-batches of unlike cost")
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    if options.large:
        print(large(options.seed))
        return 0
    began, wrong, with_plan = time.monotonic(), 0, 0
    for at in range(options.instances):
        compared = compare(np.random.default_rng([options.seed, at]))
        with_plan += compared.plans > 0
        for fault in compared.faults:
            wrong += 1
            print(f"instance {at}: {fault}")
    seconds = time.monotonic() - began
    print(f"{options.instances} instances, {with_plan} with a plan, {wrong} faults, {seconds:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
