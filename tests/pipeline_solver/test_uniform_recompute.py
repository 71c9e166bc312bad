"""Problems in which one recompute choice holds for every chunk, as Megatron's and torchtitan's flags ask."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.brute_force import enumerate_optimum, faults, random_problem, under_one_choice, with_choices
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.milp.model_files import write_sol
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind
from taylor.pipeline_solver.model.progress import Progress
from taylor.pipeline_solver.model.solution import (
    FEASIBLE,
    INFEASIBLE,
    MILP_ROUNDS,
    NO_SOLUTION,
    OPTIMAL,
    RANGED_ROUNDS,
    Solution,
    Termination,
)
from taylor.pipeline_solver.model.uniform_rule import uniform_choice
from taylor.pipeline_solver.solving.recompute_cases import Choices
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.solving.uniform_recompute import (
    UNRESTRICTED_BOUND,
    UNRESTRICTED_OBJECTIVE,
    solve_uniform,
)
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.pipeline_solver.tree.branch_and_cut import branch_and_cut
from taylor.pipeline_solver.tree.tree_memory import TreeMemory
from tests.solver_cases import plan_of, reference_problem, small_problem


def uniform_problems(seed: int, count: int, further: bool = False):
    """Random small problems under random uniform choices, of offload too, with the optimum over every plan."""
    rng = np.random.default_rng(seed)
    found = 0
    while found < count:
        problem = random_problem(rng)
        if further:
            problem = with_choices(problem, rng)
        if not problem.searched_modes:
            continue
        problem = under_one_choice(problem, rng)
        truth = enumerate_optimum(problem, 2_000)
        if truth is not None:
            found += 1
            yield problem, truth


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP"])
def test_the_optimum_equals_that_over_every_uniform_plan(solver):
    for problem, truth in uniform_problems(500, 25):
        assert faults(problem, truth, solver) == [], problem


@pytest.mark.slow
def test_so_does_that_over_choices_beside_recompute():
    for problem, truth in uniform_problems(700, 12, further=True):
        assert faults(problem, truth, "HIGHS") == [], problem


def test_the_model_file_says_the_choices_and_has_the_same_optimum_under_cbc():
    for problem, truth in uniform_problems(600, 6):
        assert faults(problem, truth, "HIGHS", mps=True) == [], problem


def test_the_rule_costs_what_the_two_figures_say_and_the_checker_holds_plans_to_it():
    free = reference_problem()
    problem = free.replace(uniform_recompute=tuple((FULL, most) for most in range(63)))
    best, restricted = solve(free), solve(problem)
    assert restricted.status == OPTIMAL
    assert restricted.statistics[UNRESTRICTED_OBJECTIVE] == pytest.approx(best.objective, rel=1e-6)
    assert restricted.statistics[UNRESTRICTED_BOUND] <= best.objective <= restricted.bound <= restricted.objective
    assert uniform_choice(problem, restricted.plan) is not None
    assert check(problem, restricted.plan, restricted.objective) == []
    assert "alike" in " ".join(check(problem, best.plan))
    for most in range(6):  # what the enumeration of single counts gives
        alone = solve(free.replace(uniform_recompute=((FULL, most),)))
        assert alone.status == INFEASIBLE or alone.objective >= restricted.objective * (1 - 2e-6)


def test_a_free_optimum_that_keeps_the_rule_is_the_optimum_under_it():
    problem = small_problem()
    restricted = solve(problem.replace(uniform_recompute=((FULL, 0), (FULL, 4))))
    assert restricted.objective == solve(problem).objective
    assert not any(map(any, restricted.plan.recompute[FULL]))


def test_the_cuts_of_the_best_choice_alone_are_not_all_that_the_others_need():
    def by_milp(problem, options, **how):
        """Solves with a choice as the MILP does; finds nothing in time without one."""
        if not problem.uniform_recompute:
            return Solution(NO_SOLUTION, Termination.TIME_LIMIT)
        found = branch_and_cut(problem, options, **how)
        return found.replace(statistics={MILP_ROUNDS: 1} if found.plan else {})

    for counts, name in (((0, 1, 4), RANGED_ROUNDS), ((4,), MILP_ROUNDS)):
        problem = small_problem().replace(uniform_recompute=tuple((FULL, count) for count in counts))
        result = solve_uniform(problem, SolveOptions(), run=by_milp, one_by_one=True)
        assert result.status == OPTIMAL and {MILP_ROUNDS, RANGED_ROUNDS} & result.statistics.keys() == {name}


def test_what_was_left_of_few_chunks_with_one_choice_the_milp_closes():
    by_milp = 0
    for problem, _ in uniform_problems(23, 5):
        problem = problem.replace(uniform_recompute=problem.uniform_recompute[:1])
        truth = enumerate_optimum(problem, 2_000)
        result = branch_and_cut(problem, SolveOptions(memory=TreeMemory(left=1.0)))
        by_milp += bool({MILP_ROUNDS, RANGED_ROUNDS} & result.statistics.keys())
        if truth.plan is None:
            assert result.status == INFEASIBLE
        else:
            assert result.status == OPTIMAL
            assert result.objective == pytest.approx(truth.objective, rel=1e-6)
    assert by_milp > 2


def test_a_choice_begins_with_the_paths_and_the_patience_of_the_problem_without_the_rule():
    problem = reference_problem(interleaves=2, uniform_recompute=((FULL, 2), (FULL, 3)))
    paths, memories = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.lag)), []

    def run(asked_problem, options, **further):
        memories.append(options.memory)
        if not asked_problem.uniform_recompute:
            options.memory.paths, options.memory.patience = paths, 7
        return Solution(NO_SOLUTION, bound=1.0)

    solve_uniform(problem, SolveOptions(), run=run, one_by_one=True)
    chosen = {id(memory): memory for memory in memories[1:]}
    assert len(chosen) == 2 and id(memories[0]) not in chosen
    assert all(memory.paths is paths and memory.patience == 7 for memory in chosen.values())


@pytest.mark.parametrize("solver", ["HIGHS", "HIGHS-MILP"])
def test_a_chunk_between_embedding_and_head_alone_may_recompute_all_layers(solver):
    """Where embedding and head may have chunks of their own the others leave a chunk more than the least of them."""
    problem = small_problem(
        stages=3, static_mib=(5.0,) * 3, limit_mib=(100.0,) * 3, embedding_forward=20.0, head_forward=20.0,
        entries_alone=True, micro_batches=8, uniform_recompute=((FULL, 4),),
    )  # fmt: skip
    truth = enumerate_optimum(problem)
    assert truth is not None and solve(problem, SolveOptions(solver)).objective == pytest.approx(truth.objective)


def test_a_rule_that_no_memory_can_keep_is_proven_infeasible_with_what_is_short():
    problem = small_problem(limit_mib=(36.0, 100.0), uniform_recompute=((FULL, 0),), min_layers=2)
    result = solve(problem)
    assert result.status == INFEASIBLE
    assert "short by" in result.message


def test_a_stopped_search_keeps_a_true_bound():
    problem = reference_problem(interleaves=2, uniform_recompute=tuple((FULL, most) for most in range(63)))
    result = solve(problem, SolveOptions(time_limit=4.0))
    assert 900.0 < result.bound <= 1105.943249  # the optimum under the rule; without it 1068.763749
    assert result.objective is None or result.objective >= 1105.943249 * (1 - 1e-6)


@pytest.mark.parametrize("first", [1, 4])
def test_ctrl_c_ends_all_choices_and_keeps_the_best_plan_with_a_true_bound(first):
    """The solver that is interrupted returns what it has; the choices after it are not begun."""
    problem = reference_problem(uniform_recompute=tuple((FULL, most) for most in range(63)))
    asked = []

    def run(asked_problem, options, **further):
        asked.append(asked_problem.uniform_recompute)
        found = branch_and_cut(asked_problem, options, **further)
        if len(asked) < first:
            return found
        return found.ended_by(Termination.INTERRUPTED)

    result = solve_uniform(problem, SolveOptions(), run=run, one_by_one=True)
    assert len(asked) == first
    assert result.status == FEASIBLE and result.termination is Termination.INTERRUPTED
    assert check(problem, result.plan, result.objective) == []
    assert result.bound <= 1190.662249 <= result.objective * (1 + 1e-6)


def test_selective_recompute_everywhere_is_a_choice_of_its_own():
    kind = LayerKind("body", 4, 1.0, 10.0, {NONE: 4.0, SELECT: 2.0, FULL: 1.0})
    problem = small_problem(
        kinds=(kind,),
        limit_mib=(34.0, 100.0),
        recompute_ratio={FULL: 1.0, SELECT: 0.1},
        uniform_recompute=((FULL, 0), (FULL, 4), (SELECT, 4)),
        min_layers=2,
    )
    result = solve(problem)
    assert result.plan.recompute == plan_of({"body": [[2, 2]]}, {FULL: [[0, 0]], SELECT: [[2, 2]]}).recompute


def test_the_solution_file_names_the_choice(tmp_path):
    problem = reference_problem(uniform_recompute=tuple((FULL, most) for most in range(63)))
    result = solve(problem)
    text = write_sol(problem, result, tmp_path / "case.sol").read_text()
    chosen = problem.uniform_recompute[uniform_choice(problem, result.plan)]
    assert f"uniform[{chosen[1]}] 1" in text.splitlines()


def test_no_step_time_is_told_that_a_plan_under_one_choice_does_not_reach():
    problem = reference_problem(uniform_recompute=tuple((FULL, most) for most in range(63)))
    start = solve(problem).plan
    told = []
    result = solve(problem, warm_start=start, on_progress=told.append)
    times = [progress.objective for progress in told if progress.objective is not None]
    assert times and min(times) >= result.objective * (1 - 1e-9)


def test_whether_a_choice_could_win_with_more_memory_is_settled_by_the_first_plan_that_does():
    """The solver of the roomy problem tells a better plan, and from then on has nothing left to beat."""
    problem = small_problem(uniform_recompute=((FULL, 1), (FULL, 2)), limit_mib=(100.0, 100.0))
    limits = []

    def run(asked, options, **further):
        roomy = asked.limit_mib[0] > 1e9
        if roomy:
            limits.append(options.cutoff())
            further["on_progress"](Progress(0.1, 1.0, 0.5, ""))
            limits.append(options.cutoff())
        if not asked.uniform_recompute:
            return Solution(FEASIBLE, plan=plan_of({"body": [[2, 2]]}), objective=30.0, bound=2.0)
        return Solution(NO_SOLUTION, bound=1e9).ended_by(Termination.CUT_OFF)

    solve_uniform(problem, SolveOptions(time_limit=60.0), run=run, one_by_one=True)
    assert limits and limits[0] > 0.0 and set(limits[1::2]) == {0.0}


def test_a_choice_that_the_best_plan_keeps_begins_with_the_target_that_was_left():
    problem = reference_problem(interleaves=2, uniform_recompute=((FULL, 0), (FULL, 3)))
    left = {}

    def run(asked, options, **further):
        if not asked.uniform_recompute:
            options.memory.left, options.memory.fruitless = 77.0, 88.0
            grids = {"dense": [[1] * 3 + [0] * 13, [0] * 16], "moe": [[1] * 3 + [2] * 13, [2] * 14 + [1, 1]]}
            return Solution(FEASIBLE, plan=plan_of(grids), objective=1e4, bound=1.0)
        left[asked.uniform_recompute[0]] = options.memory.left, options.memory.fruitless
        return Solution(NO_SOLUTION, bound=1.0)

    solve_uniform(problem, SolveOptions(), run=run, one_by_one=True)
    assert left == {(FULL, 0): (77.0, 88.0), (FULL, 3): (float("inf"), float("inf"))}


@pytest.mark.parametrize(
    "recomputed, closing, asked",
    [(0, (True, False), 2), (0, (True, True), 3), (0, (False,), 1), (1, (True, True), 1)],
    ids=["as long as it closes", "to its end", "too slow", "a plan that breaks the rule"],
)
def test_a_free_problem_whose_plan_keeps_the_rule_goes_on_while_its_tree_closes_well(recomputed, closing, asked):
    body = small_problem().kinds[0]
    kinds = (replace(body, count=2), replace(body, name="last", count=2, forward=1.5))
    problem = small_problem(uniform_recompute=((FULL, 0), (FULL, 2)), kinds=kinds)
    plan = plan_of({"body": [[2, 0]], "last": [[0, 2]]}, {FULL: [[recomputed, 0]]})
    times, since = 0, []

    class Tree:
        def closing_well(self, before):
            since.append(before)
            return closing[len(since) - 1]

    def run(of, options, **further):
        nonlocal times
        if of.uniform_recompute:
            return Solution(NO_SOLUTION, bound=1e9).ended_by(Termination.CUT_OFF)
        times += 1
        options.memory.tree = Tree()
        found = Solution(FEASIBLE, plan=plan, objective=30.0, bound=10.0 + times)
        return found.closed() if times == 3 else found.ended_by(Termination.TIME_LIMIT)

    solve_uniform(problem, SolveOptions(time_limit=60.0), run=run, one_by_one=True)
    assert (times, since) == (asked, [0.0, 11.0][: len(since)])


def test_more_time_does_not_make_the_first_turns_longer():
    """Those of a minute; ten minutes are given to what is open after them."""
    problem = reference_problem(interleaves=2, uniform_recompute=((FULL, 0), (FULL, 3)))
    turns = {}

    for limit in (60.0, 600.0):
        asked = turns[limit] = []

        def run(of, options, asked=asked, **further):
            asked.append(options.time_limit)
            if len(asked) < 4:
                return Solution(NO_SOLUTION, bound=10.0 + len(asked)).ended_by(Termination.TIME_LIMIT)
            return Solution(NO_SOLUTION).ended_by(Termination.INTERRUPTED)

        solve_uniform(problem, SolveOptions(time_limit=limit), run=run, one_by_one=True)
    assert len(turns[60.0]) == 4 and turns[600.0] == pytest.approx(turns[60.0], abs=0.5)


def test_a_plan_that_beats_the_best_leaves_no_room_for_more_layers_than_its_step_holds():
    """Four micro-batches, a forward of 1 and a backward of 2: a step of 25 holds two layers on a stage, not three."""
    problem = small_problem()
    known = SimpleNamespace(problem=problem, best=object(), to_beat=lambda: 25.0)
    assert Choices._most_layers(known) == 2
    known.best = None
    assert Choices._most_layers(known) == problem.layers


def test_a_choice_that_is_proven_as_far_as_was_asked_is_not_tried_again():
    """Choices are cut off at half of the gap; a proof between half of it and all of it is one nevertheless."""
    problem = small_problem(uniform_recompute=((FULL, 1), (FULL, 2)))
    tried = []

    def run(asked, options, **further):
        if not asked.uniform_recompute:
            return Solution(NO_SOLUTION, bound=2.0).ended_by(Termination.TIME_LIMIT)
        tried.append(asked.uniform_recompute)
        found = Solution(OPTIMAL, plan=plan_of({"body": [[2, 2]]}, {FULL: [[1, 1]]}), objective=30.0)
        return found.replace(bound=30.0 * (1 - 0.8 * options.gap))

    options = SolveOptions(time_limit=20.0, gap=1e-3)
    found = solve_uniform(problem, options, run=run, one_by_one=True)
    assert found.status == OPTIMAL and found.objective == 30.0 and found.seconds < 10.0
    assert len(tried) == len(set(tried)) <= 2
