"""What a launch's optimizer keeps of a parameter, against the tables that the frameworks publish."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import ParameterGroups, layer_parameters
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.states import group_bytes
from taylor.cost_model.memory.statics import MIB, embedding_state_bytes, kept_bytes, layer_state_bytes
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, NONE
from taylor.register.model import DENSE, MOE
from tests.parsers.megatron.test_scripts import BASE, script_of

PARAMETERS = 1 << 20
PLAIN = BASE.replace("--bf16", "--tensor-model-parallel-size 1\n--pipeline-model-parallel-size 2")
AWARE = "--bf16 --use-distributed-optimizer --use-precision-aware-optimizer "
"""Without a type and without a split optimizer; with those of the newest recipes."""


def launched(more: str, tmp_path: Path, base: str = PLAIN) -> TrainingConfig:
    """The script with more flags, on 16 ranks: TP 1, PP 2, DP 8."""
    return read_config(script_of(tmp_path, f"{base}{more}\n"))


def bytes_a_parameter(more: str, tmp_path: Path, *, in_layer: bool = True) -> float:
    config = launched(more, tmp_path)
    assert config.strategy.dp == 8
    held = group_bytes(ParameterGroups(split=PARAMETERS), config.strategy, config.rules, in_layer=in_layer)
    return float(held.total) / PARAMETERS


@pytest.mark.parametrize(
    ("more", "alone", "split"),
    [
        # Megatron-LM main, docs/user-guide/features/dist_optimizer.md, the table of bytes a parameter.
        ("--fp16", 20, 4 + 16 / 8),
        ("--bf16", 18, 6 + 12 / 8),
        ("", 16, 8 + 8 / 8),
        # The same of bf16 gradients: the step's fp32 copy of them.
        ("--bf16 --grad-reduce-in-bf16", 20, 4 + 16 / 8),
        ("--fp16 --accumulate-allreduce-grads-in-fp32", 18, 6 + 12 / 8),
        # MindSpeed master, docs/zh/features/reuse-fp32-param.md: 2 bytes less, of a split optimizer 2/d less.
        ("--bf16 --reuse-fp32-param", 16, 6 + 10 / 8),
        # MindSpeed master, docs/zh/features/swap-optimizer.md: the 12 bytes lie in the host's memory.
        ("--bf16 --swap-optimizer", 6, 6),
        # One momentum of fp32, or none.
        ("--bf16 --optimizer sgd", 14, 6 + 8 / 8),
        ("--bf16 --optimizer sgd --sgd-momentum 0", 10, 6 + 4 / 8),
        ("--bf16 --optimizer lion", 14, 6 + 8 / 8),
        ("--bf16 --optimizer muon", 14, 6 + 8 / 8),
    ],
)
def test_a_parameter_takes_the_published_bytes(more: str, alone: float, split: float, tmp_path: Path) -> None:
    assert bytes_a_parameter(more, tmp_path) == pytest.approx(alone, rel=1e-12)
    assert bytes_a_parameter(f"{more} --use-distributed-optimizer", tmp_path) == pytest.approx(split, rel=1e-12)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        # Master weights are kept as the 16 bits that bf16 lacks.
        ("", 6 + 10 / 8),
        # Megatron-LM main, megatron/core/transformer/moe/README.md:364: bf16 moments, half the bytes.
        ("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", 6 + (2 + 8 / 2) / 8),
        ("--exp-avg-dtype fp8 --exp-avg-sq-dtype fp16 --main-params-dtype fp16", 6 + (2 + 1 + 2) / 8),
        ("--main-grads-dtype bf16", 4 + 10 / 8),
        ("--optimizer-cpu-offload", 6),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.25", 6 + 0.75 * 12 / 8),
        # Megatron itself holds fp32 master weights beside weights that are scaled by block.
        ("--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather", 4 + 2 * 33 / 32 + 12 / 8),
        ("--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather --main-grads-dtype bf16", 2 + 2 * 33 / 32 + 16 / 8),
        ("--fp8-format hybrid --fp8-recipe delayed --fp8-param-gather", 4 + 2 + 12 / 8),
    ],
)
def test_the_precision_aware_optimizer_keeps_what_its_types_say(more: str, expected: float, tmp_path: Path) -> None:
    assert bytes_a_parameter(AWARE + more, tmp_path) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("more", "weight"),
    [
        ("--fp8-format hybrid", 2 + 2),
        ("--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather", 2),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", 2 + 2 + 2 / 32),
        ("--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather", 2 + 2 / 32),
        ("--fp8-format e4m3 --fp8-recipe blockwise --fp8-param-gather", 2 + 8 / 128**2),
        ("--fp4-format e2m1", 2 + 1 + 2 / 16),
        ("--fp4-format e2m1 --fp4-param-gather", 1 + 2 / 16),
        # Of a recipe of one's own nothing is known.
        ("--fp8-format e4m3 --fp8-recipe custom", 2),
    ],
)
def test_narrow_copies_of_a_layer_s_matrices_lie_beside_the_weight_or_in_its_place(
    more: str, weight: float, tmp_path: Path
) -> None:
    more = f"--bf16 --use-distributed-optimizer {more}"
    assert bytes_a_parameter(more, tmp_path) == pytest.approx(weight + 4 + 12 / 8, rel=1e-12)
    # Embedding and head stay in bf16.
    assert bytes_a_parameter(more, tmp_path, in_layer=False) == 6 + 12 / 8


@pytest.mark.parametrize("flag", ["--use-megatron-fsdp", "--use-custom-fsdp"])
@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        # Megatron-LM main, docs/user-guide/features/megatron_fsdp.md: nothing split, ZeRO-1, ZeRO-2, ZeRO-3.
        ("no_shard", 18), ("optim", 6 + 12 / 8), ("optim_grads", 2 + 16 / 8), ("optim_grads_params", 18 / 8),
        (None, 18 / 8),
    ],
)  # fmt: skip
def test_megatron_fsdp_splits_what_its_strategy_says(
    flag: str, strategy: str | None, expected: float, tmp_path: Path
) -> None:
    chosen = "" if strategy is None else f"--data-parallel-sharding-strategy {strategy}"
    found = bytes_a_parameter(f"--bf16 --use-distributed-optimizer {flag} {chosen}", tmp_path)
    assert found == pytest.approx(expected, rel=1e-12)


def test_the_types_of_megatron_fsdp_are_its_own(tmp_path: Path) -> None:
    types = "--megatron-fsdp-main-params-dtype bf16 --megatron-fsdp-main-grads-dtype bf16 --main-params-dtype fp16"
    assert bytes_a_parameter(f"{AWARE} --use-megatron-fsdp {types}", tmp_path) == (2 + 2 + 2 + 8) / 8


def test_torch_s_fsdp_splits_everything_and_its_gradients_are_the_weight_s_type(tmp_path: Path) -> None:
    assert bytes_a_parameter("--bf16 --use-torch-fsdp2", tmp_path) == (2 + 2 + 4 + 4 + 8) / 8
    gathered = launched("--bf16 --use-torch-fsdp2 --torch-fsdp2-no-reshard-after-forward", tmp_path)
    sharded = launched("--bf16 --use-torch-fsdp2", tmp_path)
    held = [layer_state_bytes(one.model, DENSE, one.strategy, one.rules).weights for one in (gathered, sharded)]
    assert float(held[0]) == pytest.approx(float(held[1]) * 9, rel=1e-12)


def test_megatron_fsdp_leaves_embedding_and_head_gathered(tmp_path: Path) -> None:
    config = launched("--bf16 --use-megatron-fsdp", tmp_path)
    state = embedding_state_bytes(config.model, config.strategy, config.rules)
    table = (config.model.vocab + config.model.learned_positions) * config.model.hidden
    assert float(state.weights) == 2 * table + 2 * table / 8


def test_instances_of_the_optimizer_split_within_themselves_and_experts_likewise(tmp_path: Path) -> None:
    experts = "--num-experts 8 --moe-ffn-hidden-size 512 --expert-model-parallel-size 2 --moe-router-topk 2"
    two = launched(f"--bf16 --use-distributed-optimizer --num-distributed-optimizer-instances 2 {experts}", tmp_path)
    one = launched(f"--bf16 --use-distributed-optimizer {experts}", tmp_path)
    held = [layer_state_bytes(config.model, MOE, config.strategy, config.rules) for config in (two, one)]
    assert float(held[0].optimizer) == pytest.approx(2 * float(held[1].optimizer), rel=1e-12)
    assert float(held[0].weights) == float(held[1].weights)
    with pytest.raises(InputError, match="must divide the 8 ranks"):
        launched("--bf16 --use-distributed-optimizer --num-distributed-optimizer-instances 3", tmp_path)


def test_muon_leaves_what_is_no_matrix_to_adam(tmp_path: Path) -> None:
    # Moonlight (Liu et al. 2025, arXiv:2502.16982 §2.3): one momentum in place of two.
    for name, others in (("adam", 8), ("lion", 4)):
        more = f"--bf16 --optimizer muon --muon-scalar-optimizer {name}"
        assert bytes_a_parameter(more, tmp_path) == 2 + 4 + 4 + 4
        assert bytes_a_parameter(more, tmp_path, in_layer=False) == 2 + 4 + 4 + others
    assert bytes_a_parameter("--bf16 --optimizer dist_muon", tmp_path) == 6 + 8 / 8


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (AWARE + "--exp-avg-dtype int4", "--exp-avg-dtype"),
        (AWARE + "--optimizer-cpu-offload --optimizer-offload-fraction 1.5", "--optimizer-offload-fraction"),
        (
            "--bf16 --use-megatron-fsdp --data-parallel-sharding-strategy everything",
            "--data-parallel-sharding-strategy",
        ),
        ("--bf16 --fp8-format e4m3 --fp8-recipe magic", "--fp8-recipe"),
    ],
)
def test_a_value_that_the_flag_does_not_take_is_refused_by_name(more: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=named):
        launched(more, tmp_path)


def test_a_strategy_is_written_with_the_flags_that_split_its_optimizer(tmp_path: Path) -> None:
    config = launched("--bf16 --use-distributed-optimizer", tmp_path)
    for op in (1, 4, 8):
        text = launcher_of(config).with_strategy(config, config.strategy.replace(op=op), None, {})
        (file := tmp_path / f"{op}.sh").write_text(str(text))
        assert read_config(file).strategy.op == op
    sharded = launched("--bf16 --use-megatron-fsdp", tmp_path)
    with pytest.raises(InputError, match="--use-megatron-fsdp"):
        launcher_of(sharded).with_strategy(sharded, sharded.strategy.replace(op=1), None, {})


def test_a_gib_of_bf16_gradients_is_half_of_fp32_ones(tmp_path: Path) -> None:
    narrow, wide = (launched(f"--bf16 {more}", tmp_path) for more in ("--grad-reduce-in-bf16", ""))
    found = [layer_state_bytes(one.model, DENSE, one.strategy, one.rules).gradients / MIB for one in (narrow, wide)]
    assert float(found[1]) == 2 * float(found[0])


BRIDGE = "# NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/recipes\n"
HALVES = f"{AWARE} --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"


def test_megatron_keeps_the_master_weights_of_a_job_of_megatron_bridge(tmp_path: Path) -> None:
    """Its optimizer is configured with a recipe other than delayed, without fp8 too."""
    alone, restated = (launched(HALVES, tmp_path, comment + PLAIN) for comment in ("", BRIDGE))
    assert (alone.rules.optimizer.master_bytes, alone.rules.optimizer.step_bytes) == (2, 0)
    assert (restated.rules.optimizer.master_bytes, restated.rules.optimizer.step_bytes) == (4, 4)
    assert any("Megatron-Bridge" in note for note in restated.notes)
    delayed = launched(f"{HALVES} --fp8-recipe delayed", tmp_path, BRIDGE + PLAIN)
    assert delayed.rules.optimizer.master_bytes == 2


@pytest.mark.parametrize("stages", [1, 2])
def test_activations_find_the_memory_of_the_step_s_copies_on_one_stage(tmp_path: Path, stages: int) -> None:
    """16-bit gradients are cast to fp32 in the step, when no activation is alive: the larger of the two counts."""
    config = launched("--bf16 --use-distributed-optimizer --grad-reduce-in-bf16", tmp_path)
    rules, place = config.rules, config.strategy.replace(pp=stages, dp=8, op=8, micro_batches=4)
    alone = rules.replace(optimizer=replace(rules.optimizer, step_bytes=0))
    assert rules.optimizer.step_bytes == 4
    for mode in (NONE, FULL):
        parts = [
            float(layer_state_bytes(config.model, DENSE, place, each).total)
            + float(kept_bytes(config.model, DENSE, mode, place, each))
            for each in (rules, alone)
        ]
        states = float(layer_state_bytes(config.model, DENSE, place, alone).total)
        kept = float(activation_bytes(config.model, DENSE, mode, place, rules))
        copies = 4 * layer_parameters(config.model, DENSE) / place.tp / 8
        most = max(kept, copies) if stages == 1 else kept + copies
        assert parts[1] == pytest.approx(states + kept)
        assert parts[0] == pytest.approx(states + most, rel=1e-3)
