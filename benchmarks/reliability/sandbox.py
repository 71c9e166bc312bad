"""A command line run in a forked child that is watched: its time, its memory, what it writes and starts."""

from __future__ import annotations

import importlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.reliability.campaign import SCRIPTS

POLL_SECONDS = 0.002
LOOK_SECONDS = 0.2
"""Interval in which the CPU time of a command that runs longer than its limit is read."""
WAITED = 10
"""Multiple of its limit after which a command is killed, however little CPU time it had: it may wait for ever."""
ORPHAN_SECONDS = 10.0
"""Seconds in which processes of a killed tool must end by themselves."""
FOREIGN_ERROR = 70
"""Exit code of a child whose command let an exception out."""

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {
    "os.mkdir": (0,), "os.rename": (0, 1), "os.remove": (0,), "os.rmdir": (0,), "os.link": (0, 1),
    "os.symlink": (1,), "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,), "shutil.rmtree": (0,),
}  # fmt: skip
_STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn", "socket.connect")


@dataclass(frozen=True)
class Outcome:
    """Outcome of a command.

    Parameters
    ----------
    code : int
        Exit code; the negative signal when one ended it.
    output, errors : str
        Standard output and standard error.
    seconds, cpu_seconds : float
        Time from its start to its end, and CPU time of it and of what it started.
    timed_out : bool
    peak_mib : float
        Largest resident size of the child or of one of its own children, without what this process holds beyond
        a fresh one that has imported what a command needs: the child begins as its copy.
    strayed : tuple of str
        Files that it wrote outside its folder, programs it started or hosts it called, and processes that outlived it.
    """

    code: int
    output: str
    errors: str
    seconds: float
    cpu_seconds: float
    timed_out: bool
    peak_mib: float
    strayed: tuple[str, ...]


def preload() -> None:
    """Import all that a command needs, so that a forked child starts at once; no thread may be running yet."""
    for name in SCRIPTS:
        importlib.import_module(name)
    for name in (
        "benchmarks.synthetic_profiles",
        "taylor.dryrun.mindspore_backend",
        "taylor.dryrun.replay",
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
        "taylor.nd_search.search",
        "taylor.pipeline_solver.tree.branch_and_cut",
        "taylor.pipeline_solver.milp.compact_milp",
        "taylor.pipeline_solver.milp.pyomo_solver",
        "pulp",
        "taylor.report.html",
        "taylor.report.outputs",
        "taylor.report.terminal",
        "rich.progress",
        "rich.table",
        "scipy.optimize",
        "taylor.workflows.ranking.candidates",
        "taylor.workflows.solving.evaluate_file",
        "taylor.workflows.showing.extract",
        "taylor.workflows.searching.search",
        "taylor.workflows.solving.solve_file",
        "taylor.workflows.showing.timeline",
        "taylor.command_lines.layerwise",
    ):
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # a child that needs it will say so


def run_forked(
    tool: str,
    words: Sequence[str | Path],
    folder: Path,
    *,
    seconds: float = 10.0,
    memory_mib: int = 1024,
    may_start: bool = False,
    kill_after: float | None = None,
    kill_alone: bool = False,
    before: Callable[[], None] | None = None,
) -> Outcome:
    """Run ``tool.main()`` in a forked child of this process.

    Parameters
    ----------
    tool : str
        Module of a command line, ``pipeline_tool``.
    words : sequence of str or path
        Its arguments.
    folder : path
        Working folder, the only place where it may write (apart from a temporary folder of its own).
    seconds : float
        CPU time after which it and all that it started are killed: the same on a busy machine.
    memory_mib : int
        Address space that it may take beyond what this process has.
    may_start : bool
        It may start programs.
    kill_after : float, optional
        Kill it with SIGKILL after this number of seconds, with all that it started, as a power cut would.
    kill_alone : bool
        Kill the tool alone, as a machine short of memory would: what it started has to end by itself.
    before : callable, optional
        Called in the child first.
    """
    importlib.import_module(tool)
    with tempfile.TemporaryDirectory(prefix="reliability-") as own:
        out, err, strayed, scratch = (Path(own) / name for name in ("out", "err", "strayed", "tmp"))
        scratch.mkdir()
        resident_mib, fresh_mib = _resident_mib(), _fresh_mib()
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            try:
                _become(folder, out, err, scratch, memory_mib)
                _watch(strayed, (folder, scratch), may_start)
                if before is not None:
                    before()
                code = _call(tool, words)
            except BaseException:  # noqa: BLE001 - whatever escapes is what is looked for
                traceback.print_exc()
                code = FOREIGN_ERROR
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
        code, timed_out, usage, outlived = _wait(child, began, seconds, kill_after, kill_alone)
        spent = time.monotonic() - began
        seen = strayed.read_text(encoding="utf-8", errors="replace").splitlines() if strayed.exists() else []
        seen += ["a process it started outlived it"] if outlived else []
        peak_mib = usage.ru_maxrss / 1024 - max(0.0, resident_mib - fresh_mib)
        texts, cpu = (_text(out), _text(err)), usage.ru_utime + usage.ru_stime
        return Outcome(code, *texts, spent, cpu, timed_out, peak_mib, tuple(dict.fromkeys(seen)))


def _become(folder: Path, out: Path, err: Path, scratch: Path, memory_mib: int) -> None:
    os.setsid()
    os.chdir(folder)
    for path, number in ((out, 1), (err, 2)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
        os.close(handle)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    os.environ["TMPDIR"] = str(scratch)
    tempfile.tempdir = str(scratch)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if memory_mib:
        limit = _address_space() + memory_mib * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@lru_cache(maxsize=1)
def _fresh_mib() -> float:
    """Resident size of a process that has imported what a command needs, and nothing else."""
    code = "from benchmarks.reliability import sandbox; sandbox.preload(); print(sandbox._resident_mib())"
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _call(tool: str, words: Sequence[str | Path]) -> int:
    sys.argv = [f"{tool}.py", *map(str, words)]
    try:
        return int(sys.modules[tool].main())
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1


def _wait(
    child: int, began: float, seconds: float, kill_after: float | None, kill_alone: bool
) -> tuple[int, bool, resource.struct_rusage, bool]:
    timed_out = outlived = False
    look = began + seconds
    try:
        while True:
            done, status, usage = os.wait4(child, os.WNOHANG)
            if done:
                break
            now = time.monotonic()
            spent = now - began
            if now > look:
                look = now + LOOK_SECONDS
                timed_out = spent > WAITED * seconds or _cpu_seconds(child) > seconds
            if timed_out or (kill_after is not None and spent > kill_after):
                if kill_alone and not timed_out:
                    os.kill(child, signal.SIGKILL)
                else:
                    kill_group(child)
                _, status, usage = os.wait4(child, 0)
                break
            time.sleep(POLL_SECONDS)
        until = time.monotonic() + ORPHAN_SECONDS
        while kill_alone and (outlived := _has_members(child)) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
    finally:
        kill_group(child)  # what it left behind
    return os.waitstatus_to_exitcode(status), timed_out, usage, outlived


def _cpu_seconds(group: int) -> float:
    """CPU time of the processes of a group, and of those that they have waited for."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            if int(words[2]) == group:
                ticks += sum(map(int, words[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def kill_group(leader: int) -> None:
    """Kill a process group, should there be anybody left in it."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _watch(report: Path, allowed: Iterable[Path], may_start: bool) -> None:
    """Write down every change outside the allowed folders, and every program started, by Python's own audit."""
    roots = tuple(os.path.realpath(path) + os.sep for path in allowed)
    handle = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def outside(path: Any) -> bool:
        if isinstance(path, int) or path is None:
            return False
        text = os.fsdecode(path)
        # What Python and numba keep of compiled code is theirs, and what coverage counts.
        if text.startswith("/dev/") or "__pycache__" in text or text.endswith((".nbi", ".nbc")) or "/.coverage" in text:
            return False
        real = os.path.realpath(text)
        return not any((real + os.sep).startswith(root) for root in roots)

    def tell(text: str) -> None:
        os.write(handle, text.replace("\n", " ").encode("utf-8", "replace") + b"\n")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            if (flags or 0) & _WRITES and outside(path):
                tell(f"wrote {path}")
        elif event in _CHANGES:
            for place in _CHANGES[event]:
                if outside(arguments[place]):
                    tell(f"{event} {arguments[place]}")
        elif event in _STARTS and not may_start:
            tell(f"{event} {arguments[0]}")

    sys.addaudithook(hook)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def tree_of(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its content (None for a folder), by relative path."""
    found: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        found[str(path.relative_to(folder))] = path.read_bytes() if path.is_file() else None
    return found
