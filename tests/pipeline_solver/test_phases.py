"""Phases of repeating patterns: what they rule out, and that no plan is among it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.brute_force import enumerate_optimum
from benchmarks.random_instances import alternating_problem
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.generation import Generation
from taylor.pipeline_solver.bounds.master import Master
from taylor.pipeline_solver.bounds.stage_pricing import columns_of
from taylor.pipeline_solver.columns.phases import period_of
from taylor.pipeline_solver.columns.positions import plan_in_order
from taylor.pipeline_solver.columns.work_limits import WorkLimits
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import OPTIMAL
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.evaluate import step_time
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.pipeline_solver.tree import branch_and_cut as tree
from tests.solver_params import set_parameter

MOST_PLANS = 100_000


def stack(problem, line: str, costs: dict[str, LayerKind]):
    """The problem with these layers, each run of a letter a kind of its own."""
    runs = [(letter, len(part)) for letter, part in _runs(line)]
    kinds = tuple(
        LayerKind(f"run{k}", n, costs[of].forward, costs[of].layer_mib, costs[of].activation_mib)
        for k, (of, n) in enumerate(runs)
    )
    return problem.replace(kinds=kinds)


def _runs(line: str):
    begin = 0
    for end in range(1, len(line) + 1):
        if end == len(line) or line[end] != line[begin]:
            yield line[begin], line[begin:end]
            begin = end


def periodic_problems(seed: int):
    """Small problems of several interleaves whose layers repeat after two to four, and their optima by enumeration."""
    rng = np.random.default_rng(seed)
    while True:
        problem = alternating_problem(rng)
        costs = dict(zip("ab", problem.kinds[:2], strict=False))
        line = (str(rng.choice(["ab", "aab", "abb", "aaab"])) * problem.layers)[: problem.layers]
        if problem.interleaves == 1 or len(costs) < 2 or costs["a"].costs == costs["b"].costs:
            continue
        problem = stack(problem, line, costs)
        if len(problem.placed_kinds) < 4 or problem.uniform_recompute or period_of(problem) == 1:
            continue
        truth = enumerate_optimum(problem, MOST_PLANS)
        if truth is not None and np.isfinite(truth.objective):
            yield problem, truth


@pytest.mark.parametrize(
    ("line", "period"),
    [
        ("abababab", 2),
        ("aaabaaabaaab", 4),
        ("abcabcabc", 3),
        ("aaaaaaaa", 1),
        ("aaabbbbbbbbbbbbbbbbbbbbb", 1),  # two runs
        ("ccc" + "ab" * 10, 2),  # a few layers before the pattern
        ("abbabbbaaaabbaba", 1),  # no pattern
        ("a" * 9 + "b" + "a" * 9 + "b", 1),  # one too long: layers are mostly like their neighbours
    ],
)
def test_the_period_is_that_of_most_layers(line, period):
    kinds = {
        letter: LayerKind(letter, 1, forward, 10.0, {"none": 1.0, "full": 0.5})
        for letter, forward in (("a", 1.0), ("b", 2.0), ("c", 3.0))
    }
    whole = PipelineProblem(1, 1, 1, (LayerKind("x", 1, 1.0, 1.0, {"none": 1.0, "full": 0.5}),), (0.0,), (1e4,))
    assert period_of(stack(whole, line, kinds)) == period


@pytest.mark.slow
def test_columns_of_a_plan_keep_their_phases_and_those_of_the_best_one_are_left():
    """Each chunk begins in the phase before which the one before it ended; another phase on one stage breaks a row."""
    broken = told = 0
    for (problem, truth), _ in zip(periodic_problems(3), range(12), strict=False):
        graph = EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags)
        paths, limits = PathCuts(problem, graph), WorkLimits(problem, graph)
        above = truth.objective * 1.01
        period = period_of(problem)
        generation = Generation(problem, above, limits, paths, Stopper(None), ordered=False, period=period)
        assert generation.bound(above) <= truth.objective * (1 + 1e-7)
        left = generation.columns_under(above, 200_000)
        assert left is not None
        columns = left.columns
        assert columns.phases is not None
        schedule = schedule_of(problem)
        sizes = sum(np.array(truth.plan.layers[kind.name]) for kind in problem.placed_kinds)
        chunks = [schedule.chunk_at(k) for k in range(schedule.chunks)]
        begins = np.cumsum([0, *(sizes[chunk] for chunk in chunks)])
        begin_of = np.zeros_like(sizes)
        for k, chunk in enumerate(chunks):
            begin_of[chunk] = begins[k] % period
        chosen = []
        for s in range(problem.stages):
            held = columns.layers[:, :, :].sum(axis=2)
            fits = (columns.stage == s) & (held == sizes[:, s]).all(axis=1)
            fits &= (columns.phases.begin == begin_of[:, s]).all(axis=1)
            for j, mode in enumerate(problem.searched_modes):
                if mode in truth.plan.recompute:
                    grid = np.array(truth.plan.recompute[mode])
                    fits &= (columns.recompute[:, :, j] == grid[:, s]).all(axis=1)
            chosen += np.nonzero(fits)[0].tolist()[:1]
        if len(chosen) < problem.stages:
            continue  # another plan as good has less recompute somewhere
        told += 1
        master = Master(columns, np.zeros(0, dtype=np.int64), paths.pool)
        weights = np.zeros(len(columns))
        weights[chosen] = 1.0
        rows = (master.matrix @ weights)[master.phase_row :]
        assert len(rows) == (period - 1) * (len(chunks) - 1) and not rows.any()
        plan = plan_in_order(problem, columns, np.array(chosen))
        assert plan is not None and step_time(problem, plan) == pytest.approx(truth.objective)
        for other in range(len(columns)):
            s = columns.stage[other]
            if (columns.phases.begin[other] != columns.phases.begin[chosen[s]]).any():
                weights[:] = 0.0
                weights[[*chosen[:s], other, *chosen[s + 1 :]]] = 1.0
                broken += bool((master.matrix @ weights)[master.phase_row :].any())
                break
    assert told > 5 and broken > 3


@pytest.mark.slow
def test_plans_of_patterns_are_proven_by_phases_alone(monkeypatch):
    """What is proven is the optimum of all plans, and the tree finds it without the MILP."""
    set_parameter(monkeypatch, "tree.few_tuples", 0)
    set_parameter(monkeypatch, "bounds.flow_stages", 0)  # the tree over chunks proves some before
    periods = []

    class Watched(Generation):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            periods.append(self.options[0].period)

    monkeypatch.setattr(tree, "Generation", Watched)
    alone = solved = 0
    for (problem, truth), _ in zip(periodic_problems(5), range(25), strict=False):
        periods.clear()
        solution = tree.branch_and_cut(problem)
        assert solution.status == OPTIMAL and solution.objective == pytest.approx(truth.objective, rel=1e-7)
        solved += max(periods, default=1) > 1
        alone += max(periods, default=1) > 1 and "milp_rounds" not in solution.statistics
    assert solved > 8 and alone == solved


@pytest.mark.slow
def test_columns_that_stand_for_no_plan_have_none():
    """The layers that come to lie in a chunk cost something else than its column says."""
    for (problem, truth), _ in zip(periodic_problems(7), range(3), strict=False):
        graph = EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags)
        paths, limits = PathCuts(problem, graph), WorkLimits(problem, graph)
        generation = Generation(
            problem, truth.objective * 1.2, limits, paths, Stopper(None), ordered=False, period=period_of(problem)
        )
        first = [part.start[None, :-1] for part in generation.options]
        columns, _ = columns_of(generation.problem, generation.options, first, ordered=False)
        wrong = replace(columns, durations=1.5 * columns.durations)
        assert plan_in_order(problem, wrong, np.arange(problem.stages)) is None


@pytest.mark.parametrize(("line", "walks"), [("abbabbbaaaabbaba", 1), ("abababababababab", 0)])
def test_where_no_pattern_tells_configurations_apart_plans_are_walked_for(line, walks, monkeypatch):
    """Of configurations in no order no plan comes; with a pattern they are told apart by phases instead."""
    problem = PipelineProblem(
        2, 2, 4, (LayerKind("x", 1, 1.0, 1.0, {"none": 1.0, "full": 0.5}),), (0.0, 0.0), (30.0, 30.0),
        ScheduleSpec("interleaved"), recompute_ratio={"full": 1.0},
    )  # fmt: skip
    modes = {"none": 2.0, "full": 0.5}
    costs = {"a": LayerKind("a", 1, 1.0, 1.0, modes), "b": LayerKind("b", 1, 2.0, 1.0, modes)}
    problem = stack(problem, line, costs)
    for name in ("tree.few_tuples", "tree.many_kinds_tuples"):
        set_parameter(monkeypatch, name, 0)
    monkeypatch.setattr(tree._TreeRun, "_far", lambda *_: True)
    walked = []
    monkeypatch.setattr(tree._TreeRun, "_walk_on", lambda *_: walked.append(1))
    tree.branch_and_cut(problem)
    assert len(walked) == walks
