"""What a layer keeps and runs again under recompute by operator; scalars and arrays alike.

torchtitan's ``selective_ac_option = "op"`` saves, of a checkpointed layer, its input, the result of the attention
kernel, the result of every reduce-scatter and all-to-all, and that of every second dense product, the first one
included; all else runs again (v0.1.0 torchtitan/models/llama3/infra/parallelize.py:218-262, v0.2.2
torchtitan/distributed/activation_checkpoint.py:104-124 and models/*/infra/parallelize.py). Grouped products are not
dense ones; the router's is left out of the count (v0.2.2 torchtitan/config/job_config.py:661), and so is a product with
a bias, which is another operator (``addmm``, not ``mm``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from taylor.cost_model.parameters import shared_hidden
from taylor.cost_model.strategy import TrainingRules
from taylor.cost_model.strategy_table import Degrees
from taylor.register.model import DENSE, ModelSpec

_FP32 = 4


class Product(NamedTuple):
    """One dense product of a layer: what a token brings and gets on a rank, elements; whether it adds a bias."""

    width_in: Any
    width_out: Any
    bias: bool = False

    @property
    def weights(self) -> Any:
        """Elements of its matrix on a rank."""
        return self.width_in * self.width_out


def attention_products(model: ModelSpec, degrees: Degrees) -> tuple[Product, ...]:
    """The dense products around a layer's attention, in the order in which they run."""
    h, heads = model.hidden, model.n_heads / degrees.tp
    mla = model.mla
    if mla is None:
        q, kv = heads * model.head_dim, np.maximum(model.n_kv_heads / degrees.tp, 1) * model.head_dim
        bias = model.attention_bias
        return (Product(h, q, bias), Product(h, kv, bias), Product(h, kv, bias), Product(q, h, model.output_bias))
    q = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    rank = mla.q_lora_rank
    query = [Product(h, q)] if rank is None else [Product(h, rank), Product(rank, q)]
    up = heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return (
        *query,
        Product(h, mla.kv_lora_rank + mla.qk_rope_head_dim),
        Product(mla.kv_lora_rank, up),
        Product(heads * mla.v_head_dim, h, model.output_bias),
    )


def mlp_products(model: ModelSpec, kind: str, degrees: Degrees) -> tuple[Product, ...]:
    """The products of a dense layer's MLP or of a MoE layer's shared experts, in order; none where there are none."""
    if kind != DENSE and not shared_hidden(model):
        return ()
    h, inner = model.hidden, (model.ffn_hidden if kind == DENSE else shared_hidden(model)) / degrees.tp
    gates = 2 if model.gated_mlp else 1
    bias = model.mlp_bias
    return (*[Product(h, inner, bias)] * gates, Product(inner, h, bias))


def dense_products(model: ModelSpec, kind: str, degrees: Degrees) -> tuple[Product, ...]:
    """A layer's dense products in the order in which they run, the router's left out."""
    return (*attention_products(model, degrees), *mlp_products(model, kind, degrees))


def repeated_products(model: ModelSpec, kind: str, degrees: Degrees) -> tuple[Product, ...]:
    """Those of a layer's dense products that run again."""
    products = dense_products(model, kind, degrees)
    return (*_counted(products)[1::2], *(product for product in products if product.bias))


def _counted(products: tuple[Product, ...]) -> tuple[Product, ...]:
    return tuple(product for product in products if not product.bias)


def saved_bytes(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules, slots: Any) -> Any:
    """Bytes a token that one layer keeps.

    Parameters
    ----------
    slots : scalar or array [n]
        Expert slots a token (`activations.routed_slots`); 0 in a dense layer.
    """
    h, heads = model.hidden, model.n_heads / degrees.tp
    context = heads * (model.mla.v_head_dim if model.mla is not None else model.head_dim)
    products = sum(product.width_out for product in _counted(dense_products(model, kind, degrees))[::2])
    # The layer's input, and what comes back from the reduce-scatters behind attention and MLP.
    scattered = np.where(np.logical_and(degrees.sp, np.greater(degrees.tp, 1)), 2 * h / degrees.tp, 0.0)
    whole = np.where(degrees.sp, h / degrees.tp, h)
    exchanged = np.where(np.greater(degrees.ep, 1), 2 * slots * h, 0.0)
    statistics = heads * rules.framework.activations.attention_statistics * _FP32
    return rules.compute_bytes * (whole + context + products + scattered + exchanged) + statistics
