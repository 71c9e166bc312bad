"""Profiles that nobody measured, from given times: for tests and demonstrations, and labelled as such."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.synthetic.files import (
    SyntheticKernel,
    SyntheticRank,
    write_ascend_rank,
    write_kineto_rank,
    write_label,
)
from taylor.base.errors import InputError
from taylor.cost_model.profile import TimeRatios
from taylor.parsers.profiles.kernels import COLLECTIVE, COMPUTE
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.dependencies import dependencies
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.profiling.pattern import Pass, charged_kinds, chunk_passes, task_order
from taylor.register.model import DENSE, MOE

BLOCK_SHARE, BLOCK_BACK_SHARE = 0.25, 0.3
"""Fractions of the shortest layer's forward and backward for the attention block before, and after, its kernel."""


TASK_NAMES = {FORWARD: "forward", BACKWARD: "backward", WEIGHT_GRADIENT: "weight gradient"}


@dataclass(frozen=True)
class SyntheticTimes:
    """True times of a synthetic run, ms.

    Parameters
    ----------
    forward_ms, backward_ms, recompute_ms : mapping of kind to float
        One layer's; recompute comes on top of the backward.
    head_ms, embedding_ms : float
        Forward; the backward takes `backward_ratio` times as long.
    transfer_ms : float
        From the end of a task to the start of the one on another stage that waits for it.
    tail_ms : float
        After the last task of a step.
    weight_share : float
        Fraction of a backward that is the weight gradient, where the schedule splits it.
    select_attention : bool
        Selective recompute is the attention kernel once more, right before its backward; else an operator of the MLP.
    """

    forward_ms: Mapping[str, float]
    backward_ms: Mapping[str, float]
    recompute_ms: Mapping[str, float]
    head_ms: float
    embedding_ms: float = 0.0
    backward_ratio: float = 2.0
    select_ratio: float = 0.33
    transfer_ms: float = 0.0
    tail_ms: float = 0.0
    weight_share: float = 0.5
    select_attention: bool = False

    @classmethod
    def from_ratios(cls, ratios: TimeRatios, plan: PipelinePlan, transfer_ms: float | None = None) -> SyntheticTimes:
        """Times of a plan's layer kinds under given ratios (with `unit_ms`)."""
        if ratios.unit_ms is None:
            raise ValueError("unit_ms must be known to write times")
        kinds = list(dict.fromkeys(charged_kinds(plan).values()))
        unit = ratios.unit_ms
        share = {kind: ratios.dense_forward if kind == DENSE and MOE in kinds else 1.0 for kind in kinds}
        return cls(
            {kind: unit * share[kind] for kind in kinds},
            {kind: unit * share[kind] * ratios.backward for kind in kinds},
            {kind: unit * share[kind] * ratios.recompute[FULL] for kind in kinds},
            head_ms=unit * ratios.head,
            embedding_ms=unit * ratios.embedding,
            backward_ratio=ratios.backward,
            select_ratio=ratios.recompute[SELECT],
            transfer_ms=unit * ratios.lag if transfer_ms is None else transfer_ms,
            tail_ms=unit * ratios.tail,
        )


@dataclass(frozen=True)
class Disturbance:
    """Disturbances of a run.

    Parameters
    ----------
    noise : float
        Standard deviation of every kernel's time, relative.
    straggler : int or None
        A micro-batch that takes `straggler_factor` times as long on every stage.
    launch_gap_us : float
        Idle time behind every kernel, mean of an exponential law.
    clock_skew_ms : float
        Ranks' clocks differ by up to this.
    """

    noise: float = 0.0
    straggler: int | None = None
    straggler_factor: float = 2.0
    launch_gap_us: float = 0.0
    clock_skew_ms: float = 5.0


@dataclass(frozen=True)
class SyntheticRun:
    """A folder of synthetic profiles and the times behind them."""

    folder: Path
    times: SyntheticTimes
    ranks: tuple[int, ...] = field(default=())


def write_synthetic_profiles(
    config: TrainingConfig,
    times: SyntheticTimes,
    folder: str | Path,
    *,
    form: str = "ascend",
    steps: int = 2,
    disturbance: Disturbance | None = None,
    seed: int = 0,
    stages: Sequence[int] | None = None,
    memory_mib: Mapping[int, tuple[float, float]] | None = None,
    trace_only: bool = False,
    task_ranges: bool = False,
) -> SyntheticRun:
    """Write the profiles that a run of a configuration with given times would leave, one rank a stage.

    Every task's kernels are drawn, the step is played over the schedule's event graph, and each stage's
    first rank is written. ``SYNTHETIC.txt`` in the folder and marks in the files say that nothing was
    measured.

    Parameters
    ----------
    form : str
        ``ascend`` or ``kineto``.
    stages : sequence of int, optional
        Stages written; all when left out.
    memory_mib : mapping of stage to (static, peak), optional
        Written as memory_record.csv (Ascend).
    trace_only : bool
        Write trace_view.json instead of kernel_details.csv (Ascend).
    task_ranges : bool
        Name the tasks by ranges, and leave attention without a name of its own (Kineto).

    Raises
    ------
    InputError
        When the configuration does not settle its layers, or a file cannot be written.
    """
    if config.plan is None:
        raise InputError("does not settle its layers and recompute", file=config.path)
    disturbance = disturbance or Disturbance()
    generator = np.random.default_rng(seed)
    schedule = task_order(config)
    tasks = _Tasks(schedule, config.plan, times)
    ranks: dict[int, SyntheticRank] = {
        stage: SyntheticRank(
            stage * (config.strategy.world_size // config.strategy.pp),
            int(generator.uniform(0.0, 1e6 * disturbance.clock_skew_ms)),
            [],
        )
        for stage in range(schedule.stages)
    }
    begin = 0.0
    for step in range(steps):
        begin = _play(schedule, tasks, times, disturbance, generator, begin, step, ranks) + times.tail_ms + 0.1
    target = Path(folder)
    write_label(target, config.path.name, times)
    written = []
    for stage in range(schedule.stages) if stages is None else stages:
        rank = ranks[stage]
        if form == "kineto":
            write_kineto_rank(target, rank, task_ranges=task_ranges)
        elif form == "ascend":
            write_ascend_rank(target, rank, memory_mib.get(stage) if memory_mib else None, trace_only=trace_only)
        else:
            raise ValueError(f"form must be ascend or kineto, found {form}")
        written.append(rank.rank)
    return SyntheticRun(target, times, tuple(written))


_Kernel = tuple[str, float, int]
"""(type, ms, what it does)."""

_BEFORE = (("RmsNorm", 0.15), ("MatMulV3", 0.6), ("RotaryMul", 0.25))
_ATTENTION = (
    ("FlashAttentionScore", 0.5),
    ("MatMulV3", 0.2),
    ("hcom_allReduce_", 0.15),
    ("Add", 0.05),
    ("RmsNorm", 0.1),
)
_MLP = {
    DENSE: (("MatMulV3", 0.4), ("SwiGlu", 0.1), ("MatMulV2", 0.35), ("hcom_allReduce_", 0.15)),
    MOE: (
        ("MoeGatingTopKSoftmax", 0.05),
        ("hcom_alltoallv_", 0.2),
        ("GroupedMatmul", 0.3),
        ("SwiGlu", 0.05),
        ("GroupedMatmul", 0.2),
        ("hcom_alltoallv_", 0.2),
    ),
}
_BACK_AFTER = (("FlashAttentionScoreGrad", 0.5), ("RotaryMulGrad", 0.1), ("MatMulV2", 0.3), ("RmsNormGrad", 0.1))
_BACK_MLP = (("SwiGluGrad", 0.1), ("MatMulV2", 0.4), ("hcom_allReduce_", 0.1), ("MatMulV2", 0.2), ("RmsNormGrad", 0.2))
_HEAD = (("RmsNorm", 0.05), ("MatMulV3", 0.7), ("CrossEntropyLoss", 0.25))
_BACK_HEAD = (("CrossEntropyLossGrad", 0.25), ("MatMulV2", 0.7), ("RmsNormGrad", 0.05))
_EMBEDDING, _BACK_EMBEDDING = (("GatherV3", 1.0),), (("EmbeddingDenseGrad", 1.0),)
_WEIGHT = (("MatMulV3", 0.7), ("Add", 0.3))


class _Tasks:
    """Kernels of every kind of task, before any disturbance."""

    def __init__(self, schedule: Schedule, plan: PipelinePlan, times: SyntheticTimes) -> None:
        self._schedule, self._times = schedule, times
        self._weights = schedule.spec.traits.split_backward
        kinds = list(times.forward_ms)
        self._before = BLOCK_SHARE * min(times.forward_ms[kind] for kind in kinds)
        kept = 1.0 - times.weight_share if self._weights else 1.0
        self._kept = kept
        self._back_after = BLOCK_BACK_SHARE * kept * min(times.backward_ms[kind] for kind in kinds)
        self._again = min(times.recompute_ms[kind] / times.forward_ms[kind] for kind in kinds) * self._before
        ends = schedule.chunk_at(0), schedule.chunk_at(schedule.chunks - 1)
        self.kernels = {
            (direction, v, stage): [
                (name, ms / schedule.spec.seq_splits, role)
                for name, ms, role in self._task(
                    chunk_passes(plan, v, stage), direction, (v, stage) == ends[0], (v, stage) == ends[1]
                )
            ]
            for direction in range(3 if self._weights else 2)
            for v in range(schedule.interleaves)
            for stage in range(schedule.stages)
        }

    def _task(self, passes: list[Pass], direction: int, first: bool, last: bool) -> list[_Kernel]:
        times, kernels = self._times, []
        beta, weight = times.backward_ratio, times.weight_share if self._weights else 0.0
        if direction == FORWARD:
            kernels += _piece(_EMBEDDING, times.embedding_ms if first else 0.0)
            for kind, _ in passes:
                kernels += self._forward(kind, self._before, times.forward_ms[kind])
            kernels += _piece(_HEAD, times.head_ms if last else 0.0)
        elif direction == WEIGHT_GRADIENT:
            kernels += _piece(_WEIGHT, weight * beta * times.head_ms if last else 0.0)
            for kind, _ in passes:
                kernels += _piece(_WEIGHT, weight * times.backward_ms[kind])
            kernels += _piece(_WEIGHT, weight * beta * times.embedding_ms if first else 0.0)
        elif direction == BACKWARD:
            kernels += _piece(_BACK_HEAD, self._kept * beta * times.head_ms if last else 0.0)
            for kind, mode in reversed(passes):
                if mode == FULL:
                    kernels += self._forward(kind, self._again, times.recompute_ms[kind])
                select_ms = times.select_ratio * times.forward_ms[kind] if mode == SELECT else 0.0
                if not times.select_attention:
                    kernels += _piece((("SwiGlu", 1.0),), select_ms)
                kernels += _piece(_BACK_MLP, self._kept * times.backward_ms[kind] - self._back_after)
                if times.select_attention:
                    kernels += _piece((("FlashAttentionScore", 1.0),), select_ms)
                kernels += _piece(_BACK_AFTER, self._back_after)
            kernels += _piece(_BACK_EMBEDDING, self._kept * beta * times.embedding_ms if first else 0.0)
        return kernels

    def _forward(self, kind: str, before: float, whole: float) -> list[_Kernel]:
        rest = whole - before
        mlp = _MLP.get(kind, _MLP[DENSE])
        return _piece(_BEFORE, before) + _piece(_ATTENTION, 0.4 * rest) + _piece(mlp, 0.6 * rest)


def _piece(parts: Sequence[tuple[str, float]], ms: float) -> list[_Kernel]:
    if not ms:
        return []
    return [(name, share * ms, COLLECTIVE if name.startswith("hcom") else COMPUTE) for name, share in parts]


def _play(
    schedule: Schedule,
    tasks: _Tasks,
    times: SyntheticTimes,
    disturbance: Disturbance,
    generator: np.random.Generator,
    begin: float,
    step: int,
    ranks: Mapping[int, SyntheticRank],
) -> float:
    """Play one step from `begin` (ms) and add its kernels to the ranks; returns its end (ms)."""
    drawn = [
        [
            _disturbed(tasks.kernels[d, v, stage], micro_batch, disturbance, generator)
            for d, v, micro_batch, _ in schedule.order[stage].tolist()
        ]
        for stage in range(schedule.stages)
    ]
    lengths = np.array([[float(times_of.sum()) for times_of in row] for row in drawn])
    starts = _start_times(schedule, lengths, times.transfer_ms) + begin
    ends = starts + lengths
    needs = dependencies(schedule)
    per_stage = lengths.shape[1]
    for stage, rank in ranks.items():
        posted = begin
        for index, (direction, v, _, _) in enumerate(schedule.order[stage].tolist()):
            need = int(needs[stage, index])
            if need >= 0 and need // per_stage != stage:
                arrival = float(ends.flat[need]) + times.transfer_ms
                asked = min(posted, arrival - times.transfer_ms)
                rank.kernels.append(SyntheticKernel("hcom_receive_", asked, arrival - asked, step, True))
            at = float(starts[stage, index])
            kernels = tasks.kernels[direction, v, stage]
            for (name, _, role), (length, gap) in zip(kernels, drawn[stage][index], strict=True):
                rank.kernels.append(SyntheticKernel(name, at, float(length), step, role == COLLECTIVE))
                at += float(length + gap)
            posted = float(ends[stage, index])
            rank.tasks.append((TASK_NAMES[direction], float(starts[stage, index]), posted))
            if direction != WEIGHT_GRADIENT and _leaves(schedule, direction, v, stage):
                rank.kernels.append(SyntheticKernel("hcom_send_", posted, times.transfer_ms, step, True))
        if times.tail_ms:
            half = 0.5 * times.tail_ms
            rank.kernels.append(SyntheticKernel("hcom_reduceScatter_", posted, half, step, True))
            rank.kernels.append(SyntheticKernel("ApplyAdamW", posted + half, half, step, False))
    return float(ends.max())


def _disturbed(
    kernels: Sequence[_Kernel], micro_batch: int, disturbance: Disturbance, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Length and idle time behind it of each kernel, ms, float64 [n, 2]."""
    lengths = np.array([ms for _, ms, _ in kernels])
    if disturbance.noise:
        lengths = lengths * np.maximum(generator.normal(1.0, disturbance.noise, len(lengths)), 0.05)
    if disturbance.straggler == micro_batch:
        lengths = lengths * disturbance.straggler_factor
    gap_ms = disturbance.launch_gap_us / 1e3
    gaps = generator.exponential(gap_ms, len(lengths)) if gap_ms else np.zeros(len(lengths))
    return np.stack((lengths, gaps), axis=1)


def _start_times(schedule: Schedule, lengths: NDArray[np.float64], lag: float) -> NDArray[np.float64]:
    """Start of every task when each has a length of its own: the event graph with a class for every task."""
    graph = EventGraph.from_schedule(schedule, lag)
    durations = np.empty(lengths.size + schedule.stages)
    durations[graph.place.reshape(-1) - 1] = lengths.reshape(-1)
    durations[lengths.size :] = 0.0
    return replace(graph, task_class=np.arange(lengths.size, dtype=np.int32)).start_times(durations)


def _leaves(schedule: Schedule, direction: int, v: int, stage: int) -> bool:
    """Return whether a task's output goes to another stage."""
    place = schedule.position(v, stage) + (1 if direction == FORWARD else -1)
    return 0 <= place < schedule.chunks and schedule.chunk_at(place)[1] != stage
