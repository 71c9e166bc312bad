"""Rounds over the tree: the open nodes dealt out in shares, worked on by one process or several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import OutsideProgramError
from taylor.pipeline_solver.columns import ColumnSet
from taylor.pipeline_solver.event_graph import EventGraph
from taylor.pipeline_solver.master import Master
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.stopping import OutOfTime, Stopper
from taylor.pipeline_solver.tree_search import SHARED_CUTS, LpTrouble, Search

SHARES = 4
"""Shares that a round deals out, whatever the number of processes: the search, and so its result, is the same."""

DIED = "a solver process died: was it killed, or is the memory full? Fewer -workers take less"

POLL_SECONDS = 0.2
ORPHAN_SECONDS = 5.0
"""How often a waiting coordinator looks for an interrupt, and a waiting worker for its coordinator."""


class WorkerPool:
    """The shares of the tree, each with an LP of its own, warm from round to round.

    A round hands every share its part of the open nodes, the cuts and the best plan found by the
    others, and a budget of simplex iterations; it ends when all have answered. Nothing in it depends
    on the clock but the deadline, and nothing on the number of processes that do the work.

    Parameters
    ----------
    workers : int
        Processes; 1 works in this one.
    """

    def __init__(self, workers: int, search: Search, seed: int) -> None:
        self.shared = search.pool.size
        master = search.master
        assert master is not None
        state = {
            "counts": search.pool.counts[: self.shared].copy(),
            "constant": search.pool.constant[: self.shared].copy(),
            "held": list(master.held),
            "alive": search.alive,
            "root_floor": search.root_floor,
            "best": search.best,
            "best_time": search.best_time,
            "partial": master.partial,
            "active": master.active,
        }
        self.known = [self.shared] * SHARES
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.own: list[_Share] = []
        seeds = [seed * 1009 + k + 1 for k in range(SHARES)]
        if workers == 1:
            self.own = [_Share(search, state, own_seed, search.stopper) for own_seed in seeds]
            return
        # Forking is quick and shares the columns; where it is not safe or not there, start afresh.
        context: Any = multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")
        origin = _Origin(search.problem, search.columns, search.graph, search.gap)
        for k in range(min(workers, SHARES)):
            here, there = context.Pipe()
            process = context.Process(
                target=_work, daemon=True, args=(there, origin, state, seeds[k::workers], search.stopper.deadline)
            )
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def round(self, search: Search, iteration_budget: int) -> None:
        """Deal out the open nodes, wait for all, gather what is left and what was learned.

        When interrupted, `search.open` holds every node that was dealt out.
        """
        nodes = sorted(search.open, key=lambda entry: entry[:2])
        n = len(search.columns)
        tasks = []
        for k in range(SHARES):
            part = [(bound, np.packbits(mask)) for bound, _, mask in nodes[k::SHARES]]
            fresh = slice(self.known[k], search.pool.size)
            tasks.append(
                (
                    part,
                    search.pool.counts[fresh].copy(),
                    search.pool.constant[fresh].copy(),
                    search.best,
                    search.best_time,
                    iteration_budget,
                )
            )
        size = search.pool.size
        out_of_time, trouble = False, ""
        answers = self._answers(tasks, search)
        for answer in answers:
            for counts, constant in zip(answer["counts"], answer["constant"], strict=True):
                search.pool.add(counts, float(constant))
            if answer["best"] is not None and answer["best_time"] < search.best_time:
                search.best, search.best_time = answer["best"], answer["best_time"]
            search.nodes += answer["nodes"]
            search.foreign_solves += answer["solves"]
            out_of_time |= answer["out_of_time"]
            trouble = trouble or answer["trouble"]
        self.known = [size] * SHARES
        # The old list stands until the new one is whole, so that every open node is found at any moment.
        search.replace_open(
            [
                (bound, np.unpackbits(packed, count=n).astype(bool))
                for answer in answers
                for bound, packed in answer["open"]
                if bound < search.cutoff
            ]
        )
        if out_of_time:
            raise OutOfTime
        if trouble:
            raise LpTrouble(trouble)

    def _answers(self, tasks: list[Any], search: Search) -> list[dict[str, Any]]:
        """The shares' answers in their order, whoever works on them."""
        if self.own:
            try:
                return [share.work(*task) for share, task in zip(self.own, tasks, strict=True)]
            except KeyboardInterrupt:
                for share in self.own:
                    if share.search.best is not None and share.search.best_time < search.best_time:
                        search.best, search.best_time = share.search.best, share.search.best_time
                raise
        count = len(self.pipes)
        for k, pipe in enumerate(self.pipes):
            try:
                pipe.send(tasks[k::count])
            except ConnectionError:
                raise OutsideProgramError(DIED) from None
        answers: list[dict[str, Any]] = [{}] * SHARES
        for k, pipe in enumerate(self.pipes):
            answers[k::count] = _answer(pipe, search.stopper)
        return answers

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.terminate()
            process.join()


@dataclass(frozen=True)
class _Origin:
    """What every share starts from and none changes."""

    problem: PipelineProblem
    columns: ColumnSet
    graph: EventGraph
    gap: float


class _Share:
    """One share of the tree: a search with an LP of its own."""

    def __init__(self, origin: Search | _Origin, state: dict[str, Any], seed: int, stopper: Stopper) -> None:
        self.search = search = Search(origin.problem, origin.columns, origin.graph, origin.gap, seed, stopper)
        _add_cuts(search, state["counts"], state["constant"])
        search.alive, search.root_floor = state["alive"].copy(), state["root_floor"]
        search.best, search.best_time = state["best"], state["best_time"]
        search.master = master = Master(origin.columns, state["active"], search.pool)
        if master.partial != state["partial"]:
            master.rebuild(state["active"], partial=state["partial"])
        for cut in state["held"]:
            master.hold(cut)

    def work(
        self,
        part: list[tuple[float, NDArray[np.uint8]]],
        counts: NDArray[np.float64],
        constant: NDArray[np.float64],
        best: NDArray[np.int64] | None,
        best_time: float,
        budget: int,
    ) -> dict[str, Any]:
        """Work on some nodes with what the others have learned; what is left of them and what was learned here."""
        search, master = self.search, self.search.master
        assert master is not None
        _add_cuts(search, counts, constant)
        if best_time < search.best_time:
            search.best, search.best_time = best, best_time
        search.alive &= search.root_floor <= search.cutoff + 1e-9 * abs(search.cutoff)
        search.open.clear()
        for bound, packed in part:
            search.push(bound, np.unpackbits(packed, count=len(search.columns)).astype(bool))
        known, nodes, solves = search.pool.size, search.nodes, master.solves
        out_of_time, trouble = False, ""
        try:
            search.process(budget)
        except OutOfTime:
            out_of_time = True
        except LpTrouble as reason:
            trouble = str(reason)
        tail = slice(max(known, search.pool.size - SHARED_CUTS), search.pool.size)
        return {
            "open": [(bound, np.packbits(mask)) for bound, _, mask in search.open],
            "counts": search.pool.counts[tail].copy(),
            "constant": search.pool.constant[tail].copy(),
            "best": search.best,
            "best_time": search.best_time,
            "nodes": search.nodes - nodes,
            "solves": master.solves - solves,
            "out_of_time": out_of_time,
            "trouble": trouble,
        }


def _answer(pipe: Connection, stopper: Stopper) -> list[dict[str, Any]]:
    """What a worker sends; an interrupt ends the wait, a time limit is the worker's to notice."""
    try:
        while not pipe.poll(POLL_SECONDS):
            if stopper.interrupted:
                stopper.check()
        answers: list[dict[str, Any]] = pipe.recv()
    except (EOFError, ConnectionError):
        raise OutsideProgramError(DIED) from None
    return answers


def _work(pipe: Connection, origin: _Origin, state: dict[str, Any], seeds: list[int], deadline: float | None) -> None:
    """A worker's life: rounds until the pipe closes. Interrupts are the coordinator's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shares = [_Share(origin, state, seed, Stopper(deadline)) for seed in seeds]
    coordinator = os.getppid()
    while True:
        try:
            # A forked sibling may hold the other end open, so a dead coordinator shows only as a new parent.
            while not pipe.poll(ORPHAN_SECONDS):
                if os.getppid() != coordinator:
                    return
            tasks = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send([share.work(*task) for share, task in zip(shares, tasks, strict=True)])


def _add_cuts(search: Search, counts: NDArray[np.float64], constant: NDArray[np.float64]) -> None:
    for row, value in zip(counts, constant, strict=True):
        search.pool.add(row.copy(), float(value))
