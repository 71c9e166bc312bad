"""The passes that combine a forward with a backward: the tasks of a stage and the virtual stages that they run beside.

DualPipeV combines a forward of one virtual stage with the backward of the other where its order has one directly before
the other and the backward runs whole: the steady state, and the forwards of its drain. The last stage runs its first
such pair one after the other (DeepSeek's dualpipe/dualpipev.py, ``step``, "Step 4"; MindSpeed 028de58c
mindspeed/core/pipeline_parallel/dualpipev/dualpipev_schedules.py:1064-1081 and :1170-1340, ``firstFB_no_overlp``).
Megatron-LM and MindSpeed combine every forward of the interleaved steady state with its backward, for which they warm
up with one forward more (`ScheduleSpec.one_ahead`; Megatron-LM d98e8a64
megatron/core/pipeline_parallel/schedules.py:1485-1510, MindSpeed 028de58c
mindspeed/core/transformer/moe/moe_feature/fb_overlap/vpp_schedules.py:430-454).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.schedule import BACKWARD, FORWARD, Schedule, ScheduleSpec

COMBINING = "dualpipev"
"""The schedule on a V that combines passes."""


def combines(spec: ScheduleSpec) -> bool:
    """Return whether frameworks combine passes of the schedule."""
    return spec.name == COMBINING or spec.ahead > 0


def partners(schedule: Schedule) -> NDArray[np.int64]:
    """Virtual stage of the task that each task runs beside in one pass, -1 where alone; int64 [S, tasks].

    A weight gradient runs alone: it overlaps no more than its backward does.
    """
    direction, interleave = (schedule.order[:, :, column].astype(np.int64) for column in (0, 1))
    found = np.full(direction.shape, -1, dtype=np.int64)
    if not combines(schedule.spec):
        return found
    begins = (direction[:, :-1] == FORWARD) & (direction[:, 1:] == BACKWARD)
    if schedule.spec.name == COMBINING:
        assert schedule.whole is not None
        begins &= (interleave[:, :-1] != interleave[:, 1:]) & schedule.whole[:, 1:]
        first = np.argmax(begins[-1])
        begins[-1, first] = False
    else:
        begins[_warms_up_with_all(schedule)] = False
    stage, at = np.nonzero(begins)
    found[stage, at], found[stage, at + 1] = interleave[stage, at + 1], interleave[stage, at]
    return found


def _warms_up_with_all(schedule: Schedule) -> NDArray[np.bool_]:
    """Return whether each stage's warm-up takes all of its forwards, so that there is no steady state; bool [S]."""
    spec, stages, interleaves = schedule.spec, schedule.stages, schedule.interleaves
    filled = (interleaves - 1) * spec.round_sizes(stages, schedule.micro_batches)[0] + spec.ahead
    warm_up = filled + (spec.warm_up_step(interleaves) or 0) * np.arange(stages)[::-1]
    return np.asarray(warm_up >= interleaves * schedule.micro_batches)
