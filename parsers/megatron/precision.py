"""GEMMs in fewer than 16 bits, as a launch requests them from transformer engine."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from taylor.parsers.text.flags import Flags
from taylor.register.narrow_products import FP4_RECIPES, FP8_RECIPES, NarrowProducts

FP8_FORMATS = ("fp8-format", "fp8-hybrid", "fp8-e4m3")


class Narrow(NamedTuple):
    """`TrainingRules.narrow` and `TrainingRules.narrow_weights`."""

    recipe: NarrowProducts | None = None
    weights: bool = False


def read_narrow(flags: Flags, notes: list[str], *, mindspeed: bool, one_copy: bool = False) -> Narrow:
    """The recipe of a launch; none where its GEMMs run in 16 bits, or by a recipe that is not known here.

    MindSpeed has kernels of its own for the same flags (mindspeed/te/pytorch/fp8), of which nothing is known here.

    Sources, Megatron-LM main: megatron/core/transformer/transformer_config.py:587-690 (formats and recipes),
    megatron/training/arguments.py:1048-1053 (torch's FSDP2 gathers 16 bits) and 1095-1111.

    Raises
    ------
    InputError
        When the recipe is none of Megatron's.
    """
    if mindspeed:
        return Narrow()
    if flags.has("fp4-format"):
        recipe = _recipe(flags, "fp4-recipe", FP4_RECIPES, "nvfp4")
    elif flags.has(*FP8_FORMATS):
        recipe = _recipe(flags, "fp8-recipe", FP8_RECIPES, "delayed")
    else:
        return Narrow()
    if recipe is None:
        return Narrow()
    if flags.has("use-torch-fsdp2"):
        # Quantized again in forward and backward: TransformerEngine main, pytorch/module/linear.py:1958.
        return Narrow(replace(recipe, weight_bytes=0.0))
    if recipe.one_copy_on_blackwell and one_copy:
        recipe = replace(recipe, weight_bytes=recipe.input_bytes)
    elif recipe.one_copy_on_blackwell:
        notes.append(
            f"{recipe.name} {recipe.precision}: two copies of each weight, as devices before Blackwell need them"
        )
    return Narrow(recipe, flags.has(f"{recipe.precision}-param-gather"))


def _recipe(flags: Flags, name: str, known: dict[str, NarrowProducts], usual: str) -> NarrowProducts | None:
    written = flags.text(name, default=usual)
    if written == CUSTOM:
        return None
    if written not in known:
        raise flags.error(name, "is no recipe", written, f"use one of {', '.join([*known, CUSTOM])}")
    return known[written]


CUSTOM = "custom"
"""A recipe of the user's own, in a file of Python: nothing is known of it."""
