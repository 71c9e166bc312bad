"""A file that leaves its world size to the launch is read on the least one that starts, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.torchtitan.ranks import SCRIPT

MOE = (
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
    "--vocab-size 32000 --num-experts 16 --moe-ffn-hidden-size 512 --use-distributed-optimizer --sequence-parallel "
    "--micro-batch-size 1 --bf16"
)
DEEPSEEK = """system:
  tensor_model_parallel_size: 1
  pipeline_model_parallel_size: 2
  expert_model_parallel_size: 4
  use_distributed_optimizer: true
  precision:
    bf16: true
model:
  num_layers: 8
  hidden_size: 1024
  num_attention_heads: 8
  seq_length: 1024
  max_position_embeddings: 1024
  num_experts: 16
  moe_ffn_hidden_size: 512
  micro_batch_size: 1
  global_batch_size: 64
data:
  vocab_size: 32000
"""
TITAN = """[model]
name = "deepseek_v3"
flavor = "16B"
[training]
local_batch_size = 4
seq_len = 4096
[parallelism]
"""
LAUNCH = 'NGPU=${NGPU:-"%s"}\ntorchrun --nproc_per_node=${NGPU} --rdzv_backend c10d -m torchtitan.train "$@"\n'


def script(folder: Path, start: str, flags: str) -> Path:
    path = folder / "job.sh"
    path.write_text(f"#!/bin/bash\n{start} pretrain_gpt.py {MOE} {flags}\n")
    return path


def titan(folder: Path, parallelism: str, training: str = "") -> Path:
    path = folder / "job.toml"
    path.write_text(TITAN.replace("[parallelism]", f"{training}[parallelism]") + parallelism)
    return path


@pytest.mark.parametrize(
    ("start", "flags", "world", "dp"),
    [
        ("python", "--expert-model-parallel-size 8", 8, 8),
        ("python", "--expert-model-parallel-size 4 --pipeline-model-parallel-size 2", 8, 4),
        ("python", "--tensor-model-parallel-size 2 --expert-model-parallel-size 4", 8, 4),
        ("python", "--tensor-model-parallel-size 2 --expert-model-parallel-size 4 --expert-tensor-parallel-size 1",
         4, 2),
        ("python", "--num-distributed-optimizer-instances 2", 2, 2),
        ("torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES", "--tensor-model-parallel-size 2", 8, 4),
        ("torchrun --nproc_per_node 8 --nnodes $SLURM_NNODES", "--pipeline-model-parallel-size 3", 24, 8),
        ("torchrun --nproc_per_node 8 --nnodes ${N:-1}",
         "--expert-model-parallel-size 8 --pipeline-model-parallel-size 4", 32, 8),
    ],
)  # fmt: skip
def test_megatron_flags_get_the_least_world_size_that_starts(
    start: str, flags: str, world: int, dp: int, tmp_path: Path
) -> None:
    config = read_config(script(tmp_path, start, flags))
    assert (config.strategy.world_size, config.strategy.dp, config.misfits) == (world, dp, ())
    assert config.open_ranks is not None and config.open_ranks.note in config.notes
    assert f"{world} is assumed" in config.open_ranks.note


def test_a_default_that_starts_is_kept_and_named(tmp_path: Path) -> None:
    config = read_config(script(tmp_path, "torchrun --nproc_per_node 8 --nnodes ${N:-2}", ""))
    assert config.strategy.world_size == 16 and config.open_ranks is not None
    assert any("world size of 16 is assumed" in note for note in config.notes)


def test_stated_ranks_are_not_open_and_nothing_is_assumed(tmp_path: Path) -> None:
    config = read_config(script(tmp_path, "torchrun --nproc_per_node 8 --nnodes 2", ""))
    assert config.strategy.world_size == 16 and config.open_ranks is None and config.notes == ()


@pytest.mark.parametrize(
    ("flags", "rule", "near"),
    [
        ("--tensor-model-parallel-size 3", "world-size", "start 6 or 9 ranks"),
        ("--tensor-model-parallel-size 8 --pipeline-model-parallel-size 8", "world-size", "start 64 ranks"),
        ("--expert-model-parallel-size 8 --pipeline-model-parallel-size 2 --expert-tensor-parallel-size 1",
         "ep-in-dp-tp-cp", "start 16 ranks"),
        ("--tensor-model-parallel-size 2 --expert-model-parallel-size 8", "ep-in-dp-cp", "start 16 ranks"),
    ],
)  # fmt: skip
def test_stated_ranks_that_do_not_start_break_a_rule_with_its_source(
    flags: str, rule: str, near: str, tmp_path: Path
) -> None:
    (misfit,) = read_config(script(tmp_path, "torchrun --nproc_per_node 8 --nnodes 1", flags)).misfits
    assert misfit.rule == rule
    assert "parallel_state.py" in misfit.source and misfit.cure.startswith(near)


def test_a_flagscale_train_file_alone_gets_the_ranks_of_its_experts(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(DEEPSEEK)
    config = read_config(path)
    assert (config.strategy.dp, config.strategy.pp, config.strategy.ep, config.strategy.world_size) == (4, 2, 4, 8)
    assert any("8 is assumed" in note for note in config.notes)


def test_a_config_json_without_dp_gets_the_ranks_of_its_experts(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"registered_model": "mixtral-8x7b", "taylor": {"parallel": {"tp": 2, "pp": 2, "ep": 8}}}')
    config = read_config(path)
    assert config.strategy.world_size == 16 and config.strategy.dp == 4 and config.strategy.global_batch == 4
    path.write_text('{"registered_model": "mixtral-8x7b", "taylor": {"parallel": {"dp": 2, "tp": 2, "ep": 4}}}')
    assert read_config(path).open_ranks is None


@pytest.mark.parametrize(
    ("parallelism", "training", "world"),
    [
        ("data_parallel_shard_degree = -1\n", "", 8),
        ("", "", 8),
        ("expert_parallel_degree = 16\n", "", 16),
        ("tensor_parallel_degree = 4\nexpert_parallel_degree = 8\n", "", 8),
        ("tensor_parallel_degree = 4\nexpert_parallel_degree = 8\nexpert_tensor_parallel_degree = 4\n", "", 32),
        ("data_parallel_replicate_degree = 2\nexpert_parallel_degree = 8\n", "", 16),
        ("tensor_parallel_degree = 3\n", "", 24),
        ("", "global_batch_size = 4\n", 1),  # 8 ranks take 32 samples at once
    ],
)
def test_torchtitan_files_get_what_its_script_starts_or_the_least_that_starts(
    parallelism: str, training: str, world: int, tmp_path: Path
) -> None:
    config = read_config(titan(tmp_path, parallelism, training))
    assert config.strategy.world_size == world and config.open_ranks is not None
    assert f"world size of {world} is assumed" in " ".join(config.notes)
    assert config.strategy.op == config.strategy.dp * config.strategy.cp // (2 if "replicate" in parallelism else 1)


@pytest.mark.parametrize("place", ["beside", "root"])
def test_the_script_that_starts_a_toml_file_says_its_ranks(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "torchtitan" / "models" / "deepseek_v3" / "train_configs"
    folder.mkdir(parents=True)
    ((folder if place == "beside" else tmp_path) / SCRIPT).write_text(LAUNCH % 32)
    config = read_config(titan(folder, ""))
    assert config.strategy.world_size == 32 and any(SCRIPT in note for note in config.notes)


def test_a_script_that_says_nothing_or_is_broken_changes_nothing(tmp_path: Path) -> None:
    for text in ("echo\n", 'torchrun "unclosed', LAUNCH % "$(nproc)"):
        (tmp_path / SCRIPT).write_text(text)
        assert read_config(titan(tmp_path, "")).strategy.world_size == 8


def test_ranks_that_are_named_go_before_those_that_are_assumed(tmp_path: Path) -> None:
    config = read_config(titan(tmp_path, "expert_parallel_degree = 8\n"))
    named = config.on_ranks(32)
    assert (named.strategy.dp, named.strategy.op, named.open_ranks) == (32, 32, None)
    assert named.strategy.global_batch == 128 and not any("assumed" in note for note in named.notes)
    with pytest.raises(InputError, match="is no multiple of 8 .*found 12.*name 8 or 16"):
        config.on_ranks(12)


def test_a_global_batch_that_is_stated_stays_on_other_ranks(tmp_path: Path) -> None:
    fixed = read_config(titan(tmp_path, "", "global_batch_size = 256\n")).on_ranks(32)
    assert fixed.strategy.global_batch == 256 and fixed.strategy.micro_batches == 2
    flags = read_config(script(tmp_path, "python", "--expert-model-parallel-size 8 --global-batch-size 64")).on_ranks(
        16
    )
    assert (flags.strategy.dp, flags.strategy.op, flags.strategy.micro_batches) == (16, 16, 4)
    with pytest.raises(InputError, match="does not divide the batch 64.*--gbs"):
        read_config(script(tmp_path, "python", "--global-batch-size 64")).on_ranks(128)


def test_ranks_that_contradict_the_file_are_refused_by_name(tmp_path: Path) -> None:
    config = read_config(titan(tmp_path, "data_parallel_shard_degree = 4\n"))
    assert config.on_ranks(4) is config
    with pytest.raises(InputError, match="contradicts the 4 ranks that the file states.*found 8"):
        config.on_ranks(8)
