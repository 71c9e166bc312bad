"""Nothing that was solved is lost to an output: what cannot be written is refused first, what fails later is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.pipeline.plan import PipelinePlan
from taylor.report import outputs as views
from taylor.workflows.running import kept_solves
from taylor.workflows.solving import solve_file
from taylor.workflows.statement import export
from taylor.workflows.statement.options import Export, FileJob, Outputs
from tests.conftest import ROOT


@pytest.fixture
def job(tmp_path: Path) -> FileJob:
    """A file of the repository, in a folder of its own."""
    path = tmp_path / "llama2.yaml"
    path.write_bytes((ROOT / "config" / "pretrain_llama2_7b.yaml").read_bytes())
    return FileJob(path, dryrun=False, check=False)


@pytest.mark.parametrize(
    ("field", "name", "flag"),
    [
        ("picture", "plan.jpg", "picture"),
        ("picture", "", "--png"),
        ("html", "", "--html"),
        ("trace", "a file/trace.json", "--trace"),
        ("result_json", "", "--result_json"),
        ("write_to", "", "-o"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_solved(
    job: FileJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, name: str, flag: str
) -> None:
    monkeypatch.setattr(kept_solves, "solve", lambda *_, **__: pytest.fail("it was solved"))
    (tmp_path / "a file").write_text("", encoding="utf-8")
    outputs = Outputs(folder=tmp_path / "out", **{field: tmp_path / name})  # type: ignore[arg-type]
    with pytest.raises(InputError) as caught:
        solve_file.solve_file(job, outputs=outputs)
    assert caught.value.field == flag


def test_an_export_that_cannot_say_the_plan_leaves_all_else_written(
    job: FileJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def say(plan: PipelinePlan, form: str, **_: object) -> str:
        if form == "mindformers" and sum(map(sum, plan.total_layers())) > 10:
            raise InputError("cannot say this plan", field="--export", value=form)
        return "said"

    monkeypatch.setattr(export, "export_plan", say)
    result = tmp_path / "result.json"
    outputs = Outputs(
        folder=tmp_path / "out",
        result_json=result,
        exports=[Export("mindformers", tmp_path / "one.txt"), Export("json", tmp_path / "two.txt")],
    )
    planned = solve_file.solve_file(job, outputs=outputs)
    assert "export mindformers is left out" in caplog.text
    assert read_config(job.path).plan == planned.plan
    files = json.loads(result.read_text(encoding="utf-8"))["files"]
    assert "export json" in files and "export mindformers" not in files
    assert (tmp_path / "two.txt").read_text(encoding="utf-8") == "said\n"


def test_a_page_that_fails_leaves_all_else_written(
    job: FileJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise InputError("no room", file="page.html")

    monkeypatch.setattr(views, "write_html_report", fail)
    result, trace = tmp_path / "result.json", tmp_path / "trace.json"
    outputs = Outputs(folder=tmp_path / "out", result_json=result, trace=trace, html=tmp_path / "page.html")
    planned = solve_file.solve_file(job, outputs=outputs)
    assert "html is left out" in caplog.text
    assert read_config(job.path).plan == planned.plan
    assert trace.exists()
    files = json.loads(result.read_text(encoding="utf-8"))["files"]
    assert {"config", "mps", "sol", "trace", "result"} <= set(files) and "html" not in files
