"""When a search stops: at its deadline, and at a Ctrl-C pressed while it runs."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from taylor.base.interrupts import presses
from taylor.pipeline_solver.model.stopping import OutOfTime, Stopper

INFINITE = float("inf")


def test_the_time_is_over_past_the_deadline_and_an_interrupt_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stopper = Stopper(100.0)
    stopper.check()
    Stopper(None).check()
    now[0] = 100.1
    with pytest.raises(OutOfTime):
        stopper.check()
    Stopper(None).check()
    stopper.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        stopper.check()


def test_without_a_step_time_to_beat_every_plan_beats_it() -> None:
    assert Stopper(None).cutoff() == INFINITE
    assert Stopper(None, lambda: 3.0).cutoff() == 3.0


def test_a_first_ctrl_c_waits_for_the_next_check_and_is_raised_behind_the_block() -> None:
    before, pressed, reached = signal.getsignal(signal.SIGINT), presses(), []
    stopper = Stopper(None)
    with pytest.raises(KeyboardInterrupt), stopper.catching_interrupts():
        assert signal.getsignal(signal.SIGINT) is not before
        signal.raise_signal(signal.SIGINT)
        reached.append("the end")
    assert reached == ["the end"] and stopper.interrupted
    assert signal.getsignal(signal.SIGINT) is before and presses() == pressed + 1


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    before, stopper = signal.getsignal(signal.SIGINT), Stopper(None)
    reached = []
    with pytest.raises(KeyboardInterrupt), stopper.catching_interrupts():
        signal.raise_signal(signal.SIGINT)
        reached.append("once")
        signal.raise_signal(signal.SIGINT)
        reached.append("twice")
    assert reached == ["once"] and signal.getsignal(signal.SIGINT) is before


def test_a_block_without_ctrl_c_ends_as_ever_and_what_is_ignored_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    before, stopper = signal.getsignal(signal.SIGINT), Stopper(None)
    with stopper.catching_interrupts():
        pass
    assert signal.getsignal(signal.SIGINT) is before and not stopper.interrupted
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with stopper.catching_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
        assert not stopper.interrupted
    finally:
        signal.signal(signal.SIGINT, before)
    # A handler that another language has set is none that could be set again.
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("the handler was replaced"))
    with stopper.catching_interrupts():
        pass


def test_in_another_thread_nothing_is_caught() -> None:
    before, inside = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with Stopper(None).catching_interrupts():
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]
