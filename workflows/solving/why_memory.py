"""Explains the peak memory of the plan in a file: its moment, its parts on each stage, and the largest levers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from taylor.base.errors import InputError
from taylor.cost_model.memory.activations import activation_bytes, attention_bytes, block_bytes
from taylor.cost_model.memory.breakdown import StageBreakdown
from taylor.cost_model.memory.statics import MIB
from taylor.cost_model.memory.workspaces import workspaces_mib
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import NONE, PipelinePlan, mode_title
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule
from taylor.register.model import kind_of
from taylor.workflows.showing.memory_levers import Lever, beyond_mib, breakdown_of, levers_of
from taylor.workflows.solving.measured_peaks import with_measured
from taylor.workflows.statement.options import FileJob
from taylor.workflows.statement.stated_file import StatedFile
from taylor.workflows.statement.towers import tower_mib

MOST_LEVERS = 3
"""Levers that a text lists."""


@dataclass(frozen=True)
class Moment:
    """Time of a stage's peak in its order of tasks.

    Parameters
    ----------
    micro_batch, interleave : int
        Backward that begins then.
    alive : float
        Micro-batches alive, in passes through the whole stage.
    phase : str
        ``end of the warm-up`` or ``steady state``: whether it is the stage's first backward.
    at_loss : bool
        The stage has the head, and its logits are what is largest.
    """

    micro_batch: int
    interleave: int
    alive: float
    phase: str
    at_loss: bool = False

    @property
    def sentence(self) -> str:
        """Moment in words."""
        what = "loss" if self.at_loss else "backward"
        chunk = f", virtual stage {self.interleave}" if self.interleave else ""
        return f"{what} of micro-batch {self.micro_batch}{chunk}, {self.phase}, {self.alive:g} alive"


@dataclass(frozen=True)
class Kept:
    """Activations that layers of one kind in one recompute mode keep at the peak.

    Parameters
    ----------
    parts : mapping of str to float
        By block where nothing is recomputed, MiB of all these layers; empty else.
    """

    kind: str
    mode: str
    layers: int
    each_mib: float
    mib: float
    parts: Mapping[str, float]


@dataclass(frozen=True)
class StageMemory:
    """Peak of one stage.

    Parameters
    ----------
    parts : mapping of str to float
        Memory by category, MiB.
    """

    stage: int
    moment: Moment
    peak_mib: float
    limit_mib: float
    parts: Mapping[str, float]
    kept: tuple[Kept, ...]


@dataclass(frozen=True)
class MemoryReasons:
    """Peak memory of a plan, explained.

    Parameters
    ----------
    fullest : int
        Stage with the least free memory, or the requested one: that of the levers.
    """

    file: Path
    stages: tuple[StageMemory, ...]
    fullest: int
    levers: tuple[Lever, ...]

    def to_dict(self) -> dict[str, Any]:
        """Reasons as plain data."""
        return {
            "file": str(self.file),
            "stages": [
                {
                    "stage": one.stage,
                    "peak_mib": round(one.peak_mib, 3),
                    "limit_mib": round(one.limit_mib, 3),
                    "moment": vars(one.moment) | {"sentence": one.moment.sentence},
                    "parts_mib": {name: round(mib, 3) for name, mib in one.parts.items()},
                    "kept": [vars(kept) | {"parts": dict(kept.parts)} for kept in one.kept],
                }
                for one in self.stages
            ],
            "fullest": self.fullest,
            "levers": [vars(lever) for lever in self.levers],
        }


def why_memory(job: FileJob, stage: int | None = None, folder: Path | None = None) -> MemoryReasons:
    """Explain the peak memory of the plan in a file, by the analytical model.

    Parameters
    ----------
    stage : int, optional
        Stage whose levers are listed; the fullest when omitted.
    folder : Path, optional
        Folder of the results, where measurements of the job are kept (`with_measured`).

    Raises
    ------
    InputError
        When the file cannot be read, has no plan, or no such stage.
    """
    job = replace(job, memory_file=None, dryrun=False, check=False)
    file = StatedFile.read(job).as_it_recomputes()
    config = file.running
    memory = file.memory_like(_ESTIMATE)
    file = with_measured(file, memory, folder)
    plan = config.plan or config.even_plan(config.strategy)
    count = config.strategy.pp
    if stage is not None and not 0 <= stage < count:
        cure = f"stages count from 0 to {count - 1}"
        raise InputError(f"names no stage of {count}", file=config.path, field="--stage", value=stage, cure=cure)
    limits = file.problem(memory).limit_mib
    parts = breakdown_of(config, plan)
    schedule = build_schedule(
        config.schedule_for(config.strategy.vpp), count, config.strategy.vpp, config.strategy.micro_batches
    )
    stages = tuple(_stage(file, plan, schedule, one, limits[one.stage]) for one in parts)
    fullest = min(stages, key=lambda one: one.limit_mib - one.peak_mib).stage if stage is None else stage
    levers = levers_of(config, plan, file.device, fullest, limits, file.learned)
    return MemoryReasons(config.path, stages, fullest, tuple(levers))


_ESTIMATE = MemoryProfile(0.0, 0.0, 0.0, 0.0, {}, {}, MemorySource.ESTIMATE)
"""Any profile of this source: `StatedFile.memory_like` makes the job's."""


def _stage(
    file: StatedFile, plan: PipelinePlan, schedule: Schedule, found: StageBreakdown, limit_mib: float
) -> StageMemory:
    config = file.running
    alive, moment = _worst(config, plan, schedule, found)
    workspaces = min(found.overhead, workspaces_mib(config.model, config.rules, file.cards[found.stage]))
    parts = {
        "weights": found.weights,
        "gradients": found.gradients,
        "optimizer states": found.optimizer,
        **{f"activations of {kind} layers": mib for kind, mib in found.activations.items() if mib},
        "logits and loss": found.logits,
        "transfers and gathered weights": found.buffers,
        "recompute and backward of one layer": found.workspace,
        "workspaces of GEMMs": workspaces,
        "runtime and communication": found.overhead - workspaces,
    }
    if beside := tower_mib(config, file.device, found.stage, alive):
        assert config.tower is not None
        spread = config.tower.spread_over(config.strategy.pp, config.strategy.vpp)
        parts["vision encoder, and the embedding behind it" if spread else "vision encoder"] = beside
    parts["measured beyond the model"] = beyond_mib(found, plan.stages, file.device, file.learned)
    return StageMemory(
        found.stage, moment, sum(parts.values()), limit_mib, parts, tuple(_kept(config, plan, found.stage, alive))
    )


def _chunk_mib(config: TrainingConfig, plan: PipelinePlan, stage: int) -> list[float]:
    """Activations that one micro-batch keeps in each chunk of a stage, MiB [vpp]."""
    result = [0.0] * plan.interleaves
    for run, modes in plan.recompute_by_kind().items():
        for mode, grid in modes.items():
            for v in range(plan.interleaves):
                if grid[v][stage]:
                    each = activation_bytes(config.model, kind_of(run), mode, config.strategy, config.rules)
                    result[v] += grid[v][stage] * float(each) / MIB
    return result


def _worst(
    config: TrainingConfig, plan: PipelinePlan, schedule: Schedule, found: StageBreakdown
) -> tuple[tuple[float, ...], Moment]:
    """Micro-batches alive by virtual stage when a stage keeps most for the first time, and that moment."""
    order = schedule.order[found.stage]
    release = WEIGHT_GRADIENT if (order[:, 0] == WEIGHT_GRADIENT).any() else BACKWARD
    change = np.zeros((len(order), plan.interleaves))
    change[np.arange(len(order)), order[:, 1]] = (order[:, 0] == FORWARD).astype(float) - (order[:, 0] == release)
    alive = np.cumsum(change, axis=0) / schedule.spec.seq_splits
    chunks = np.array(_chunk_mib(config, plan, found.stage))
    kept = alive @ chunks
    if not len(kept) or not chunks.any():
        kept = alive.sum(axis=1)
    at = int(np.argmax(kept >= kept.max() - 1e-6))
    later = [task for task in order[at:] if task[0] == BACKWARD]
    task = later[0] if later else order[-1]
    first = not (order[:at, 0] == BACKWARD).any()
    layers = np.array(plan.total_layers())[:, found.stage]
    passes = float(alive[at] @ layers / max(1, layers.sum()))
    moment = Moment(
        int(task[2]), int(task[1]), passes, "end of the warm-up" if first else "steady state", found.logits > 0
    )
    return tuple(float(each) for each in alive[at]), moment


def _kept(config: TrainingConfig, plan: PipelinePlan, stage: int, alive: tuple[float, ...]) -> list[Kept]:
    """Kept activations of a stage by kind and recompute mode."""
    found: dict[tuple[str, str], list[float]] = {}
    for run, modes in plan.recompute_by_kind().items():
        for mode, grid in modes.items():
            counts = found.setdefault((kind_of(run), mode), [0.0, 0.0])
            counts[0] += sum(grid[v][stage] for v in range(plan.interleaves))
            counts[1] += sum(grid[v][stage] * alive[v] for v in range(plan.interleaves))
    kept = []
    for (kind, mode), (layers, times) in found.items():
        if not layers:
            continue
        each = float(activation_bytes(config.model, kind, mode, config.strategy, config.rules)) / MIB
        parts = _blocks(config, kind, each, times) if mode == NONE else {}
        kept.append(Kept(kind, mode_title(mode) if mode != NONE else "all", int(layers), each, each * times, parts))
    return kept


def _blocks(config: TrainingConfig, kind: str, each_mib: float, times: float) -> dict[str, float]:
    """Parts of what layers without recompute keep: attention, MLP or experts, the rest (norms, other mixers)."""
    model, strategy, rules = config.model, config.strategy, config.rules
    layers = model.layers_of(kind)
    attention = sum(float(attention_bytes(model, one, strategy, rules)) for one in layers) / MIB
    block = sum(float(block_bytes(model, one, strategy, rules)) for one in layers) / MIB
    parts = {"attention": attention, "MLP or experts": block, "norms and the rest": each_mib - attention - block}
    return {name: times * mib for name, mib in parts.items() if mib > 0}
