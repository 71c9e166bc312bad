"""Speeds by type, direction and length, against single measured kernels."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.time.product_times import dense_products
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import layer_time
from taylor.cost_model.time.work import layer_work
from taylor.register.frameworks import MEGATRON
from taylor.register.model import DENSE
from taylor.register.narrow_products import AO_ROWWISE_WIDE_GRADIENTS, MXFP8, NVFP4, TENSORWISE
from taylor.register.registry import Registry

REGISTRY = Registry.load()
H100, H200, A100, GB200 = (REGISTRY.device(name) for name in ("h100-80g", "h200-141g", "a100-80g", "gb200-nvl72"))
LLAMA = REGISTRY.model("llama3-70b")
RULES = TrainingRules(framework=MEGATRON, param_bytes=2, seq_length=8192)
ONE = Strategy(1, 8, 1, 1, op=1)

GEMMS = [
    (H100, None, 8192, 8192, 8192, 834.0),
    (H100, TENSORWISE, 8192, 8192, 8192, 1503.0),
    (GB200, None, 8192, 8192, 8192, 1908.0),
    (GB200, NVFP4, 8192, 8192, 8192, 5196.0),
]
"""Card, type, rows, columns, depth, and the largest TFLOP/s that any GEMM of ai-dynamo/aiconfigurator 095f58a5 reaches
(with its input's cast where it is narrow)."""

ATTENTION = [(2048, 484, 370), (4096, 591, 474), (8192, 644, 541), (16384, 673, 579), (32768, 688, 581)]
"""Length, TFLOP/s forward and backward of causal attention with 64 heads of 128 on H200: NVIDIA/cudnn-frontend 3929da2
benchmark/sdpa_benchmark_training/results/h200_919_only_cudnn/llama3.1_20260227_034703.csv."""


def speed_of(device, narrow=None) -> Speed:  # type: ignore[no-untyped-def]
    return Speed.of(device, RULES.replace(narrow=narrow), in_layer=True)


@pytest.mark.parametrize(("device", "narrow", "rows", "columns", "depth", "most"), GEMMS)
def test_a_large_gemm_is_no_faster_than_the_fastest_measured_one(device, narrow, rows, columns, depth, most) -> None:  # type: ignore[no-untyped-def]
    flops, operand = 2.0 * rows * columns * depth, 2.0 if narrow is None else narrow.input_bytes
    time = speed_of(device, narrow).product(flops, operand * depth * (rows + columns), 2 * rows * columns)
    assert 0.6 * most < flops / float(time) / 1e9 < most


def test_attention_of_every_length_meets_the_measured_one() -> None:
    heads = LLAMA.layer(DENSE).attention
    assert heads is not None
    errors = []
    for length, ahead, behind in ATTENTION:
        rules = RULES.replace(seq_length=length)
        work, speed = layer_work(LLAMA, DENSE, Strategy(1, 1, 1), rules), Speed.of(H200, rules, in_layer=True)
        flops = work.attention_flops + speed.shares["softmax_flops"] * work.attention_scores
        longer = 1 + speed.shares["attention_tokens"] * work.attention_edges / work.attention_flops
        forward = float(speed.flops("attention", flops) * longer)
        backward = 2.5 * forward * speed.backward_of_attention(wide=False)
        errors += [float(work.attention_flops) / forward / 1e9 / ahead - 1]
        errors += [2.5 * float(work.attention_flops) / backward / 1e9 / behind - 1]
    assert median(map(abs, errors)) < 0.03 and max(map(abs, errors)) < 0.1


def test_rings_of_context_ranks_see_shorter_blocks() -> None:
    """Four ranks: a quarter of the length, and three of four blocks without the mask's edge."""
    whole, ring = (layer_work(LLAMA, DENSE, Strategy(1, 1, 1, cp=cp), RULES) for cp in (1, 4))
    assert float(ring.attention_flops) * 4 == pytest.approx(float(whole.attention_flops))
    assert float(ring.attention_edges) * 4 == pytest.approx(float(whole.attention_edges) * 4 * (1 + 1 / 4) / 2)


def test_a_type_without_entries_takes_those_of_fp8_and_those_the_plain_ones() -> None:
    assert speed_of(H100, MXFP8).products["matmul"] == H100.efficiency["matmul_fp8"]
    assert speed_of(A100, MXFP8).products == speed_of(A100).products
    assert speed_of(GB200, MXFP8).products["matmul"] == GB200.efficiency["matmul_mxfp8"]


def test_gradients_in_fp8_are_slower_on_hopper_unless_they_are_wide() -> None:
    device = replace(H100, efficiency={**H100.efficiency, "gradients_fp8": 0.5})
    work = layer_work(LLAMA, DENSE, ONE, RULES)

    def times(narrow):  # type: ignore[no-untyped-def]
        rules = RULES.replace(narrow=narrow)
        return dense_products(work, rules, Speed.of(device, rules, in_layer=True))

    plain, narrow, wide = times(None), times(TENSORWISE), times(AO_ROWWISE_WIDE_GRADIENTS)
    assert float(narrow.input_gradients) > 1.7 * float(narrow.forward)
    assert float(wide.weight_gradients) == pytest.approx(float(plain.weight_gradients))


def test_an_older_stack_has_slower_attention_and_the_gemms_of_its_time() -> None:
    old = REGISTRY.device("h100@flash-attention-2")
    assert old == H100.with_stack("flash-attention-2")
    assert old.efficiency["matmul"] < H100.efficiency["matmul"]
    assert old.efficiency["matmul_fp8"] == H100.efficiency["matmul_fp8"]
    assert float(layer_time(LLAMA, DENSE, ONE, RULES, old).forward) > float(
        layer_time(LLAMA, DENSE, ONE, RULES, H100).forward
    )
    assert REGISTRY.device("h100@cudnn-2026").efficiency == H100.efficiency


@pytest.mark.parametrize(
    ("name", "says"),
    [("h100-80g@flash-atention-2", "did you mean flash-attention-2"), ("a100-80g@new", "one stack only")],
)
def test_an_unknown_stack_is_answered_with_the_near_ones(name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        REGISTRY.device(name)
