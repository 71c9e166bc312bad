"""Ctrl-C while results are written down waits until they are."""

from __future__ import annotations

import signal
import threading

import pytest

from base.console import hold_interrupts


def test_ctrl_c_inside_is_raised_when_the_block_has_ended():
    done = []
    with pytest.raises(KeyboardInterrupt), hold_interrupts():
        signal.raise_signal(signal.SIGINT)
        done.append("written")
    assert done == ["written"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_error_inside_goes_before_ctrl_c():
    with pytest.raises(ValueError, match="disk"), hold_interrupts():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("disk")


def test_outside_the_main_thread_it_changes_nothing():
    done = []

    def work():
        with hold_interrupts():
            done.append("written")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["written"]
