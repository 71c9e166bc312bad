"""Walks over plans: the compiled kernels against their Python twins, and what a walk may never do."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.brute_force import comparable_problem, random_problem
from benchmarks.random_instances import alternating_problem, cadence_problem
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.heuristics import plan_walk, walk_kernels
from taylor.pipeline_solver.heuristics.first_plans import FirstPlans
from taylor.pipeline_solver.heuristics.plan_walk import PlanWalk
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import INFEASIBLE, OPTIMAL
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.solving.solve import SolverDisagreement, solve
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.evaluate import evaluate, peak_memory_mib
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.pipeline_solver.tree import branch_and_cut as tree
from taylor.pipeline_solver.tree.tree_memory import TreeMemory
from taylor.pipeline_solver.tree.tree_run import TreeEnd
from tests.solver_cases import python_of, reference_problem
from tests.solver_params import set_parameter

KERNELS = [
    "add_path", "best_saving", "change_durations", "cheapest_step", "chunk_blocks", "few_layers", "fit_all",
    "fit_stage", "fit_touched", "kept_mib", "longest_changed", "mark_touched", "move_layers", "move_size",
    "place_of_cut", "propose", "recompute_time", "restore", "set_given", "stage_over", "step_of", "stray_of",
    "swap_sizes", "task_durations", "walk",
]  # fmt: skip


MOST_PLANS = 10_000
"""Plans of an instance that are tried one by one at most."""


def walk_of(problem):
    return PlanWalk(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))


def five_interleaves():
    """Eight stages of five interleaves: a published recipe's shape, whose configurations are too many to list."""
    layer = LayerKind("dense", 80, 1.0, 1200.0, {NONE: 570.0, FULL: 60.0})
    return PipelineProblem(
        8, 5, 32, (layer,), (9000.0, *[2000.0] * 6, 9000.0), (70000.0,) * 8, reference_problem(interleaves=2).schedule,
        head_forward=1.2, lag=0.02,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("drawn", "seed"),
    [
        *((random_problem, seed) for seed in range(3000, 3012)),
        *((alternating_problem, seed) for seed in range(6)),
        *((cadence_problem, seed) for seed in range(4)),
    ],
)
def test_the_compiled_walk_is_that_of_its_python_twin(monkeypatch, drawn, seed):
    problem = drawn(np.random.default_rng(seed))
    walk = walk_of(problem)
    start = walk.even(True)
    if start is None:
        pytest.skip("its bounds leave no even plan")
    over, _, state = walk.fitted(start)
    compiled = walk.run(state, 300, 5, 2.0, 0.1)
    for name in KERNELS:
        plain_kernel = python_of(getattr(walk_kernels, name))
        for module in (walk_kernels, plan_walk):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, plain_kernel)
    other = walk_of(problem)
    plain_over, _, plain_state = other.fitted(start)
    plain = other.run(plain_state, 300, 5, 2.0, 0.1)
    assert plain_over == pytest.approx(over) and plain[:2] == pytest.approx(compiled[:2], rel=1e-12)
    for one, two in zip(compiled[2:], plain[2:], strict=True):
        assert one.begin.tolist() == two.begin.tolist() and one.taken.tolist() == two.taken.tolist()


def test_a_plan_is_the_state_that_it_becomes_and_costs_the_same():
    compared = 0
    rng = np.random.default_rng(1)
    for _ in range(60):
        problem = random_problem(rng)
        walk = walk_of(problem)
        start = walk.even(False)
        if start is None:
            continue
        over, time, state = walk.fitted(start)
        plan = walk.plan_of(state)
        again = walk.state_of(plan)
        assert again.begin.tolist() == state.begin.tolist() and again.taken.tolist() == state.taken.tolist()
        assert time == pytest.approx(evaluate(problem, plan).objective, rel=1e-9)
        worst = max(peak - limit for peak, limit in zip(peak_memory_mib(problem, plan), problem.limit_mib, strict=True))
        assert (over > 0) == (worst > MEMORY_TOLERANCE_MIB)
        compared += 1
    assert compared > 30


def test_a_state_is_over_its_memory_only_where_recompute_of_all_layers_is_too():
    """More recompute never keeps more, so what the fitting leaves over is over with all of it."""
    fitted = over = 0
    rng = np.random.default_rng(4)
    for _ in range(200):
        problem = random_problem(rng)
        walk = walk_of(problem)
        start = walk.even(True)
        if start is None or problem.searched_modes != (FULL,) or problem.fixed_recompute:
            continue
        missing, _, state = walk.fitted(start)
        over, fitted = over + (missing > 0), fitted + (missing == 0.0 and state.taken.any())
        state.taken[0] = np.diff(state.begin)
        peaks = zip(peak_memory_mib(problem, walk.plan_of(state)), problem.limit_mib, strict=True)
        assert (missing > 0) == any(peak - limit > MEMORY_TOLERANCE_MIB for peak, limit in peaks)
    assert over > 5 and fitted > 5


def test_layers_move_between_two_chunks_and_those_between_move_up():
    line = SimpleNamespace(lower=np.array([1, 0, 1]), upper=np.array([4, 2, 3]))
    for source, target, begin in (
        (0, 2, [0, 2, 4, 7]),
        (2, 0, [0, 4, 6, 7]),
        (0, 1, None),  # that holds all it may
        (1, 0, [0, 4, 5, 7]),
        (1, 1, None),  # no move at all
    ):
        borders = np.array([0, 3, 5, 7])
        moved = walk_kernels.move_layers(line, borders, source, target, 1)
        assert (borders.tolist() if moved else None) == begin
        assert moved or borders.tolist() == [0, 3, 5, 7]


@pytest.mark.parametrize(
    ("runs", "alternate"), [((1, 1, 1), False), ((1, 1, 1, 1), True), ((3, 1, 3, 1, 3), True), ((3, 9, 3, 5), False)]
)
def test_kinds_alternate_where_their_runs_are_many_and_short(runs, alternate):
    kinds = tuple(LayerKind(f"run{k}", n, 1.0 + k % 2, 10.0, {NONE: 1.0, FULL: 0.5}) for k, n in enumerate(runs))
    problem = PipelineProblem(1, 1, 1, kinds, (0.0,), (1e4,))
    assert plan_walk.alternates(problem, DEFAULT_PARAMS.heuristics) is alternate


def test_two_chunks_swap_their_sizes_and_a_size_moves_along_the_model(monkeypatch):
    swap, move = walk_kernels.swap_sizes, walk_kernels.move_size
    roomy = SimpleNamespace(lower=np.zeros(4, dtype=int), upper=np.full(4, 9))
    tight = SimpleNamespace(lower=np.array([0, 0, 2, 0]), upper=np.array([3, 9, 9, 9]))
    for line, change, one, other, sizes in (
        (roomy, swap, 0, 2, [1, 2, 3, 4]),
        (roomy, swap, 2, 0, [1, 2, 3, 4]),
        (roomy, swap, 1, 1, None),
        (tight, swap, 0, 3, None),  # the first may not hold four
        (roomy, move, 0, 3, [2, 1, 4, 3]),
        (roomy, move, 3, 1, [3, 4, 2, 1]),
        (roomy, move, 2, 2, None),
        (tight, move, 2, 3, [3, 2, 4, 1]),
        (tight, move, 3, 0, None),  # the first may not hold four
    ):
        borders = np.array([0, 3, 5, 6, 10])
        changed = change(line, borders, one, other)
        assert (np.diff(borders).tolist() if changed else None) == sizes
        assert borders[0] == 0 and borders[-1] == 10


@pytest.mark.slow
def test_what_a_walk_finds_keeps_every_rule_and_is_never_better_than_the_optimum():
    met = 0
    rng = np.random.default_rng(2)
    for _ in range(9):
        problem, truth = comparable_problem(rng, MOST_PLANS)
        first = FirstPlans(problem, walk_of(problem).graph, 0, Stopper(None))
        first.begin(None)
        if first.plan is None:
            continue
        assert check(problem, first.plan, first.time) == []
        assert first.time >= truth.objective * (1 - 1e-9)
        met += first.time <= truth.objective * (1 + 1e-9)
    assert met > 3


@pytest.mark.slow
def test_walks_that_start_again_count_as_settled_when_some_of_them_meet_the_best_plan():
    settled = met = 0
    rng = np.random.default_rng(2)
    for _ in range(7):
        problem, truth = comparable_problem(rng, MOST_PLANS)
        first = FirstPlans(problem, walk_of(problem).graph, 0, Stopper(None))
        first.begin(None)
        before = first.time
        if first.plan is None or not first.start_again():
            continue
        settled += 1
        assert check(problem, first.plan, first.time) == []
        assert truth.objective * (1 - 1e-9) <= first.time <= before
        met += first.time <= truth.objective * (1 + 1e-9)
    assert settled > 2 and met > settled / 2
    assert not first.start_again(0.0), "no time, no walk"


def test_every_path_met_on_the_way_is_a_lower_bound_at_any_durations():
    problem = reference_problem(interleaves=2).replace(micro_batches=8, lag=0.1)
    walk = walk_of(problem)
    walk.run(walk.fitted(walk.even(True))[2], 2000, 1, 20.0, 0.1)
    known = int(walk.cuts.known[0])
    assert known > 3
    rng = np.random.default_rng(5)
    classes = walk.graph.classes - problem.stages
    for _ in range(20):
        durations = rng.random(classes) * 10
        longest = walk.graph.longest_path(np.concatenate([durations, np.zeros(problem.stages)]))
        reached = durations @ walk.cuts.counts[:, :known] + walk.cuts.constant[:known]
        assert reached.max() <= longest * (1 + 1e-12)


def test_with_only_the_configurations_that_a_first_plan_leaves_the_optimum_is_that_of_brute_force(monkeypatch):
    set_parameter(monkeypatch, "tree.few_tuples", 0)
    solved = 0
    rng = np.random.default_rng(3)
    for _ in range(30):
        problem, truth = comparable_problem(rng, MOST_PLANS)
        solution = tree.branch_and_cut(problem)
        assert (solution.status == INFEASIBLE) == np.isinf(truth.objective)
        if solution.plan is not None:
            assert solution.status == OPTIMAL
            assert solution.objective == pytest.approx(truth.objective, rel=1e-6)
            solved += 1
    assert solved > 10


@pytest.mark.usefixtures("without_enumeration")
@pytest.mark.parametrize(("seed", "probed"), [(0, 0), (1, 0), (0, 20_000)])
def test_a_bound_that_is_raised_target_by_target_proves_the_same_optimum(monkeypatch, seed, probed):
    problem = reference_problem(interleaves=2)
    few = (3383.0, *[2382.0] * 4, 8675.0)
    kinds = tuple(replace(kind, count=count) for kind, count in zip(problem.kinds, (3, 23), strict=True))
    problem = problem.replace(
        stages=6, micro_batches=12, static_mib=few, limit_mib=(57000.0,) * 6, kinds=kinds, lag=0.1
    )
    expected = tree.branch_and_cut(problem)
    for name, value in (
        ("first_rounds", 1),
        ("patience", 0),
        ("after_abandoning", 1),
        ("staged_share", 2.0),
        ("first_slice", 3),
        ("nodes_a_batch", 0),
        ("most_probed", probed),
        ("least_step", 0.01),
    ):
        set_parameter(monkeypatch, f"tree.{name}", value)
    targets = []
    searched = tree._TreeRun._searched

    def noted(run, search, patient=False):
        done = searched(run, search, patient)
        targets.append((search.target, run.bound, done is TreeEnd.DONE))
        return done

    priced = []
    bound = tree.Generation.bound

    def noted_bound(generation, step_time):
        priced.append((step_time, bound(generation, step_time)))
        return priced[-1][1]

    monkeypatch.setattr(tree._TreeRun, "_searched", noted)
    monkeypatch.setattr(tree.Generation, "bound", noted_bound)
    solution = tree.branch_and_cut(problem, SolveOptions(seed=seed, memory=TreeMemory(patience=1)))
    assert solution.status == expected.status == OPTIMAL
    assert solution.objective == pytest.approx(expected.objective, rel=1e-6)
    if not probed:
        # Probing alone does these trees.
        assert any(not done for _, _, done in targets)
        assert any(target < expected.objective * (1 - 1e-6) for target, _ in priced)
    assert all(min(proven, target) <= expected.objective * (1 + 1e-9) for target, proven in priced)
    # What is proven of a target is never more than the optimum, and where the tree was done no less than the target.
    assert all(bound <= expected.objective * (1 + 1e-9) for _, bound, _ in targets)
    assert all(min(target, expected.objective) * (1 - 1e-6) <= bound for target, bound, done in targets if done)


def test_five_interleaves_have_a_plan_and_a_bound_at_once():
    heard = []
    problem = five_interleaves()
    even = walk_of(problem)
    over, time, state = even.fitted(even.even(True))
    even.run(state, 1, 0, 1.0, 0.1)  # what is compiled now takes no time of the solve
    solution = solve(problem, SolveOptions(time_limit=3.0), on_progress=heard.append)
    first = next(entry for entry in heard if entry.objective is not None)
    assert over == 0.0 and first.objective <= time and first.bound > 0.8 * first.objective
    assert solution.plan is not None and solution.objective <= first.objective
    assert solution.gap < 0.2


@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP", "CBC"])
def test_a_plan_that_was_known_is_never_lost(solver):
    problem = five_interleaves().replace(stages=4, interleaves=2, micro_batches=8, static_mib=(9000.0,) * 4,
                                         limit_mib=(90000.0,) * 4)  # fmt: skip
    problem = problem.replace(kinds=(replace(problem.kinds[0], count=20),))
    known = tree.branch_and_cut(problem)
    limited = solve(problem, SolveOptions(solver=solver, time_limit=0.0), warm_start=known.plan)
    assert limited.objective == pytest.approx(known.objective) and limited.plan is not None


@pytest.mark.parametrize("claim", [{"status": INFEASIBLE, "plan": None, "objective": None}, {"bound": 1e9}])
def test_a_known_plan_gives_a_wrong_proof_away(monkeypatch, claim):
    problem = reference_problem()
    known = solve(problem)
    monkeypatch.setattr("taylor.pipeline_solver.solving.exact.solve_exact", lambda *_, **__: known.replace(**claim))
    with pytest.raises(SolverDisagreement, match="is known"):
        solve(problem, warm_start=known.plan)


def test_long_walks_go_on_while_they_find_better_plans_and_end_after_some_in_vain():
    """Of columns that leave the kinds' order open no plan comes, so walks are all that finds one."""
    run = tree._TreeRun(reference_problem(interleaves=2), SolveOptions(), None)
    without = DEFAULT_PARAMS.heuristics.loose_without_success
    times = [90.0, 90.0, 80.0, *[80.0] * without, 10.0]
    first = SimpleNamespace(time=100.0, plan=None, attempts=0)

    def go_on(attempt, seconds):
        first.time = times[attempt]
        first.attempts += 1

    first.go_on, run.best_plan.first = go_on, first
    run._walk_on(first, SimpleNamespace(bound=lambda aim: 5.0))
    assert first.attempts == 3 + without and first.time == 80.0 and run.bound == 5.0
