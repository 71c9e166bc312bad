"""A timeline as a Chrome trace, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator, Sequence

import numpy as np

from taylor.base.files import write_atomic
from taylor.report.host_link import HostTransfers
from taylor.report.timeline import COMMUNICATION, DIRECTION_NAMES, OPTIMIZER, OTHER, Timeline

US_PER_MS = 1000.0

UNIT_US = 1000.0
"""Microseconds that stand for one unit where its real time is not known: one unit reads as 1 ms."""

COLOUR_NAMES = ("thread_state_running", "thread_state_iowait", "good", "thread_state_sleeping", "yellow", "grey")
"""Reserved colour names of chrome://tracing by kind of job; Perfetto colours by name itself."""

LINK_LANES = ((True, 901, "to the host"), (False, 902, "from the host"))
"""Threads of the link to the host, by direction; above the lanes of jobs of any device."""
LENDER_LANES = ((True, 903, "to the lender"), (False, 904, "from the lender"))
"""The same of the link to the stage that keeps lent activations."""

RECOMPUTE_COLOUR = "thread_state_unknown"


def write_chrome_trace(timeline: Timeline, path: str | Path) -> Path:
    """Write every task of a timeline as Chrome trace JSON.

    Each stage or device is a process of its own, named and in order; its tasks are on the first thread
    (overlapping jobs on further ones), what the link to its host carries on two of their own. The recompute
    part of a backward is a block inside the backward's; memory is a counter, a dry-run's memory a second one,
    the host's a third; the hand-over of a micro-batch is a flow. Times are µs; where the unit's real time is
    unknown, one unit is 1,000 µs, and ``otherData`` says so.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    # One event a line: quick to write for a million events, and a diff of two traces reads well.
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    lines = ",\n".join(map(encode, trace_events(timeline)))
    other = json.dumps(
        {
            "title": timeline.title,
            "unit_us": unit_us(timeline),
            "unit": "real time" if timeline.unit_ms is not None else "one body layer's forward shown as 1 ms",
            "step_units": timeline.span,
            "notes": list(timeline.notes),
        }
    )
    return write_atomic(path, f'{{"displayTimeUnit":"ms","otherData":{other},"traceEvents":[\n{lines}\n]}}\n')


def unit_us(timeline: Timeline) -> float:
    """Microseconds of one unit of the timeline in its trace."""
    return UNIT_US if timeline.unit_ms is None else timeline.unit_ms * US_PER_MS


def trace_events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """The events of a timeline's trace, metadata first.

    Process ids are row numbers + 1 (0 is the idle process to some viewers); thread ids are lanes + 1.
    """
    scale = unit_us(timeline)
    yield from _names(timeline)
    yield from _tasks(timeline, scale)
    yield from _flows(timeline, scale)
    yield from _transfers(timeline.transfers, LINK_LANES, "host link", scale)
    yield from _transfers(timeline.lent, LENDER_LANES, "lender's link", scale)
    for row, steps in enumerate(timeline.host):
        for time, mib in zip(steps.time.tolist(), steps.mib.tolist(), strict=True):
            yield {"ph": "C", "name": "host memory MiB", "pid": row + 1, "ts": time * scale, "args": {"used": mib}}
    for row, steps in enumerate(timeline.dryrun):
        for time, mib in zip(steps.time.tolist(), steps.mib.tolist(), strict=True):
            place = {"pid": row + 1, "ts": time * scale}
            yield {"ph": "C", "name": "memory by dry-run MiB", **place, "args": {"used": mib}}
    for row, steps in enumerate(timeline.memory):
        limit = {} if steps.limit_mib is None else {"limit": steps.limit_mib}
        for time, mib in zip(steps.time.tolist(), steps.mib.tolist(), strict=True):
            yield {"ph": "C", "name": "memory MiB", "pid": row + 1, "ts": time * scale, "args": {"used": mib}}
        if limit and len(steps.time):
            for time in (float(steps.time[0]), timeline.finish):
                yield {"ph": "C", "name": "memory limit MiB", "pid": row + 1, "ts": time * scale, "args": limit}
    pid = timeline.rows + 1
    ends = [time for time, _ in timeline.marks[1:]] + [timeline.finish]
    for (time, name), end in zip(timeline.marks, ends, strict=False):
        yield {
            "ph": "X",
            "name": name,
            "cat": "step",
            "pid": pid,
            "tid": 1,
            "ts": time * scale,
            "dur": max(0.0, end - time) * scale,
            "args": {},
        }


def _names(timeline: Timeline) -> Iterator[dict[str, Any]]:
    names = [*timeline.row_names, *(["steps"] if timeline.marks else [])]
    for row, name in enumerate(names):
        pid = row + 1
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": row}}
        lanes = int(timeline.lane[timeline.stage == row].max(initial=0)) + 1
        for lane in range(lanes):
            shown = "jobs" if lane == 0 else f"jobs at the same time ({lane + 1})"
            yield {
                "ph": "M",
                "name": "thread_name",
                "pid": pid,
                "tid": lane + 1,
                "args": {"name": "steps" if row == timeline.rows else shown},
            }
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": lane + 1, "args": {"sort_index": lane}}


def _tasks(timeline: Timeline, scale: float) -> Iterator[dict[str, Any]]:
    columns = zip(
        timeline.task_names(),
        timeline.stage.tolist(),
        timeline.lane.tolist(),
        timeline.direction.tolist(),
        timeline.micro_batch.tolist(),
        timeline.interleave.tolist(),
        timeline.split.tolist(),
        (timeline.start * scale).tolist(),
        (timeline.end * scale).tolist(),
        (timeline.recompute * scale).tolist(),
        strict=True,
    )
    for name, stage, lane, direction, micro_batch, interleave, split, start, end, recompute in columns:
        place = {"pid": stage + 1, "tid": lane + 1, "ts": start}
        args: dict[str, Any] = {"direction": DIRECTION_NAMES[direction]}
        if direction not in (OPTIMIZER, COMMUNICATION, OTHER):
            named = (("micro_batch", micro_batch), ("interleave", interleave), ("split", split))
            args.update((key, value) for key, value in named if value >= 0)
        if recompute > 0:
            args["recompute_us"] = recompute
        yield {
            "ph": "X",
            "name": name,
            "cat": DIRECTION_NAMES[direction],
            **place,
            "dur": end - start,
            "cname": COLOUR_NAMES[direction],
            "args": args,
        }
        if recompute > 0:
            yield {
                "ph": "X",
                "name": "recompute",
                "cat": "recompute",
                **place,
                "dur": min(recompute, end - start),
                "cname": RECOMPUTE_COLOUR,
                "args": {},
            }


def _transfers(
    moved: HostTransfers | None, lanes: Sequence[tuple[bool, int, str]], category: str, scale: float
) -> Iterator[dict[str, Any]]:
    """Blocks of a link, and the names of its threads."""
    if moved is None:
        return
    for row in np.unique(moved.stage).tolist():
        for _, tid, name in lanes:
            yield {"ph": "M", "name": "thread_name", "pid": row + 1, "tid": tid, "args": {"name": f"link {name}"}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": row + 1, "tid": tid, "args": {"sort_index": tid}}
    for outward, tid, name in lanes:
        for k in np.flatnonzero(moved.outward == outward).tolist():
            args = {"micro_batch": int(moved.micro_batch[k]), "interleave": int(moved.interleave[k])}
            begins, ends = float(moved.start[k]) * scale, float(moved.end[k]) * scale
            place = {"pid": int(moved.stage[k]) + 1, "tid": tid, "ts": begins, "dur": ends - begins}
            yield {"ph": "X", "name": name, "cat": category, **place, "args": args}


def _flows(timeline: Timeline, scale: float) -> Iterator[dict[str, Any]]:
    # A flow binds to the block around its moment, so both ends lie in the middle of their blocks.
    middle = ((timeline.start + timeline.end) * (scale / 2)).tolist()
    pid, tid = (timeline.stage + 1).tolist(), (timeline.lane + 1).tolist()
    for number, (source, target) in enumerate(timeline.flows.tolist(), start=1):
        shared = {"name": "hand-over", "cat": "micro-batch", "id": number}
        yield {"ph": "s", **shared, "pid": pid[source], "tid": tid[source], "ts": middle[source]}
        yield {"ph": "f", **shared, "pid": pid[target], "tid": tid[target], "ts": middle[target], "bp": "e"}
