"""The sweep over the training files of checkouts: what counts as read, and which reasons are one."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import file_sweep
from benchmarks.file_sweep import READ, REFUSED, TRACEBACK, files_of, main, reading_of, table
from tests.parsers.primus.files import MERGED


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "Jobs"
    (root / "deep").mkdir(parents=True)
    (root / "good.yaml").write_text(MERGED)
    for number in (3, 5):
        text = MERGED.replace("micro_batch_size: 1", f"micro_batch_size: {number}")
        (root / "deep" / f"bad{number}.yaml").write_text(text)
    (root / "deep" / "notes.txt").write_text("none of a launcher's")
    return root


def test_files_without_patterns_are_those_with_a_launchers_suffix(checkout: Path) -> None:
    assert [path.name for path in files_of(checkout, [])] == ["bad3.yaml", "bad5.yaml", "good.yaml"]
    assert [path.name for path in files_of(checkout, ["*.yaml", "good.*"])] == ["good.yaml"]


def test_a_file_is_read_or_refused_with_its_reason(checkout: Path) -> None:
    good, bad = (reading_of(checkout, checkout / name) for name in ("good.yaml", "deep/bad3.yaml"))
    assert (good.outcome, good.launcher, good.reason) == (READ, "primus", "")
    assert bad.outcome == REFUSED and "must be a multiple" in bad.reason and str(checkout) not in bad.reason


def test_reasons_that_differ_in_a_number_are_one(checkout: Path) -> None:
    readings = [reading_of(checkout, path) for path in files_of(checkout, [])]
    assert len({each.distinct for each in readings if each.outcome == REFUSED}) == 1
    text = table(readings)
    assert "| Jobs | 3 | 1 (33.3%) | 2 | 0 |" in text and "| 2 | " in text and "1 distinct reasons." in text


def test_an_error_of_ours_is_counted_as_a_traceback(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> None:
        raise KeyError(path.name)

    monkeypatch.setattr(file_sweep, "read_config", broken)
    reading = reading_of(checkout, checkout / "good.yaml")
    assert reading.outcome == TRACEBACK and "KeyError" in reading.reason
    assert main([str(checkout)]) == 1


def test_the_report_has_a_row_a_file(checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "out.csv"
    assert main([f"{checkout}=**/*.yaml", "--report", str(report)]) == 0
    rows = list(csv.DictReader(report.open(encoding="utf-8")))
    assert [(row["file"], row["outcome"]) for row in rows] == [
        ("deep/bad3.yaml", "refused"), ("deep/bad5.yaml", "refused"), ("good.yaml", "read"),
    ]  # fmt: skip
    assert "| Jobs | 3 |" in capsys.readouterr().out
