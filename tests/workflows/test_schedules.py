"""Schedules that a file cannot say are refused before a solve, not after it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from tests.conftest import ROOT

MEMORY = {
    "device_limit": 120_000,
    "static": {"first": 5000, "middle": 3000, "last": 8000},
    "layer": {"dense": 1500},
    "activation": {"dense": {"none": 400, "full": 60}},
}


def job(tmp_path: Path, name: str, vpp: int, schedule: str) -> FileJob:
    shutil.copy(ROOT / "config" / name, tmp_path / name)
    memory = tmp_path / "memory.json"
    memory.write_text(json.dumps(MEMORY))
    return FileJob(tmp_path / name, memory_file=memory, check=False, vpp=vpp, schedule=schedule)


@pytest.mark.parametrize(
    ("name", "vpp", "schedule"),
    [
        ("pretrain_llama3_70b.sh", 1, "gpipe"),
        ("pretrain_llama3_70b.sh", 2, "interleaved"),
        ("pretrain_llama3_70b.sh", 2, "dualpipev"),
        ("pretrain_llama3_70b.yaml", 2, "zbv"),
        ("pretrain_llama3_70b.yaml", 2, "megatron-interleaved"),
    ],
)
def test_a_schedule_that_the_file_cannot_say_is_refused_where_it_would_be_written(
    tmp_path: Path, name: str, vpp: int, schedule: str
) -> None:
    before = (ROOT / "config" / name).read_bytes()
    with pytest.raises(InputError, match="cannot be written into this .*-write n"):
        solve_file(job(tmp_path, name, vpp, schedule), outputs=Outputs(folder=tmp_path / "out"))
    assert (tmp_path / name).read_bytes() == before and not (tmp_path / "out").exists()


def test_the_same_schedule_is_solved_where_nothing_is_written(tmp_path: Path) -> None:
    asked = job(tmp_path, "pretrain_llama3_70b.sh", 1, "gpipe")
    solved = solve_file(asked, outputs=Outputs(folder=tmp_path / "out", write=False))
    assert solved.problem.schedule.name == "gpipe" and solved.solution.status == "optimal"


@pytest.mark.slow
def test_a_script_is_given_the_interleaved_order_of_its_own_launcher(tmp_path: Path) -> None:
    asked = job(tmp_path, "pretrain_llama3_70b.sh", 2, "1f1b")
    solve_file(asked, outputs=Outputs(folder=tmp_path / "out"))
    written = read_config(asked.path)
    assert (written.schedule.name, written.strategy.vpp) == ("megatron-interleaved", 2)
