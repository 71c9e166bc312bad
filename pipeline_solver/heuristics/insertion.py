"""Insertions built at once: forwards as early as their windows allow, each micro-batch where it is done first."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor, inf

from taylor.pipeline_solver.model.insertion import EncoderWork, Insertion
from taylor.pipeline_solver.timing.idle_windows import TOUCHES, IdleWindows

DELAYS = 64
"""Delays that are tried, from the least one on."""


@dataclass
class _Stage:
    """Pieces and free time of one stage so far.

    Parameters
    ----------
    number : int
    free : list of float
        Time left in every window.
    at : int
        Window of the last forward piece.
    taken : list of int
        Micro-batches, in order.
    ended : list of int
        Window of the last backward piece of the first of them, as far as these were placed.
    forward, backward : mapping of (window, micro-batch) to int
        Pieces.
    behind : list of float
        Earliest time at which each window can begin a further backward.
    """

    number: int
    free: list[float]
    at: int = 0
    taken: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    forward: dict[tuple[int, int], int] = field(default_factory=dict)
    backward: dict[tuple[int, int], int] = field(default_factory=dict)
    behind: list[float] = field(default_factory=list)


class _Builder:
    """Places forwards and backwards at one delay."""

    def __init__(self, idle: IdleWindows, work: EncoderWork, delay: float) -> None:
        self.idle, self.work = idle, work
        self.stages = []
        for s, windows in enumerate(idle.windows):
            free = [end + delay if start == -inf else end - start for start, end in windows]
            self.stages.append(_Stage(s, free))
        self.delay = delay

    def build(self) -> Insertion | None:
        """The insertion; None where a micro-batch comes too late or no stage has memory for it."""
        idle = self.idle
        for j in range(idle.micro_batches):
            slots = [(slot[-1][2] + self.work.lag_of(one.number), one.number, slot) for one in self.stages
                     if (slot := self._next(one))]  # fmt: skip
            if not slots:
                return None
            done, s, slot = min(slots)
            if done > idle.needed[j] + TOUCHES:
                return None
            stage = self.stages[s]
            for g, pieces, _ in slot:
                stage.forward[g, j] = pieces
                stage.free[g] -= pieces * self.work.forward
                stage.at = g
            stage.taken.append(j)
        for stage in self.stages:
            while self.work.backward and len(stage.ended) < len(stage.taken):
                self._place_backward(stage)
        every = range(idle.micro_batches)
        forward, backward = (
            [
                [[pieces.get((g, j), 0) for j in every] for g in range(len(idle.windows[s]))]
                for s, pieces in enumerate(found)
            ]
            for found in ([one.forward for one in self.stages], [one.backward for one in self.stages])
        )
        return idle.timed(self.work, forward, backward)

    def _next(self, stage: _Stage) -> list[tuple[int, int, float]]:
        """Window, pieces and end of each run of the stage's next forward; empty where it can have none."""
        windows, work, first = self.idle.windows[stage.number], self.work, stage.at
        if work.backward:
            most = self.idle.alive[stage.number]
            if not most:
                return []
            while len(stage.taken) - len(stage.ended) >= most:
                self._place_backward(stage)
            if len(stage.taken) >= most:
                first = max(first, stage.ended[len(stage.taken) - most] + 1)
        elif not self.idle.alive[stage.number]:
            return []
        left, found = work.pieces, []
        for g in range(first, len(windows) - 1):
            pieces = min(left, floor((stage.free[g] + TOUCHES) / work.forward))
            if pieces > 0:
                left -= pieces
                start, end = windows[g]
                begun = -self.delay if start == -inf else start
                whole = end - begun
                found.append((g, pieces, begun + whole - stage.free[g] + pieces * work.forward))
                if not left:
                    return found
        return []

    def _place_backward(self, stage: _Stage) -> None:
        """Place the backward of the first micro-batch taken that has none yet, as early as it can be."""
        windows, work = self.idle.windows[stage.number], self.work
        j, left = stage.taken[len(stage.ended)], work.pieces
        there = self.idle.there[j] + work.lag_of(stage.number)
        if not stage.behind:
            stage.behind = [start for start, _ in windows]
        for g, (_, end) in enumerate(windows):
            if not g or end < there:
                continue
            time = min(stage.free[g], end - max(there, stage.behind[g]))
            pieces = left if end == inf else min(left, floor((time + TOUCHES) / work.backward))
            if pieces <= 0:
                continue
            stage.backward[g, j] = pieces
            stage.free[g] -= pieces * work.backward
            stage.behind[g] = max(there, stage.behind[g]) + pieces * work.backward
            left -= pieces
            if not left:
                stage.ended.append(g)
                return


def quick_insertion(idle: IdleWindows, work: EncoderWork) -> Insertion | None:
    """The best of the insertions built at several delays; None where there is none."""
    least, most = work.forward_time, (idle.micro_batches + 1) * work.time + work.lag + idle.step
    best: Insertion | None = None
    while most - least > work.forward / 8:
        middle = (least + most) / 2
        found = _Builder(idle, work, middle).build()
        least, most = (middle, most) if found is None else (least, middle)
        best = found if found is not None and (best is None or found.step < best.step) else best
    for n in range(DELAYS if work.backward and best is not None else 0):
        found = _Builder(idle, work, most + n * work.forward).build()
        best = found if found is not None and best is not None and found.step < best.step else best
    return best
