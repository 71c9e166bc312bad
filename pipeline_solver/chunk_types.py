"""Chunks one by one: which runs of layers each may hold, and which recompute choices are worth having."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.plan import NONE
from taylor.pipeline.schedule import Schedule
from taylor.pipeline_solver.problem import MEMORY_TOLERANCE_MIB, LayerKind, PipelineProblem

ROUNDING = 1e-13
"""Share of a memory by which sums of the same figures may differ."""

RecomputeOptions = dict[
    tuple[tuple[int, ...], tuple[int, ...]], tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]
]
"""By (layers of a chunk by kind, recompute given): recompute time, memory and counts of the choices worth having."""


@dataclass(frozen=True)
class ChunkType:
    """One way to fill a chunk: a contiguous run of layers, and the recompute choices worth having.

    Parameters
    ----------
    layers : tuple of int [K]
    first, last : int
        Least and greatest index in the model of the layer that the chunk starts with.
    extra, activation : float64 [n]
        Recompute time and memory a micro-batch of each choice; the first rises, the second falls.
    recompute : int [n, modes]
    """

    layers: tuple[int, ...]
    first: int
    last: int
    extra: NDArray[np.float64]
    activation: NDArray[np.float64]
    recompute: NDArray[np.int64]


def chunk_bounds(problem: PipelineProblem, schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Least and greatest layers of each chunk, int64 [V, S]; an empty range where they contradict."""
    shape = (problem.interleaves, problem.stages)
    lower = np.full(shape, max(problem.min_layers, 0), dtype=np.int64)
    upper = np.full(shape, problem.layers, dtype=np.int64)
    for (v, s), value in problem.max_layers.items():
        upper[v, s] = min(upper[v, s], value)
    for (v, s), value in problem.fixed_layers.items():
        lower[v, s], upper[v, s] = max(lower[v, s], value), min(upper[v, s], value)
    upper = np.minimum(upper, problem.layers - lower.sum() + lower)
    return lower, upper


def chunk_types(
    problem: PipelineProblem,
    v: int,
    s: int,
    place: int,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    options: RecomputeOptions,
) -> list[ChunkType]:
    """Every contiguous run of layers that a chunk may hold, given what the chunks around it must hold."""
    layers = problem.layers
    borders = [0, *itertools.accumulate(kind.count for kind in problem.placed_kinds)]
    fixed = tuple(problem.fixed_recompute.get((mode, v, s), -1) for mode in problem.searched_modes)
    found: dict[tuple[int, ...], list[int]] = {}
    after_low, after_high = int(low[-1] - low[place + 1]), int(high[-1] - high[place + 1])
    # The lightest layers first: what `count` layers weigh at the least.
    light = np.cumsum(
        [0.0] + [mib for mib, n in sorted((k.layer_mib, k.count) for k in problem.placed_kinds) for _ in range(n)]
    )
    for count in range(int(lower[v, s]), int(upper[v, s]) + 1):
        if problem.static_mib[s] + light[count] > problem.limit_mib[s] + MEMORY_TOLERANCE_MIB:
            break
        begin = max(int(low[place]), layers - count - after_high)
        until = min(int(high[place]), layers - count - after_low)
        for start in _telling_starts(count, begin, until, borders):
            window = found.setdefault(_held(start, start + count, borders), [start, start])
            window[1] = start
    result = []
    for held, (first, last) in found.items():
        key = (held, fixed)
        if key not in options:
            options[key] = _recompute_options(problem, held, fixed)
        extra, activation, recompute = options[key]
        if len(extra):
            result.append(ChunkType(held, first, last, extra, activation, recompute))
    return result


def _held(start: int, end: int, borders: list[int]) -> tuple[int, ...]:
    """Layers by kind of the model's layers from `start` on, before `end`."""
    held = [0] * (len(borders) - 1)
    kind = bisect.bisect_right(borders, start) - 1
    while start < end:
        border = min(end, borders[kind + 1])
        held[kind] = border - start
        start, kind = border, kind + 1
    return tuple(held)


def _telling_starts(count: int, begin: int, until: int, bounds: list[int]) -> list[int]:
    """Rising starts in [begin, until] with every kind vector among them, at its least and greatest start."""
    starts = {begin, until}
    for bound in bounds:
        starts.update(range(max(begin, bound - count), min(until, bound) + 1))
    return sorted(start for start in starts if begin <= start <= until)


def prefix_cost(
    problem: PipelineProblem,
    kinds: list[LayerKind],
    modes: Sequence[str],
    held: Sequence[int] | NDArray[np.int16],
    taken: list[int],
) -> tuple[float, float]:
    """Recompute time and activation memory of a chunk whose first layers take the modes in order."""
    extra = memory = 0.0
    left = dict(zip(modes, taken, strict=True))
    for kind, count in zip(kinds, held, strict=True):
        if not count:
            continue
        rest = int(count)
        for mode in modes:
            n = min(rest, left[mode])
            left[mode] -= n
            rest -= n
            extra += problem.recompute_ratio[mode] * kind.forward * n
            memory += kind.activation_mib[mode] * n
        memory += kind.activation_mib[NONE] * rest
    return extra, memory


def _prefix_costs(
    problem: PipelineProblem, kinds: list[tuple[LayerKind, int]], taken: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`prefix_cost` of many choices at once: taken int64 [n, modes], the kinds with their layers; float64 [n] each."""

    def upto(costs: list[float]) -> NDArray[np.float64]:
        """What the first layers cost together, for every number of them."""
        return np.concatenate([[0.0], np.cumsum(np.repeat(costs, counts))])

    counts = np.array([count for _, count in kinds], dtype=np.int64)
    ends = np.cumsum(taken, axis=1)
    starts = ends - taken
    extra = np.zeros(len(taken))
    memory = np.zeros(len(taken))
    for index, mode in enumerate(problem.searched_modes):
        time = upto([problem.recompute_ratio[mode] * kind.forward for kind, _ in kinds])
        kept = upto([kind.activation_mib[mode] for kind, _ in kinds])
        extra += time[ends[:, index]] - time[starts[:, index]]
        memory += kept[ends[:, index]] - kept[starts[:, index]]
    rest = upto([kind.activation_mib[NONE] for kind, _ in kinds])
    memory += rest[-1] - (rest[ends[:, -1]] if taken.shape[1] else 0.0)
    return extra, memory


def _recompute_options(
    problem: PipelineProblem, held: tuple[int, ...], fixed: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Pareto-minimal (time, memory) choices of a chunk, by rising time."""
    kinds = [(kind, count) for kind, count in zip(problem.placed_kinds, held, strict=True) if count]
    modes = problem.searched_modes
    total = sum(held)
    choices: list[list[int]] = [[]]
    for given in fixed:
        counts = range(total + 1) if given < 0 else [given]
        choices = [[*taken, n] for taken in choices for n in counts if sum(taken) + n <= total]
    if problem.uniform_recompute:
        ((mode, most),) = problem.uniform_recompute  # the choices are solved one by one
        choices = [taken for taken in choices if taken == [min(most, total) * (of == mode) for of in modes]]
    extra, memory = _prefix_costs(problem, kinds, np.array(choices, dtype=np.int64).reshape(len(choices), len(modes)))
    scored = sorted(zip(extra.tolist(), memory.tolist(), choices, strict=True))
    kept: list[tuple[float, float, list[int]]] = []
    for longer, least, taken in scored:
        if not kept or least < kept[-1][1] * (1 - ROUNDING):
            kept.append((longer, least, taken))
    return (
        np.array([entry[0] for entry in kept]),
        np.array([entry[1] for entry in kept]),
        np.array([entry[2] for entry in kept], dtype=np.int64).reshape(len(kept), len(modes)),
    )
