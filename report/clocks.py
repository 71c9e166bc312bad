"""Aligns the clocks of several machines by the transfers between them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Sequence

from taylor.parsers.tables.worker_log import WorkerLog

BACKWARD_TYPE, FORWARD_TYPE = "backward", "forward"


@dataclass(frozen=True)
class ClockShift:
    """Time to add to a machine's times, ms, to read them on the first machine's clock, and the reason."""

    shift_ms: float
    reason: str


def clock_shifts(logs: Sequence[WorkerLog]) -> dict[int, ClockShift]:
    """Shift of every machine, by its number.

    Devices are taken in the order of the pipeline: the last device of one machine sends to the first of the next. A
    forward there begins no sooner than the forward that feeds it ends, a backward the other way round; that gives an
    interval for the difference of two clocks (as in NTP). A machine whose interval contains 0 keeps its clock; another
    is moved to the middle of its interval. Where the interval is empty the machines are not neighbours in a pipeline:
    their clocks stay if their jobs overlap in time at all, else their first jobs are aligned.
    """
    machines: dict[int, list[WorkerLog]] = defaultdict(list)
    for log in logs:
        if log.jobs:
            machines[log.machine].append(log)
    order = sorted(machines)
    shifts = {machine: ClockShift(0.0, "") for machine in order[:1]}
    for before, after in zip(order, order[1:], strict=False):
        low, high = _interval(machines[before][-1], machines[after][0])
        base = shifts[before].shift_ms
        shifts[after] = _chosen(low + base, high + base, base, machines[before], machines[after])
    return shifts


def _interval(earlier: WorkerLog, later: WorkerLog) -> tuple[float, float]:
    """Least and most that may be added to the later log's times; infinite where nothing is known."""
    low, high = float("-inf"), float("inf")
    first, second = _by_work(earlier), _by_work(later)
    for key, (start, end) in first.items():
        if key not in second:
            continue
        other_start, other_end = second[key]
        if key[1] == FORWARD_TYPE:
            low = max(low, end - other_start)
        else:
            high = min(high, start - other_end)
    return low, high


def _by_work(log: WorkerLog) -> dict[tuple[int, str, int, int], tuple[float, float]]:
    """Times of every forward and backward by (step, direction, micro-batch, occurrence in the step)."""
    counts: dict[tuple[int, str, int], int] = defaultdict(int)
    result: dict[tuple[int, str, int, int], tuple[float, float]] = {}
    for job in log.jobs:
        for direction in (FORWARD_TYPE, BACKWARD_TYPE):
            if job.type.startswith(direction):
                key = (job.step, direction, job.micro_batch)
                result[job.step, direction, job.micro_batch, counts[key]] = (job.start_ms, job.end_ms)
                counts[key] += 1
    return result


def _chosen(
    low: float, high: float, base: float, before: Sequence[WorkerLog], after: Sequence[WorkerLog]
) -> ClockShift:
    infinite = (float("-inf"), float("inf"))
    if low <= high and (low, high) != infinite:
        if low <= 0.0 <= high:
            return ClockShift(0.0, "")
        if low in infinite or high in infinite:
            return ClockShift(low if high in infinite else high, "the least shift that its hand-overs allow")
        return ClockShift((low + high) / 2, f"its hand-overs allow {low:.3f} to {high:.3f} ms")
    starts = [min(log.jobs[0].start_ms for log in side) for side in (before, after)]
    ends = [max(job.end_ms for log in side for job in log.jobs) for side in (before, after)]
    if starts[0] + base < ends[1] and starts[1] < ends[0] + base:
        return ClockShift(0.0, "")
    return ClockShift(starts[0] + base - starts[1], "its jobs lie at another time altogether: first jobs laid together")
