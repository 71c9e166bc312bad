"""MindFormers' offset and recompute lists: what they mean for each chunk, and how a plan is written.

Rules (FORMATS §1, and the behaviour of MindFormers' own layer assignment):

- a chunk holds L // (pp·vpp) + offset layers; the raw offset must sum to L mod (pp·vpp);
- a 1-D recompute list is dealt one layer at a time over the stage's chunks, passing by full ones;
- a 2-D list counts per chunk and is clipped to the chunk; True means all layers, in any place;
- the first n layers of a chunk are recomputed; full recompute beats selective;
- with swap on, the lists are layer indices.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from taylor.pipeline.chunks import chunk_order
from taylor.pipeline.plan import FULL, SELECT, Grid, PipelinePlan, as_grid, deal_kinds, values_in_order, zero_grid
from taylor.register.model import MTP


class PlanProblem(Exception):
    """The file's offset or recompute lists do not settle a plan; says why."""


def chunk_layers(offset: Any, layers: int, stages: int, interleaves: int) -> Grid:
    """Layers of every chunk, int [vpp, pp], from an offset in scalar, 1-D or 2-D form.

    Raises
    ------
    PlanProblem
        When the shape or the sum is wrong, or a chunk would hold fewer than 0 layers.
    """
    chunks = stages * interleaves
    base, left = divmod(layers, chunks)
    rows = _offset_rows(offset, stages, interleaves)
    raw_sum = offset if isinstance(offset, int) else sum(map(sum, rows if _is_2d(offset) else rows[:1]))
    if raw_sum != left:
        raise PlanProblem(f"offset sums to {raw_sum} and must sum to {left} ({layers} layers mod {chunks} chunks)")
    if sum(map(sum, rows)) != left:
        raise PlanProblem(
            "offset is broadcast over its chunks and then places "
            f"{base * chunks + sum(map(sum, rows))} of {layers} layers: write it as [vpp][pp]"
        )
    sizes = as_grid([[base + value for value in row] for row in rows])
    if any(value < 0 for row in sizes for value in row):
        raise PlanProblem("offset leaves a chunk with fewer than 0 layers")
    return sizes


def _is_2d(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, list) for row in value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**6


def _offset_rows(offset: Any, stages: int, interleaves: int) -> list[list[int]]:
    if _whole(offset):
        return [[offset] * stages] * interleaves
    rows = offset if _is_2d(offset) else [offset]
    if not all(isinstance(row, list) and row and all(map(_whole, row)) for row in rows):
        raise PlanProblem("offset must be a whole number, a list of them, or a list of such lists")
    if any(len(row) != stages for row in rows):
        raise PlanProblem(f"offset has rows of {sorted({len(row) for row in rows})} entries for {stages} stages")
    if _is_2d(offset) and len(rows) != interleaves:
        raise PlanProblem(f"offset has {len(rows)} rows for {interleaves} virtual stages")
    return rows if _is_2d(offset) else [rows[0]] * interleaves


def recompute_counts(value: Any, sizes: Grid, name: str, order: Sequence[tuple[int, int]], swap: bool = False) -> Grid:
    """Recomputed layers of every chunk, int [vpp, pp], from any form of a recompute entry.

    Parameters
    ----------
    value : object
        Bool, list of int or bool, list of lists, or (with `swap`) a list of layer indices.
    sizes : int [vpp, pp]
        Layers of every chunk that can be recomputed.
    order : sequence of (interleave, stage)
        Chunks in model order; needed for layer indices.
    """
    stages, interleaves = len(sizes[0]), len(sizes)
    if value is None or value is False:
        return zero_grid(stages, interleaves)
    if value is True or (isinstance(value, list) and value and all(isinstance(item, str) for item in value)):
        return sizes
    if not isinstance(value, list):
        raise PlanProblem(f"{name} must be True, False or a list")
    if swap:
        return _counts_of_indices(value, sizes, name, order)
    if all(isinstance(item, int) and item >= 0 for item in value):
        if len(value) != stages:
            raise PlanProblem(f"{name} has {len(value)} entries for {stages} stages")
        return _deal(value, sizes)
    return as_grid([_row_counts(row, sizes[v], name) for v, row in enumerate(_rows(value, interleaves, name))])


def _rows(value: list[Any], interleaves: int, name: str) -> list[Any]:
    if len(value) != interleaves:
        raise PlanProblem(f"{name} has {len(value)} rows for {interleaves} virtual stages")
    return value


def _row_counts(row: Any, sizes: Sequence[int], name: str) -> list[int]:
    if isinstance(row, bool):
        return list(sizes) if row else [0] * len(sizes)
    if not isinstance(row, list) or not all(isinstance(item, int) and item >= 0 for item in row):
        raise PlanProblem(f"{name} must contain whole numbers >= 0, True or False")
    if len(row) != len(sizes):
        raise PlanProblem(f"{name} has a row of {len(row)} entries for {len(sizes)} stages")
    return [_clip(item, limit) for item, limit in zip(row, sizes, strict=True)]


def _clip(count: int, limit: int) -> int:
    return (limit if count else 0) if isinstance(count, bool) else min(count, limit)


def _deal(counts: Sequence[int], sizes: Grid) -> Grid:
    dealt = [[0] * len(sizes[0]) for _ in sizes]
    for stage, count in enumerate(counts):
        left = _clip(count, sum(row[stage] for row in sizes))
        while left:
            for v, row in enumerate(sizes):
                if left and dealt[v][stage] < row[stage]:
                    dealt[v][stage] += 1
                    left -= 1
    return as_grid(dealt)


def _counts_of_indices(value: list[Any], sizes: Grid, name: str, order: Sequence[tuple[int, int]]) -> Grid:
    if not all(_whole(item) and item >= 0 for item in value):
        raise PlanProblem(f"{name} must be a list of layer indices, for swap is on")
    wanted, counts, first = set(value), [[0] * len(sizes[0]) for _ in sizes], 0
    for v, s in order:
        chosen = [index for index in range(first, first + sizes[v][s]) if index in wanted]
        if chosen != list(range(first, first + len(chosen))):
            raise PlanProblem(f"{name} recomputes layers that are not the first ones of chunk [{v}][{s}]")
        counts[v][s], first = len(chosen), first + sizes[v][s]
    return as_grid(counts)


def read_plan(
    counts: Mapping[str, int],
    offset: Any,
    recompute: Any,
    select: Any,
    *,
    stages: int,
    interleaves: int,
    v_shape: bool,
    mtp_counted: bool,
    swap: bool = False,
) -> PipelinePlan:
    """The plan that a file's offset and recompute entries settle.

    Parameters
    ----------
    counts : mapping of kind to int
        Layers by kind in model order.
    select : object
        ``select_recompute``; of a dict of patterns, the largest count of each chunk holds.

    Raises
    ------
    PlanProblem
        When they settle none.
    """
    order = chunk_order(stages, interleaves, v_shape)
    placed = {kind: count for kind, count in counts.items() if mtp_counted or kind != MTP}
    sizes = chunk_layers(offset, sum(placed.values()), stages, interleaves)
    pinned = {kind: len(order) - 1 for kind in counts if kind not in placed}
    layers = deal_kinds(counts, values_in_order(sizes, v_shape), stages, v_shape, pinned)
    full = recompute_counts(recompute, sizes, "recompute", order, swap)
    modes = {FULL: full}
    entries = list(select.values()) if isinstance(select, Mapping) else [select]
    grids = [recompute_counts(entry, sizes, "select_recompute", order, swap) for entry in entries]
    if any(value for grid in grids for row in grid for value in row):
        top = [[max(grid[v][s] for grid in grids) for s in range(stages)] for v in range(interleaves)]
        modes[SELECT] = as_grid([[max(0, top[v][s] - full[v][s]) for s in range(stages)] for v in range(interleaves)])
    return PipelinePlan(layers, modes)


def written_offset(plan: PipelinePlan, mtp_counted: bool, old: Any) -> Any:
    """The offset entry of a plan: 1-D for one interleave (2-D where the file has 2-D), else 2-D."""
    rows = [list(row) for row in plan.offset(() if mtp_counted else (MTP,))]
    return rows if len(rows) > 1 or _is_2d(old) else rows[0]


def written_recompute(grid: Grid, old: Any, indices_of: Sequence[tuple[int, int]] | None, sizes: Grid) -> Any:
    """A recompute entry of per-chunk counts, in the file's form.

    Parameters
    ----------
    old : object
        The entry as it is; a 2-D one stays 2-D.
    indices_of : sequence of (interleave, stage) or None
        Chunks in model order when the entry lists layer indices (swap).
    sizes : int [vpp, pp]
        Layers of every chunk.
    """
    if indices_of is not None:
        indices: list[int] = []
        first = 0
        for v, s in indices_of:
            indices += range(first, first + grid[v][s])
            first += sizes[v][s]
        return indices
    rows = [list(row) for row in grid]
    return rows if len(rows) > 1 or _is_2d(old) else rows[0]
