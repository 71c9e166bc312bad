"""From layers in order to a `ModelSpec`: kinds named, equal ones once, the order as a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from taylor.parsers.huggingface.values import HIDDEN, MTP_LAYERS, Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.layers import CHUNKED, FULL_REACH, SLIDING, AttentionSpec, LayerSpec, MlpSpec, MoeSpec
from taylor.register.model import ModelSpec
from taylor.register.pattern import pattern_of

REACH_NAMES = {FULL_REACH: "attn", SLIDING: "attn-sliding", CHUNKED: "attn-chunked"}
DENSE, EXPERTS = "dense", "moe"


@dataclass(frozen=True)
class Described:
    """Result of reading a model type.

    Parameters
    ----------
    layers : sequence of LayerSpec
        Every body layer in order; layers that are alike in all but their name may share one.
    norm_bias : bool
        Biases of the norms.
    learned_positions : int
        Rows of a learned position embedding.
    extra_parameters : int
        Parameters beside layers, embedding and head.
    mtp : tuple of LayerSpec
        The layers of one MTP module; what the last body layer is when not given.
    mtp_layers : int or None
        MTP modules where the fields that usually say it do not.
    """

    layers: Sequence[LayerSpec]
    norm_bias: bool = False
    learned_positions: int = 0
    extra_parameters: int = 0
    mtp: tuple[LayerSpec, ...] = ()
    mtp_layers: int | None = None


def joined(*parts: str) -> str:
    """A layer kind's name from those of its mixer and its blocks."""
    return "+".join(part for part in parts if part)


def attention_name(attention: AttentionSpec) -> str:
    """``attn`` or ``mla``, with how far it sees."""
    if attention.latent is not None:
        if attention.indexer is None:
            return "mla"
        return "mla-dsa" if attention.indexer.parameters else "mla-dsa(shared)"
    return "attn-sparse" if attention.indexer is not None else REACH_NAMES[attention.reach]


def decoder_layer(
    attention: AttentionSpec, block: MlpSpec | MoeSpec, norms: int | None = None, extra: int = 0
) -> LayerSpec:
    """A layer of attention and an MLP or experts."""
    mlp = block if isinstance(block, MlpSpec) else None
    moe = block if isinstance(block, MoeSpec) else None
    name = joined(attention_name(attention), DENSE if mlp else EXPERTS)
    return LayerSpec(name, attention, mlp=mlp, moe=moe, norms=norms, extra=extra)


def model_of(name: str, values: Values, found: Described, tied: bool) -> ModelSpec:
    """The model of a configuration's layers.

    Raises
    ------
    InputError
        When there are too many kinds of layers, or MTP modules of an unknown shape.
    """
    modules = found.mtp_layers
    if modules is None:
        names = MTP_LAYERS if values.has(*MTP_LAYERS) else (*MTP_LAYERS, "num_mtp_modules")
        modules = values.size_or_none(*names, low=0, high=MAX_LAYERS) or 0
    mtp = (found.mtp or (found.layers[-1],)) if modules else ()
    named = _distinguished([*found.layers, *mtp])
    body, module = named[: len(found.layers)], named[len(found.layers) :]
    kinds = tuple({each.name: each for each in named}.values())
    pattern = pattern_of([each.name for each in body])
    counts = {kind.name: sum(each.name == kind.name for each in body) for kind in kinds}
    usual = [half for kind in sorted(kinds, key=lambda kind: -counts[kind.name]) for half in kind.halves]
    attention = next((kind.attention for kind in usual if kind.attention), None)
    heads = attention or AttentionSpec(1, 1, 1)
    mlp = next((kind.mlp for kind in usual if kind.mlp), None)
    moe = next((kind.moe for kind in usual if kind.moe), None)
    first_dense = next((at for at, each in enumerate(body) if each.moe is not None), len(body))
    return ModelSpec(
        name=name,
        n_layers=len(body),
        hidden=values.size(*HIDDEN),
        n_heads=heads.n_heads,
        n_kv_heads=heads.n_kv_heads,
        head_dim=heads.head_dim,
        ffn_hidden=mlp.width if mlp is not None else moe.expert_hidden if moe is not None else 1,
        vocab=values.size("vocab_size"),
        gated_mlp=mlp.gated if mlp is not None else moe is None or moe.gated,
        tied_embedding=tied,
        learned_positions=found.learned_positions,
        norm_bias=found.norm_bias,
        attention_bias=heads.bias,
        output_bias=heads.output_bias,
        mlp_bias=mlp is not None and mlp.bias,
        qk_norm=heads.qk_norm,
        mla=heads.latent,
        moe=None if moe is None else replace(moe, first_dense=first_dense),
        mtp_layers=modules,
        kinds=kinds,
        pattern=pattern,
        mtp_kinds=tuple(each.name for each in module),
        extra_parameters=found.extra_parameters,
    )


def _distinguished(layers: Sequence[LayerSpec]) -> list[LayerSpec]:
    """The layers; those of one name that differ are distinguished by their differences."""
    by_name: dict[str, dict[LayerSpec, None]] = {}
    for layer in layers:
        by_name.setdefault(layer.name, {})[layer] = None
    names: dict[LayerSpec, str] = {}
    for name, alike in by_name.items():
        listed = list(alike)
        labels = _labels(listed)
        for layer, label in zip(listed, labels, strict=True):
            names[layer] = name if len(listed) == 1 else f"{name}({label})"
    return [layer.replace(name=names[layer]) for layer in layers]


def _labels(layers: list[LayerSpec]) -> list[str]:
    """A short text for each of some layers that says how it differs from the others."""
    facts = [_facts(layer) for layer in layers]
    distinctive = [name for name in facts[0] if len({fact[name] for fact in facts}) > 1]
    labels = ["-".join(f"{name}{fact[name]}" for name in distinctive) for fact in facts]
    if len(set(labels)) < len(labels):
        return [str(at + 1) for at in range(len(layers))]
    return labels


def _facts(layer: LayerSpec) -> dict[str, int]:
    """Sizes that layers of one name may differ in, by the letter they are shown with."""
    attention, moe = layer.attention, layer.moe
    return {
        "h": attention.n_heads if attention else 0,
        "kv": attention.n_kv_heads if attention else 0,
        "d": attention.qk_width if attention else 0,
        "w": layer.mlp.width if layer.mlp else 0,
        "e": moe.n_experts if moe else 0,
        "k": moe.top_k if moe else 0,
        "x": moe.expert_hidden if moe else 0,
        "s": moe.shared_width if moe else 0,
        "window": (attention.window or 0) if attention else 0,
        "extra": layer.extra,
    }
