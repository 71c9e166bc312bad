"""Work, traffic and memory by formulas of the papers and the sizes of the frameworks' own tensors, term by term.

A device on which all but one thing is free leaves one term of a time, which is then counted by hand.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from taylor.cost_model.job.recurrent import scan_flops
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.statics import embedding_state_bytes
from taylor.cost_model.time.expert_products import expert_products
from taylor.cost_model.time.mtp_entry import MtpEntry
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import layer_time
from taylor.cost_model.time.work import layer_work
from taylor.register import frameworks
from taylor.register.device import DeviceSpec, LinkTier
from taylor.register.model import DENSE, MOE, ModelSpec
from taylor.register.registry import Registry

REGISTRY = Registry.load()
MIXTRAL, DEEPSEEK = REGISTRY.model("mixtral-8x7b"), REGISTRY.model("deepseek-v3-671b")
LLAMA70 = REGISTRY.model("llama3-70b")
GPT3 = ModelSpec("gpt3", 96, 12288, 96, 96, 128, 49152, 50257, gated_mlp=False, tied_embedding=True,
                 learned_positions=2048)  # fmt: skip
MEGATRON = TrainingRules(framework=frameworks.MEGATRON, param_bytes=2, seq_length=4096)
BF16 = 2
SHARES = {"matmul": 0.5, "expert_operands": 0.25, "expert_results": 0.125, "network": 0.5}


def only(tflops: float = 1e12, memory_gb_s: float = 1e15, link_gb_s: float = 1e15) -> DeviceSpec:
    """A card of one node of any number on which nothing costs time but what is named."""
    links = (LinkTier("domain", link_gb_s, 4096, 0.0), LinkTier("fabric", link_gb_s, None, 0.0))
    free = DeviceSpec("card", 81920, 79872, {"bf16": tflops}, memory_gb_s, links)
    return replace(free, operation_us=0.0, efficiency=SHARES)


def speed_of(device: DeviceSpec, rules: TrainingRules) -> Speed:
    return Speed.of(device, rules, in_layer=True)


@pytest.mark.parametrize(
    ("strategy", "tokens"),
    [
        (Strategy(8, 1, 1, 1, op=8, sp=False), 4096),
        (Strategy(8, 1, 1, 8, op=8, sp=False), 4096),
        # Sequence parallel over four ranks, each expert split over them: every rank multiplies a quarter of each.
        (Strategy(2, 4, 1, 2, op=2, sp=True), 4096 / 4),
        (Strategy(4, 1, 1, 4, cp=2, op=8, sp=False, mbs=3), 3 * 4096 / 2),
    ],
)
def test_experts_multiply_three_matrices_by_every_token_that_is_sent_to_them(strategy: Strategy, tokens: float) -> None:
    """Shazeer 2020, arXiv:2002.05202: three matrices h x f; Jiang et al. 2024, arXiv:2401.04088: two experts of 8.

    Balanced, a rank multiplies as many rows as it sends; 2 FLOP a weight, and as much for either gradient.
    """
    device = only(tflops=100.0)
    flops = 2 * tokens * 2 * (3 * 4096 * 14336)
    each = flops / (100.0 * SHARES["matmul"] * 1e9)
    found = expert_products(MIXTRAL, MOE, strategy, MEGATRON, speed_of(device, MEGATRON))
    for part in (found.forward, found.input_gradients, found.weight_gradients):
        assert float(part) == pytest.approx(each, rel=1e-3)


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_experts_read_their_own_weights_once_and_every_row_once(ep: int) -> None:
    """A product C = A B reads A and B and writes C; a gradient of weights is read and written where it is added up.

    Of eight experts a rank holds 8 / EP, [h, 2f] and [f, h]; rows come in h and f wide and leave 2f and h wide.
    """
    device, rows, h, f = only(memory_gb_s=1000.0), 4096 * 2, 4096, 14336
    held = 8 / ep * 3 * h * f
    reading = 1 / (1000.0 * SHARES["expert_operands"] * 1e6)
    writing = 1 / (1000.0 * SHARES["expert_results"] * 1e6)
    found = expert_products(MIXTRAL, MOE, Strategy(8, 1, 1, ep, op=8, sp=False), MEGATRON, speed_of(device, MEGATRON))
    ahead = BF16 * (held + rows * (h + f)) * reading + BF16 * rows * (2 * f + h) * writing
    back = BF16 * (held + rows * (2 * f + h)) * reading + BF16 * rows * (h + f) * writing
    # Megatron adds gradients up in fp32, inside the product.
    of_weights = BF16 * rows * (h + 2 * f + f + h) * reading + 2 * 4 * held * writing
    told = (found.forward, found.input_gradients, found.weight_gradients)
    assert [float(part) for part in told] == pytest.approx([ahead, back, of_weights], rel=1e-6)


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize(
    ("model", "tp", "width"),
    [
        # Megatron-LM core_v0.12.0 megatron/core/transformer/multi_latent_attention.py:350-420: context parallelism
        # gets keys of 128 + 64 and values of 128 for each of the 128 heads, all of them projected up.
        (DEEPSEEK, 1, 128 * (192 + 128)),
        (DEEPSEEK, 4, 32 * (192 + 128)),
        # Ainslie et al. 2023: eight key-value heads of 128; a rank holds one at least.
        (LLAMA70, 1, 8 * (128 + 128)),
        (LLAMA70, 4, 2 * (128 + 128)),
        (LLAMA70, 16, 1 * (128 + 128)),
    ],
)
def test_context_ranks_send_their_keys_and_values_round_the_ring(
    model: ModelSpec, tp: int, width: int, cp: int
) -> None:
    """Liu et al. 2023 (arXiv:2310.01889): each of CP ranks gets the keys and values of the CP - 1 others; twice in
    backward, with their gradients."""
    rules = MEGATRON
    slow, fast = (only(link_gb_s=speed) for speed in (100.0, 200.0))
    strategy, alone = Strategy(1, tp, 1, cp=cp, op=1, sp=False), Strategy(1, tp, 1, cp=1, op=1, sp=False)

    def seconds(part: str, one: Strategy) -> float:
        times = [getattr(layer_time(model, DENSE, one, rules, device), part) for device in (slow, fast)]
        return float(times[0]) - float(times[1])

    moved = 4096 * width * BF16 * (cp - 1) / cp
    one_way = moved * (1 / 100.0 - 1 / 200.0) / (SHARES["network"] * 1e6)
    # The all-reduces of TP are over tokens, of which a context rank has its share.
    assert seconds("forward", strategy) - seconds("forward", alone) / cp == pytest.approx(one_way, rel=1e-3)
    assert seconds("backward", strategy) - seconds("backward", alone) / cp == pytest.approx(2 * one_way, rel=1e-3)


@pytest.mark.parametrize("vocab_parallel", [True, False])
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (8, 4)])
def test_every_tensor_rank_holds_all_learned_positions(tp: int, pp: int, vocab_parallel: bool) -> None:
    """Brown et al. 2020 (GPT-3): 2,048 rows of 12,288; Megatron-LM megatron/core/models/common/embeddings/
    language_model_embedding.py: a plain ``torch.nn.Embedding``, while words are a ``VocabParallelEmbedding``.

    Weights of 2 bytes, a gradient of 4, and 12 of the optimizer (Rajbhandari et al. 2020, with fp32 gradients).
    """
    rules = MEGATRON.replace(parallel_optimizer=False, vocab_parallel=vocab_parallel)
    strategy = Strategy(1, tp, pp, op=1)
    with_rows, without = (
        embedding_state_bytes(GPT3.replace(learned_positions=rows), strategy, rules) for rows in (2048, 0)
    )
    assert float(with_rows.total) - float(without.total) == pytest.approx(18 * 2048 * 12288)


@pytest.mark.parametrize("tp", [1, 4])
def test_a_gate_on_the_attention_reads_it_and_the_context_and_writes_one(tp: int) -> None:
    """Qwen3-Next: a gate as wide as the context, 16 heads of 256; Megatron-LM (d98e8a64)
    megatron/core/transformer/attention.py, ``_apply_output_gate``: the context times the sigmoid of the gate."""
    model = REGISTRY.model("qwen3-next-80b-a3b")
    kinds = tuple(
        kind if kind.attention is None else kind.replace(attention=replace(kind.attention, gate=0))
        for kind in model.kinds
    )
    [gated] = [kind.name for kind in model.kinds if kind.attention is not None]
    gated_work, plain = (
        layer_work(one, gated, Strategy(8, tp, 1, op=8, sp=False), MEGATRON)
        for one in (model, model.replace(kinds=kinds))
    )
    moved = 4096 * BF16 * 3 * (16 * 256) / tp
    assert float(gated_work.element_bytes) - float(plain.element_bytes) == pytest.approx(moved)


@pytest.mark.parametrize("name", ["nemotron-3-nano-30b-a3b", "jamba-v0.1", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b"])
@pytest.mark.parametrize("tp", [2, 4])
def test_the_ranks_of_tp_scan_together_what_one_rank_scans(name: str, tp: int) -> None:
    """Heads of a recurrence are split over TP, and none is scanned twice (Dao and Gu 2024, arXiv:2405.21060 §8.1)."""
    for kind in REGISTRY.model(name).kinds:
        if kind.recurrent is not None:
            one, many = (scan_flops(kind.recurrent, Strategy(1, ways, 1)) for ways in (1, tp))
            assert float(one) == pytest.approx(tp * float(many))


def test_what_a_shared_expert_takes_is_hidden_where_the_exchange_takes_longer() -> None:
    """DeepSeek-V3 (arXiv:2412.19437 §4.2): one shared expert, three matrices of 7168 x 2048; 2 FLOP a weight."""
    device, strategy = only(tflops=100.0, link_gb_s=1.0), Strategy(8, 1, 1, 8, op=8, sp=False)
    apart, beside = (
        layer_time(DEEPSEEK, MOE, strategy, MEGATRON.replace(overlap_shared=over), device) for over in (False, True)
    )
    shared = 2 * 4096 * (3 * 7168 * 2048) / (100.0 * SHARES["matmul"] * 1e9)
    assert float(apart.forward) - float(beside.forward) == pytest.approx(shared, rel=1e-3)
    assert float(apart.backward) - float(beside.backward) == pytest.approx(2 * shared, rel=1e-3)


@pytest.mark.parametrize("tp", [1, 4])
def test_a_prediction_module_projects_two_streams_to_one(tp: int) -> None:
    """DeepSeek-V3 (arXiv:2412.19437 eq. 21): a matrix of 7168 x 2 · 7168 before the module's layer; TP splits it."""
    device, strategy = only(tflops=100.0), Strategy(8, tp, 2, 8, op=8, sp=False)
    unit = layer_time(DEEPSEEK, DEEPSEEK.body_kind, strategy, MEGATRON, device).forward
    found = MtpEntry.of(DEEPSEEK, strategy, MEGATRON, device).projection_forward * float(unit)
    assert found == pytest.approx(2 * 4096 * (7168 * 2 * 7168) / tp / (100.0 * SHARES["matmul"] * 1e9), rel=1e-3)
