"""Nothing that was solved is lost to an output: what cannot be written is refused first, what fails later is told."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from taylor.base.console import run_command
from taylor.base.errors import EXIT_BAD_INPUT, EXIT_DONE, InputError, WriteError
from taylor.base.files import write_atomic
from taylor.base.isolated import module_command
from taylor.command_lines import pipeline_parallel
from taylor.parsers.read import read_config
from taylor.pipeline.plan import PipelinePlan
from taylor.report import outputs as views
from taylor.workflows.measuring.history import FILE
from taylor.workflows.running import kept_solves
from taylor.workflows.showing.planned_outputs import refuse_unwritten, write_or_note
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
    assert planned.unwritten == ("export mindformers",)
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
    assert planned.unwritten == (f"html ({tmp_path / 'page.html'})",)


def without_rights(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of `taylor` without the right to write into folders that are closed, whoever runs the tests."""
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner"] if os.getuid() == 0 else []
    return subprocess.run(
        [*drop, *module_command("taylor", *words)], cwd=folder, text=True, capture_output=True, timeout=300
    )


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder in which nothing can be written."""
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("nobody can give up the rights of the superuser here")
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o555)
    yield folder
    folder.chmod(0o755)


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_costs_no_plan(closed: Path, tmp_path: Path) -> None:
    shown = ["--model", "llama3-8b", "--device", "h100-80g", "--world_size", "8", "-t", "10"]
    done = without_rights("solve", *shown, "-o", str(tmp_path / "run.sh"), folder=closed)
    assert done.returncode == 0, done.stderr
    assert "verdict" in done.stdout and "mps" not in done.stdout
    assert "pipeline_output cannot be written (Permission denied)" in done.stderr
    assert read_config(tmp_path / "run.sh").plan is not None
    assert not any(closed.iterdir())


CONFIG = ROOT / "config"
ANSWERS = {
    "why-memory": ("why-memory", str(CONFIG / "pretrain_llama2_7b.yaml")),
    "lengths": ("lengths", str(CONFIG / "finetune_llama3_70b_lora.sh"), "--lengths",
                str(CONFIG / "sample_lengths.csv")),
    "rl": ("rl", str(CONFIG / "rl_qwen3_8b_verl.sh"), "--generation", "tokens_per_s=6000,alone=80",
           "--mean_prompt", "200", "--mean_answer", "1500"),
    "timeline": ("timeline", "--log_dir", str(ROOT / "log")),
    "layerwise": ("layerwise", "--costs", "estimate", "--model", "llama2-7b", "--device", "h100-80g", "--world_size",
                  "8", "--seq", "4096", "--gbs", "16", "--micro_batches", "4"),
    "evaluate": ("solve", str(CONFIG / "pretrain_llama2_7b.yaml"), "-evaluate", "y", "-dryrun", "n", "-check", "n"),
}  # fmt: skip
"""Commands whose answer is what they print, each with words of it."""


@pytest.mark.slow
@pytest.mark.parametrize("command", ANSWERS)
def test_a_command_prints_its_answer_where_nothing_can_be_written(closed: Path, tmp_path: Path, command: str) -> None:
    printed = {}
    for folder in (closed, tmp_path):
        done = without_rights(*ANSWERS[command], folder=folder)
        assert done.returncode == 0, done.stderr
        printed[folder] = [line for line in done.stdout.splitlines() if "written" not in line and ".json" not in line]
    assert printed[closed] and not any(closed.iterdir())
    assert len(printed[closed]) == len(printed[tmp_path])


def test_a_folder_that_the_user_named_must_be_writable(closed: Path) -> None:
    config = str(ROOT / "config" / "pretrain_llama2_7b.yaml")
    done = without_rights("solve", "-yaml", config, "--output_path", "out", folder=closed)
    assert done.returncode == EXIT_BAD_INPUT and "--output_path: cannot be written" in done.stderr


def test_the_folder_of_a_command_takes_all_that_it_writes_unasked(
    job: FileJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    words = ["-yaml", str(job.path), "-write", "n", "-t", "10", "--output_path", "mine"]
    assert run_command(lambda: pipeline_parallel.run(words)) == EXIT_DONE
    assert set(tmp_path.iterdir()) - before == {tmp_path / "mine"}
    assert {one.name for one in (tmp_path / "mine").iterdir()} >= {"model_mps", "sol_output", "solved", FILE}


def test_a_model_file_that_fails_costs_no_plan(
    job: FileJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> bool:
        raise WriteError("no room", file="model.mps")

    monkeypatch.setattr(solve_file, "write_model", fail)
    planned = solve_file.solve_file(job, outputs=Outputs(folder=tmp_path / "out"))
    assert "no model file" in caplog.text and planned.unwritten == ()
    assert set(planned.files) == {"config"} and read_config(job.path).plan == planned.plan


@pytest.mark.parametrize(
    ("flag", "module", "function"),
    [
        ("--html", "taylor.report.outputs", "write_html_report"),
        ("--trace", "taylor.report.outputs", "write_chrome_trace"),
        ("--png", "taylor.report.outputs", "write_picture"),
        ("--result_json", "taylor.workflows.showing.planned_outputs", "write_document"),
        ("-o", "taylor.workflows.solving.solve_file", "write_plan"),
    ],
)
def test_a_requested_file_that_is_missing_is_no_success(
    job: FileJob,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    module: str,
    function: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise WriteError("no room", file="target")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.import_module(module), function, fail)
    target = str(tmp_path / {"--png": "plan.png", "-o": "new.yaml"}.get(flag, "target"))
    words = ["-yaml", str(job.path), "-t", "10", flag, target]
    assert run_command(lambda: pipeline_parallel.run(words)) == EXIT_BAD_INPUT
    shown = capsys.readouterr()
    assert "verdict" in shown.out and f"({target})" in shown.err.splitlines()[-1]
    assert target not in shown.out


def test_a_requested_file_with_a_name_beyond_reading_is_named_by_its_beginning(tmp_path):
    failed = []
    name = "9" * 5000
    write_or_note("report", tmp_path / name, partial(write_atomic, tmp_path / name, ""), failed)
    with pytest.raises(WriteError, match=r"requested and not written: report \(.*9\.\.\.\)") as refused:
        refuse_unwritten(failed)
    assert len(str(refused.value)) < 500
