"""Processes that each measure one stage, a few at a time; results are cached by content."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from taylor.base.console import log, progress
from taylor.base.files import write_atomic
from taylor.base.kept import read_kept, write_kept
from taylor.dryrun.interface import OUT_OF_MEMORY, StagePeak
from taylor.dryrun.processes import Outcome, ProgramRun, run_programs

_SESSION = "session"
_REPORT_EVERY_S = 30.0
Place = TypeVar("Place", bound=Hashable)


@dataclass
class StageJob:
    """One process to run for one stage, and the key of its result.

    Parameters
    ----------
    key : str
        Hash of everything that the result depends on.
    program : ProgramRun
        Its folder keeps the result; jobs with one folder are the same run.
    """

    stage: int
    key: str
    program: ProgramRun
    attempts: int = 0


@dataclass
class KeptRuns:
    """Runner of the stages' processes without a cached result.

    A result found in a job's folder is not run again. Failures are kept too, but only until their work ends normally: a
    killed search finds them again, while a later call tries them again.

    Parameters
    ----------
    root : Path
        Folder above the jobs' folders; holds the mark of the work under way.
    name : str
        Backend whose results these are.
    judge : callable
        Gives the peak of a stage from how its process ended.
    parallel : int
        Processes at once.
    retries : int
        Further attempts after a failure that may pass: a crash, a kill, a time-out.
    executor : concurrent.futures.Executor, optional
        Executor of processes; this machine when not given.
    restore : callable, optional
        Completes a kept peak by what else lies in its folder; None when that is missing, and it is run again.
    """

    root: Path
    name: str
    judge: Callable[[StageJob, Outcome], StagePeak]
    parallel: int = 2
    retries: int = 1
    executor: Executor | None = None
    restore: Callable[[StagePeak, Path], StagePeak | None] | None = None
    _session: str = ""

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the session, unless it is interrupted: then the failures so far are kept."""
        if kind is None or issubclass(kind, Exception):
            (self.root / _SESSION).unlink(missing_ok=True)
            self._session = ""

    def peaks(self, jobs: Mapping[Place, StageJob]) -> dict[Place, StagePeak]:
        """The peak of every job: kept, or run now. Each failure is part of the answer."""
        session = self._open_session()
        found: dict[Place, StagePeak] = {}
        waiting: dict[Place, StageJob] = {}
        for place, job in jobs.items():
            known = self._read(job, session)
            if known is not None:
                found[place] = known
            else:
                waiting[place] = job
        if found and waiting:
            log.info("dry-runs: %d of %d are known from earlier runs", len(found), len(jobs))
        return found | self._run(waiting, session)

    def _run(self, waiting: Mapping[Place, StageJob], session: str) -> dict[Place, StagePeak]:
        # Twins (one folder) are run once.
        twins: dict[Path, list[Place]] = {}
        for place, stage in waiting.items():
            twins.setdefault(stage.program.folder, []).append(place)
        chosen = [waiting[places[0]] for places in twins.values()]
        found: dict[Place, StagePeak] = {}
        if not chosen:
            return found
        began = reported = time.monotonic()
        done = failed = 0
        with progress("dry-runs", len(chosen)) as advance:

            def on_done(index: int, outcome: Outcome) -> bool:
                nonlocal done, failed, reported
                stage = chosen[index]
                stage.attempts += 1
                peak = self.judge(stage, outcome)
                may_pass = outcome.worth_retry and peak.failure not in ("", OUT_OF_MEMORY)
                if may_pass and stage.attempts <= self.retries:
                    log.debug("dry-run of stage %d %s; tried again", stage.stage, peak.failure)
                    return True
                _write(stage, peak, session)
                for place in twins[stage.program.folder]:
                    found[place] = replace(peak, stage=waiting[place].stage)
                done += 1
                failed += bool(peak.failure)
                advance(1, f"{failed} failed" if failed else "")
                now = time.monotonic()
                if now - reported > _REPORT_EVERY_S and done < len(chosen):
                    reported = now
                    left = (now - began) / done * (len(chosen) - done)
                    log.info("dry-runs: %d of %d done, %d failed, about %.0f s remain", done, len(chosen), failed, left)
                return False

            run_programs([stage.program for stage in chosen], self.parallel, on_done, self.executor)
        log.info("dry-runs: %d done in %.0f s, %d of them failed", done, time.monotonic() - began, failed)
        return found

    def _open_session(self) -> str:
        """The mark of the work under way; the mark of a killed run is taken over together with its failures."""
        if not self._session:
            path = self.root / _SESSION
            try:
                self._session = path.read_text(encoding="ascii").strip()
            except (OSError, ValueError):
                self._session = ""
            if not self._session:
                self._session = uuid.uuid4().hex
                write_atomic(path, self._session + "\n")
        return self._session

    def _read(self, stage: StageJob, session: str) -> StagePeak | None:
        folder = stage.program.folder
        data = read_kept(folder / "result.json")
        if data is None or data["key"] != stage.key or (data["failure"] and data["session"] != session):
            return None
        peak = StagePeak(
            stage.stage, data["peak_mib"], self.name, data["actual_mib"], stage.program.log, data["failure"],
            tuple(data["lines"]), data["seconds"], cached=True,
        )  # fmt: skip
        return peak if self.restore is None or peak.failure else self.restore(peak, folder)


def _write(stage: StageJob, peak: StagePeak, session: str) -> None:
    data = {
        "key": stage.key,
        "stage": peak.stage,
        "peak_mib": peak.peak_mib,
        "actual_mib": peak.actual_mib,
        "failure": peak.failure,
        "lines": list(peak.lines),
        "seconds": peak.seconds,
        "attempts": stage.attempts,
        "session": session,
    }
    write_kept(stage.program.folder / "result.json", data)
