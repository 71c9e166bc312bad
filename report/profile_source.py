"""Device profiles (Ascend, Kineto) as timelines: runs of kernels drawn as jobs, a row for each rank."""

from __future__ import annotations

from pathlib import Path
from typing import Iterable

import numpy as np

from taylor.base.errors import InputError
from taylor.base.files import printable
from taylor.parsers.profiles.folder import rank_sources
from taylor.parsers.profiles.kernels import (
    BACKWARD_MARKER,
    COLLECTIVE,
    COMPUTE,
    NO_MARKER,
    RECEIVE,
    SEND,
    TRANSFER,
    RankProfile,
)
from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.report.intervals import Activity, FloatArray, merged
from taylor.report.lanes import lanes_of
from taylor.report.timeline import COMMUNICATION, DIRECTION_NAMES, OTHER, IntArray, Timeline

NS_PER_MS = 1e6

BLOCKS_A_ROW = 2000
"""Kernels of one kind are drawn as one block where the gap between them is below the row's span over this number."""

ROLE_NAMES = {COLLECTIVE: "collective", SEND: "send", RECEIVE: "receive", TRANSFER: "send and receive"}


def load_profiles(folder: str | Path, ranks: Iterable[int] | None = None, *, title: str = "") -> Timeline:
    """Jobs in a folder of profiles, in ms from the first kernel on.

    A row is a rank. Consecutive kernels that follow closely and do the same are one block: forward or backward (by the
    attention kernels around them, `directions`), or communication, in lanes of its own. Marks are the profiler's steps
    on the first rank.

    Parameters
    ----------
    ranks : iterable of int, optional
        Only these ranks; one without a profile is named in the notes.

    Raises
    ------
    InputError
        When there is no profile, or none of the wanted ranks.
    """
    wanted = None if ranks is None else set(ranks)
    profiles = [source.read() for source in rank_sources(folder)]
    profiles = [one for one in profiles if wanted is None or one.rank in wanted]
    if not profiles:
        raise InputError("has no profile of these ranks", file=folder, field="--devices", value=sorted(wanted or ()))
    profiles.sort(key=lambda one: (one.rank is None, one.rank or 0))
    begins = [int(one.start_ns.min()) for one in profiles]
    ends = [int(one.end_ns.max()) for one in profiles]
    notes = [f"rank {rank} has no profile here" for rank in sorted((wanted or set()) - {one.rank for one in profiles})]
    together = max(begins) < min(ends)
    if not together:
        notes.append("the ranks were profiled at different times: their first kernels are laid together")
    rows = [_blocks(one, min(begins) if together else begins[i]) for i, one in enumerate(profiles)]
    stage = np.concatenate([np.full(len(row[0]), i, dtype=np.int64) for i, row in enumerate(rows)])
    direction, start, end, lane = (np.concatenate([row[k] for row in rows]) for k in range(4))
    none = np.full(len(stage), -1, dtype=np.int64)
    return Timeline(
        title=title or f"profiles of {printable(Path(folder).name)}",
        row_names=_row_names(profiles),
        stage=stage,
        direction=direction.astype(np.int64),
        interleave=none,
        micro_batch=none,
        split=none,
        start=start,
        end=end,
        lane=lane.astype(np.int64),
        labels=tuple(label for row in rows for label in row[4]),
        unit_ms=1.0,
        marks=_steps(profiles[0], min(begins) if together else begins[0]),
        notes=tuple(notes + [note for one in profiles for note in one.notes]),
        activity=tuple(_activity(one, min(begins) if together else begins[i]) for i, one in enumerate(profiles)),
        apart=not together,
    )


def _activity(profile: RankProfile, origin_ns: int) -> Activity:
    """Times in which one rank computes and communicates, ms, kernel by kernel: blocks close over the pauses in them."""
    start, end = ((times - origin_ns) / NS_PER_MS for times in (profile.start_ns, profile.end_ns))
    compute = profile.role == COMPUTE
    receive = (profile.role == RECEIVE) | (profile.role == TRANSFER)
    return Activity(*(merged(start[part], end[part]) for part in (compute, ~compute, receive)))


def _row_names(profiles: list[RankProfile]) -> tuple[str, ...]:
    ranks = [one.rank for one in profiles]
    return tuple(
        printable(one.path.name)
        if one.rank is None
        else f"rank {one.rank} ({printable(one.path.name)})"
        if ranks.count(one.rank) > 1
        else f"rank {one.rank}"
        for one in profiles
    )


def directions(profile: RankProfile) -> IntArray:
    """Direction of each kernel, forward or backward, int [n]; `OTHER` without attention kernels.

    A kernel belongs to the nearer in time of the attention kernels before and after it. This is right except for the
    few kernels around a change of direction: attention lies in the middle of its layer.
    """
    marks = np.flatnonzero(profile.marker != NO_MARKER)
    if not len(marks):
        return np.full(len(profile), OTHER, dtype=np.int64)
    middle = profile.start_ns[marks] + profile.duration_ns[marks] // 2
    turn = (middle[:-1] + middle[1:]) // 2
    nearest = marks[np.searchsorted(turn, profile.start_ns, side="right")]
    return np.where(profile.marker[nearest] == BACKWARD_MARKER, BACKWARD, FORWARD).astype(np.int64)


def _blocks(profile: RankProfile, origin_ns: int) -> tuple[IntArray, FloatArray, FloatArray, IntArray, list[str]]:
    """Direction, start, end (ms), lane and label of every block of one rank."""
    passes = directions(profile)
    gap = (int(profile.end_ns.max()) - int(profile.start_ns.min())) / BLOCKS_A_ROW
    kinds = [
        (
            direction,
            DIRECTION_NAMES[direction] if direction != OTHER else "compute",
            (profile.role == COMPUTE) & (passes == direction),
        )
        for direction in (FORWARD, BACKWARD, OTHER)
    ]
    kinds += [(COMMUNICATION, name, profile.role == role) for role, name in ROLE_NAMES.items()]
    found: list[tuple[int, float, float, str]] = []
    for kind, name, mask in kinds:
        begin, end = profile.start_ns[mask], np.maximum.accumulate(profile.end_ns[mask])
        if not len(begin):
            continue
        first = np.flatnonzero(np.concatenate([[True], begin[1:] - end[:-1] > gap]))
        last = np.append(first[1:], len(begin))
        for a, b in zip(first.tolist(), last.tolist(), strict=True):
            found.append(
                (
                    kind,
                    (int(begin[a]) - origin_ns) / NS_PER_MS,
                    (int(end[b - 1]) - origin_ns) / NS_PER_MS,
                    f"{name} ({b - a} kernel{'s' if b - a > 1 else ''})",
                )
            )
    found.sort(key=lambda one: one[1:3])
    direction = np.array([one[0] for one in found], dtype=np.int64)
    start, end = (np.array([one[k] for one in found], dtype=np.float64) for k in (1, 2))
    talks = (direction == COMMUNICATION).astype(np.int64)
    lane = lanes_of(talks, start, end)
    # Communication is drawn below the computation that it overlaps with.
    lane += talks * (int(lane[talks == 0].max(initial=-1)) + 1)
    return direction, start, end, lane, [one[3] for one in found]


def _steps(profile: RankProfile, origin_ns: int) -> tuple[tuple[float, str], ...]:
    steps = [int(step) for step in np.unique(profile.step) if step >= 0]
    starts = ((int(profile.start_ns[profile.step == step].min()) - origin_ns, step) for step in steps)
    return tuple((begin / NS_PER_MS, f"step {step}") for begin, step in sorted(starts))
