"""What a result says as plain data, key by key, and what is read back of files that say more or less."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline_solver.check.checker import exact_step_time
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import FEASIBLE, NO_SOLUTION, Solution, Termination
from taylor.pipeline_solver.solving.result import Result, plan_of_row, problem_data, read_result
from taylor.pipeline_solver.solving.uniform_recompute import UNRESTRICTED_BOUND, UNRESTRICTED_OBJECTIVE
from tests.solver_cases import plan_of, small_problem

KEPT = {NONE: 4.0, FULL: 1.0, SELECT: 2.0, "off": 1.0}
PLAN = plan_of({"body": [[3, 1]], "mtp": [[0, 2]]}, {FULL: [[1, 0]]})


def kind(name: str, count: int, **more: Any) -> LayerKind:
    return LayerKind(name, count, 1.0, 10.0, KEPT, **more)


def with_mtp(**changes: Any) -> PipelineProblem:
    return small_problem(kinds=(kind("body", 4), kind("mtp", 2, pinned_last=True)), **changes)


def found(**changes: Any) -> Solution:
    whole: dict[str, Any] = {
        "termination": Termination.TIME_LIMIT, "plan": PLAN, "objective": 40.0, "bound": 30.0, "solver": "HIGHS",
        "seconds": 1.23456, "peak_memory_mib": (40.00049, 50.6), "memory_limit_mib": (100.0, 100.0), "message": "late",
    }  # fmt: skip
    return Solution(FEASIBLE, **{**whole, **changes})


def test_a_row_has_a_cell_for_every_figure() -> None:
    row = Result(with_mtp(unit_ms=2.5, limit_mib=(99.6, 100.4)), found()).row()
    assert row == {
        "pp": 2, "vpp": 1, "micro_batches": 4, "objective": 40.0, "bound": 30.0, "gap": 0.25, "solver": "HIGHS",
        "status": "feasible", "time": 1.235, "reason": "late", "memory_limit": "[100, 100]", "cost": 100.0,
        # Four layers that count on two chunks.
        "offset": "[[1, -1]]", "layers": '{"body": [[3, 1]], "mtp": [[0, 2]]}', "recompute": '{"full": [[1, 0]]}',
        "peak_memory": "[40, 51]",
    }  # fmt: skip
    assert "cost" not in Result(with_mtp(), found()).row()
    none = found(plan=None, objective=None)
    assert not {"cost", "offset", "layers", "recompute", "peak_memory"} & set(Result(with_mtp(unit_ms=1.0), none).row())


def test_the_data_say_what_the_solution_says() -> None:
    data = Result(with_mtp(unit_ms=2.5), found(), "dry-run", 1, unmodelled=["x"], job={"model": "m"}).to_dict()
    assert next(iter(data)) == "model"
    expected = {
        "model": "m", "status": "feasible", "termination": "time limit", "objective": 40.0, "bound": 30.0, "gap": 0.25,
        "unit_ms": 2.5, "solve_seconds": 1.235, "solver": "HIGHS", "schedule": "1f1b", "stages": 2, "interleaves": 1,
        "micro_batches": 4, "offset": [[1, -1]], "layers": {"body": [[3, 1]], "mtp": [[0, 2]]},
        "recompute": {"full": [[1, 0]]}, "peak_memory": [40.0, 50.6],
        "peak_memory_interval": [[40.0, 40.0], [50.6, 50.6]], "memory_limit": [100.0, 100.0],
        "memory_source": "dry-run", "unmodelled": ["x"], "bubble": None, "message": "late", "mtp_among_layers": 1,
        "alternatives": [], "files": {},
    }  # fmt: skip
    assert {key: value for key, value in data.items() if key != "problem"} == expected


def test_what_is_not_known_is_said_to_be_so_or_left_out() -> None:
    data = Result(with_mtp(), found(bound=0.0, termination=None)).to_dict()
    assert (data["bound"], data["gap"], data["termination"]) == (None, None, None)
    assert not {"dryrun", "host_memory", "host_link", "unrestricted", "mtp_among_layers"} & set(data)
    assert Result(with_mtp(), found(), dryrun=[]).to_dict()["dryrun"] == []
    told = Result(with_mtp(), found(), peak_interval_mib=[(None, 41.00049), (1.0, None)]).to_dict()
    assert told["peak_memory_interval"] == [[None, 41.0], [1.0, None]]
    bound = Result(with_mtp(), found(statistics={UNRESTRICTED_BOUND: 2.0})).to_dict()
    assert bound["unrestricted"] == {"objective": None, "bound": 2.0}
    assert Result.from_dict(bound).solution.statistics == {UNRESTRICTED_BOUND: 2.0}
    assert "unrestricted" not in Result(with_mtp(), found(statistics={UNRESTRICTED_OBJECTIVE: 3.0})).to_dict()


def test_choices_bring_the_memory_of_the_host_and_its_link() -> None:
    """Two micro-batches alive on stage 0, of 2.0004 MiB each beside 3 of states; the link is busy for 4 times 0.5."""
    off = LayerChoice(0.0, 1.0, 0.0, 0.0, 2.0004, 3.0, 0.5)
    problem = small_problem(kinds=(kind("body", 4, choices={"off": off}),), choices=("off",), micro_batches=4)
    plan = plan_of({"body": [[2, 2]]}, {"off": [[1, 0]]})
    step = float(exact_step_time(problem, plan))
    data = Result(problem, found(plan=plan)).to_dict()
    assert data["host_memory"] == [7.001, 0.0]
    assert data["host_link"] == [round(2.0 / step, 6), 0.0]
    assert "host_memory" not in Result(problem, found(plan=None)).to_dict()
    assert data["recompute"] == {"full": [[0, 0]], "off": [[1, 0]]}
    assert Result.from_dict(data).problem == problem
    assert problem_data(problem)["kinds"][0]["choices"]["off"]["link_time"] == 0.5


def test_modes_that_are_searched_or_held_are_named_and_no_others() -> None:
    problem = with_mtp(recompute_ratio={FULL: 1.0, SELECT: 0.5}, unsearched=(SELECT,))
    assert set(Result(problem, found()).to_dict()["recompute"]) == {FULL}
    held = plan_of({"body": [[3, 1]], "mtp": [[0, 2]]}, {SELECT: [[1, 0]]})
    assert Result(problem, found(plan=held)).to_dict()["recompute"] == {FULL: [[0, 0]], SELECT: [[1, 0]]}


def test_the_data_of_a_problem_leave_out_what_says_nothing() -> None:
    plain = problem_data(with_mtp())
    idle = {"unsearched", "choices", "host_limit_mib", "lags", "entries_alone", "uniform_recompute"}
    pinned = {"fixed_layers", "max_layers", "fixed_recompute"}
    assert not (idle | pinned) & set(plain)
    assert [set(one) & {"choices", "places", "hand_over"} for one in plain["kinds"]] == [set(), set()]
    full = problem_data(
        small_problem(
            kinds=(kind("body", 4, choices={"off": LayerChoice()}), kind("mtp", 1, pinned_last=True, places=(0, 1),
                        hand_over=0.5, choices={"off": LayerChoice()})),
            recompute_ratio={FULL: 1.0, SELECT: 0.5}, unsearched=(SELECT,), choices=("off",), host_limit_mib=(1.0, 1.0),
            lags=(1.0,), entries_alone=True, uniform_recompute=((FULL, 1),), fixed_layers={(0, 0): 1},
        )
    )  # fmt: skip
    assert idle <= set(full) and not pinned & set(full)
    assert [set(one) & {"choices", "places", "hand_over"} for one in full["kinds"]] == [
        {"choices"}, {"choices", "places", "hand_over"},
    ]  # fmt: skip
    json.dumps(full)


@pytest.mark.parametrize(("count", "right"), [(0, True), (4, True), (5, False), (-1, False), (1.0, False)])
def test_no_more_layers_are_mtp_than_the_solver_places(count: Any, right: bool) -> None:
    data = Result(with_mtp(), found()).to_dict() | {"mtp_among_layers": count}
    if right:
        assert Result.from_dict(data).mtp_layers == count
    else:
        with pytest.raises(InputError, match="count of layers"):
            Result.from_dict(data)


def test_a_file_of_an_older_version_is_read_with_what_it_lacks_left_empty() -> None:
    whole = Result(with_mtp(), found()).to_dict()
    few = {key: whole[key] for key in ("layers", "recompute", "problem")} | {"model": "m"}
    read = Result.from_dict(few)
    assert (read.plan, read.job, read.memory_source, read.mtp_layers) == (PLAN, {"model": "m"}, None, 0)
    assert (read.dryrun, read.alternatives, read.unmodelled, read.peak_interval_mib) == (None, (), (), None)
    assert read.solution == Solution(FEASIBLE, plan=PLAN)
    again = Result.from_dict(whole | {"peak_memory_interval": [[None, 2], [1, 3]]})
    assert again.peak_interval_mib == ((None, 2.0), (1.0, 3.0))
    for lacking in ("layers", "problem"):
        with pytest.raises(InputError, match="has no solved plan"):
            Result.from_dict({key: value for key, value in few.items() if key != lacking})


@pytest.mark.parametrize("layers", [[[3, 1, 0]], [[3, 1], [0, 0]]])
def test_a_plan_of_another_pipeline_is_refused(layers: list[list[int]]) -> None:
    data = Result(with_mtp(), found()).to_dict()
    nobody = [[0] * len(row) for row in layers]
    with pytest.raises(InputError, match="differ in stages or virtual stages"):
        Result.from_dict(data | {"layers": {"body": layers, "mtp": nobody}, "recompute": {}})


def test_runs_of_a_kind_that_lie_apart_are_dealt_in_the_order_of_the_problem() -> None:
    """Of a, b, a on two chunks of two and three layers the first holds a and b, the second a twice before MTP."""
    kinds = (kind("a", 1), kind("b", 1), kind("a#2", 2), kind("mtp", 1, pinned_last=True))
    problem = small_problem(kinds=kinds)
    plan = plan_of({"a": [[1, 0]], "b": [[1, 0]], "a#2": [[0, 2]], "mtp": [[0, 1]]}, {FULL: [[1, 0]]})
    data = Result(problem, found(plan=plan)).to_dict()
    assert data["layers"] == {"a": [[1, 2]], "b": [[1, 0]], "mtp": [[0, 1]]}
    assert Result.from_dict(data).plan == plan
    with pytest.raises(InputError, match="not those of the problem in their order"):
        Result.from_dict(data | {"layers": {"a": [[2, 1]], "b": [[0, 1]], "mtp": [[0, 1]]}, "recompute": {}})


def test_a_row_without_text_holds_no_plan_and_full_recompute_is_kept_where_it_is_none() -> None:
    row = {"layers": '{"body": [[1, 2]]}', "recompute": '{"full": [[0, 0]], "select": [[0, 0]], "off": [[0, 1]]}'}
    assert plan_of_row(row) == plan_of({"body": [[1, 2]]}, {FULL: [[0, 0]], "off": [[0, 1]]})
    for lacking in row:
        assert plan_of_row({**row, lacking: None}) is None


def test_a_file_that_is_no_result_is_refused_with_its_name(tmp_path: Path) -> None:
    for text, words in (("{", "is not JSON"), ("[1]", "has no solved plan"), ("[" * 100_000, "is not JSON")):
        path = tmp_path / "result.json"
        path.write_text(text)
        with pytest.raises(InputError, match=f"result.json: {words}"):
            read_result(path)


def test_a_result_without_a_plan_names_its_status_where_it_has_no_message() -> None:
    with pytest.raises(ValueError, match="has no plan: no_solution"):
        _ = Result(with_mtp(), Solution(NO_SOLUTION)).plan
    assert Result(with_mtp(), found()).plan == PLAN
