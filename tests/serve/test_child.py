"""The process of one job of the page: what it writes while it works and at its end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from taylor.base.errors import InputError
from taylor.pipeline_solver.model.progress import Progress
from taylor.serve import child
from taylor.serve.question import Models, Question

ASK = Question(model="qwen2.5-7b", device="h100-80g", ranks=16, tp=2, pp=4, seq=4096, seconds=5.0)


@dataclass(frozen=True)
class Step:
    step_ms: float


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`child.main` without the limits that hold for the rest of its process."""
    monkeypatch.setattr(child, "end_with_parent", lambda parent: None)
    monkeypatch.setattr(child, "limit_memory", lambda most: None)
    monkeypatch.setattr(child.os, "nice", lambda more: 0)
    monkeypatch.setenv(child.PARENT, "1")
    monkeypatch.setattr("sys.argv", ["child", str(tmp_path)])

    def run(work) -> dict:
        monkeypatch.setattr(child, "work", work)
        assert child.main() == 0
        return json.loads((tmp_path / child.DONE).read_text(encoding="utf-8"))

    return run


def raises(error: BaseException):
    def work(folder: Path) -> dict:
        raise error

    return work


def test_the_answer_of_a_job_is_written_with_its_records_as_data(main, tmp_path):
    assert main(lambda folder: {"plan": Step(12.5), "in": folder.name}) == {
        "plan": {"step_ms": 12.5},
        "in": tmp_path.name,
    }


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InputError("is wrong", field="pp"), "pp: is wrong"),
        (MemoryError(), "needs more than 8 GiB of memory"),
        (KeyboardInterrupt(), child.STOPPED),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
    ids=["refused", "memory", "stopped", "fault"],
)
def test_a_job_that_fails_answers_with_its_reason(main, error, text):
    assert main(raises(error)) == {"error": text}


@pytest.mark.parametrize(
    ("progress", "step", "bound"),
    [(Progress(1.5, 40.0, 30.0, unit_ms=2.0), 80.0, 60.0), (Progress(1.5, None, 30.0, unit_ms=2.0), None, 60.0),
     (Progress(1.5, 40.0), 40.0, None)],
)  # fmt: skip
def test_the_progress_of_a_solve_is_written_in_milliseconds_where_their_unit_is_known(
    tmp_path, monkeypatch, progress, step, bound
):
    def solve(job, options, outputs, watch):
        watch(progress)
        raise InputError("enough")

    monkeypatch.setattr(child, "solve_file", solve)
    with pytest.raises(InputError, match="enough"):
        child._solve(tmp_path, ASK, Models(tmp_path / "models"), None)
    written = json.loads((tmp_path / child.PROGRESS).read_text(encoding="utf-8"))
    assert written == {"seconds": 1.5, "step": step, "bound": bound}
