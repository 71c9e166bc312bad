"""Dry-runs by the user's own training program: one process a stage, results kept by content."""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from taylor.base.console import log
from taylor.base.errors import TaylorError
from taylor.base.files import write_atomic
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRun, DryRunResult, StagePeak
from taylor.dryrun.kept_runs import KeptRuns, StageJob
from taylor.dryrun.launch import Starter
from taylor.dryrun.logs import last_lines, read_peak, reports_out_of_memory
from taylor.dryrun.processes import Outcome, ProgramRun
from taylor.parsers.write_back import emit_variant

NO_PEAK = "its log has no peak memory line"
_FORMAT = 1
"""Version of what is kept; raised when its meaning, or the way a log is read, changes."""


@dataclass
class MindsporeBackend:
    """Backend that runs the user's program in simulation for every requested stage.

    Below `root` lies one folder a run, named by its strategy and by everything that its result depends on
    (file, environment, command, versions), and in it one folder a stage with log and result (`KeptRuns`).

    Parameters
    ----------
    extra : mapping of dotted key to value
        Entries of the training file that differ for a dry-run, such as the data set.
    parallel : int
        Processes at once.
    retries : int
        Further attempts after a failure that may pass: a crash, a kill, a time-out.
    executor : concurrent.futures.Executor, optional
        Executor of processes; this machine when not given.
    """

    starter: Starter
    root: Path
    extra: Mapping[str, object] = field(default_factory=dict)
    parallel: int = 2
    timeout_s: float = 3600.0
    retries: int = 1
    executor: Executor | None = None
    name: str = "mindspore"
    exact: bool = False
    every_flag: bool = True

    def __post_init__(self) -> None:
        self._kept = KeptRuns(self.root, self.name, self._judge, self.parallel, self.retries, self.executor)

    def __enter__(self) -> MindsporeBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.leave(kind, error, trace)

    def measure(self, runs: Sequence[DryRun]) -> list[DryRunResult]:
        """Run what is not known yet; every failure is logged once and marked in the results."""
        found: dict[tuple[int, int], StagePeak] = {}
        jobs: dict[tuple[int, int], StageJob] = {}
        fingerprint = self.starter.fingerprint()
        for index, run in enumerate(runs):
            try:
                folder, key = self._prepare(run, fingerprint)
                command = self._command(folder / _file_name(run), run.config.path.resolve())
            except TaylorError as error:
                found |= {(index, s): StagePeak(s, None, self.name, failure=str(error)) for s in run.asked}
                continue
            for stage in run.asked:
                place = folder / f"stage_{stage}"
                environment = self.starter.full_environment(self.starter.settings(run.strategy, stage))
                where = self.starter.launcher.working_folder(run.config.path)
                program = ProgramRun(command, environment, place, place / "dryrun.log", self.timeout_s, where)
                jobs[index, stage] = StageJob(stage, key, program)
        found |= self._kept.peaks(jobs)
        results = [
            DryRunResult(run, tuple(found[index, stage] for stage in run.asked)) for index, run in enumerate(runs)
        ]
        for result in results:
            if result.failures:
                log.warning("dry-run failed: %s", result.describe_failure())
        return results

    def _judge(self, stage: StageJob, outcome: Outcome) -> StagePeak:
        path = stage.program.log
        peak, failure = None, outcome.failure
        actual = None
        try:
            logged = read_peak(path)
            if not failure:
                peak, actual = logged.used_mib, logged.actual_mib
                failure = "" if peak is not None else NO_PEAK
        except TaylorError as error:
            failure = failure or str(error)
        if failure and not outcome.timed_out and reports_out_of_memory(path):
            failure = OUT_OF_MEMORY
        lines = last_lines(path) if failure else ()
        return StagePeak(stage.stage, peak, self.name, actual, path, failure, lines, round(outcome.seconds, 3))

    def _command(self, file: Path, original: Path) -> tuple[str, ...]:
        return self.starter.launcher.dryrun_command(file, original, self.starter.tools)

    def _prepare(self, run: DryRun, fingerprint: str) -> tuple[Path, str]:
        """Write the run's training file into the folder of its content; gives folder and key."""
        made = self.root / "new" / uuid.uuid4().hex / _file_name(run)
        try:
            emit_variant(run.config, run.strategy, made, plan=run.plan, extra=self.extra)
            text = made.read_bytes()
            digest = hashlib.sha256()
            settings = {**self.starter.settings(run.strategy, 0), "RANK_ID": ""}
            where = self.starter.launcher.working_folder(run.config.path)
            command = (*self._command(Path(_file_name(run)), Path(_file_name(run))), str(where))
            for part in (text, json.dumps([settings, command, fingerprint, _FORMAT], sort_keys=True).encode()):
                digest.update(hashlib.sha256(part).digest())
            key = digest.hexdigest()
            folder = self.root.resolve() / f"{run.strategy.name}-{key[:16]}"
            write_atomic(folder / made.name, text)
        finally:
            shutil.rmtree(made.parent, ignore_errors=True)
        return folder, key


def _file_name(run: DryRun) -> str:
    return "config" + run.config.path.suffix.lower()
