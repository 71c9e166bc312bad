"""Tensors that MindSpeed's ``--swap-attention`` moves to the host or runs again, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taylor.cost_model.choices.module_choices import choice_name, words_of
from taylor.cost_model.memory import offload
from taylor.parsers.megatron.layout import Placement
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.flags import Flags
from taylor.parsers.training_config import MovedModules, body_layers
from taylor.pipeline.plan import FULL, RECOMPUTE_MODES, SELECT, Grid, PipelinePlan, as_grid, grid_in_order, zero_grid
from taylor.register.model import ModelSpec

SWAPPING, SWAP_MODULES = "swap-attention", "swap-modules"
SELF_ATTENTION = "self_attention"
SWAP_PARTS = {SELF_ATTENTION: offload.WHOLE_ATTENTION}
_USUAL = "input_norm,self_attention,post_attention_norm"
"""The default of ``--swap-modules``: of these a layer of Megatron core has the attention alone, as MindSpeed's manual
says (028de58c docs/zh/features/swap_attention.md); the norms are called otherwise there."""
_ABSENT = ("input_norm", "post_attention_norm")


def moves_attention(flags: Flags) -> bool:
    """Return whether a launch moves what attention keeps, and nothing that has no price."""
    if not flags.has(SWAPPING):
        return False
    words = set(flags.text(SWAP_MODULES, default=_USUAL).split(","))
    return SELF_ATTENTION in words and words <= {SELF_ATTENTION, *_ABSENT}


def swapped_plan(
    flags: Flags, model: ModelSpec, plan: PipelinePlan, place: Placement, dealt: Sequence[int], v_shape: bool
) -> tuple[PipelinePlan, PipelinePlan, MovedModules]:
    """A launch's plan without layers that run again whole, the same by module, and what says so.

    In the first layers that ``--recompute-num-layers`` names the MLP or the experts run again. The attention of these
    is moved where ``--recompute-method`` is ``block``, that of all layers where there is no method; where it is
    ``uniform`` all are moved and run again. No layer is recomputed whole beside it. Source: MindSpeed 028de58c
    mindspeed/core/memory/swap_attention/adaptor.py:102-210 and swap_attention_apply.py:60-75,
    mindspeed/core/memory/common.py:192.

    Parameters
    ----------
    dealt : sequence of int [chunks]
        Number of each chunk's first layer positions that ``--recompute-num-layers`` names.
    """
    sizes, again = place.sizes(), _block_words(model)
    method = flags.text("recompute-method", default=None)
    if method not in (None, "uniform", "block"):
        raise flags.error("recompute-method", "must be uniform or block", method)
    repeated = sizes if method == "uniform" else [place.real_among_first(k, n) for k, n in enumerate(dealt)]
    moved = repeated if method == "block" else sizes
    rows = {
        choice_name(again, (SELF_ATTENTION,)): repeated,
        choice_name((), (SELF_ATTENTION,)): [all_ - some for all_, some in zip(moved, repeated, strict=True)],
    }
    grids = {name: grid_in_order(row, plan.stages, v_shape) for name, row in rows.items() if any(row)}
    whole = zero_grid(plan.stages, plan.interleaves)
    select = plan.recomputed(SELECT)
    if any(map(any, select)):
        # The activation functions of layers whose MLP runs again do so with it.
        free = np.subtract(body_layers(plan), np.sum([np.array(grid) for grid in grids.values()], axis=0, initial=0))
        select = as_grid(np.minimum(select, free).tolist())
    rest: dict[str, Grid] = {SELECT: select} if any(map(any, select)) else {}
    whole_attention = MovedModules((SELF_ATTENTION,), (f"--{SWAPPING}", f"--{SWAP_MODULES}"))
    plain = PipelinePlan(plan.layers, {**plan.recompute, FULL: whole})
    return plain, PipelinePlan(plan.layers, {FULL: whole, **grids, **rest}), whole_attention


def is_swap(mode: str) -> bool:
    """Return whether a choice by module is one of ``--swap-attention``'s."""
    return SELF_ATTENTION in words_of(mode)[1]


def swap_choices(layers: int, modes: Sequence[str]) -> list[tuple[str, int]]:
    """Modules as the flags can state them for all chunks alike: the first N layers, or all where nothing runs again."""
    swaps = [mode for mode in modes if mode not in RECOMPUTE_MODES and is_swap(mode)]
    again = [(mode, count) for mode in swaps if words_of(mode)[0] for count in range(1, layers + 1)]
    return again + [(mode, layers) for mode in swaps if not words_of(mode)[0]]


def is_block(plan: PipelinePlan, mode: str) -> bool:
    """Return whether a plan has a choice in the first N layers of every chunk, and no other beside it."""
    grid, body = plan.recomputed(mode), body_layers(plan)
    most = max(map(max, grid))
    others = any(plan.uses(other) for other in plan.recompute if other != mode)
    return not others and grid == as_grid(np.minimum(body, most).tolist())


def swap_flags(plan: PipelinePlan, used: str | None) -> dict[str, Setting]:
    """The flags of a plan with one of the choices in the first layers of every chunk, or with none."""
    if used is not None and not words_of(used)[0]:
        return {"recompute-method": False, "recompute-num-layers": False}
    most = 0 if used is None else max(map(max, plan.recomputed(used)))
    return {"recompute-method": "block", "recompute-num-layers": str(most)}


def _block_words(model: ModelSpec) -> tuple[str, ...]:
    kinds = [layer for kind in model.body_counts for layer in model.layers_of(kind)]
    has = {"mlp": any(kind.mlp for kind in kinds), "moe": any(kind.moe for kind in kinds)}
    return tuple(word for word, there in has.items() if there)
