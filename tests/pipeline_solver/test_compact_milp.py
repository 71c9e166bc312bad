"""The compact MILP: the published optimum, other solvers, the start-time model, limits and Ctrl-C."""

from __future__ import annotations

import _thread
import subprocess
import sys
import threading

import numpy as np
import pytest

from benchmarks.brute_force import comparable_problem
from taylor.base.errors import InputError
from taylor.pipeline.plan import FULL, SELECT
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.milp.compact_milp import solve_compact
from taylor.pipeline_solver.milp.compact_model import CompactModel
from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.start_time_milp import solve_start_times
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import FEASIBLE, INFEASIBLE, NO_SOLUTION, OPTIMAL, Termination
from taylor.pipeline_solver.solving.solve import SolverDisagreement, complete, solve
from taylor.pipeline_solver.timing.durations import chunk_durations
from taylor.pipeline_solver.timing.event_graph import EventGraph
from tests.solver_cases import REFERENCE_OBJECTIVE, plan_of, reference_problem, small_problem


@pytest.mark.parametrize("solver", ["HIGHS-MILP", "highs-milp", "CBC", "cbc", "appsi_highs"])
def test_the_reference_case_has_the_published_optimum_under_every_solver(solver):
    solution = solve(reference_problem(), SolveOptions(solver=solver))
    assert solution.status == OPTIMAL
    assert solution.objective == pytest.approx(REFERENCE_OBJECTIVE, rel=1e-6)
    assert solution.gap <= 1e-6
    assert max(solution.peak_memory_mib) <= 55296
    assert solution.bubble.total == pytest.approx(
        solution.bubble.ideal + solution.bubble.imbalance + solution.bubble.recompute + solution.bubble.communication
    )


def test_the_start_time_model_agrees_on_random_problems():
    """One variable a task and no path cuts: another model of the same problem."""
    rng = np.random.default_rng(11)
    for _ in range(8):
        problem, _truth = comparable_problem(rng, 20_000)
        compact, full = solve_compact(problem), solve_start_times(problem)
        assert compact.status == full.status
        if compact.status == OPTIMAL:
            assert compact.objective == pytest.approx(full.objective, rel=2e-6)


def test_every_path_cut_is_valid_at_every_plan():
    """A cut found anywhere is a lower bound on the step time of any plan."""
    problem = small_problem(interleaves=2, schedule=ScheduleSpec("interleaved"), lag=0.3, tail=(1.0, 2.0), min_layers=0)
    solution = solve_compact(problem)
    graph = EventGraph.from_schedule(CompactModel.build(problem).plans.schedule, problem.boundary_lags)
    rng = np.random.default_rng(0)
    assert solution.cuts
    for _ in range(50):
        split = rng.multinomial(4, [0.25] * 4).reshape(2, 2)
        recompute = rng.integers(0, split + 1)
        durations = chunk_durations(problem, plan_of({"body": split.tolist()}, {FULL: recompute.tolist()}))
        longest = graph.longest_path(durations)
        for cut in solution.cuts:
            assert np.dot(cut[:-1], durations) + cut[-1] <= longest + 1e-9


@pytest.mark.slow
def test_selective_recompute_is_taken_where_it_is_the_cheaper_way_to_fit():
    kinds = reference_problem().kinds
    selectable = tuple(
        type(kind)(kind.name, kind.count, kind.forward, kind.layer_mib, {**kind.activation_mib, SELECT: 300.0})
        for kind in kinds
    )
    without = solve(reference_problem(), SolveOptions(solver="HIGHS-MILP"))
    both = solve(
        reference_problem(kinds=selectable, recompute_ratio={FULL: 1.0, SELECT: 0.33}),
        SolveOptions(solver="HIGHS-MILP"),
    )
    assert both.status == OPTIMAL
    assert both.objective < without.objective
    assert any(map(any, both.plan.recompute[SELECT]))


def test_relaxing_a_limit_never_worsens_and_tightening_never_improves():
    previous = np.inf
    for limit in (47000, 50000, 55296, 62000, 80000):
        objective = solve(reference_problem(limit_mib=limit), SolveOptions(solver="HIGHS-MILP")).objective
        assert objective <= previous * (1 + 1e-6)
        previous = objective


def test_given_values_are_kept():
    problem = reference_problem(
        fixed_layers={(0, 4): 3}, max_layers={(0, 7): 3}, fixed_recompute={(FULL, 0, 1): 4, (FULL, 0, 9): 1}
    )
    solution = solve(problem, SolveOptions(solver="HIGHS-MILP"))
    totals = solution.plan.total_layers()
    assert solution.status == OPTIMAL
    assert (totals[0][4], solution.plan.recompute[FULL][0][1], solution.plan.recompute[FULL][0][9]) == (3, 4, 1)
    assert totals[0][7] <= 3
    assert solution.objective >= REFERENCE_OBJECTIVE * (1 - 1e-6)


def test_a_warm_start_is_used_and_a_broken_one_passed_over():
    """The optimal plan as a start is there from the first moment on; one for another model is not."""
    problem = reference_problem()
    best = solve(problem, SolveOptions(solver="HIGHS-MILP")).plan
    seen = []
    solve(problem, SolveOptions(solver="HIGHS-MILP"), warm_start=best, on_progress=seen.append)
    assert seen[0].objective == pytest.approx(REFERENCE_OBJECTIVE, rel=1e-6)
    other = solve(
        problem, SolveOptions(solver="HIGHS-MILP"), warm_start=plan_of({"dense": [[3] * 16], "moe": [[3] * 16]})
    )
    assert other.objective == pytest.approx(REFERENCE_OBJECTIVE, rel=1e-6)


@pytest.mark.slow
def test_a_time_limit_gives_a_plan_with_a_true_gap_or_says_there_is_none():
    """The optimum of this case is 1068.763749; the compact MILP cannot prove it in seconds."""
    problem = reference_problem(interleaves=2)
    stopped = solve(problem, SolveOptions(solver="HIGHS-MILP", time_limit=4))
    assert stopped.status == FEASIBLE
    assert stopped.bound <= 1068.763749 <= stopped.objective + 1e-6
    assert stopped.termination is Termination.TIME_LIMIT and "time limit" in stopped.message
    # Without a second the plan is a plain one, met before the model is built; the bound is true all the same.
    plain = solve(problem, SolveOptions(solver="HIGHS-MILP", time_limit=0.0))
    assert plain.termination is Termination.TIME_LIMIT and plain.message
    assert plain.status in (FEASIBLE, NO_SOLUTION) and (plain.plan is None) is (plain.status == NO_SOLUTION)
    assert plain.bound <= 1068.763749


def test_ctrl_c_returns_the_best_plan_with_its_bound():
    """Pressed one second after the search has a plan, in a case that takes minutes."""
    pressed = []

    def watch(progress):
        if progress.objective is not None and not pressed:
            pressed.append(progress.seconds)
            threading.Timer(1.0, _thread.interrupt_main).start()

    moe = [[0, 0, 0] + [2] * 13, [2] * 15 + [3]]
    start = plan_of({"dense": [[1, 1, 1] + [0] * 13, [0] * 16], "moe": moe}, {FULL: [[1, 1, 1] + [2] * 13, moe[1]]})
    problem = reference_problem(interleaves=2, limit_mib=80000)
    solution = solve(problem, SolveOptions(solver="HIGHS-MILP", time_limit=60), warm_start=start, on_progress=watch)
    assert pressed
    assert solution.status == FEASIBLE
    assert solution.termination is Termination.INTERRUPTED
    assert solution.seconds < pressed[0] + 15
    assert 0 < solution.bound <= solution.objective


def test_an_infeasible_problem_says_what_is_short():
    solution = solve(reference_problem(limit_mib=45000), SolveOptions(solver="HIGHS-MILP"))
    assert solution.status == INFEASIBLE
    assert "short by 1586 MiB" in solution.message and "46586 MiB" in solution.message


def test_an_unknown_solver_is_refused_and_the_usable_ones_named():
    with pytest.raises(InputError, match=r"solver_name.*nonsense.*HIGHS, HIGHS-MILP, CBC"):
        solve(reference_problem(), SolveOptions(solver="nonsense"))


def test_a_plan_that_the_checker_refuses_never_leaves():
    solution = solve(small_problem(), SolveOptions(solver="HIGHS-MILP"))
    with pytest.raises(SolverDisagreement, match="as claimed"):
        complete(small_problem(), solution.replace(objective=solution.objective * 1.01))
    with pytest.raises(SolverDisagreement, match="at least 1"):
        complete(small_problem(), solution.replace(plan=plan_of({"body": [[4, 0]]})))
    with pytest.raises(SolverDisagreement, match="yet it has a plan"):
        complete(small_problem(), solution.replace(plan=None, status=INFEASIBLE))


def test_the_same_problem_gives_the_same_plan_twice():
    first, second = (solve(reference_problem(), SolveOptions(solver="HIGHS-MILP", seed=3)) for _ in range(2))
    assert first.plan == second.plan
    assert check(reference_problem(), first.plan, first.objective) == []


def test_every_round_of_the_milp_may_take_what_is_left_and_no_more():
    """HiGHS counts a MILP's time from the beginning of its run, whatever the runs before it took."""
    model = CompactModel.build(small_problem())
    solver = HighsModel(model.form)
    for seconds in (50.0, 30.0):
        solver.solve_milp(gap=0.0, time_limit=seconds)
        assert solver._solver.getOptionValue("time_limit")[1] == seconds


def test_a_poor_start_does_not_stand_for_the_optimum():
    """HiGHS 1.16.0, which is left out for that, hands a start back where presolve alone solves the model."""
    rng = np.random.default_rng([2, 1000])
    problem, truth = [comparable_problem(rng, 20_000) for _ in range(3)][-1]
    solution = solve_compact(problem)
    assert (solution.termination, solution.objective) == (Termination.PROVEN, pytest.approx(truth.objective))


def test_highs_prints_nothing_of_its_own():
    code = (
        "from taylor.pipeline_solver.milp.highs_model import silent_highs\n"
        "model = silent_highs()\nmodel.addVars(1, [0.0], [1.0])\nmodel.run()\n"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (printed.stdout, printed.stderr) == ("", "")
