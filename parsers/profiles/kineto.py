"""Kernels of one rank from a PyTorch (Kineto) trace."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from taylor.base.errors import InputError
from taylor.parsers.profiles.json_stream import stream_events
from taylor.parsers.profiles.kernels import (
    BACKWARD_MARKER,
    COLLECTIVE,
    FORWARD_MARKER,
    MOST_US,
    RECEIVE,
    SEND,
    KernelBuilder,
    RankProfile,
)

DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of events that occupy the device."""
STEP = re.compile(r"ProfilerStep#(\d{1,9})")
_TASK = re.compile(r"[\W_]*(forward|backward)[\W_]*", re.IGNORECASE)
"""A range that names a task and nothing else: ``## forward ##``."""
_RANK_IN_NAME = re.compile(r"rank[-_]?(\d{1,7})", re.IGNORECASE)
_BY_COLLECTIVE = {"send": SEND, "recv": RECEIVE}


def read_kineto(path: str | Path) -> RankProfile:
    """Read the device kernels of a Kineto trace, plain or gzip-compressed.

    The rank is that of ``distributedInfo``, else of the file's name (``rank-3``). Steps are the
    device's own ``ProfilerStep#N`` ranges, where the trace has them; of the ranges that name tasks
    those count that lie on the stream with most of the computation.

    Raises
    ------
    InputError
        When the trace is damaged, has no kernel, or shows several devices.
    """
    trace, facts = _Trace(Path(path)), dict[str, Any]()
    for event in stream_events(trace.file, facts.__setitem__):
        category = event.get("cat")
        if not isinstance(category, str) or event.get("ph") != "X":
            continue
        if category.lower() in DEVICE_WORK:
            trace.add_kernel(event, category.lower())
        elif category.lower() == "gpu_user_annotation":
            trace.add_range(event)
    return trace.profile(_rank(facts, trace.file))


class _Trace:
    """Kernels and named ranges of a trace, as its events come."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._builder = KernelBuilder(file)
        self._devices: set[object] = set()
        self._steps: list[tuple[int, int, int]] = []
        self._tasks: list[tuple[int, int, int, object]] = []
        self._computed: dict[object, int] = {}
        """Time of computation on each stream, ns."""

    def add_kernel(self, event: dict[str, Any], category: str) -> None:
        """Take in a kernel, copy or fill of the device."""
        name = str(event.get("name", ""))
        start, duration = time_ns(event, "ts", self.file), time_ns(event, "dur", self.file)
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        if category == "kernel":
            self._devices.add(arguments.get("device", event.get("pid")))
        collective = arguments.get("Collective name")
        role = _BY_COLLECTIVE.get(str(collective).lower(), COLLECTIVE) if collective is not None else None
        if collective is not None and "sendrecv" in name.lower() and role == COLLECTIVE:
            role = None
        stream = arguments.get("stream", -1)
        if collective is None and isinstance(stream, int):
            self._computed[stream] = self._computed.get(stream, 0) + duration
        self._builder.add(
            name,
            "",
            start,
            duration,
            where=f"kernel {name[:60]}",
            role=role,
            stream=stream if isinstance(stream, int) and category == "kernel" else -1,
        )

    def add_range(self, event: dict[str, Any]) -> None:
        """Take in a named range of the device, where it names a step or a task."""
        name = str(event.get("name", ""))
        step, task = STEP.match(name), _TASK.fullmatch(name)
        if step is None and task is None:
            return
        start = time_ns(event, "ts", self.file)
        end = start + time_ns(event, "dur", self.file)
        if step is not None:
            self._steps.append((start, end, int(step[1])))
        elif task is not None:
            marker = FORWARD_MARKER if task[1].lower() == "forward" else BACKWARD_MARKER
            self._tasks.append((start, end, marker, event.get("tid")))

    def profile(self, rank: int | None) -> RankProfile:
        """All that has been taken in."""
        if len(self._devices) > 1:
            raise InputError(
                "shows kernels of several devices",
                file=self.file,
                value=sorted(map(str, self._devices)),
                cure="write one trace a rank",
            )
        profile = self._builder.build(rank)
        for begin, end, number in self._steps:
            inside = slice(*np.searchsorted(profile.start_ns, (begin, end)))
            profile.step[inside] = number
        busiest = max(self._computed, key=lambda stream: self._computed[stream], default=None)
        named = sorted(task[:3] for task in self._tasks if task[3] == busiest)
        if not named:
            return profile
        begins, ends, markers = zip(*named, strict=True)
        return replace(
            profile,
            task_start_ns=np.array(begins, dtype=np.int64),
            task_end_ns=np.array(ends, dtype=np.int64),
            task_marker=np.array(markers, dtype=np.int8),
        )


def _rank(facts: dict[str, Any], file: Path) -> int | None:
    information = facts.get("distributedInfo")
    rank = information.get("rank") if isinstance(information, dict) else None
    if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0:
        return rank
    found = _RANK_IN_NAME.search(file.name)
    return int(found[1]) if found else None


def time_ns(event: Mapping[str, Any], field: str, file: Path) -> int:
    """A time of an event.

    Raises
    ------
    InputError
        When it is no time in us.
    """
    value = event.get(field)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) < MOST_US or isinstance(value, bool):
        place = f"{field} of {str(event.get('name'))[:60]}"
        raise InputError("must be a time in us", file=file, field=place, value=value)
    return round(number * 1000)
