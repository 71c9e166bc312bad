"""Parameters of the solver: their names, and where values that differ from the defaults arrive."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields

import pytest

from benchmarks.ablation import OFF, READ, SHAPES, variants, watched
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, SolverParams, parse_params
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.solving.result import Result
from taylor.pipeline_solver.solving.solve import solve
from tests.solver_cases import small_problem as small


def two_virtual_stages() -> PipelineProblem:
    return small(interleaves=2, schedule=ScheduleSpec("interleaved"))


def test_a_text_sets_switches_counts_fractions_and_several_numbers():
    params = parse_params("tree.samples=0, tree.probing=false,heuristics.hot=0.1:0.2,bounds.close=1e-4")
    assert params.tree.samples == 0 and params.tree.probing is False
    assert params.heuristics.hot == (0.1, 0.2) and params.bounds.close == 1e-4
    assert params.changed() == {
        "tree.probing": False, "tree.samples": 0, "heuristics.hot": (0.1, 0.2), "bounds.close": 1e-4,
    }  # fmt: skip
    assert DEFAULT_PARAMS.changed() == {} == parse_params("").changed()


@pytest.mark.parametrize(
    "text, said",
    [
        ("tree.sample=0", "similar: tree.samples"),
        ("samples", "must be name=value"),
        ("tree.samples=1.5", "must be of type int, found '1.5'"),
        ("tree.samples=inf", "must be of type int"),
        ("tree.probing=2", "must be of type bool, found '2'"),
        ("bounds.close=__import__", "must be of type float"),
    ],
)
def test_what_is_no_parameter_or_no_value_is_refused_with_similar_names(text, said):
    with pytest.raises(ValueError, match=said):
        parse_params(text)


def test_every_parameter_is_documented_and_frozen():
    for part in fields(SolverParams):
        record = getattr(DEFAULT_PARAMS, part.name)
        described = {
            name
            for line in type(record).__doc__.splitlines()
            if " : " in line
            for name in line.split(" : ")[0].replace(" ", "").split(",")
        }
        assert {field.name for field in fields(record)} == described
        with pytest.raises(FrozenInstanceError):
            setattr(record, fields(record)[0].name, 1)


def test_the_result_records_the_values_that_differ_from_the_defaults():
    problem = two_virtual_stages()
    plain = Result(problem, solve(problem))
    changed = parse_params("tree.enumeration=0,bounds.known_cuts=2")
    other = Result(problem, solve(problem, SolveOptions(params=changed)))
    assert "params" not in plain.to_dict()
    assert other.to_dict()["params"] == {"tree.enumeration": False, "bounds.known_cuts": 2}
    assert Result.from_dict(other.to_dict()).to_dict()["params"] == other.to_dict()["params"]
    assert other.solution.objective == pytest.approx(plain.solution.objective, rel=1e-9)


@pytest.mark.parametrize("name", OFF)
def test_without_any_one_method_the_optimum_is_the_same(name):
    problem = two_virtual_stages()
    found = solve(problem, SolveOptions(params=DEFAULT_PARAMS.with_value(name, OFF[name])))
    assert found.objective == pytest.approx(solve(problem).objective, rel=1e-9)


def test_an_ablation_varies_every_parameter_and_notes_those_that_a_solve_reads():
    varied = {label.split()[0] for label, _ in variants([], False)}
    assert varied == {name for name, value in DEFAULT_PARAMS.items() if name not in SHAPES}
    seen: set[str] = set()
    solve(two_virtual_stages(), SolveOptions(params=watched(seen)))
    assert {"tree.few_tuples", "tree.first_slice"} & seen and READ not in seen
