"""Guard between the tool and one child process, so that the child never outlives the tool.

Run as ``python -I guard.py GRACE_SECONDS COMMAND…``, in its own session. The tool holds the
other end of standard input: when that closes, because the tool is done with the child or because
the tool itself was killed, everything the command started is ended. The guard's exit code is the
command's, or 128 + signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

CANNOT_START = 127
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _children() -> list[int]:
    """Processes whose parent is the guard; orphans of the command are among them (subreaper)."""
    own, found = os.getpid(), []
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    for entry in entries:
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{entry}/stat", "rb") as stream:
                if int(stream.read().rsplit(b")", 1)[1].split()[1]) == own:
                    found.append(int(entry))
    return found


def _signal_group(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _end_everything(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask the group to end, then end it and all that has left it."""
    if child.poll() is None:
        _signal_group(child, signal.SIGTERM)
        until = time.monotonic() + grace_s
        while child.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
    _signal_group(child, signal.SIGKILL)
    child.wait()
    for _ in range(100):
        left = _children()
        if not left:
            return
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        for process in left:
            with contextlib.suppress(OSError):
                os.waitpid(process, 0)


def main(arguments: list[str]) -> int:
    """Run the command until it ends or standard input closes."""
    grace_s, command = float(arguments[0]), arguments[1:]
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),
        )
    except OSError as error:
        print(f"error: {command[0]} cannot be started: {error.strerror or error}", file=sys.stderr, flush=True)
        return CANNOT_START
    while child.poll() is None and not asked:
        ready, _, _ = select.select([0], [], [], 0.05)
        if ready and not os.read(0, 1024):
            break
    ended_by_us = child.poll() is None
    code = child.poll()
    _end_everything(child, grace_s)
    if ended_by_us or code is None:
        return 128 + signal.SIGTERM
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
