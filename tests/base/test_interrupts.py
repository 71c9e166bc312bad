"""Ctrl-C at the moments where Python would pass over it."""

from __future__ import annotations

import gc
import importlib
import signal
import sys
import time
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from taylor.base.interrupts import counted_interrupts, presses


class Held:
    """Something that may be referred to weakly."""


def import_lock() -> None:
    """The import system's lock of a module, made and freed as an import does."""
    importlib._bootstrap._get_module_lock("taylor_of_no_use")  # type: ignore[attr-defined]


def value_dictionary() -> None:
    held = weakref.WeakValueDictionary({1: Held()})
    gc.collect()
    assert not len(held)


def weak_set() -> None:
    held = weakref.WeakSet([Held()])
    gc.collect()
    assert not len(held)


@pytest.mark.parametrize(
    ("freed", "function"), [(import_lock, "cb"), (value_dictionary, "remove"), (weak_set, "_remove")]
)
def test_ctrl_c_as_an_object_is_freed_is_heard_a_moment_later(freed: Callable[[], None], function: str) -> None:
    pressed = []

    def press(frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code.co_name == function and not pressed:
            pressed.append(event)
            signal.raise_signal(signal.SIGINT)

    before = presses()
    with pytest.raises(KeyboardInterrupt), counted_interrupts():
        sys.setprofile(press)
        try:
            freed()
            time.sleep(5.0)  # to be interrupted
        finally:
            sys.setprofile(None)
    assert pressed and presses() == before + 1


def test_ctrl_c_elsewhere_is_heard_at_once() -> None:
    before, after = presses(), []
    with pytest.raises(KeyboardInterrupt), counted_interrupts():
        signal.raise_signal(signal.SIGINT)
        after.append("went on")
    assert not after and presses() == before + 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
