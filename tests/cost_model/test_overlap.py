"""What a step shows of transfers that run beside computation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.time.overlap import SLOWED_BESIDE, shown_behind, shown_beside, shown_in_rings
from taylor.cost_model.time.step import estimate_ratios, layer_time, step_ms
from taylor.cost_model.time.tail import StageTime, tail_ms
from taylor.parsers.read import read_config
from taylor.register import frameworks
from taylor.register.registry import Registry

REGISTRY = Registry.load()
LLAMA, H100 = REGISTRY.model("llama2-7b"), REGISTRY.device("h100-80g")
RULES = TrainingRules(framework=frameworks.MEGATRON)
ms = st.floats(0, 1e4)
shapes = st.builds(lambda pp, vpp: Strategy(8, 2, pp, vpp=vpp), st.sampled_from((1, 2, 4)), st.sampled_from((1, 2, 4)))


@given(ms, ms, ms, shapes, st.integers(1, 10**11), st.integers(1, 4096))
def test_more_work_beside_a_transfer_never_shows_more_of_it(
    transfer: float, work: float, more: float, shape: Strategy, parameters: int, ranks: int
) -> None:
    little = float(shown_beside(transfer, work, shape, parameters, ranks))
    much = float(shown_beside(transfer, work + more, shape, parameters, ranks))
    assert 0 <= much <= little <= transfer * (1 + 1e-12)


@given(ms, shapes, st.integers(1, 10**11))
def test_a_transfer_with_nothing_beside_it_is_shown_whole(transfer: float, shape: Strategy, parameters: int) -> None:
    assert shown_beside(transfer, 0.0, shape, parameters, 8) == pytest.approx(transfer)
    assert shown_in_rings(transfer, 0.0, shape) == pytest.approx(transfer)


def test_the_last_bucket_of_gradients_has_nothing_beside_it() -> None:
    plain = Strategy(8, 2, 1)
    assert shown_beside(100.0, 1e9, plain, 400_000_000, 8) == pytest.approx(10.0)
    assert shown_beside(100.0, 1e9, plain, 1, 8) == 100.0


@pytest.mark.parametrize("strategy", [
    Strategy(48, 8, 1, op=48, mbs=4), Strategy(8, 4, 4, op=8, micro_batches=16),
    Strategy(4, 2, 4, op=4, vpp=2, micro_batches=16), Strategy(64, 1, 1, op=64),
])  # fmt: skip
def test_transfers_beside_products_never_make_a_step_longer(strategy: Strategy) -> None:
    without, given_flag = (
        float(step_ms(LLAMA, strategy, rules, H100)) for rules in (RULES, RULES.replace(overlap_tensor=True))
    )
    assert given_flag <= without * (1 + 1e-12)


def test_a_longer_backward_hides_more_of_the_reduction() -> None:
    strategy = Strategy(48, 2, 1, op=48)
    short, long = (float(tail_ms(LLAMA, strategy, RULES, H100, StageTime(t, 2 * t))) for t in (1.0, 50.0))
    assert long < short


def test_a_script_that_overlaps_is_told_a_shorter_layer(tmp_path: Path) -> None:
    script = (
        "torchrun --nproc_per_node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
        "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --padded-vocab-size 32000 "
        "--tensor-model-parallel-size 8 --micro-batch-size 4 --global-batch-size 32 --bf16 --sequence-parallel "
        "--use-distributed-optimizer "
    )
    told = []
    for flags in ("", "--tp-comm-overlap"):
        file = tmp_path / "pretrain.sh"
        file.write_text(script + flags + "\n")
        config = read_config(file)
        ratios = estimate_ratios(config.model, config.strategy, config.rules, H100)
        assert ratios.unit_ms is not None
        told.append(ratios.unit_ms)
        assert not any("overlap-" in flag.name and flag.time for flag in config.unmodelled)
    layer, ringed = told
    assert ringed < layer


@given(ms, ms)
def test_hidden_transfers_slow_the_work_beside_them(transfer: float, work: float) -> None:
    shown = float(shown_behind(transfer, work))
    assert SLOWED_BESIDE * transfer <= shown * (1 + 1e-12) and shown <= transfer * (1 + 1e-12)


def test_layers_take_longer_beside_what_fsdp_gathers_and_a_ring_hands_on() -> None:
    """An A100's backward takes 1.126 times as long beside an all-reduce (Hetu-Galvatron's overlap_coefficient.json)."""
    sharded = TrainingRules(framework=frameworks.FRAMEWORKS["torchtitan"], parameter_shard=True, seq_length=8192)
    ring = Strategy(1, 1, 1, cp=4)
    for strategy, rules in ((Strategy(8, 1, 1, op=8, mbs=8), sharded), (ring, RULES.replace(seq_length=131072))):
        free = replace(H100, links=tuple(replace(link, gb_s=1e9, latency_us=0.0) for link in H100.links))
        with_transfers, without = (layer_time(LLAMA, "dense", strategy, rules, card) for card in (H100, free))
        assert 1.0 < float(with_transfers.forward / without.forward) < 1.126
