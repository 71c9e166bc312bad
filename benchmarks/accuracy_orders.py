"""Measured differences between runs of one job: Primus' schedules, and recompute of single modules in Moonlight."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from taylor.base.errors import TaylorError
from taylor.cost_model.errors.known_error import NEIGHBOUR_ERROR
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.new_file import NewJob
from taylor.parsers.new_files import NEW_FILES
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.register.registry import Registry
from taylor.workflows.statement.planned_step import planned_step_ms

SCHEDULES = {
    "1f1b": "1f1b", "interleaved": "megatron-interleaved", "zbb": "zb-h1", "zero-bubble": "zb-h1", "zbv": "zbv",
    "zbv-formatted": "zbv",
}  # fmt: skip
"""Schedules by Primus' names (AMD-AGI/Primus fd1eeabb docs_deprecated/tech_blogs/primus_pipeline); v-half and v-min are
none of the product's."""

EQUAL = 0.01
"""Relative difference of two measured steps below which neither is the faster."""


@dataclass(frozen=True)
class _Job:
    model: str
    device: str
    strategy: Strategy


MICRO_BATCHES = 32
"""Micro-batches of one sample in the schedules' runs. Assumed: the source states none; its ratio of 1F1B to interleaved
1F1B is that of about 32 on eight stages."""

JOBS: Mapping[str, _Job] = {
    "llama2-7b 8xMI300": _Job("llama2-7b", "mi300x-192g", Strategy(1, 1, 8, micro_batches=MICRO_BATCHES)),
    "qwen3-235b 32xMI355 EP8": _Job(
        "qwen3-235b-a22b", "mi355x-288g", Strategy(8, 1, 4, 8, op=8, micro_batches=MICRO_BATCHES)
    ),
}


@dataclass(frozen=True)
class ScheduleRow:
    """One run: its job, schedule and virtual stages, measured and predicted step over the job's 1F1B; None where the
    product has no such schedule."""

    job: str
    schedule: str
    vpp: int
    measured: float
    predicted: float | None


@dataclass(frozen=True)
class RecomputeRow:
    """Cost of running modules again, ms: measured and predicted."""

    modules: str
    measured_ms: float
    predicted_ms: float

    @property
    def ratio(self) -> float:
        """Predicted over measured cost."""
        return self.predicted_ms / self.measured_ms


def schedule_rows(file: Path) -> list[ScheduleRow]:
    """Every run of the file, the steps as shares of the job's 1F1B."""
    with file.open(encoding="utf-8", newline="") as stream:
        runs = list(csv.DictReader(stream))
    plain = {run["job"]: float(run["tokens_s_device"]) for run in runs if run["schedule"] == "1f1b"}
    found: dict[str, float] = {}
    rows = []
    for run in runs:
        job, name, vpp = run["job"], run["schedule"], int(run["vpp"])
        step = _scheduled_ms(JOBS[job], SCHEDULES[name], vpp) if name in SCHEDULES else None
        if step is not None and name == "1f1b":
            found[job] = step
        measured = plain[job] / float(run["tokens_s_device"])
        rows.append(ScheduleRow(job, name, vpp, measured, None if step is None else step / found[job]))
    return rows


def _scheduled_ms(job: _Job, schedule: str, vpp: int) -> float | None:
    """Step of a job under a schedule, ms; None where it cannot run."""
    registry = Registry.load()
    device, model = registry.device(job.device), registry.model(job.model)
    split = schedule in ("zb-h1", "1f1b")
    strategy = job.strategy.replace(vpp=1 if split else max(vpp, 2))
    with tempfile.TemporaryDirectory() as folder:
        one = NEW_FILES["megatron"]
        path = Path(folder) / f"job{one.suffix}"
        path.write_text(one.text(NewJob(model, 4096, strategy.global_batch, strategy.world_size, 8)), encoding="utf-8")
        config = read_config(path)
    config = config.replace(strategy=strategy, plan=None, schedule=replace(config.schedule, name=schedule))
    try:
        return planned_step_ms(config, device)
    except (TaylorError, ValueError):
        return None


def pairs(rows: list[ScheduleRow]) -> tuple[int, int, int]:
    """Pairs of runs of one job in the measured order, called a tie (`NEIGHBOUR_ERROR`), and in the other order."""
    right, tie, wrong = 0, 0, 0
    for one, other in combinations([row for row in rows if row.predicted is not None], 2):
        if one.job != other.job or one.predicted is None or other.predicted is None:
            continue
        measured, predicted = one.measured / other.measured - 1, one.predicted / other.predicted - 1
        if abs(measured) < EQUAL or abs(predicted) < NEIGHBOUR_ERROR:
            tie += 1
        elif measured * predicted > 0:
            right += 1
        else:
            wrong += 1
    return right, tie, wrong


def recompute_rows(file: Path, script: Path) -> list[RecomputeRow]:
    """Every row of the file that recomputes, by the launch of the run without any."""
    device, text = Registry.load().device("h100-80g"), script.read_text(encoding="utf-8")
    with file.open(encoding="utf-8", newline="") as stream:
        runs = list(csv.DictReader(stream))
    whole = {run["modules"]: float(run["measured_ms"]) for run in runs}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.sh"

        def config(modules: str) -> TrainingConfig:
            flags = f"--recompute-granularity selective --recompute-modules {modules} --bf16" if modules else "--bf16"
            path.write_text(text.replace("--bf16", flags, 1), encoding="utf-8")
            return read_config(path)

        steps = {modules: planned_step_ms(config(modules), device) for modules in whole}
    return [
        RecomputeRow(modules, whole[modules] - whole[""], steps[modules] - steps[""]) for modules in whole if modules
    ]
