"""Some work in a fork, with limits of its own, that leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable

KILLED = 71
"""Exit code that stands for a signal that no limit sent."""


def in_fork(work: Callable[[], int], cpu_seconds: float, wall_seconds: float) -> int | None:
    """The exit code of some silent work in a fork, `KILLED` where a signal ended it; None where it took too long."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_seconds) + 1, int(cpu_seconds) + 3))
        resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
        code = 70
        try:
            code = work()
        finally:
            os._exit(code)
    latest, pause = time.monotonic() + wall_seconds, 0.002
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended:
        if time.monotonic() > latest:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(pause)
        pause = min(0.05, pause * 1.3)
        ended, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):  # What the tests left running.
        os.killpg(child, signal.SIGKILL)
    if os.WIFSIGNALED(status):
        return None if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else KILLED
    return os.WEXITSTATUS(status)
