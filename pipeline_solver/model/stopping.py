"""Reasons to stop a search: the time limit and Ctrl-C, both noticed only at safe points, and the cutoff."""

from __future__ import annotations

import math
import signal
import threading
import time
from contextlib import contextmanager
from types import FrameType
from typing import Callable, Iterator

from taylor.base.interrupts import note_press


def no_cutoff() -> float:
    """The step time to beat where there is none."""
    return math.inf


class LpTrouble(Exception):
    """The LPs can prove no more, mostly because of numerical failures: the bound so far is valid."""


class OutOfTime(Exception):
    """The time limit is over."""


class Stopper:
    """A deadline, a remembered interrupt, and the step time to beat.

    Parameters
    ----------
    deadline : float or None
        `time.monotonic()` at which to stop.
    cutoff : callable, optional
        As in `SolveOptions`.
    """

    def __init__(self, deadline: float | None, cutoff: Callable[[], float] | None = None) -> None:
        self.deadline = deadline
        self.cutoff: Callable[[], float] = cutoff or no_cutoff
        self.interrupted = False

    def check(self) -> None:
        """Raise `KeyboardInterrupt` after an interrupt, `OutOfTime` past the deadline."""
        if self.interrupted:
            raise KeyboardInterrupt
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise OutOfTime

    @contextmanager
    def catching_interrupts(self) -> Iterator[None]:
        """Remember the first Ctrl-C for the next `check`; a second one interrupts immediately.

        An exception inside a compiled kernel or between two steps of the tree would lose the bound. Outside the main
        thread, where Python delivers no signals, nothing changes.

        Raises
        ------
        KeyboardInterrupt
            After the block, when Ctrl-C was pressed inside, however the block ended.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def remember(number: int, frame: FrameType | None) -> None:
            note_press()
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        before = signal.getsignal(signal.SIGINT)
        if before is signal.SIG_IGN or before is None:
            yield
            return
        signal.signal(signal.SIGINT, remember)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            if self.interrupted:
                raise KeyboardInterrupt
