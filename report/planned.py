"""Timeline of a plan: the schedule simulated with the plan's durations, and the memory that it keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from taylor.dryrun.stage_memory import StageMemory
from taylor.pipeline.dependencies import dependencies
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule
from taylor.pipeline_solver.model.insertion import EncoderWork, Insertion
from taylor.pipeline_solver.model.places import settled
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.durations import chunk_durations, graph_of
from taylor.pipeline_solver.timing.evaluate import bubble_shares, reserved_mib, states_and_kept_mib
from taylor.report.host_link import host_transfers, summed_choices
from taylor.report.intervals import FloatArray
from taylor.report.timeline import OPTIMIZER, IntArray, MemorySteps, Timeline


def planned_timeline(problem: PipelineProblem, plan: PipelinePlan, title: str = "plan") -> Timeline:
    """Every task of a plan with its start and end, the memory of every stage over time, the bubble.

    Times are in units of one body layer's forward; ``unit_ms`` is the problem's. The end-of-step tail of a stage, where
    the problem has one, is a task of its own (`OPTIMIZER`), so that the last end is the step time.

    Raises
    ------
    ValueError
        When the plan does not have the problem's shape, or the schedule cannot be built.
    """
    if (plan.stages, plan.interleaves) != (problem.stages, problem.interleaves):
        raise ValueError(
            f"the plan is for {plan.stages} stages x {plan.interleaves} virtual stages, "
            f"the problem for {problem.stages} x {problem.interleaves}"
        )
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    durations = np.asarray(chunk_durations(problem, plan), dtype=np.float64)
    graph = graph_of(settled(problem, plan))
    start = np.asarray(graph.start_times(durations), dtype=np.float64)
    order = schedule.order.astype(np.int64)
    stage = np.broadcast_to(np.arange(problem.stages)[:, None], start.shape)
    of = graph.class_in_order
    end = start + durations[of]
    # The extra time of a backward with recompute is the recompute; it comes first.
    bare = chunk_durations(problem, replace(plan, recompute={}))
    recompute = np.where(order[..., 0] == BACKWARD, (durations - bare)[of], 0.0)
    memory = _memory(problem, plan, schedule, start, end)
    transfers = host_transfers(problem, plan, order, start, end)
    lent = host_transfers(problem, plan, order, start, end, lent=True)
    host = (
        ()
        if transfers is None
        else tuple(_host_memory(problem, plan, schedule, s, start[s], end[s]) for s in range(problem.stages))
    )
    columns = [stage, order[..., 0], order[..., 1], order[..., 2], order[..., 3]]
    fields = [np.ascontiguousarray(column).reshape(-1).astype(np.int64) for column in columns]
    starts, ends, recomputes = start.reshape(-1), end.reshape(-1), recompute.reshape(-1)
    flows = hand_overs(schedule)
    if any(problem.tail):
        last = end[:, -1]
        fields = [
            np.concatenate([field, added])
            for field, added in zip(
                fields,
                (
                    np.arange(problem.stages),
                    np.full(problem.stages, OPTIMIZER),
                    *[np.full(problem.stages, -1)] * 3,
                ),
                strict=True,
            )
        ]
        starts, ends = np.concatenate([starts, last]), np.concatenate([ends, last + np.asarray(problem.tail)])
        recomputes = np.concatenate([recomputes, np.zeros(problem.stages)])
    return Timeline(
        title=title,
        row_names=tuple(_row_name(problem, s) for s in range(problem.stages)),
        stage=fields[0],
        direction=fields[1],
        interleave=fields[2],
        micro_batch=fields[3],
        split=fields[4],
        start=starts,
        end=ends,
        recompute=recomputes,
        flows=flows,
        unit_ms=problem.unit_ms,
        memory=memory,
        host=host,
        transfers=transfers,
        lent=lent,
        bubble=bubble_shares(problem, plan),
        plan=plan,
    )


def inserted_timeline(
    problem: PipelineProblem, plan: PipelinePlan, work: EncoderWork, insertion: Insertion, title: str
) -> Timeline:
    """A plan of a language model with an encoder's micro-batches in its bubbles; its memory curves leave out what these
    keep."""
    alone = planned_timeline(problem, plan, title)
    names = [
        f"encoder {'forward' if run.direction == FORWARD else 'backward'} {run.micro_batch} ({run.pieces} layers)"
        for run in insertion.runs
    ]
    added = np.array(
        [[run.stage, run.direction, -1, run.micro_batch, -1] for run in insertion.runs], dtype=np.int64
    ).reshape(-1, 5)
    starts = np.array([run.start for run in insertion.runs])
    times = np.array([work.forward, work.backward])[added[:, 1]] * [run.pieces for run in insertion.runs]
    own = [alone.stage, alone.direction, alone.interleave, alone.micro_batch, alone.split]
    stage, direction, interleave, micro_batch, split = (
        np.concatenate([field, added[:, column]]) for column, field in enumerate(own)
    )
    # A stage's end-of-step work waits for the encoder's last backward.
    last = np.array([max([0.0, *(starts + times)[added[:, 0] == s]]) for s in range(problem.stages)])
    waits = np.where(
        alone.direction == OPTIMIZER, np.maximum(0.0, last[alone.stage] - alone.start - insertion.delay), 0.0
    )
    return replace(
        alone,
        stage=stage,
        direction=direction,
        interleave=interleave,
        micro_batch=micro_batch,
        split=split,
        start=np.concatenate([alone.start + insertion.delay + waits, starts]),
        end=np.concatenate([alone.end + insertion.delay + waits, starts + times]),
        recompute=np.concatenate([alone.recompute, np.zeros(len(starts))]),
        lane=np.zeros(0, dtype=np.int64),
        labels=(*alone.task_names(), *names),
        memory=tuple(replace(curve, time=curve.time + insertion.delay) for curve in alone.memory),
        host=(),
        transfers=None,
        lent=None,
        bubble=None,
    )


def _row_name(problem: PipelineProblem, stage: int) -> str:
    """Name of a stage, with its card and its slowdown against the device of the stated times, and chosen chunks."""
    slow = problem.pace[stage]
    beside = [problem.cards[stage]] if problem.cards else []
    beside += [f"{slow:.3g} x"] if slow != 1.0 else []
    chunks = [str(k) for k, s in enumerate(problem.schedule.stage_of) if s == stage]
    beside += [f"chunks {', '.join(chunks)}"] if chunks else []
    return f"stage {stage}" + (f" ({', '.join(beside)})" if beside else "")


def with_dryrun(timeline: Timeline, stages: Iterable[StageMemory]) -> Timeline:
    """Timeline of a plan with the memory that a dry-run of the same plan saw, task by task.

    The curve has a task's peak while it runs, and the live memory from its end on. A dry-run may end where nothing new
    can appear; later tasks are drawn as the last of their kind: the same rise while they run, the same change by their
    end.
    """
    curves = [MemorySteps(np.zeros(0), np.zeros(0))] * timeline.rows
    for memory in stages:
        row = np.flatnonzero((timeline.stage == memory.stage) & (timeline.direction <= WEIGHT_GRADIENT))
        tasks = row[np.argsort(timeline.start[row], kind="stable")].tolist()
        if not memory.moments or not tasks:
            continue
        times, levels = [], []
        rise_and_change: dict[tuple[int, int], tuple[float, float]] = {}
        live = memory.moments[0].live_mib
        for at, task in enumerate(tasks):
            kind = (int(timeline.direction[task]), int(timeline.interleave[task]))
            if at < len(memory.moments):
                moment = memory.moments[at]
                rise_and_change[kind] = (moment.peak_mib - live, moment.live_mib - live)
            rise, change = rise_and_change.get(kind, (0.0, 0.0))
            times += [float(timeline.start[task]), float(timeline.end[task])]
            levels += [live + rise, live + change]
            live += change
        limit = timeline.memory[memory.stage].limit_mib if timeline.memory else None
        curves[memory.stage] = without_dips(np.array(times), np.array(levels), limit)
    return replace(timeline, dryrun=tuple(curves) if any(len(curve.time) for curve in curves) else ())


def _memory(
    problem: PipelineProblem, plan: PipelinePlan, schedule: Schedule, start: FloatArray, end: FloatArray
) -> tuple[MemorySteps, ...]:
    """Memory of each stage over time: activations are kept from their forward's start to their backward's end."""
    states, kept = states_and_kept_mib(problem, plan)
    states = states + reserved_mib(problem, plan)
    kept = kept / problem.schedule.seq_splits
    return tuple(
        _over_time(schedule, s, (float(states[s]), kept[:, s]), start[s], end[s], problem.limit_mib[s])
        for s in range(problem.stages)
    )


def _host_memory(
    problem: PipelineProblem,
    plan: PipelinePlan,
    schedule: Schedule,
    stage: int,
    start: NDArray[np.float64],
    end: NDArray[np.float64],
) -> MemorySteps:
    """Memory over time that one device of a stage keeps on its host."""
    states = float(summed_choices(problem, plan, "host_states_mib")[:, stage].sum())
    kept = summed_choices(problem, plan, "host_mib")[:, stage] / problem.schedule.seq_splits
    limit = problem.host_limit_mib[stage] if problem.host_limit_mib else None
    return _over_time(schedule, stage, (states, kept), start, end, limit)


def _over_time(
    schedule: Schedule,
    stage: int,
    parts: tuple[float, FloatArray],
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    limit_mib: float | None,
) -> MemorySteps:
    """Constant memory, and the memory of each live micro-batch by virtual stage [V], over a stage's tasks."""
    constant, kept = parts
    direction, interleave = schedule.order[stage, :, 0], schedule.order[stage, :, 1]
    # Activations stay for the weight gradient where the schedule splits the backward.
    frees = WEIGHT_GRADIENT if (direction == WEIGHT_GRADIENT).any() else BACKWARD
    counts = (direction == FORWARD) | (direction == frees)
    moment = np.where(direction == FORWARD, start, end)[counts]
    change = (np.where(direction == FORWARD, 1.0, -1.0) * kept[interleave])[counts]
    mib = constant + np.cumsum(change)
    return without_dips(np.concatenate([[0.0], moment]), np.concatenate([[constant], mib]), limit_mib)


def without_dips(time: FloatArray, mib: FloatArray, limit_mib: float | None) -> MemorySteps:
    """Steps without those of no duration, except where one is a peak of its own."""
    instant = np.append(time[1:] == time[:-1], False)
    before, after = np.concatenate([mib[:1], mib[:-1]]), np.append(mib[1:], mib[-1])
    keep = ~instant | (mib > np.maximum(before, after))
    keep[0] = True
    return MemorySteps(time[keep], mib[keep], None if limit_mib is None else float(limit_mib))


def hand_overs(schedule: Schedule) -> IntArray:
    """Task pairs between which a micro-batch changes stage, int [k, 2], as indices into the flat order."""
    needs = dependencies(schedule).reshape(-1)
    tasks = schedule.order.shape[1]
    index = np.arange(len(needs))
    crossing = (needs >= 0) & (needs // tasks != index // tasks)
    return np.stack([needs[crossing], index[crossing]], axis=1)
