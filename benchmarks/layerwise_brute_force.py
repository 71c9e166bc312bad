"""The exact layer-wise search against every strategy of every layer in every division, on random small jobs.

python -m benchmarks.layerwise_brute_force --cases 2000 --first 0
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from taylor.base.compiled import compiled
from taylor.base.errors import InputError
from taylor.cost_model.measured.cost_table import CostProvider, CostRow, EndCost, EndCosts, Layout, MemorySettings
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy, LayerwisePlan
from taylor.layerwise.checker import check_plan
from taylor.layerwise.exact.events import LaggedGraph, sweep
from taylor.layerwise.exact.fixed import FixedProblem
from taylor.layerwise.exact.milp import milp_solution
from taylor.layerwise.exact.solve import FixedSolution, solve_fixed
from taylor.layerwise.job import LayerwiseJob, OuterChoice
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import FORWARD, Schedule, ScheduleSpec
from taylor.pipeline_solver.milp.milp import MilpStatus

MOST_S = 300.0
"""Seconds for one case's solution; the longest takes 10 s of CPU time, which a busy machine stretches."""


@dataclass(frozen=True)
class DrawnCosts:
    """A source of costs drawn at random.

    Parameters
    ----------
    rows : dict of LayerStrategy to CostRow
        Of the first kind of layers.
    end_costs : EndCosts
    changes : dict of (Layout, Layout) to float
    handovers : dict of Layout to float
    later : dict of LayerStrategy to CostRow
        Of the second kind, where there are two.
    """

    rows: dict[LayerStrategy, CostRow]
    end_costs: EndCosts
    changes: dict[tuple[Layout, Layout], float]
    handovers: dict[Layout, float]
    later: dict[LayerStrategy, CostRow] = field(default_factory=dict)
    name: str = "drawn"
    kinds: tuple[str, ...] = ("body", "later")
    memory: MemorySettings = MemorySettings()

    def layer(self, kind: str, strategy: LayerStrategy, setting: Any) -> CostRow:
        """See `CostProvider`."""
        rows = self.of(kind)
        if strategy not in rows:
            raise InputError("was not drawn", field="strategy", value=strategy.name)
        return rows[strategy]

    def of(self, kind: str) -> dict[LayerStrategy, CostRow]:
        """The rows of one kind."""
        return self.later if kind == "later" else self.rows

    def ends(self, strategy: EndStrategy, setting: Any) -> EndCosts:
        """See `CostProvider`."""
        first, last = self.end_costs.first, self.end_costs.last
        assert last is not None
        if setting.stages > 1:
            return self.end_costs
        names = ("forward_s", "backward_s", "tail_s", "states_mib", "activation_mib")
        return EndCosts(EndCost(*(getattr(first, name) + getattr(last, name) for name in names)))

    def layout_change_s(self, before: Layout, after: Layout, setting: Any) -> float:
        """See `CostProvider`."""
        return self.changes.get((before, after), 0.0)

    def handover_s(self, layout: Layout, setting: Any) -> float:
        """See `CostProvider`."""
        return self.handovers.get(layout, 0.0)


@dataclass(frozen=True)
class Case:
    """One random job."""

    job: LayerwiseJob
    outer: OuterChoice
    costs: DrawnCosts

    def solve(self, gap: float = 1e-10) -> FixedSolution:
        """By the exact search."""
        # A few proofs to 1e-10 are below what the solver's LPs can tell; `compare` says whether one fell short.
        return solve_fixed(self.problem(), self.outer, gap=gap, time_limit=MOST_S)

    def problem(self) -> FixedProblem:
        """The exact search's input."""
        known = {kind: sorted(self.costs.of(kind)) for kind, _ in self.job.stack}
        return FixedProblem.of(self.job, self.outer, self.costs, known)


def drawn_rows(
    rng: np.random.Generator, choices: int, working: bool, kind: str = "body"
) -> dict[LayerStrategy, CostRow]:
    """Costs of some choices of a layer on stages of four ranks, in two layouts at most."""
    shapes = list(itertools.product((4, 2), (0, 2, 3), (False, True)))
    rows = {}
    for i in rng.permutation(len(shapes))[:choices]:
        dp, zero, again = shapes[i]
        strategy = LayerStrategy(tp=4 // dp, dp=dp, zero=zero, recompute=again)
        f, b, tail, states, activation = rng.uniform((1, 1, 0, 1, 0.5), (2, 4, 3, 10, 5))
        amounts = float(rng.uniform(0, 8)) if working else 0.0
        rows[strategy] = CostRow(
            f, b, tail, states, activation, kind, strategy, Layout.of(strategy, False), working_mib=amounts
        )
    return rows


def drawn_costs(rng: np.random.Generator, choices: int, free: bool, working: bool) -> DrawnCosts:
    """Costs of some choices, of embedding and head, of changes of layout and transfers."""
    rows = drawn_rows(rng, choices, working)
    ends = EndCosts(EndCost(*rng.uniform(0, 2, size=5)), EndCost(*rng.uniform(0, 2, size=5)))
    every = sorted({row.layout for row in rows.values()} | {Layout(4, 1, 1)})
    changes = {} if free else {(a, b): float(rng.uniform(0, 1)) for a in every for b in every if a != b}
    handovers = {} if free else {layout: float(rng.uniform(0, 1)) for layout in every}
    return DrawnCosts(rows, ends, changes, handovers)


def random_case(seed: int) -> Case:
    """At most 7 layers of one kind or two, 3 stages, 2 virtual stages, 5 choices, 2 layouts; memory tight or not."""
    rng = np.random.default_rng(seed)
    stages = int(rng.integers(1, 4))
    interleaves = int(rng.integers(1, 3)) if stages > 1 else 1
    chunks = stages * interleaves
    layers = int(rng.integers(chunks, 8))
    m = int(rng.integers(stages if interleaves > 1 else 1, 7))
    name = "interleaved" if interleaves > 1 else "gpipe" if rng.random() < 0.15 else "1f1b"
    costs = drawn_costs(rng, int(rng.integers(1, 6)), rng.random() < 0.3, rng.random() < 0.3)
    job = LayerwiseJob(4 * stages, layers, 16, 16, 1e9, whole_mib=bool(rng.random() < 0.3), sequence_parallel=False)
    outer = OuterChoice(4 * m, m, stages, EndStrategy(dp=4), interleaves, ScheduleSpec(name))
    further = np.random.default_rng((seed, 1))
    if layers > 1 and further.random() < 0.4:
        first = int(further.integers(1, layers))
        later = drawn_rows(further, int(further.integers(1, 4)), bool(further.random() < 0.3), "later")
        costs = replace(costs, rows=dict(list(costs.rows.items())[:3]), later=later)
        job = job.replace(kinds=(("body", first), ("later", layers - first)))
    if rng.random() < 0.7:
        division = rng.multinomial(layers - chunks, [1 / chunks] * chunks) + 1
        drawn = rng.random(layers)
        known = [list(costs.of(kind)) for kind in job.kind_of]
        chosen = tuple(some[int(share * len(some))] for some, share in zip(known, drawn, strict=True))
        plan = LayerwisePlan(tuple(map(int, division)), chosen, outer.ends, 4 * m, m, name, interleaves=interleaves)
        peak = max(stage.peak_mib for stage in check_plan(job, plan, costs).stages)
        job = job.replace(limit_mib=peak * float(rng.uniform(0.8, 1.1)))
    return Case(job, outer, costs)


def divisions(layers: int, chunks: int) -> Iterator[tuple[int, ...]]:
    """Every way to share layers over chunks, one at least each."""
    for cuts in itertools.combinations(range(1, layers), chunks - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, layers)))


Kept = tuple[tuple[int, ...], Layout, float]
"""Layers of a chunk by choice, the layout that it leaves, and what its changes of layout cost."""


@compiled
def every_plan(begin, end_layout, contents, memory, departure, handover, places, alive, free_mib, graph, times, best):  # type: ignore[no-untyped-def]
    """The least step of all selections of one content a chunk that fit, s, or `best` where none is shorter.

    Parameters
    ----------
    begin : int64 [K, Y + 1]
        First content of a chunk for each layout on arrival; those of layout y end where those of y + 1 begin.
    contents : float64 [n, 4]
        Forward, backward, tail (s) and working memory (MiB) of each content.
    memory : float64 [n, A]
        Its memory by the micro-batches that are alive, MiB.
    departure : int64 [n]
        The layout that it leaves.
    places : int64 [K, 2]
        Virtual stage and stage of each chunk.
    alive, free_mib : int64 [S, P, V], float64 [S, P]
        Micro-batches alive together on a stage, and the free memory for layers then, MiB.
    graph : tuple
        Arguments of `sweep`.
    times : float64 [classes]
        Only the tails of the ends, s; filled here.
    """
    chunks, interleaves, stages = len(places), alive.shape[2], len(alive)
    before, needed, task_class, edge_class, last, ends = graph
    tails = times[2 * chunks : 2 * chunks + stages].copy()
    now, stop = np.zeros(chunks, np.int64), np.zeros(chunks, np.int64)
    k = 0
    now[0], stop[0] = begin[0, end_layout] - 1, begin[0, end_layout + 1]
    while k >= 0:
        now[k] += 1
        if now[k] >= stop[k]:
            k -= 1
            continue
        i, (v, s) = now[k], places[k]
        if v == interleaves - 1:
            working = 0.0
            for j in range(k + 1):
                if places[j, 1] == s:
                    working = max(working, contents[now[j], 3])
            fits = True
            for p in range(alive.shape[1]):
                need = working
                for j in range(k + 1):
                    if places[j, 1] == s:
                        need += memory[now[j], alive[s, p, places[j, 0]]]
                fits = fits and need <= free_mib[s, p]
            if not fits:
                continue
        times[v * stages + s] = contents[i, 0]
        times[chunks + v * stages + s] = contents[i, 1]
        if k < chunks - 1:
            times[2 * chunks + stages + k] = handover[departure[i]]
            k += 1
            now[k], stop[k] = begin[k, departure[i]] - 1, begin[k, departure[i] + 1]
            continue
        times[2 * chunks : 2 * chunks + stages] = tails
        for j in range(chunks):
            times[2 * chunks + places[j, 1]] += contents[now[j], 2]
        best = min(best, sweep(before, needed, task_class, edge_class, last, times, ends)[0])
    return best


class BruteForce:
    """All plans of one case; of those that differ in the order of a chunk's layers alone, the cheapest."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.kind_of = case.job.kind_of
        self.rows = [row for kind, _ in case.job.stack for row in case.costs.of(kind).values()]
        outer = case.outer
        self.schedule: Schedule = build_schedule(outer.schedule, outer.stages, outer.interleaves, outer.micro_batches)
        self.graph = LaggedGraph.of(self.schedule)
        self.end = Layout.of(outer.ends, False)
        self.layouts = sorted({self.end, *(row.layout for row in self.rows)})
        ends = case.costs.ends(outer.ends, case.job.setting(outer))
        self.ends: list[EndCost | None] = [None] * self.schedule.chunks
        self.ends[0] = ends.first
        if ends.last is not None:
            self.ends[-1] = ends.last
        whole = np.ceil if case.job.whole_mib else np.asarray
        number = np.arange(outer.micro_batches * self.schedule.interleaves + 1)
        self.memory = np.array([whole(row.states_mib + number * row.activation_mib) for row in self.rows])
        self.costs = np.array([(row.forward_s, row.backward_s, row.tail_s) for row in self.rows])
        self.working = np.array([row.working_mib for row in self.rows])
        self.places = np.array([self.schedule.chunk_at(k) for k in range(self.schedule.chunks)])
        seen = [sorted(self._alive(s)) for s in range(outer.stages)]
        most = max(map(len, seen))
        self.alive = np.array([each + each[:1] * (most - len(each)) for each in seen])
        need = np.zeros(self.alive.shape[:2])
        self.times = np.zeros(self.graph.classes)
        for k, (v, s) in enumerate(self.places):
            end = self.ends[k]
            if end is not None:
                need[s] += end.states_mib + self.alive[s, :, v] * end.activation_mib
                self.times[self.graph.tail(int(s))] += end.tail_s
        self.free_mib = case.job.limit_mib + 1e-6 - whole(need)
        tasks = self.graph.graph
        ended = np.empty(len(tasks.before) + 1)
        self.sweep = (tasks.before, tasks.needed, tasks.task_class, self.graph.edge_class, tasks.last, ended)
        self.handover = np.array([case.costs.handovers.get(each, 0.0) for each in self.layouts])

    def _alive(self, stage: int) -> set[tuple[int, ...]]:
        now = [0] * self.schedule.interleaves
        seen = set()
        for direction, v, *_ in self.schedule.order[stage].tolist():
            now[v] += 1 if direction == FORWARD else -1
            seen.add(tuple(now))
        return seen

    def best_s(self) -> float:
        """The least step of all plans that fit, s; inf where none does."""
        best = math.inf
        for division in divisions(self.case.job.layers, self.schedule.chunks):
            best = self._best_of(division, best)
        return best

    def _chunk(self, start: int, layers: int, arrival: Layout) -> list[Kept]:
        """All contents of a chunk that begins with a layer."""
        found: dict[tuple[tuple[int, ...], Layout], float] = {((0,) * len(self.rows), arrival): 0.0}
        for kind in self.kind_of[start : start + layers]:
            after: dict[tuple[tuple[int, ...], Layout], float] = {}
            for (counts, layout), cost in found.items():
                for c, row in enumerate(self.rows):
                    if row.kind != kind:
                        continue
                    more = tuple(n + (i == c) for i, n in enumerate(counts))
                    change = self.case.costs.changes.get((layout, row.layout), 0.0)
                    key = (more, row.layout)
                    after[key] = min(after.get(key, math.inf), cost + change)
            found = after
        return [(counts, layout, cost) for (counts, layout), cost in found.items()]

    def _best_of(self, division: tuple[int, ...], best: float) -> float:
        """The least step of one division's plans, or that known before."""
        begin = np.zeros((len(division), len(self.layouts) + 1), dtype=np.int64)
        every: list[Kept] = []
        extra: list[tuple[float, float]] = []
        for k, layers in enumerate(division):
            end = self.ends[k]
            for y, arrival in enumerate(self.layouts):
                begin[k, y] = len(every)
                for counts, layout, cost in self._chunk(sum(division[:k]), layers, arrival):
                    back = self.case.costs.changes.get((layout, self.end), 0.0) if k == len(division) - 1 else 0.0
                    half = (cost + back) / 2
                    extra.append((half, half) if end is None else (half + end.forward_s, half + end.backward_s))
                    every.append((counts, layout, cost))
            begin[k, -1] = len(every)
        amounts = np.array([each[0] for each in every])
        costs = amounts @ self.costs
        costs[:, :2] += np.array(extra)
        working = np.where(amounts > 0, self.working, 0.0).max(axis=1)
        contents = np.column_stack((costs, working))
        departure = np.array([self.layouts.index(each[1]) for each in every])
        at = self.layouts.index(self.end)
        return float(
            every_plan(
                begin, at, contents, amounts @ self.memory, departure, self.handover, self.places, self.alive,
                self.free_mib, self.sweep, self.times.copy(), best,
            )
        )  # fmt: skip


def compare(seed: int) -> tuple[str, float]:
    """Faults of one case's solution, empty where there are none; and the seconds of the brute force."""
    case = random_case(seed)
    found = case.solve()
    began = time.monotonic()
    best = BruteForce(case).best_s()
    seconds = time.monotonic() - began
    if not (best == found.step_s or abs(best - found.step_s) <= 1e-9 * best):
        return f"found {found.step_s!r}, and the best of all is {best!r}", seconds
    if found.gap > 1e-9 or found.bound_s > best * (1 + 1e-9):
        return f"the bound is {found.bound_s!r}, and the best of all {best!r}", seconds
    if found.plan is not None:
        costs: CostProvider = case.costs
        return " ".join(check_plan(case.job, found.plan, costs, claimed_s=found.step_s).faults), seconds
    return "", seconds


def compare_milp(seed: int) -> str:
    """Faults of one case's solution by the MILP; HiGHS' tolerance allows 1e-7."""
    case = random_case(seed)
    problem = case.problem()
    found, outcome = case.solve(), milp_solution(problem)
    if outcome.status not in (MilpStatus.OPTIMAL, MilpStatus.INFEASIBLE):
        return f"the MILP ended {outcome.status.value}"
    step = math.inf if outcome.values is None else float(outcome.values[0])
    same = step == found.step_s or abs(step - found.step_s) <= 1e-7 * step
    return "" if same else f"found {found.step_s!r}, and the MILP {step!r}"


def main() -> None:
    """Compare many cases and print those that differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    wrong, spent = 0, 0.0
    for seed in range(args.first, args.first + args.cases):
        fault, seconds = compare(seed)
        spent += seconds
        if fault:
            wrong += 1
            print(f"case {seed}: {fault}", flush=True)
        if (seed - args.first + 1) % 100 == 0:
            print(f"{seed - args.first + 1} cases, {wrong} wrong, {spent:.0f} s in the brute force", flush=True)
    print(f"{args.cases} cases, {wrong} wrong")


if __name__ == "__main__":
    main()
