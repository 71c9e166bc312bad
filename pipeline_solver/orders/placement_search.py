"""Search for the stages of a plan's chunks together with the order of their tasks.

Stages between the first and the last are alike, so that a placement stands for all that exchange them: the first chunk
is on stage 0, the last one there or on the last stage, and the others are numbered as they are met. Few placements are
listed, each with its best order by branch and bound (`order_search`), which what is known cuts off. Of many, local
search takes those whose orders by rules are the shortest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.chunks import Placement
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import SEARCHED_FREE, Schedule, ScheduleSpec
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.orders.order_problem import OrderProblem
from taylor.pipeline_solver.orders.order_search import FEW_TASKS, MOVES, NODES, OrderFound, by_rules, search_order
from taylor.pipeline_solver.timing.durations import chunk_durations
from taylor.pipeline_solver.timing.evaluate import chunk_states_and_kept_mib

FEW_MOVES = 400_000
"""Moves times tasks of a local search over orders before a branch and bound that proves one in less time."""

FEW_PLACEMENTS = 1000
"""Most placements that are listed, each with its best order."""

STEPS, MOST_TURNS = 400_000_000, 2000
"""Placements of a local search times tasks times blocks of tasks, some ten seconds; and most moves."""

BEST_OF_TRIED = 3
"""Placements whose order is searched after a local search."""


@dataclass(frozen=True)
class ChunkTasks:
    """The tasks of one plan's chunks, in model order, before the chunks have stages.

    Parameters
    ----------
    stages, micro_batches : int
    durations : float64 [3, chunks]
        Time of a forward, an input gradient and a weight gradient.
    lag : float64 [chunks - 1]
        Transfer time between a chunk and the next where they are on different stages.
    states_mib, kept_mib : float64 [chunks]
        States of the layers, and memory of a micro-batch from its forward to its weight gradient.
    free_mib, tail : float64 [2, stages]
        Memory of the stages for both, and time after their last tasks: where the last chunk is on the last stage, and
        where it is on the first.
    """

    stages: int
    micro_batches: int
    durations: NDArray[np.float64]
    lag: NDArray[np.float64]
    states_mib: NDArray[np.float64]
    kept_mib: NDArray[np.float64]
    free_mib: NDArray[np.float64]
    tail: NDArray[np.float64]

    @classmethod
    def of(cls, problem: PipelineProblem, plan: PipelinePlan, ends: Sequence[PipelineProblem]) -> ChunkTasks:
        """The chunks of a plan.

        Parameters
        ----------
        ends : sequence of PipelineProblem
            The problem with the last chunk on the last stage, and with it on the first.
        """
        chunks = problem.placement.chunks
        at = tuple(np.array(side) for side in zip(*chunks, strict=True))
        S, V = problem.stages, problem.interleaves
        states, kept = chunk_states_and_kept_mib(problem, plan)
        times = chunk_durations(problem, plan)[: 3 * V * S].reshape(3, V, S)
        return cls(
            S,
            problem.micro_batches,
            times[:, at[0], at[1]],
            np.array(problem.boundary_lags),
            states[at],
            kept[at],
            np.array([np.array(one.limit_mib) - one.static_mib for one in ends]),
            np.array([one.tail or (0.0,) * S for one in ends]),
        )

    @property
    def interleaves(self) -> int:
        """Chunks of a stage."""
        return int(self.durations.shape[1]) // self.stages

    @property
    def are_alike(self) -> bool:
        """Return whether the stages but the first and the last one are alike, and with one end all others."""
        return all(
            bool((last[1:-1] == last[1:2]).all() and (first[1:] == first[1]).all())
            for last, first in (self.free_mib, self.tail)
        )

    def on(self, placement: Placement) -> OrderProblem:
        """The tasks with their chunks on these stages."""
        S, V = self.stages, self.interleaves
        stage_of = np.array(placement.stage_of)
        v, s = (np.array(side) for side in zip(*placement.chunks, strict=True))
        times, lag, kept = np.zeros((3, V, S)), np.zeros((3, V, S)), np.zeros((V, S))
        times[:, v, s], kept[v, s] = self.durations, self.kept_mib
        between = np.where(stage_of[1:] != stage_of[:-1], self.lag, 0.0)
        lag[0, v[1:], s[1:]], lag[1, v[:-1], s[:-1]] = between, between
        end = int(placement.stage_of[-1] == 0)
        free = self.free_mib[end] + MEMORY_TOLERANCE_MIB
        free = free - np.bincount(s, weights=self.states_mib, minlength=S)
        spec = ScheduleSpec(SEARCHED_FREE, stage_of=placement.stage_of)
        nowhere = np.zeros((S, 0, 4), dtype=np.int32)
        schedule = Schedule(spec, S, V, self.micro_batches, nowhere)
        return OrderProblem(schedule, times.reshape(3 * V, S), lag.reshape(3 * V, S), self.tail[end], kept, free)


@dataclass(frozen=True)
class PlacementFound:
    """The best placement that was found for a plan, and its order.

    Parameters
    ----------
    placement : Placement
    order : OrderFound
        Its bound is that of all placements and orders of this plan.
    tried : int
        Placements looked at.
    """

    placement: Placement
    order: OrderFound
    tried: int


def placements_of(stages: int, interleaves: int) -> Iterator[Placement]:
    """Every placement up to an exchange of like stages."""

    def further(taken: list[int], counts: list[int]) -> Iterator[Placement]:
        if len(taken) == stages * interleaves:
            yield numbered(taken)
            return
        met = sum(map(bool, counts))
        for s in range(min(met + 1, stages)):
            if counts[s] < interleaves:
                counts[s] += 1
                yield from further([*taken, s], counts)
                counts[s] -= 1

    return further([], [0] * stages)


def placements_in_all(stages: int, interleaves: int) -> float:
    """Number of the placements up to an exchange of stages."""
    chunks = stages * interleaves
    logs = math.lgamma(chunks + 1) - stages * math.lgamma(interleaves + 1) - math.lgamma(stages + 1)
    return math.exp(min(logs, 700.0))


def search_placement(
    tasks: ChunkTasks, known: Sequence[tuple[Placement, Schedule]], *, seed: int = 0
) -> PlacementFound:
    """The best placement of the chunks and order of their tasks, no worse than the best known one.

    Parameters
    ----------
    known : sequence of (Placement, Schedule)
        Placements with an order of their tasks; those that do not fit the memory are ignored.

    Raises
    ------
    ValueError
        If there is none: on every placement looked at, a micro-batch does not fit on some stage.
    """
    listed = placements_in_all(tasks.stages, tasks.interleaves) <= FEW_PLACEMENTS
    exact = listed and tasks.durations.size * tasks.micro_batches <= FEW_TASKS
    if listed:
        ranked = _ranked(tasks, [*(one for one, _ in known), *placements_of(tasks.stages, tasks.interleaves)])
        tried = len(ranked)
    else:
        folded = Placement.shaped(tasks.stages, tasks.interleaves, v_shape=True)
        ranked, tried = _walk(tasks, list(dict.fromkeys([*(one for one, _ in known), folded])), seed)
    best: PlacementFound | None = None
    bound = math.inf
    for n, (_, one) in enumerate(ranked):
        if not exact and n >= BEST_OF_TRIED and one not in {placed for placed, _ in known}:
            bound = 0.0
            continue
        to_beat = math.inf if best is None else best.order.step
        orders = [order for placed, order in known if placed == one]
        try:
            nodes, moves = (NODES // len(ranked), FEW_MOVES) if exact else (NODES, MOVES)
            found = search_order(tasks.on(one), orders, seed=seed, moves=moves, nodes=nodes, to_beat=to_beat)
        except ValueError:  # no micro-batch fits on some stage
            continue
        bound = min(bound, found.bound)
        if found.step < to_beat:
            best = PlacementFound(one, found, tried)
    if best is None:
        raise ValueError("on no placement a stage's memory suffices for a micro-batch")
    proven = exact and tasks.are_alike
    order = best.order
    least = min(bound, order.step) if proven else 0.0
    return PlacementFound(
        best.placement,
        OrderFound(order.words, order.step, max(least, _work_bound(tasks)), order.started_from, order.nodes),
        tried,
    )


def _work_bound(tasks: ChunkTasks) -> float:
    """Bound of all placements: the stages share the work, each from the earliest arrival of a micro-batch on."""
    m, S = tasks.micro_batches, tasks.stages
    first = np.concatenate([[0.0], np.cumsum(tasks.durations[0])])[:S]
    lags = np.concatenate([[0.0], np.cumsum(np.sort(tasks.lag))])[:S]
    return float((m * tasks.durations.sum() + (first + lags).sum()) / S + tasks.tail.min())


def _ranked(tasks: ChunkTasks, placements: Sequence[Placement]) -> list[tuple[float, Placement]]:
    """Placements by the step time of their shortest order by few rules."""
    return sorted(((_quick(tasks, one), one) for one in dict.fromkeys(placements)), key=lambda pair: pair[0])


def _quick(tasks: ChunkTasks, placement: Placement) -> float:
    problem = tasks.on(placement)
    if (problem.free_mib < problem.kept_mib.sum(axis=0)).any():
        return math.inf
    return min((step for step, _ in by_rules(problem, few=True)), default=math.inf)


def _walk(tasks: ChunkTasks, starts: Sequence[Placement], seed: int) -> tuple[list[tuple[float, Placement]], int]:
    """Local search from each of the starts: two chunks exchange stages, or those of a stretch turn around."""
    rng = np.random.default_rng(seed)
    # Fewer micro-batches, which fill and drain the stages, distinguish placements as well.
    tasks = replace(tasks, micro_batches=min(tasks.micro_batches, 2 * tasks.stages))
    each = tasks.durations.size**2 * tasks.micro_batches * max(1, len(starts))
    turns = min(MOST_TURNS, max(1, STEPS // each))
    seen = {one: _quick(tasks, one) for one in starts}
    for start in starts:
        here = start
        for _ in range(turns):
            moved = list(here.stage_of)
            i, j = sorted(rng.choice(len(moved), 2, replace=False).tolist())
            if rng.random() < 0.7:
                moved[i], moved[j] = moved[j], moved[i]
            else:
                moved[i : j + 1] = reversed(moved[i : j + 1])
            other = numbered(moved)
            if other not in seen:
                seen[other] = _quick(tasks, other)
            if seen[other] <= seen[here]:
                here = other
    return sorted(((step, one) for one, step in seen.items()), key=lambda pair: pair[0]), len(seen)


def numbered(stage_of: Sequence[int]) -> Placement:
    """The placement with its stages numbered as `placements_of` does."""
    first, last, stages = stage_of[0], stage_of[-1], len(set(stage_of))
    names = {first: 0} if first == last else {first: 0, last: stages - 1}
    free = iter(n for n in range(stages) if n not in names.values())
    for s in stage_of:
        if s not in names:
            names[s] = next(free)
    return Placement(tuple(names[s] for s in stage_of))
