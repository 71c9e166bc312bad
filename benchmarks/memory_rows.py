"""Measured peaks and public verdicts beside the predicted ones: what `benchmarks.memory_page` shows.

A row is a job that ran, or that ran out of memory. Where its source states a peak, the row keeps the ratio of the
measured to the predicted figure of the same kind; where it states only what happened, it keeps the verdict. Rows whose
file contradicts its source (`measured_runs.NOT_AS_STATED`) take no part.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.accuracy_rows import MLPERF
from benchmarks.card_runs import predicted_peak, predicted_reserved, read_runs
from benchmarks.fidelity import DEEPSEEK_FIT, deepseek_rows
from benchmarks.measured_runs import MeasuredRun, measured_runs
from benchmarks.peak_fit import PeakResidual
from taylor.base.errors import TaylorError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.errors.peak_interval import PeakClass, PeakErrors, peak_class
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.profile import MemorySource
from taylor.parsers.flag_table import UnmodelledFlag
from taylor.parsers.read import read_config
from taylor.pipeline_solver.model.solution import FEASIBLE, Solution
from taylor.register.frameworks import MINDFORMERS
from taylor.register.registry import Registry
from taylor.workflows.showing.fit import Fit, fit_verdict

_LOWER = UnmodelledFlag("a flag", None, "less", None, None, "it lowers the peak")
_HIGHER = UnmodelledFlag("a flag", None, "more", None, None, "it raises the peak")

RAN, OUT_OF_MEMORY = "ran", "out of memory"
FAILED = ("OOM", "reserved more")
"""Beginnings of notes on jobs that ran out of memory."""

FOLDERS = ("measured_runs", "measured_runs_2026")
CARD, DRY_RUN = "ranks on one H200", "MindFormers' dry-runs"
SEEN = (CARD,)
"""Sets that `cost_model.memory.reserved` was made with."""

PUBLIC_VERDICTS: Mapping[str, tuple[str, str]] = {
    "b01_q30_pp2_ep8.sh": ("h800-80g", RAN),
    "b01_q30_pp4_ep4.sh": ("h800-80g", RAN),
    "b03_q30_tp2_ep8.sh": ("a100-80g", RAN),
    "t05_ds16b_lbs8_ep8.toml": ("h100-80g", OUT_OF_MEMORY),
    "t05_ds16b_lbs8_ep1.toml": ("h100-80g", RAN),
}
"""Jobs of public threads that ran or ran out of memory on a named card, by their file in ``public_cases``: its log.csv
has the threads (Pai-Megatron-Patch 643, Qwen3 1278, torchtitan 1789)."""


@dataclass(frozen=True)
class MemoryRow:
    """One job.

    Parameters
    ----------
    group, name : str
        Set and file.
    job : PeakClass
    happened : str
        `RAN` or `OUT_OF_MEMORY`.
    ratio : float or None
        Measured over predicted peak; None where no source states it.
    open_below, open_above : bool
        Flags that no figure has may lower the peak, and may raise it without a known bound.
    peak_mib, limit_mib : float
        Predicted peak of the heaviest stage with all that a card must provide, and the memory of the card that a job
        may take; 0 where only the ratio is known.
    interval : (float, float)
        Ends of the ratio's 90 % interval by a fit without the row's set.
    verdict : str
        Answer at the default risk by that fit, as `workflows.showing.fit` gives it; empty without a limit.
    """

    group: str
    name: str
    job: PeakClass
    happened: str = RAN
    ratio: float | None = None
    open_below: bool = False
    open_above: bool = False
    peak_mib: float = 0.0
    limit_mib: float = 0.0
    interval: tuple[float, float] = (1.0, 1.0)
    verdict: str = ""

    @property
    def residual(self) -> PeakResidual:
        """The row as the fit takes it; one with a ratio."""
        assert self.ratio is not None
        return PeakResidual(math.log(self.ratio), self.group, self.job, self.open_below, self.open_above)

    @property
    def covered(self) -> bool:
        """Return whether the measured peak lies in its interval, as far as flags leave that closed."""
        assert self.ratio is not None
        low, high = self.interval
        return (self.open_below or self.ratio >= low) and (self.open_above or self.ratio <= high)

    def judged(self, errors: PeakErrors) -> MemoryRow:
        """The row with its interval and the product's verdict under some errors."""
        known = errors.of(self.job)
        row = replace(self, interval=(known.lower(), known.upper()))
        if not self.limit_mib:
            return row
        margin = MemoryMargin()
        solution = Solution(
            FEASIBLE, peak_memory_mib=(self.peak_mib,), memory_limit_mib=(margin.below(self.limit_mib, known),)
        )
        most = None if self.open_above else self.peak_mib * known.upper()
        least = None if self.open_below else self.peak_mib * known.lower()
        flags = (_LOWER,) * self.open_below + (_HIGHER,) * self.open_above
        found = fit_verdict(solution, flags, [most], known, margin, least_mib=[least])
        return replace(row, verdict=str(found.fit))

    @property
    def false_fit(self) -> bool:
        """Return whether it ran out of memory, or its peak was above the card's memory, and it is said to fit."""
        return self.happened == OUT_OF_MEMORY and self.verdict == Fit.FITS.value

    @property
    def false_misfit(self) -> bool:
        """Return whether it ran, and is said not to fit."""
        return self.happened == RAN and self.verdict == Fit.DOES_NOT_FIT.value

    @property
    def refused(self) -> bool:
        """Return whether it ran, and would not be planned at the default risk."""
        return self.happened == RAN and self.verdict in (Fit.DOES_NOT_FIT.value, Fit.AT_RISK.value)

    def as_data(self) -> dict[str, Any]:
        """The row as plain data, rounded."""
        data = {**asdict(self), "interval": [round(end, 4) for end in self.interval]}
        data |= {name: round(getattr(self, name), 1) for name in ("peak_mib", "limit_mib")}
        return {**data, "ratio": None if self.ratio is None else round(self.ratio, 4)}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> MemoryRow:
        """The row that `as_data` gave."""
        low, high = data["interval"]
        return cls(**{**data, "job": PeakClass(**data["job"]), "interval": (low, high)})


def every_row(shared: Path) -> tuple[list[MemoryRow], dict[str, str]]:
    """Every job below a folder, and of `card_runs.yaml`; beside them the reason for each that is not read."""
    without: dict[str, str] = {}
    rows = [row for name in FOLDERS for row in _shared(shared / name, without)]
    rows += _mlperf(shared / "mlperf", without)
    rows += _public(shared / "public_cases", without)
    return [*rows, *_on_one_card(), *_dry_runs()], without


def _shared(folder: Path, without: dict[str, str]) -> Iterator[MemoryRow]:
    """Runs of a folder of configuration files."""
    runs, refused = measured_runs(folder)
    without |= {sentence: "is not read" for sentence in refused}
    data = pd.read_csv(folder / "measured.csv")
    notes = dict(zip(data["file"], data["note"].fillna(""), strict=True)) if "note" in data else {}
    for run in runs:
        if not run.peak_as_stated:
            without[run.file] = "contradicts its source"
            continue
        failed = str(notes.get(run.file, "")).startswith(FAILED)
        yield _of_run(run, OUT_OF_MEMORY if failed else RAN)


def _of_run(run: MeasuredRun, happened: str) -> MemoryRow:
    assert run.config is not None
    config, source = run.config, MemorySource.ESTIMATE
    ratio = None if run.measured_mib is None else run.measured_mib / run.allocated_mib
    return MemoryRow(
        run.group, run.file, config.peak_class, happened, ratio, run.open_below, run.open_above,
        run.peak_mib, config.margin.around(run.limit_mib, config.memory_error(source)),
    )  # fmt: skip


def _mlperf(folder: Path, without: dict[str, str]) -> Iterator[MemoryRow]:
    """Submissions of MLPerf, all of which ran."""
    for row in pd.read_csv(folder / "measured.csv").to_dict("records"):
        yield from _that(folder / row["file"], row["device"], MLPERF, RAN, without)


def _public(folder: Path, without: dict[str, str]) -> Iterator[MemoryRow]:
    """Jobs of public threads."""
    for name, (device, happened) in PUBLIC_VERDICTS.items():
        yield from _that(folder / name, device, "public threads", happened, without)


def _that(path: Path, device: str, group: str, happened: str, without: dict[str, str]) -> Iterator[MemoryRow]:
    """A job that is known to have run, or not to have."""
    try:
        config = read_config(path)
    except TaylorError as error:
        without[path.name] = str(error)
        return
    card = Registry.load().device(device)
    plan = config.plan or config.even_plan(config.strategy)
    stages = stage_breakdown(config.model, config.strategy, config.rules, plan, config.schedule)
    flags = config.unmodelled
    yield MemoryRow(
        group, path.name, config.peak_class, happened, None,
        any(flag.may_lower_memory for flag in flags),
        any(flag.may_raise_memory and flag.most is None for flag in flags),
        max(stage.total for stage in stages), config.replace(margin=MemoryMargin(risk=0.0)).memory_limit_mib(card),
    )  # fmt: skip


def _on_one_card() -> Iterator[MemoryRow]:
    """torchtitan's ranks on one card: what its allocator reserved, else what it allocated."""
    _, runs = read_runs()
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            config, allocated = predicted_peak(run, Path(folder))
            reserved = predicted_reserved(run, Path(folder))
            measured, predicted = run.reserved_mib, reserved
            if measured is None or predicted is None:
                measured, predicted = run.active_mib, allocated
            if measured is not None:
                yield MemoryRow(CARD, run.name, config.peak_class, ratio=measured / predicted)


def _dry_runs() -> Iterator[MemoryRow]:
    """Peaks of first, middle and last stage by the published fit to MindFormers' dry-runs, over the estimated ones."""
    predicted = {row.name: row.predicted for row in deepseek_rows()}
    job = peak_class(Registry.load().model("deepseek-v3-671b"), MINDFORMERS.name)
    for stage, dense, alive in (("first", 3, 16), ("middle", 0, 8), ("last", 0, 1)):
        for mode in ("none", "full"):
            fitted, estimated = (
                figures[f"static {stage}"]
                + sum(
                    count * (figures[f"layer {kind}"] + alive * figures[f"activation {kind} {mode}"])
                    for kind, count in (("dense", dense), ("moe", 4 - dense))
                )
                for figures in (DEEPSEEK_FIT, predicted)
            )
            yield MemoryRow(DRY_RUN, f"DeepSeek-V3, {stage} stage, {mode}", job, ratio=fitted / estimated)
