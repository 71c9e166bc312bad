"""Uneven routing, checked against drawn loads of experts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.time.step import layer_time
from taylor.cost_model.time.uneven_routing import MOST, USUAL_GINI, USUAL_SPREAD, busiest_rank
from taylor.parsers.read import read_config
from taylor.register import frameworks
from taylor.register.model import DENSE, MOE
from taylor.register.registry import Registry

REGISTRY = Registry.load()
QWEN, H100 = REGISTRY.model("qwen3-30b-a3b"), replace(REGISTRY.device("h100-80g"), operation_us=0.0)
SPREAD = TrainingRules(framework=frameworks.MEGATRON, expert_tensor_parallel=False, expert_spread=USUAL_SPREAD)
EIGHT = Strategy(dp=8, tp=1, pp=1, ep=8, op=8, sp=False)


def test_the_busiest_rank_has_the_maximum_of_drawn_experts() -> None:
    loads = np.random.default_rng(0).normal(1.0, USUAL_SPREAD, (4000, 8, QWEN.moe.n_experts // 8 if QWEN.moe else 1))
    drawn = loads.mean(axis=2).max(axis=1).mean()
    assert float(busiest_rank(QWEN, MOE, EIGHT, SPREAD)) == pytest.approx(drawn, rel=0.01)


def test_the_usual_spread_has_the_published_gini_coefficient() -> None:
    loads = np.sort(np.random.default_rng(1).normal(1.0, USUAL_SPREAD, 100_000))
    ranks = np.arange(1, len(loads) + 1)
    gini = 2 * (ranks * loads).sum() / (len(loads) * loads.sum()) - (len(loads) + 1) / len(loads)
    assert gini == pytest.approx(USUAL_GINI, abs=0.003)


def test_ranks_with_many_experts_even_out_and_one_rank_has_all() -> None:
    few, many = (float(busiest_rank(QWEN, MOE, EIGHT.replace(ep=ep), SPREAD)) for ep in (8, 2))
    assert 1 < many < few < MOST
    assert float(busiest_rank(QWEN, MOE, EIGHT.replace(ep=1), SPREAD)) == 1


def test_dense_layers_even_routers_and_capacities_wait_for_nobody() -> None:
    deepseek = REGISTRY.model("deepseek-v3-671b")
    assert busiest_rank(deepseek, DENSE, EIGHT, SPREAD) == 1
    assert busiest_rank(QWEN, MOE, EIGHT, SPREAD.replace(expert_spread=0.0)) == 1
    assert busiest_rank(QWEN, MOE, EIGHT, SPREAD.replace(capacity_factor=1.0)) == 1


def test_uneven_routing_lengthens_layers_of_experts() -> None:
    uneven, even = (
        float(layer_time(QWEN, MOE, EIGHT, rules, H100).forward) for rules in (SPREAD, SPREAD.replace(expert_spread=0))
    )
    assert even < uneven < MOST * even


SCRIPT = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 \
--seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 8 --bf16 --num-experts 16 \
--expert-model-parallel-size 8 --vocab-size 32000 --moe-token-dispatcher-type alltoall --moe-router-topk 2 \
--tokenizer-type NullTokenizer"""


@pytest.mark.parametrize(
    ("flag", "spread"),
    [("", USUAL_SPREAD), (" --moe-router-force-load-balancing", 0.0), (" --moe-expert-capacity-factor 1.0", 0.0)],
)
def test_a_launch_file_routes_unevenly_unless_its_flags_say_otherwise(flag: str, spread: float, tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(SCRIPT + flag + "\n", encoding="utf-8")
    config = read_config(file)
    assert config.rules.expert_spread == spread
    assert any("assumed" in note for note in config.notes) == (spread > 0)
