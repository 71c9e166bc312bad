"""Peaks read from the logs of earlier dry-runs instead of running any."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRun, DryRunResult, StagePeak
from taylor.dryrun.logs import last_lines, read_peak, reports_out_of_memory

_DEGREE = re.compile(r"(?<![A-Za-z])(DP|TP|PP|EP|CP|OP|SP|VPP|MBS|M)(\d{1,6})(?![0-9A-Za-z])")
_RANK = re.compile(r"(?<![A-Za-z])rank_?(\d{1,6})(?!\d)", re.IGNORECASE)
_STAGE = re.compile(r"(?<![A-Za-z])stage_?(\d{1,4})(?!\d)", re.IGNORECASE)
_FIELDS = {"M": "micro_batches"}
MAX_LOGS = 100_000


@dataclass(frozen=True)
class ReplayedLog:
    """One log: the degrees that its path names, its place in the run, and what it says.

    `stage` and `rank` are None where the path does not state them.
    """

    path: Path
    degrees: dict[str, int]
    rank: int | None
    stage: int | None
    peak_mib: float | None
    actual_mib: float | None
    failure: str

    def of(self, strategy: Strategy) -> bool:
        """Return whether the log is of this strategy; a path without degrees is of any."""
        return all(int(getattr(strategy, name)) == value for name, value in self.degrees.items())

    def stage_of(self, strategy: Strategy) -> int | None:
        """The stage that the log is of; None when the path does not state it."""
        if self.stage is not None:
            return self.stage
        return None if self.rank is None else self.rank // (strategy.world_size // strategy.pp)


def read_logs(folder: Path) -> list[ReplayedLog]:
    """Every log below a folder.

    Known layouts: ``…DPx_TPx_PPx_EPx…/rank_N.log`` (or any ``*.log`` there, further folders between), the
    degrees in the log's own name, and a bare ``rank_N.log``, which is of the configuration's own strategy.

    Raises
    ------
    InputError
        When there is no such folder, or no log in it.
    """
    if not folder.is_dir():
        raise InputError("no such folder", file=folder, field="--dryrun_data_dir", cure="name a folder of dry-run logs")
    logs = []
    for path in _log_files(folder):
        place = path.relative_to(folder)
        degrees = {
            _FIELDS.get(name, name.lower()): int(value) for part in place.parts for name, value in _DEGREE.findall(part)
        }
        logged = read_peak(path)
        failure = ""
        if logged.used_mib is None:
            failure = OUT_OF_MEMORY if reports_out_of_memory(path) else "the log has no peak memory line"
        logs.append(
            ReplayedLog(
                path,
                degrees,
                _last_number(_RANK, place),
                _last_number(_STAGE, place),
                logged.used_mib,
                logged.actual_mib,
                failure,
            )
        )
    if not logs:
        raise InputError(
            "contains no log",
            file=folder,
            field="--dryrun_data_dir",
            cure="name logs as …DPx_TPx_PPx_EPx…/*.log or rank_N.log",
        )
    return logs


def _log_files(folder: Path) -> Iterator[Path]:
    for count, path in enumerate(sorted(path for path in folder.rglob("*.log") if path.is_file())):
        if count >= MAX_LOGS:
            raise InputError(f"contains more than {MAX_LOGS} logs", file=folder, field="--dryrun_data_dir")
        yield path


def _last_number(pattern: re.Pattern[str], place: Path) -> int | None:
    found = [match for part in place.parts for match in pattern.findall(part)]
    return int(found[-1]) if found else None


class ReplayBackend:
    """Answers from logs: a stage that has none is a failure that says so."""

    name = "replay"
    exact = False
    every_flag = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = read_logs(folder)

    def __enter__(self) -> ReplayBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def strategy_peak(self, strategy: Strategy) -> StagePeak | None:
        """The heaviest stage among a strategy's logs; None without any. A failed log goes before all others."""
        peaks = [self._peak(log, log.stage_of(strategy) or 0) for log in self.logs if log.of(strategy)]
        return max(peaks, key=lambda peak: float("inf") if peak.peak_mib is None else peak.peak_mib, default=None)

    def measure(self, runs: Sequence[DryRun]) -> list[DryRunResult]:
        """The peaks of the stages asked for; of several logs of a stage (ranks of it) the largest."""
        return [DryRunResult(run, tuple(self._stage(run.strategy, stage) for stage in run.asked)) for run in runs]

    def _stage(self, strategy: Strategy, stage: int) -> StagePeak:
        known = [log for log in self.logs if log.of(strategy) and log.stage_of(strategy) in (stage, None)]
        matching = [log for log in known if log.stage_of(strategy) == stage] or known
        if not matching:
            return StagePeak(stage, None, self.name, failure=f"no log of {strategy.name} stage {stage}")
        peaks = [self._peak(log, stage) for log in matching]
        good = [peak for peak in peaks if peak.peak_mib is not None]
        return max(good, key=lambda peak: peak.peak_mib or 0.0) if good else peaks[0]

    def _peak(self, log: ReplayedLog, stage: int) -> StagePeak:
        return StagePeak(
            stage,
            log.peak_mib,
            self.name,
            log.actual_mib,
            log.path,
            log.failure,
            last_lines(log.path) if log.failure else (),
            cached=True,
        )
