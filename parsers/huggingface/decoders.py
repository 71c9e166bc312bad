"""Decoders of softmax attention and MLPs or experts, layer by layer alike but for windows and experts: a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from taylor.parsers.huggingface.attention import (
    HEAD_NORM,
    HEADS_NORM,
    INTERMEDIATE,
    WIDTH_NORM,
    ExpertRule,
    Switch,
    dense_block,
    experts_block,
    head_size,
    shared_bias,
    softmax_attention,
    switched,
)
from taylor.parsers.huggingface.reaches import (
    Placement,
    Rule,
    after_dense,
    after_first,
    after_layer,
    all_full,
    all_sliding,
    early_alternating,
    ernie_span,
    every_step,
    everywhere,
    experts_of,
    full_every,
    full_first_of,
    late_sliding,
    later_sliding,
    llama4_steps,
    reaches_of,
    switched_sliding,
    without_positions,
)
from taylor.parsers.huggingface.shape import Described, decoder_layer
from taylor.parsers.huggingface.values import HEADS, HIDDEN, LAYERS, Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.layers import CHUNKED, SLIDING


@dataclass(frozen=True)
class Decoder:
    """Differences of a model type's decoder from Llama's.

    Parameters
    ----------
    bias, output_bias, mlp_bias : bool or str
        Biases of Q, K, V, of the attention output, of the MLP and shared experts: always, never, or by a field's name.
    gated : bool
        Three matrices an MLP.
    qk_norm : str
        Norms on queries and keys: ``head``, ``heads`` or ``width``.
    qk_norm_switch : str
        The field that switches them on; always on when empty.
    norms : int
        Norms a layer.
    post_norms : str
        A field that switches two further norms on.
    norm_bias : bool
        Biases of the norms.
    reach : Rule
        Attention window of each layer where the file does not list it.
    experts : ExpertRule or None
        Its description of experts.
    placement : Placement
        Layers that have them where the file does not list it.
    dense_width : tuple of str
        Fields with the width of the dense MLP.
    sinks : bool
        One learned logit a head.
    gate : str
        A gate on the attention's context.
    layer_extra : int
        Parameters of a layer that nothing else counts.
    positions : callable or None
        Rows of the learned position embedding.
    extra : callable or None
        Parameters beside layers, embedding and head.
    fixed : tuple of (str, value, str)
        Fields that are read for one value alone, and why.
    left_out : callable or None
        Layers at the end that the file counts and the model does not have.
    """

    bias: Switch = False
    output_bias: Switch = False
    mlp_bias: Switch = False
    gated: bool = True
    qk_norm: str = ""
    qk_norm_switch: str = ""
    norms: int = 2
    post_norms: str = ""
    norm_bias: bool = False
    reach: Rule = all_full
    experts: ExpertRule | None = None
    placement: Placement = everywhere
    dense_width: tuple[str, ...] = INTERMEDIATE
    sinks: bool = False
    gate: str = ""
    layer_extra: int = 0
    positions: Callable[[Values], int] | None = None
    extra: Callable[[Values], int] | None = None
    fixed: tuple[tuple[str, object, str], ...] = ()
    left_out: Callable[[Values], int] | None = None

    def read(self, values: Values) -> Described:
        """The layers of a configuration of this model type."""
        for field, wanted, why in self.fixed:
            values.must_be(field, wanted, why)
        count = values.size(*LAYERS, high=MAX_LAYERS) - (self.left_out(values) if self.left_out is not None else 0)
        on = bool(self.qk_norm) and (not self.qk_norm_switch or values.flag(self.qk_norm_switch))
        if not self.qk_norm_switch:
            values.must_be("use_qk_norm", bool(self.qk_norm), "this model type is not known otherwise")
        values.asked.update(
            (*self.dense_width, self.qk_norm_switch, "max_window_layers", "use_sliding_window", "n_shared_experts")
        )
        norms = self.norms + (2 if self.post_norms and values.flag(self.post_norms) else 0)
        reaches = reaches_of(values, count, self.reach)
        routed = experts_of(values, count, self.placement) if self.experts is not None else [False] * count
        attentions = {
            reach: softmax_attention(
                values,
                reach,
                bias=self.bias,
                output_bias=self.output_bias,
                qk_norm=self.qk_norm if on else "",
                sinks=self.sinks,
                gate=self.gate,
            )
            for reach in dict.fromkeys(reaches)
        }
        moe = experts_block(values, self.experts) if self.experts is not None and any(routed) else None
        shared = shared_bias(values, self.mlp_bias, moe)
        if not all(routed):
            mlp = dense_block(values, gated=self.gated, bias=self.mlp_bias, width=self.dense_width)
        layers = [
            decoder_layer(
                attentions[reach],
                moe if moe is not None and experts else mlp,
                None if norms == 2 else norms,
                self.layer_extra + (shared if experts else 0),
            )
            for reach, experts in zip(reaches, routed, strict=True)
        ]
        return Described(
            layers,
            norm_bias=self.norm_bias,
            learned_positions=self.positions(values) if self.positions is not None else 0,
            extra_parameters=self.extra(values) if self.extra is not None else 0,
        )


def _embedding_norm(values: Values) -> int:
    return 2 * values.size(*HIDDEN)


def _square_output(values: Values) -> int:
    """Helium's output projection is as wide as the model on both sides, which its heads must then be together."""
    heads, size, hidden = values.size(*HEADS), head_size(values), values.size(*HIDDEN)
    if heads * size != hidden:
        raise values.error("head_dim", f"times {heads} heads must be the hidden size {hidden}", size)
    return 0


def _whole_embedding(values: Values) -> int:
    """OPT-350M's embedding is narrower than its layers, with a projection on both sides."""
    values.must_be("word_embed_proj_dim", values.size(*HIDDEN), "a narrower embedding is not counted")
    return 0


def _head_bias(switch: Switch) -> Callable[[Values], int]:
    return lambda values: values.size("vocab_size") if switched(values, switch) else 0


def _removed_tail(values: Values) -> int:
    """Layers that ERNIE's trainer takes away again: true is one."""
    written = values.value("remove_tail_layer")[1]
    layers = values.size(*LAYERS, high=MAX_LAYERS)
    return int(written) if isinstance(written, bool) else values.whole("remove_tail_layer", written, 0, layers - 1)


def _row_a_position(field: str, more: int = 0) -> Callable[[Values], int]:
    return lambda values: values.size(field) + more


_ATTENTION = Decoder(bias="attention_bias", output_bias="attention_bias")
_LLAMA = replace(_ATTENTION, mlp_bias="mlp_bias")
_SHARED = ExpertRule(shared=True)
_WIDE = ExpertRule(width=("intermediate_size",))
_WIDE_AND_SHARED = replace(_WIDE, shared_width="shared_intermediate_size")


DECODERS: dict[str, Decoder] = {
    # Llama and its nearest kin.
    "llama": _LLAMA,
    "granite": _LLAMA,
    "internlm3": _LLAMA,
    "iquestcoder": _LLAMA,
    "helium": Decoder(bias="attention_bias", mlp_bias="mlp_bias", extra=_square_output),
    "arcee": replace(_LLAMA, gated=False),
    "hyperclovax": replace(_LLAMA, post_norms="use_post_norm"),
    "granite_swa": replace(_LLAMA, sinks=True, reach=full_first_of(4)),
    "granitemoe_swa": replace(_ATTENTION, sinks=True, reach=full_first_of(4), experts=_WIDE_AND_SHARED),
    "smollm3": replace(_LLAMA, reach=without_positions(SLIDING, "use_sliding_window")),
    "cwm": Decoder(mlp_bias="mlp_bias", reach=full_first_of(4)),
    "mistral": Decoder(reach=all_sliding),
    "ministral": Decoder(reach=all_sliding),
    "ministral3": Decoder(reach=all_sliding),
    "phi3": Decoder(reach=all_sliding),
    "seed_oss": Decoder(bias="attention_bias", output_bias="attention_out_bias", mlp_bias="mlp_bias"),
    "ernie4_5": Decoder(bias="use_bias", output_bias="use_bias", mlp_bias="use_bias"),
    "jais2": replace(_LLAMA, gated=False, norm_bias=True),
    "hunyuan_v1_dense": replace(_ATTENTION, qk_norm=HEAD_NORM),
    # Qwen.
    "qwen2": Decoder(bias=True, reach=late_sliding),
    "qwen2_moe": Decoder(
        bias="qkv_bias",
        reach=early_alternating,
        experts=ExpertRule(shared_width="shared_expert_intermediate_size", shared_gate=True),
        placement=every_step,
    ),
    "qwen3": replace(_ATTENTION, qk_norm=HEAD_NORM, reach=late_sliding),
    "qwen3_moe": replace(
        _ATTENTION, qk_norm=HEAD_NORM, reach=switched_sliding, experts=ExpertRule(), placement=every_step
    ),
    "qwen3_vl_text": replace(_ATTENTION, qk_norm=HEAD_NORM),
    # Gemma; Gemma 2 and 3 have a norm behind attention and MLP as well.
    "gemma": _ATTENTION,
    "gemma2": replace(_ATTENTION, norms=4, reach=full_every(2)),
    "gemma3_text": replace(
        _ATTENTION, qk_norm=HEAD_NORM, norms=4, reach=full_every(6, "sliding_window_pattern", "_sliding_window_pattern")
    ),
    "vaultgemma": replace(_ATTENTION, reach=full_every(2)),
    # GLM, dots, Solar, Hunyuan, EXAONE and others after DeepSeek-V3's experts.
    "glm": Decoder(bias="attention_bias"),
    "glm4": Decoder(bias="attention_bias", norms=4),
    "glm4_moe": Decoder(
        bias="attention_bias",
        qk_norm=HEAD_NORM,
        qk_norm_switch="use_qk_norm",
        experts=_SHARED,
        placement=after_first,
    ),
    "solar_open": Decoder(bias="attention_bias", experts=_SHARED),
    "dots1": replace(_ATTENTION, qk_norm=HEAD_NORM, reach=later_sliding, experts=_SHARED, placement=after_first),
    "hy_v3": replace(_ATTENTION, mlp_bias="mlp_bias", qk_norm=HEAD_NORM, experts=_SHARED, placement=after_layer(1)),
    "mellum": replace(_ATTENTION, qk_norm=HEAD_NORM, experts=ExpertRule()),
    "exaone4": Decoder(qk_norm=HEAD_NORM, reach=full_every(4, "sliding_window_pattern")),
    "exaone_moe": Decoder(
        qk_norm=HEAD_NORM,
        reach=full_every(4, "sliding_window_pattern"),
        experts=_SHARED,
        placement=after_first,
    ),
    "afmoe": replace(
        _ATTENTION,
        qk_norm=HEAD_NORM,
        norms=4,
        gate="width",
        reach=full_every(4, "global_attn_every_n_layers"),
        experts=ExpertRule(shared=True, correction_bias=True),
        placement=after_dense("num_dense_layers"),
    ),
    "ernie4_5_moe": Decoder(
        bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        experts=ExpertRule(shared=True, correction_bias=True),
        placement=ernie_span,
        extra=_head_bias("use_bias"),
    ),
    "ernie": Decoder(  # PaddlePaddle's own trainer
        bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        experts=_SHARED,
        placement=ernie_span,
        left_out=_removed_tail,
        fixed=(("use_qk_norm", False, "norms on queries and keys are not counted"),),
    ),
    "bailing_moe": Decoder(  # Ling
        bias="use_qkv_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        qk_norm=HEAD_NORM,
        qk_norm_switch="use_qk_norm",
        experts=_SHARED,
        placement=after_first,
    ),
    # Mixtral and others whose experts are as wide as `intermediate_size` says.
    "mixtral": Decoder(reach=all_sliding, experts=_WIDE),
    "minimax_m2": Decoder(qk_norm=WIDTH_NORM, experts=_WIDE),
    "olmoe": replace(_ATTENTION, qk_norm=WIDTH_NORM, experts=_WIDE),
    "granitemoe": replace(_ATTENTION, experts=_WIDE),
    "granitemoeshared": replace(_ATTENTION, experts=_WIDE_AND_SHARED),
    "phimoe": replace(_ATTENTION, norm_bias=True, reach=all_sliding, experts=_WIDE, extra=_head_bias("lm_head_bias")),
    "gpt_oss": replace(
        _ATTENTION,
        sinks=True,
        reach=full_every(2),
        experts=ExpertRule(width=("intermediate_size",), router_bias=True, expert_bias=True),
    ),
    # The experts of Llama 4 have a shared one as wide; its norms on queries and keys have no weights.
    "llama4_text": replace(
        _ATTENTION,
        reach=without_positions(CHUNKED),
        experts=ExpertRule(width=("intermediate_size",), shared_width="intermediate_size"),
        placement=llama4_steps,
        dense_width=("intermediate_size_mlp",),
        qk_norm_switch="use_qk_norm",
    ),
    # OLMo 2 and 3 have their two norms behind attention and MLP.
    "olmo2": replace(_ATTENTION, qk_norm=WIDTH_NORM),
    "olmo3": replace(_ATTENTION, qk_norm=WIDTH_NORM, reach=full_every(4)),
    "flex_olmo": replace(_ATTENTION, qk_norm=WIDTH_NORM, experts=_WIDE),
    "apertus": replace(_ATTENTION, gated=False, qk_norm=HEAD_NORM, layer_extra=2),  # xIELU's two weights a layer
    "nemotron": replace(_LLAMA, gated=False, norm_bias=True),
    # One norm a layer: attention and MLP run side by side.
    "cohere": replace(_ATTENTION, norms=1, qk_norm=HEADS_NORM, qk_norm_switch="use_qk_norm"),
    "cohere2": replace(_ATTENTION, norms=1, reach=full_every(4, "sliding_window_pattern")),
    "phi": Decoder(
        bias=True,
        output_bias=True,
        mlp_bias=True,
        gated=False,
        norms=1,
        norm_bias=True,
        extra=_head_bias(True),
        fixed=(("qk_layernorm", False, "norms on queries and keys are not counted"),),
    ),
    # GPT.
    "gpt2": Decoder(
        bias=True,
        output_bias=True,
        mlp_bias=True,
        gated=False,
        norm_bias=True,
        positions=_row_a_position("n_positions"),
    ),
    "gpt_neox": replace(_ATTENTION, mlp_bias=True, gated=False, norm_bias=True),
    "gptj": Decoder(mlp_bias=True, gated=False, norms=1, norm_bias=True, extra=_head_bias(True)),
    "bloom": Decoder(bias=True, output_bias=True, mlp_bias=True, gated=False, norm_bias=True, extra=_embedding_norm),
    "opt": Decoder(
        bias="enable_bias",
        output_bias="enable_bias",
        mlp_bias="enable_bias",
        gated=False,
        norm_bias=True,
        positions=_row_a_position("max_position_embeddings", 2),
        extra=_whole_embedding,
        fixed=(
            ("layer_norm_elementwise_affine", True, "norms without weights are not counted"),
            ("_remove_final_layer_norm", False, "a model without a last norm is not counted"),
            ("do_layer_norm_before", True, "a model without a last norm is not counted"),
        ),
    ),
    "starcoder2": Decoder(
        bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", gated=False, norm_bias=True, reach=all_sliding
    ),
    "stablelm": Decoder(
        bias="use_qkv_bias",
        norm_bias=True,
        fixed=(
            ("qk_layernorm", False, "norms on queries and keys are not counted"),
            ("use_parallel_residual", False, "its layers have one norm less"),
        ),
    ),
}
"""By ``model_type``. Sources: `model_types.yaml`."""
