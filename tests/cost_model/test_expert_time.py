"""Time of layers with experts: products by their shapes, what the host starts, what exchanges hide behind."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.cost_model.job.strategy import GRAPHED_EXPERTS, GRAPHED_MIXER, GRAPHED_ROUTER, Strategy, TrainingRules
from taylor.cost_model.time.expert_exchange import shown_exchange_ms
from taylor.cost_model.time.expert_products import expert_products
from taylor.cost_model.time.launches import host_time
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import layer_time
from taylor.cost_model.time.work import slice_passes
from taylor.register import frameworks
from taylor.register.model import DENSE, MOE, ModelSpec
from taylor.register.narrow_products import BLOCKWISE, MXFP8, TENSORWISE
from taylor.register.registry import Registry

REGISTRY = Registry.load()
QWEN, DEEPSEEK = REGISTRY.model("qwen3-30b-a3b"), REGISTRY.model("deepseek-v3-671b")
H100, H800, B200 = (REGISTRY.device(name) for name in ("h100-80g", "h800-80g", "b200-180g"))
MEGATRON = TrainingRules(framework=frameworks.MEGATRON, param_bytes=2, expert_tensor_parallel=False)
EIGHT = Strategy(8, 1, 1, 8, op=8, sp=False)
WHOLE = (GRAPHED_MIXER, GRAPHED_ROUTER, GRAPHED_EXPERTS)

DEEP_GEMM = [
    (1, 4096, 2112, 7168, 1058), (1, 4096, 24576, 1536, 990), (1, 4096, 32768, 512, 590), (1, 4096, 7168, 16384, 1358),
    (1, 4096, 4096, 7168, 1304), (1, 4096, 7168, 2048, 1025), (4, 8192, 4096, 7168, 1297), (4, 8192, 7168, 2048, 1099),
    (8, 4096, 4096, 7168, 1288), (8, 4096, 7168, 2048, 1093), (1, 1024, 4096, 7168, 1233), (1, 1024, 7168, 2048, 925),
    (2, 512, 4096, 7168, 1040), (2, 512, 7168, 2048, 916), (4, 256, 4096, 7168, 932), (4, 256, 7168, 2048, 815),
]  # fmt: skip
"""Groups, rows of each, width out, width in, TFLOP/s in fp8 on H800: deepseek-ai/DeepGEMM a6d97a1 README.md."""


def products(model: ModelSpec = QWEN, strategy: Strategy = EIGHT, rules: TrainingRules = MEGATRON) -> Any:
    return expert_products(model, MOE, strategy, rules, Speed.of(H100, rules, in_layer=True))


def with_experts(model: ModelSpec, **changes: int) -> ModelSpec:
    assert model.moe is not None
    return model.replace(moe=replace(model.moe, **changes))


def layer(rules: TrainingRules, model: ModelSpec = QWEN, kind: str = MOE) -> Any:
    return layer_time(model, kind, EIGHT, rules, B200)


def test_published_products_by_shape_are_met() -> None:
    """Shares of operands and results that a device without tables of kernels takes; 0.737 of the peak here."""
    card = replace(H800, efficiency={"matmul": 0.737})
    speed = Speed.of(card, MEGATRON.replace(narrow=MXFP8), in_layer=True)
    errors = []
    for groups, rows, out, inner, published in DEEP_GEMM:
        flops = 2.0 * groups * rows * out * inner
        one = speed.product if groups == 1 else speed.grouped
        told = one(flops, groups * inner * (rows + out), 2 * groups * rows * out)
        errors.append(flops / float(told) / 1e9 / published - 1)
    assert median(abs(error) for error in errors) < 0.03
    assert max(abs(error) for error in errors) < 0.17


def test_tables_of_one_library_s_products_meet_another_s_on_the_same_silicon() -> None:
    """TensorRT-LLM's GEMMs in blocks of 128 on H100, and DeepGEMM's on H800."""
    speed = Speed.of(H800, MEGATRON.replace(narrow=BLOCKWISE), in_layer=True)
    errors = []
    for groups, rows, out, inner, published in DEEP_GEMM:
        flops = 2.0 * groups * rows * out * inner
        one = speed.product if groups == 1 else speed.grouped
        told = one(flops, groups * inner * (rows + out), 2 * groups * rows * out)
        errors.append(flops / float(told) / 1e9 / published - 1)
    assert median(abs(error) for error in errors) < 0.1


@given(st.sampled_from([256, 512, 1024, 2048, 4096]), st.sampled_from([8, 16, 32, 64, 128]))
def test_the_same_work_takes_longer_with_narrower_experts(width: int, experts: int) -> None:
    """Half as wide and twice as many a token: the same products, more rows to read and write."""
    wide = with_experts(QWEN, n_experts=2 * experts, top_k=4, expert_hidden=width)
    narrow = with_experts(QWEN, n_experts=4 * experts, top_k=8, expert_hidden=width // 2)
    for one, other in zip(products(wide), products(narrow), strict=True):
        assert float(other) >= float(one) * (1 - 1e-12)
    assert float(products(narrow).forward) > float(products(wide).forward)


def test_experts_with_few_rows_spend_their_time_on_gradients_of_weights() -> None:
    """A gradient is read and written for every micro-batch, whatever it is made of."""
    few, many = (products(rules=MEGATRON.replace(seq_length=length)) for length in (1024, 32768))
    assert float(few.weight_gradients) * 32 > 2 * float(many.weight_gradients)
    assert float(few.weight_gradients) > 1.3 * float(few.input_gradients)
    assert float(many.weight_gradients) == pytest.approx(float(many.input_gradients), rel=0.1)


def test_gradients_that_are_added_by_themselves_move_more() -> None:
    apart = MEGATRON.replace(fused_accumulation=False)
    assert float(products(rules=apart).weight_gradients) > float(products().weight_gradients)
    assert float(products(rules=apart).forward) == float(products().forward)


def test_the_host_bounds_small_layers_unless_a_graph_holds_them() -> None:
    eager, graphed = layer(MEGATRON), layer(MEGATRON.replace(graphed=WHOLE))
    assert float(eager.forward) > 1.5 * float(graphed.forward)
    assert float(eager.backward) > 1.5 * float(graphed.backward)
    # Eight times the tokens keep the device busy for longer than the host takes.
    long = EIGHT.replace(mbs=16)
    slow, fast = (
        float(layer_time(QWEN, MOE, long, rules, B200).backward)
        for rules in (MEGATRON, MEGATRON.replace(graphed=WHOLE))
    )
    assert slow == fast


def test_every_part_that_a_graph_holds_saves_the_host_its_operations() -> None:
    times = [
        host_time(DEEPSEEK, MOE, EIGHT, MEGATRON.replace(graphed=WHOLE[:count]), B200)
        for count in range(len(WHOLE) + 1)
    ]
    for less, more in zip(times, times[1:], strict=False):
        assert more.backward < less.backward
    assert times[0].routed > times[1].routed > times[2].routed == 0
    assert times[2].experts > times[3].experts == 0


def test_the_host_takes_longer_for_more_local_experts_and_for_casts() -> None:
    few, many = (host_time(QWEN, MOE, EIGHT.replace(ep=ep), MEGATRON, B200) for ep in (16, 8))
    assert many.experts > few.experts and many.backward > few.backward and many.routed == few.routed
    assert host_time(QWEN, MOE, EIGHT, MEGATRON.replace(narrow=MXFP8), B200).backward > many.backward


def test_dense_layers_wait_for_a_slow_host_and_compiled_frameworks_for_none() -> None:
    slow = replace(B200, operation_us=1e6)
    waiting = layer_time(DEEPSEEK, DENSE, EIGHT, MEGATRON, slow)
    assert waiting.forward > 1000 * layer_time(DEEPSEEK, DENSE, EIGHT, MEGATRON, B200).forward
    compiled = MEGATRON.replace(framework=frameworks.MINDFORMERS)
    assert layer_time(DEEPSEEK, MOE, EIGHT, compiled, slow) == layer_time(DEEPSEEK, MOE, EIGHT, compiled, B200)


def test_rows_known_beforehand_spare_the_wait_for_counts() -> None:
    waiting = MEGATRON.replace(capacity_factor=1.0, graphed=(GRAPHED_MIXER, GRAPHED_ROUTER))
    assert float(layer(waiting.replace(static_experts=True)).forward) < float(layer(waiting).forward)


@given(st.floats(0, 100), st.floats(0.01, 100))
def test_an_overlapped_exchange_shows_what_outlasts_the_computation_and_a_slow_down(
    exchange: float, both: float
) -> None:
    assert float(shown_exchange_ms(exchange, both, MEGATRON)) == exchange
    shown = float(shown_exchange_ms(exchange, both, MEGATRON.replace(overlap_experts=True)))
    assert max(exchange - both / 2, 0) <= shown <= exchange
    if exchange > 1e-9:
        assert shown > max(exchange - both / 2, 0)


def test_gathering_all_tokens_costs_more_than_an_exchange_where_a_token_has_few_of_many_experts() -> None:
    """Eight ranks gather seven times their own tokens; an exchange moves a token once for each of its experts."""
    graphed = MEGATRON.replace(graphed=WHOLE)
    for top_k, more in ((1, True), (2, True), (32, False)):
        model = with_experts(QWEN, top_k=top_k)
        gathered, sent = (float(layer(graphed.replace(gathers_tokens=on), model).forward) for on in (True, False))
        assert (gathered > sent) is more
    alone = Strategy(8, 1, 1, 1, op=8, sp=False)
    once, again = (layer_time(QWEN, MOE, alone, graphed.replace(gathers_tokens=on), B200) for on in (True, False))
    assert float(once.forward) == float(again.forward), "nothing leaves the rank"
    # token_dispatcher.py gathers what a rank holds: at TP 1 that is all of its tokens, sequence parallel or not.
    tp1 = (Strategy(8, 1, 1, 8, op=8, sp=sp) for sp in (False, True))
    plain, cut = (layer_time(QWEN, MOE, one, graphed.replace(gathers_tokens=True), B200) for one in tp1)
    assert float(plain.forward) == float(cut.forward)


def test_shared_experts_beside_the_exchange_cost_no_more_than_it() -> None:
    graphed = MEGATRON.replace(graphed=WHOLE)
    apart, beside = (layer(rules, DEEPSEEK) for rules in (graphed, graphed.replace(overlap_shared=True)))
    assert float(beside.forward) < float(apart.forward) and float(beside.backward) < float(apart.backward)
    none = graphed.replace(overlap_shared=True)
    assert layer(none) == layer(graphed), "this model has no shared experts"


def test_rows_from_other_ranks_are_read_for_their_maximum_and_padded() -> None:
    """A scale a tensor asks for the largest value first; products in 8 bits take rows in sixteens."""
    graphed = MEGATRON.replace(graphed=WHOLE, dispatch_by_node=True)
    block, tensor = (float(layer(graphed.replace(narrow=narrow)).forward) for narrow in (MXFP8, TENSORWISE))
    assert tensor > block
    padded, aligned = (
        float(layer(MEGATRON.replace(graphed=WHOLE, narrow=MXFP8, aligned_rows=rows)).forward) for rows in (False, True)
    )
    assert padded > aligned


@pytest.mark.parametrize("experts", [2, 4, 8])
def test_experts_that_take_slices_pass_over_their_rows_as_often_as_autograd_does(experts: int) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):  # type: ignore[misc]
        """Elements that are read and written outside products."""

        seen = 0

        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = op(*args, **(kwargs or {}))
            name = op.overloadpacket.__name__
            moved = {"zeros_like": 1, "clone": 2, "copy_": 2, "add": 3, "slice_backward": 1}.get(name, 0)
            self.seen += moved * result.numel() + (2 * args[0].numel() if name == "slice_backward" else 0)
            return result

    rows = torch.zeros(8 * experts, 2, requires_grad=True) * 1
    weights = [torch.zeros(2, 2, requires_grad=True) for _ in range(experts)]
    with Counter() as ahead:
        out = torch.zeros_like(rows)
        for expert, weight in enumerate(weights):
            mine = slice(8 * expert, 8 * expert + 8)
            out[mine] = rows[mine] @ weight
    with Counter() as back:
        torch.autograd.grad(out, [rows, *weights], torch.ones_like(out))
    assert (ahead.seen, back.seen) == tuple(rows.numel() * passes for passes in slice_passes(experts))


def test_experts_one_after_the_other_cost_more_the_more_a_rank_holds() -> None:
    rules = TrainingRules(framework=frameworks.MEGATRON)
    longer = [
        layer_time(QWEN, MOE, Strategy(8, 1, 1, ep), rules.replace(sliced_experts=True), H100).backward
        - layer_time(QWEN, MOE, Strategy(8, 1, 1, ep), rules, H100).backward
        for ep in (8, 2)
    ]
    assert 0 < longer[0] < longer[1]


def test_routed_experts_alone_show_no_transfer_of_tensor_parallelism_besides_their_exchange() -> None:
    """Megatron's dispatcher gathers the tokens itself; experts that all ranks share need them gathered first."""
    rules, strategy = TrainingRules(framework=frameworks.MEGATRON, seq_length=4096), Strategy(8, 4, 1, 8)
    shared = with_experts(QWEN, n_shared=1)
    slower = replace(H100, efficiency={**H100.efficiency, "network": 0.01})
    apart, together = (
        layer_time(model, MOE, strategy, rules, slower).forward - layer_time(model, MOE, strategy, rules, H100).forward
        for model in (QWEN, shared)
    )
    assert apart < together
