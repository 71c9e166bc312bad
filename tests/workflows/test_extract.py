"""Saved solutions are shown as they were saved."""

from __future__ import annotations

import json

import pytest

from taylor.base.errors import InputError
from taylor.workflows.extract import describe_saved_solution

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


def test_a_result_is_shown_with_its_offset(tmp_path):
    result = {"status": "optimal", "objective": 1.0, "offset": [[1, 0]], "layers": {"moe": [[2, 1]]}, "recompute": {}}
    (tmp_path / "r.json").write_text(json.dumps(result))
    assert "offset: [[1, 0]]" in describe_saved_solution(tmp_path / "r.json")


@pytest.mark.parametrize(
    "text", ["", "x", "{", '{"status": 1}', '{"status":1,"objective":1,"offset":1,"layers":3,"recompute":{}}']
)
def test_other_files_are_refused_with_their_name(tmp_path, text):
    (tmp_path / "f").write_text(text)
    with pytest.raises(InputError, match="f"):
        describe_saved_solution(tmp_path / "f")
