"""Mamba in most layers or in all, attention in some: Jamba, Bamba, Granite 4, Nemotron-H, Mamba, Mamba-2."""

from __future__ import annotations

from taylor.parsers.huggingface.attention import (
    ExpertRule,
    Switch,
    dense_block,
    experts_block,
    softmax_attention,
    switched,
)
from taylor.parsers.huggingface.shape import DENSE, EXPERTS, Described, decoder_layer, joined
from taylor.parsers.huggingface.values import EXPERTS as EXPERT_COUNT
from taylor.parsers.huggingface.values import HIDDEN, LAYERS, OWN_HEAD, Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.layers import LayerSpec, MambaSpec, MlpSpec, MoeSpec

MAMBA = "mamba"
IS_MAMBA = {"mamba": True, "linear_attention": True, "attention": False, "full_attention": False}
NEMOTRON_LETTERS = {"M": MAMBA, "*": "attn", "E": EXPERTS, "-": DENSE}
"""Letters of ``hybrid_override_pattern``: transformers 5.23.0 models/nemotron_h/configuration_nemotron_h.py."""
NEMOTRON_NAMES = {
    "mamba": MAMBA,
    "linear_attention": MAMBA,
    "attention": "attn",
    "full_attention": "attn",
    "moe": EXPERTS,
    "mlp": DENSE,
}


def jamba(values: Values) -> Described:
    """Jamba: Mamba-1 with attention in every ``attn_layer_period``-th layer, experts in every second."""
    count = values.size(*LAYERS, high=MAX_LAYERS)
    mamba, attention = _mamba1(values, inner_norms=True), softmax_attention(values)
    kinds = values.by_layer("layers_block_type", values.one_of(IS_MAMBA), count)
    if kinds is None:
        kinds = [not each for each in _periodic(values, "attn_layer", count)]
    routed = _periodic(values, "expert_layer", count)
    if values.size(*EXPERT_COUNT) == 1:
        routed = [False] * count
    moe = experts_block(values, ExpertRule(width=("intermediate_size",))) if any(routed) else None
    mlp = dense_block(values)
    return Described(
        [
            _layer(mamba, block) if kind else decoder_layer(attention, block)
            for kind, block in zip(kinds, [moe if moe and each else mlp for each in routed], strict=True)
        ]
    )


def bamba(values: Values) -> Described:
    """Bamba: Mamba-2 with attention in the layers of ``attn_layer_indices``, an MLP in every layer."""
    count = values.size(*LAYERS, high=MAX_LAYERS)
    mamba = _mamba2(values)
    attention = softmax_attention(values, bias="attention_bias", output_bias="attention_bias")
    mlp = dense_block(values, bias="mlp_bias")
    listed = (
        values.list_or_none("attn_layer_indices", lambda name, value: values.whole(name, value, 0, count - 1)) or []
    )
    return Described([decoder_layer(attention, mlp) if at in listed else _layer(mamba, mlp) for at in range(count)])


def granite_hybrid(values: Values) -> Described:
    """Granite 4: Mamba-2 and attention; experts beside a shared MLP, or that MLP alone."""
    count = values.size(*LAYERS, high=MAX_LAYERS)
    kinds = values.by_layer("layer_types", values.one_of(IS_MAMBA), count)
    kinds = kinds if kinds is not None else [True] * count
    attention = softmax_attention(values, bias="attention_bias", output_bias="attention_bias")
    block: MlpSpec | MoeSpec
    if values.size(*EXPERT_COUNT, low=0):
        rule = ExpertRule(width=("intermediate_size",), shared_width="shared_intermediate_size")
        block = experts_block(values, rule)
    else:
        block = dense_block(values, width=("shared_intermediate_size",))
    mamba = _mamba2(values) if any(kinds) else None
    return Described([_layer(mamba, block) if mamba and each else decoder_layer(attention, block) for each in kinds])


def nemotron_h(values: Values) -> Described:
    """Nemotron-H and Nemotron 3: every layer is Mamba-2, attention, experts or an MLP, with one norm."""
    values.must_be("tie_word_embeddings", False, OWN_HEAD)
    values.asked.update(("attention_bias", "expand", "mamba_expand", "intermediate_size", "n_shared_experts"))
    order = _nemotron_order(values, "layers_block_type", "hybrid_override_pattern")
    if order is None:
        order = _nemotron_order(values, "layer_types", "hybrid_override_pattern") or [MAMBA, EXPERTS, "attn", DENSE]
    module = _nemotron_order(values, "mtp_layers_block_type", "mtp_hybrid_override_pattern") or ["attn", EXPERTS]
    count = values.size_or_none(*LAYERS, high=MAX_LAYERS)
    if count is not None and count != len(order):
        values.notes.append(f"the file names {len(order)} layers in order, num_hidden_layers {count} is ignored")
    kinds = {each: _nemotron_layer(values, each) for each in dict.fromkeys([*order, *module])}
    return Described([kinds[each] for each in order], mtp=tuple(kinds[each] for each in module))


def _nemotron_order(values: Values, listed: str, spelled: str) -> list[str] | None:
    letters = values.text_or_none(spelled)
    names = values.list_or_none(listed, values.one_of(NEMOTRON_NAMES))
    if names is not None:
        return names
    if letters is None:
        return None
    letters = letters.replace("|", "")
    unknown = sorted(set(letters) - set(NEMOTRON_LETTERS))
    if unknown or not letters or len(letters) > MAX_LAYERS:
        raise values.error(spelled, f"must be letters out of {', '.join(NEMOTRON_LETTERS)}", letters)
    return [NEMOTRON_LETTERS[letter] for letter in letters]


def _nemotron_layer(values: Values, kind: str) -> LayerSpec:
    if kind == MAMBA:
        inner = values.size("mamba_num_heads") * values.size("mamba_head_dim")
        return LayerSpec(
            MAMBA,
            mamba=MambaSpec(
                inner,
                values.size("mamba_num_heads"),
                values.size("ssm_state_size"),
                values.size("n_groups", "mamba_n_groups"),
                values.size("conv_kernel", "mamba_d_conv"),
                conv_bias=switched(values, "use_conv_bias"),
                projection_bias=switched(values, "use_bias"),
            ),
        )
    if kind == "attn":
        return LayerSpec("attn", softmax_attention(values))
    if kind == DENSE:
        return LayerSpec(DENSE, mlp=dense_block(values, gated=False, bias="mlp_bias", width=("intermediate_size",)))
    values.must_be("mlp_bias", False, "biases of experts are not counted")
    rule = ExpertRule(shared_width="moe_shared_expert_intermediate_size", latent="moe_latent_size", gated=False)
    return LayerSpec(EXPERTS, moe=experts_block(values, rule))


def mamba(values: Values) -> Described:
    """Mamba and Falcon Mamba: Mamba-1 and a norm, nothing else."""
    layer = LayerSpec(MAMBA, mamba=_mamba1(values, inner_norms=False, prefix=False))
    return Described([layer] * values.size(*LAYERS, high=MAX_LAYERS))


def mamba2(values: Values) -> Described:
    """Mamba-2 and a norm, nothing else."""
    heads, size = values.size("num_heads"), values.size("head_dim")
    spec = MambaSpec(
        heads * size,
        heads,
        values.size("state_size"),
        values.size("n_groups"),
        values.size("conv_kernel"),
        conv_bias=switched(values, "use_conv_bias"),
        projection_bias=switched(values, "use_bias"),
    )
    expanded = values.size("expand", high=1024) * values.size(*HIDDEN)
    if spec.inner != expanded:
        raise values.error("num_heads", f"times head_dim must be expand times the hidden size, {expanded}", heads)
    return Described([LayerSpec(MAMBA, mamba=spec)] * values.size("num_hidden_layers", "n_layer", high=MAX_LAYERS))


def _mamba1(values: Values, *, inner_norms: bool, prefix: bool = True) -> MambaSpec:
    """The mixer of Mamba-1; Jamba's fields begin with ``mamba_``."""
    hidden = values.size(*HIDDEN)
    expand = values.size("mamba_expand" if prefix else "expand", high=1024)
    rank_field = "mamba_dt_rank" if prefix else "time_step_rank"
    name, rank = values.value(rank_field)
    return MambaSpec(
        inner=expand * hidden,
        n_heads=expand * hidden,
        state=values.size("mamba_d_state" if prefix else "state_size"),
        conv_kernel=values.size("mamba_d_conv" if prefix else "conv_kernel"),
        dt_rank=-(-hidden // 16) if rank == "auto" else values.whole(name, rank),
        conv_bias=switched(values, "mamba_conv_bias" if prefix else "use_conv_bias"),
        projection_bias=switched(values, "mamba_proj_bias" if prefix else "use_bias"),
        inner_norms=inner_norms,
        gate_norm=False,
    )


def _mamba2(values: Values, *, gate_norm: Switch = True) -> MambaSpec:
    """The mixer of Mamba-2 as Bamba and Granite 4 say it; the inner stream is `mamba_expand` times the hidden size.

    Raises
    ------
    InputError
        When heads times head size are another width.
    """
    heads, inner = values.size("mamba_n_heads"), values.size("mamba_expand", high=1024) * values.size(*HIDDEN)
    name, size = values.value("mamba_d_head")
    size = inner // heads if size == "auto" else values.whole(name, size)
    if size * heads != inner:
        raise values.error(
            "mamba_n_heads", f"times mamba_d_head must be {inner}, mamba_expand times hidden_size", heads
        )
    return MambaSpec(
        inner,
        heads,
        values.size("mamba_d_state"),
        values.size("mamba_n_groups"),
        values.size("mamba_d_conv"),
        conv_bias=switched(values, "mamba_conv_bias"),
        projection_bias=switched(values, "mamba_proj_bias"),
        gate_norm=switched(values, gate_norm),
    )


def _layer(mamba: MambaSpec, block: MlpSpec | MoeSpec) -> LayerSpec:
    if isinstance(block, MlpSpec):
        return LayerSpec(joined(MAMBA, DENSE), mamba=mamba, mlp=block)
    return LayerSpec(joined(MAMBA, EXPERTS), mamba=mamba, moe=block)


def _periodic(values: Values, what: str, layers: int) -> list[bool]:
    """Layers that are ``WHAT_offset`` beyond a multiple of ``WHAT_period``."""
    period = values.size(f"{what}_period", high=MAX_LAYERS)
    offset = values.size(f"{what}_offset", low=0, high=MAX_LAYERS)
    return [at % period == offset for at in range(layers)]
