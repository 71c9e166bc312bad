"""Layer tuples: possible layers of each kind in the chunks of a stage, whatever is recomputed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.plan import NONE
from taylor.pipeline.schedule import Schedule
from taylor.pipeline_solver.columns.chunk_types import ChunkType, RecomputeOptions, chunk_bounds, chunk_types
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import schedule_of

FEW_KINDS = 3
"""Most kinds with which the layers of each kind distinguish columns; with more, their place does."""

BLOCK = 20_000
"""Tuples a block that are joined with the next chunk's types."""


class TooManyColumns(RuntimeError):
    """Too many columns to list; another method must solve the problem."""


@dataclass(frozen=True)
class StageTuples:
    """Layer tuples of one stage that memory allows under its most frugal recompute.

    Parameters
    ----------
    types : list by virtual stage of list of ChunkType
    members : int64 [n, V]
        Index into ``types[v]`` of each tuple's chunks.
    totals : int64 [n, K]
        Layers by kind on the stage.
    forward : float64 [n, V]
        Forward time of each chunk, head, embedding and pinned kinds included.
    free_mib : float64 [n]
        Memory available for activations.
    """

    types: list[list[ChunkType]]
    members: NDArray[np.int64]
    totals: NDArray[np.int64]
    forward: NDArray[np.float64]
    free_mib: NDArray[np.float64]

    def select(self, rows: NDArray[np.int64]) -> StageTuples:
        """Some of the tuples."""
        return StageTuples(self.types, self.members[rows], self.totals[rows], self.forward[rows], self.free_mib[rows])


def stage_tuples(problem: PipelineProblem, most: int, stopper: Stopper | None = None) -> list[StageTuples]:
    """The layer tuples of every stage that memory, bounds and the order of kinds allow.

    Parameters
    ----------
    most : int
        Most tuples of a stage, or of its first chunks, that are listed.
    stopper : Stopper, optional
        Checked meanwhile.

    Raises
    ------
    OutOfTime
        If the stopper's deadline passes first.
    TooManyColumns
        If one stage has more.
    """
    schedule = schedule_of(problem)
    lower, upper = chunk_bounds(problem, schedule)
    alive = alive_vectors(schedule)
    options = RecomputeOptions(stopper=stopper or Stopper(None))
    tuples = [
        _tuples_of_stage(problem, schedule, s, alive[s], lower, upper, options, most) for s in range(problem.stages)
    ]
    # The other stages must be able to take the rest of the total.
    layers = problem.layers
    sums = [part.totals.sum(axis=1) for part in tuples]
    if any(not len(total) for total in sums):
        return [part.select(np.zeros(0, dtype=np.int64)) for part in tuples]
    high, low = sum(int(total.max()) for total in sums), sum(int(total.min()) for total in sums)
    return [
        part.select(np.nonzero((total >= layers - high + total.max()) & (total <= layers - low + total.min()))[0])
        for part, total in zip(tuples, sums, strict=True)
    ]


def _tuples_of_stage(
    problem: PipelineProblem,
    schedule: Schedule,
    s: int,
    alive: NDArray[np.float64],
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    options: RecomputeOptions,
    most: int,
) -> StageTuples:
    """Grow the tuples chunk by chunk in model order, dropping what memory or the other chunks exclude."""
    V, K = problem.interleaves, len(problem.placed_kinds)
    chunks = [schedule.chunk_at(k) for k in range(schedule.chunks)]
    low = np.concatenate([[0], np.cumsum([lower[c] for c in chunks])])
    high = np.concatenate([[0], np.cumsum([upper[c] for c in chunks])])
    layer_mib = np.array([kind.layer_mib for kind in problem.placed_kinds])
    free, pinned_forward = fixed_parts(problem, schedule, s, alive)
    types: list[list[ChunkType]] = []
    members = np.zeros((1, 0), dtype=np.int64)
    totals = np.zeros((1, K), dtype=np.int64)
    forward = np.zeros((1, 0))
    weights = np.zeros(1)
    frugal = np.zeros((1, len(alive)))
    ends = np.zeros((1, 2), dtype=np.int64)
    last_place = -1
    phi = np.array([kind.forward for kind in problem.on_stage(s).placed_kinds])
    for v in range(V):
        place = schedule.position(v, s)
        found = chunk_types(problem, v, s, place, low, high, lower, upper, options)
        types.append(found)
        if not found or not len(members):
            members = np.zeros((0, V), dtype=np.int64)
            break
        layers = np.array([kind.layers for kind in found])
        count = layers.sum(axis=1)
        first = np.array([kind.first for kind in found])
        last = np.array([kind.last for kind in found])
        # Layers of the chunks between this stage's previous chunk and this one.
        gap_low, gap_high = low[place] - low[last_place + 1], high[place] - high[last_place + 1]
        new_weights, new_forward = layers @ layer_mib, layers @ phi + pinned_forward[v]
        least = np.array([kind.choices.need(alive[:, v]).min(axis=1) for kind in found])
        kept: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        # In blocks: all pairs of tuples and chunk types together may not fit into memory.
        for start in range(0, len(members), BLOCK):
            part = slice(start, start + BLOCK)
            begin = np.maximum(ends[part, :1] + gap_low, first)
            until = np.minimum(ends[part, 1:] + gap_high, last)
            need = frugal[part, None, :] + least[None]
            weights_mib = weights[part, None] + new_weights
            fits = (weights_mib[:, :, None] + need <= free + MEMORY_TOLERANCE_MIB).all(axis=2)
            rows, columns = np.nonzero((begin <= until) & fits)
            kept.append((rows + start, columns))
            if sum(len(pair[0]) for pair in kept) > most:
                raise TooManyColumns(f"stage {s} has more than {most} layer tuples")
        old, new = (np.concatenate([pair[side] for pair in kept]) for side in (0, 1))
        members = np.hstack([members[old], new[:, None]])
        forward = np.hstack([forward[old], new_forward[new][:, None]])
        totals = totals[old] + layers[new]
        weights = weights[old] + new_weights[new]
        frugal = frugal[old] + least[new]
        begin = np.maximum(ends[old, 0] + gap_low, first[new])
        until = np.minimum(ends[old, 1] + gap_high, last[new])
        ends = np.stack([begin, until], axis=1) + count[new][:, None]
        last_place = place
    if len(members) == 0:
        return StageTuples(
            types,
            np.zeros((0, V), dtype=np.int64),
            np.zeros((0, K), dtype=np.int64),
            np.zeros((0, V)),
            np.zeros((0, len(alive))),
        )
    return StageTuples(types, members, totals, forward, free - weights[:, None])


def fixed_parts(
    problem: PipelineProblem, schedule: Schedule, s: int, alive: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Memory available for the placed layers at each alive vector, and forward time of each chunk without them."""
    shared = problem.shared_on([schedule.position(v, s) for v in range(problem.interleaves)])
    free = np.full(len(alive), problem.limit_mib[s] - problem.static_mib[s] - shared)
    forward = np.zeros(problem.interleaves)
    here = problem.on_stage(s)
    for v in range(problem.interleaves):
        place = schedule.position(v, s)
        forward[v] += problem.embedding_forward * (place == 0) + problem.head_forward * (place == schedule.chunks - 1)
        for kind in here.pinned_at(place):
            forward[v] += kind.count * kind.forward
            free = free - kind.count * (kind.layer_mib + alive[:, v] * kind.activation_mib[NONE])
    return free, forward
