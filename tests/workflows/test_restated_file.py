"""A file is planned for other ranks and another batch than it states, and stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.command_lines import pipeline_parallel
from taylor.parsers.read import read_config
from taylor.workflows.options import FileJob
from taylor.workflows.restated_file import restate
from tests.conftest import ROOT

FILES = ["pretrain_deepseek3_128p.yaml", "pretrain_llama3_70b.sh", "pretrain_llama2_7b.yaml"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("times, batches", [(2, 2), (1, 2), (2, 4)])
def test_data_parallelism_and_micro_batches_follow_and_all_else_stays(
    tmp_path: Path, name: str, times: int, batches: int
) -> None:
    config = read_config(ROOT / "config" / name)
    own = config.strategy
    ranks, samples = times * own.world_size, batches * own.global_batch
    restated = read_config(restate(FileJob(config.path), ranks, samples, tmp_path))
    assert restated.strategy.world_size == ranks and restated.strategy.global_batch == samples
    same = ("tp", "pp", "ep", "cp", "vpp", "mbs", "sp")
    assert all(getattr(restated.strategy, one) == getattr(own, one) for one in same)
    assert restated.plan == config.plan and restated.model == config.model


@pytest.mark.parametrize("ranks, samples, field", [(100, None, "--world_size"), (None, 1001, "--gbs")])
def test_ranks_and_batches_that_cannot_be_dealt_out_are_refused(
    tmp_path: Path, ranks: int | None, samples: int | None, field: str
) -> None:
    with pytest.raises(InputError, match="is no multiple of") as refused:
        restate(FileJob(ROOT / "config" / FILES[0]), ranks, samples, tmp_path)
    assert refused.value.field == field and not list(tmp_path.iterdir())


def test_the_command_plans_the_copy_and_leaves_the_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "job.yaml"
    file.write_bytes((ROOT / "config" / FILES[2]).read_bytes())
    before, own = file.read_bytes(), read_config(file).strategy
    pipeline_parallel.run(["-yaml", "job.yaml", "-dryrun", "n", "-check", "n", "--world_size", str(2 * own.world_size)])
    assert file.read_bytes() == before and not list(tmp_path.glob("*.orig"))
    planned = read_config(tmp_path / "pipeline_output" / "jobs" / "job" / "job.yaml")
    assert planned.strategy.dp == 2 * own.dp and planned.plan is not None
    assert "pipeline_output/jobs/job/job.yaml" in capsys.readouterr().out
