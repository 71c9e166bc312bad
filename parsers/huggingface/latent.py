"""Multi-head latent attention with MLPs or experts: DeepSeek-V2, V3, V3.2 and what descends from them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taylor.parsers.huggingface.attention import (
    ExpertRule,
    Switch,
    dense_block,
    experts_block,
    latent_attention,
    shared_bias,
)
from taylor.parsers.huggingface.reaches import Placement, after_first, after_layer, experts_of
from taylor.parsers.huggingface.shape import Described, decoder_layer
from taylor.parsers.huggingface.values import HIDDEN, LAYERS, Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.parsers.two_halves import two_halves
from taylor.register.layers import AttentionSpec, IndexerSpec

INDEXERS = {"full": True, "shared": False}


@dataclass(frozen=True)
class LatentDecoder:
    """Differences of a model type with latent attention from DeepSeek-V3.

    Parameters
    ----------
    bias : bool or str
        Biases of the down projections and of the output.
    mlp_bias : bool or str
        Biases of the dense MLP and of the shared experts.
    experts : ExpertRule or None
        Its description of experts.
    placement : Placement
        Layers that have them where the file does not list it.
    indexed : bool
        An indexer chooses the tokens that attention looks at (DeepSeek-V3.2).
    """

    bias: Switch = "attention_bias"
    mlp_bias: Switch = False
    experts: ExpertRule | None = ExpertRule(shared=True)
    placement: Placement = after_first
    indexed: bool = False

    def read(self, values: Values) -> Described:
        """The layers of a configuration of this model type."""
        count = values.size(*LAYERS, high=MAX_LAYERS)
        attention = latent_attention(values, bias=self.bias)
        attentions = [attention] * count
        if self.indexed:
            own, lent = _indexed(values, attention), _indexed(values, attention, own=False)
            attentions = [own if each else lent for each in _owners(values, count)]
        routed = experts_of(values, count, self.placement) if self.experts is not None else [False] * count
        moe = experts_block(values, self.experts) if self.experts is not None and any(routed) else None
        shared = shared_bias(values, self.mlp_bias, moe)
        values.asked.update(("intermediate_size", "first_k_dense_replace", "moe_layer_freq"))
        if not all(routed):
            mlp = dense_block(values, bias=self.mlp_bias)
        return Described(
            [
                decoder_layer(each, moe if moe is not None and experts else mlp, extra=shared if experts else 0)
                for each, experts in zip(attentions, routed, strict=True)
            ]
        )


def _indexed(values: Values, attention: AttentionSpec, own: bool = True) -> AttentionSpec:
    """The attention with its indexer, or with the choice of an earlier layer's (``shared``).

    Queries from the query's latent, one key with a LayerNorm, one weight a head: transformers 5.23.0
    models/deepseek_v32/modeling_deepseek_v32.py, DeepseekV32Indexer.
    """
    heads, size, top_k = values.size("index_n_heads"), values.size("index_head_dim"), values.size("index_topk")
    hidden = values.size(*HIDDEN)
    rank = attention.latent.q_lora_rank if attention.latent is not None else None
    if rank is None:
        raise values.error(
            "q_lora_rank", "is missing: the indexer needs it", None, "write the rank of the query projection"
        )
    parameters = rank * heads * size + hidden * size + 2 * size + hidden * heads
    return replace(attention, indexer=IndexerSpec(heads if own else 0, size, top_k, parameters if own else 0))


def _owners(values: Values, layers: int) -> list[bool]:
    """Return whether each layer has an indexer of its own.

    ``indexer_types`` lists it, ``index_topk_pattern`` spells it in letters, else every ``index_topk_freq``-th layer
    from ``index_skip_topk_offset`` on has one (transformers 5.23.0 models/glm_moe_dsa/configuration_glm_moe_dsa.py).
    """
    values.asked.update(("layer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset"))
    listed = values.by_layer("indexer_types", values.one_of(INDEXERS), layers)
    if listed is not None:
        return listed
    if isinstance(values.data.get("index_topk_pattern"), list):
        return values.by_layer("index_topk_pattern", values.one_of(INDEXERS), layers) or []
    letters = values.text_or_none("index_topk_pattern")
    if letters is not None:
        if len(letters) < layers or set(letters) - set("FS"):
            problem = f"must have a letter F or S for each of the {layers} layers"
            raise values.error("index_topk_pattern", problem, letters)
        return [letter == "F" for letter in letters[:layers]]
    step = max(values.size_or_none("index_topk_freq", low=0, high=MAX_LAYERS) or 1, 1)
    given = values.size_or_none("index_skip_topk_offset", low=0, high=MAX_LAYERS)
    offset = 2 if given is None else given
    return [max(at - offset + 1, 0) % step == 0 for at in range(layers)]


def longcat_flash(values: Values) -> Described:
    """LongCat-Flash: every layer has two attentions and two MLPs, and experts beside the second half of it.

    The experts are with the first half, where their tokens leave. Those that hold nothing are rows of the router alone
    (transformers 5.23.0 models/longcat_flash/modeling_longcat_flash.py).
    """
    count = values.size(*LAYERS, high=MAX_LAYERS)
    attention = latent_attention(values, bias="attention_bias")
    mlp = dense_block(values, width=("ffn_hidden_size", "intermediate_size"))
    rule = ExpertRule(width=("expert_ffn_hidden_size", "moe_intermediate_size"), router_bias=values.flag("router_bias"))
    moe = experts_block(values, rule)
    moe = replace(moe, n_empty=values.size_or_none("zero_expert_num", low=0) or 0)
    return Described([two_halves(attention, mlp, moe)] * count)


LATENT_DECODERS: dict[str, LatentDecoder] = {
    "deepseek_v2": LatentDecoder(mlp_bias="mlp_bias"),
    "deepseek_v3": LatentDecoder(),
    "deepseek_v32": LatentDecoder(indexed=True),
    "glm4_moe_lite": LatentDecoder(placement=after_layer(1)),
    "glm_moe_dsa": LatentDecoder(indexed=True),
    "mistral4": LatentDecoder(),
    "youtu": LatentDecoder(experts=None),
    "minicpm3": LatentDecoder(mlp_bias="mlp_bias", experts=None),
}
"""By ``model_type``. Sources: `model_types.yaml`."""
