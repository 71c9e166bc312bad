"""Dry-runs by the user's own training program: one process a stage, results kept by content."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from base.console import log, progress
from base.errors import TaylorError
from base.files import write_atomic
from dryrun.interface import OUT_OF_MEMORY, DryRun, DryRunResult, StagePeak
from dryrun.launch import Launcher
from dryrun.logs import last_lines, read_peak, tells_out_of_memory
from dryrun.processes import Job, Outcome, run_jobs
from parsers.write_back import emit_variant

NO_PEAK = "its log has no peak memory line"
_FORMAT = 1
"""Raised when what is kept, or how a log is read, changes its meaning."""
_SESSION = "session"
_REPORT_EVERY_S = 30.0


@dataclass
class _Stage:
    """One process to run, and where its result is kept."""

    run: int
    stage: int
    key: str
    folder: Path
    job: Job
    attempts: int = 0


@dataclass
class MindsporeBackend:
    """Runs the user's program in simulation for every stage asked for.

    Below `root` lies one folder a run, named by its strategy and by everything that its result depends on
    (file, environment, command, versions), and in it one folder a stage with log and result. A result found
    there is not run again. Failures are kept too, but only until the work that met them ends in order: a
    killed search finds them again, while a later call gives them another chance.

    Parameters
    ----------
    extra : mapping of dotted key to value
        Entries of the training file that differ for a dry-run, such as the data set.
    parallel : int
        Processes at once.
    retries : int
        Further attempts after a failure that may pass: a crash, a kill, a time-out.
    executor : concurrent.futures.Executor, optional
        Where processes are started; this machine when not given.
    """

    launcher: Launcher
    root: Path
    extra: Mapping[str, object] = field(default_factory=dict)
    parallel: int = 2
    timeout_s: float = 3600.0
    retries: int = 1
    executor: Executor | None = None
    name: str = "mindspore"
    _session: str = ""

    def __enter__(self) -> MindsporeBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the session, unless it is being broken off: then what failed so far stays known."""
        if kind is None or issubclass(kind, Exception):
            (self.root / _SESSION).unlink(missing_ok=True)
            self._session = ""

    def measure(self, runs: Sequence[DryRun]) -> list[DryRunResult]:
        """Run what is not known yet; every failure is told once and marked in the results."""
        session = self._open_session()
        found: dict[tuple[int, int], StagePeak] = {}
        waiting: list[_Stage] = []
        fingerprint = self.launcher.fingerprint()
        for index, run in enumerate(runs):
            try:
                folder, key = self._prepare(run, fingerprint)
                command = self.launcher.command(folder / _file_name(run))
            except TaylorError as error:
                found |= {(index, s): StagePeak(s, None, self.name, failure=str(error)) for s in run.asked}
                continue
            for stage in run.asked:
                place = folder / f"stage_{stage}"
                known = _read_result(place, key, stage, session, self.name)
                if known is not None:
                    found[index, stage] = known
                    continue
                environment = self.launcher.full_environment(self.launcher.settings(run.strategy, stage))
                job = Job(command, environment, place, place / "dryrun.log", self.timeout_s)
                waiting.append(_Stage(index, stage, key, place, job))
        if found and waiting:
            log.info("dry-runs: %d of %d are known from earlier runs", len(found), len(found) + len(waiting))
        self._run(waiting, session, found)
        results = [
            DryRunResult(run, tuple(found[index, stage] for stage in run.asked)) for index, run in enumerate(runs)
        ]
        for result in results:
            if result.failures:
                log.warning("dry-run failed: %s", result.describe_failure())
        return results

    def _run(self, waiting: Sequence[_Stage], session: str, found: dict[tuple[int, int], StagePeak]) -> None:
        # Twins (the same file and stage twice) are run once.
        first: dict[Path, int] = {}
        for index, stage in enumerate(waiting):
            first.setdefault(stage.folder, index)
        chosen = [waiting[index] for index in first.values()]
        if not chosen:
            return
        began = told = time.monotonic()
        done = failed = 0
        with progress("dry-runs", len(chosen)) as advance:

            def on_done(index: int, outcome: Outcome) -> bool:
                nonlocal done, failed, told
                stage = chosen[index]
                stage.attempts += 1
                peak = self._judge(stage, outcome)
                may_pass = outcome.passing and peak.failure not in ("", OUT_OF_MEMORY)
                if may_pass and stage.attempts <= self.retries:
                    log.debug("dry-run of stage %d %s; tried again", stage.stage, peak.failure)
                    return True
                _write_result(stage, peak, session)
                for twin in waiting:
                    if twin.folder == stage.folder:
                        found[twin.run, twin.stage] = peak
                done += 1
                failed += bool(peak.failure)
                advance(1, f"{failed} failed" if failed else "")
                now = time.monotonic()
                if now - told > _REPORT_EVERY_S and done < len(chosen):
                    told = now
                    left = (now - began) / done * (len(chosen) - done)
                    log.info("dry-runs: %d of %d done, %d failed, about %.0f s left", done, len(chosen), failed, left)
                return False

            run_jobs([stage.job for stage in chosen], self.parallel, on_done, self.executor)
        log.info("dry-runs: %d done in %.0f s, %d of them failed", done, time.monotonic() - began, failed)

    def _judge(self, stage: _Stage, outcome: Outcome) -> StagePeak:
        path = stage.job.log
        peak, failure = None, outcome.failure
        actual = None
        try:
            logged = read_peak(path)
            if not failure:
                peak, actual = logged.used_mib, logged.actual_mib
                failure = "" if peak is not None else NO_PEAK
        except TaylorError as error:
            failure = failure or str(error)
        if failure and not failure.startswith("timed out") and tells_out_of_memory(path):
            failure = OUT_OF_MEMORY
        lines = last_lines(path) if failure else ()
        return StagePeak(stage.stage, peak, self.name, actual, path, failure, lines, round(outcome.seconds, 3))

    def _prepare(self, run: DryRun, fingerprint: str) -> tuple[Path, str]:
        """Write the run's training file into the folder of its content; gives folder and key."""
        made = self.root / "new" / uuid.uuid4().hex / _file_name(run)
        try:
            emit_variant(run.config, run.strategy, made, plan=run.plan, extra=self.extra)
            text = made.read_bytes()
            digest = hashlib.sha256()
            settings = {**self.launcher.settings(run.strategy, 0), "RANK_ID": ""}
            command = self.launcher.command(Path(_file_name(run)))
            for part in (text, json.dumps([settings, command, fingerprint, _FORMAT], sort_keys=True).encode()):
                digest.update(hashlib.sha256(part).digest())
            key = digest.hexdigest()
            folder = self.root.resolve() / f"{run.strategy.name}-{key[:16]}"
            write_atomic(folder / made.name, text)
        finally:
            shutil.rmtree(made.parent, ignore_errors=True)
        return folder, key

    def _open_session(self) -> str:
        """The mark of the work under way; that of a killed one is taken over with its failures."""
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


def _file_name(run: DryRun) -> str:
    return "config" + run.config.path.suffix.lower()


def _write_result(stage: _Stage, peak: StagePeak, session: str) -> None:
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
    write_atomic(stage.folder / "result.json", json.dumps(data, indent=1) + "\n")


def _read_result(folder: Path, key: str, stage: int, session: str, source: str) -> StagePeak | None:
    try:
        data: Any = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        if data["key"] != key or data["stage"] != stage:
            return None
        if data["failure"] and data["session"] != session:
            return None
        return StagePeak(
            stage,
            None if data["peak_mib"] is None else float(data["peak_mib"]),
            source,
            None if data["actual_mib"] is None else float(data["actual_mib"]),
            folder / "dryrun.log",
            str(data["failure"]),
            tuple(map(str, data["lines"])),
            float(data["seconds"]),
            cached=True,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
