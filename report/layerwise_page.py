"""A layer-wise plan drawn: its step task by task, its memory over time and by category."""

from __future__ import annotations

import numpy as np

from taylor.cost_model.measured.cost_table import CostProvider
from taylor.cost_model.measured.layer_strategy import LayerwisePlan
from taylor.layerwise.checker import Played
from taylor.layerwise.job import LayerwiseJob
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.report.memory_parts import MemoryParts
from taylor.report.planned import hand_overs, without_dips
from taylor.report.timeline import OPTIMIZER, MemorySteps, Timeline


def layerwise_timeline(job: LayerwiseJob, plan: LayerwisePlan, provider: CostProvider, title: str) -> Timeline:
    """Every task of a legal plan, in ms, and the memory of every stage over time."""
    played = Played(job, plan, provider)
    schedule = played.schedule
    start, end = (1e3 * each for each in played.tasks())
    order = schedule.order.astype(np.int64)
    stages, tasks = start.shape
    stage = np.broadcast_to(np.arange(stages)[:, None], start.shape)
    columns = [stage, order[..., 0], order[..., 1], order[..., 2], order[..., 3]]
    fields = [np.ascontiguousarray(column).reshape(-1) for column in columns]
    begins, ends = start.reshape(-1), end.reshape(-1)
    tails = 1e3 * np.array([played.figures(s).tail_s for s in range(stages)])
    if tails.any():
        added = (np.arange(stages), np.full(stages, OPTIMIZER), *[np.full(stages, -1)] * 3)
        fields = [np.concatenate([field, more]) for field, more in zip(fields, added, strict=True)]
        begins = np.concatenate([begins, end[:, -1]])
        ends = np.concatenate([ends, end[:, -1] + tails])
    usable = float(provider.memory.usable_mib(job.limit_mib))
    memory = tuple(_memory(played, s, start[s], end[s], usable) for s in range(stages))
    return Timeline(
        title=title, row_names=tuple(f"stage {s}" for s in range(stages)), stage=fields[0], direction=fields[1],
        interleave=fields[2], micro_batch=fields[3], split=fields[4], start=begins, end=ends,
        flows=hand_overs(schedule), unit_ms=1.0, memory=memory, plan=_counts(plan),
    )  # fmt: skip


def layerwise_parts(job: LayerwiseJob, plan: LayerwisePlan, provider: CostProvider) -> MemoryParts:
    """Parts of every stage's memory at its worst moment."""
    played = Played(job, plan, provider)
    stages = [played.parts(s) for s in range(plan.stages)]
    parts = {name: [stage[name] for stage in stages] for name in stages[0]}
    return MemoryParts("as planned", {name: mib for name, mib in parts.items() if max(map(abs, mib)) >= 0.5})


def _memory(played: Played, stage: int, start: np.ndarray, end: np.ndarray, limit_mib: float) -> MemorySteps:
    """Activations are kept from their forward's start to their backward's end; the rest all along."""
    parts = played.parts(stage)
    states = sum(mib for name, mib in parts.items() if name != "activations")
    order = played.schedule.order[stage]
    counts = (order[:, 0] == FORWARD) | (order[:, 0] == BACKWARD)
    moment = np.where(order[:, 0] == FORWARD, start, end)[counts]
    change = np.array([played.alive_mib(stage, d, v) for d, v in order[counts, :2].tolist()])
    mib = states + np.cumsum(change)
    return without_dips(np.concatenate([[0.0], moment]), np.concatenate([[states], mib]), limit_mib)


def _counts(plan: LayerwisePlan) -> PipelinePlan:
    """Layers and recompute by chunk, for drawing."""
    shape = (plan.interleaves, plan.stages)
    layers = np.array(plan.division).reshape(shape)
    chunks = [plan.on_chunk(k) for k in range(len(plan.division))]
    again = np.array([sum(layer.recompute for layer in chunk) for chunk in chunks]).reshape(shape)
    return PipelinePlan({"body": _grid(layers)}, {FULL: _grid(again)} if again.any() else {})


def _grid(counts: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(each) for each in row) for row in counts)
