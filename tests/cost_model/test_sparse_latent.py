"""Sparse latent attention in the space of its latents, against torch on the operations that Megatron-LM runs.

Megatron-LM d98e8a64 megatron/core/transformer/experimental_attention_variant: absorbed_mla.py:588-668 (queries, keys),
dsa.py:171-178 (values), dsa_cudnn_kernels.py:2376-2472, 2525-2556 (what the kernels keep), dsa.py:1159-1207, 517-560
(the indexer).
"""

from __future__ import annotations

from typing import Any

import pytest

from taylor.cost_model.job.sparse_latent import sparse_latent
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.time.indexer import indexer_time
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import layer_time
from taylor.cost_model.time.work import layer_work
from taylor.pipeline.plan import NONE
from taylor.register.frameworks import ATTENTION_CORE, LATENT_UP, MEGATRON
from taylor.register.layers import AttentionSpec, IndexerSpec, LayerSpec, MlaSpec
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry
from taylor.register.trainers import TRANSFORMERS

torch = pytest.importorskip("torch")

TOKENS, HEADS, TOP_K, HIDDEN = 64, 4, 16, 96
MLA = MlaSpec(kv_lora_rank=48, qk_rope_head_dim=8, qk_nope_head_dim=24, v_head_dim=32, q_lora_rank=40)
INDEX_HEADS, INDEX_DIM = 3, 16
MATRICES = MLA.q_lora_rank * INDEX_HEADS * INDEX_DIM + HIDDEN * INDEX_DIM + HIDDEN * INDEX_HEADS
INDEXER = IndexerSpec(INDEX_HEADS, INDEX_DIM, TOP_K, MATRICES + 2 * INDEX_DIM)
REUSED = IndexerSpec(0, INDEX_DIM, TOP_K, 0)
RULES = TrainingRules(framework=MEGATRON, seq_length=TOKENS, param_bytes=2, fused_norms=True)
ONE = Strategy(1, 1, 1, sp=False)
KEY = MLA.kv_lora_rank + MLA.qk_rope_head_dim


def model(indexer: IndexerSpec | None) -> ModelSpec:
    attention = AttentionSpec(HEADS, HEADS, 32, v_head_dim=MLA.v_head_dim, latent=MLA, indexer=indexer)
    layer = LayerSpec("mla", attention)
    return ModelSpec("m", 2, HIDDEN, HEADS, HEADS, 24, 192, 512, kinds=(layer,), pattern="2 mla")


class SparseAttention(torch.autograd.Function):  # type: ignore[misc,name-defined]
    """The kernel with chosen keys and what it keeps: queries, keys, choice, context, softmax statistics."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, chosen: Any) -> Any:
        taken = key[chosen.long()]
        scores = torch.einsum("tnd,tkd->tnk", query.float(), taken.float())
        context = torch.einsum("tnk,tkd->tnd", scores.softmax(-1), taken[..., : MLA.kv_lora_rank].float())
        context = context.to(query.dtype)
        ctx.save_for_backward(query, key, chosen, context, scores.logsumexp(-1))
        return context

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return None, None, None


def attention(query_latent: Any, latent: Any, rotated: Any, chosen: Any, weights: dict[str, Any]) -> Any:
    """From the normed latents to the input of the output projection."""
    query = (query_latent @ weights["q_up"]).view(TOKENS, HEADS, -1)
    own, turned = torch.split(query, [MLA.qk_nope_head_dim, MLA.qk_rope_head_dim], dim=-1)
    absorbed = torch.einsum("...nd,ndk->...nk", own, weights["k_up"]).contiguous()
    query = torch.cat([absorbed, turned], dim=-1)
    context = SparseAttention.apply(query, torch.cat([latent, rotated], dim=-1), chosen)
    context = torch.einsum("snc,ndc->snd", context, weights["v_up"]).contiguous()
    return context.view(TOKENS, -1) @ weights["out"]


def inputs() -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    def random(*sizes: int) -> Any:
        return torch.randn(*sizes, dtype=torch.bfloat16, requires_grad=True)

    weights = {
        "q_up": random(MLA.q_lora_rank or 0, HEADS * (MLA.qk_nope_head_dim + MLA.qk_rope_head_dim)),
        "k_up": random(HEADS, MLA.qk_nope_head_dim, MLA.kv_lora_rank),
        "v_up": random(HEADS, MLA.v_head_dim, MLA.kv_lora_rank),
        "out": random(HEADS * MLA.v_head_dim, HIDDEN),
    }
    chosen = torch.randint(TOKENS, (TOKENS, TOP_K), dtype=torch.int32)
    latents = (random(TOKENS, MLA.q_lora_rank or 0), random(TOKENS, MLA.kv_lora_rank))
    return (*latents, random(TOKENS, MLA.qk_rope_head_dim), chosen, weights)


def counted_bytes() -> int:
    """Bytes that torch keeps for the backward, but for weights and the latents."""
    *latents, chosen, weights = inputs()
    outside = {one.untyped_storage().data_ptr() for one in (*latents, *weights.values())}
    kept: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        result = attention(*latents, chosen, weights)
    assert result.requires_grad
    return sum(size for place, size in kept.items() if place not in outside)


def kept(indexer: IndexerSpec, **changes: Any) -> float:
    return float(activation_bytes(model(indexer), "mla", NONE, ONE, RULES.replace(**changes)))


def test_memory_from_the_latents_on_is_what_torch_keeps() -> None:
    sparse = sparse_latent(model(REUSED).kinds[0].attention, RULES)
    assert sparse is not None
    context = RULES.compute_bytes * HEADS * MLA.v_head_dim
    statistics = 4 * HEADS * MEGATRON.activations.attention_statistics
    own = sparse.projected_bytes(HEADS, RULES) + sparse.core_bytes(HEADS, RULES) + context + statistics
    assert TOKENS * own == counted_bytes()
    # All else of the layer is as with a key for each head, but the keys' normed latent, which is a key as it is.
    each_head = HEADS * (2 * 32 + MLA.qk_nope_head_dim + MLA.v_head_dim) * RULES.compute_bytes + context + statistics
    normed = RULES.compute_bytes * MLA.kv_lora_rank
    assert kept(REUSED) - kept(REUSED, keys_by_head=True) == TOKENS * (own - each_head - normed)


def test_transformers_make_keys_for_each_head() -> None:
    rules = RULES.replace(framework=TRANSFORMERS)
    assert sparse_latent(model(INDEXER).kinds[0].attention, rules) is None
    without, chosen = (activation_bytes(model(each), "mla", NONE, ONE, rules) for each in (None, INDEXER))
    assert chosen == without


def test_an_indexer_that_trains_keeps_the_gradients_of_its_queries_key_and_weights() -> None:
    gradients = TOKENS * RULES.compute_bytes * (INDEX_HEADS * INDEX_DIM + INDEX_DIM + INDEX_HEADS)
    assert kept(INDEXER, trains_indexer=True) - kept(INDEXER) == gradients
    assert kept(REUSED, trains_indexer=True) == kept(REUSED) == kept(INDEXER)


@pytest.mark.parametrize(
    ("part", "gone"),
    [
        (LATENT_UP, HEADS * (MLA.qk_nope_head_dim + MLA.qk_rope_head_dim + KEY) + KEY - MLA.kv_lora_rank),
        (ATTENTION_CORE, HEADS * MLA.kv_lora_rank + 2 * TOP_K),
    ],
)
def test_recompute_of_a_part_frees_what_it_makes_again(part: str, gone: int) -> None:
    rules = RULES.replace(selective=(part,))
    freed = [
        activation_bytes(model(REUSED), "mla", NONE, ONE, one)
        - activation_bytes(model(REUSED), "mla", "select", ONE, one)
        for one in (rules, rules.replace(keys_by_head=True))
    ]
    per_head = HEADS * (2 * 32 + MLA.qk_nope_head_dim + MLA.v_head_dim) if part == LATENT_UP else 0
    assert freed[0] - freed[1] == TOKENS * RULES.compute_bytes * (gone - per_head)


def test_flops_are_those_that_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    *latents, chosen, weights = inputs()
    with FlopCounterMode(display=False) as counter:
        attention(*latents, chosen, weights)
    work = layer_work(model(REUSED), "mla", ONE, RULES)
    down = 2 * TOKENS * HIDDEN * (MLA.q_lora_rank + KEY)
    every_key_before = model(REUSED).kinds[0].attention.seen(TOKENS, causal=True)
    assert work.matmul_flops - down + work.attention_flops * TOP_K / every_key_before == counter.get_total_flops()


@pytest.mark.parametrize("tp", [1, 2])
def test_the_choice_takes_its_products_and_half_of_the_pairs_on_every_rank(tp: int) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    x, latent = torch.randn(TOKENS, HIDDEN), torch.randn(TOKENS, MLA.q_lora_rank)
    with FlopCounterMode(display=False) as counter:
        query = (latent @ torch.randn(MLA.q_lora_rank, INDEX_HEADS * INDEX_DIM)).view(TOKENS, INDEX_HEADS, INDEX_DIM)
        key = x @ torch.randn(HIDDEN, INDEX_DIM)
        _ = x @ torch.randn(HIDDEN, INDEX_HEADS)
    products = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        torch.einsum("shd,td->sht", query, key)
    speed = Speed.of(Registry.load().device("h100-80g"), RULES, in_layer=True)
    # Every other term is traffic: of the products' operands and results, and of the scores.
    bare = indexer_time(model(INDEXER), "mla", Strategy(1, tp, 1, sp=False), RULES, speed)
    b = RULES.compute_bytes
    read = b * (TOKENS * (MLA.q_lora_rank + 2 * HIDDEN) + MATRICES)
    written = b * TOKENS * (INDEX_HEADS * INDEX_DIM + INDEX_DIM + INDEX_HEADS)
    wanted = speed.product(products, read, written) + speed.flops("attention", counter.get_total_flops() / 2)
    assert bare.forward == pytest.approx(wanted + speed.bytes(8 * TOKENS**2 / 2))
    assert bare.backward == 0


def test_a_loss_of_the_indexer_is_made_in_the_forward_and_its_weights_gradients_in_the_backward() -> None:
    speed = Speed.of(Registry.load().device("h100-80g"), RULES, in_layer=True)
    trained = indexer_time(model(INDEXER), "mla", ONE, RULES.replace(trains_indexer=True), speed)
    only_chosen = indexer_time(model(INDEXER), "mla", ONE, RULES, speed)
    seen = model(INDEXER).kinds[0].attention.seen(TOKENS, causal=True)
    loss = 2 * TOKENS * seen * (HEADS * KEY + 3 * INDEX_HEADS * INDEX_DIM)
    assert trained.forward - only_chosen.forward == pytest.approx(speed.flops("attention", loss))
    assert trained.backward > only_chosen.backward == 0


def test_a_layer_that_reuses_a_choice_is_quicker() -> None:
    device, rules = Registry.load().device("h100-80g"), RULES.replace(seq_length=1 << 17)
    reused, own, trained = (
        layer_time(model(indexer), "mla", ONE, rules.replace(trains_indexer=trains), device).forward
        for indexer, trains in ((REUSED, True), (INDEXER, False), (INDEXER, True))
    )
    assert reused < own < trained
