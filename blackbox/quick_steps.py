"""A step of a division of layers without the exact solver: the order in which choices of degrees come to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.blackbox.stage_problem import alive_chunks
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline_solver.problem import MEMORY_TOLERANCE_MIB, PipelineProblem


@dataclass(frozen=True)
class _Mean:
    """A layer of all kinds' mean: forward pass, both passes, states, and what it keeps of a micro-batch."""

    forward: float
    both: float
    state: float
    kept: float
    thrifty: float

    @classmethod
    def of(cls, problem: PipelineProblem) -> _Mean:
        weights = [kind.count for kind in problem.kinds]

        def mean(values: Sequence[float]) -> float:
            return float(np.average(values, weights=weights))

        forward = mean([kind.forward for kind in problem.kinds])
        kept, thrifty = (mean([kind.activation_mib[mode] for kind in problem.kinds]) for mode in (NONE, FULL))
        state = mean([kind.layer_mib for kind in problem.kinds])
        return cls(forward, forward * (1 + problem.backward_ratio), state, kept, thrifty)


def quick_ms(problem: PipelineProblem) -> float:
    """A step of the most even division of layers that memory allows, ms; infinite where there is none.

    Stages take layer after layer, the one first whose work stays least, and run as few again as their room asks for (or
    as many in every chunk as the launcher's files can say, whichever number is best). A step is the longest stage's
    work for all micro-batches and the others' once. The chunks of a stage count as equally long, and as following each
    other without a pause; layers of several kinds count as their mean.
    """
    mean, stages, chunks = _Mean.of(problem), problem.stages, problem.interleaves
    alive = alive_chunks(stages, chunks, problem.micro_batches)
    flights = np.array([each.sum(axis=1).max() / chunks for each in alive])
    room = np.array(problem.limit_mib) - np.array(problem.static_mib) + MEMORY_TOLERANCE_MIB
    most = [sum(problem.max_layers.get((v, s), problem.layers) for v in range(chunks)) for s in range(stages)]
    first = chunks * problem.min_layers
    held = np.arange(first, problem.layers + 1)[:, None]
    ends = np.zeros(stages)
    ends[0] += problem.embedding_forward * (1 + problem.backward_ratio)
    ends[-1] += problem.head_forward * (1 + problem.backward_ratio)
    kept = held * mean.state + flights * held * mean.kept
    spared = flights * (mean.kept - mean.thrifty)
    step = math.inf
    for again in _numbers_again(problem, held, kept - room, spared):
        least = float(ends.sum()) + mean.both * problem.layers + mean.forward * float(again[-1].min())
        if problem.micro_batches * least / stages >= step:
            break
        fits = (held <= np.array(most)) & (again <= held) & (kept - again * spared <= room)
        work = np.where(fits, held * mean.both + again * mean.forward + ends, math.inf)
        step = min(step, _even_step(work, problem.layers - stages * first, problem))
    lags = 2 * (stages - 1) * problem.lag
    return float((step + lags + max(problem.tail, default=0.0)) * (problem.unit_ms or 1.0))


def _numbers_again(
    problem: PipelineProblem, held: NDArray[np.int64], over: NDArray[np.float64], spared: NDArray[np.float64]
) -> Iterator[NDArray[np.float64]]:
    """How many of a stage's layers may run again, fewer first: float64 [numbers of layers, stages]."""
    if not problem.uniform_recompute:
        yield np.ceil(np.maximum(over, 0.0) / np.maximum(spared, MEMORY_TOLERANCE_MIB))
        return
    # All of the longest chunk at most.
    longest = problem.layers - (problem.interleaves * problem.stages - 1) * problem.min_layers
    for each in sorted({min(count, longest) for mode, count in problem.uniform_recompute if mode == FULL} | {0}):
        yield np.broadcast_to(np.minimum(each * problem.interleaves, held), over.shape).astype(np.float64)


def _even_step(work: NDArray[np.float64], further: int, problem: PipelineProblem) -> float:
    """A step, whose stages take `further` layers beyond their least number; `work` is float64 [layers, stages]."""
    order = np.argsort(work[1:], axis=None, kind="stable")[:further]
    stages = problem.stages
    taken = np.bincount(order % stages, minlength=stages)
    chosen = work[taken, np.arange(stages)]
    if further > work[1:].size or not np.isfinite(chosen).all():
        return math.inf
    longest = float(chosen.max())
    return float(problem.micro_batches * longest + (chosen.sum() - longest) / problem.interleaves)
