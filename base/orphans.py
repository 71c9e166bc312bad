"""End of a worker process when its parent dies, even where the parent was killed without a chance to end it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PARENT = "TAYLOR_SERVE_PARENT"
"""Variable with the number of a worker's parent."""

POLL_SECONDS = 0.5
"""Interval at which a worker checks whether its parent lives, where the system does not report it."""

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """End this process as soon as its parent is gone; to be called first of all in a worker.

    Linux kills the worker itself, at any time. Elsewhere a thread looks every `POLL_SECONDS`.

    Parameters
    ----------
    parent : int
        Process number of the parent, taken there: it may be dead before this is called.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os._exit(1)
