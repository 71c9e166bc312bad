"""A file is planned for other ranks and another batch than it states, and stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import taylor as api
from taylor.base.errors import InputError
from taylor.command_lines import pipeline_parallel
from taylor.parsers.read import read_config
from taylor.workflows.statement.options import FileJob
from taylor.workflows.statement.restated_file import on_asked, restate
from taylor.workflows.statement.stated_file import StatedFile
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


OPEN = """#!/bin/bash
python pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 \\
    --max-position-embeddings 1024 --vocab-size 32000 --tensor-model-parallel-size 2 --micro-batch-size 1 \\
    --global-batch-size 64 --use-distributed-optimizer --bf16
"""


def test_ranks_that_a_file_leaves_open_are_named_and_no_copy_is_written(tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    file.write_text(OPEN)
    job = on_asked(FileJob(file), 16, None, tmp_path / "out")
    assert (job.path, job.world_size) == (file, 16) and not (tmp_path / "out").exists()
    stated = StatedFile.read(job)
    assert stated.config.strategy.dp == 8 and stated.config.strategy.global_batch == 64
    assert not any("assumed" in sentence for sentence in stated.config.notes)
    assert any("2 is assumed" in sentence for sentence in StatedFile.read(FileJob(file)).facts.assumptions)
    assert "2 ranks (assumed; --world_size names others)" in StatedFile.read(FileJob(file)).facts.strategy_line()


def test_open_ranks_and_another_batch_give_a_copy_that_is_planned_on_them(tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    file.write_text(OPEN)
    strategy = StatedFile.read(on_asked(FileJob(file), 16, 32, tmp_path / "out")).config.strategy
    assert (strategy.dp, strategy.global_batch, strategy.op) == (8, 32, 8)
    with pytest.raises(InputError, match="is no multiple of 2"):
        on_asked(FileJob(file), 7, None, tmp_path / "out")


def test_the_batch_follows_the_ranks_where_the_file_states_that_of_each(tmp_path: Path) -> None:
    for name, follows in zip(FILES, (True, False, True), strict=True):
        config = read_config(ROOT / "config" / name)
        ranks = 2 * config.strategy.world_size
        restated = read_config(restate(FileJob(config.path), ranks, None, tmp_path)).strategy
        assert restated.global_batch == (2 if follows else 1) * config.strategy.global_batch
        assert config.batch_on(ranks) == restated.global_batch


def test_a_search_on_other_ranks_takes_the_batch_of_torchtitan_on_them(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 2\nseq_len = 8192\n'
        "[parallelism]\ndata_parallel_shard_degree = -1\ntensor_parallel_degree = 2\n"
    )
    found = api.search(file, world_size=64, profile_num=2)
    assert found.config.strategy.world_size == 8 and found.config.strategy.global_batch == 8
    row = found.result.candidates.row(0)
    assert row.world_size == 64 and row.global_batch == 64
