"""The interface of every dry-run backend: it takes plans of strategies and gives the peak memory of their stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

from taylor.cost_model.job.strategy import Strategy
from taylor.dryrun.stage_memory import StageMemory
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan

OUT_OF_MEMORY = "out of memory"
"""The failure that is an answer: the stage needs more memory than the device has."""


@dataclass(frozen=True)
class DryRun:
    """One training run to measure the peak memory of.

    Parameters
    ----------
    config : TrainingConfig
        The job; the run uses its schedule.
    strategy : Strategy
        May differ from the configuration's own.
    plan : PipelinePlan or None
        Layers and recompute; None = an even split, recomputed as the file says.
    stages : tuple of int, optional
        The stages to run; all when not given.
    """

    config: TrainingConfig
    strategy: Strategy
    plan: PipelinePlan | None
    stages: tuple[int, ...] | None = None

    @property
    def asked(self) -> tuple[int, ...]:
        """The stages to run."""
        return tuple(range(self.strategy.pp)) if self.stages is None else self.stages


@dataclass(frozen=True)
class StagePeak:
    """The peak of one stage, or why there is none.

    Parameters
    ----------
    peak_mib : float or None
        Without fragments, MiB; None after a failure.
    actual_mib : float or None
        With fragments, where the log says it, MiB.
    source : str
        Backend that gave it: ``mindspore``, ``replay``, ``estimate``, ….
    log : Path or None
        The log it was read from.
    failure : str
        Why there is no peak.
    lines : tuple of str
        The last lines of the log that matter, after a failure.
    cached : bool
        Found from an earlier run.
    memory : StageMemory or None
        Parts of the peak and its history, from backends that see them (``torch``).
    """

    stage: int
    peak_mib: float | None
    source: str
    actual_mib: float | None = None
    log: Path | None = None
    failure: str = ""
    lines: tuple[str, ...] = ()
    seconds: float = 0.0
    cached: bool = False
    memory: StageMemory | None = None


@dataclass(frozen=True)
class DryRunResult:
    """Peaks of the stages asked for, in their order."""

    run: DryRun
    stages: tuple[StagePeak, ...]

    @property
    def failures(self) -> tuple[StagePeak, ...]:
        """The stages without a peak."""
        return tuple(stage for stage in self.stages if stage.peak_mib is None)

    @property
    def says_nothing(self) -> bool:
        """Return whether every stage failed, and none for want of memory, which would be an answer."""
        return bool(self.stages) and all(
            stage.peak_mib is None and stage.failure != OUT_OF_MEMORY for stage in self.stages
        )

    @property
    def peak_mib(self) -> float | None:
        """Peak of the heaviest stage, MiB; None when a stage has none."""
        peaks = [stage.peak_mib for stage in self.stages]
        known = [peak for peak in peaks if peak is not None]
        return max(known) if known and len(known) == len(peaks) else None

    def describe_failure(self) -> str:
        """The strategy, its first failed stage, the reason and the last lines that matter."""
        if not self.failures:
            return ""
        first = self.failures[0]
        stages = ", ".join(str(stage.stage) for stage in self.failures)
        log_lines = f" | {' | '.join(first.lines)}" if first.lines else ""
        where = f" ({first.log})" if first.log is not None else ""
        return f"{self.run.strategy.name} stage {stages}: {first.failure}{where}{log_lines}"


class DryRunBackend(Protocol):
    """Something that finds the peak memory of runs. A failed run is part of the answer, never an exception.

    `exact` backends give the same peak for the same stage every time: repeated runs do not help.
    `every_flag`: the job's own framework runs, so that each flag of the file has its effect on the peaks.
    """

    name: str
    exact: bool
    every_flag: bool

    def measure(self, runs: Sequence[DryRun]) -> list[DryRunResult]:
        """The results in the order of the runs."""
        ...

    def __enter__(self) -> DryRunBackend: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
