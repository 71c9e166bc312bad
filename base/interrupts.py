"""Ctrl-C: deferred while finished work is written, and counted, so that no handler can lose one."""

from __future__ import annotations

import _thread
import importlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_pressed = 0


def note_press() -> None:
    """Count a Ctrl-C; for signal handlers."""
    global _pressed
    _pressed += 1


def presses() -> int:
    """Number of Ctrl-C presses since the program began, as far as this package's handlers received them.

    An exception can be lost on its way: a solver that has just proven its result has no use for it, a library may
    catch it. Code that continues compares this number before and after.
    """
    return _pressed


@contextmanager
def delay_interrupts() -> Iterator[None]:
    """Defer Ctrl-C until the block has ended, for code that writes finished work.

    Raises
    ------
    KeyboardInterrupt
        Behind the block, when Ctrl-C was pressed inside.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is ever interrupted
        return
    pressed: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        note_press()
        pressed.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt


_IGNORED = {("importlib._bootstrap", "cb"), ("weakref", "remove"), ("_weakrefset", "_remove")}
"""Callbacks of weak references, by module and function: Python prints their exceptions and continues.

CPython 3.11: Lib/importlib/_bootstrap.py:198, Lib/weakref.py:105 and 369, Lib/_weakrefset.py:39; that their exceptions
are not propagated is said of `weakref.ref` in the library's reference.
"""

HEARD_AGAIN = 1e-3
"""Seconds after which a Ctrl-C that came in such a callback is heard again."""


def _would_be_lost(frame: FrameType | None) -> bool:
    """Return whether an exception raised here would come out of a function in which Python ignores it."""
    while frame is not None:
        if (frame.f_globals.get("__name__"), frame.f_code.co_name) in _IGNORED:
            return True
        frame = frame.f_back
    return False


def _press_again() -> None:
    time.sleep(HEARD_AGAIN)
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def counted_interrupts() -> Iterator[None]:
    """Count every Ctrl-C that interrupts the block, where one does as usual; none is lost as an object is freed."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        if _would_be_lost(frame):
            _thread.start_new_thread(_press_again, ())
            return
        note_press()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def imported(name: str) -> Any:
    """A module, with Ctrl-C handled as before its import: dask-jobqueue makes it end the program at once
    (dask_jobqueue/runner.py, 0.9)."""
    before = signal.getsignal(signal.SIGINT)
    try:
        return importlib.import_module(name)
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
