"""Measured pipelines as timelines: worker logs of one or several machines."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable

import numpy as np

from taylor.base.files import printable
from taylor.parsers.tables.worker_log import WorkerLogs, read_worker_logs
from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.report.clocks import clock_shifts
from taylor.report.lanes import lanes_of
from taylor.report.timeline import COMMUNICATION, OPTIMIZER, OTHER, Timeline

TYPES = (
    ("forward", FORWARD),
    ("backward", BACKWARD),
    ("optimizer", OPTIMIZER),
    ("send", COMMUNICATION),
    ("recv", COMMUNICATION),
    ("comm", COMMUNICATION),
    ("allreduce", COMMUNICATION),
)
"""Kind of job by the beginning of its logged type; every other type (lr, default) is `OTHER`."""


SYNTHETIC = " (synthetic: nothing was measured)"
"""End of the title of logs that say so in their first line, as ``benchmarks.synthetic_logs`` writes it."""


def _is_synthetic(log_dir: str | Path) -> bool:
    """Return whether the first of the logs says that it is synthetic."""
    first = min(Path(log_dir).rglob("workerlog.*"), default=None)
    if first is None:
        return False
    with open(first, "rb") as stream:
        return stream.read(9) == b"Synthetic"


def load_worker_logs(
    log_dir: str | Path, devices: Iterable[int] | None = None, multi_machine: bool = False, *, title: str = ""
) -> Timeline:
    """Pipeline in Paddle worker logs, in ms from the first job on.

    Rows are devices, ``GPU0(machine:0)``, by machine and number; a log without a readable job keeps its
    empty row. Overlapping jobs of one device lie in lanes. Marks are the steps. `clock_shifts` aligns the clocks of
    several machines. Notes name dropped or moved data: bad lines, missing devices, clocks.

    Raises
    ------
    InputError
        When there is no log or no readable job.
    """
    found = read_worker_logs(log_dir, devices=devices, multi_machine=multi_machine)
    shifts = clock_shifts(found.logs)
    rows, names, jobs = [], [], []
    for row, log in enumerate(found.logs):
        names.append(f"GPU{log.device}(machine:{log.machine})")
        shift = shifts[log.machine].shift_ms if log.machine in shifts else 0.0
        for job in log.jobs:
            rows.append(row)
            jobs.append((job, job.start_ms + shift, job.end_ms + shift))
    origin = min(start for _, start, _ in jobs)
    start = np.array([begin - origin for _, begin, _ in jobs])
    end = np.array([finish - origin for _, _, finish in jobs])
    stage = np.array(rows, dtype=np.int64)
    none = np.full(len(jobs), -1, dtype=np.int64)
    steps: dict[int, float] = {}
    for (job, _, _), begin in zip(jobs, start.tolist(), strict=True):
        if job.micro_batch >= 0:
            steps[job.step] = min(begin, steps.get(job.step, begin))
    first_step = min((log.profiled_steps[0] for log in found.logs if log.profiled_steps), default=0)
    return Timeline(
        title=title or f"worker logs of {printable(Path(log_dir).name)}{SYNTHETIC if _is_synthetic(log_dir) else ''}",
        row_names=tuple(names),
        stage=stage,
        direction=np.array([_kind(job.type) for job, _, _ in jobs], dtype=np.int64),
        interleave=none,
        micro_batch=np.array([job.micro_batch for job, _, _ in jobs], dtype=np.int64),
        split=none,
        start=start,
        end=end,
        lane=lanes_of(stage, start, end),
        labels=tuple(
            f"{job.type} {job.micro_batch}" if _kind(job.type) in (FORWARD, BACKWARD) else job.type
            for job, _, _ in jobs
        ),
        unit_ms=1.0,
        marks=tuple(sorted((begin, f"step {first_step + step}") for step, begin in steps.items())),
        notes=tuple(_notes(found, {m: (s.shift_ms, s.reason) for m, s in shifts.items()})),
    )


def _kind(job_type: str) -> int:
    return next((kind for beginning, kind in TYPES if job_type.lower().startswith(beginning)), OTHER)


def _notes(found: WorkerLogs, shifts: dict[int, tuple[float, str]]) -> list[str]:
    notes = [
        f"machine {machine}: clock moved by {shift:+,.3f} ms ({reason})"
        for machine, (shift, reason) in shifts.items()
        if reason
    ]
    notes += [f"missing: {name}" for name in found.missing]
    bad = sum(log.bad_lines for log in found.logs)
    if bad:
        named = [
            f"machine {log.machine}, {line}" if found.machines > 1 else line
            for log in found.logs
            for line in log.named_bad_lines
        ]
        notes.append(
            f"{bad} job line{'s' if bad > 1 else ''} could not be read and {'are' if bad > 1 else 'is'} left out"
        )
        notes += named
        if bad > len(named):
            notes.append(f"… and {bad - len(named)} more")
    return notes
