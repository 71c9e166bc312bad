"""Evaluation of a given plan: step time, memory by stage, and the causes of the step's idle time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import inf

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.places import settled
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, LayerChoice, PipelineProblem, shared_mib
from taylor.pipeline_solver.model.solution import FEASIBLE, OVER_LIMIT, BubbleShares, Solution, Termination
from taylor.pipeline_solver.timing.durations import chunk_durations, graph_of, schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph


def evaluate(problem: PipelineProblem, plan: PipelinePlan) -> Solution:
    """Evaluate a plan in every figure of a solution, without a solve.

    Returns
    -------
    Solution
        With status `FEASIBLE`, or `OVER_LIMIT` with the stages over their limit in `message`; no bound.

    Raises
    ------
    ValueError
        If the plan has a recompute mode whose cost the problem lacks.
    """
    began = time.monotonic()
    known = {*problem.recompute_ratio, *problem.choices}
    unknown = [mode for mode in plan.recompute if mode not in known and plan.uses(mode)]
    if unknown:
        raise ValueError(f"the plan recomputes by {unknown[0]}, whose costs the problem does not know")
    peaks = peak_memory_mib(problem, plan)
    over = [
        f"stage {stage} needs {peak:.0f} MiB, {peak - limit:.0f} MiB above its limit of {limit:.0f} MiB"
        for stage, (peak, limit) in enumerate(zip(peaks, problem.limit_mib, strict=True))
        if peak > limit + MEMORY_TOLERANCE_MIB
    ]
    elsewhere = {
        "of the host": (host_memory_mib(problem, plan), problem.host_limit_mib),
        "of its lender": (lent_memory_mib(problem, plan), lent_limits_mib(problem)),
    }
    over += [
        f"stage {stage} needs {peak:.0f} MiB {where}, {peak - limit:.0f} MiB above its limit of {limit:.0f} MiB"
        for where, (needs, limits) in elsewhere.items()
        for stage, (peak, limit) in enumerate(zip(needs, limits or [inf] * problem.stages, strict=True))
        if peak > limit + MEMORY_TOLERANCE_MIB
    ]
    return Solution(
        OVER_LIMIT if over else FEASIBLE,
        Termination.NOT_SOLVED,
        plan=plan,
        objective=step_time(problem, plan),
        solver="evaluation",
        seconds=time.monotonic() - began,
        peak_memory_mib=peaks,
        memory_limit_mib=tuple(map(float, problem.limit_mib)),
        bubble=bubble_shares(problem, plan),
        message="; ".join(over),
    )


def step_time(problem: PipelineProblem, plan: PipelinePlan) -> float:
    """Step time of a plan, in body-layer forward times."""
    return graph_of(settled(problem, plan)).longest_path(chunk_durations(problem, plan))


def peak_memory_mib(problem: PipelineProblem, plan: PipelinePlan) -> tuple[float, ...]:
    """Peak memory of every stage, MiB [S]: static + layers + activations of live micro-batches, at the worst moment,
    and what it reserves for other stages."""
    states, kept = states_and_kept_mib(problem, plan)
    return _at_worst(problem, states + reserved_mib(problem, plan) if problem.lenders else states, kept)


def states_and_kept_mib(
    problem: PipelineProblem, plan: PipelinePlan
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Memory of a stage all through the step, float64 [S], and what a micro-batch keeps by chunk, float64 [V, S]."""
    states, kept = chunk_states_and_kept_mib(problem, plan)
    always = np.array(problem.static_mib, dtype=float) + shared_states_mib(problem, plan)
    return always + states.sum(axis=0), kept


def chunk_states_and_kept_mib(
    problem: PipelineProblem, plan: PipelinePlan
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """States of the layers, and what a micro-batch keeps, by chunk, both float64 [V, S]."""
    states, kept = np.zeros((2, problem.interleaves, problem.stages))
    by_kind = plan.recompute_by_kind()
    for kind in problem.kinds:
        if kind.name not in plan.layers:
            continue
        states += kind.layer_mib * np.array(plan.layers[kind.name])
        for mode, grid in by_kind[kind.name].items():
            if any(map(any, grid)):
                kept += kind.activation_mib[mode] * np.array(grid)
                if mode in problem.choices:
                    states += kind.choices[mode].states_mib * np.array(grid)
    return states, kept


def shared_states_mib(problem: PipelineProblem, plan: PipelinePlan) -> NDArray[np.float64]:
    """MiB that each stage holds once for the pinned kinds on it, float64 [S]."""
    pinned = [(kind, plan.layers[kind.name]) for kind in problem.pinned_kinds if kind.name in plan.layers]
    return np.array(
        [shared_mib(kind for kind, grid in pinned if any(row[s] for row in grid)) for s in range(problem.stages)]
    )


def host_memory_mib(problem: PipelineProblem, plan: PipelinePlan) -> tuple[float, ...]:
    """Peak host memory of one device of every stage, MiB [S]."""
    fixed, kept = np.zeros(problem.stages), np.zeros((problem.interleaves, problem.stages))
    for one, layers in _chosen(problem, plan):
        fixed += one.host_states_mib * layers.sum(axis=0)
        kept += one.host_mib * layers
    return _at_worst(problem, fixed, kept)


def lent_memory_mib(problem: PipelineProblem, plan: PipelinePlan) -> tuple[float, ...]:
    """Most that one device of every stage keeps on its lender's at once, MiB [S]."""
    kept = np.zeros((problem.interleaves, problem.stages))
    for one, layers in _chosen(problem, plan):
        kept += one.lent_mib * layers
    return _at_worst(problem, np.zeros(problem.stages), kept)


def reserved_mib(problem: PipelineProblem, plan: PipelinePlan) -> NDArray[np.float64]:
    """Memory that each stage reserves for what others keep on it, MiB, float64 [S]."""
    reserved = np.zeros(problem.stages)
    for lender, mib in zip(problem.lenders, lent_memory_mib(problem, plan) if problem.lenders else (), strict=True):
        if lender >= 0:
            reserved[lender] += mib
    return reserved


def lent_limits_mib(problem: PipelineProblem) -> tuple[float, ...]:
    """Limit of what each stage lends away, MiB [S]; empty without any, 0 where a stage has no lender."""
    limits = problem.lent_limit_mib or (inf,) * problem.stages * bool(problem.lenders)
    return tuple(0.0 if problem.lenders and problem.lenders[s] < 0 else limit for s, limit in enumerate(limits))


def _chosen(problem: PipelineProblem, plan: PipelinePlan) -> Iterator[tuple[LayerChoice, NDArray[np.int64]]]:
    """The choices of a plan's layers, each with its layers by chunk, int64 [V, S]."""
    by_kind = plan.recompute_by_kind() if problem.choices else {}
    for kind in problem.kinds:
        for name in problem.choices if kind.name in plan.layers else ():
            if name in by_kind[kind.name]:
                yield kind.choices[name], np.array(by_kind[kind.name][name])


def over_limits_mib(problem: PipelineProblem, plan: PipelinePlan) -> float:
    """Memory of all stages beyond their limits, of devices, bounded hosts and lenders, MiB."""
    needs = [(peak_memory_mib(problem, plan), problem.limit_mib)]
    if problem.bounds_host:
        needs.append((host_memory_mib(problem, plan), problem.host_limit_mib))
    if limits := lent_limits_mib(problem):
        needs.append((lent_memory_mib(problem, plan), limits))
    return sum(max(0.0, need - limit) for pair in needs for need, limit in zip(*pair, strict=True))


def link_shares(problem: PipelineProblem, plan: PipelinePlan, *, lent: bool) -> tuple[float, ...]:
    """Fraction of the step in which a link is busy in each direction, by stage [S]: to the lender, or to the host."""
    step = step_time(problem, plan)
    busy = np.zeros(problem.stages)
    for one, layers in _chosen(problem, plan):
        if bool(one.lent_mib) == lent:
            busy += problem.micro_batches * one.link_time * layers.sum(axis=0)
    return tuple((busy / step).tolist()) if step > 0 else (0.0,) * problem.stages


def _at_worst(problem: PipelineProblem, fixed: NDArray[np.float64], kept: NDArray[np.float64]) -> tuple[float, ...]:
    """Sum at the worst moment of fixed memory [S] and the memory that live micro-batches keep in each chunk [V, S]."""
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    return tuple(
        float(fixed[s] + (vectors @ kept[:, s]).max(initial=0.0)) for s, vectors in enumerate(alive_vectors(schedule))
    )


def bubble_shares(problem: PipelineProblem, plan: PipelinePlan) -> BubbleShares:
    """Attribute the part of the step in which an average stage does no first-time work, as fractions of the step.

    In sequence, with T the step and w an average stage's forward and backward work without recompute:
    `ideal` = (T0 − w) / T, T0 the step when that work lies evenly on all chunks and transfers take no
    time; `recompute` = (T1 − T0) / T, T1 the even step with the plan's recompute in it; `communication`
    = (T − T of the plan without lags, tail and what a pairing exposes) / T; `imbalance` is the rest. Where an
    uneven plan beats the even one (the imbalance would be negative) the difference goes off `ideal`, then `recompute`.
    The parts sum to `total` = (T − w) / T.
    """
    graph, schedule = graph_of(settled(problem, plan)), schedule_of(problem)
    without_lags = problem.replace(lag=0.0, lags=(), tail=(), pairing=None)
    same = problem.pairing is None and not graph.lags.any()
    free_graph = graph if same else EventGraph.from_schedule(schedule, 0.0)
    no_recompute = PipelinePlan(plan.layers, {})
    useful, real = chunk_durations(without_lags, no_recompute), chunk_durations(without_lags, plan)
    step = graph.longest_path(chunk_durations(problem, plan))
    if step <= 0:
        return BubbleShares(0.0, 0.0, 0.0, 0.0, 0.0)
    tasks = problem.micro_batches * schedule.spec.seq_splits
    work = float(useful[: len(useful) - problem.stages].sum()) * tasks / problem.stages
    even = free_graph.longest_path(_spread(problem, useful))
    even_recomputed = free_graph.longest_path(_spread(problem, real))
    level = free_graph.longest_path(real)
    total = (step - work) / step
    communication = (step - level) / step
    recompute = (even_recomputed - even) / step
    ideal = (even - work) / step
    imbalance = total - ideal - recompute - communication
    if imbalance < 0:
        ideal, imbalance = ideal + imbalance, 0.0
    if ideal < 0:
        recompute, ideal = recompute + ideal, 0.0
    return BubbleShares(total, ideal, imbalance, recompute, communication)


def _spread(problem: PipelineProblem, durations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Task times with every direction's total spread evenly over all chunks; tails are kept."""
    chunks = problem.stages * problem.interleaves
    tasks, tails = durations[: len(durations) - problem.stages], durations[len(durations) - problem.stages :]
    means = tasks.reshape(-1, chunks).mean(axis=1)
    return np.concatenate([np.repeat(means, chunks), tails])
