"""A schedule's order of tasks as the table that torch's pipelining runs."""

from __future__ import annotations

from taylor.base.errors import InputError
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule

_LETTERS = {FORWARD: "F", BACKWARD: "I", WEIGHT_GRADIENT: "W"}


def actions_table(schedule: Schedule) -> str:
    """The tasks of every rank, a row each, as ``torch.distributed.pipelining`` reads them from a CSV file.

    An action is the model part's number, its kind (F, I input gradient, W weight gradient, B both) and the
    micro-batch: ``2F0``. Source: torch 2.13 torch/distributed/pipelining/schedules.py, ``_Action.from_str`` and
    ``_PipelineScheduleRuntime._load_csv``; torchtitan names the file in ``pipeline_parallel_schedule_csv``.

    Raises
    ------
    InputError
        When sequences are cut into pieces.
    """
    if schedule.spec.seq_splits > 1:
        raise InputError(
            "has no pieces of sequences", field="torch-actions", value=schedule.spec.seq_splits, cure="use seq_splits 1"
        )
    apart = schedule.directions > WEIGHT_GRADIENT
    rows = []
    for s, tasks in enumerate(schedule.order.tolist()):
        row = []
        for t, (direction, v, micro_batch, _) in enumerate(tasks):
            part, after = schedule.position(v, s), tasks[t + 1 : t + 2]
            if direction == WEIGHT_GRADIENT and tasks[t - 1] == [BACKWARD, v, micro_batch, 0]:
                continue  # said with its input gradient
            whole = direction == BACKWARD and (not apart or after == [[WEIGHT_GRADIENT, v, micro_batch, 0]])
            row.append(f"{part}{'B' if whole else _LETTERS[direction]}{micro_batch}")
        rows.append(",".join(row))
    return "\n".join(rows)
