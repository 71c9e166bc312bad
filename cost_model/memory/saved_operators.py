"""Kept and repeated parts of a layer under recompute by operator; scalars and arrays alike.

torchtitan's ``selective_ac_option = "op"`` saves, of a checkpointed layer, its input, the result of the attention
kernel, the result of every reduce-scatter, and that of every second dense GEMM, the first one included; all else runs
again (v0.1.0 torchtitan/models/llama3/infra/parallelize.py:218-262, v0.2.2
torchtitan/distributed/activation_checkpoint.py:104-124 and models/*/infra/parallelize.py). Of most models with experts
it saves the results of their all-to-all too (`TrainingRules.saves_exchanges`). Grouped GEMMs are not dense ones; the
router's is not counted (v0.2.2 torchtitan/config/job_config.py:661), nor is a GEMM with a bias, which is another
operator (``addmm``, not ``mm``).

A compiled layer keeps of these what its backward takes: not the result of its last GEMM, and of the reduce-scatter
behind it, which are only added to the stream. A test counts both with torch.
"""

from __future__ import annotations

import numpy as np

from taylor.cost_model.job.parameters import expert_outer
from taylor.cost_model.job.products import Product
from taylor.cost_model.job.recurrent import recurrent_products
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.register.layers import AttentionSpec, LayerSpec
from taylor.register.model import ModelSpec

_FP32 = 4


def attention_products(hidden: int, attention: AttentionSpec, degrees: Degrees) -> tuple[Product, ...]:
    """The dense GEMMs around a layer's softmax attention, in the order in which they run."""
    heads, mla = attention.n_heads / degrees.tp, attention.latent
    gate = (Product(hidden, attention.gate / degrees.tp),) if attention.gate else ()
    out = _output_products(hidden, heads * attention.v_width, attention, degrees)
    q, rank = heads * attention.qk_width, attention.q_rank if mla is None else mla.q_lora_rank
    bias = attention.bias and mla is None
    query = [Product(hidden, q, bias)] if rank is None else [Product(hidden, rank), Product(rank, q, bias)]
    if mla is None:
        kv_heads = np.maximum(attention.n_kv_heads / degrees.tp, 1)
        keys = Product(hidden, kv_heads * attention.head_dim, bias)
        values = () if attention.shared_kv else (Product(hidden, kv_heads * attention.v_width, bias),)
        own = () if attention.reused_kv else (keys, *values)
        return (*query, *own, *gate, *out)
    up = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    down = Product(hidden, mla.kv_lora_rank + mla.qk_rope_head_dim)
    return (*query, down, Product(mla.kv_lora_rank, up), *gate, *out)


def _output_products(hidden: int, context: Quantity, attention: AttentionSpec, degrees: Degrees) -> tuple[Product, ...]:
    rank, groups = attention.output_rank, attention.output_groups / degrees.tp
    if rank is None:
        return (Product(context, hidden, attention.output_bias),)
    # Each group of heads has a separate first half: as many weights as one of the groups' width an output.
    return Product(context, rank), Product(groups * rank, hidden, attention.output_bias)


def mixer_products(model: ModelSpec, layer: LayerSpec, degrees: Degrees) -> tuple[Product, ...]:
    """The dense GEMMs around a layer's mixer; none where it has none."""
    if layer.attention is not None:
        return attention_products(model.hidden, layer.attention, degrees)
    mixer = layer.recurrent
    return () if mixer is None else recurrent_products(model.hidden, mixer, degrees)


def mlp_products(model: ModelSpec, layer: LayerSpec, degrees: Degrees) -> tuple[Product, ...]:
    """The GEMMs of a layer's MLP and of its shared experts, in order; none where there are none."""
    result: tuple[Product, ...] = ()
    if layer.mlp is not None:
        result += _mlp(model.hidden, layer.mlp.width / degrees.tp, layer.mlp.gated, layer.mlp.bias)
    if layer.moe is not None and layer.moe.shared_width:
        result += _mlp(model.hidden, layer.moe.shared_width / degrees.tp, layer.moe.gated, False)
    return result


def _mlp(hidden: int, inner: Quantity, gated: bool, bias: bool) -> tuple[Product, ...]:
    return (*[Product(hidden, inner, bias)] * (2 if gated else 1), Product(inner, hidden, bias))


def dense_products(model: ModelSpec, layer: LayerSpec, degrees: Degrees) -> tuple[Product, ...]:
    """A layer's dense GEMMs in the order in which they run, without the router's."""
    return (*mixer_products(model, layer, degrees), *mlp_products(model, layer, degrees))


def repeated_products(model: ModelSpec, layer: LayerSpec, degrees: Degrees) -> tuple[Product, ...]:
    """A layer's dense GEMMs that run again."""
    products = dense_products(model, layer, degrees)
    return (*_counted(products)[1::2], *(product for product in products if product.bias))


def _counted(products: tuple[Product, ...]) -> tuple[Product, ...]:
    return tuple(product for product in products if not product.bias)


def ends_unkept(layer: LayerSpec, rules: TrainingRules) -> bool:
    """Return whether the backward of a layer takes nothing of the result of its last GEMM: a compiled dense MLP's."""
    return rules.compiled and layer.mlp is not None and layer.moe is None


def saved_bytes(
    model: ModelSpec, layer: LayerSpec, degrees: Degrees, rules: TrainingRules, slots: Quantity
) -> Quantity:
    """Bytes a token that one layer keeps.

    Parameters
    ----------
    slots : scalar or array [n]
        Expert slots a token (`activations.routed_slots`); 0 in a layer without experts.
    """
    h = model.hidden
    attention, outer = layer.attention, h if layer.moe is None else expert_outer(model, layer.moe)
    blocks = (layer.mixer is not None) + (layer.mlp is not None) + (layer.moe is not None)
    context: Quantity = 0.0
    statistics: Quantity = 0.0
    if attention is not None:
        heads = attention.n_heads / degrees.tp
        context = heads * attention.v_width
        statistics = heads * rules.framework.activations.attention_statistics * _FP32
    counted = _counted(dense_products(model, layer, degrees))
    products: Quantity = sum(product.width_out for product in counted[::2])
    if ends_unkept(layer, rules):
        blocks -= 1
        products = products - (
            counted[-1].width_out if len(counted) % 2 and not dense_products(model, layer, degrees)[-1].bias else 0
        )
    # The layer's input, and what comes back from the reduce-scatters behind mixer, MLP and experts.
    scattered = np.where(np.logical_and(degrees.sp, np.greater(degrees.tp, 1)), blocks * h / degrees.tp, 0.0)
    whole = np.where(degrees.sp, h / degrees.tp, h) * (_FP32 / rules.compute_bytes if rules.autocast else 1)
    exchanged = np.where(np.greater(degrees.ep, 1), 2 * slots * outer, 0.0) if rules.saves_exchanges else 0.0
    return rules.compute_bytes * (whole + context + products + scattered + exchanged) + statistics
