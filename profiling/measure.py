"""Times of one rank between matching points, without waiting and with separate communication."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.parsers.profiles.kernels import COLLECTIVE, COMPUTE, SEND, RankProfile
from taylor.profiling.pattern import Piece, StagePattern


def busy_intervals(profile: RankProfile, roles: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Starts and ends (ns) of the longest stretches in which some kernel of these roles runs."""
    chosen = np.isin(profile.role, roles)
    start, end = profile.start_ns[chosen], profile.end_ns[chosen]
    if not len(start):
        return start, end
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return start[first], reach[last]


def measure_windows(profile: RankProfile, pattern: StagePattern, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Times of the windows of a rank, ms, float64 [steps, n - 1].

    Inside a task everything counts. Where a window holds borders of tasks, the longest idle stretch for
    each border is taken as waiting and omitted; sends and receives are no work.
    """
    times = profile.start_ns[steps]
    wall = np.diff(times, axis=1).astype(np.float64)
    starts, ends = busy_intervals(profile, (COMPUTE, COLLECTIVE))
    gap_start, gap_length = ends[:-1], starts[1:] - ends[:-1]
    borders = np.array([window.borders for window in pattern.windows], dtype=np.int64)[pattern.window]
    for column in np.flatnonzero(borders):
        low = np.searchsorted(gap_start, times[:, column])
        high = np.searchsorted(gap_start, times[:, column + 1])
        for step in range(len(times)):
            inside = gap_length[low[step] : high[step]]
            count = int(borders[column])
            if len(inside) > count:
                inside = np.partition(inside, len(inside) - count)[len(inside) - count :]
            wall[step, column] -= inside.sum()
    return wall / 1e6


@dataclass(frozen=True)
class NamedSample:
    """Time of a single piece in one window (step, column), ms."""

    piece: Piece
    step: int
    column: int
    time_ms: float


def measure_by_name(
    profile: RankProfile, pattern: StagePattern, steps: NDArray[np.int64], limit: int = 200
) -> list[NamedSample]:
    """Times of single pieces from the names of the kernels and from the sends.

    A recomputed pass runs the kernels of the forward again. So the kernels after its attention kernel are
    recompute as far as they are the ones that follow attention in a forward, and those before it as far
    back as they are the ones that precede it: where every layer is recomputed, this alone parts recompute
    from backward. In the same way the embedding is parted from the layers beside it; the head is not, for it
    begins as a next layer would (`norms.find_norms`). And where a task sends its output, the send shows where
    the task ended.
    """
    work = np.flatnonzero(np.isin(profile.role, (COMPUTE, COLLECTIVE)))
    at = np.searchsorted(work, steps)
    names, starts, ends = profile.name[work], profile.start_ns[work], profile.end_ns[work]
    forward: dict[str, NDArray[np.int32]] = {}
    backward: dict[str, NDArray[np.int32]] = {}
    for number, window in enumerate(pattern.windows):
        inside = [piece for piece, _ in window.pieces]
        known = {"before": forward, "back before": backward}.get(inside[-1][0])
        if window.borders or known is None or [what for what, _ in inside] not in _WHOLE:
            continue
        column = int(np.argmax(pattern.window == number))
        kind = inside[0][1] or inside[1][1]
        known.setdefault(kind, names[at[0, column] + 1 : at[0, column + 1]])
    samples: list[NamedSample] = []
    for number, window in enumerate(pattern.windows):
        inside = [piece for piece, _ in window.pieces]
        samples += _until_send(profile, pattern, steps, number, limit)
        first, last = _ends_by_name(inside, forward, backward)
        if first is None and last is None:
            continue
        columns = np.flatnonzero(pattern.window == number)[:limit]
        for step, column in [(step, int(column)) for step in range(len(at)) for column in columns]:
            low, high = int(at[step, column]), int(at[step, column + 1])
            mine = names[low + 1 : high]
            if first is not None:
                same = max(common_beginning(mine, known) for known in first[1])
                time = int(ends[low + same]) - int(starts[low])
                samples.append(NamedSample(first[0], step, column, time / 1e6))
            if last is not None:
                same = max(common_beginning(mine[::-1], known[::-1]) for known in last[1])
                time = int(starts[high]) - int(starts[high - same])
                samples.append(NamedSample(last[0], step, column, time / 1e6))
    return samples


def _until_send(
    profile: RankProfile, pattern: StagePattern, steps: NDArray[np.int64], number: int, limit: int
) -> list[NamedSample]:
    """Times from an attention kernel to the end of its task, given by the first send behind it."""
    piece = pattern.windows[number].ahead
    if piece is None:
        return []
    sent = profile.start_ns[profile.role == SEND]
    work_end = np.maximum.accumulate(np.where(np.isin(profile.role, (COMPUTE, COLLECTIVE)), profile.end_ns, 0))
    columns = np.flatnonzero(pattern.window == number)[:limit]
    samples = []
    for step, column in [(step, int(column)) for step in range(len(steps)) for column in columns]:
        begin, end = (int(profile.start_ns[steps[step, column + shift]]) for shift in (0, 1))
        first = int(np.searchsorted(sent, begin, side="right"))
        if first < len(sent) and sent[first] <= end:
            last = int(np.searchsorted(profile.start_ns, sent[first])) - 1
            time = min(int(work_end[last]), int(sent[first])) - begin
            samples.append(NamedSample(piece, step, column, time / 1e6))
    return samples


def again_after_send(profile: RankProfile, pattern: StagePattern, steps: NDArray[np.int64]) -> list[NamedSample]:
    """Recompute behind attention, of kinds whose forward a send ends: it runs the kernels ahead of that send again."""
    sent = np.flatnonzero(profile.role == SEND)
    samples: dict[str, list[NamedSample]] = {}
    for number, window in enumerate(pattern.windows):
        if window.ahead is None or window.ahead[0] != "after" or window.ahead[1] in samples:
            continue
        column = int(np.argmax(pattern.window == number))
        begin, end = int(steps[0, column]), int(steps[0, column + 1])
        first = int(np.searchsorted(sent, begin, side="right"))
        if first < len(sent) and sent[first] <= end:
            samples[window.ahead[1]] = again_after(profile, pattern, steps, window.ahead[1], begin, int(sent[first]))
    return [sample for mine in samples.values() for sample in mine]


def again_after(
    profile: RankProfile, pattern: StagePattern, steps: NDArray[np.int64], kind: str, begin: int, end: int
) -> list[NamedSample]:
    """Recompute of a kind behind attention, as far as it runs the kernels that its forward runs (`begin` to `end`)."""
    works = np.isin(profile.role, (COMPUTE, COLLECTIVE))
    known = profile.name[begin + 1 : end][works[begin + 1 : end]]
    again = [
        number
        for number, window in enumerate(pattern.windows)
        if [piece for piece, _ in window.pieces] == [("again after", kind), ("back before", kind)]
    ]
    samples = []
    for step in range(len(steps)):
        for column in np.flatnonzero(np.isin(pattern.window, again)):
            low, high = int(steps[step, column]), int(steps[step, column + 1])
            mine = np.flatnonzero(works[low + 1 : high]) + low + 1
            same = common_beginning(profile.name[mine], known)
            last = int(mine[same - 1]) if same else low
            time = int(profile.end_ns[last]) - int(profile.start_ns[low])
            samples.append(NamedSample(("again after", kind), step, int(column), time / 1e6))
    return samples


_WHOLE = (["after", "before"], ["back after", "back before"])
"""Windows that contain one whole forward, or one whole backward, and nothing else."""

_Ends = tuple[Piece, list[NDArray[np.int32]]]


def _ends_by_name(
    inside: list[Piece], forward: dict[str, NDArray[np.int32]], backward: dict[str, NDArray[np.int32]]
) -> tuple[_Ends | None, _Ends | None]:
    """The first and the last piece of a window, each with the names that it may show, where that helps."""
    whats = {what: (what, kind) for what, kind in inside}
    first: _Ends | None = None
    last: _Ends | None = None
    if "again after" in whats and whats["again after"][1] in forward and "back before" in whats and len(inside) == 2:
        first = whats["again after"], [forward[whats["again after"][1]]]
    if "again before" in whats and "back after" in whats and len(inside) == 2 and forward:
        last = whats["again before"], list(forward.values())
    if "embedding" in whats and "back embedding" in whats and "back after" in whats and "before" in whats:
        if backward:
            first = whats["back after"], list(backward.values())
        if forward:
            last = whats["before"], list(forward.values())
    return first, last


def common_beginning(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """Length of the common beginning."""
    shorter = min(len(one), len(other))
    differs = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differs[0]) if len(differs) else shorter
