"""Reads the output of small runs on the disk: kernels, collectives, tensors and the log of their first rank."""

from __future__ import annotations

from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.blackbox.recorded import RecordedRun
from taylor.parsers.launcher import Launcher
from taylor.parsers.profiles.allocations import Allocation
from taylor.parsers.profiles.folder import RankSource, rank_sources
from taylor.parsers.profiles.operators import OperatorSample
from taylor.parsers.small_run import RunLog, RunSetting

LOG, MOST_LOG = "run.log", 1 << 28
TRACES = "torch_profile"
"""Folder of Megatron-LM's traces, beside the one that its flag names (d98e8a64 megatron/training/training.py:4492)."""


def profile_of(folder: Path) -> RankSource | None:
    """Profile of the first rank of a run with this folder; None where it left none."""
    try:
        found = rank_sources(folder)
    except InputError:
        return None
    return next((source for source in found if source.operators_file.is_file()), None)


def read_run(folder: Path, file: Path, setting: RunSetting, launcher: Launcher) -> RecordedRun:
    """Last profiled step of a run's first rank; see `read_steps`."""
    return read_steps(folder, file, setting, launcher)[-1]


def read_steps(folder: Path, file: Path, setting: RunSetting, launcher: Launcher) -> tuple[RecordedRun, ...]:
    """Each profiled step of a run's first rank; all with the tensors of the last one.

    Parameters
    ----------
    file : Path
        Of the run, which was started with it; its log lies beside it.

    Raises
    ------
    InputError
        When a table of its profile is missing or damaged, or its steps differ in their tensors.
    """
    source = _first(folder)
    tables = source.tables()
    by_step = dict[int, list[OperatorSample]]()
    for one in tables.operators.samples:
        by_step.setdefault(one.step, []).append(one)
    steps = sorted(by_step)
    allocations = _last_step(tables.allocations or (), max(1, len(steps)), source.allocations_file)
    run_log = _log_of(file, setting, launcher)
    own = tuple(one for one in allocations if not one.of_weights)
    apart = tuple(one for one in allocations if one.of_weights)
    return tuple(
        RecordedRun(setting, tuple(by_step.get(step, ())), tables.transfers, own, run_log,
                    tuple(one for one in tables.of_weights if one.step == step), apart)
        for step in steps or [0]
    )  # fmt: skip


def _log_of(file: Path, setting: RunSetting, launcher: Launcher) -> RunLog:
    """Figures of a run's log, its parameters by its file where that states them."""
    counted = launcher.rank_parameters(file)
    if counted:
        return RunLog(counted, None, None)
    log = file.with_name(LOG)
    found = launcher.run_log(read_text(log, limit_bytes=MOST_LOG), setting.dense)
    if not found.parameters:
        cure = "let the run log at level 20, with one parameter a bucket, as its script does"
        raise InputError("lists no parameters", file=log, cure=cure)
    return found


def read_neighbour(folder: Path, setting: RunSetting) -> RecordedRun:
    """First stage of a run of several, of which only the transfers are of use.

    Raises
    ------
    InputError
        When a table of its profile is missing or damaged.
    """
    tables = _first(folder).tables(memory=False)
    empty = RunLog({}, None, None)
    return RecordedRun(setting, tables.operators.samples, tables.transfers, (), empty, tables.of_weights)


def _first(folder: Path) -> RankSource:
    found = profile_of(folder)
    if found is None:
        raise InputError("contains no profile with operators", file=folder, cure="start the run again")
    return found


def _last_step(allocations: tuple[Allocation, ...], steps: int, file: Path) -> tuple[Allocation, ...]:
    """Last of this number of equal parts: the table does not state a tensor's step."""
    count = len(allocations) // steps
    parts = [allocations[at * count : (at + 1) * count] for at in range(steps)]
    if not count or len(allocations) % steps or len({tuple(one.name for one in part) for part in parts}) > 1:
        cure = "profile steps after the first few, which allocate more"
        raise InputError("shows steps that differ in their tensors", file=file, value=len(allocations), cure=cure)
    return parts[-1]
