"""Problems of one interleave, solved by their busiest stage."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from benchmarks.brute_force import BruteForce, enumerate_optimum, random_problem
from benchmarks.random_instances import alternating_problem
from benchmarks.solver import deepseek
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.columns.stage_runs import stage_runs
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import CUT_OFF, INFEASIBLE, OPTIMAL, Termination
from taylor.pipeline_solver.model.stopping import OutOfTime, Stopper
from taylor.pipeline_solver.solving.exact import solve_exact
from taylor.pipeline_solver.timing.durations import chunk_durations, duration_blocks, schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.pipeline_solver.tree.busiest_stage import BusiestStage, Part
from tests.solver_cases import REFERENCE_OBJECTIVE, reference_problem, small_problem

SEEDS = st.integers(0, 2**32 - 1)


def search_of(problem: PipelineProblem, stopper: Stopper | None = None) -> BusiestStage:
    runs = stage_runs(problem)
    assert runs is not None
    return BusiestStage(
        runs, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags), stopper or Stopper(None)
    )


def problem_of(seed: int) -> tuple[PipelineProblem, BruteForce]:
    """A small problem of one interleave and its optimum."""
    rng = np.random.default_rng(seed)
    while True:
        problem = random_problem(rng) if rng.random() < 0.6 else alternating_problem(rng)
        if problem.interleaves == 1:
            truth = enumerate_optimum(problem, 5000)
            if truth is not None:
                return problem, truth


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SEEDS)
def test_the_bound_is_below_the_optimum_and_the_plan_above_it(seed: int) -> None:
    problem, truth = problem_of(seed)
    search = search_of(problem)
    assert search.search() is (truth.plan is not None)
    if truth.plan is not None:
        assert search.plan is not None and not check(problem, search.plan, search.time)
        assert 0 < search.bound <= truth.objective * (1 + 1e-9)
        assert search.time >= truth.objective * (1 - 1e-9)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SEEDS)
def test_what_the_busiest_stage_leaves_open_branch_and_cut_closes(seed: int) -> None:
    problem, truth = problem_of(seed)
    solution = solve_exact(problem)
    if truth.plan is None:
        assert solution.status is INFEASIBLE
    else:
        assert solution.status is OPTIMAL and solution.bound is not None
        assert solution.objective == pytest.approx(truth.objective, rel=1e-6)
        assert solution.bound <= truth.objective * (1 + 1e-9)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SEEDS)
def test_every_path_is_one_of_the_event_graph(seed: int) -> None:
    problem, truth = problem_of(seed)
    assume(truth.plan is not None)
    search = search_of(problem)
    # Whatever the tasks take, no path is longer than the longest one.
    rng = np.random.default_rng(seed)
    durations = rng.random(search.graph.classes) * rng.choice([0.01, 1.0, 50.0], search.graph.classes)
    durations[-problem.stages :] = problem.tail or 0.0
    for cut in search.cuts():
        length = float(np.dot(cut[:-1], durations)) + cut[-1]
        assert length <= search.graph.longest_path(durations) * (1 + 1e-12)


def test_the_paths_know_the_step_of_even_stages() -> None:
    problem = reference_problem(tail=(0.5,) * 16)
    search = search_of(problem)
    durations = np.concatenate([np.full(16, 4.0), np.full(16, 9.0), np.full(16, 0.5)])
    longest = max(np.dot(cut[:32], durations[:32]) + cut[-1] for cut in search.cuts())
    assert longest == pytest.approx(search.graph.longest_path(durations), rel=1e-12)


@given(st.integers(0, 6), st.integers(0, 6))
def test_halves_of_a_part_cover_it_once(works: int, stages: int) -> None:
    whole = Part(0, works, 0, stages)
    leaves, open_parts = [], [whole]
    while open_parts:
        part = open_parts.pop()
        halves = part.halves()
        open_parts += halves
        leaves += [] if halves else [part]
    every = {(w, s) for w, s in itertools.product(range(works + 1), range(stages + 1))}
    assert len(leaves) == len(every) and {(part.low, part.first) for part in leaves} == every


def test_the_reference_case_needs_no_more_than_the_busiest_stage() -> None:
    solution = solve_exact(reference_problem())
    assert solution.status is OPTIMAL and solution.termination is Termination.PROVEN
    assert solution.objective == pytest.approx(REFERENCE_OBJECTIVE, abs=1e-6)
    assert solution.statistics["parts"] and "lp_solves" not in solution.statistics


def loaded_after(lines: str, folder: Path) -> list[str]:
    """The heavy packages that a new interpreter has loaded after these lines."""
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from tests.solver_cases import reference_problem\n"
        "from taylor.pipeline_solver.solving.solve import solve\n"
        f"{lines}\n"
        "print(*[name for name in ('numba', 'scipy', 'highspy', 'pyomo') if name in sys.modules])\n"
    )
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", script, str(folder)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split()


def test_a_small_problem_waits_for_no_compiler_and_no_lp(tmp_path: Path) -> None:
    assert loaded_after("solve(reference_problem())", tmp_path) == []


def test_the_files_of_a_small_problem_wait_for_highs_alone(tmp_path: Path) -> None:
    """HiGHS finds the cuts that its proof needs; neither a compiler nor a modelling language is loaded."""
    lines = (
        "from taylor.pipeline_solver.milp.model_files import write_model\n"
        "folder = Path(sys.argv[1])\n"
        "write_model(reference_problem(), solve(reference_problem()), folder / 'a.mps', folder / 'a.sol')"
    )
    assert loaded_after(lines, tmp_path) == ["highspy"]
    assert (tmp_path / "a.mps").is_file() and (tmp_path / "a.sol").is_file()


def test_hundreds_of_layers_on_many_stages_are_proven_at_once() -> None:
    search = search_of(deepseek(64, 1, 128, 254))
    assert search.search() and search.plan is not None
    assert search.bound == pytest.approx(search.time, rel=1e-9)
    durations = chunk_durations(search.runs.problem, search.plan)
    assert search.graph.longest_path(durations) == search.time


def test_a_search_that_is_out_of_time_keeps_its_plan_and_bound() -> None:
    class Late(Stopper):
        """A clock that strikes at the third look."""

        looks = 0

        def check(self) -> None:
            self.looks += 1
            if self.looks == 3:
                raise OutOfTime

    search = search_of(reference_problem(), Late(None))
    with pytest.raises(OutOfTime):
        search.search()
    assert search.plan is not None and 0 < search.bound < REFERENCE_OBJECTIVE < search.time * (1 + 1e-9)


def test_no_time_at_all_still_gives_a_plan_with_a_bound() -> None:
    solution = solve_exact(reference_problem(), SolveOptions(time_limit=0.0))
    assert solution.termination is Termination.TIME_LIMIT
    assert solution.plan is not None and solution.gap is not None and 0 < solution.gap < 1


def test_a_step_time_that_no_plan_beats_cuts_the_search_off() -> None:
    solution = solve_exact(reference_problem(), SolveOptions(cutoff=lambda: 1100.0))
    assert solution.status is CUT_OFF and solution.bound is not None
    assert 1100.0 <= solution.bound <= REFERENCE_OBJECTIVE


def test_a_plan_that_is_known_is_the_first_one() -> None:
    problem = small_problem()
    best = solve_exact(problem)
    again = solve_exact(problem, warm_start=best.plan)
    assert again.objective == best.objective and again.plan == best.plan


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_backward_of_no_time_leaves_chunks_that_do_not_fit_unreached() -> None:
    forward = np.array([1.0, np.inf])
    problem = small_problem(backward_ratio=0.0)
    blocks = duration_blocks(problem, forward, np.zeros((3, 2)), 0)
    assert [block.tolist() for block in blocks] == [[1.0, np.inf], [0.0, np.inf]]


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_problem_whose_backward_takes_no_time_is_solved_as_brute_force_does() -> None:
    problem, _ = problem_of(5)
    problem = problem.replace(backward_ratio=0.0)
    truth = enumerate_optimum(problem, 5000)
    assert truth is not None
    solution = solve_exact(problem, SolveOptions(workers=1))
    assert solution.objective == pytest.approx(truth.objective)
