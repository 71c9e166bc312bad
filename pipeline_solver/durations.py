"""Task durations of a plan, by the duration classes of the event graph."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import Schedule
from taylor.pipeline_solver.problem import LayerChoice, PipelineProblem

Array = NDArray[np.float64]


def schedule_of(problem: PipelineProblem) -> Schedule:
    """The checked task order that a problem's spec names (built once, then remembered)."""
    return build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)


def has_weight_gradient(problem: PipelineProblem) -> bool:
    """Whether the schedule runs weight gradients as tasks of their own."""
    return problem.schedule.traits.split_backward


def chunk_durations(problem: PipelineProblem, plan: PipelinePlan) -> NDArray[np.float64]:
    """Duration of every class, float64 [R] (`event_graph` numbers them), in body-layer forward times.

    Forward f = Σ φ·x, plus the embedding on the first and the head on the last chunk; backward
    β·f + Σ ρ·φ·r, and what other choices add. Where the schedule has weight-gradient tasks these take the share
    `weight_gradient_share` of β·f, and recompute stays with the input gradient. A task on one piece
    of a split sequence takes 1/splits of its chunk's time.

    Raises
    ------
    KeyError
        When the plan holds a recompute mode whose price the problem does not know.
    """
    S, V = problem.stages, problem.interleaves
    schedule = schedule_of(problem)
    here = [{kind.name: kind for kind in problem.on_stage(s).kinds} for s in range(S)]
    forward = sum(
        (
            np.array([kinds[name].forward for kinds in here]) * np.array(grid, dtype=np.float64)
            for name, grid in plan.layers.items()
        ),
        start=np.zeros((V, S)),
    )
    first, last = schedule.chunk_at(0), schedule.chunk_at(schedule.chunks - 1)
    forward[first] += problem.embedding_forward
    forward[last] += problem.head_forward
    extra = np.zeros((3, V, S))
    for name, modes in plan.recompute_by_kind().items():
        for mode in filter(plan.uses, plan.modes):
            held = np.array(modes[mode], dtype=np.float64)
            added = [times_of(problem.on_stage(s).choice_of(kinds[name], mode)) for s, kinds in enumerate(here)]
            extra += np.array(added).T[:, None] * held
    blocks = duration_blocks(problem, forward, extra, np.arange(S))
    tail = np.array(problem.tail or [0.0] * S)
    return np.concatenate([*(block.reshape(-1) for block in blocks), tail])


def times_of(choice: LayerChoice) -> NDArray[np.float64]:
    """What a choice adds to forward, backward and weight gradient of a layer, float64 [3]."""
    return np.array([choice.forward, choice.backward, choice.weight_gradient])


def _times(ratio: Array, forward: Array) -> Array:
    """A multiple of times, 0 of them too, that leaves infinite ones infinite."""
    held = np.isfinite(forward)
    return np.multiply(ratio, forward, where=held, out=np.where(held, 0.0, np.inf))


def duration_blocks(
    problem: PipelineProblem,
    forward: NDArray[np.float64],
    extra: NDArray[np.float64],
    stage: NDArray[np.int64] | int,
) -> list[NDArray[np.float64]]:
    """Time of a task of each direction from chunks' forward time and what recompute and other choices add to it.

    Parameters
    ----------
    forward : float64 [...]
        Infinite where a stage cannot hold a chunk: its tasks then take for ever in every direction.
    extra : float64 [3, ...]
        Added to forward, backward and weight gradient.
    stage : int64
        The chunks' stages, in a shape that goes with theirs.
    """
    weight = has_weight_gradient(problem)
    share = problem.weight_gradient_share if weight else 0.0
    pace, ratio = np.array(problem.pace)[stage], np.array(problem.backward_ratios)[stage]
    blocks = [forward, _times(ratio * (1.0 - share), forward) + extra[1]]
    if weight:
        blocks.append(_times(ratio * share, forward))
    if problem.choices:  # recompute alone adds to nothing but the backward
        blocks[0] = forward + extra[0]
        blocks[-1] = blocks[-1] + extra[2]
    return [block / problem.schedule.seq_splits * pace for block in blocks]
