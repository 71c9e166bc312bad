"""Reserved memory of jobs whose tensors lie on one stream, beside the allocator's own rules on a stage's requests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.memory.communicators import communication_mib
from taylor.cost_model.memory.fragmentation import one_pool_bytes
from taylor.cost_model.memory.statics import MIB
from taylor.cost_model.memory.workspaces import allocated_mib, outside_mib, reserved_mib
from taylor.parsers.read import read_config
from taylor.parsers.text.allocator import expandable_segments
from taylor.pipeline.plan import FULL, NONE
from taylor.register.adapters import ALL_MEGATRON, Adapters
from taylor.register.registry import Registry
from tests import torch_stage_cases as cases

H100 = Registry.load().device("h100-80g")
SCRIPT = """\
{setting}
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
    --seq-length 4096 --max-position-embeddings 4096 --padded-vocab-size 32000 --micro-batch-size 1 \\
    --global-batch-size 64 --bf16 --use-distributed-optimizer --tensor-model-parallel-size 4
"""


def test_a_job_reserves_more_than_it_allocates_and_less_with_expandable_segments(tmp_path: Path) -> None:
    found = []
    for setting in ("", "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"):
        path = tmp_path / "job.sh"
        path.write_text(SCRIPT.format(setting=setting))
        config = read_config(path)
        [stage] = stage_breakdown(config.model, config.strategy, config.rules, config.plan)
        reserved = reserved_mib(stage, config.model, config.rules, H100)
        assert reserved is not None
        allocated = allocated_mib(stage, config.model, config.rules, H100)
        assert allocated < reserved < 1.1 * allocated
        assert outside_mib(stage, config.model, config.strategy, config.rules, H100) > 0
        found.append(reserved)
    assert found[1] < found[0]


def test_frozen_weights_are_not_copied_into_a_buffer(tmp_path: Path) -> None:
    """ms-swift's examples/megatron/rlhf/kto/moe.sh states 48 GiB reserved by such a job."""
    path = tmp_path / "job.sh"
    recompute = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    text = SCRIPT.replace("--tensor-model-parallel-size 4", recompute)
    path.write_text(text.format(setting="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"))
    config = read_config(path)
    rules = config.rules.replace(adapters=Adapters(8, ALL_MEGATRON))
    [stage] = stage_breakdown(config.model, config.strategy, rules, config.plan)
    reserved = reserved_mib(stage, config.model, rules, H100)
    assert reserved is not None and reserved < 1.1 * allocated_mib(stage, config.model, rules, H100)


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", True),
        ("export PYTORCH_NPU_ALLOC_CONF='max_split_size_mb:512,expandable_segments:True'", True),
        ('PYTORCH_ALLOC_CONF="expandable_segments:True" \\\ntorchrun train.py', True),
        ("env_vars:\n  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True", True),
        ("# export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", False),
        (
            "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nexport PYTORCH_CUDA_ALLOC_CONF=backend:native",
            False,
        ),
        ("export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512", False),
        ("export OTHER_CONF=expandable_segments:True", False),
    ],
)
def test_the_last_setting_of_the_allocator_counts(text: str, on: bool) -> None:
    assert expandable_segments(text) is on


def test_each_communicator_of_hccl_has_two_buffers_of_200_mb() -> None:
    """Replicas, TP, PP, EP, replicas of experts, and two groups of the whole job."""
    ascend = Registry.load().device("ascend-910b")
    rules = cases.MEGATRON.replace(expert_tensor_parallel=False)
    strategy = Strategy(8, 4, 2, 8, op=8, micro_batches=8)
    assert communication_mib(cases.MOE, strategy, rules, ascend) == 7 * 2 * 200
    assert communication_mib(cases.LLAMA, strategy.replace(ep=1), rules, ascend) == 5 * 2 * 200
    assert communication_mib(cases.LLAMA, Strategy(1, 1, 1), rules, ascend) == 0
    # NVIDIA's channels: 4 MiB, 0.5 MiB and 4.6875 MiB a protocol.
    assert communication_mib(cases.LLAMA, Strategy(8, 1, 1), rules, H100) == 3 * 16 * 9.1875


def test_weights_that_were_copied_into_a_buffer_stay_reserved() -> None:
    """Little else is alive: both buffers and the weights that the model was built with."""
    weights, gradients = np.array([1000, 10]) * MIB, np.array([2000, 20]) * MIB
    peak = np.array([3200, 3000]) * MIB
    reserved = one_pool_bytes(peak, 0, weights, gradients, expandable=False, joined=True)
    assert reserved[0] == 4000 * MIB
    assert 3000 * MIB < reserved[1] < 3200 * MIB


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("mode", [NONE, FULL])
def test_a_stage_reserves_about_what_the_allocator_s_rules_take(mode: str, place: int) -> None:
    pytest.importorskip("torch")
    from taylor.dryrun.torch_stage.requests import recorded_stage

    model = cases.LLAMA.replace(hidden=2048, n_heads=16, n_kv_heads=8, head_dim=128, ffn_hidden=5632, vocab=32000)
    rules = cases.MEGATRON.replace(seq_length=4096)
    run = cases.job(model, Strategy(4, 2, 2, op=4, micro_batches=8), rules, mode=mode)
    recorded = recorded_stage(run, place)
    stage = stage_breakdown(model, run.strategy, rules, run.plan)[place]
    for expandable in (False, True):
        closed = one_pool_bytes(
            recorded.peak_mib * MIB,
            stage.logits * MIB,
            stage.weights * MIB,
            stage.gradients * MIB,
            expandable=expandable,
            joined=True,
        )
        assert float(closed) / MIB == pytest.approx(recorded.reserved_mib(expandable=expandable), rel=0.08)
