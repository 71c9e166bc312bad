"""Ranks whose trace names its tasks (``## forward ##``) and shows no attention kernel: one window a task.

A whole task is a coarser measure than a layer pass: it gives a layer's time where stages hold different
numbers of layers, or where some stage holds nothing but layers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.parsers.profiles.kernels import BACKWARD_MARKER, FORWARD_MARKER, RankProfile
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import FORWARD, WEIGHT_GRADIENT, Schedule
from taylor.profiling.match import ProfileMisfit
from taylor.profiling.pattern import KernelWindow, StagePattern, task_pieces

BETWEEN_TASKS = KernelWindow((), 1)
"""The time between two tasks is waiting and taken as 0."""


def names_tasks(profile: RankProfile) -> bool:
    """Return whether a profile has ranges that name tasks, and no attention kernel, which would say more."""
    return len(profile.task_marker) > 0 and not profile.marker.any()


def task_pattern(schedule: Schedule, plan: PipelinePlan, stage: int) -> StagePattern:
    """The tasks of a stage, each by the marker of its direction at its begin and at its end.

    Raises
    ------
    ProfileMisfit
        When the schedule splits the weight gradient off: forward and backward ranges do not distinguish it.
    """
    order = schedule.order[stage].tolist()
    if any(direction == WEIGHT_GRADIENT for direction, *_ in order):
        raise ProfileMisfit("the weight gradient is a task of its own, which no forward or backward range shows")
    known: dict[KernelWindow, int] = {}
    windows: list[int] = []
    for number, (direction, v, _, split) in enumerate(order):
        if number:
            windows.append(known.setdefault(BETWEEN_TASKS, len(known)))
        pieces = task_pieces(schedule, plan, stage, direction, v)
        windows.append(known.setdefault(KernelWindow(tuple(sorted(pieces.items())), 0, split), len(known)))
    markers = [FORWARD_MARKER if direction == FORWARD else BACKWARD_MARKER for direction, *_ in order]
    layers = sum(map(sum, zip(*([row[stage] for row in grid] for grid in plan.layers.values()), strict=True)))
    return StagePattern(
        stage,
        np.repeat(np.array(markers, dtype=np.int8), 2),
        tuple(known),
        np.array(windows, dtype=np.int64),
        np.repeat(np.array([micro_batch for _, _, micro_batch, _ in order], dtype=np.int64), 2),
        layers,
        0,
    )


def measure_tasks(profile: RankProfile, pattern: StagePattern) -> NDArray[np.float64]:
    """Times of the windows of a rank, ms, float64 [steps, n - 1].

    Raises
    ------
    ProfileMisfit
        When the ranges are not whole steps of the stage's tasks, or overlap.
    """
    wanted, found = pattern.markers[::2], profile.task_marker
    steps, rest = divmod(len(found), len(wanted))
    if rest or not (found == np.tile(wanted, steps)).all():
        forward = int((found == FORWARD_MARKER).sum())
        raise ProfileMisfit(
            f"no attention kernel of a known name; {forward} forward and {len(found) - forward} backward ranges, "
            f"expected {int((wanted == FORWARD_MARKER).sum())} and {int((wanted != FORWARD_MARKER).sum())} a step in "
            "the order of the schedule: the profile was cut short, or the ranges do not name single tasks"
        )
    if (profile.task_start_ns[1:] < profile.task_end_ns[:-1]).any():
        raise ProfileMisfit("ranges that name tasks overlap: they do not name single tasks")
    times = np.zeros((steps, 2 * len(wanted) - 1))
    times[:, ::2] = ((profile.task_end_ns - profile.task_start_ns) / 1e6).reshape(steps, len(wanted))
    return times
