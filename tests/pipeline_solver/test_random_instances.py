"""A sample of the campaign on stacks of alternating kinds; `make random` runs all of it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import random_instances
from benchmarks.brute_force import BruteForce
from benchmarks.random_instances import campaign, choice_problem, instance, main, portion
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.durations import schedule_of


@pytest.mark.slow
def test_the_optima_of_a_sample_are_those_over_every_plan():
    found = portion(seed=0, first=100, count=11)
    assert found["faults"] == [] and found["checked"] > 30
    assert found["files"] == 2  # every fifth but the first, which has no plan
    assert instance(0, 100)[1].plan is None


def test_the_optima_with_choices_and_limits_of_the_host_are_those_over_every_plan():
    found = portion(seed=0, first=20, count=6, drawn="choices")
    assert found["faults"] == [] and found["checked"] > 15 and found["files"] >= 1


@pytest.mark.slow
def test_the_optima_with_combined_passes_are_those_over_every_plan():
    found = portion(seed=0, first=105, count=4, drawn="pairs")
    assert found["faults"] == [] and found["checked"] > 4


@pytest.mark.parametrize("number", [53, 167])
def test_kinds_on_chunks_that_any_stages_have_are_solved_where_these_form_a_v(number):
    problem, truth = instance(0, number, "placed")
    assert schedule_of(problem).placement.name == "V"
    assert solve(problem).objective == pytest.approx(truth.objective)


def test_drawn_choices_are_up_to_five_and_some_are_limited_by_the_host():
    problems = [choice_problem(np.random.default_rng([4, number])) for number in range(40)]
    assert {len(problem.searched_modes) for problem in problems} >= {2, 3, 4, 5}
    assert max(len(problem.searched_modes) for problem in problems) == 5
    assert {problem.bounds_host for problem in problems} == {True, False}
    assert any(problem.slowness for problem in problems)


def test_a_number_is_the_same_instance_in_every_run():
    assert instance(0, 7) == instance(0, 7) != instance(0, 8)


@pytest.mark.slow
def test_kinds_alternate_interleaves_are_many_and_chunks_may_stay_empty():
    problems = [instance(3, number)[0] for number in range(30)]
    assert max(problem.interleaves for problem in problems) >= 4
    assert max(len(problem.kinds) for problem in problems) > 4
    assert {problem.min_layers for problem in problems} == {0, 1}


def test_a_solution_that_misses_the_optimum_is_told():
    problem, truth = next(found for found in (instance(0, n) for n in range(9)) if found[1].plan is not None)
    solution = solve(problem)
    assert random_instances.optimum_faults(truth, solution) == []
    dearer = BruteForce(truth.objective * (1 - 1e-8), truth.plan, truth.plans)
    assert "instead of" in random_instances.optimum_faults(dearer, solution)[0]
    assert "though no plan" in random_instances.optimum_faults(BruteForce(0.0, None, 0), solution)[0]
    wrong = random_instances.model_file_faults(problem, solve(problem, SolveOptions()), truth.objective + 1.0)
    assert len(wrong) == 2 and "CBC" in wrong[1]


@pytest.mark.slow
def test_a_campaign_that_was_cut_off_runs_what_is_missing_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(random_instances, "OF_A_PORTION", 2)
    arguments = ["--instances", "4", "--processes", "1", "--folder", str(tmp_path)]
    assert main(arguments) == 0
    kept = sorted((tmp_path / "instances").iterdir())
    assert [path.stem for path in kept] == [one.name for one in campaign(4).portions(1.0)]
    data = json.loads(kept[0].read_text())
    data["result"]["faults"] = ["instance 0: kept from before"]
    kept[0].write_text(json.dumps(data))
    kept[1].unlink()
    assert main(arguments) == 1
    assert "kept from before" in capsys.readouterr().out
