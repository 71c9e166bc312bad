"""Sizes of a registered model stated otherwise: the model of a published recipe that cuts or widens a known one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from taylor.base.errors import InputError
from taylor.base.near import did_you_mean, near_names
from taylor.register.layers import LayerSpec
from taylor.register.model import ModelSpec
from taylor.register.pattern import kinds_in_order

LARGEST, MOST_LAYERS = 2**24, 10_000
"""Largest size, and largest number of layers, that is taken."""


@dataclass(frozen=True)
class _Field:
    """One size: its names, Megatron's first, how it changes a model, and its least and largest value."""

    names: tuple[str, ...]
    change: Callable[[ModelSpec, int], ModelSpec]
    least: int = 1
    of_experts: bool = False
    one_kind: bool = False
    most: int = LARGEST


def _of_model(field: str) -> Callable[[ModelSpec, int], ModelSpec]:
    return lambda model, value: model.replace(**{field: value})


def _of_experts(field: str) -> Callable[[ModelSpec, int], ModelSpec]:
    """Change a size of the experts of every kind of layer."""

    def change(model: ModelSpec, value: int) -> ModelSpec:
        size: dict[str, Any] = {field: value}

        def changed(part: LayerSpec) -> LayerSpec:
            return part if part.moe is None else part.replace(moe=replace(part.moe, **size))

        moe = None if model.moe is None else replace(model.moe, **size)
        return model.replace(moe=moe, kinds=tuple(changed(kind) for kind in model.kinds))

    return change


def _layers(model: ModelSpec, value: int) -> ModelSpec:
    """The first layers of a model with a pattern; any number of a model without."""
    if not model.pattern:
        moe = model.moe
        if moe is not None and moe.first_dense > value:
            moe = replace(moe, first_dense=value)
        return model.replace(n_layers=value, moe=moe)
    order = kinds_in_order(model.pattern)
    if value > len(order):
        raise InputError(
            f"is more than the {len(order)} layers of {model.name}, whose order alone is known",
            field="--override num_layers", value=value, cure="state fewer, or register the model (docs/models.md)",
        )  # fmt: skip
    return model.replace(n_layers=value, pattern=", ".join(f"1 {kind}" for kind in order[:value]))


_FIELDS = (
    _Field(("num_layers", "n_layers", "num_hidden_layers"), _layers, most=MOST_LAYERS),
    _Field(("hidden_size", "hidden"), _of_model("hidden"), one_kind=True),
    _Field(("num_attention_heads", "n_heads"), _of_model("n_heads"), one_kind=True),
    _Field(("num_query_groups", "n_kv_heads", "num_key_value_heads"), _of_model("n_kv_heads"), one_kind=True),
    _Field(("kv_channels", "head_dim"), _of_model("head_dim"), one_kind=True),
    _Field(("ffn_hidden_size", "ffn_hidden", "intermediate_size"), _of_model("ffn_hidden"), one_kind=True),
    _Field(("vocab_size", "vocab", "padded_vocab_size"), _of_model("vocab")),
    _Field(("mtp_num_layers", "mtp_layers", "num_nextn_predict_layers"), _of_model("mtp_layers"), 0, most=MOST_LAYERS),
    _Field(("num_experts", "n_experts", "n_routed_experts"), _of_experts("n_experts"), of_experts=True),
    _Field(("moe_router_topk", "top_k", "num_experts_per_tok"), _of_experts("top_k"), of_experts=True),
    _Field(("moe_ffn_hidden_size", "expert_hidden", "moe_intermediate_size"), _of_experts("expert_hidden"),
           of_experts=True),
    _Field(("first_dense", "first_k_dense_replace"), _of_experts("first_dense"), 0, of_experts=True, one_kind=True),
)  # fmt: skip
_BY_NAME = {name: field for field in _FIELDS for name in field.names}

FIELDS = tuple(field.names[0] for field in _FIELDS)
"""Names of the sizes, as Megatron's flags spell them; each has Hugging Face's too."""


def overridden(model: ModelSpec, sizes: Mapping[str, Any]) -> ModelSpec:
    """A model with some sizes stated otherwise.

    Parameters
    ----------
    sizes : mapping of str to int
        By the names of `FIELDS`, or Hugging Face's or ours.

    Raises
    ------
    InputError
        With a name that is none, a value that is none, or a size that the model does not have.
    """
    for name, value in sizes.items():
        field = _BY_NAME.get(name)
        flag = f"--override {name}"
        if field is None:
            cure = did_you_mean(name, _BY_NAME if near_names(name, _BY_NAME) else FIELDS)
            raise InputError("is no size of a model", field="--override", value=name, cure=cure)
        if isinstance(value, bool) or not isinstance(value, int) or not field.least <= value <= field.most:
            cure = f"state {field.least} to {field.most}"
            raise InputError("must be a whole number", field=flag, value=value, cure=cure)
        if field.of_experts and not model.n_moe:
            raise InputError(f"is a size of experts, and {model.name} has none", field=flag, value=value)
        if field.one_kind and model.pattern:
            cure = "register the model with its kinds of layers (docs/models.md)"
            raise InputError(
                f"is not one size in {model.name}, whose layers differ", field=flag, value=value, cure=cure
            )
        model = field.change(model, value)
    moe = model.moe
    if moe is not None and moe.top_k > moe.n_experts:
        problem = f"is more than the {moe.n_experts} experts"
        raise InputError(problem, field="--override moe_router_topk", value=moe.top_k, cure="state fewer")
    return model.replace(published_parameters=None, aliases=()) if sizes else model
