"""The model of a gpt-neox configuration.

Source of names and defaults: EleutherAI/gpt-neox ea7aefd8 megatron/neox_arguments/neox_args.py:100-330, 420-520, 1610;
megatron/model/transformer.py:93-180 (widths of the MLP), megatron/tokenizer/tokenizer.py:66-90 (the vocabulary),
megatron/model/mamba/mamba.py:25-206 (Mamba's mixer; its layer has one norm and no MLP: 317-350).
"""

from __future__ import annotations

from taylor.base.errors import shortened
from taylor.parsers.text.fields import MAX_LAYERS, MAX_SIZE, Fields
from taylor.parsers.trainer.settings import switch
from taylor.register.layers import SLIDING, AttentionSpec, LayerSpec, MambaSpec, MlpSpec
from taylor.register.model import ModelSpec, MoeSpec

GATED = ("geglu", "reglu", "swiglu", "bilinear", "glu")
FLASH, SCORED, MAMBA = "flash", ("global", "local"), "mamba"
_MAMBA_STATE, _MAMBA_TAPS, _MAMBA_RANKS = 16, 4, 16
"""State of a channel, taps of the convolution, and hidden sizes for a rank of the time step (mamba.py:53-64)."""
_TOKENS = {
    "GPT2BPETokenizer": 50257,
    "HFGPT2Tokenizer": 50257,
    "HFGPT2TokenizerFast": 50257,
    "HFTokenizer": 50277,
    "SPMTokenizer": 32000,
    "CharLevelTokenizer": 512,
    "TiktokenTokenizer": 100277,
}
"""Entries of a tokenizer by its class: GPT-2's published 50,257; of the others those of the tokenizers with which
gpt-neox's models were trained (20B_tokenizer.json, Llama's, cl100k_base), assumed for another file."""
_CERTAIN = ("GPT2BPETokenizer", "HFGPT2Tokenizer", "HFGPT2TokenizerFast", "CharLevelTokenizer")


def read_model(fields: Fields, tp: int, notes: list[str]) -> ModelSpec:
    """The model's shape.

    Raises
    ------
    InputError
        When layers are of a kind that is not modelled, or a size is missing or wrong.
    """
    layers = fields.integer("num_layers", high=MAX_LAYERS)
    recurrent = attention_kinds(fields) == {MAMBA}
    hidden = fields.integer("hidden_size", high=MAX_SIZE)
    heads = 1 if recurrent else fields.integer("num_attention_heads", high=MAX_SIZE)
    groups = 1 if recurrent else fields.integer("num_kv_heads", default=heads, high=MAX_SIZE)
    if hidden % heads:
        raise fields.error("hidden_size", f"must be a multiple of the {heads} attention heads", hidden)
    if heads % groups:
        raise fields.error("num_kv_heads", f"must divide the {heads} attention heads", groups)
    gated = fields.text("activation", default="gelu") in GATED
    bias = switch(fields, "use_bias_in_attn_linear", default=True)
    mlp_bias = switch(fields, "use_bias_in_mlp", default=True)
    norm = fields.text("norm", default="layernorm")
    width = _width(fields, hidden, gated=gated)
    learned = fields.text("pos_emb", default="learned") == "learned"
    model = ModelSpec(
        name=fields.file.stem,
        n_layers=layers,
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=groups,
        head_dim=hidden // heads,
        ffn_hidden=width,
        vocab=_vocabulary(fields, tp, notes),
        gated_mlp=gated,
        tied_embedding=not switch(fields, "no_weight_tying"),
        learned_positions=fields.integer("max_position_embeddings", high=MAX_SIZE) if learned else 0,
        norm_bias="layernorm" in norm and switch(fields, "use_bias_in_norms", default=True),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=mlp_bias,
        qk_norm=switch(fields, "use_qk_layernorm"),
        moe=_experts(fields, width),
    )
    return _with_mamba(fields, model, notes) if recurrent else _with_kinds(fields, model)


def _with_mamba(fields: Fields, model: ModelSpec, notes: list[str]) -> ModelSpec:
    """The model with Mamba in all layers, which have neither attention nor MLP."""
    inner = fields.integer("intermediate_size", default=None, high=MAX_SIZE)
    if inner is None:
        inner = int(fields.number("expansion_factor", default=2.0, low=0.01, high=1024) * model.hidden)
    mixer = MambaSpec(
        inner=inner,
        n_heads=inner,
        state=_MAMBA_STATE,
        conv_kernel=_MAMBA_TAPS,
        dt_rank=-(-model.hidden // _MAMBA_RANKS),
        conv_bias=switch(fields, "mamba_use_bias_in_conv", default=True),
        projection_bias=switch(fields, "mamba_use_bias_in_linears"),
        gate_norm=False,
    )
    if not switch(fields, "mamba_inner_func_fusion"):
        notes.append("mamba_inner_func_fusion is off: what its separate kernels keep and take is not modelled")
    return model.replace(kinds=(LayerSpec(MAMBA, mamba=mixer),), pattern=f"{model.n_layers} {MAMBA}")


def _with_kinds(fields: Fields, model: ModelSpec) -> ModelSpec:
    """The model with a window, or with one norm a layer, where the file says so; with experts in all layers."""
    window = fields.integer("sliding_window_width", default=None, high=MAX_SIZE)
    one_norm = switch(fields, "gpt_j_residual") and switch(fields, "gpt_j_tied")
    if (window is None and not one_norm) or model.moe is not None:
        return model
    reach = {} if window is None else {"reach": SLIDING, "window": window}
    attention = AttentionSpec(
        model.n_heads,
        model.n_kv_heads,
        model.head_dim,
        bias=model.attention_bias,
        output_bias=model.output_bias,
        qk_norm=model.qk_norm,
        **reach,
    )
    name = "attn+dense" if window is None else "attn-sliding+dense"
    mlp = MlpSpec(model.ffn_hidden, model.gated_mlp, model.mlp_bias)
    kind = LayerSpec(name, attention, mlp=mlp, norms=1 if one_norm else None)
    return model.replace(kinds=(kind,), pattern=f"{model.n_layers} {name}")


def attention_kinds(fields: Fields) -> set[str]:
    """Kinds of attention in the layers; ``global`` where nothing is stated.

    Raises
    ------
    InputError
        When one is not modelled.
    """
    config = fields.raw("attention_config")
    if config is None:
        return {SCORED[0]}
    found: set[str] = set()
    entries = config if isinstance(config, list) else [config]
    for entry in entries:
        named = entry[0] if isinstance(entry, list) and entry else entry
        found |= {str(name) for name in (named if isinstance(named, list) else [named])}
    for name in sorted(found):
        if name not in (FLASH, *SCORED, MAMBA):
            problem = "names layers that are not modelled"
            raise fields.error("attention_config", problem, shortened(name, 40), "write flash or global attention")
    if MAMBA in found and len(found) > 1:
        problem = "mixes Mamba with attention, whose places are not read"
        raise fields.error("attention_config", problem, cure="write one kind for all layers")
    return found


def _width(fields: Fields, hidden: int, *, gated: bool) -> int:
    """Width of the MLP: of a gated one a third of twice the size, half of it for either part."""
    size = fields.integer("intermediate_size", default=None, high=MAX_SIZE)
    if size is None:
        factor = fields.number("expansion_factor", default=4.0, low=0.01, high=1024)
        size = int(factor * hidden)
    multiple = fields.integer("mlp_multiple_of", default=1, high=MAX_SIZE)
    wide = int(size * 2 / 3) if gated else size
    wide = 2 * multiple * -(-wide // (2 * multiple))
    return wide // 2 if gated else wide


def _experts(fields: Fields, width: int) -> MoeSpec | None:
    """Experts of megablocks, in every layer.

    Raises
    ------
    InputError
        When only some layers have experts.
    """
    experts = fields.integer("moe_num_experts", default=1, high=MAX_SIZE)
    if experts <= 1:
        return None
    if fields.integer("moe_expert_interval", default=1) != 1:
        problem = "puts experts into some layers alone, which is not read"
        raise fields.error("moe_expert_interval", problem, cure="write 1")
    top = fields.integer("moe_top_k", default=1, high=experts)
    return MoeSpec(n_experts=experts, top_k=top, expert_hidden=width)


def _vocabulary(fields: Fields, tp: int, notes: list[str]) -> int:
    """Rows of the embedding: the tokenizer's entries, filled up to a multiple of a size and of the ranks."""
    stated = fields.integer("padded_vocab_size", default=None, high=MAX_SIZE)
    if stated is not None:
        return int(stated)
    kind = fields.text("tokenizer_type", default="GPT2BPETokenizer")
    if kind not in _TOKENS:
        cure = f"write one of {', '.join(_TOKENS)}, or padded_vocab_size"
        raise fields.error("tokenizer_type", "is no known tokenizer", shortened(kind, 40), cure)
    if kind not in _CERTAIN or not fields.has("tokenizer_type"):
        by = f"tokenizer_type {kind}" if fields.has("tokenizer_type") else "no tokenizer_type"
        notes.append(f"{by}: {_TOKENS[kind]:,} tokens are assumed; padded_vocab_size states another number")
    multiple = fields.integer("make_vocab_size_divisible_by", default=128, high=MAX_SIZE) * tp
    return int(-(-_TOKENS[kind] // multiple) * multiple)
