"""Keys and values round one ring, or round windows' rings and an outer one between them."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.network.collectives import gather_ms, hops_ms
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import _ring_ms
from taylor.parsers.read import read_config
from taylor.register.device import DeviceSpec
from taylor.register.registry import Registry

ASCEND, H100 = (Registry.load().device(name) for name in ("ascend-910b", "h100-80g"))
BLOCK = 64 << 20


def _ring(ranks: int, window: int, device: DeviceSpec = ASCEND) -> float:
    rules = TrainingRules(context_window=window)
    speed = Speed.of(device, rules)
    return float(_ring_ms(ranks * BLOCK, 1, Strategy(1, 1, 1, cp=ranks), rules, device, speed))


def test_a_hop_goes_over_the_one_link_to_the_next_rank_of_a_mesh() -> None:
    link = ASCEND.intra_node_gb_s / (ASCEND.devices_per_node - 1)
    moved = 3 * BLOCK / (link * 1e6)
    assert float(hops_ms(BLOCK, 4, 1, ASCEND, 1.0)) == pytest.approx(moved + 3 * ASCEND.link_latency_us * 1e-3)
    assert float(hops_ms(BLOCK, 1, 1, ASCEND, 1.0)) == 0
    # Behind a switch, and between nodes, as a ring of an all-gather.
    for device, ranks in ((H100, 4), (ASCEND, 16)):
        assert hops_ms(BLOCK, ranks, 1, device, 1.0) == gather_ms(ranks * BLOCK, ranks, 1, device, 1.0)


def test_windows_of_one_rank_or_of_all_are_one_ring() -> None:
    assert _ring(8, 1) == _ring(8, 8) == _ring(8, 64)


def test_the_longer_of_inner_and_outer_ring_is_seen() -> None:
    """Of four ranks in windows of two: two hops inside the windows while one goes between them."""
    speed = Speed.of(ASCEND, TrainingRules())
    inner, outer = (float(hops_ms(BLOCK, 2, stride, ASCEND, speed.network)) for stride in (1, 2))
    assert _ring(4, 2) == pytest.approx(max(2 * inner, outer))
    assert _ring(4, 2) < _ring(4, 1)


def test_the_window_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 "
        "--seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 8 --bf16 "
        "--vocab-size 32000 --context-parallel-size 4 --context-parallel-algo megatron_cp_algo --cp-window-size 2 "
        "--use-flash-attn\n"
    )
    assert read_config(path).rules.context_window == 2
