"""Time of selective recompute in one layer; scalars and arrays alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from taylor.cost_model.job.products import Product
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.activations import micro_batch_tokens
from taylor.cost_model.memory.saved_operators import attention_products, mlp_products, repeated_products
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.work import LayerWork
from taylor.register.frameworks import (
    ATTENTION_CORE,
    DENSE_ACTIVATION,
    DENSE_MLP,
    EXPERT_ACTIVATION,
    EXPERT_BLOCK,
    EXPERT_ROWS,
    LATENT_UP,
    NORMS,
    SHARED_ACTIVATION,
    SHARED_EXPERTS,
    UNSAVED_OPERATORS,
)
from taylor.register.layers import LayerSpec
from taylor.register.model import ModelSpec


class LayerPieces(NamedTuple):
    """Work of a layer's forward, and times of its pieces, ms: the attention core with its scores, the grouped GEMMs,
    the collectives of TP and those of the experts."""

    work: LayerWork
    core_ms: Quantity
    grouped_ms: Quantity
    tensor_ms: Quantity
    expert_ms: Quantity


def selective_ms(
    model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, speed: Speed, pieces: LayerPieces
) -> Quantity:
    """Time of the parts that selective recompute runs again in one layer of a kind, ms.

    A block that is checkpointed gathers its input again and scatters its result again, half of a layer's
    collectives; rows that are sent again are half of the experts' own. Recompute by operator keeps the results of
    scatters and exchanges, and gathers again.
    """
    layers = model.layers_of(kind)
    work = pieces.work
    mlp = [product for layer in layers for product in mlp_products(model, layer, degrees)]
    dense = all(layer.moe is None for layer in layers)
    alone = all(layer.moe is None or (layer.mlp is not None and not layer.moe.shared_width) for layer in layers)
    shared = any(layer.moe is not None and layer.moe.shared_width for layer in layers)
    tokens, b = micro_batch_tokens(degrees, rules), rules.compute_bytes

    def product_ms(*chosen: Product) -> Quantity:
        flops = sum(2 * tokens * product.weights for product in chosen)
        read = sum(rules.operand_bytes * (p.weights + tokens * p.width_in) for p in chosen)
        return speed.product(flops, read, sum(b * tokens * p.width_out for p in chosen))

    def outside_experts_ms() -> Quantity:
        """The activation functions of MLP and shared experts."""
        return speed.bytes(work.activation_bytes - work.expert_activation_bytes)

    def dense_mlp() -> Quantity:
        if not alone or not mlp:
            return 0.0
        return product_ms(*mlp) + outside_experts_ms() + pieces.tensor_ms / 2

    def shared_experts() -> Quantity:
        if not shared:
            return 0.0
        return product_ms(*mlp) + outside_experts_ms() + pieces.tensor_ms / 2

    def experts() -> Quantity:
        routed = pieces.grouped_ms + pieces.expert_ms + speed.bytes(work.expert_activation_bytes)
        return 0.0 if dense else routed + shared_experts()

    def unsaved() -> Quantity:
        repeated = [product for layer in layers for product in repeated_products(model, layer, degrees)]
        again = product_ms(*repeated) + pieces.grouped_ms
        return again + speed.bytes(work.element_bytes) + pieces.tensor_ms / 2

    times: Mapping[str, Callable[[], Quantity]] = {
        ATTENTION_CORE: lambda: pieces.core_ms,
        NORMS: lambda: speed.bytes(work.norm_bytes),
        LATENT_UP: lambda: product_ms(*(p for layer in layers for p in _up_projections(model, layer, degrees))),
        DENSE_MLP: dense_mlp,
        DENSE_ACTIVATION: lambda: speed.bytes(work.activation_bytes),
        SHARED_ACTIVATION: lambda: outside_experts_ms() if shared else 0.0,
        EXPERT_BLOCK: experts,
        EXPERT_ACTIVATION: lambda: speed.bytes(work.expert_activation_bytes),
        EXPERT_ROWS: lambda: 0.0 if dense else pieces.expert_ms / 2,
        SHARED_EXPERTS: shared_experts,
        UNSAVED_OPERATORS: unsaved,
    }
    return sum((times[part]() for part in sorted(repeated_parts(rules))), 0.0)


def repeated_parts(rules: TrainingRules) -> set[str]:
    """Parts of a layer that selective recompute runs again, each once."""
    parts = set(rules.recomputed_parts)
    # Parts of a block run again with it, once.
    parts -= {EXPERT_ACTIVATION, EXPERT_ROWS, SHARED_EXPERTS, SHARED_ACTIVATION} if EXPERT_BLOCK in parts else set()
    parts -= {SHARED_ACTIVATION} if SHARED_EXPERTS in parts else set()
    parts -= {DENSE_ACTIVATION} if DENSE_MLP in parts else set()
    # Its time is that of all of a layer's activation functions.
    parts -= {SHARED_ACTIVATION, EXPERT_ACTIVATION} if DENSE_ACTIVATION in parts else set()
    return parts


def _up_projections(model: ModelSpec, layer: LayerSpec, degrees: Degrees) -> tuple[Product, ...]:
    """Queries and keys with values out of their latents."""
    if layer.attention is None or layer.attention.latent is None:
        return ()
    products = attention_products(model.hidden, layer.attention, degrees)
    query = 0 if layer.attention.latent.q_lora_rank is None else 1
    return products[query], products[query + 2]
