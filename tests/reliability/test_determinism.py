"""The same inputs give the same bytes, whatever the number of workers, and after a kill and a second start."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from benchmarks import tune_kills
from benchmarks.reliability.determinism import same_bytes
from benchmarks.reliability.kills import before_its_proof, before_its_views, killed
from benchmarks.reliability.outputs import differences, without_times
from benchmarks.reliability.solver import medium_problem
from taylor.blackbox import degree_search
from taylor.pipeline_solver.milp.model_files import write_mps
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.solving.solve import solve
from tests.solver_params import set_parameter


@pytest.mark.slow
@pytest.mark.parametrize("name", ["search", "ranking"])
def test_a_job_writes_the_same_bytes_with_one_worker_and_with_two(name):
    assert same_bytes(name, (1, 2))["faults"] == []


@pytest.mark.slow
@pytest.mark.parametrize("enumerated", [True, False])
def test_the_tree_is_the_same_however_many_processes_share_it(enumerated, monkeypatch, tmp_path):
    """Slices of a few simplex iterations make every instance a matter of several rounds, unless it is enumerated."""
    set_parameter(monkeypatch, "tree.first_slice", 20)
    if not enumerated:
        set_parameter(monkeypatch, "tree.most_cells", 0)
    rng = np.random.default_rng(8)
    rounds = 0
    # Those before need no tree.
    for problem in [medium_problem(rng) for _ in range(10)][7:]:
        shown = []
        for workers in (1, 2, 7):
            solution = solve(problem, SolveOptions(workers=workers))
            rounds += int(solution.statistics.get("rounds", 0))
            text = write_mps(problem, solution, tmp_path / "model.mps").read_bytes() if solution.plan else b""
            shown.append((solution.status, solution.objective, solution.bound, solution.plan, solution.cuts, text))
        assert all(each == shown[0] for each in shown)
    assert rounds > 9 or enumerated


@pytest.mark.slow
def test_a_small_job_killed_and_started_again_ends_as_if_undisturbed():
    result = killed("search", 3, 0)
    assert result["faults"] == [] and result["before_the_end"]


@pytest.mark.slow
def test_rows_kept_by_a_killed_ranking_are_not_solved_again():
    result = killed("ranking", 2, 1)
    assert result["faults"] == []


def test_times_are_left_out_of_the_comparison_and_nothing_else():
    assert without_times("a.csv", b"a,time,b\n1,2,3\n") == without_times("a.csv", b"a,time,b\n1,9,3\n") == b"a,b\n1,3\n"
    assert without_times("r.json", b'{"time": 1.5, "gap": 0}') == b'{"time": 0, "gap": 0}'
    one, two = (b'{"time_limit": %d.5, "command": "a.py -workers %d -vpp 2"}' % (n, n) for n in (1, 2))
    assert without_times("r.json", one) == without_times("r.json", two)
    assert without_times("r.json", one) != without_times("r.json", two.replace(b"-vpp 2", b"-vpp 3"))
    assert differences({"a.csv": b"x\ny"}, {"a.csv": b"x\nz"}) == ["a.csv line 2: b'y' and b'z'"]
    assert differences({"a": b""}, {}) == ["a is missing in one"]


@pytest.mark.slow
def test_a_worker_that_outlives_its_killed_tool_is_found_out(monkeypatch):
    monkeypatch.setattr("taylor.workflows.running.process_pool.end_with_parent", lambda parent: None)
    monkeypatch.setattr("benchmarks.reliability.sandbox.ORPHAN_SECONDS", 0.5)

    def slowly(*arguments, **more):
        time.sleep(0.2)
        return solve(*arguments, **more)

    # Workers are there for most of the run, and every second kill hits the tool alone.
    monkeypatch.setattr("taylor.workflows.ranking.rank_solves.solve", slowly)
    assert any("outlived" in fault for seed in range(1, 13) for fault in killed("ranking", 2, seed)["faults"])


@pytest.mark.parametrize(
    ("bound", "objective", "status", "kept"),
    [
        (90.0, 110.0, "cut_off", True),
        (90.0, None, "cut_off", True),
        (101.0, 110.0, "cut_off", False),
        (90.0, 99.0, "cut_off", False),
        (90.0, 110.0, "optimal", False),
    ],
)
def test_a_solve_that_was_cut_off_stands_before_its_proof_unless_it_contradicts_it(
    bound: float, objective: float | None, status: str, kept: bool
) -> None:
    def text(**solution: object) -> bytes:
        return json.dumps({"kept": {"solution": solution}}).encode()

    whole = text(status="optimal", bound=100.0, objective=100.0)
    early = text(status=status, bound=bound, objective=objective)
    assert before_its_proof(early, whole) is kept
    assert not before_its_proof(early[:30], whole) and not before_its_proof(early, None)


def test_a_result_before_its_views_is_no_half_of_one_and_any_other_difference_is() -> None:
    whole = b'{"step_ms": 5, "files": {"config": "a.yaml", "trace": "t.json"}}'
    assert before_its_views(b'{"step_ms": 5, "files": {"config": "a.yaml"}}', whole)
    assert not before_its_views(b'{"step_ms": 6, "files": {"config": "a.yaml"}}', whole)
    assert not before_its_views(b'{"step_ms": 5, "files": {"config": "b.yaml"}}', whole)
    assert not before_its_views(whole[:40], whole)
    early, late = (b'{"verdict": {"fit": "fits", "command": %s}, %s"files": {}}' % each for each in (
        (b"null", b""), (b'"solve"', b'"what_next": [1], '),
    ))  # fmt: skip
    assert before_its_views(early, late) and not before_its_views(early.replace(b"fits", b"is over"), late)
    assert not before_its_views(whole, None)


def test_no_solve_of_a_planner_that_is_killed_ends_by_its_time_limit(monkeypatch, tmp_path):
    """Neither the first solve of a choice nor the one after verification: else a busy machine would decide the plan."""
    usual = {name: value for name, value in vars(degree_search).items() if name.endswith("_SECONDS")}
    limits = dict[str, float]()
    monkeypatch.setattr(tune_kills.sys, "stdout", tune_kills.sys.stdout)
    monkeypatch.setattr(tune_kills.sys, "stderr", tune_kills.sys.stderr)
    monkeypatch.setenv(tune_kills.MARK, "")
    for name, value in usual.items():
        monkeypatch.setattr(degree_search, name, value)
    monkeypatch.setattr(
        tune_kills, "tune", lambda options: limits.update({one: vars(degree_search)[one] for one in usual})
    )
    tune_kills._planned(tmp_path, None)
    assert len(limits) == 2 and set(limits.values()) == {tune_kills.UNLIMITED_S}
