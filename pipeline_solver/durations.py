"""Durations of a plan's tasks, by the classes that the event graph sums over."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pipeline.plan import NONE, PipelinePlan
from pipeline.schedule import ScheduleSpec
from pipeline_solver.problem import PipelineProblem


def directions(spec: ScheduleSpec) -> int:
    """Directions that a schedule's tasks have: 3 where weight gradients are tasks of their own."""
    return 3 if spec.name == "zero_bubble_v" else 2


def last_chunk(problem: PipelineProblem) -> tuple[int, int]:
    """(interleave, stage) of the last chunk in model order: the head's place."""
    if problem.schedule.name == "zero_bubble_v" and problem.interleaves % 2 == 0:
        return problem.interleaves - 1, 0
    return problem.interleaves - 1, problem.stages - 1


def chunk_durations(problem: PipelineProblem, plan: PipelinePlan) -> NDArray[np.float64]:
    """Duration of one task of every class, float64 [R], R = D·V·S + S.

    Class (direction·V + v)·S + s; the S tails come last. Forward f = Σ φ·x (+ head, + embedding);
    backward β·f + Σ ρ·φ·r (DESIGN: recompute is paid in the backward). Where weight gradients are
    tasks of their own they take their share of β·f. A sequence piece takes 1/splits of a chunk's time.
    """
    shape = (problem.interleaves, problem.stages)
    forward = np.zeros(shape)
    recompute = np.zeros(shape)
    modes = plan.recompute_by_kind()
    for kind in problem.kinds:
        if kind.name not in plan.layers:
            continue
        forward += kind.forward * np.array(plan.layers[kind.name])
        for mode, ratio in problem.recompute_ratio.items():
            if mode != NONE:
                recompute += ratio * kind.forward * np.array(modes[kind.name][mode])
    forward[0, 0] += problem.embedding_forward
    forward[last_chunk(problem)] += problem.head_forward
    parts = [forward]
    if directions(problem.schedule) == 3:
        share = problem.weight_gradient_share
        parts += [(1 - share) * problem.backward_ratio * forward + recompute, share * problem.backward_ratio * forward]
    else:
        parts += [problem.backward_ratio * forward + recompute]
    tails = np.array(problem.tail or [0.0] * problem.stages)
    return np.concatenate([*(part.ravel() / problem.schedule.seq_splits for part in parts), tails])
