"""MLPerf's fine-tuning configurations: bash's variables over their harness' YAML, with LoRA and narrow weights."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.register.adapters import JOINED_QKV, OUTPUT
from taylor.register.narrow_products import DELAYED

COMMON = """\
export LORA_A2A=1
export FP8=True
export FP8_DPA=1
export PP=1
export TP=2
export SP=1
export MBS=1
export MC_TP_OVERLAP_AG=True
"""
SYSTEM = """\
source $(dirname ${BASH_SOURCE[0]})/config_common.sh
export MAX_STEPS=800
export MINIBS=4
export CP=2
export MCORE_CUDA_GRAPH=1
export DGXNNODES=3
export DGXNGPU=8
export WALLTIME=$((5 + ${NEXP:-1} * 15))
"""
NEMO_2 = """\
model:
  encoder_seq_length: ${oc.decode:${oc.env:MAX_SEQLEN,4096}}
  fp8: ${oc.decode:${oc.env:FP8,True}}
  fp8_recipe: ${oc.decode:${oc.env:FP8_RECIPE,'delayed'}}
  cp_comm_type: ${oc.decode:${oc.env:CP_COMM_TYPE,'a2a'}}
  cuda_graph_scope: ${oc.decode:${oc.env:CUDA_GRAPH_SCOPE,'full_iteration'}}
"""
NEMO_1 = """\
model:
  encoder_seq_length: ${oc.decode:${oc.env:MAX_SEQLEN,8192}}
  fp8: ${oc.decode:${oc.env:FP8,False}} # enables fp8
  disable_parameter_transpose_cache: True
  peft:
    lora_tuning:
      adapter_dim: ${oc.decode:${oc.env:LORA_DIM,8}}
      adapter_dropout: ${oc.decode:${oc.env:LORA_DROPOUT,0.1}}
  optim:
    name: ${if:${gt:${oc.select:trainer.num_nodes,1},1},mcore_distributed_optim,fused_adam}
"""
YAML = "megatron_gpt_peft_tuning_config.yaml"


def _written(
    folder: Path, yaml: str | None, system: str = SYSTEM, name: str = "config_GB200_3x8x4xtp2pp1cp2.sh"
) -> Path:
    folder = folder / "llama2_70b_lora"
    (folder / "conf").mkdir(parents=True)
    if yaml is not None:
        (folder / "conf" / YAML).write_text(yaml)
    (folder / "config_common.sh").write_text(COMMON)
    path = folder / name
    path.write_text(system)
    return path


def test_degrees_and_batch_are_what_bash_exports_and_the_harness_multiplies(tmp_path: Path) -> None:
    path = _written(tmp_path, NEMO_2)
    shown = " ".join(f"${name}" for name in ("TP", "PP", "CP", "MBS", "MINIBS", "DGXNNODES", "DGXNGPU"))
    bash = ["bash", "-c", f'source "{path}"; echo {shown}']
    done = subprocess.run(bash, capture_output=True, text=True, check=True)
    tp, pp, cp, mbs, minibs, nodes, each = map(int, done.stdout.split())
    config = read_config(path)
    strategy = config.strategy
    assert (strategy.tp, strategy.pp, strategy.cp, strategy.mbs, strategy.sp) == (tp, pp, cp, mbs, True)
    assert strategy.global_batch == minibs * (nodes * each // (tp * pp) // cp)
    assert config.model.name == "llama2-70b" and config.rules.seq_length == 4096
    assert launcher_of(config).usual_device_of(config).name == "gb200-nvl72"


def test_it_trains_lora_beside_attention_over_frozen_weights_in_fp8(tmp_path: Path) -> None:
    rules = read_config(_written(tmp_path, NEMO_2)).rules
    assert rules.adapters is not None and rules.adapters.targets == tuple(sorted((OUTPUT, JOINED_QKV)))
    assert (rules.adapters.rank, rules.adapters.dropout, rules.adapters.gathers) == (16, True, True)
    assert rules.narrow is not None and rules.narrow.weight_bytes == 1.0, "Blackwell reads one copy both ways"
    assert rules.narrow_weights and rules.ulysses_degree is None, "cp_comm_type a2a"


def test_a_device_before_blackwell_keeps_a_transposed_copy_of_fp8_weights(tmp_path: Path) -> None:
    config = read_config(_written(tmp_path, NEMO_2, name="config_DGXH100_3x8.sh"))
    assert config.rules.narrow == DELAYED


def test_the_older_harness_has_its_own_defaults(tmp_path: Path) -> None:
    system = SYSTEM.replace("DGXNNODES=3", "DGXNNODES=1") + "export ACG=full && export ACM=block && export ACL=21\n"
    path = _written(tmp_path, NEMO_1, system, "config_MI300X_1x8x1.sh")
    (path.parent / "config_common.sh").write_text(COMMON.replace("export FP8=True\n", ""))
    config = read_config(path)
    rules = config.rules
    assert rules.adapters is not None and rules.adapters.rank == 8
    assert rules.narrow is None and rules.ulysses_degree == 1
    assert config.strategy.op == 1, "fused_adam on one node"
    assert config.plan is not None and sum(map(sum, config.plan.recompute["full"])) == 21


def test_amds_harness_shards_states_on_several_nodes_alone_where_its_yaml_is_not_there(tmp_path: Path) -> None:
    system = SYSTEM.replace("DGXNNODES=3", "DGXNNODES=1")
    one = read_config(_written(tmp_path / "one", None, system, "config_MI300X_1x8x1.sh"))
    two = read_config(_written(tmp_path / "two", None, SYSTEM, "config_MI300X_3x8x1.sh"))
    assert one.strategy.op == 1 and two.strategy.op == two.strategy.dp * two.strategy.cp


def test_fp4_weights_replace_the_frozen_ones_where_they_are_quantized_before(tmp_path: Path) -> None:
    fp4 = "export FP4=True\nexport FP8=False\nexport PRE_QUANTIZED_MODEL=True\nexport HEALING_ITER=360\n"
    config = read_config(_written(tmp_path, NEMO_2, SYSTEM + fp4))
    assert config.rules.narrow is not None and config.rules.narrow.precision == "fp4" and config.rules.narrow_weights
    assert "HEALING_ITER" in {flag.name for flag in config.unmodelled}


def test_a_switch_that_overlaps_exchanges_counts_only_where_they_overlap(tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two"
    silent = {flag.name for flag in read_config(_written(first, NEMO_2)).unmodelled}
    named = {
        flag.name for flag in read_config(_written(second, NEMO_2, SYSTEM + "export TP_COMM_OVERLAP=1\n")).unmodelled
    }
    assert "MC_TP_OVERLAP_AG" not in silent and "MC_TP_OVERLAP_AG" in named


def test_without_its_yaml_a_file_has_the_defaults_of_the_last_round(tmp_path: Path) -> None:
    config = read_config(_written(tmp_path, None))
    assert config.rules.seq_length == 8192 and config.rules.ulysses_degree is None


@pytest.mark.parametrize(
    ("added", "reason"),
    [
        ("export LORA_DROPOUT=some\n", "LORA_DROPOUT: must be a number"),
        ("export LORA_DIM=-1\n", "LORA_DIM: must be a whole number"),
        ("export MINIBS=0\n", "MINIBS: must be a whole number"),
    ],
)
def test_a_wrong_value_is_refused_by_its_variable(tmp_path: Path, added: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_config(_written(tmp_path, NEMO_1, SYSTEM + added))


def test_the_common_part_says_which_file_to_give(tmp_path: Path) -> None:
    path = _written(tmp_path, NEMO_2)
    with pytest.raises(InputError, match="states a part of an MLPerf configuration"):
        read_config(path.parent / "config_common.sh")
