"""Search for the order of a pipeline's tasks for one plan: the best order found, and the lower bound of all orders.

A job shop: the stages are machines, the tasks forwards, input gradients and weight gradients of every chunk and
micro-batch, and a stage's memory limits its live micro-batches. Known orders and rules are the start, moves of single
tasks improve them (`order_moves`), and with few tasks a branch and bound (`order_kernels`) finds the best order and
proves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.schedule import Schedule
from taylor.pipeline.words import LETTERS
from taylor.pipeline_solver.orders.order_problem import OrderProblem

FEW_TASKS = 400
"""Most tasks of all stages for branch and bound over orders."""

NODES = 400_000
"""Most partial orders that are examined."""

REMEMBERED_BYTES = 64 * 2**20
"""Memory for partial orders with which others are compared."""

MOVES = 40_000_000
"""Moves times tasks of a local search, some seconds."""

CLOSED = 1e-6
"""Relative gap below which an order is proven the best."""


IN_FLIGHT = (0.7, 0.85, 1.0, 1.25, 1.5)
"""Micro-batches in flight that rules try, as shares of those that every stage can keep in all its chunks."""


@dataclass(frozen=True)
class OrderFound:
    """The best order that was found for a plan.

    Parameters
    ----------
    words : tuple of str [S]
        The order of every stage (`pipeline.words`).
    step : float
        Its step time, in body-layer forwards.
    bound : float
        Lower bound of all orders of this plan.
    started_from : float
        Step time of the best given order.
    nodes : int
        Partial orders examined.
    """

    words: tuple[str, ...]
    step: float
    bound: float
    started_from: float
    nodes: int = 0

    @property
    def proven(self) -> bool:
        """Return whether no order takes less."""
        return self.step - self.bound <= CLOSED * abs(self.step)


def search_order(
    tasks: OrderProblem,
    known: Sequence[Schedule],
    *,
    seed: int = 0,
    moves: int = MOVES,
    nodes: int = NODES,
    to_beat: float = np.inf,
) -> OrderFound:
    """The best order of the tasks, no worse than the best known one.

    Parameters
    ----------
    known : sequence of Schedule
        Orders of the same tasks; those that do not fit the memory are ignored.
    moves : int
        Moves times tasks of the local search.
    nodes : int
        Most partial orders of the branch and bound; 0 skips it.
    to_beat : float
        Step time that an order must be shorter than; where the bound reaches it, none is.

    Raises
    ------
    ValueError
        If there is none: a micro-batch does not fit on a stage.
    """
    from taylor.pipeline_solver.orders import order_kernels, order_moves

    S, m, K = tasks.schedule.stages, tasks.schedule.micro_batches, tasks.durations.shape[0]
    size = K * m * S
    given = [(tasks.finish(words), words) for words in map(_blocks, known)]
    started = min((step for step, _ in given), default=np.inf)
    alone = _one_by_one(tasks)
    starts = [one for one in (*given, (tasks.finish(alone), alone)) if one[0] < np.inf]
    if tasks.finish(alone) == np.inf:
        raise ValueError("a stage's memory does not suffice for a micro-batch")
    starts += by_rules(tasks)
    best, words = min(starts, key=lambda one: one[0])
    salts = np.random.default_rng(seed).integers(1, 2**63, size=(K, m + 1, S), dtype=np.uint64)
    slots = max(1, REMEMBERED_BYTES // (8 * (S + size))) if nodes and size <= FEW_TASKS else 1

    def branch(limit: int, slots: int) -> tuple[float, NDArray[np.int16], int, int, float]:
        found: tuple[float, NDArray[np.int16], int, int, float] = order_kernels.branch_and_bound(
            tasks.arrays, tasks.precedence, salts, min(best, to_beat), limit, slots
        )
        return found

    bound = branch(0, 1)[4]
    rounds = moves // size
    for turn, (_, start) in enumerate(sorted(starts, key=lambda one: one[0])[:3]):
        if min(best, to_beat) <= bound * (1 + CLOSED):
            break
        better, step = order_moves.improve(
            start, tasks.arrays, rounds // 3, 0.002, bound * (1 + CLOSED), seed + turn
        )  # fmt: skip
        if step < best:
            best, words = step, better
    looked = 0
    if nodes and size <= FEW_TASKS and min(best, to_beat) > bound * (1 + CLOSED):
        step, found, end, looked, _ = branch(nodes, slots)
        if step < min(best, to_beat):
            best, words = step, found
        if end == order_kernels.FULL:
            bound = min(best, to_beat)
    return OrderFound(_words(words, K // 3), float(best), float(min(bound, best)), float(started), looked)


def by_rules(tasks: OrderProblem, *, few: bool = False) -> list[tuple[float, NDArray[np.int16]]]:
    """Step times of orders by rules that fit, each with its order: block of each task, int16 [S, tasks of a stage].

    Parameters
    ----------
    few : bool
        Only rules that limit the micro-batches in flight, some of those limits that suit any placement of chunks.
    """
    from taylor.pipeline_solver.orders import order_moves

    S, K, m = tasks.schedule.stages, tasks.durations.shape[0], tasks.schedule.micro_batches
    found = []
    # As many micro-batches as every stage can keep in all its chunks never block each other.
    kept = np.maximum(tasks.kept_mib.sum(axis=0), 1e-9)
    whole = np.clip(tasks.free_mib / kept, 1, m).min()
    for share in IN_FLIGHT[1:3] if few else IN_FLIGHT:
        for patience in (1.0,) if few else (0.0, 0.5, 1.0):
            in_flight = min(m, max(1, int(share * whole)))
            words, step = order_moves.dispatch(tasks.arrays, np.full(S, np.inf), in_flight, patience)
            if step < np.inf:
                found.append((step, words))
    if few:
        return found
    for ahead in sorted({1.0 * K * S, 1.0 * S * K / 3, 2.0 * S * K / 3 - 1, S * K / 2}):
        for patience in (0.0, 0.5, 1.0):
            for slope in (0.0, 1.0, 2.0):
                most = np.maximum(1.0, ahead - slope * np.arange(S))
                words, step = order_moves.dispatch(tasks.arrays, most, tasks.schedule.micro_batches, patience)
                if step < np.inf:
                    found.append((step, words))
    return found


def _one_by_one(tasks: OrderProblem) -> NDArray[np.int16]:
    """The order that needs the least memory: a micro-batch begins when the one before it is over."""
    S, m = tasks.schedule.stages, tasks.schedule.micro_batches
    turns = [[k for k, s in tasks.chain.tolist() if s == stage] * m for stage in range(S)]
    return np.array(turns, dtype=np.int16)


def _blocks(schedule: Schedule) -> NDArray[np.int16]:
    return schedule.blocks().astype(np.int16)


def _words(blocks: NDArray[np.int16], interleaves: int) -> tuple[str, ...]:
    return tuple(" ".join(f"{LETTERS[k // interleaves]}{k % interleaves}" for k in row) for row in blocks.tolist())
