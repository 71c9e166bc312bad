"""Time use of every device in every step: computation, exposed communication, idle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taylor.report.intervals import cut, length, uncovered, union
from taylor.report.timeline import Timeline

WHOLE = "all"
"""Name of the only stretch of a timeline without steps."""

MOST_GAPS = 5
"""Gaps that are named in words."""

LISTED_GAPS = 20
"""Gaps that a page lists."""


@dataclass(frozen=True)
class StepShare:
    """One device in one step; times in the timeline's units.

    Parameters
    ----------
    step : str
        Name of the step; `WHOLE` where there are none.
    begin, end : float
        From the first job of the step on any device to the last one, or to the beginning of the next step.
    compute : float
        Time in which something is computed.
    exposed : float
        Time in which something is sent or received, or a collective runs, while this device computes nothing.
    receiving : float
        Part of `exposed` in which it receives from another stage, which includes the wait for that stage.
    hidden : float
        Overlapped communication, a part of `compute`.
    idle : float
        Neither.
    """

    row: int
    step: str
    begin: float
    end: float
    compute: float
    exposed: float
    receiving: float
    hidden: float
    idle: float

    @property
    def span(self) -> float:
        """Length of the step."""
        return self.end - self.begin


@dataclass(frozen=True)
class Gap:
    """Stretch of a step in which a row does nothing; `before` and `after` name the jobs beside it."""

    row: int
    step: str
    begin: float
    end: float
    before: str
    after: str

    @property
    def length(self) -> float:
        """Length of the gap, in the timeline's units."""
        return self.end - self.begin


def step_shares(timeline: Timeline) -> list[StepShare]:
    """Every device in every step, step by step; a plan is one step.

    Rows that were measured at different times have no step in common: each is taken from its first job to its last.
    """
    result = []
    for row, step, begin, end in _stretches(timeline):
        doing = timeline.doing(row)
        compute, talk = (cut(part, begin, end) for part in (doing.compute, doing.communication))
        exposed, worked = uncovered(talk, compute), length(compute)
        receiving = uncovered(cut(doing.receive, begin, end), compute)
        result.append(
            StepShare(
                row=row,
                step=step,
                begin=begin,
                end=end,
                compute=worked,
                exposed=exposed,
                receiving=receiving,
                hidden=length(talk) - exposed,
                idle=max(0.0, end - begin - worked - exposed),
            )
        )
    return result


def gaps(timeline: Timeline, least: float = 0.0) -> list[Gap]:
    """Stretches of the steps in which a row does nothing between two of its jobs, longest first.

    Parameters
    ----------
    least : float
        Omit shorter ones, in the timeline's units.
    """
    names = timeline.task_names()
    found = []
    tasks = []
    for row in range(timeline.rows):
        mine = np.flatnonzero(timeline.stage == row)
        by_end, by_start = (mine[np.argsort(times[mine], kind="stable")] for times in (timeline.end, timeline.start))
        tasks.append((by_end, timeline.end[by_end], by_start, timeline.start[by_start]))
    for row, step, begin, end in _stretches(timeline):
        doing = timeline.doing(row)
        busy = cut(union(doing.compute, doing.communication), begin, end)
        by_end, ends, by_start, starts = tasks[row]
        for a, b in zip(busy[:-1, 1].tolist(), busy[1:, 0].tolist(), strict=True):
            if b - a < least:
                continue
            # Blocks of a profile close over short pauses: a gap inside one lies between its own kernels.
            before = max(0, int(np.searchsorted(ends, a, side="right")) - 1)
            after = min(len(starts) - 1, int(np.searchsorted(starts, b, side="left")))
            found.append(Gap(row, step, a, b, names[by_end[before]], names[by_start[after]]))
    return sorted(found, key=lambda gap: (-gap.length, gap.row, gap.begin))


def over_steps(shares: Sequence[StepShare]) -> list[StepShare]:
    """One entry a device: the times of all its steps together; begin and end are those of the first and the last."""
    result = []
    for row in sorted({share.row for share in shares}):
        mine = [share for share in shares if share.row == row]
        sums = {
            name: sum(getattr(share, name) for share in mine)
            for name in ("compute", "exposed", "receiving", "hidden", "idle")
        }
        result.append(StepShare(row, WHOLE, mine[0].begin, mine[0].begin + sum(one.span for one in mine), **sums))
    return result


def critical_row(timeline: Timeline) -> int:
    """Row that computes longest, which is the device that the others wait for."""
    return max(over_steps(step_shares(timeline)), key=lambda share: share.compute).row if len(timeline) else 0


def gap_lines(timeline: Timeline, most: int = MOST_GAPS) -> list[str]:
    """Longest gaps of a timeline in words."""
    unit = "ms" if timeline.unit_ms is not None else "units"
    shown = timeline.in_ms()
    return [
        f"gap of {gap.length:,.3f} {unit} on {shown.row_names[gap.row]}"
        f"{'' if gap.step == WHOLE else f' in {gap.step}'} at {gap.begin:,.3f}, between {gap.before} and {gap.after}"
        for gap in gaps(shown)[:most]
    ]


def _stretches(timeline: Timeline) -> list[tuple[int, str, float, float]]:
    """(row, step, begin, end) of every device in every step."""
    if timeline.apart:
        rows = [(row, timeline.doing(row)) for row in range(timeline.rows)]
        spans = [(row, union(doing.compute, doing.communication)) for row, doing in rows]
        return [(row, WHOLE, float(busy[0, 0]), float(busy[-1, 1])) for row, busy in spans if len(busy)]
    steps = []
    if not timeline.marks:
        steps.append((WHOLE, timeline.begin, timeline.finish))
    for number, (begin, name) in enumerate(timeline.marks):
        following = timeline.marks[number + 1][0] if number + 1 < len(timeline.marks) else np.inf
        inside = (timeline.start >= begin) & (timeline.start < following)
        if inside.any():
            steps.append((name, begin, float(min(following, timeline.end[inside].max()))))
    return [(row, step, begin, end) for step, begin, end in steps for row in range(timeline.rows)]
