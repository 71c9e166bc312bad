"""Saved solutions are shown as they were saved."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.solving.result import Result
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.workflows.showing.extract import describe_saved_solution

SOL = """# status optimal
# objective 12.5
x_dense[0,0] 2
x_dense[1,0] 0
x_moe[0,0] 1
x_moe[1,0] 3
recompute_moe[1,0] 2
forward[0,0] 1.0
"""


def test_a_sol_file_is_shown_by_kind_and_stage(tmp_path):
    (tmp_path / "a.sol").write_text(SOL)
    text = describe_saved_solution(tmp_path / "a.sol")
    assert "status: optimal" in text and "objective: 12.5" in text
    assert "layers moe: [1, 3]" in text and "recomputed moe: [0, 2]" in text


def test_a_result_is_shown_with_its_offset_and_the_layers_of_each_kind(tmp_path):
    moe = LayerKind("moe", 3, 1.0, 10.0, {"none": 5.0, "full": 1.0})
    problem = PipelineProblem(2, 1, 4, (moe,), (0.0, 0.0), (25.0, 100.0))
    plan = PipelinePlan({"moe": ((1, 2),)}, {"full": ((0, 1),)})
    (tmp_path / "r.json").write_text(Result(problem, evaluate(problem, plan)).to_json())
    lines = describe_saved_solution(tmp_path / "r.json").splitlines()
    assert {"offset: [[0, 1]]", "layers moe: [[1, 2]]", "recomputed full: [[0, 1]]"} <= set(lines)


@pytest.mark.parametrize(
    "text", ["", "x", "{", '{"status": 1}', '{"status":1,"objective":1,"offset":1,"layers":3,"recompute":{}}']
)
def test_other_files_are_refused_with_their_name(tmp_path, text):
    (tmp_path / "f").write_text(text)
    with pytest.raises(InputError, match="f"):
        describe_saved_solution(tmp_path / "f")
