"""A table of measured peaks corrects the memory part of a device's file, and plans on it have the corrected peaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import taylor
from taylor.base.errors import InputError
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.memory.workspaces import allocated_mib
from taylor.parsers.read import read_config
from taylor.register.device_file import device_text
from taylor.register.registry import Registry
from taylor.workflows.measuring.calibrate import CalibrateOptions, calibrate_device
from taylor.workflows.measuring.measured_peaks import fit_memory_part, read_peaks
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.why_memory import why_memory
from taylor.workflows.statement.options import FileJob
from tests.parsers.megatron.test_scripts import BASE, script_of

H100 = Registry.load().device("h100-80g")
JOBS = {
    "small": BASE,
    "wide": BASE.replace("micro-batch-size 1", "micro-batch-size 4"),
    "long": BASE.replace("seq-length 2048", "seq-length 8192").replace("embeddings 2048", "embeddings 8192"),
}


def peaks_table(folder: Path, extra: float, factor: float) -> Path:
    """Table of peaks of runs in which every stage needs so much more, and keeps that many times the activations."""
    lines = ["file,stage,peak_mib"]
    for name, flags in JOBS.items():
        path = script_of(folder, flags).rename(folder / f"{name}.sh")
        config = read_config(path)
        assert config.plan is not None
        stages = stage_breakdown(config.model, config.strategy, config.rules, config.plan, config.schedule)
        for number, (stage, shown) in enumerate(zip(stages, why_memory(FileJob(path)).stages, strict=True)):
            assert stage.total == pytest.approx(shown.peak_mib)
            kept = sum(mib for part, mib in shown.parts.items() if part.startswith("activations"))
            allocated = allocated_mib(stage, config.model, config.rules, H100) + extra + (factor - 1) * kept
            lines.append(f"{name}.sh,{number},{allocated:.2f}")
    table = folder / "peaks.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return table


@pytest.mark.parametrize(("extra", "factor"), [(900.0, 1.0), (-120.0, 1.0), (400.0, 1.15), (0.0, 0.9)])
def test_the_memory_part_of_the_runs_is_found_again(tmp_path: Path, extra: float, factor: float) -> None:
    fit = fit_memory_part(peaks_table(tmp_path, extra, factor), H100)
    assert fit.extra_mib == pytest.approx(extra, abs=0.2) and fit.kept_factor == pytest.approx(factor, abs=1e-3)
    assert max(map(abs, fit.after)) < 1e-4


def test_plans_on_the_device_s_file_have_the_measured_peaks(tmp_path: Path) -> None:
    fit = fit_memory_part(peaks_table(tmp_path, 400.0, 1.15), H100)
    card = tmp_path / "mine.yaml"
    card.write_text(device_text(replace(fit.on(H100), name="mine")), encoding="utf-8")
    path = tmp_path / "long.sh"
    before, after = (evaluate_file(FileJob(path, device=one, dryrun=False)) for one in ("h100-80g", str(card)))
    kept = [sum(kept.mib for kept in one.kept) for one in why_memory(FileJob(path)).stages]
    expected = [p + 400.0 + 0.15 * k for p, k in zip(before.solution.peak_memory_mib, kept, strict=True)]
    assert after.solution.peak_memory_mib == pytest.approx(expected, abs=0.3)
    explained = why_memory(FileJob(path, device=str(card)))
    assert [one.peak_mib for one in explained.stages] == pytest.approx(expected, abs=0.3)


def test_calibrate_writes_the_memory_part_beside_the_speeds(tmp_path: Path) -> None:
    peaks_table(tmp_path, 900.0, 1.0)
    step = taylor.evaluate(tmp_path / "small.sh", device="h100-80g").step_ms
    (tmp_path / "measured.csv").write_text(f"file,step_ms\nsmall.sh,{step}\n", encoding="utf-8")
    done = calibrate_device(CalibrateOptions(tmp_path, device="h100-80g", output=tmp_path / "mine.yaml"))
    assert done.memory is not None and "12 measured peaks" in done.memory.sentence
    device = Registry.load().device(str(tmp_path / "mine.yaml"))
    assert device.memory_extra_mib == pytest.approx(900.0, abs=0.2) and device.kept_factor == 1.0
    assert "# Memory: 12 measured peaks" in (tmp_path / "mine.yaml").read_text(encoding="utf-8")


def test_one_peak_changes_no_device(tmp_path: Path) -> None:
    table = peaks_table(tmp_path, 900.0, 1.0)
    table.write_text("\n".join(table.read_text(encoding="utf-8").splitlines()[:2]) + "\n", encoding="utf-8")
    fit = fit_memory_part(table, H100)
    assert fit.on(H100) == H100 and "--measured_peak" in fit.sentence


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,peak_mib\na.sh,3\n", "stage: lacks a column"),
        ("file,stage,peak_mib\na.sh,x,3\n", "line 2, stage: must be an integer >= 0"),
        ("file,stage,peak_mib\na.sh,-1,3\n", "line 2, stage: must be an integer >= 0"),
        ("file,stage,peak_mib\na.sh,0,-3\n", "line 2, peak_mib: must be a number > 0"),
        ("file,stage,peak_mib\na.sh,0,nan\n", "line 2, peak_mib: must be a number > 0"),
        ("file,stage,peak_mib\n,0,3\n", "line 2, file: names no configuration"),
        ("file,stage,peak_mib\n", "has no peak"),
    ],
)
def test_a_bad_table_of_peaks_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "peaks.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_peaks(tmp_path / "peaks.csv")


def test_a_stage_that_does_not_exist_is_refused_and_a_missing_file_is_left_out(tmp_path: Path) -> None:
    script_of(tmp_path, BASE).rename(tmp_path / "small.sh")
    table = tmp_path / "peaks.csv"
    table.write_text("file,stage,peak_mib\nsmall.sh,4,3000\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 2, stage: names no stage of 4.*0 to 3"):
        fit_memory_part(table, H100)
    table.write_text("file,stage,peak_mib\nmissing.sh,0,3000\n", encoding="utf-8")
    with pytest.raises(InputError, match="has no peak that can be predicted"):
        fit_memory_part(table, H100)
