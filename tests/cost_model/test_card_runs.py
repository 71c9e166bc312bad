"""Peaks that torchtitan's own steps had on an H200 (`benchmarks/card_runs.yaml`), beside what is told of them."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from benchmarks import card_runs
from benchmarks.card_runs import FSDP, CardRun, dry_run, predicted_peak, predicted_reserved, read_runs

RUNS = [run for run in read_runs()[1] if run.active_mib is not None]
COMPILED = "compile.enable"
SHARDED = [run for run in RUNS if run.group == FSDP and COMPILED not in run.job]
ALONE = [run for run in RUNS if run.group != FSDP]


def test_the_runs_are_of_every_kind_of_job() -> None:
    jobs = [run.job for run in SHARDED]
    for degree in ("tensor", "pipeline", "context", "expert"):
        assert any(int(job.get(f"parallelism.{degree}_parallel_degree", 1)) > 1 for job in jobs), degree
    assert {job["activation_checkpoint.mode"] for job in jobs} == {"none", "selective", "full"}
    assert len(SHARDED) >= 25 and {run.stage for run in SHARDED} > {0, 1}


@pytest.mark.slow
@pytest.mark.parametrize("run", SHARDED, ids=lambda run: run.name)
def test_a_sharded_job_has_the_peak_that_is_told(run: CardRun, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    config, closed = predicted_peak(run, tmp_path)
    assert closed == pytest.approx(run.active_mib, rel=0.05)
    assert dry_run(run, config) == pytest.approx(run.active_mib, rel=0.03)


@pytest.mark.parametrize("run", ALONE, ids=lambda run: run.name)
def test_one_card_s_peak_under_autocast_is_the_one_that_is_told(run: CardRun, tmp_path: Path) -> None:
    _, closed = predicted_peak(run, tmp_path)
    assert run.active_mib is not None
    assert closed == pytest.approx(run.active_mib, rel=0.02)


def test_a_compiled_job_s_peak_is_the_one_that_is_told(tmp_path: Path) -> None:
    [run] = [run for run in RUNS if COMPILED in run.job]
    _, closed = predicted_peak(run, tmp_path)
    assert run.active_mib is not None
    assert closed == pytest.approx(run.active_mib, rel=0.01)


def test_what_the_allocator_reserves_is_predicted_for_every_sharded_job(tmp_path: Path) -> None:
    """Four in five within 5 %: what is missed most is memory that the loss finds in the forward's (`reserved`)."""
    errors = []
    for run in RUNS:
        if run.group == FSDP:
            reserved = predicted_reserved(run, tmp_path)
            assert reserved is not None and run.reserved_mib is not None and run.active_mib is not None
            assert reserved > predicted_peak(run, tmp_path)[1]
            errors.append(abs(reserved / run.reserved_mib - 1))
    assert len(errors) >= 25 and max(errors) < 0.105
    assert median(errors) < 0.04


def test_no_reserved_memory_is_predicted_where_nothing_is_sharded(tmp_path: Path) -> None:
    [one, *_] = ALONE
    assert predicted_reserved(one, tmp_path) is None


def test_one_card_is_said_to_compute_under_autocast(tmp_path: Path) -> None:
    one = next(run for run in RUNS if run.group != FSDP)
    assert any("autocast" in note for note in predicted_peak(one, tmp_path)[0].notes)
    assert not any("autocast" in note for note in predicted_peak(SHARDED[0], tmp_path)[0].notes)


def test_runs_are_written_as_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured_on, runs = read_runs()
    monkeypatch.setattr(card_runs, "FILE", tmp_path / "card_runs.yaml")
    card_runs.write_runs(measured_on, runs)
    assert read_runs() == (measured_on, runs)


def test_the_rank_of_a_stage_is_its_first() -> None:
    run = CardRun("x", {"parallelism.pipeline_parallel_degree": 4}, world=16, stage=3)
    assert run.rank == 12 and run.toml() == "[parallelism]\npipeline_parallel_degree = 4\n"
