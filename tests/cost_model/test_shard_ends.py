"""Transfers of fully sharded parameters at the ends of a step, checked against a schedule drawn layer by layer."""

from __future__ import annotations

import pytest

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.network.collectives import gather_ms
from taylor.cost_model.time.shard_ends import ShardedLayer, shard_ends_ms
from taylor.register import frameworks
from taylor.register.registry import Registry

REGISTRY = Registry.load()
LLAMA, H100 = REGISTRY.model("llama3-8b"), REGISTRY.device("h100-80g")
TORCH = TrainingRules(framework=frameworks.TORCHTITAN, parameter_shard=True)
SHARDED = Strategy(dp=64, tp=1, pp=1, op=64, sp=False, micro_batches=2)
SHORT = ShardedLayer(3.0, 5.0, 0.0, 0.0)


def _moved(parameters: int, size: int, strategy: Strategy = SHARDED) -> float:
    share = H100.efficiency["network"]
    return float(gather_ms(parameters * size / strategy.tp, strategy.dp, strategy.tp, H100, share))


def test_with_nothing_to_hide_behind_every_end_s_transfer_is_exposed() -> None:
    whole = TORCH.gathered()
    matrix = LLAMA.vocab * LLAMA.hidden
    once = 2 * (_moved(matrix, whole.param_bytes) + _moved(matrix, whole.gradient_bytes)) + 3.0 + 5.0
    found = float(shard_ends_ms(LLAMA, SHARDED, TORCH, H100, SHORT))
    assert found == pytest.approx(SHARDED.micro_batches * once)


def test_the_head_hides_behind_the_last_layer_and_the_embedding_behind_none() -> None:
    busy = SHORT._replace(forward=1e6, backward=1e6)
    found = float(shard_ends_ms(LLAMA, SHARDED, TORCH, H100, busy))
    whole, matrix = TORCH.gathered(), LLAMA.vocab * LLAMA.hidden
    embedding = _moved(matrix, whole.param_bytes) + _moved(matrix, whole.gradient_bytes)
    exposed = SHARDED.micro_batches * (embedding + 8.0)
    assert exposed < found < exposed + 0.2 * SHARDED.micro_batches * embedding


def test_ends_that_stay_gathered_come_once_a_step() -> None:
    kept, again = (
        float(shard_ends_ms(LLAMA, SHARDED, rules, H100, SHORT)) for rules in (TORCH.replace(whole_ends=True), TORCH)
    )
    matrix = _moved(LLAMA.vocab * LLAMA.hidden, TORCH.gathered().param_bytes)
    assert again - kept == pytest.approx((SHARDED.micro_batches - 1) * 2 * matrix)


def test_micro_batches_of_a_pipeline_share_one_gather_and_one_reduction() -> None:
    staged = SHARDED.replace(dp=16, op=16, pp=4, micro_batches=8)
    few, many = (
        float(shard_ends_ms(LLAMA, staged.replace(micro_batches=count), TORCH, H100, SHORT)) for count in (8, 64)
    )
    assert few == many > 0


def test_parameters_that_are_not_sharded_move_nothing_here() -> None:
    assert shard_ends_ms(LLAMA, SHARDED, TORCH.replace(parameter_shard=False), H100, SHORT) == 0
