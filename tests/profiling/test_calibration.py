"""A device is found again from times that it made, and a user's own table becomes a device file."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import calibrated_halves
from taylor.base.errors import InputError
from taylor.command_lines import calibrate as command
from taylor.cost_model.time.speed import ASSUMED_EFFICIENCY
from taylor.parsers.read import read_config
from taylor.profiling.calibration.figures import FIGURES, Figures
from taylor.profiling.calibration.fit import REGISTER, calibrate
from taylor.register.device import DeviceSpec
from taylor.register.device_file import device_text
from taylor.register.registry import Registry
from taylor.workflows.measuring.calibrate import CalibrateOptions, Run, calibrate_device, read_runs, step_measured
from tests.conftest import ROOT, SHARED

REGISTRY = Registry.load()
H100 = REGISTRY.device("h100-80g")
CONFIGS = [ROOT / "config" / f"pretrain_{name}" for name in ("llama3_70b.sh", "llama2_7b.yaml", "mixtral_8x7b.yaml")]
RUNS = SHARED / "data" / "measured_runs"
needs_runs = pytest.mark.skipif(not RUNS.is_dir(), reason="the measured runs are not here")


def known(shortfall: str) -> pytest.MarkDecorator:
    """Marks what does not hold yet; the mark must go when it does."""
    return pytest.mark.xfail(raises=AssertionError, strict=True, reason=shortfall)


def made_by(device: DeviceSpec, scale: float = 1.0) -> list:
    """Steps of shipped configurations as a device takes them."""
    runs = [step_measured(path.name, read_config(path), 1.0) for path in CONFIGS]
    return [replace(run, ms=scale * run.predict(device)) for run in runs]


def test_one_run_alone_moves_the_device_towards_it() -> None:
    (run, *others) = made_by(replace(H100, efficiency={**H100.efficiency, "matmul": 0.5, "memory": 0.7}))
    fit = calibrate([run], H100)
    assert abs(run.predict(fit.device) / run.ms - 1) < abs(run.predict(H100) / run.ms - 1) / 3
    for other in others:
        assert abs(other.predict(fit.device) / other.ms - 1) < abs(other.predict(H100) / other.ms - 1)
    assert any("little more than" in note for note in fit.notes)


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(st.floats(0.75, 1.3))
def test_a_machine_that_is_slower_or_faster_as_a_whole_is_found(scale: float) -> None:
    fit = calibrate(made_by(H100, scale), H100)
    assert fit.median_error("fitted") == pytest.approx(0.0, abs=0.04)


def test_what_the_runs_do_not_tell_stays_and_is_said() -> None:
    fit = calibrate(made_by(H100, 1.1), H100)
    from_runs = {one.name: one.from_runs for one in fit.figures}
    assert from_runs["GEMMs"]
    assert not from_runs["overhead of a step, ms"]


def test_a_run_that_contradicts_the_others_is_named() -> None:
    runs = made_by(H100) * 3
    odd = replace(runs[0], name="the odd one", ms=1.6 * runs[0].ms)
    fit = calibrate([*runs, odd], H100)
    assert [run.name for run in fit.runs if run.contradicts] == ["the odd one"]
    assert any("the odd one contradicts" in note for note in fit.notes)
    assert any("same job" in note and "the odd one" in note for note in fit.notes)


@given(st.lists(st.floats(-3, 3), min_size=1 + len(FIGURES), max_size=1 + len(FIGURES)))
def test_every_point_makes_a_device_that_reads_back(tmp_path_factory: pytest.TempPathFactory, entries: list) -> None:
    figures = Figures(H100)
    least, largest = figures.bounds()
    device = replace(figures.at(np.clip(np.array(entries), least, largest)), stack="a stack: of «software»")
    path = tmp_path_factory.mktemp("device") / "card.yaml"
    path.write_text(device_text(device, ["what it is"]), encoding="utf-8")
    read = REGISTRY.device(str(path))
    assert replace(read, efficiency={}) == replace(device, efficiency={})
    for name in ASSUMED_EFFICIENCY:
        assert read.efficiency.get(name, 0.0) == pytest.approx(device.efficiency[name], rel=1e-4)


def test_every_registered_device_reads_back_from_its_text(tmp_path: Path) -> None:
    for name in REGISTRY.device_names():
        device = REGISTRY.device(name)
        path = tmp_path / f"{name}.yaml"
        path.write_text(device_text(device), encoding="utf-8")
        assert REGISTRY.device(str(path)) == device


def test_every_registered_device_that_was_fitted_names_its_stack() -> None:
    for name in REGISTRY.device_names():
        device = REGISTRY.device(name)
        assert device.stack or set(device.efficiency) <= {"matmul"}, name


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A user's own folder: three configurations and what their steps took."""
    lines = ["file,step_ms,peak_mib"]
    for run, path in zip(made_by(H100, 1.2), CONFIGS, strict=True):
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        lines.append(f"{path.name},{run.ms:.3f},")
    (tmp_path / "measured.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_user_calibrates_a_device_and_plans_with_its_file(
    table: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = table / "mine.yaml"
    command.run([str(table), "--device", "h100-80g", "-o", str(card), "--stack", "Megatron-LM 0.12", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == str(card)
    assert REGISTRY.device(str(card)).stack == "Megatron-LM 0.12"
    import taylor

    step = taylor.evaluate(CONFIGS[0], device=str(card)).step_ms
    assert step == pytest.approx(1.2 * taylor.evaluate(CONFIGS[0], device="h100-80g").step_ms, rel=0.05)
    command.run([str(table), "--device", str(card)])
    assert "measurements" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file\na.yaml\n", "step_ms: lacks a column"),
        ("file,step_ms\na.yaml,-3\n", "line 2, step_ms: must be a number > 0"),
        ("file,step_ms\na.yaml,nan\n", "line 2, step_ms: must be a number > 0"),
        ("file,step_ms\n,3\n", "line 2, file: names no configuration"),
        ("file,step_ms\nmissing.yaml,3\n", "has no run with a step time that can be predicted"),
        ("file,step_ms,device\na.yaml,3,h100-80g\nb.yaml,3,a100-80g\n", "has runs on several devices"),
        ("file,step_ms,device\na.yaml,3,h100-8000g\n", "no device of that name"),
    ],
)
def test_a_bad_table_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "measured.csv").write_text(text, encoding="utf-8")
    device = None if "device" in text else "h100-80g"
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        calibrate_device(CalibrateOptions(tmp_path, device=device))


def test_a_device_file_that_is_missing_or_wrong_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--device: no such file"):
        REGISTRY.device(str(tmp_path / "none.yaml"))
    path = tmp_path / "bad.yaml"
    path.write_text(device_text(H100).replace("81559", "many"), encoding="utf-8")
    with pytest.raises(InputError, match="memory_mib"):
        REGISTRY.device(str(path))


@given(st.text(max_size=200))
def test_any_text_is_a_table_or_a_named_error(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("table") / "runs.csv"
    path.write_text("file,step_ms\n" + text, encoding="utf-8", errors="replace")
    try:
        assert all(isinstance(run, Run) for run in read_runs(path))
    except InputError as error:
        assert str(path) in str(error)


@cache
def judged_halves(name: str) -> list[calibrated_halves.Half]:
    """Both halves of a set, each told by the other."""
    (one,) = calibrated_halves.measured_sets(RUNS, [name])
    return [calibrated_halves.judge(one, first) for first in (0, 1)]


@pytest.mark.slow
@needs_runs
@pytest.mark.parametrize(("name", "most"), [("papers-zero", 0.052), ("papers-megatron-lm", 0.05), ("nemo-moe", 0.05)])
def test_a_half_of_measured_runs_predicts_the_other_within_5_percent(name: str, most: float) -> None:
    for half in judged_halves(name):
        assert half.moved != REGISTER
        assert half.median_after <= most


@pytest.mark.slow
@needs_runs
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("papers-zero", marks=known("three runs tell the others 4.8 % off, the registered A100 4.1 %")),
        "papers-megatron-lm",
        "nemo-moe",
    ],
)
def test_a_half_of_measured_runs_tells_the_other_better_than_the_register(name: str) -> None:
    # Nothing is left to learn where the registered device is within the noise of repeated runs: nemo-moe's halves
    # are told 0.9 and 0.7 % off by it.
    for half in judged_halves(name):
        assert half.median_after < max(half.median_before, 0.02)


@pytest.mark.slow
@needs_runs
@known("the run of 6.2B tells the others 6.5 % off, the registered A100 4.2 %")
def test_any_one_run_of_the_zero_bubble_paper_is_better_than_none() -> None:
    (one,) = calibrated_halves.measured_sets(RUNS, ["papers-zero"])
    assert all(after < before for _, before, after in calibrated_halves.singles(one))
