"""Reads the output of small runs on the disk: kernels, collectives, tensors and the log of their first rank."""

from __future__ import annotations

from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.blackbox.recorded import RecordedRun
from taylor.parsers.launcher import Launcher
from taylor.parsers.profiles.allocations import ALLOCATIONS, Allocation, read_allocations
from taylor.parsers.profiles.ascend import KERNELS
from taylor.parsers.profiles.folder import rank_sources
from taylor.parsers.profiles.operators import OperatorSample, read_operators
from taylor.parsers.profiles.transfers import TRANSFERS, read_transfers
from taylor.parsers.small_run import RunLog, RunSetting

MOST_LOG = 1 << 28


def read_run(profile: Path, log: Path, setting: RunSetting, launcher: Launcher) -> RecordedRun:
    """Last profiled step of a run's first rank; see `read_steps`."""
    return read_steps(profile, log, setting, launcher)[-1]


def read_steps(profile: Path, log: Path, setting: RunSetting, launcher: Launcher) -> tuple[RecordedRun, ...]:
    """Each profiled step of a run's first rank; all with the tensors of the last one.

    Raises
    ------
    InputError
        When a table of its profile is missing or damaged, or its steps differ in their tensors.
    """
    place = rank_sources(profile)[0].path
    table = read_operators(place / KERNELS)
    by_step = dict[int, list[OperatorSample]]()
    for one in table.samples:
        by_step.setdefault(one.step, []).append(one)
    steps = sorted(by_step)
    allocations = _last_step(read_allocations(place / ALLOCATIONS), max(1, len(steps)), place / ALLOCATIONS)
    run_log = launcher.run_log(read_text(log, limit_bytes=MOST_LOG), setting.dense)
    if not run_log.parameters:
        cure = "let the run log at level 20, with one parameter a bucket, as its script does"
        raise InputError("lists no parameters", file=log, cure=cure)
    transfers = read_transfers(place / TRANSFERS)
    each = [tuple(by_step[step]) for step in steps] or [()]
    return tuple(RecordedRun(setting, samples, transfers, allocations, run_log) for samples in each)


def read_neighbour(profile: Path, setting: RunSetting) -> RecordedRun:
    """First stage of a run of several, of which only the transfers are of use.

    Raises
    ------
    InputError
        When a table of its profile is missing or damaged.
    """
    place = rank_sources(profile)[0].path
    transfers = read_transfers(place / TRANSFERS)
    return RecordedRun(setting, read_operators(place / KERNELS).samples, transfers, (), RunLog({}, None, None))


def _last_step(allocations: tuple[Allocation, ...], steps: int, file: Path) -> tuple[Allocation, ...]:
    """Last of this number of equal parts: the table does not state a tensor's step."""
    count = len(allocations) // steps
    parts = [allocations[at * count : (at + 1) * count] for at in range(steps)]
    if not count or len(allocations) % steps or len({tuple(one.name for one in part) for part in parts}) > 1:
        cure = "profile steps after the first few, which allocate more"
        raise InputError("shows steps that differ in their tensors", file=file, value=len(allocations), cure=cure)
    return parts[-1]
