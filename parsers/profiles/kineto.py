"""Kernels of one rank from a PyTorch (Kineto) trace."""

from __future__ import annotations

import math
import re
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

_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP = re.compile(r"ProfilerStep#(\d{1,9})")
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
    file = Path(path)
    builder = KernelBuilder(file)
    facts: dict[str, Any] = {}
    steps: list[tuple[int, int, int]] = []
    devices: set[object] = set()
    tasks: list[tuple[int, int, int, object]] = []
    computed: dict[object, int] = {}
    for event in stream_events(file, lambda key, value: facts.__setitem__(key, value)):
        category = event.get("cat")
        if not isinstance(category, str) or event.get("ph") != "X":
            continue
        category = category.lower()
        name = str(event.get("name", ""))
        if category in _KERNELS:
            start, duration = _time_ns(event, "ts", file), _time_ns(event, "dur", file)
            arguments = event.get("args")
            arguments = arguments if isinstance(arguments, dict) else {}
            if category == "kernel":
                devices.add(arguments.get("device", event.get("pid")))
            collective = arguments.get("Collective name")
            role = _BY_COLLECTIVE.get(str(collective).lower(), COLLECTIVE) if collective is not None else None
            if collective is not None and "sendrecv" in name.lower() and role == COLLECTIVE:
                role = None
            stream = arguments.get("stream", -1)
            if collective is None and isinstance(stream, int):
                computed[stream] = computed.get(stream, 0) + duration
            builder.add(
                name,
                "",
                start,
                duration,
                where=f"kernel {name[:60]}",
                role=role,
                stream=stream if isinstance(stream, int) and category == "kernel" else -1,
            )
        elif category == "gpu_user_annotation":
            found = _STEP.match(name)
            if found:
                start = _time_ns(event, "ts", file)
                steps.append((start, start + _time_ns(event, "dur", file), int(found[1])))
            elif task := _TASK.fullmatch(name):
                start = _time_ns(event, "ts", file)
                marker = FORWARD_MARKER if task[1].lower() == "forward" else BACKWARD_MARKER
                tasks.append((start, start + _time_ns(event, "dur", file), marker, event.get("tid")))
    if len(devices) > 1:
        raise InputError(
            "shows kernels of several devices",
            file=file,
            value=sorted(map(str, devices)),
            cure="write one trace a rank",
        )
    profile = builder.build(_rank(facts, file))
    for begin, end, number in steps:
        inside = slice(*np.searchsorted(profile.start_ns, (begin, end)))
        profile.step[inside] = number
    busiest = max(computed, key=lambda stream: computed[stream], default=None)
    named = sorted(task[:3] for task in tasks if task[3] == busiest)
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


def _time_ns(event: dict[str, Any], field: str, file: Path) -> int:
    value = event.get(field)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) < MOST_US or isinstance(value, bool):
        place = f"{field} of {str(event.get('name'))[:60]}"
        raise InputError("must be a time in us", file=file, field=place, value=value)
    return round(number * 1000)
