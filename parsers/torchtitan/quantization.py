"""GEMMs in 8 bits, as a torchtitan file requests them from torchao."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taylor.parsers.text.fields import Fields
from taylor.register.model import ModelSpec
from taylor.register.narrow_products import AO_FP8_RECIPES, AO_MXFP8, AO_TENSORWISE, NarrowProducts

CONVERTERS = "model.converters"
LINEAR = {
    "float8": ("float8", "quantize.linear.float8"),
    "quantize.linear.float8": ("quantize.linear.float8",),
    "quantize.dense.float8": ("quantize.dense.float8",),
    "mx": ("mx", "quantize.linear.mx"),
    "quantize.linear.mx": ("quantize.linear.mx",),
    "quantize.dense.mx": ("quantize.dense.mx",),
}
"""Converters of linear layers, with the sections that may hold their settings.

v0.2.2 torchtitan/components/quantization/float8.py:210 and mx.py (``register_model_converter``); ``quantize.dense`` and
the bare names until September 2025.
"""
GROUPED = ("quantize.grouped_mm.float8", "quantize.grouped_mm.mx", "quantize.moe.float8", "quantize.moe.mx")
"""Converters of the experts' grouped GEMMs, and sections of their settings (float8.py:128-207, mx.py:92-150): those
of the type that the linear layers have (__init__.py:45)."""
OUTSIDE = ("output", "router.gate", "moe.router", "router", "auto_filter_small_kn")
"""Filters that leave the GEMMs of layers as they are: the head, routers, and what is too small to gain."""
SMALL = ("attention.wk", "attention.wv", "wk", "wv")
"""GEMMs of keys and values: of a model with groups of queries, few of a layer's FLOPs."""
_MX_RECIPES = ("mxfp8", "mxfp8_cublas", "mxfp8_emulated", "mxfp8_cublas_rceil")


@dataclass(frozen=True)
class Quantization:
    """`TrainingRules.narrow`, `narrow_experts` and `narrow_gather`."""

    recipe: NarrowProducts | None = None
    experts: bool = True
    gather: bool = False


def read_quantization(top: Fields, model: ModelSpec, notes: list[str]) -> Quantization:
    """The recipe of the layers' GEMMs; none where they are in 16 bits, or partly in 8 in a way not counted here.

    v0.2.2 torchtitan/components/quantization/float8.py:30-125: a recipe by name, else one scale a tensor, of every
    linear layer whose name holds none of the filters (utils.py:11-27); the experts' GEMMs have a converter of their
    own. Parameters gathered in 8 bits need one scale a tensor (float8.py:65) and full sharding.
    """
    asked = _words(top.section("model").raw("converters"))
    linear = next((name for name in asked if name in LINEAR), None)
    if linear is None and _old_switch(top):
        linear = "float8"
    if linear is None:
        return Quantization()
    places = LINEAR[linear]
    place = next((at for at in places if _section(top, at).data), places[0])
    section = _section(top, place)
    recipe = _recipe(section, mx=linear.endswith("mx"))
    usual = ["output"] if recipe is AO_MXFP8 else []
    filters = _words(section.raw("filter_fqns")) if section.has("filter_fqns") else usual
    counted = (*OUTSIDE, *(SMALL if model.n_kv_heads < model.n_heads else ()))
    if recipe is None or not set(filters) <= set(counted) or section.boolean("emulate", default=False):
        return Quantization()
    if "output" not in filters:
        notes.append(f"{place}.filter_fqns does not name output: the head's product in 8 bits is counted in 16")
    grouped = next((name for name in asked if name in GROUPED), None)
    experts = grouped is not None and bool(_words(_section(top, grouped).raw("fqns")))
    experts = experts or model.moe is None
    gather = recipe is AO_TENSORWISE and section.boolean("enable_fsdp_float8_all_gather", default=False)
    if gather and section.has("recipe_name"):
        raise section.error(
            "enable_fsdp_float8_all_gather", "does not go with recipe_name", True, "leave recipe_name out"
        )
    return Quantization(recipe, experts, gather)


def _recipe(section: Fields, *, mx: bool) -> NarrowProducts | None:
    if mx:
        return AO_MXFP8 if section.text("recipe_name", default="mxfp8_cublas") in _MX_RECIPES else None
    name = section.text("recipe_name", default="tensorwise")
    if name not in AO_FP8_RECIPES:
        raise section.error("recipe_name", "is no recipe", name, f"use one of {', '.join(AO_FP8_RECIPES)}")
    return AO_FP8_RECIPES[name]


def _old_switch(top: Fields) -> bool:
    return bool(top.section("float8").boolean("enable_float8_linear", default=False))


def _section(top: Fields, path: str) -> Fields:
    section = top
    for name in path.split("."):
        section = section.section(name)
    return section


def _words(value: Any) -> Sequence[str]:
    """A list of names, or one text with commas between them."""
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else []
