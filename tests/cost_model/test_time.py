"""Times: what must hold for any device, hand-worked collectives, and how estimates order strategies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.offload import HOST_LINK_SHARE
from taylor.cost_model.memory.statics import MIB, layer_state_bytes, static_mib
from taylor.cost_model.network.collectives import (
    Copies,
    all_to_all_ms,
    gather_ms,
    in_node_bandwidth,
    ring_bandwidth,
    send_ms,
)
from taylor.cost_model.profile import TimeRatios
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import (
    _recompute_share,
    estimate_ratios,
    lag_ms,
    lags_by_stage_ms,
    layer_time,
    quick_step_ms,
    step_ms,
)
from taylor.cost_model.time.tail import tail_ms
from taylor.cost_model.time.work import layer_work, model_flops
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.register import frameworks
from taylor.register.device import DeviceSpec, LinkTier
from taylor.register.model import DENSE, MOE, ModelSpec
from taylor.register.registry import Registry

REGISTRY = Registry.load()
DEEPSEEK, LLAMA7 = REGISTRY.model("deepseek-v3-671b"), REGISTRY.model("llama2-7b")
A100, ASCEND = REGISTRY.device("a100-80g"), REGISTRY.device("ascend-910b")
MEGATRON = TrainingRules(framework=frameworks.MEGATRON, param_bytes=2)
PLAIN_LINKS = (LinkTier("domain", 100, 8, latency_us=0.001), LinkTier("fabric", 10, latency_us=0.001))
PLAIN = DeviceSpec("plain", 65536, 60000, {"bf16": 100}, 1000, PLAIN_LINKS)


def test_a_gpt_layer_makes_the_flops_of_narayanan_s_formula() -> None:
    h, s, layers, vocab = 12288, 2048, 96, 51200
    model = ModelSpec("gpt", layers, h, 96, 96, 128, 4 * h, vocab, gated_mlp=False, mlp_bias=False)
    # Equation 3 is 96·B·s·L·h²(1 + s/6h + V/16Lh) with full recompute, 72·…·(V/12Lh) without.
    expected = 72 * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert model_flops(model, s) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("tp", "ep", "cp"), [(1, 1, 1), (2, 4, 1), (4, 8, 2)])
@pytest.mark.parametrize("framework", ["mindformers", "megatron"])
def test_the_ranks_of_a_layer_share_the_model_s_flops(framework: str, tp: int, ep: int, cp: int) -> None:
    rules = TrainingRules(framework=frameworks.FRAMEWORKS[framework], flash_attention=False)
    work = layer_work(DEEPSEEK, MOE, Strategy(8, tp, 1, ep, cp), rules)
    alone = layer_work(DEEPSEEK, MOE, Strategy(8, 1, 1), rules)
    assert float(work.flops) * tp * cp == pytest.approx(float(alone.flops), rel=1e-9)


def test_a_ring_moves_all_but_its_own_share_over_the_slowest_link() -> None:
    in_node = gather_ms(8e9, 8, 1, PLAIN, 0.5)
    assert float(in_node) == pytest.approx(8e9 * 7 / 8 / (100e9 * 0.5) * 1e3, rel=1e-6)
    # 16 ranks side by side leave each node once for all eight of them; 16 of stride 8 each for itself.
    assert float(ring_bandwidth(16, 1, PLAIN)) == 80
    assert float(ring_bandwidth(16, 8, PLAIN)) == 10
    assert float(gather_ms(1e9, 1, 1, PLAIN, 1.0)) == 0


def test_a_job_in_fp32_runs_at_the_peak_of_fp32_where_the_device_states_it() -> None:
    both = replace(PLAIN, peak_tflops={"bf16": 100, "fp32": 50})
    work = (LLAMA7, DENSE, Strategy(1, 1, 1))
    half, single = replace(MEGATRON, compute_bytes=2), replace(MEGATRON, compute_bytes=4, flash_attention=False)
    assert layer_time(*work, half, both) == layer_time(*work, half, PLAIN)
    assert float(layer_time(*work, single, both).forward) > 1.5 * float(layer_time(*work, single, PLAIN).forward)


def test_a_full_mesh_gives_a_pair_one_link_of_seven() -> None:
    domain, fabric = PLAIN_LINKS
    mesh = replace(PLAIN, links=(replace(domain, full_mesh=True), fabric))
    assert [float(in_node_bandwidth(g, mesh)) for g in (2, 4, 8)] == pytest.approx([100 / 7, 300 / 7, 100])
    assert float(in_node_bandwidth(2, PLAIN)) == 100


def test_an_all_to_all_over_two_nodes_waits_for_the_network() -> None:
    assert float(all_to_all_ms(16e9, 16, 1, PLAIN, 1.0)) == pytest.approx(16e9 * 8 / 16 / 10e9 * 1e3, rel=1e-6)
    assert float(all_to_all_ms(16e9, 8, 1, PLAIN, 1.0)) == pytest.approx(16e9 * 7 / 8 / 100e9 * 1e3, rel=1e-6)


def test_a_neighbour_in_the_node_is_reached_faster_than_one_outside() -> None:
    assert float(send_ms(1e9, 4, PLAIN, 1.0)) == pytest.approx(10, rel=1e-4)
    assert float(send_ms(1e9, 8, PLAIN, 1.0)) == pytest.approx(100, rel=1e-4)


def test_a_model_with_one_kind_has_dense_forward_one_and_its_unit_in_ms() -> None:
    ratios = estimate_ratios(LLAMA7, Strategy(1, 8, 1), MEGATRON, A100)
    assert ratios.dense_forward == 1
    assert ratios.source == "estimate"
    assert ratios.unit_ms == pytest.approx(float(layer_time(LLAMA7, DENSE, Strategy(1, 8, 1), MEGATRON, A100).forward))
    assert ratios.lag == 0
    assert set(ratios.recompute) == {FULL, SELECT, NONE}


def test_deepseek_v3_s_dense_layer_takes_the_measured_share_of_a_moe_layer_on_ascend() -> None:
    ratios = estimate_ratios(DEEPSEEK, Strategy(16, 4, 16, 8, op=16, micro_batches=64), TrainingRules(), ASCEND)
    assert ratios.dense_forward == pytest.approx(0.397, rel=0.01)
    assert ratios.backward == pytest.approx(1.839, rel=0.10)
    assert ratios.recompute[FULL] == pytest.approx(1.0, rel=0.02)


MODEL_AND_DEVICE = [
    (name, device)
    for name in REGISTRY.model_names()
    for device in REGISTRY.device_names()
    if REGISTRY.device(device).fabric is not None
]


@pytest.mark.parametrize(("name", "device"), MODEL_AND_DEVICE)
def test_every_model_on_every_device_has_sane_ratios(name: str, device: str) -> None:
    ratios = estimate_ratios(
        REGISTRY.model(name), Strategy(8, 2, 2, 4, op=8, micro_batches=8), TrainingRules(), REGISTRY.device(device)
    )
    model = REGISTRY.model(name)
    layers = [layer for kind in model.kind_counts for layer in model.layers_of(kind)]
    has_experts = any(layer.moe for layer in layers)
    assert ratios.unit_ms is not None and 0 < ratios.unit_ms < 1e4
    assert 0.1 < ratios.dense_forward < 5
    # Experts with few rows move their gradients for every micro-batch, many times what else a layer does.
    assert 1.0 < ratios.backward < (8 if has_experts else 3)
    assert 0 <= ratios.recompute[SELECT] < ratios.recompute[FULL] <= 1.0
    # Selective recompute runs softmax attention again, and a model of Mamba layers alone has none.
    assert (ratios.recompute[SELECT] > 0) == any(layer.attention for layer in layers)
    assert ratios.head > 0 and ratios.embedding > 0 and ratios.lag > 0 and ratios.tail > 0


def test_without_flash_attention_selective_recompute_rebuilds_the_core() -> None:
    alone = replace(A100, operation_us=0.0)
    flash, plain = (
        estimate_ratios(LLAMA7, Strategy(1, 8, 1), MEGATRON.replace(flash_attention=on), alone) for on in (True, False)
    )
    # The kernel runs again; stored scores go through memory besides.
    assert plain.recompute[SELECT] > 2 * flash.recompute[SELECT] > 0


def test_sharding_the_optimizer_shortens_the_tail() -> None:
    whole = MEGATRON.replace(parallel_optimizer=False)
    assert tail_ms(LLAMA7, Strategy(8, 1, 2, op=8), MEGATRON, A100) < tail_ms(LLAMA7, Strategy(8, 1, 2), whole, A100)


@pytest.mark.parametrize(
    ("optimizer", "moved", "updated"),
    [
        (OptimizerStates(host_share=0.0, host_updates=True), 0, 0),
        # fp32 gradients there, bf16 weights back: one after the other, or beside each other and the longer update.
        (OptimizerStates(host_share=1.0, host_updates=True), 4 + 2, 1),
        (OptimizerStates(host_share=1.0, host_updates=True, host_overlaps=True), 0, 1),
        (OptimizerStates(host_share=0.25, host_updates=True), 1.5, 0.25),
        # MindSpeed's documentation: 12 bytes of master weight and moments, there and back.
        (OptimizerStates(host_share=1.0), 24, 0),
    ],
)
def test_an_optimizer_on_the_host_lengthens_the_tail_by_its_way_and_the_host_s_update(
    optimizer: OptimizerStates, moved: float, updated: float
) -> None:
    """CPU-Adam takes 2.57 s for ten billion parameters (ZeRO-Offload); a host updates for its eight cards."""
    rules, strategy = MEGATRON.replace(optimizer=optimizer), Strategy(8, 1, 1, op=8)
    assert (rules.gradient_bytes, rules.optimizer_bytes) == (4, 12)
    longer = tail_ms(LLAMA7, strategy, rules, A100) - tail_ms(LLAMA7, strategy, MEGATRON, A100)
    parameters = 6_738_415_616 / 8  # LLaMA2-7B's published count, an eighth a device.
    way, update = parameters * moved / (32e6 * HOST_LINK_SHARE), 8 * parameters * updated * 2570 / 10e9
    assert longer == pytest.approx(way + update, rel=0.03, abs=1e-9)
    assert longer == pytest.approx(way, rel=1e-3, abs=1e-9) or updated
    unlinked = replace(A100, host_link_gb_s=None)
    assert tail_ms(LLAMA7, strategy, rules, unlinked) == tail_ms(LLAMA7, strategy, MEGATRON, unlinked)


def test_step_time_falls_with_more_ranks_and_rises_with_recompute_and_fewer_micro_batches() -> None:
    few, many = (
        float(step_ms(LLAMA7, Strategy(dp, 2, 4, op=dp, micro_batches=64 // dp), MEGATRON, A100)) for dp in (1, 4)
    )
    assert few > 3 * many
    base = Strategy(2, 2, 4, op=2, micro_batches=32)
    plain = float(step_ms(LLAMA7, base, MEGATRON, A100))
    assert 1.2 * plain < float(step_ms(LLAMA7, base, MEGATRON, A100, {FULL: 1.0})) < 1.5 * plain
    twice = float(step_ms(LLAMA7, base.replace(micro_batches=16, mbs=2), MEGATRON, A100))
    interleaved = float(step_ms(LLAMA7, base.replace(vpp=2), MEGATRON, A100))
    assert twice > 0.95 * plain > 0.9 * interleaved
    assert interleaved < plain


def test_balancing_never_makes_a_step_longer() -> None:
    for pp in (2, 4, 8):
        strategy = Strategy(1, 2, pp, micro_batches=16)
        even, balanced = (float(step_ms(LLAMA7, strategy, MEGATRON, A100, balanced=on)) for on in (False, True))
        assert balanced <= even * (1 + 1e-9)


def table(n: int) -> StrategyTable:
    rng = np.random.default_rng(3)

    def pick(*values: int) -> np.ndarray:
        return rng.choice(np.array(values), n)

    return StrategyTable(
        dp=pick(1, 2, 8, 64), tp=pick(1, 2, 4, 8, 16), pp=pick(1, 2, 4, 8, 16), ep=pick(1, 2, 8, 32), cp=pick(1, 2, 4),
        op=pick(1, 2, 8, 64), sp=pick(0, 1).astype(bool), vpp=pick(1, 2), mbs=pick(1, 2), micro_batches=pick(4, 16, 64),
    )  # fmt: skip


@pytest.mark.parametrize("framework", ["mindformers", "megatron", "torchtitan"])
def test_quick_step_times_of_a_table_equal_those_of_its_rows(framework: str) -> None:
    rules = TrainingRules(framework=frameworks.FRAMEWORKS[framework], parameter_shard=framework == "torchtitan")
    many = table(200)
    found = quick_step_ms(DEEPSEEK, rules, many, ASCEND)
    assert found.shape == (200,) and np.isfinite(found).all() and (found > 0).all()
    for i in range(0, 200, 7):
        assert quick_step_ms(DEEPSEEK, rules, StrategyTable.from_strategies([many.row(i)]), ASCEND)[0] == found[i]


def test_tensor_parallel_beyond_the_node_is_slower() -> None:
    both = [Strategy(32 // tp, tp, 1, op=32 // tp, micro_batches=tp) for tp in (8, 32)]
    inside, outside = quick_step_ms(LLAMA7, MEGATRON, StrategyTable.from_strategies(both), A100)
    assert outside > 1.5 * inside


def test_a_device_without_efficiencies_uses_the_assumed_ones() -> None:
    assert estimate_ratios(LLAMA7, Strategy(1, 1, 1), MEGATRON, PLAIN).unit_ms > 0  # type: ignore[operator]


@pytest.mark.parametrize(("group", "copies"), [(16, 2), (32, 8), (64, 8)])
def test_a_token_that_goes_to_a_node_once_moves_what_a_draw_of_experts_does(group: int, copies: int) -> None:
    """Ranks are drawn for every copy; another node counts once, and so does a rank on the links inside."""
    drawn = np.random.default_rng(3).integers(group, size=(20_000, copies))
    assert _told_and_drawn(drawn, group, Copies(copies)) == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize(("group", "groups", "chosen"), [(64, 8, 4), (32, 8, 4), (64, 8, 2), (32, 16, 1)])
def test_experts_of_few_groups_are_reached_over_few_nodes(group: int, groups: int, chosen: int) -> None:
    """First the groups of ranks are drawn, then the ranks inside them."""
    random, rows, copies = np.random.default_rng(5), 20_000, 8
    allowed = np.argsort(random.random((rows, groups)), axis=1)[:, :chosen]
    picked = np.take_along_axis(allowed, random.integers(chosen, size=(rows, copies)), axis=1)
    drawn = picked * (group // groups) + random.integers(group // groups, size=(rows, copies))
    # The closed form takes the chosen groups as drawn one by one where several share a node.
    assert _told_and_drawn(drawn, group, Copies(copies, groups, chosen)) == pytest.approx(1, rel=0.12)


def _told_and_drawn(drawn: NDArray[np.int64], group: int, copies: Copies) -> float:
    """Time told for an all-to-all over that of ranks drawn for the copies of rows, int [rows, copies]."""
    node = PLAIN.devices_per_node
    nodes = np.mean([len({rank // node for rank in row}) for row in drawn]) * (1 - node / group)
    ranks = np.mean([len(set(row)) for row in drawn])
    outside = 16e9 / copies.number * nodes / PLAIN.inter_node_gb_s / 1e6
    inside = 16e9 / copies.number * ranks * (node - 1) / node / PLAIN.intra_node_gb_s / 1e6
    return float(all_to_all_ms(16e9, group, 1, PLAIN, 1.0, copies)) / max(outside, inside)


def test_within_a_node_a_rank_gets_a_token_once() -> None:
    once = float(all_to_all_ms(16e9, 8, 1, PLAIN, 1.0, Copies(8)))
    every = float(all_to_all_ms(16e9, 8, 1, PLAIN, 1.0))
    assert once == pytest.approx(every * (1 - (7 / 8) ** 8), rel=1e-6)


@pytest.mark.parametrize(
    ("strategy", "between_nodes"),
    [
        (Strategy(dp=1, tp=2, pp=4), [False] * 4),  # a node holds all stages
        (Strategy(dp=2, tp=2, pp=4), [False, True, False, True]),  # two stages a node; the last and the first apart
        (Strategy(dp=1, tp=3, pp=4), [False, True, True, True]),  # the third stage lies over two nodes
        (Strategy(dp=4, tp=2, pp=2), [True, True]),
    ],
)
def test_a_hand_over_is_quicker_where_no_rank_s_leaves_the_node(strategy: Strategy, between_nodes: list[bool]) -> None:
    """Nodes of 8 cards, links ten times as fast inside; the ranks of stage s are those from s times its ranks on."""
    inside = 2 * MEGATRON.seq_length * LLAMA7.hidden / strategy.tp / (100e6 * Speed.of(PLAIN, MEGATRON).network)
    lags = lags_by_stage_ms(LLAMA7, strategy, MEGATRON, PLAIN)
    assert lags == pytest.approx([inside * (10 if apart else 1) for apart in between_nodes], rel=1e-4)
    ratios = estimate_ratios(LLAMA7, strategy, MEGATRON, PLAIN)
    assert bool(ratios.lags) is (len(set(between_nodes)) > 1)
    assert ratios.unit_ms is not None and ratios.lag * ratios.unit_ms == pytest.approx(max(lags))


def test_fixed_ratios_are_those_of_the_older_tool() -> None:
    """Dense over MoE layer 0.33, backward 2, head with loss 1.5, recompute 1, selective recompute 0.33; no transfer."""
    fixed = TimeRatios()
    assert (fixed.dense_forward, fixed.backward, fixed.head) == (0.33, 2.0, 1.5)
    assert dict(fixed.recompute) == {FULL: 1.0, SELECT: 0.33, NONE: 0.0}
    assert (fixed.embedding, fixed.lag, fixed.tail, fixed.unit_ms, fixed.source) == (0.0, 0.0, 0.0, None, "given")


def test_nothing_is_recomputed_where_the_first_stage_holds_its_micro_batches() -> None:
    """1F1B keeps min(PP - s, m) micro-batches on stage s (Narayanan et al. 2021, arXiv:2104.04473 §2.2): four on the
    first of four stages, which is the fullest."""
    model, strategy = LLAMA7, Strategy(1, 1, 4, op=1, micro_batches=16)
    table = StrategyTable.from_strategies([strategy])
    states = float(layer_state_bytes(model, DENSE, strategy, MEGATRON).total) / MIB
    kept = float(activation_bytes(model, DENSE, NONE, strategy, MEGATRON)) / MIB
    need = float(static_mib(model, strategy, MEGATRON)[1]) + 8 * (states + 4 * kept)
    for room, fits in ((1, True), (-50, False)):
        device = replace(A100, usable_memory_mib=int(np.ceil(need)) + room)
        assert (float(np.max(_recompute_share(model, MEGATRON, table, device))) == 0.0) is fits


@pytest.mark.parametrize("strategy", [Strategy(1, 1, 4, cp=8), Strategy(2, 2, 4, cp=2), Strategy(8, 1, 4)])
def test_stages_of_a_node_each_send_to_another_node(strategy: Strategy) -> None:
    """Eight ranks a stage whatever they are ranks of; A100 nodes hold eight."""
    lags = lags_by_stage_ms(LLAMA7, strategy, MEGATRON, A100)
    assert lags == pytest.approx([float(lag_ms(LLAMA7, strategy, MEGATRON, A100))] * 4)


def test_two_stages_in_a_node_send_to_another_node_every_second_time() -> None:
    near, far, again, last = lags_by_stage_ms(LLAMA7, Strategy(1, 2, 4, cp=2), MEGATRON, A100)
    assert near == again < far == last


def test_ulysses_exchanges_heads_before_and_behind_attention_and_its_ring_is_shorter() -> None:
    """Jacobs et al. 2023 (arXiv:2309.14509 §3.1): queries, keys, values and context, N·h/P each, all to all."""
    rules = TrainingRules(seq_length=32768, ulysses_degree=None)
    strategy = Strategy(1, 1, 1, cp=8)
    plain = replace(PLAIN, memory_gb_s=1e12)

    def forward(rules: TrainingRules, device: DeviceSpec) -> float:
        return float(layer_time(LLAMA7, DENSE, strategy, rules, device).forward)

    heads = 4 * 32768 / 8 * LLAMA7.hidden * 2
    exchanged = all_to_all_ms(heads, 8, 1, plain, Speed.of(plain, rules).network)
    free = replace(plain, links=tuple(replace(link, gb_s=1e12, latency_us=0.0) for link in plain.links))
    assert forward(rules, plain) - forward(rules, free) == pytest.approx(float(exchanged), rel=1e-6)
    # Over slow links between nodes, a ring of two beside exchanges of four moves a third of what a ring of eight does.
    apart = replace(
        plain, links=(LinkTier("domain", 1000, 4, latency_us=0.001), LinkTier("fabric", 0.01, latency_us=0.001))
    )
    assert forward(rules.replace(ulysses_degree=4), apart) < forward(rules.replace(ulysses_degree=1), apart)
    assert forward(rules.replace(ulysses_degree=4), apart) < forward(rules, apart)


@pytest.mark.parametrize("degree", [1, 2, None])
def test_ulysses_of_a_table_is_that_of_its_rows(degree: int | None) -> None:
    rules = MEGATRON.replace(ulysses_degree=degree, seq_length=16384)
    rows = [Strategy(2, tp, 1, cp=cp) for tp in (1, 2) for cp in (1, 2, 4)]
    table = StrategyTable.from_strategies(rows)
    told = layer_time(LLAMA7, DENSE, table, rules, A100)
    alone = [layer_time(LLAMA7, DENSE, row, rules, A100) for row in rows]
    assert told.forward == pytest.approx([float(each.forward) for each in alone])
    assert told.backward == pytest.approx([float(each.backward) for each in alone])


def test_in_a_pipeline_fsdp_s_transfers_come_once_a_step() -> None:
    rules = TrainingRules(framework=frameworks.TORCHTITAN, seq_length=4096, parameter_shard=True, gradient_shard=True)
    model, device = REGISTRY.model("llama3-8b"), REGISTRY.device("h100-80g")

    def times(pp: int, micro_batches: int) -> NDArray[np.float64]:
        layer = layer_time(model, DENSE, Strategy(8, 1, pp, op=8, micro_batches=micro_batches), rules, device)
        return np.array([layer.forward, layer.backward], dtype=np.float64)

    alone, few, many, none = times(1, 8), times(4, 8), times(4, 80), times(4, 10**9)
    assert (alone > few).all() and (few > many).all()
    assert few - none == pytest.approx(10 * (many - none))
    assert few[0] - none[0] == pytest.approx((alone[0] - none[0]) / 8)
    # Weights are not gathered again in the backward, whose reduction has no computation beside it.
    assert few[1] - none[1] > 0
