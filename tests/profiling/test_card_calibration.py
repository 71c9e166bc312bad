"""A device fitted to steps that were measured on a card, judged on a model whose layers have other shapes."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from benchmarks.card_runs import ONE_CARD, read_runs
from taylor.parsers.read import read_config
from taylor.workflows.measuring.calibrate import CalibrateOptions, calibrate_device
from taylor.workflows.statement.planned_step import planned_step_ms

RUNS = [run for run in read_runs()[1] if run.group == ONE_CARD]


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["0.6B", "1.7B", "4B"])
def test_two_models_tell_the_steps_of_a_third(flavour: str, tmp_path: Path) -> None:
    rows, left = ["file,step_ms"], []
    for run in RUNS:
        file = tmp_path / f"{run.name}.toml"
        file.write_text(run.toml(), encoding="utf-8")
        assert run.step_ms is not None
        if run.job["model.flavor"] == flavour:
            left.append((read_config(file), run.step_ms))
        else:
            rows.append(f"{file.name},{run.step_ms}")
    (tmp_path / "measured.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    device = calibrate_device(CalibrateOptions(tmp_path, device="h200-141g")).fit.device
    errors = [abs(planned_step_ms(config, device) / step_ms - 1) for config, step_ms in left]
    assert errors and median(errors) < 0.05 and max(errors) < 0.10
