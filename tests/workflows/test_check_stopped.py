"""A check by dry-runs that ends before its time keeps the plan; a stage without a peak needs a measured twin."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from taylor.base.errors import EXIT_INTERRUPTED, EXIT_OUTSIDE_PROGRAM, InterruptedSolve, OutsideProgramError
from taylor.dryrun.estimate import EstimateBackend
from taylor.dryrun.interface import DryRun, DryRunResult, StagePeak
from taylor.parsers.read import read_config
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.stated_file import StatedFile
from tests.conftest import ROOT


class Crashing(EstimateBackend):
    """The closed forms, with some stages that crash; None: Ctrl-C comes while they run."""

    def __init__(self, crash: Sequence[int] | None) -> None:
        self.crash = crash

    def measure(self, runs: Sequence[DryRun]) -> list[DryRunResult]:
        if (crash := self.crash) is None:
            raise KeyboardInterrupt
        return [
            replace(
                result,
                stages=tuple(
                    StagePeak(peak.stage, None, "estimate", failure="crashed") if peak.stage in crash else peak
                    for peak in result.stages
                ),
            )
            for result in super().measure(runs)
        ]


@pytest.fixture
def job(tmp_path: Path) -> FileJob:
    """The 7B example on four stages, evenly split."""
    text = (ROOT / "config" / "pretrain_llama2_7b.yaml").read_text(encoding="utf-8")
    path = tmp_path / "job.yaml"
    text = text.replace("pipeline_stage: 2", "pipeline_stage: 4").replace("offset: [0, 0]", "offset: [0, 0, 0, 0]")
    path.write_text(text, encoding="utf-8")
    return FileJob(path, dryrun=False)


def checked_by(monkeypatch: pytest.MonkeyPatch, crash: Sequence[int] | None) -> None:
    monkeypatch.setattr(StatedFile, "open_backend", lambda self, folder: nullcontext(Crashing(crash)))


@pytest.mark.parametrize(
    ("crash", "error", "code", "says"),
    [
        (None, InterruptedSolve, EXIT_INTERRUPTED, "no dry-run has checked it to the end"),
        (range(8), OutsideProgramError, EXIT_OUTSIDE_PROGRAM, "none of 4 dry-runs of the plan gave a peak"),
        ([0], OutsideProgramError, EXIT_OUTSIDE_PROGRAM, "passes on 3 of 4 stages, but stage 0 gave no peak"),
    ],
)
def test_the_plan_of_a_check_that_cannot_end_is_kept_and_the_file_stays(
    job: FileJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    crash: Sequence[int] | None, error: type[Exception], code: int, says: str,
) -> None:  # fmt: skip
    checked_by(monkeypatch, crash)
    before = job.path.read_bytes()
    with pytest.raises(error, match=says) as stopped:
        solve_file(job, outputs=Outputs(folder=tmp_path / "out", result_json=tmp_path / "result.json"))
    assert stopped.value.exit_code == code  # type: ignore[attr-defined]
    assert job.path.read_bytes() == before and not (tmp_path / "result.json").exists()
    copy = tmp_path / "out" / "interrupted" / "job-so-far.yaml"
    assert str(copy) in str(stopped.value)
    told = json.loads(copy.with_name("job.json").read_text())
    plan = read_config(copy).plan
    assert plan is not None and told["status"] == "optimal"
    assert {kind: [list(row) for row in grid] for kind, grid in plan.layers.items()} == told["layers"]


def test_a_stage_without_a_peak_holds_as_one_of_the_same_layers_that_needs_as_much(
    job: FileJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Stages 1 and 2 of the file's even plan are alike, and under 1F1B the earlier one keeps more alive."""
    outputs = Outputs(folder=tmp_path / "out")
    checked_by(monkeypatch, [2])
    with caplog.at_level("INFO"):
        evaluate_file(job, outputs)
    assert any(
        "passes on 3 of 4 stages; stage 2 gave no peak, and a measured stage" in each.getMessage()
        for each in caplog.records
    )
    checked_by(monkeypatch, [1])
    with pytest.raises(OutsideProgramError, match="passes on 3 of 4 stages, but stage 1 gave no peak"):
        evaluate_file(job, outputs)
