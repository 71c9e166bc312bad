"""Every writer disturbed: killed at each step and in mid-write, the disk full, the place read-only."""

from __future__ import annotations

import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from benchmarks.reliability.campaign import TOOLS, Figure, Part, Portion, Result, Sized, chosen, faults_of, total
from benchmarks.reliability.outputs import is_debris
from benchmarks.reliability.sandbox import preload
from benchmarks.reliability.writers import WRITERS, Writer
from taylor.base.errors import TaylorError

STEPS = frozenset({"open", "write", "flush", "close", "fsync", "chmod", "replace", "rename", "unlink", "mkdir"})
"""Calls before which a writer is killed: all by which a file comes to be or changes."""

MOST_STEPS = 120
"""Of a writer that takes more steps, as many are tried, evenly spread."""

SIZES = 12
"""Lengths at which a write is cut off, from nothing to almost all."""

NOBODY = 65534
DISK_BYTES = 1 << 16


def portions(share: float = 1.0) -> list[Portion]:
    """A portion a writer; a small share takes the first ones."""
    names = list(WRITERS)
    return [Portion(f"writer-{name}", disturbed, {"name": name}) for name in names[: max(1, round(len(names) * share))]]


def disturbed(name: str) -> Result:
    """All disturbances of one writer."""
    preload()
    writer = WRITERS[name]
    found: list[str] = []
    counts = {"steps": 0, "cuts": 0, "full": 0, "read_only": 0}
    with _two_states(writer) as (old, new):
        steps = _steps_of(writer, old)
        tried = sorted({round(step) for step in np.linspace(0, steps - 1, min(steps, MOST_STEPS))})
        for step in tried:
            found += _after(writer, old, new, f"killed at step {step}", partial(_kill_at, step))
        counts["steps"] = len(tried)
        size = max(map(len, new.values()))
        for cut in sorted({int(part) for part in np.linspace(0, max(0, size - 1), SIZES)}):
            found += _after(writer, old, new, f"killed after {cut} bytes", partial(_cut_off, cut, kill=True))
            found += _after(writer, old, new, f"disk full after {cut} bytes", partial(_cut_off, cut), refused=True)
            counts["cuts"] += 1
            counts["full"] += 1
        counts["full"] += _on_a_full_disk(writer, old, new, found)
        counts["read_only"] += _read_only(writer, old, new, found)
    return {**counts, "faults": [f"{name}: {text}" for text in found]}


@contextmanager
def _two_states(writer: Writer) -> Iterator[tuple[dict[str, bytes], dict[str, bytes]]]:
    """Files of the writer after the old content and after the new over it."""
    with tempfile.TemporaryDirectory(prefix="writer-") as folder:
        states = []
        for which in (0, 1):
            code, text = _in_child(partial(writer, Path(folder), which))
            if code:
                raise RuntimeError(text)
            states.append(_files(Path(folder)))
        old, new = states
        if not old or old == new:
            raise RuntimeError("the writer's two contents do not differ")
        yield old, new


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*") if path.is_file() and not is_debris(path)
    }  # fmt: skip


def _restored(folder: Path, state: Mapping[str, bytes]) -> None:
    for name, content in state.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def _after(
    writer: Writer,
    old: Mapping[str, bytes],
    new: Mapping[str, bytes],
    what: str,
    disturb: Callable[[], None],
    *,
    refused: bool = False,
    folder: Path | None = None,
) -> list[str]:
    """Let the writer write the new content over the old under a disturbance, and look at what is there.

    With `refused` the writer must live and refuse by a `TaylorError`, with no debris left.
    """
    with tempfile.TemporaryDirectory(prefix="disturbed-") as own:
        place = folder or Path(own)
        _restored(place, old)

        def work() -> None:
            disturb()
            writer(place, 1)

        code, text = _in_child(work)
        left = _files(place)
        found = [
            f"{what}: {name} is neither old nor new ({len(left.get(name, b''))} bytes)"
            for name in sorted({*old, *left})
            if left.get(name) not in (old.get(name), new.get(name))
        ]
        if refused:
            if code not in (0, REFUSED):
                found.append(f"{what}: ended by {code}: {text[-400:]}")
            if code == 0 and left != dict(new):
                found.append(f"{what}: said to be done, and is not")
            debris = [path.name for path in place.rglob("*") if path.is_file() and is_debris(path)]
            if debris:
                found.append(f"{what}: left {debris}")
        elif code not in (0, -signal.SIGKILL, -signal.SIGXFSZ):
            found.append(f"{what}: ended by {code}: {text[-400:]}")
        return found


REFUSED = 3


def _in_child(work: Callable[[], Any]) -> tuple[int, str]:
    """Do something in a forked child; its exit code (`REFUSED` for a named error) and what it said."""
    reader, writer = os.pipe()  # a limit on files does not reach it
    child = os.fork()
    if child == 0:
        code, text = 0, ""
        try:
            work()
        except TaylorError as error:
            code, text = REFUSED, str(error)
        except BaseException:  # noqa: BLE001 - any other end is a fault, and is reported
            code, text = 1, traceback.format_exc()
        finally:
            sys.setprofile(None)
            os.write(writer, text.encode()[-2000:])
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), said.decode("utf-8", "replace")


def _steps_of(writer: Writer, old: Mapping[str, bytes]) -> int:
    """Number of the writer's steps."""
    with tempfile.TemporaryDirectory(prefix="steps-") as own:
        _restored(Path(own), old)
        note = Path(own) / ".steps"

        def work() -> None:
            seen = _count_steps(lambda number: None)
            writer(Path(own), 1)
            sys.setprofile(None)
            note.write_text(str(seen[0]))

        code, text = _in_child(work)
        if code:
            raise RuntimeError(text)
        return int(note.read_text())


def _count_steps(at: Callable[[int], None]) -> list[int]:
    """Call `at` with the number of every step that this process takes from now on."""
    seen = [0]

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in STEPS and _touches_files(argument):
            at(seen[0])
            seen[0] += 1

    sys.setprofile(hook)
    return seen


def _touches_files(function: Any) -> bool:
    """Return whether a built-in function is the system's or an open file's, not one of text in memory."""
    owner = getattr(function, "__self__", None)
    return getattr(owner, "__name__", "") in ("posix", "io", "_io") or isinstance(
        owner, (io.BufferedWriter, io.FileIO, io.TextIOWrapper, io.BufferedRandom)
    )


def _kill_at(step: int) -> None:
    def at(number: int) -> None:
        if number == step:
            os.kill(os.getpid(), signal.SIGKILL)

    _count_steps(at)


def _cut_off(size: int, kill: bool = False) -> None:
    """Let no file grow beyond a size: the write that tries is refused there, or kills the process."""
    if kill:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _on_a_full_disk(writer: Writer, old: Mapping[str, bytes], new: Mapping[str, bytes], found: list[str]) -> int:
    """On a full file system of its own, where this process may mount one."""
    size = sum(map(len, old.values()))
    with tempfile.TemporaryDirectory(prefix="disk-") as own:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={2 * size + DISK_BYTES}", "tmpfs", own]
        if subprocess.run(mount, capture_output=True).returncode:
            return 0
        try:
            _restored(Path(own), old)
            with open(Path(own) / ".fill", "wb") as stream:
                try:
                    while True:
                        os.write(stream.fileno(), b"x" * 512)
                except OSError:
                    pass
            (Path(own) / ".fill").rename(Path(own) / "fill.bin")
            filled = {**old, "fill.bin": (Path(own) / "fill.bin").read_bytes()}
            found += _after(writer, filled, {**new, "fill.bin": filled["fill.bin"]}, "on a full disk", lambda: None,
                            refused=True, folder=Path(own))  # fmt: skip
        finally:
            subprocess.run(["umount", own], capture_output=True, check=True)
    return 1


def _read_only(writer: Writer, old: Mapping[str, bytes], new: Mapping[str, bytes], found: list[str]) -> int:
    """As a user who may not write: into read-only files, and into a read-only folder."""
    if os.getuid() != 0:
        return 0
    for what in ("files", "folder"):
        with tempfile.TemporaryDirectory(prefix="readonly-") as own:
            top = Path(own)
            place = top / "work"
            place.mkdir()
            _restored(place, old)
            for path in [place, *place.rglob("*")]:
                os.chmod(path, 0o555 if path.is_dir() and what == "folder" else 0o777 if path.is_dir() else 0o444)
            os.chmod(top, 0o755)
            found += _as_nobody(writer, place, old, new, f"read-only {what}", scratch=top / "tmp")
    return 2


def _as_nobody(
    writer: Writer, place: Path, old: Mapping[str, bytes], new: Mapping[str, bytes], what: str, scratch: Path
) -> list[str]:
    scratch.mkdir()
    os.chmod(scratch, 0o777)

    def work() -> None:
        tempfile.tempdir = str(scratch)
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        writer(place, 1)

    code, text = _in_child(work)
    left = _files(place)
    found = []
    if code != REFUSED:
        found.append(f"{what}: ended by {code}: {text[-400:]}")
    changed = [name for name in old if left.get(name) != old[name]]
    if changed:
        found.append(f"{what}: {changed} changed")
    debris = [path.name for path in place.rglob("*") if path.is_file() and is_debris(path)]
    if debris:
        found.append(f"{what}: left {debris}")
    shutil.rmtree(scratch, ignore_errors=True)
    return found


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table."""
    part = chosen(results, "writer")
    wrong = len(faults_of(part))
    return [
        Figure(
            "files: every writer disturbed", "disk full, read-only, kill -9 in mid-write: the old file or the new one",
            f"{len(part)} writers, {total(part, 'steps'):,} kills between two calls, {total(part, 'cuts'):,} in the "
            f"middle of a write, {total(part, 'full'):,} full disks, {total(part, 'read_only')} read-only "
            f"places; {wrong} faults",
            not wrong,
            "killed before each call that changes a file; file size limited for the middle of a write; a small file "
            "system filled up; run as a user who may not write",
        )
    ]  # fmt: skip


PART = Part(
    "files",
    portions,
    figures,
    sources=(*TOOLS, "benchmarks/reliability/files.py"),
    nightly=0.1,
    table=Sized(0.4, minutes=5),
)
