"""The file's own plan is reported like a solved one, and the file stays as it is."""

from __future__ import annotations

import json

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.pipeline.schedule import AUTO
from taylor.workflows.evaluate_file import evaluate_file
from taylor.workflows.options import FileJob, Outputs
from taylor.workflows.solve_file import solve_file
from tests.parsers.test_megatron import BASE as SHELL_FLAGS
from tests.parsers.test_megatron import script_of

MEMORY = {
    "device_limit": 4000,
    "static": {"first": 300, "middle": 100, "last": 250},
    "layer": {"dense": 40},
    "activation": {"dense": {"none": 30, "select": 20, "full": 2}},
}


@pytest.fixture
def job(tmp_path):
    (tmp_path / "memory.json").write_text(json.dumps(MEMORY))
    return FileJob(script_of(tmp_path, SHELL_FLAGS), memory_file=tmp_path / "memory.json", check=False)


def test_it_reports_the_files_own_plan_with_the_keys_of_a_solved_one(job, tmp_path):
    text = job.path.read_text()
    own = evaluate_file(job, Outputs(folder=tmp_path / "own", result_json=tmp_path / "own.json"))
    assert own.plan.total_layers() == read_config(job.path).plan.total_layers()
    assert own.files == {"result": str(tmp_path / "own.json")} and not (tmp_path / "own").exists()
    assert job.path.read_text() == text
    solved = solve_file(job, outputs=Outputs(folder=tmp_path / "out", result_json=tmp_path / "solved.json"))
    told = [json.loads((tmp_path / name).read_text()) for name in ("own.json", "solved.json")]
    assert [key for key in told[0] if key in told[1]] == list(told[0])
    assert told[0]["objective"] >= told[1]["bound"] and set(solved.files) == {"mps", "sol", "config", "result"}


def test_what_is_left_to_the_tool_is_the_files_own(job):
    own, left = evaluate_file(job), evaluate_file(FileJob(**{**vars(job), "vpp": AUTO, "schedule": AUTO}))
    assert left.problem == own.problem and left.solution.objective == own.solution.objective


def test_another_number_of_interleaves_than_the_plans_is_refused(job):
    with pytest.raises(InputError, match="another number of interleaves"):
        evaluate_file(FileJob(**{**vars(job), "vpp": 2}))
