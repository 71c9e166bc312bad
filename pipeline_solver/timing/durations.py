"""Task durations of a plan, by the duration classes of the event graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import Schedule
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem
from taylor.pipeline_solver.timing.event_graph import EventGraph, partner_table

Array = NDArray[np.float64]


def schedule_of(problem: PipelineProblem) -> Schedule:
    """The checked task order of a problem's schedule (built once, then cached)."""
    return build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)


def graph_of(problem: PipelineProblem) -> EventGraph:
    """The event graph of a problem's schedule, with its transfer times."""
    return EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags, combined=problem.pairing is not None)


def has_weight_gradient(problem: PipelineProblem) -> bool:
    """Return whether the schedule runs weight gradients as separate tasks."""
    return problem.schedule.traits.split_backward


def chunk_durations(problem: PipelineProblem, plan: PipelinePlan) -> NDArray[np.float64]:
    """Duration of every class, float64 [R] (`event_graph` numbers them), in body-layer forward times.

    Forward f = Σ φ·x, plus the embedding on the first and the head on the last chunk; backward β·f + Σ ρ·φ·r, and the
    times of other choices. Where the schedule has weight-gradient tasks these take the fraction `weight_gradient_share`
    of β·f, and recompute stays with the input gradient. A task on one piece of a split sequence takes 1/splits of its
    chunk's time.

    Raises
    ------
    KeyError
        If the plan has a recompute mode whose cost the problem lacks.
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
            counts = np.array(modes[mode], dtype=np.float64)
            added = [times_of(problem.on_stage(s).choice_of(kinds[name], mode)) for s, kinds in enumerate(here)]
            extra += np.array(added).T[:, None] * counts
    exposed = np.zeros((2, V, S)) if problem.adds_pinned else None
    if problem.pairing is not None:
        grids = [np.array(plan.layers.get(kind.name, np.zeros((V, S))), dtype=np.int64) for kind in problem.free_kinds]
        exposed = exposed_times(problem, np.stack(grids).transpose(2, 1, 0), problem.free_kinds)
        exposed = exposed.transpose(0, 2, 1)
    for kind in problem.pinned_kinds:
        if exposed is None:
            break
        times = np.tile(_beside(problem, kind), len(exposed) // 2)
        exposed = exposed + times[:, None, None] * np.array(plan.layers[kind.name])
    blocks = duration_blocks(problem, forward, extra, np.arange(S), exposed)
    tail = np.array(problem.tail or [0.0] * S)
    return np.concatenate([*(block.reshape(-1) for block in blocks), tail])


def times_of(choice: LayerChoice) -> NDArray[np.float64]:
    """Time that a choice adds to forward, backward and weight gradient of a layer, float64 [3]."""
    return np.array([choice.forward, choice.backward, choice.weight_gradient])


def _times(ratio: Array, forward: Array) -> Array:
    """A multiple of times that keeps infinite ones infinite, also for a factor of 0."""
    finite = np.isfinite(forward)
    return np.multiply(ratio, forward, where=finite, out=np.where(finite, 0.0, np.inf))


def duration_blocks(
    problem: PipelineProblem,
    forward: NDArray[np.float64],
    extra: NDArray[np.float64],
    stage: NDArray[np.int64] | int,
    exposed: NDArray[np.float64] | None = None,
) -> list[NDArray[np.float64]]:
    """Time of a task of each direction from chunks' forward time and the added times of recompute and other choices.

    Parameters
    ----------
    forward : float64 [...]
        Infinite where a stage cannot have a chunk; so are then its tasks in every direction.
    extra : float64 [3, ...]
        Added to forward, backward and weight gradient.
    stage : int64
        The chunks' stages, in a compatible shape.
    exposed : float64 [2 (1 + P), ...], optional
        Times of pinned kinds (`LayerKind.added_forward`) in the chunks' forwards and backwards. Under a pairing:
        exposed communication, too, in a forward and a backward that run alone, and in those combined with each virtual
        stage of `partner_table`.
    """
    weight = has_weight_gradient(problem)
    share = problem.weight_gradient_share if weight else 0.0
    pace, ratio = np.array(problem.pace)[stage], np.array(problem.backward_ratios)[stage]
    blocks = [forward, _times(ratio * (1.0 - share), forward) + extra[1]]
    if weight:
        blocks.append(_times(ratio * share, forward))
    if problem.choices:  # recompute alone only adds to the backward
        blocks[0] = forward + extra[0]
        blocks[-1] = blocks[-1] + extra[2]
    if exposed is not None:
        blocks += [blocks[row % 2] + exposed[row] for row in range(2, len(exposed))]
        blocks[:2] = [block + more for block, more in zip(blocks[:2], exposed[:2], strict=True)]
    return [block / problem.schedule.seq_splits * pace for block in blocks]


def exposed_times(
    problem: PipelineProblem, layers: NDArray[np.integer], kinds: Sequence[LayerKind]
) -> NDArray[np.float64]:
    """Exposed communication of stages by their chunks' layers, in the rows of `duration_blocks`.

    Parameters
    ----------
    layers : int [n, V, K]
        Of each of `kinds`, in model order.

    Returns
    -------
    float64 [2 (1 + P), n, V]
    """
    assert problem.pairing is not None
    beside = partner_table(schedule_of(problem))
    times = np.array([[kind.exposed_forward for kind in kinds], [kind.exposed_backward for kind in kinds]])
    total = layers.sum(axis=2)
    before = layers.cumsum(axis=2) - layers
    behind = total[:, :, None] - before - layers
    found = np.zeros((2 * (1 + beside.shape[1]), *total.shape))
    found[:2] = (layers @ times.T).transpose(2, 0, 1)
    for v, row in enumerate(beside):
        for rank, other in enumerate(row):
            if other < 0:
                continue
            pairs = problem.pairing.count(total[:, v], total[:, other])[:, None]
            for direction in (0, 1):
                nearer = before if problem.pairing.keeps_first(bool(direction)) else behind
                alone = layers[:, v] - np.clip(pairs - nearer[:, v], 0, layers[:, v])
                found[2 * (1 + rank) + direction, :, v] = alone @ times[direction]
    return found


def exposed_of_stage(
    problem: PipelineProblem, s: int, layers: NDArray[np.integer], ordered: bool = True
) -> NDArray[np.float64]:
    """`exposed_times` of a stage by its chunks' layers of the placed kinds, pinned kinds included.

    Where the kinds are not in the problem's order, every layer of a combined pass counts as paired.
    """
    if problem.pairing is None:
        return np.broadcast_to(pinned_times(problem, s, 2)[:, None], (2, *layers.shape[:2]))
    found = exposed_times(problem, layers, problem.placed_kinds)
    if not ordered:
        found[2:] = 0.0
    return found + pinned_times(problem, s, len(found))[:, None]


def pinned_times(problem: PipelineProblem, s: int, rows: int) -> NDArray[np.float64]:
    """Times of the pinned kinds in a stage's chunks that no forward time states, float64 [rows, V].

    They are `LayerKind.added_forward` and `added_backward`, and under a pairing exposed communication, which is never
    paired; in the rows of `exposed_times`.
    """
    schedule, found = schedule_of(problem), np.zeros((rows, problem.interleaves))
    for v in range(problem.interleaves):
        for kind in problem.pinned_at(schedule.position(v, s)):
            found[:, v] += kind.count * np.tile(_beside(problem, kind), rows // 2)
    return found


def _beside(problem: PipelineProblem, kind: LayerKind) -> NDArray[np.float64]:
    """Time of a layer of a pinned kind in forward and backward beyond those of its forward time, float64 [2]."""
    exposed = kind.exposed if problem.pairing is not None else (0.0, 0.0)
    return np.array([a + b for a, b in zip(exposed, kind.added, strict=True)])
