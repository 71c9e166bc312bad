"""Expected content of a rank's profile: the attention kernels of every pass, in the schedule's order.

A layer pass is cut at the start of its attention kernel. What lies between two neighbouring attention
kernels of a rank is then a known sum of a few unknown pieces (`Piece`), whatever layers they belong to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from taylor.parsers.profiles.kernels import BACKWARD_MARKER, FORWARD_MARKER
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan
from taylor.pipeline.schedule import FORWARD, WEIGHT_GRADIENT, Schedule
from taylor.register.model import MTP

Piece = tuple[str, str]
"""(what, kind): an unknown time. ``before`` and ``after`` the start of the attention kernel in a forward,
``again before`` and ``again after`` in a recomputed one, ``back before`` and ``back after`` in a backward;
``weight`` gradients, ``select`` recompute (``select before``: what of it precedes attention that runs again);
``head`` and ``embedding`` with ``back …`` and ``weight …`` forms.
The part before attention in the forward, and after it in the backward, is the attention block, common to all kinds: its
kind is empty."""

Pass = tuple[str, str]
"""(kind, recompute mode) of a layer in a chunk."""


@dataclass(frozen=True)
class KernelWindow:
    """Work between two neighbouring attention kernels.

    Parameters
    ----------
    pieces : tuple of (Piece, float)
        Occurrences of each piece, sorted.
    borders : int
        Borders between tasks, at each of which the rank may wait.
    ahead : Piece or None
        The one piece before the border, where there is one border and one piece.
    """

    pieces: tuple[tuple[Piece, float], ...]
    borders: int
    split: int = 0
    ahead: Piece | None = None


@dataclass(frozen=True)
class StagePattern:
    """Attention kernels of one stage in one step.

    Parameters
    ----------
    markers : int8 [n]
        `FORWARD_MARKER` or `BACKWARD_MARKER` in time order.
    windows : tuple of KernelWindow
        The different windows.
    window : int64 [n - 1]
        The one between marker i and i + 1.
    micro_batch : int64 [n]
        Micro-batch of each marker.
    layers, recomputed : int
        Layers of the stage, and how many of them run attention again.
    """

    stage: int
    markers: NDArray[np.int8]
    windows: tuple[KernelWindow, ...]
    window: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    layers: int
    recomputed: int


def task_order(config: TrainingConfig) -> Schedule:
    """The exact task order of a configuration's stages."""
    strategy = config.strategy
    return build_schedule(config.schedule_for(strategy.vpp), strategy.pp, strategy.vpp, strategy.micro_batches)


def charged_kinds(plan: PipelinePlan) -> dict[str, str]:
    """Kind as which each layer kind is timed: itself, but an MTP layer as the body layer before it."""
    kinds = [kind for kind, grid in plan.layers.items() if any(map(any, grid))]
    body = [kind for kind in kinds if kind != MTP]
    return {kind: body[-1] if kind == MTP and body else kind for kind in kinds}


def chunk_passes(plan: PipelinePlan, interleave: int, stage: int) -> list[Pass]:
    """The layers of a chunk in order, each with its recompute mode."""
    charged, modes = charged_kinds(plan), plan.recompute_by_kind()
    return [
        (charged[kind], mode)
        for kind in charged
        for mode in (FULL, SELECT, NONE)
        for _ in range(modes[kind][mode][interleave][stage])
    ]


NO_ATTENTION, ATTENTION_ALONE, WITH_ATTENTION = "no attention", "attention alone", "with attention"
"""Parts that selective recompute runs again: operators of the MLP say, the attention kernel, or both."""


def stage_pattern(schedule: Schedule, plan: PipelinePlan, stage: int, selective: str = NO_ATTENTION) -> StagePattern:
    """Markers and windows of one stage, every task of the step in its order.

    Parameters
    ----------
    selective : str
        `NO_ATTENTION`: selective recompute shows no marker. `ATTENTION_ALONE` (Megatron's core attention) and
        `WITH_ATTENTION`: it runs the attention kernel again right before its backward.
    """
    first, last = schedule.chunk_at(0), schedule.chunk_at(schedule.chunks - 1)
    weights = schedule.spec.traits.split_backward
    passes = [chunk_passes(plan, v, stage) for v in range(schedule.interleaves)]
    tasks = {
        (direction, v): list(_task(passes[v], direction, (v, stage) == first, (v, stage) == last, selective))
        for direction in range(3 if weights else 2)
        for v in range(schedule.interleaves)
    }
    share = 1.0 / schedule.spec.seq_splits
    markers: list[int] = []
    numbers: list[int] = []
    owners: list[int] = []
    known: dict[KernelWindow, int] = {}
    open_pieces: dict[Piece, float] = {}
    before: list[Piece] = []
    borders = 0
    for direction, v, micro_batch, split in schedule.order[stage].tolist():
        borders += 1
        before = list(open_pieces) if borders == 1 else before
        for item in tasks[direction, v]:
            if isinstance(item, tuple):
                open_pieces[item] = open_pieces.get(item, 0.0) + share
                continue
            if markers:
                ahead = before[0] if borders == 1 and len(before) == 1 else None
                window = KernelWindow(tuple(sorted(open_pieces.items())), borders, split, ahead)
                numbers.append(known.setdefault(window, len(known)))
            markers.append(item)
            owners.append(micro_batch)
            open_pieces, borders = {}, 0
    return StagePattern(
        stage,
        np.array(markers, dtype=np.int8),
        tuple(known),
        np.array(numbers, dtype=np.int64),
        np.array(owners, dtype=np.int64),
        sum(map(len, passes)),
        sum(mode == FULL or (mode == SELECT and selective != NO_ATTENTION) for chunk in passes for _, mode in chunk),
    )


def task_pieces(
    schedule: Schedule, plan: PipelinePlan, stage: int, direction: int, interleave: int
) -> dict[Piece, float]:
    """Occurrences of each piece in one task, a fraction where sequences are split."""
    chunk = interleave, stage
    first, last = (chunk == schedule.chunk_at(place) for place in (0, schedule.chunks - 1))
    pieces: dict[Piece, float] = {}
    for item in _task(chunk_passes(plan, interleave, stage), direction, first, last, NO_ATTENTION):
        if isinstance(item, tuple):
            pieces[item] = pieces.get(item, 0.0) + 1.0 / schedule.spec.seq_splits
    return pieces


def _task(passes: list[Pass], direction: int, first: bool, last: bool, selective: str) -> Iterator[Piece | int]:
    """Pieces and markers of one task, in order."""
    form = {FORWARD: "", WEIGHT_GRADIENT: "weight "}.get(direction, "back ")
    embedding, head = [(f"{form}embedding", "")] * first, [(f"{form}head", "")] * last
    if direction == FORWARD:
        return chain(embedding, _forward(passes), head)
    if direction == WEIGHT_GRADIENT:
        return chain(head, (("weight", kind) for kind, _ in passes), embedding)
    return chain(head, _backward(passes, selective), embedding)


def _forward(passes: list[Pass]) -> Iterator[Piece | int]:
    for kind, _ in passes:
        yield "before", ""
        yield FORWARD_MARKER
        yield "after", kind


def _backward(passes: list[Pass], selective: str) -> Iterator[Piece | int]:
    for kind, mode in reversed(passes):
        if mode == FULL:
            yield "again before", ""
            yield FORWARD_MARKER
            yield "again after", kind
        elif mode == SELECT and selective == NO_ATTENTION:
            yield "select", kind
        yield "back before", kind
        if mode == SELECT and selective != NO_ATTENTION:
            if selective == WITH_ATTENTION:
                yield "select before", kind
            yield FORWARD_MARKER
            yield "select", kind
        yield BACKWARD_MARKER
        yield "back after", ""
