"""The model's shape from Megatron or MindSpeed flags."""

from __future__ import annotations

from taylor.parsers.megatron.deepseek4 import compressed_model, head_size, is_deepseek4
from taylor.parsers.megatron.hybrid import EXPERTS, MAX_MTP, HybridLayers, hybrid_notes, read_hybrid
from taylor.parsers.megatron.kinds import empty_positions, layer_positions
from taylor.parsers.megatron.other_layers import refuse_other_layers
from taylor.parsers.megatron.stack import as_model, decoder_layers, hybrid_layers
from taylor.parsers.megatron.vocabulary import read_vocabulary
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flags import Flags
from taylor.parsers.two_halves import two_halves
from taylor.register.layers import AttentionSpec, MlpSpec
from taylor.register.model import MlaSpec, ModelSpec, MoeSpec

_GATES = ("swiglu", "quick-geglu", "geglu", "gelu-tanh")
"""Activations with a gate, hence a third matrix; ``--openai-gelu``, ``--squared-relu`` and the default GeLU have none.

Sources: Megatron-LM main, megatron/training/arguments.py, ``core_transformer_config_from_args`` (``swiglu``,
``quick_geglu``); MindSpeed-LLM master, mindspeed_llm/core/transformer/mlp.py (``geglu``, ``gelu_tanh``).
"""

_LONGCAT = "longcat_spec"
"""Part of the ``--spec`` with which MindSpeed-LLM builds LongCat-Flash."""


def read_model(flags: Flags, notes: list[str]) -> ModelSpec:
    """Read a model's shape.

    Parameters
    ----------
    notes : list of str
        Takes what had to be assumed.
    """
    refuse_other_layers(flags)
    hybrid = read_hybrid(flags)
    if hybrid is not None:
        notes += hybrid_notes(flags, hybrid)
    layers = layer_positions(flags) - len(empty_positions(flags))
    if layers < 1:
        raise flags.error("noop-layers", "leaves no layer that does anything")
    hidden = flags.integer("hidden-size", high=MAX_SIZE)
    heads = flags.integer("num-attention-heads", high=MAX_SIZE)
    kv_heads = heads
    if flags.has("group-query-attention"):
        kv_heads = flags.integer("num-query-groups", default=1, high=MAX_SIZE)
    if heads % kv_heads:
        raise flags.error("num-query-groups", f"must divide the {heads} attention heads", kv_heads)
    compressed = is_deepseek4(flags)
    mla = None if compressed else _read_mla(flags)
    head_dim = flags.integer("kv-channels", default=head_size(flags) if compressed else None, high=MAX_SIZE)
    if head_dim is None:
        if mla is not None:
            head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        elif hidden % heads:
            raise flags.error("hidden-size", f"must be a multiple of the {heads} attention heads", hidden)
        else:
            head_dim = hidden // heads
    # Megatron's defaults: 4·hidden, and with SwiGLU (no other gate) two thirds of that, cut to a multiple of 64.
    ffn = flags.integer(
        "ffn-hidden-size",
        default=int(4 * hidden * 2 / 3 / 64) * 64 if flags.has("swiglu") else 4 * hidden,
        high=MAX_SIZE,
    )
    # --enable-gpt-oss sets YaRN (Megatron-LM main megatron/post_training/model_builder.py:298-311).
    rotary = flags.text("position-embedding-type", default="learned_absolute") != "learned_absolute" or flags.has(
        "use-rotary-position-embeddings", "enable-gpt-oss"
    )
    bias = not flags.has("disable-bias-linear")
    gated = flags.has(*_GATES)
    moe = _read_moe(flags, ffn, bias, gated, notes)
    shape = (layers, hidden, heads, kv_heads, ffn, 1 if moe is None else moe.n_experts)
    plain = ModelSpec(
        name=flags.file.stem,
        n_layers=layers,
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_hidden=ffn,
        vocab=read_vocabulary(flags, shape, notes),
        gated_mlp=gated,
        tied_embedding=not flags.has("untie-embeddings-and-output-weights"),
        learned_positions=0 if rotary else flags.integer("max-position-embeddings", high=MAX_SIZE),
        norm_bias=flags.text("normalization", default="LayerNorm") == "LayerNorm",
        attention_bias=bias or flags.has("add-qkv-bias"),
        output_bias=bias or flags.has("add-dense-bias"),
        mlp_bias=bias,
        qk_norm=mla is None and flags.has("qk-layernorm"),
        mla=mla,
        moe=moe,
        mtp_layers=flags.integer("mtp-num-layers", default=0, low=0, high=MAX_MTP)
        if hybrid is None
        else hybrid.mtp_depth,
    )
    return _with_layers(flags, plain, hybrid)


def _with_layers(flags: Flags, plain: ModelSpec, hybrid: HybridLayers | None) -> ModelSpec:
    """The model whose usual sizes are `plain`'s, with what the flags say of each of its layers."""
    attention = AttentionSpec(
        plain.n_heads,
        plain.n_kv_heads,
        plain.head_dim,
        latent=plain.mla,
        bias=plain.attention_bias,
        output_bias=plain.output_bias,
        qk_norm=plain.qk_norm,
        gate=plain.n_heads * plain.head_dim if flags.has("attention-output-gate") else 0,
        sinks=flags.text("softmax-type", default="vanilla") == "learnable",
    )
    mlp = MlpSpec(plain.ffn_hidden, plain.gated_mlp, plain.mlp_bias)
    if is_deepseek4(flags):
        layers, module, extra = compressed_model(flags, plain)
        return as_model(plain, layers, module).replace(extra_parameters=extra)
    if any(_LONGCAT in word for word in flags.words("spec")):
        if plain.moe is None:
            raise flags.error("num-experts", "is missing: the layers of this spec have experts")
        return as_model(plain, [two_halves(attention, mlp, plain.moe)] * plain.n_layers)
    if hybrid is None:
        return as_model(plain, decoder_layers(flags, attention, mlp, plain.moe))
    moe = plain.moe if EXPERTS in hybrid.letters + hybrid.mtp else None
    layers, mtp = hybrid_layers(flags, hybrid, attention, mlp, plain.moe)
    return as_model(plain.replace(moe=moe), layers, mtp)


def _read_mla(flags: Flags) -> MlaSpec | None:
    if not flags.has("multi-latent-attention", "multi-head-latent-attention"):
        return None
    return MlaSpec(
        kv_lora_rank=flags.integer("kv-lora-rank", default=32, high=MAX_SIZE),
        qk_rope_head_dim=flags.integer("qk-pos-emb-head-dim", "qk-rope-head-dim", default=64, high=MAX_SIZE),
        qk_nope_head_dim=flags.integer("qk-head-dim", "qk-nope-head-dim", default=128, high=MAX_SIZE),
        v_head_dim=flags.integer("v-head-dim", default=128, high=MAX_SIZE),
        q_lora_rank=flags.integer("q-lora-rank", default=None, high=MAX_SIZE),
    )


def _read_moe(flags: Flags, ffn: int, bias: bool, gated: bool, notes: list[str]) -> MoeSpec | None:
    """Experts; where linear layers have biases, experts and router have them too.

    Source: Megatron-LM main megatron/core/transformer/moe/experts.py:223, 246, router.py:67-72.
    """
    experts = flags.integer("num-experts", default=1, high=MAX_SIZE)
    if experts <= 1:
        return None
    if not flags.has("moe-ffn-hidden-size", "moe-intermediate-size"):
        notes.append(f"--moe-ffn-hidden-size is missing: --ffn-hidden-size {ffn} is taken for the experts")
    expert_hidden = flags.integer("moe-ffn-hidden-size", "moe-intermediate-size", default=ffn, high=MAX_SIZE)
    shared_hidden = flags.integer("moe-shared-expert-intermediate-size", default=None, high=MAX_SIZE)
    n_shared = flags.integer("n-shared-experts", default=1 if shared_hidden else 0, low=0, high=experts)
    groups = flags.integer("moe-router-num-groups", "n-group", default=1, high=experts)
    return MoeSpec(
        n_experts=experts,
        top_k=flags.integer("moe-router-topk", default=2, high=experts),
        expert_hidden=expert_hidden,
        n_shared=n_shared,
        shared_hidden=shared_hidden if n_shared else None,
        correction_bias=flags.has("moe-router-enable-expert-bias"),
        shared_gate=flags.has("moe-shared-expert-gate", "shared-expert-gate"),
        router_bias=bias,
        expert_bias=bias,
        latent=flags.integer("moe-latent-size", default=None, high=MAX_SIZE),
        gated=gated,
        n_empty=flags.integer("num-zero-experts", default=0, low=0, high=MAX_SIZE),
        n_groups=groups,
        top_groups=min(flags.integer("moe-router-group-topk", "topk-group", default=groups, high=experts), groups),
    )
