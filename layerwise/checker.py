"""Time and memory of a layer-wise plan, found without any of the solver's code, in exact arithmetic.

The step is played task by task, and memory summed along every stage's task order. Only the costs of layers, the
order of tasks and what each waits for are shared with the solver.

A chunk's forward is that of its layers and of the changes of layout inside it and at its start, half of each change;
the other half is its backward's. The first chunk has the embedding too, the last one the head, whose layout its last
layer's output takes. Hidden states go on to the next stage in the last layer's layout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.measured.cost_table import CostProvider, CostRow, CostSetting, EndCost, Layout, hidden_mib
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerwisePlan
from taylor.layerwise.job import LayerwiseJob
from taylor.pipeline.dependencies import dependencies
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import BACKWARD, FORWARD, Schedule, ScheduleSpec

Array = NDArray[np.float64]
TOLERANCE_MIB = Fraction(1, 10**6)
"""Tolerance above a stage's limit, for decimal figures of a profile are not exact in binary."""
TIME_TOLERANCE = Fraction(1, 10**9)
"""Relative error allowed to a claimed step time."""


@dataclass(frozen=True)
class StageFigures:
    """One stage under a plan.

    Parameters
    ----------
    forward_s, backward_s : float
        Of one micro-batch, all chunks together, s.
    tail_s : float
        After its last task, s.
    peak_mib : float
        Memory at its worst moment, context included, MiB.
    layers : int
    """

    forward_s: float
    backward_s: float
    tail_s: float
    peak_mib: float
    layers: int


@dataclass(frozen=True)
class LayerwiseCheck:
    """Result of a check.

    Parameters
    ----------
    step_s : float
        Step time, s; nan where the plan is none.
    stages : tuple of StageFigures
    usable_mib : float
        Memory of a rank for states, activations and the context, MiB.
    faults : tuple of str
        One sentence a violation; empty when the plan is valid.
    """

    step_s: float
    stages: tuple[StageFigures, ...]
    usable_mib: float
    faults: tuple[str, ...]


def check_plan(
    job: LayerwiseJob, plan: LayerwisePlan, provider: CostProvider, *, claimed_s: float | None = None
) -> LayerwiseCheck:
    """Play a plan, sum its memory task by task, and report its faults.

    Parameters
    ----------
    claimed_s : float, optional
        The step time that somebody claims, s; it must agree to a relative 1e-9.

    Raises
    ------
    InputError
        When a cost is missing.
    """
    usable = provider.memory.usable_mib(job.limit_mib)
    faults = _shape_faults(job, plan)
    try:
        spec = ScheduleSpec(plan.schedule)
        schedule = build_schedule(spec, plan.stages, plan.interleaves, plan.micro_batches) if not faults else None
    except ValueError as error:
        faults, schedule = [*faults, f"{error}."], None
    if schedule is None:
        return LayerwiseCheck(math.nan, (), usable, tuple(faults))
    played = Played(job, plan, provider, schedule)
    step = played.step_s()
    peaks = [played.peak_mib(stage) for stage in range(plan.stages)]
    for stage, peak in enumerate(peaks):
        over = peak - Fraction(usable)
        if over > TOLERANCE_MIB:
            faults.append(
                f"Stage {stage} needs {float(peak):.1f} MiB at its worst moment, {float(over):.1f} MiB above the "
                f"{usable:.1f} MiB that it may take."
            )
    if claimed_s is not None and abs(Fraction(claimed_s) - step) > TIME_TOLERANCE * step:
        faults.append(f"The step takes {float(step):.9g} s, not {claimed_s:.9g} s.")
    figures = tuple(played.figures(stage) for stage in range(plan.stages))
    return LayerwiseCheck(float(step), figures, usable, tuple(faults))


def _shape_faults(job: LayerwiseJob, plan: LayerwisePlan) -> list[str]:
    faults = []
    if sum(plan.division) != len(plan.layers) or len(plan.layers) != job.layers:
        faults.append(
            f"The chunks have {sum(plan.division)} layers, the plan names {len(plan.layers)}, and the model has "
            f"{job.layers}."
        )
    if len(plan.division) % plan.interleaves or min(plan.division) < 1:
        faults.append(f"The division {list(plan.division)} leaves a chunk without layers, or a stage without chunks.")
    if faults:
        return faults
    if job.world % plan.stages:
        faults.append(f"{job.world} ranks make no {plan.stages} equal stages.")
    if plan.global_batch % plan.micro_batches:
        faults.append(f"The batch of {plan.global_batch} makes no {plan.micro_batches} equal micro-batches.")
    samples = plan.global_batch // plan.micro_batches
    named: list[tuple[str, EndStrategy]] = [("Embedding and head", plan.ends)]
    named += [(f"Layer {number}", layer) for number, layer in enumerate(plan.layers)]
    for name, strategy in named:
        if strategy.ranks * plan.stages != job.world:
            faults.append(f"{name} ({strategy.name}) fills {strategy.ranks} of {job.world // plan.stages} ranks.")
        elif samples % strategy.dp:
            faults.append(f"{name} ({strategy.name}) splits the {samples} samples of a micro-batch {strategy.dp} ways.")
    return faults


class Played:
    """One consistent plan on its schedule; every figure a fraction until it is reported."""

    def __init__(
        self, job: LayerwiseJob, plan: LayerwisePlan, provider: CostProvider, schedule: Schedule | None = None
    ) -> None:
        if schedule is None:
            spec = ScheduleSpec(plan.schedule)
            schedule = build_schedule(spec, plan.stages, plan.interleaves, plan.micro_batches)
        self.job, self.plan, self.provider, self.schedule = job, plan, provider, schedule
        self.setting = _setting(job, plan)
        ends = provider.ends(plan.ends, self.setting)
        stack = list(zip(job.kind_of, plan.layers, strict=True))
        costs = {each: provider.layer(*each, self.setting) for each in set(stack)}
        starts = [sum(plan.division[:k]) for k in range(len(plan.division) + 1)]
        self.chunks: list[list[CostRow]] = [
            [costs[each] for each in stack[start:end]] for start, end in zip(starts[:-1], starts[1:], strict=True)
        ]
        self.ends: list[EndCost | None] = [None] * len(self.chunks)
        self.ends[0] = ends.first
        if ends.last is not None:
            self.ends[-1] = ends.last
        self.times, self.lags = self._chunk_times()

    def _chunk_times(self) -> tuple[list[tuple[Fraction, Fraction]], list[Fraction]]:
        """Forward and backward of every chunk, and the transfer behind it."""
        times, lags = [], []
        end = Layout.of(self.plan.ends, self.job.sequence_parallel)
        layout = end
        for k, rows in enumerate(self.chunks):
            forward = sum((Fraction(row.forward_s) for row in rows), Fraction(0))
            backward = sum((Fraction(row.backward_s) for row in rows), Fraction(0))
            passed = [layout, *(row.layout for row in rows)] + [end] * (k == len(self.chunks) - 1)
            for before, after in zip(passed[:-1], passed[1:], strict=True):
                if before != after:
                    change = Fraction(self.provider.layout_change_s(before, after, self.setting)) / 2
                    forward, backward = forward + change, backward + change
            ends = self.ends[k]
            if ends is not None:
                forward, backward = forward + Fraction(ends.forward_s), backward + Fraction(ends.backward_s)
            layout = rows[-1].layout
            times.append((forward, backward))
            lags.append(Fraction(self.provider.handover_s(layout, self.setting)))
        return times, lags

    def _tail(self, stage: int) -> Fraction:
        rows = [row.tail_s for k in self._of(stage) for row in self.chunks[k]]
        ends = [each.tail_s for k in self._of(stage) if (each := self.ends[k]) is not None]
        return sum(map(Fraction, [*rows, *ends]), Fraction(0))

    def _of(self, stage: int) -> list[int]:
        """The stage's chunks, by their places in model order."""
        return [self.schedule.position(v, stage) for v in range(self.plan.interleaves)]

    def step_s(self) -> Fraction:
        """The step, played to its last task's end and the tails behind."""
        ended, unit = self._played()
        return max(Fraction(ends[-1], unit) + self._tail(s) for s, ends in enumerate(ended))

    def _played(self) -> tuple[list[list[int]], int]:
        """Every stage takes its tasks in order, each as soon as its input is there: when they end, over a unit."""
        stages, tasks = self.schedule.order.shape[:2]
        waits = dependencies(self.schedule)
        # All figures over one denominator: sums of whole numbers are exact and quick.
        unit = math.lcm(
            *(each.denominator for pair in self.times for each in pair), *(x.denominator for x in self.lags)
        )
        length = [[int(each * unit) for each in pair] for pair in self.times]
        lags = [int(lag * unit) for lag in self.lags]
        ended: list[list[int]] = [[] for _ in range(stages)]
        moved = True
        while moved:
            moved = False
            for s in range(stages):
                while len(ended[s]) < tasks:
                    at = len(ended[s])
                    needed = int(waits[s, at])
                    owner, place = divmod(needed, tasks)
                    if needed >= 0 and len(ended[owner]) <= place:
                        break
                    direction, v = (int(each) for each in self.schedule.order[s, at, :2])
                    k = self.schedule.position(v, s)
                    ready = 0
                    if needed >= 0:
                        ready = ended[owner][place]
                        if owner != s:
                            ready += lags[k - 1 if direction == FORWARD else k]
                    before = ended[s][-1] if at else 0
                    ended[s].append(max(before, ready) + length[k][direction])
                    moved = True
        return ended, unit

    def tasks(self) -> tuple[Array, Array]:
        """Start and end of every task, s, float64 [S, tasks]."""
        ended, unit = self._played()
        ends = np.array([[float(Fraction(each, unit)) for each in row] for row in ended])
        length = np.empty_like(ends)
        for s in range(len(ended)):
            for at, (direction, v, *_) in enumerate(self.schedule.order[s].tolist()):
                length[s, at] = float(self.times[self.schedule.position(v, s)][direction])
        return ends - length, ends

    def parts(self, stage: int) -> dict[str, float]:
        """Memory of a stage at its worst moment, MiB by category."""
        counts = max(self._moments(stage), key=lambda each: self._used(stage, each))
        parts = {"context": float(self.provider.memory.context_mib), "layers": 0.0, "embedding and head": 0.0,
                 "activations": 0.0}  # fmt: skip
        for k, count in zip(self._of(stage), counts, strict=True):
            for row in self.chunks[k]:
                parts["layers"] += row.states_mib
                parts["activations"] += count * row.activation_mib
            end = self.ends[k]
            if end is not None:
                parts["embedding and head"] += end.states_mib
                parts["activations"] += count * end.activation_mib
        working, buffer = float(self._working(stage)), float(self._buffer(stage))
        rounded = float(self.peak_mib(stage)) - sum(parts.values()) - working - buffer
        return parts | {"while a layer runs": working, "gathered hidden states": buffer, "rounding": rounded}

    def peak_mib(self, stage: int) -> Fraction:
        """Memory of a stage at its worst moment."""
        most = max(self._used(stage, counts) for counts in self._moments(stage))
        return most + self._working(stage) + self._buffer(stage)

    def _moments(self, stage: int) -> list[tuple[int, ...]]:
        """Micro-batches alive in each of the stage's chunks, behind each of its tasks, without repetition."""
        alive = dict.fromkeys(self._of(stage), 0)
        seen: dict[tuple[int, ...], None] = {}
        for direction, v, *_ in self.schedule.order[stage].tolist():
            alive[self.schedule.position(v, stage)] += 1 if direction == FORWARD else -(direction == BACKWARD)
            seen[tuple(alive.values())] = None
        return list(seen)

    def _working(self, stage: int) -> Fraction:
        """Most working memory of one layer's backward."""
        return max(Fraction(row.working_mib) for k in self._of(stage) for row in self.chunks[k])

    def alive_mib(self, stage: int, direction: int, v: int) -> float:
        """Memory that the start of a forward adds to a stage, and the end of a backward frees, MiB."""
        k = self.schedule.position(v, stage)
        end = self.ends[k]
        kept = sum(row.activation_mib for row in self.chunks[k]) + (end.activation_mib if end is not None else 0.0)
        return kept if direction == FORWARD else -kept

    def _used(self, stage: int, counts: Sequence[int]) -> Fraction:
        """States, and activations of `counts` micro-batches in the stage's chunks."""
        whole = math.ceil if self.job.whole_mib else Fraction
        ends = Fraction(self.provider.memory.context_mib)
        total = Fraction(0)
        for k, count in zip(self._of(stage), counts, strict=True):
            for row in self.chunks[k]:
                total += whole(Fraction(row.states_mib) + count * Fraction(row.activation_mib))
            end = self.ends[k]
            if end is not None:
                ends += Fraction(end.states_mib) + count * Fraction(end.activation_mib)
        return total + whole(ends)

    def _buffer(self, stage: int) -> Fraction:
        """Gathered hidden states, at the largest TP degree of the plan."""
        most = max(each.tp for each in (*self.plan.layers, self.plan.ends))
        if not self.job.global_buffer or most == 1:
            return Fraction(0)
        ranks = self.job.world // self.plan.stages
        share = Fraction(hidden_mib(self.setting.micro_batch, self.setting)) * most / ranks
        return Fraction(int(share)) if self.job.whole_mib else share

    def figures(self, stage: int) -> StageFigures:
        """The stage in floats."""
        chunks = self._of(stage)
        forward, backward = (float(sum((self.times[k][d] for k in chunks), Fraction(0))) for d in (0, 1))
        return StageFigures(
            forward,
            backward,
            float(self._tail(stage)),
            float(self.peak_mib(stage)),
            sum(len(self.chunks[k]) for k in chunks),
        )


def _setting(job: LayerwiseJob, plan: LayerwisePlan) -> CostSetting:
    return CostSetting(
        plan.stages, plan.global_batch, plan.micro_batches, job.tokens, job.hidden, job.precision,
        job.sequence_parallel, job.reduce_every_micro_batch, "gpipe" if plan.schedule == "gpipe" else "1f1b",
        job.kv_hidden,
    )  # fmt: skip
