"""GLOBAL mode: one strategy for all layers, read from the scripts and YAML of Galvatron's training, and written."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.galvatron.global_mode import GLOBAL, global_text, read_any_strategy
from taylor.parsers.galvatron.strategy_file import strategy_text

SCRIPT = """export NUM_NODES=2
export NUM_GPUS_PER_NODE=8
LAUNCHER="python3 -m torch.distributed.launch"
LAUNCHER="${{LAUNCHER}} --nnodes ${{NUM_NODES}}"
LAUNCHER="${{LAUNCHER}} --nproc_per_node ${{NUM_GPUS_PER_NODE}}"
MODEL_ARGS="
    --model_size {size} \\
    --set_model_config_manually 0 \\
    --set_layernum_manually {by_hand} \\
    --num_hidden_layers 10"
PARALLEL_ARGS="
    --global_train_batch_size 64 \\
    --pp_deg 4 \\
    --global_tp_deg 2 \\
    --global_tp_consec 1 \\
    --sdp 0 \\
    --global_checkpoint 1 \\
    --vocab_tp 4 \\
    --chunks 8 \\
    --pipeline_type pipedream_flush \\
    --default_dp_type zero2 \\
    --mixed_precision bf16 \\
    --sequence-parallel {more}"
${{LAUNCHER}} train_dist.py ${{MODEL_ARGS}} ${{PARALLEL_ARGS}}
"""
YAML = """paths: {tp: 2}
runtime:
  parallel:
    pp_deg: 2
    global_tp_deg: ${paths.tp}
    global_checkpoint: 0
    sdp: 1
    default_dp_type: ddp
    pipeline_type: gpipe
    galvatron_config_path: null
    vocab_tp: 2
    use_ulysses: false
  model: {set_layernum_manually: 1, model_size: llama2-7b, num_layers: 4}
  train: {global_batch_size: 32, chunks: 4}
"""


def script(folder: Path, size: str = "llama2-7b", by_hand: int = 1, more: str = "") -> Path:
    file = folder / "train_dist.sh"
    file.write_text(SCRIPT.format(size=size, by_hand=by_hand, more=more))
    return file


def test_a_script_states_one_strategy_for_all_layers(tmp_path: Path) -> None:
    """hybrid_parallel_config.py:99-102: stages of ten layers in four are 2, 2, 2 and 4."""
    found = read_any_strategy(script(tmp_path))
    plan = found.plan
    assert found.form == GLOBAL
    assert (plan.world, plan.division, plan.global_batch, plan.micro_batches) == (16, (2, 2, 2, 4), 64, 8)
    [layer] = set(plan.layers)
    assert (layer.tp, layer.sp, layer.dp, layer.zero, layer.recompute) == (2, 1, 2, 2, True)
    assert (plan.ends.tp, plan.schedule) == (4, "1f1b")


def test_a_preset_has_its_own_layers(tmp_path: Path) -> None:
    found = read_any_strategy(script(tmp_path, by_hand=0))
    assert len(found.plan.layers) == 32
    assert any("its preset's 32 layers" in note for note in found.notes)


def test_ulysses_takes_the_ranks_of_tensor_parallelism(tmp_path: Path) -> None:
    [layer] = set(read_any_strategy(script(tmp_path, more="--use-ulysses")).plan.layers)
    assert (layer.tp, layer.sp) == (1, 2)


def test_a_strategy_file_goes_before_the_options(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    named = tmp_path / "configs" / "mine.json"
    source = read_any_strategy(script(tmp_path)).plan
    named.write_text(strategy_text(source, "hetu"))
    found = read_any_strategy(script(tmp_path, more="--galvatron_config_path ./configs/mine.json"))
    assert found.plan == source and any("JSON mode" in note for note in found.notes)


def test_todays_yaml_is_read_with_what_the_command_overrides(tmp_path: Path) -> None:
    """Hetu-Galvatron cea12ff galvatron/models/gpt/scripts/train_dist.yaml and train_yaml.sh."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train_dist.yaml").write_text(YAML)
    plan = read_any_strategy(tmp_path / "scripts" / "train_dist.yaml", 8).plan
    assert (plan.world, plan.division, {each.zero for each in plan.layers}, plan.schedule) == (8, (2, 2), {3}, "gpipe")
    start = tmp_path / "scripts" / "train_yaml.sh"
    start.write_text(
        "torchrun --nnodes=1 --nproc-per-node=8 train_dist.py scripts/train_dist.yaml "
        "parallel.pp_deg=4 train.chunks=8\n"
    )
    plan = read_any_strategy(start).plan
    assert (plan.world, plan.stages, plan.micro_batches) == (8, 4, 8)


def test_what_is_written_reads_as_the_same_plan(tmp_path: Path) -> None:
    plan = read_any_strategy(script(tmp_path, more="--use-ulysses")).plan
    text = global_text(plan).replace("\n", " \\\n    ")
    file = tmp_path / "again.sh"
    file.write_text(
        "torchrun --nnodes 2 --nproc_per_node 8 train_dist.py --set_layernum_manually 1 --num_hidden_layers 10 "
        + text
        + "\n"
    )
    assert read_any_strategy(file).plan == plan


def test_a_plan_of_unlike_layers_has_no_options(tmp_path: Path) -> None:
    plan = read_any_strategy(script(tmp_path)).plan
    odd = type(plan)(**{**plan.__dict__, "layers": (plan.layers[0].replace(recompute=False), *plan.layers[1:])})
    with pytest.raises(InputError, match="GLOBAL mode one strategy for all"):
        global_text(odd)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("--chunks -1", "chunks: is computed when the training runs"),
        ("--pp_deg two", "pp_deg: must be a whole number"),
        ("--sdp 3", "sdp: must be"),
        ("--galvatron_config_path ./nowhere.json", "nowhere.json"),
    ],
)
def test_what_cannot_be_read_is_named(more: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        read_any_strategy(script(tmp_path, more=more))


def test_a_script_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.sh"
    file.write_text("python pretrain_gpt.py --num-layers 4\n")
    with pytest.raises(InputError, match="starts no training of Galvatron's"):
        read_any_strategy(file)
