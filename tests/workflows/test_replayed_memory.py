"""The memory of one file from the logs of earlier dry-runs of its own plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from tests.conftest import ROOT

FILE = ROOT / "config" / "pretrain_deepseek3_128p.yaml"
PEAK = "Used peak memory usage (without fragments): {:.0f}M\n"


def logs_of(folder: Path, more_mib: dict[int, float]) -> tuple[float, ...]:
    """Logs in which some stages need so much more than estimated; returns the estimated peaks."""
    peaks = evaluate_file(FileJob(FILE, dryrun=False, check=False)).solution.peak_memory_mib
    strategy = read_config(FILE).strategy
    for stage, more in more_mib.items():
        log = folder / f"rank_{stage * (strategy.world_size // strategy.pp)}.log"
        log.write_text(PEAK.format(peaks[stage] + more), encoding="utf-8")
    return peaks


def test_the_file_s_own_plan_has_the_peaks_of_its_logs(tmp_path: Path) -> None:
    last = read_config(FILE).strategy.pp - 1
    more = {0: 1500.0, 1: 500.0, 2: 900.0, last: -700.0}
    peaks = logs_of(tmp_path, more)
    own = evaluate_file(FileJob(FILE, dryrun=False, check=False, dryrun_data=tmp_path))
    told = own.solution.peak_memory_mib
    for stage in (0, 2, last):
        assert told[stage] == pytest.approx(peaks[stage] + more[stage], abs=1.0)
    assert told[1] == pytest.approx(peaks[1] + 900.0, abs=1.0)  # of the middle stages the heavier decides
    assert own.memory.source == "replay"


def test_a_solve_keeps_below_the_limit_by_what_the_logs_tell(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    logs_of(tmp_path / "logs", dict.fromkeys(range(read_config(FILE).strategy.pp), 8000.0))
    outputs = Outputs(folder=tmp_path / "out", write=False)
    free, held = (
        solve_file(FileJob(FILE, dryrun=False, check=False, dryrun_data=data), outputs=outputs)
        for data in (None, tmp_path / "logs")
    )
    assert free.solution.objective is not None and held.solution.objective is not None
    assert held.solution.objective > free.solution.objective


def test_a_folder_without_a_log_of_this_strategy_is_refused(tmp_path: Path) -> None:
    (tmp_path / "DP1_TP1_PP1_EP1").mkdir()
    (tmp_path / "DP1_TP1_PP1_EP1" / "rank_0.log").write_text(PEAK.format(100), encoding="utf-8")
    with pytest.raises(InputError, match="has no peak of this configuration's strategy: no log of DP8_TP2") as refused:
        evaluate_file(FileJob(FILE, dryrun=False, check=False, dryrun_data=tmp_path))
    assert refused.value.field == "-dryrun_data_dir"
