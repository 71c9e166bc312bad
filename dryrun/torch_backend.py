"""Dry-runs by the stage model on fake tensors: a process a stage, on any machine that has torch."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import signal
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.base.files import write_atomic
from taylor.base.isolated import module_command
from taylor.base.kept import read_kept
from taylor.dryrun.interface import DryRun, DryRunResult, StagePeak
from taylor.dryrun.kept_runs import KeptRuns, StageJob
from taylor.dryrun.logs import last_lines
from taylor.dryrun.processes import Outcome, ProgramRun
from taylor.dryrun.torch_child import ANSWER, FOUND, JOB, TASK, StageAnswer, StageTask
from taylor.pipeline.generators import build_schedule

STAGE_MODEL = "taylor.dryrun.torch_stage.run"
"""Module whose `run_stage(run, stage)` gives the `StageMemory`."""
_ROOT = Path(__file__).resolve().parent.parent
_MODEL_SOURCES = (
    "dryrun/torch_stage", "dryrun/stage_memory.py", "cost_model", "pipeline", "register/model.py", "register/layers.py",
    "register/pattern.py", "register/adapters.py",
)  # fmt: skip
"""Sources that a stage's figures depend on, below `_ROOT`: a change in them makes kept results void."""
_FORMAT = 1


@dataclass
class TorchBackend:
    """Backend that runs the stage model for every requested stage, each in its own process.

    Below `root` lies one folder a different stage, named by everything that its memory depends on: model,
    strategy, rules, the stage's own layers, recompute and order of tasks, whether it is the first or the last,
    the version of torch and the stage model's source. So stages that must have the same memory are run once,
    and a result is found again when other parts of the plan change (`KeptRuns`).

    Parameters
    ----------
    parallel : int
        Processes at once.
    retries : int
        Further attempts after a failure that may pass: a kill, a time-out.
    executor : concurrent.futures.Executor, optional
        Executor of processes; this machine when not given.
    module : str
        Gives `run_stage`; the tests put a stand-in here.
    """

    root: Path
    parallel: int = 2
    timeout_s: float = 3600.0
    retries: int = 1
    executor: Executor | None = None
    module: str = STAGE_MODEL
    name: str = "torch"
    exact: bool = True
    every_flag: bool = False

    def __post_init__(self) -> None:
        self._kept = KeptRuns(
            self.root, self.name, self._judge, self.parallel, self.retries, self.executor, restore=_with_memory
        )

    def __enter__(self) -> TorchBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.leave(kind, error, trace)

    def measure(self, runs: Sequence[DryRun]) -> list[DryRunResult]:
        """Run what is not known yet; every reason for a failure is logged once, and marked in the results."""
        found: dict[tuple[int, int], StagePeak] = {}
        jobs: dict[tuple[int, int], StageJob] = {}
        for index, run in enumerate(runs):
            try:
                settled = settle(run)
                keys = {stage: self._key(settled, stage) for stage in run.asked}
            except ValueError as error:
                found |= {(index, s): StagePeak(s, None, self.name, failure=str(error)) for s in run.asked}
                continue
            jobs |= {(index, stage): self._job(settled, stage, key) for stage, key in keys.items()}
        found |= self._kept.peaks(jobs)
        results = [
            DryRunResult(run, tuple(_named(found[index, stage]) for stage in run.asked))
            for index, run in enumerate(runs)
        ]
        _log_failures(results)
        return results

    def _job(self, run: DryRun, stage: int, key: str) -> StageJob:
        folder = self.root.resolve() / f"{run.strategy.name}-{key[:16]}"
        task = StageTask(self.module, replace(run, stages=(stage,)), stage)
        write_atomic(folder / JOB, TASK.dump_json(task))
        command = module_command("taylor.dryrun.torch_child", str(folder))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # nothing is computed: further threads only take memory
        return StageJob(stage, key, ProgramRun(command, environment, folder, folder / "dryrun.log", self.timeout_s))

    def _key(self, run: DryRun, stage: int) -> str:
        """Hash of all that the stage's memory depends on; ValueError where the schedule cannot run."""
        config, strategy, plan = run.config, run.strategy, run.plan
        assert plan is not None
        schedule = build_schedule(config.schedule, strategy.pp, strategy.vpp, strategy.micro_batches)
        facts: dict[str, Any] = {
            "model": asdict(config.model),
            "strategy": strategy.degrees(),
            "rules": asdict(config.rules),
            "config": [config.mtp_counted, asdict(config.schedule)],
            "ends": [stage == 0, stage == config.schedule.head_stage(strategy.pp)],
            "layers": {kind: [row[stage] for row in grid] for kind, grid in plan.layers.items()},
            "recompute": {
                mode: counts for mode, grid in plan.recompute.items() if any(counts := [row[stage] for row in grid])
            },
            "order": hashlib.sha256(schedule.order[stage].tobytes()).hexdigest(),
            "by": [self.module, torch_version(), _source_hash(), _FORMAT],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _judge(self, stage: StageJob, outcome: Outcome) -> StagePeak:
        path = stage.program.log
        failure = outcome.failure
        if outcome.signal == signal.SIGKILL:
            failure += ", which a machine does that runs out of memory"
        answer = StageAnswer(failure=failure) if failure else _read_answer(stage.program.folder)
        lines = last_lines(path) if failure else ()
        peak = None if answer.memory is None else answer.memory.peak_mib
        return StagePeak(
            stage.stage, peak, self.name, None, path, answer.failure, lines, round(outcome.seconds, 3),
            memory=answer.memory,
        )  # fmt: skip


def _log_failures(results: Sequence[DryRunResult]) -> None:
    """A line for every reason; else each stage would report the same fault of a configuration."""
    failed = [result for result in results if result.failures]
    for reason in dict.fromkeys(peak.failure for result in failed for peak in result.failures):
        of_it = [result for result in failed if any(peak.failure == reason for peak in result.failures)]
        count = sum(peak.failure == reason for result in of_it for peak in result.failures)
        first = replace(of_it[0], stages=tuple(p for p in of_it[0].stages if p.failure == reason))
        log.warning("%d dry-runs failed, the first: %s", count, first.describe_failure())


def settle(run: DryRun) -> DryRun:
    """The run with its plan and its schedule settled: an even split where it has no plan."""
    config = run.config.replace(schedule=run.config.schedule_for(run.strategy.vpp))
    return replace(run, config=config, plan=run.plan or config.even_plan(run.strategy))


def torch_version() -> str | None:
    """The version of torch that the children would import; None when there is none."""
    try:
        return importlib.metadata.version("torch") if importlib.util.find_spec("torch") is not None else None
    except importlib.metadata.PackageNotFoundError:
        return "unpackaged"


def require_torch(flag: str = "--dryrun_backend", value: str = "torch") -> None:
    """Refuse to go on without torch.

    Raises
    ------
    InputError
        With what installs it.
    """
    if torch_version() is None:
        raise InputError(
            "torch is not installed",
            field=flag,
            value=value,
            cure="pip install 'taylor-parallel[torch]' (the CPU build suffices)",
        )


@lru_cache(maxsize=1)
def _source_hash() -> str:
    digest = hashlib.sha256()
    for name in _MODEL_SOURCES:
        place = _ROOT / name
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            digest.update(path.relative_to(_ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _named(peak: StagePeak) -> StagePeak:
    """The peak with its own stage in its memory too, which may be that of a twin."""
    return peak if peak.memory is None else replace(peak, memory=replace(peak.memory, stage=peak.stage))


def _read_answer(folder: Path) -> StageAnswer:
    answer = read_kept(folder / ANSWER)
    return StageAnswer(failure="wrote no answer") if answer is None else FOUND.validate_python(answer)


def _with_memory(peak: StagePeak, folder: Path) -> StagePeak | None:
    memory = _read_answer(folder).memory
    return None if memory is None else replace(peak, memory=memory)
