"""Fits a device to a user's own runs or profiles, and writes it as a registration for that card and software."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from taylor.base.console import log
from taylor.base.errors import InputError, TaylorError
from taylor.base.files import form_of, read_text, write_atomic
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.memory.workspaces import allocated_mib
from taylor.cost_model.profile import TimeRatios
from taylor.cost_model.time.step import estimate_ratios
from taylor.parsers.profiles.ascend_tables import cluster_step_ms
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL
from taylor.profiling.calibration.fit import REGISTER, Calibration, Measured, calibrate
from taylor.profiling.extract import extract_ratios
from taylor.profiling.folders import find_profile_folders
from taylor.register.device import CALIBRATED_TO, DeviceSpec
from taylor.register.device_file import device_text
from taylor.register.registry import Registry
from taylor.workflows.measuring.measured_peaks import TABLE as PEAKS
from taylor.workflows.measuring.measured_peaks import MemoryFit, fit_memory_part
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.planned_step import planned_step_ms
from taylor.workflows.statement.schedules import require_start

TABLE = "measured.csv"
"""Table of runs in a folder."""
MAX_ROWS = 10_000
MAX_MS = 1e12
CONFIGURATIONS = (".yaml", ".yml", ".sh", ".toml", ".json")


@dataclass(frozen=True)
class CalibrateOptions:
    """Source and target of a fit.

    Parameters
    ----------
    source : Path
        Table of runs, a folder with one as `TABLE`, or a folder of profiles.
    configs : Path or None
        For profiles: the folder of the configurations that were profiled.
    device : str or None
        Registered device, or its file; the table's device when omitted.
    group : str or None
        Only runs with this ``set``.
    stack, name : str
        Software that the runs used, and name of the fitted device. Made from the runs where they are empty.
    output : Path or None
        Path of the device; None writes none.
    peaks : Path or None
        Table of measured peaks by stage; that of the source's folder (`measured_peaks.TABLE`) when omitted.
    """

    source: Path
    configs: Path | None = None
    device: str | None = None
    group: str | None = None
    stack: str = ""
    name: str = ""
    output: Path | None = None
    register_path: Path | None = None
    peaks: Path | None = None


@dataclass(frozen=True)
class Run:
    """One row of a table of runs.

    Parameters
    ----------
    file : Path
        Its configuration.
    step_ms, peak_mib : float or None
        Measurements of it.
    """

    file: Path
    step_ms: float | None
    peak_mib: float | None = None
    device: str | None = None
    group: str = ""


@dataclass(frozen=True)
class Calibrated:
    """The fit, its file, and the memory errors of the runs.

    Parameters
    ----------
    memory_errors : tuple of float
        Predicted over measured peak memory, less one, of the runs that have both.
    memory : MemoryFit or None
        Memory part of the device, where there is a table of peaks.
    """

    fit: Calibration
    file: Path | None
    memory_errors: tuple[float, ...] = ()
    memory: MemoryFit | None = None


def calibrate_device(options: CalibrateOptions) -> Calibrated:
    """Fit a device to a table of runs or to profiles, and write it.

    Raises
    ------
    InputError
        When the source cannot be read, names several devices, or has no run with a time.
    """
    if options.source.is_file() or (options.source / TABLE).is_file():
        device, measured, memory = _from_table(options)
    elif options.source.is_dir():
        device, measured = _from_profiles(options)
        memory = ()
    else:
        raise InputError("no such file or folder", field="SOURCE", value=str(options.source), cure="check the path")
    fit = calibrate(measured, device)
    stack = options.stack or f"{CALIBRATED_TO} {options.source}{f', {options.group}' if options.group else ''}"
    card = replace(fit.device, name=options.name or f"{device.name}-calibrated", aliases=(), stack=stack)
    beside = options.source / PEAKS if options.source.is_dir() else options.source.parent / PEAKS
    table = options.peaks or (beside if beside.is_file() else None)
    peaks = None if table is None else fit_memory_part(table, card, options.register_path)
    card = card if peaks is None else peaks.on(card)
    fit = replace(fit, device=card)
    if options.output is None:
        return Calibrated(fit, None, memory, peaks)
    comments = [*_comments(fit, device), *([] if peaks is None else [f"Memory: {peaks.sentence}."])]
    return Calibrated(fit, write_atomic(options.output, device_text(card, comments)), memory, peaks)


def read_runs(path: Path) -> list[Run]:
    """Table of runs: columns ``file`` and ``step_ms``; optionally ``peak_mib``, ``device`` and ``set``.

    In place of a number ``step_ms`` may name a ``cluster_step_trace_time.csv`` of msprof-analyze.

    Raises
    ------
    InputError
        With the line and the column at fault.
    """
    table = path / TABLE if path.is_dir() else path
    rows = csv.DictReader(io.StringIO(read_text(table), newline=""))
    missing = [name for name in ("file", "step_ms") if name not in (rows.fieldnames or ())]
    if missing:
        raise InputError("lacks a column", file=table, field=missing[0], cure="name it in the first line")
    runs: list[Run] = []
    try:
        for row in rows:
            where = f"line {rows.line_num}"
            if len(runs) >= MAX_ROWS:
                raise InputError(f"has more than {MAX_ROWS} rows", file=table, cure="split it")
            name = (row["file"] or "").strip()
            if not name or "\0" in name:
                raise InputError("names no configuration", file=table, field=f"{where}, file", value=name)
            runs.append(
                Run(
                    table.parent / name,
                    _step_ms(row, where, table),
                    _figure(row, "peak_mib", where, table),
                    (row.get("device") or "").strip() or None,
                    (row.get("set") or "").strip(),
                )
            )
    except csv.Error as error:
        raise InputError(f"is no table: {error}", file=table, field=f"line {rows.line_num}") from None
    return runs


def _step_ms(row: dict[str, str], where: str, table: Path) -> float | None:
    """Step of a run: a number, or that of msprof-analyze's table."""
    text = (row.get("step_ms") or "").strip()
    if text.lower().endswith(".csv") and "\0" not in text:
        return cluster_step_ms(table.parent / text)
    return _figure(row, "step_ms", where, table)


def _figure(row: dict[str, str], column: str, where: str, table: Path) -> float | None:
    text = (row.get(column) or "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < MAX_MS:
        cure = "write a number above 0, or leave the cell empty"
        raise InputError("must be a number > 0", file=table, field=f"{where}, {column}", value=text, cure=cure)
    return value


def step_measured(name: str, config: TrainingConfig, step_ms: float) -> Measured:
    """Measured step of a configuration: predicted with the plan in the file, else the even one.

    Raises
    ------
    InputError
        When the job cannot start as the file states it.
    """
    require_start(config)
    plan = config.plan or config.even_plan(config.strategy)
    model, strategy, rules = config.model, config.strategy, config.rules

    def predict(device: DeviceSpec) -> float:
        return planned_step_ms(config, device)

    job = (model.replace(name=""), strategy, rules, repr(config.schedule), repr(plan.layers), repr(plan.recompute))
    return Measured(name, step_ms, predict, _hashable(job), tuple(flag.name for flag in config.unmodelled if flag.time))


def ratio_measured(name: str, config: TrainingConfig, ratios: TimeRatios, missing: Sequence[str]) -> list[Measured]:
    """Times of a layer and of the head in a profile, each as a measurement."""
    unit = ratios.unit_ms
    if unit is None:
        return []
    model, strategy, rules = config.model, config.strategy, config.rules
    parts: dict[str, tuple[float, Callable[[TimeRatios], float]]] = {
        "forward of a layer": (1.0, lambda of: 1.0),
        "backward of a layer": (ratios.backward, lambda of: of.backward),
        "recompute of a layer": (ratios.recompute[FULL], lambda of: of.recompute[FULL]),
        "head": (ratios.head, lambda of: of.head),
        "forward of a dense layer": (ratios.dense_forward, lambda of: of.dense_forward),
    }
    absent = {"bfratio": "backward of a layer", "re_grow_ration": "recompute of a layer", "hratio": "head",
              "dmratio": "forward of a dense layer"}  # fmt: skip
    left = {absent[one] for one in missing if one in absent}
    if not model.n_moe or not model.n_dense:
        left.add("forward of a dense layer")
    flags = tuple(flag.name for flag in config.unmodelled if flag.time)

    def predictor(part: Callable[[TimeRatios], float]) -> Callable[[DeviceSpec], float]:
        def predict(device: DeviceSpec) -> float:
            estimated = estimate_ratios(model, strategy, rules, device)
            assert estimated.unit_ms is not None
            return part(estimated) * estimated.unit_ms

        return predict

    return [
        Measured(f"{name}, {what}", value * unit, predictor(part), (name, what), flags)
        for what, (value, part) in parts.items()
        if what not in left and value > 0
    ]


def _from_table(options: CalibrateOptions) -> tuple[DeviceSpec, list[Measured], tuple[float, ...]]:
    rows = [run for run in read_runs(options.source) if options.group in (None, run.group)]
    if not rows:
        raise InputError("no run is of this set", file=options.source, field="--set", value=options.group)
    register = Registry.load(options.register_path)
    named = {register.device(run.device).name for run in rows if run.device}
    if options.device is not None:
        device = register.device(options.device)
        rows = [run for run in rows if run.device is None or register.device(run.device).name == device.name or
                device.name not in named]  # fmt: skip
    elif len(named) > 1:
        cure = "--device or --set picks the runs of one: each card and software is fitted by itself"
        raise InputError("has runs on several devices", file=options.source, value=", ".join(sorted(named)), cure=cure)
    else:
        device = register.device(next(iter(named))) if named else _usual_device(rows, options)
    measured: list[Measured] = []
    memory: list[float] = []
    refused = 0
    for run in rows:
        try:
            config = read_config(run.file, options.register_path)
            if run.step_ms is not None:
                measured.append(step_measured(run.file.name, config, run.step_ms))
                measured[-1].predict(device)
            if run.peak_mib is not None:
                memory.append(_peak_mib(config, device) / run.peak_mib - 1)
        except TaylorError as error:
            refused += 1
            log.warning("left out: %s", error)
    if not measured:
        why = f"; {refused} could not be read" if refused else ""
        raise InputError(f"has no run with a step time that can be predicted{why}", file=options.source)
    return device, measured, tuple(memory)


def _usual_device(rows: Sequence[Run], options: CalibrateOptions) -> DeviceSpec:
    config = read_config(rows[0].file, options.register_path)
    chosen = choose_device(config, None, options.register_path)
    log.info("%s", chosen.assumption)
    return chosen.spec


def _from_profiles(options: CalibrateOptions) -> tuple[DeviceSpec, list[Measured]]:
    folder = options.configs or options.source
    files = sorted(path for path in folder.rglob("*") if form_of(path) in CONFIGURATIONS and path.is_file())
    if options.configs is None:
        files = [path for path in files if path.parent == folder]
    if not files:
        raise InputError(
            f"has no {TABLE}, and no configuration of a profile", file=folder,
            cure="--configs names the folder of the configurations that were profiled",
        )  # fmt: skip
    found = find_profile_folders(options.source, files)
    measured: list[Measured] = []
    device: DeviceSpec | None = None
    for file, profile in found.found.items():
        try:
            config = read_config(file, options.register_path)
            extracted = extract_ratios(read_config(found.profiled[file], options.register_path), profile)
        except TaylorError as error:
            log.warning("left out: %s", error)
            continue
        if extracted.ratios is None:
            log.warning("left out: %s: %s", file.name, "; ".join(extracted.problems[:1]))
            continue
        device = device or choose_device(config, options.device, options.register_path).spec
        measured += ratio_measured(file.stem, config, extracted.ratios, extracted.missing)
    if not measured or device is None:
        raise InputError("no profile has a time", file=options.source, cure="--verbose says what is wrong with each")
    return device, measured


def _peak_mib(config: TrainingConfig, device: DeviceSpec) -> float:
    """Allocated memory of the heaviest stage, MiB, without the runtime's own buffers."""
    plan = config.plan or config.even_plan(config.strategy)
    stages = stage_breakdown(config.model, config.strategy, config.rules, plan, config.schedule)
    return max(allocated_mib(stage, config.model, config.rules, device) for stage in stages)


def _hashable(job: tuple[object, ...]) -> Hashable:
    """Job itself where it can be a key, else its text."""
    try:
        hash(job)
    except TypeError:
        return repr(job)
    return job


def _comments(fit: Calibration, before: DeviceSpec) -> list[str]:
    """Facts for a reader of the file."""
    lines = [f"Fitted by `taylor calibrate` to {len(fit.runs)} measurements, from {before.name}: {fit.moved}."]
    if (error := fit.median_error("left_out")) is not None:
        lines.append(f"Median error of runs left out of the fit: {100 * error:.1f} %.")
    if fit.moved != REGISTER:
        for one in fit.figures:
            if one.from_runs:
                keys = ", ".join(one.keys)
                lines.append(f"  {keys}: {one.value:.4g}, 95 % between {one.least:.4g} and {one.largest:.4g}")
    return lines


def memory_sentence(errors: Sequence[float]) -> str:
    """Errors of predicted peaks against measured ones."""
    return f"peak memory of {len(errors)} runs: median error {100 * median(map(abs, errors)):.1f} %, not fitted"
