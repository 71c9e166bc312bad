"""Measured steps of every set beside the predicted ones: what `benchmarks.accuracy_page` shows and intervals rest on.

A row keeps the ratio of the measured to the predicted step, and what decides the width of its interval
(`taylor.cost_model.errors.step_interval`). A row that contradicts its own source stays listed with the reason and takes
no part in any figure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.measured_runs import NOT_AS_STATED, STATED_BY_SOURCE
from benchmarks.peers import CALCULON, DEVICES, MEGATRON_MFU, Peer, is_gpt, megatron_step_ms
from benchmarks.published_performance import published_steps
from benchmarks.stacks import dated
from benchmarks.verification_cards import CARDS, card_steps
from taylor.base.errors import TaylorError
from taylor.cost_model.errors.step_interval import JobClass, job_class
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry
from taylor.workflows.statement.planned_step import planned_step_ms

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

MLPERF, CARD, TABLES = "MLPerf Training v5.0, Llama 3.1 405B", "verification cards", "NVIDIA's performance tables"
SOURCES: Mapping[str, str] = {
    MLPERF: "mlcommons/training_results_v5.0 at 0fdc28f: median step of the audited logs, submitted configurations",
    CARD: "NVIDIA-NeMo/Megatron-Bridge at 067f987d, examples/model_verification_cards: the pre-training cards",
    TABLES: "NVIDIA-NeMo/Megatron-Bridge at 067f987d, docs/performance-summary.md and its archive",
}
"""Sets that are one file each; the others have their source in each row of their ``measured.csv``."""

FROM_BRIDGE = "Megatron-Bridge: "
"""Beginning of a group whose rows one repository published for one model, in several sets."""

BRIDGE_MODELS = {
    "mbridge-cards/moonlight": "moonlight-16b-a3b", "mbridge-cards/deepseek": "deepseek-v3-671b",
    "mbridge-llama3-70b-fp8": "llama3-70b", "mbridge-moonlight": "moonlight-16b-a3b",
    "mbridge-qwen3-30b": "qwen3-30b-a3b",
}  # fmt: skip
"""Models of runs of Megatron-Bridge by how their files begin."""


@dataclass(frozen=True)
class AccuracyRow:
    """One measured step beside the predicted one.

    Parameters
    ----------
    part : str
        Collection of the set: MLPerf, the cards, the tables, or the folder's name.
    group : str
        Set of the row.
    fold : str
        Rows that are left out of a fit together: the set, or all rows of one model from Megatron-Bridge, whose sets
        measure the same recipes.
    name, device : str
        The run, and its registered device.
    ratio : float
        Measured over predicted step.
    job : JobClass
        What decides the width of its interval.
    flags : int
        Its flags that cost time and are in no figure.
    features : tuple of str
        Words of `feature_words`.
    doubt : str
        Reason why it takes no part; empty where it does.
    peers : mapping of str to float
        Step by a peer over the measured one.
    interval : (float, float)
        Ends of its 90 % interval over the predicted step, by a fit without its fold; (1, 1) before the fit.
    """

    part: str
    group: str
    fold: str
    name: str
    device: str
    ratio: float
    job: JobClass
    flags: int = 0
    features: tuple[str, ...] = ()
    doubt: str = ""
    peers: Mapping[str, float] = field(default_factory=dict)
    interval: tuple[float, float] = (1.0, 1.0)

    @property
    def covered(self) -> bool:
        """Return whether the measured step lies within the interval."""
        return self.interval[0] <= self.ratio <= self.interval[1]

    @property
    def half_width(self) -> float:
        """Half of the interval's width, as a fraction of the predicted step."""
        return (self.interval[1] - self.interval[0]) / 2

    @property
    def error(self) -> float:
        """Relative error of the predicted step."""
        return 1 / self.ratio - 1

    def as_data(self) -> dict[str, Any]:
        """The row as plain data, rounded."""
        data = {**asdict(self), "ratio": round(self.ratio, 4)}
        data["interval"] = [round(end, 4) for end in self.interval]
        data["job"]["place"] = [round(size, 1) for size in self.job.place]
        return {**data, "peers": {name: round(value, 4) for name, value in self.peers.items()}}

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> AccuracyRow:
        """The row that `as_data` gave."""
        job = JobClass(**{**data["job"], "place": tuple(data["job"]["place"])})
        low, high = data["interval"]
        return cls(**{**data, "job": job, "features": tuple(data["features"]), "interval": (low, high)})


def every_row(shared: Path, calculon: Path | None = None) -> tuple[list[AccuracyRow], dict[str, str]]:
    """Every row of every set below a folder, MLPerf first; beside them the reason for each job that is not stated.

    Parameters
    ----------
    calculon : Path, optional
        Folder with Calculon's sources.
    """
    registry = Registry.load()
    rows: list[AccuracyRow] = []
    without: dict[str, str] = {}
    parts: tuple[tuple[str, Callable[[], Iterable[AccuracyRow]]], ...] = (
        (MLPERF, lambda: _mlperf(shared / "mlperf", registry, without, calculon)),
        ("measured_runs_2026", lambda: _folder(shared / "measured_runs_2026", registry, without, calculon)),
        (CARD, lambda: _cards(shared / "verification_cards" / "cards.csv", registry, without)),
        (TABLES, lambda: _tables(shared / "recipes" / "performance.csv")),
        ("measured_runs", lambda: _folder(shared / "measured_runs", registry, without, calculon)),
    )
    for name, found in parts:
        before = len(rows)
        rows += found()
        print(f"{name}: {len(rows) - before} steps", file=sys.stderr, flush=True)
    return rows, without


def feature_words(model: ModelSpec, strategy: Strategy, rules: TrainingRules, device: DeviceSpec) -> tuple[str, ...]:
    """Words by which the page counts rows apart: MoE, fp8, CP, FSDP, Ascend."""
    words = {
        "MoE": model.n_moe > 0,
        "fp8": rules.narrow is not None,
        "CP": strategy.cp > 1,
        "FSDP": rules.parameter_shard,
        "Ascend": device.name.startswith("ascend"),
    }
    return tuple(word for word, applies in words.items() if applies)


def _row(
    part: str,
    group: str,
    name: str,
    job: tuple[ModelSpec, Strategy, TrainingRules, DeviceSpec],
    steps: tuple[float, float],
    *,
    fold: str = "",
    flags: int = 0,
    doubt: str = "",
) -> AccuracyRow:
    """A row from a job and its predicted and measured step, ms."""
    predicted, measured = steps
    megatron = megatron_step_ms(*job)
    return AccuracyRow(
        part,
        group,
        fold or group,
        name,
        job[3].name,
        measured / predicted,
        job_class(*job),
        flags,
        feature_words(*job),
        doubt or _above_peak(megatron, measured),
        {} if megatron is None else {"Megatron": megatron / measured},
    )


@dataclass(frozen=True)
class _Run:
    """A run of a configuration file: its set, file, device and step, ms; its configuration, and what bars it."""

    group: str
    file: str
    measured_ms: float
    config: TrainingConfig
    device: DeviceSpec
    doubt: str = ""


def _priced(part: str, runs: Iterable[_Run], without: dict[str, str], calculon: Path | None) -> Iterator[AccuracyRow]:
    """Rows of runs with configuration files, with Calculon's step where it can state the job."""
    every = list(runs)
    stated = [run for run in every if calculon is not None and run.device.name in DEVICES and is_gpt(run.config)]
    steps = _peer_steps(CALCULON, calculon, stated)
    for run in every:
        config = run.config
        try:
            predicted = planned_step_ms(config, run.device)
        except TaylorError as error:
            without[run.file] = str(error)
            continue
        family = next((model for start, model in BRIDGE_MODELS.items() if run.file.startswith(start)), None)
        row = _row(
            part, run.group, run.file, (config.model, config.strategy, config.rules, run.device),
            (predicted, run.measured_ms), fold=FROM_BRIDGE + family if family else "",
            flags=sum(flag.time is not None for flag in config.unmodelled), doubt=run.doubt,
        )  # fmt: skip
        peer = steps.get(run.file)
        yield row if peer is None else replace(row, peers={**row.peers, "Calculon": peer / run.measured_ms})


def _peer_steps(peer: Peer, folder: Path | None, runs: list[_Run]) -> dict[str, float]:
    """A peer's step of each run that it can state, ms."""
    if folder is None or not runs:
        return {}
    found = peer.steps_ms(folder, [(run.config, run.device.name) for run in runs])
    return {run.file: step for run, step in zip(runs, found, strict=True) if not isinstance(step, str)}


def _mlperf(folder: Path, registry: Registry, without: dict[str, str], calculon: Path | None) -> Iterator[AccuracyRow]:
    runs = []
    for row in pd.read_csv(folder / "measured.csv").to_dict("records"):
        config = read_config(folder / row["file"])
        device = dated(registry.device(row["device"]), row["file"])
        runs.append(_Run(MLPERF, row["system"], float(row["step_ms"]), config, device))
    return _priced(MLPERF, runs, without, calculon)


def _folder(folder: Path, registry: Registry, without: dict[str, str], calculon: Path | None) -> Iterator[AccuracyRow]:
    runs = []
    for row in pd.read_csv(folder / "measured.csv").to_dict("records"):
        if pd.isna(row["step_ms"]):
            continue
        try:
            config = read_config(folder / row["file"])
        except TaylorError as error:
            without[row["file"]] = str(error)
            continue
        for source, flags in STATED_BY_SOURCE.items():
            if row["source"].startswith(source):
                config = config.replace(rules=config.rules.replace(**flags))
        doubt = next((why for name, why in NOT_AS_STATED.items() if row["file"].startswith(name)), "")
        doubt = doubt or _cannot_start(config)
        device = dated(registry.device(row["device"]), row["source"])
        runs.append(_Run(row["set"], row["file"], float(row["step_ms"]), config, device, doubt))
    return _priced(folder.name, runs, without, calculon)


def _cards(file: Path, registry: Registry, without: dict[str, str]) -> Iterator[AccuracyRow]:
    steps, reasons = card_steps(file, registry)
    without.update(reasons)
    for step in steps:
        job = (step.model, step.strategy, step.rules, step.device)
        fold = FROM_BRIDGE + CARDS[_card(step.name)].model
        yield _row(CARD, CARD, step.name, job, (step.predicted_ms, step.measured_ms), fold=fold)


def _card(name: str) -> tuple[str, str]:
    model, _, item = name.partition(" ")
    return model, item


def _tables(file: Path) -> Iterator[AccuracyRow]:
    for step in published_steps(file):
        assert step.job is not None
        row = _row(
            TABLES, TABLES, f"{step.system} {step.model} {step.plan}", step.job, (step.predicted_ms, step.measured_ms),
            fold=FROM_BRIDGE + step.base,
        )  # fmt: skip
        yield row


def _above_peak(megatron: float | None, measured: float) -> str:
    """Reason against a row whose measured step is shorter than the device's peak allows; empty where it is not.

    `megatron` is the step by Megatron's FLOPs at `MEGATRON_MFU` of the peak, ms.
    """
    mfu = 0.0 if megatron is None else MEGATRON_MFU * megatron / measured
    return f"MFU {mfu:.2f} by its own model and batch" if mfu > 1 else ""


def _cannot_start(config: TrainingConfig) -> str:
    """Reason against a file that its launcher refuses; empty where it starts."""
    reasons = [f"cannot start: {misfit.field} {misfit.problem} ({misfit.source})" for misfit in config.misfits]
    return next(iter(reasons), "")
