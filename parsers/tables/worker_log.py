"""Paddle worker logs: the pipeline jobs of every device, step by step (`workerlog.N`, FORMATS §7)."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Iterable, Iterator

from taylor.base.errors import InputError
from taylor.base.files import no_such_file

FORWARD_TYPE = "forward"

MAX_LINE = 64 * 2**10
"""Characters of one line that are looked at; job lines are far shorter."""

MAX_NAMED = 20
"""Bad lines that are named; the others are only counted."""

_MARK = re.compile(r"Profiler Info:\s*Job|micro_batch_id|job_(?:start|end)_time")
_LEAD = "Profiler Info: Job ("
_JOB = re.compile(
    r"^\s*Job\s*\((?P<id>\d{1,9})\)\s*,\s*type\s*=\s*(?P<type>[^,]+?)\s*,\s*"
    r"micro_batch_id\s*=\s*(?P<micro>-?\d{1,9})\s*,\s*"
    r"job_start_time\s*=\s*(?P<start>\d{1,15}(?:\.\d{1,12})?)\s*,\s*job_end_time\s*=\s*(?P<end>\d{1,15}(?:\.\d{1,12})?)"
)
_STEPS = re.compile(r"Schedule Profiler start at step (\d{1,9}) and end at step (\d{1,9})")
_FILE = re.compile(r"^workerlog\.(\d{1,9})$")
_MACHINE = re.compile(r"^machine\D*(\d{1,9})?$")


@dataclass(frozen=True)
class LoggedJob:
    """One job of a device: its type as logged, micro-batch, times in ms since the epoch, step counted from 0."""

    type: str
    micro_batch: int
    start_ms: float
    end_ms: float
    job_id: int
    step: int = 0


@dataclass(frozen=True)
class WorkerLog:
    """The jobs of one device.

    Parameters
    ----------
    machine, device : int
        The machine's number (0 with one machine) and the N of ``workerlog.N``.
    jobs : tuple of LoggedJob
        In order of their start.
    bad_lines : int
        Job lines that could not be read: cut, or with times that run backwards.
    named_bad_lines : tuple of str
        ``FILE:LINE: REASON`` of the first of them.
    profiled_steps : (int, int) or None
        First and last step as the log announces them.
    """

    path: Path
    machine: int
    device: int
    jobs: tuple[LoggedJob, ...]
    bad_lines: int = 0
    named_bad_lines: tuple[str, ...] = ()
    profiled_steps: tuple[int, int] | None = None

    @property
    def steps(self) -> int:
        """Steps that the log holds."""
        return 1 + max((job.step for job in self.jobs), default=-1)


@dataclass(frozen=True)
class WorkerLogs:
    """The logs of a run.

    Parameters
    ----------
    logs : tuple of WorkerLog
        By machine, then device.
    missing : tuple of str
        Devices that were asked for, or lie between those found, and have no log or no job.
    """

    logs: tuple[WorkerLog, ...]
    missing: tuple[str, ...] = ()
    machines: int = 1


def read_worker_log(path: str | Path, *, machine: int = 0, device: int | None = None) -> WorkerLog:
    """Read one log; other lines than job lines are skipped, bad job lines counted and named.

    A step starts at a ``forward…`` job with micro-batch 0; what comes before the first one belongs
    to step 0. Where a schedule runs several such jobs in a step (VPP), only one that comes
    after a backward or an optimizer job starts a new step. A forward job that comes again (same type,
    id and micro-batch) starts one too.

    Raises
    ------
    InputError
        When the file is missing or cannot be read.
    """
    source = Path(path)
    if device is None:
        named = _FILE.match(source.name)
        device = int(named.group(1)) if named else 0
    jobs: list[LoggedJob] = []
    reasons: list[str] = []
    bad = 0
    profiled = None
    for number, line in _lines(source):
        announced = _STEPS.search(line)
        if announced:
            profiled = (int(announced.group(1)), int(announced.group(2)))
        for piece in _pieces(line):
            job, reason = _job(piece)
            if job is not None:
                jobs.append(job)
                continue
            bad += 1
            if len(reasons) < MAX_NAMED:
                reasons.append(f"{source.name}:{number}: {reason}")
    jobs.sort(key=lambda one: (one.start_ms, one.end_ms))
    return WorkerLog(source, machine, device, tuple(_with_steps(jobs)), bad, tuple(reasons), profiled)


def read_worker_logs(
    log_dir: str | Path, *, devices: Iterable[int] | None = None, multi_machine: bool = False
) -> WorkerLogs:
    """Read the logs of a run.

    Parameters
    ----------
    log_dir : path
        Holds ``workerlog.N``, or with `multi_machine` folders ``machine*`` that do.
    devices : iterable of int, optional
        Only these N, on every machine; one without a log is named as missing.

    Raises
    ------
    InputError
        When the folder is missing, holds no log, or no log holds a job.
    """
    folder = Path(log_dir)
    if not folder.is_dir():
        raise InputError("is not a folder", file=folder, field="--log_dir", cure="give the folder of workerlog.N")
    wanted = None if devices is None else sorted(set(devices))
    places = _machines(folder) if multi_machine else [(0, folder)]
    logs: list[WorkerLog] = []
    missing: list[str] = []
    for machine, place in places:
        found = {
            int(match.group(1)): path
            for path in place.iterdir()
            if path.is_file() and (match := _FILE.match(path.name))
        }
        # Where no devices were asked for, a gap in the numbers is a device whose log was lost.
        expected = wanted if wanted is not None else range(max(found, default=-1) + 1)
        for device in expected:
            label = f"workerlog.{device}" + (f" of {place.name}" if multi_machine else "")
            if device not in found:
                missing.append(f"{label}: no such file")
                continue
            log = read_worker_log(found[device], machine=machine, device=device)
            logs.append(log)
            if not log.jobs:
                missing.append(f"{label}: contains no job line that can be read")
    if not any(log.jobs for log in logs):
        below = "" if multi_machine else "; logs of several machines (machine*/workerlog.N) need --multi_machine"
        raise InputError(
            "contains no workerlog.N with a readable job line" + (f" ({'; '.join(missing[:5])})" if missing else ""),
            file=folder,
            field="--log_dir",
            cure="run with the pipeline profiler on and give its log folder" + below,
        )
    return WorkerLogs(tuple(logs), tuple(missing), len(places))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        # Logs of crashed runs hold NULs and broken bytes; neither may end the reading.
        with open(path, encoding="utf-8", errors="replace", newline="\n") as stream:
            number = 0
            while line := stream.readline(MAX_LINE):
                number += 1
                while len(line) == MAX_LINE and not line.endswith("\n") and (rest := stream.readline(MAX_LINE)):
                    if len(rest) < MAX_LINE or rest.endswith("\n"):
                        break
                yield number, line.replace("\0", "").strip()
    except FileNotFoundError:
        raise no_such_file(path) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from error


def _pieces(line: str) -> list[str]:
    """Text behind each «Profiler Info:» of a line; processes that share a file run lines together."""
    if not _MARK.search(line):
        cut = line.rfind("Profiler")
        return [line[cut:]] if cut >= 0 and _LEAD.startswith(line[cut:]) else []
    before, *pieces = line.split("Profiler Info:")
    # The end of a job line whose beginning is lost.
    return [piece for piece in [before] if _MARK.search(piece)] + [piece for piece in pieces if "Job" in piece]


def _job(piece: str) -> tuple[LoggedJob | None, str]:
    match = _JOB.match(piece)
    if match is None:
        return None, f"cut or unreadable job line «{piece.strip()[:100]}»"
    start, end = match.group("start"), match.group("end")
    if _decimals(end) < 3 <= _decimals(start):
        # A cut inside the last number leaves a line that still looks right.
        return None, f"the end time {end} has lost digits: the line was cut"
    if float(end) < float(start):
        return None, f"the job ends {float(start) - float(end):.3f} ms before it starts"
    return LoggedJob(
        match.group("type"), int(match.group("micro")), float(start), float(end), int(match.group("id"))
    ), ""


def _decimals(time: str) -> int:
    return len(time.partition(".")[2])


def _with_steps(jobs: list[LoggedJob]) -> list[LoggedJob]:
    step, worked = 0, False
    seen: set[tuple[str, int, int]] = set()
    result = []
    for job in jobs:
        if job.type.startswith(FORWARD_TYPE):
            key = (job.type, job.job_id, job.micro_batch)
            # A repeated job starts a step too: the line of its micro-batch 0 may have been lost.
            if (job.micro_batch == 0 and worked) or key in seen:
                step, worked = step + 1, False
                seen.clear()
            seen.add(key)
        elif seen and job.type.startswith(("backward", "optimizer")):
            worked = True
        result.append(replace(job, step=step))
    return result


def _machines(folder: Path) -> list[tuple[int, Path]]:
    found = [
        (path, match) for path in sorted(folder.iterdir()) if path.is_dir() and (match := _MACHINE.match(path.name))
    ]
    if not found:
        raise InputError(
            "contains no folder machine*",
            file=folder,
            field="--multi_machine",
            cure="give the folder above them, or leave --multi_machine away",
        )
    numbers = [int(match.group(1)) if match.group(1) else None for _, match in found]
    repeated = [number for number, times in Counter(numbers).items() if times > 1 or number is None]
    if repeated:
        # Names without numbers of their own are numbered in order.
        return [(index, path) for index, (path, _) in enumerate(found)]
    ordered = sorted(zip(numbers, found, strict=True), key=lambda pair: pair[0] or 0)
    return [(number or 0, path) for number, (path, _) in ordered]
