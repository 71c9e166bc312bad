"""Softmax attention, dense MLPs and experts as most model types say them."""

from __future__ import annotations

from dataclasses import dataclass

from taylor.parsers.huggingface.reaches import window_of
from taylor.parsers.huggingface.values import EXPERTS, HEADS, HIDDEN, KV_HEADS, SHARED_EXPERTS, TOP_K, Values
from taylor.register.layers import FULL_REACH, AttentionSpec, MlaSpec, MlpSpec, MoeSpec

Switch = bool | str
"""Presence of a part: always, never, or as the field of that name says."""

HEAD_NORM, HEADS_NORM, WIDTH_NORM = "head", "heads", "width"
"""Norms on queries and keys: one head's weights shared by all, weights of every head, one norm over the width."""
INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")


def switched(values: Values, switch: Switch) -> bool:
    """Return whether it is there."""
    return values.flag(switch) if isinstance(switch, str) else switch


def head_size(values: Values) -> int:
    """``head_dim``, else the hidden size over the heads, which must then divide it."""
    given = values.size_or_none("head_dim", "attention_head_dim")
    if given is not None:
        return given
    heads, hidden = values.size(*HEADS), values.size(*HIDDEN)
    if hidden % heads:
        name = values.value(*HEADS)[0]
        raise values.error(name, f"must divide the hidden size {hidden}", heads, "or give head_dim")
    return hidden // heads


def kv_heads(values: Values, heads: int) -> int:
    """Heads of keys and values: as many as of queries where the file says none; they must divide those.

    Raises
    ------
    InputError
        When they do not divide the query heads.
    """
    found = values.size_or_none(*KV_HEADS) or heads
    if heads % found:
        raise values.error(values.value(*KV_HEADS)[0], f"must divide the {heads} query heads", found)
    return found


def softmax_attention(
    values: Values,
    reach: str = FULL_REACH,
    *,
    bias: Switch = False,
    output_bias: Switch = False,
    qk_norm: str = "",
    sinks: bool = False,
    gate: str = "",
) -> AttentionSpec:
    """Multi-head or grouped-query attention.

    Parameters
    ----------
    reach : str
        ``full``, ``sliding`` or ``chunked``.
    qk_norm : str
        Norms on queries and keys, of one of the three kinds; empty for none.
    gate : str
        A gate on the context: ``width`` for one a channel, ``head`` for one a head, empty for none.
    """
    heads, size = values.size(*HEADS), head_size(values)
    keys = kv_heads(values, heads)
    weights = {"": None, HEAD_NORM: None, HEADS_NORM: (heads + keys) * size, WIDTH_NORM: (heads + keys) * size}
    return AttentionSpec(
        heads,
        keys,
        size,
        reach=reach,
        window=window_of(values, reach),
        bias=switched(values, bias),
        output_bias=switched(values, output_bias),
        qk_norm=bool(qk_norm),
        qk_norm_weights=weights[qk_norm],
        gate={"": 0, "head": heads, "width": heads * size}[gate],
        sinks=sinks,
    )


def latent_attention(values: Values, *, bias: Switch = False) -> AttentionSpec:
    """Multi-head latent attention, as DeepSeek-V2 and its descendants say it."""
    heads = values.size(*HEADS)
    rope, v_head = values.size("qk_rope_head_dim"), values.size_or_none("v_head_dim")
    latent = MlaSpec(
        kv_lora_rank=values.size("kv_lora_rank"),
        qk_rope_head_dim=rope,
        qk_nope_head_dim=values.size("qk_nope_head_dim"),
        v_head_dim=v_head if v_head is not None else values.size(*HIDDEN) // heads,
        q_lora_rank=values.size_or_none("q_lora_rank"),
    )
    values.asked.update((*KV_HEADS, "head_dim", "qk_head_dim"))
    on = switched(values, bias)
    return AttentionSpec(heads, heads, rope, latent=latent, bias=on, output_bias=on)


def dense_block(
    values: Values, *, gated: bool = True, bias: Switch = False, width: tuple[str, ...] = INTERMEDIATE, times: int = 1
) -> MlpSpec:
    """A dense MLP; where the file gives no width it is four times the hidden size, as GPT-2's class has it."""
    found = values.size_or_none(*width)
    return MlpSpec((found or 4 * values.size(*HIDDEN)) * times, gated, switched(values, bias))


def shared_bias(values: Values, switch: Switch, moe: MoeSpec | None) -> int:
    """Biases of the shared experts, where they are one MLP with biases."""
    if moe is None or not moe.shared_width or not switched(values, switch):
        return 0
    return 2 * moe.shared_width + values.size(*HIDDEN)


@dataclass(frozen=True)
class ExpertRule:
    """Description of the experts in the fields of a model type.

    Parameters
    ----------
    width : tuple of str
        Fields with the width of a routed expert.
    shared : bool
        There are shared experts, counted by the usual fields, each as wide as a routed one.
    shared_width : str
        A field with the shared experts' total width instead.
    shared_gate, router_bias, expert_bias, correction_bias, gated : bool
        As in `MoeSpec`. Most models hold the correction as no parameter, and it is left out.
    latent : str
        A field with the width of the experts' input.
    """

    width: tuple[str, ...] = ("moe_intermediate_size",)
    shared: bool = False
    shared_width: str = ""
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    correction_bias: bool = False
    gated: bool = True
    latent: str = ""


def experts_block(values: Values, rule: ExpertRule) -> MoeSpec:
    """The experts of a layer.

    Raises
    ------
    InputError
        When a token visits more experts than there are.
    """
    experts, top_k = values.size(*EXPERTS), values.size(*TOP_K)
    if top_k > experts:
        raise values.error(values.value(*TOP_K)[0], f"must be at most the {experts} experts", top_k)
    shared = (values.size_or_none(*SHARED_EXPERTS, low=0) or 0) if rule.shared else 0
    shared_width = values.size_or_none(rule.shared_width, low=0) if rule.shared_width else None
    groups = values.size_or_none("n_group") or 1
    return MoeSpec(
        n_experts=experts,
        top_k=top_k,
        expert_hidden=values.size(*rule.width),
        n_shared=shared,
        shared_hidden=(shared_width or 0) if rule.shared_width else None,
        correction_bias=rule.correction_bias,
        shared_gate=rule.shared_gate,
        router_bias=rule.router_bias,
        expert_bias=rule.expert_bias,
        latent=values.size_or_none(rule.latent) if rule.latent else None,
        gated=rule.gated,
        n_groups=groups,
        top_groups=min(values.size_or_none("topk_group") or groups, groups),
    )
