"""Fits the memory part of a device's file to a table of measured peaks."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from taylor.base.console import log
from taylor.base.errors import InputError, TaylorError
from taylor.base.files import read_text
from taylor.cost_model.errors.peak_correction import SeenPeak, in_common
from taylor.cost_model.memory.breakdown import StageBreakdown, stage_breakdown
from taylor.cost_model.memory.workspaces import allocated_mib
from taylor.parsers.read import read_config
from taylor.register.device import DeviceSpec

TABLE = "peaks.csv"
"""Table of peaks in a folder of runs."""
COLUMNS = ("file", "stage", "peak_mib")
MAX_ROWS = 10_000


@dataclass(frozen=True)
class PeakRow:
    """Measured peak of a stage: torch's allocated memory (``max_memory_allocated``), MiB."""

    file: Path
    stage: int
    peak_mib: float
    where: str


@dataclass(frozen=True)
class MemoryFit:
    """Memory part of a device, fitted to measured peaks.

    Parameters
    ----------
    extra_mib, kept_factor : float
        As in `DeviceSpec`; 0 and 1 where no common correction predicts peaks that are left out better than none.
    before, after : tuple of float
        Predicted over measured peak, less one, of each peak before and after the fit.
    """

    extra_mib: float
    kept_factor: float
    before: tuple[float, ...]
    after: tuple[float, ...]

    def on(self, device: DeviceSpec) -> DeviceSpec:
        """Device with this memory part; its own where none was fitted."""
        if not self.is_fitted:
            return device
        return replace(device, memory_extra_mib=round(self.extra_mib, 1), kept_factor=round(self.kept_factor, 5))

    @property
    def is_fitted(self) -> bool:
        """Return whether the peaks determine a common correction."""
        return bool(self.extra_mib) or self.kept_factor != 1.0

    @property
    def sentence(self) -> str:
        """Fit in words."""
        before, after = (100 * median(map(abs, errors)) for errors in (self.before, self.after))
        peaks = f"{len(self.before)} measured peak{'s' * (len(self.before) > 1)}: median error {before:.1f} %"
        if not self.is_fitted:
            return (
                f"{peaks}; no correction of all stages predicts peaks that are left out better than none: the memory "
                "part stays (--measured_peak of taylor solve corrects a single job)"
            )
        factor = "" if self.kept_factor == 1.0 else f" and {self.kept_factor:.3f} times the kept activations"
        return f"{peaks}, {after:.1f} % with {self.extra_mib:+,.0f} MiB{factor} on every stage"


def read_peaks(table: Path) -> list[PeakRow]:
    """Table of peaks: columns ``file``, ``stage`` and ``peak_mib``.

    Raises
    ------
    InputError
        With the line and the column at fault.
    """
    rows = csv.DictReader(io.StringIO(read_text(table), newline=""))
    missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise InputError("lacks a column", file=table, field=missing[0], cure="name it in the first line")
    found: list[PeakRow] = []
    try:
        for row in rows:
            where = f"line {rows.line_num}"
            if len(found) >= MAX_ROWS:
                raise InputError(f"has more than {MAX_ROWS} rows", file=table, cure="split it")
            name = (row["file"] or "").strip()
            if not name or "\0" in name:
                raise InputError("names no configuration", file=table, field=f"{where}, file", value=name)
            found.append(PeakRow(table.parent / name, _stage(row, where, table), _peak(row, where, table), where))
    except csv.Error as error:
        raise InputError(f"is no table: {error}", file=table, field=f"line {rows.line_num}") from None
    if not found:
        raise InputError("has no peak", file=table, cure="add lines, or leave the table out")
    return found


def fit_memory_part(table: Path, device: DeviceSpec, register_path: Path | None = None) -> MemoryFit:
    """Fit a device's memory part to a table of peaks; files that cannot be read are left out with a warning.

    Peaks of one file are left out together; those of the only file each alone.

    Raises
    ------
    InputError
        When the table cannot be read, names a stage that does not exist, or no file of it can be read.
    """
    rows = list(_seen(read_peaks(table), table, device, register_path))
    if not rows:
        raise InputError("has no peak that can be predicted", file=table, cure="see the warnings above")
    files = list(dict.fromkeys(row.file for row, _ in rows))
    groups = {row: files.index(row.file) if len(files) > 1 else number for number, (row, _) in enumerate(rows)}
    seen = [replace(one, stage=groups[row]) for row, one in rows]
    extra, factor = in_common(seen)
    before = tuple(one.predicted_mib / one.mib - 1.0 for one in seen)
    after = tuple((one.fixed_mib + extra + factor * one.kept_mib) / one.mib - 1.0 for one in seen)
    return MemoryFit(extra, factor, before, after)


def _seen(
    rows: Sequence[PeakRow], table: Path, device: DeviceSpec, register_path: Path | None
) -> Iterator[tuple[PeakRow, SeenPeak]]:
    """Rows beside their predicted peaks."""
    predicted: dict[Path, list[tuple[float, StageBreakdown]] | None] = {}
    for row in rows:
        if row.file not in predicted:
            predicted[row.file] = _predicted(row.file, device, register_path)
        stages = predicted[row.file]
        if stages is None:
            continue
        if row.stage >= len(stages):
            raise InputError(
                f"names no stage of {len(stages)}", file=table, field=f"{row.where}, stage", value=row.stage,
                cure=f"stages count from 0 to {len(stages) - 1}",
            )  # fmt: skip
        whole, stage = stages[row.stage]
        kept = sum(stage.activations.values())
        yield row, SeenPeak(row.stage, whole - kept, kept, row.peak_mib)


def _predicted(file: Path, device: DeviceSpec, register_path: Path | None) -> list[tuple[float, StageBreakdown]] | None:
    """Allocated memory of each stage of a file's plan, with its parts; None where the file cannot be read."""
    try:
        config = read_config(file, register_path).as_it_recomputes()
    except TaylorError as error:
        log.warning("left out: %s", error)
        return None
    plan = config.plan or config.even_plan(config.strategy)
    schedule = config.schedule_for(config.strategy.vpp)
    stages = stage_breakdown(config.model, config.strategy, config.rules, plan, schedule)
    return [(allocated_mib(stage, config.model, config.rules, device), stage) for stage in stages]


def _stage(row: dict[str, str], where: str, table: Path) -> int:
    text = (row["stage"] or "").strip()
    if not text.isdecimal() or len(text) > 6:
        cure = "write the number of a pipeline stage, from 0"
        raise InputError("must be an integer >= 0", file=table, field=f"{where}, stage", value=text, cure=cure)
    return int(text)


def _peak(row: dict[str, str], where: str, table: Path) -> float:
    text = (row["peak_mib"] or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e9:
        cure = "write MiB of one device"
        raise InputError("must be a number > 0", file=table, field=f"{where}, peak_mib", value=text, cure=cure)
    return value
