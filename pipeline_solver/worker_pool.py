"""Worker processes for the tree: rounds in which each takes a slice of the open nodes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline_solver.columns import ColumnSet
from pipeline_solver.event_graph import EventGraph
from pipeline_solver.master import Master
from pipeline_solver.problem import PipelineProblem
from pipeline_solver.stopping import OutOfTime, Stopper
from pipeline_solver.tree_search import SHARED_CUTS, Search

POLL_SECONDS = 0.2
ORPHAN_SECONDS = 5.0
"""How often a waiting coordinator looks for an interrupt, and a waiting worker for its coordinator."""


class WorkerPool:
    """Processes that each keep an LP of their own, warm from round to round.

    A round hands every worker its share of the open nodes, the cuts and the best plan found by the
    others, and a budget of simplex iterations; it ends when all have answered. Nothing in it depends
    on the clock but the deadline.
    """

    def __init__(self, workers: int, search: Search, deadline: float | None, seed: int) -> None:
        # Forking is quick and shares the columns; where it is not safe or not there, start afresh.
        context: Any = multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")
        self.shared = search.pool.size
        master = search.master
        assert master is not None
        held = list(master.held)
        state = {
            "counts": search.pool.counts[: self.shared].copy(), "constant": search.pool.constant[: self.shared].copy(),
            "held": held, "alive": search.alive, "root_floor": search.root_floor, "best": search.best,
            "best_time": search.best_time, "partial": master.partial, "active": master.active,
        }
        self.pipes: list[Connection] = []
        self.processes = []
        for k in range(workers):
            here, there = context.Pipe()
            process = context.Process(
                target=_work, daemon=True,
                args=(there, search.problem, search.columns, search.graph, search.gap, seed * 1009 + k + 1, deadline,
                      state),
            )
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)
        self.known = [self.shared] * workers
        self.solves = 0

    def round(self, search: Search, iteration_budget: int) -> None:
        """Deal out the open nodes, wait for all, gather what is left and what was learned.

        When interrupted, `search.open` holds every node that was dealt out.
        """
        nodes = sorted(search.open, key=lambda entry: entry[:2])
        n = len(search.columns)
        for k, pipe in enumerate(self.pipes):
            part = [(bound, np.packbits(mask)) for bound, _, mask in nodes[k :: len(self.pipes)]]
            fresh = slice(self.known[k], search.pool.size)
            pipe.send((part, search.pool.counts[fresh].copy(), search.pool.constant[fresh].copy(), search.best,
                       search.best_time, iteration_budget))
        answers = [_answer(pipe, search.stopper) for pipe in self.pipes]
        size = search.pool.size
        out_of_time = False
        for answer in answers:
            for counts, constant in zip(answer["counts"], answer["constant"], strict=True):
                search.pool.add(counts, float(constant))
            if answer["best"] is not None and answer["best_time"] < search.best_time:
                search.best, search.best_time = answer["best"], answer["best_time"]
            search.nodes += answer["nodes"]
            search.foreign_solves += answer["solves"]
            out_of_time |= answer["out_of_time"]
        self.known = [size] * len(self.pipes)
        # The old list stands until the new one is whole, so that every open node is found at any moment.
        search.replace_open([
            (bound, np.unpackbits(packed, count=n).astype(bool))
            for answer in answers for bound, packed in answer["open"] if bound < search.cutoff
        ])
        if out_of_time:
            raise OutOfTime

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.terminate()
            process.join()


def _answer(pipe: Connection, stopper: Stopper) -> dict[str, Any]:
    """What a worker sends; an interrupt ends the wait, a time limit is the worker's to notice."""
    try:
        while not pipe.poll(POLL_SECONDS):
            if stopper.interrupted:
                stopper.check()
        answer: dict[str, Any] = pipe.recv()
    except EOFError:
        raise RuntimeError("a solver process died; was it killed, or is the memory full?") from None
    return answer


def _work(
    pipe: Connection, problem: PipelineProblem, columns: ColumnSet, graph: EventGraph, gap: float, seed: int,
    deadline: float | None, state: dict[str, Any],
) -> None:
    """A worker's life: rounds until the pipe closes. Interrupts are the coordinator's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    search = Search(problem, columns, graph, gap, seed, Stopper(deadline))
    _add_cuts(search, state["counts"], state["constant"])
    search.alive, search.root_floor = state["alive"].copy(), state["root_floor"]
    search.best, search.best_time = state["best"], state["best_time"]
    search.master = master = Master(columns, state["active"], search.pool)
    if master.partial != state["partial"]:
        master.rebuild(state["active"], partial=state["partial"])
    for cut in state["held"]:
        master.hold(cut)
    coordinator = os.getppid()
    while True:
        try:
            # A forked sibling may hold the other end open, so a dead coordinator shows only as a new parent.
            while not pipe.poll(ORPHAN_SECONDS):
                if os.getppid() != coordinator:
                    return
            part, counts, constant, best, best_time, budget = pipe.recv()
        except (EOFError, OSError):
            return
        _add_cuts(search, counts, constant)
        if best_time < search.best_time:
            search.best, search.best_time = best, best_time
        search.alive &= search.root_floor <= search.cutoff + 1e-9 * abs(search.cutoff)
        search.open.clear()
        for bound, packed in part:
            search.push(bound, np.unpackbits(packed, count=len(columns)).astype(bool))
        known, nodes, solves = search.pool.size, search.nodes, master.solves
        out_of_time = False
        try:
            search.process(budget)
        except OutOfTime:
            out_of_time = True
        tail = slice(max(known, search.pool.size - SHARED_CUTS), search.pool.size)
        pipe.send({
            "open": [(bound, np.packbits(mask)) for bound, _, mask in search.open],
            "counts": search.pool.counts[tail].copy(), "constant": search.pool.constant[tail].copy(),
            "best": search.best, "best_time": search.best_time, "nodes": search.nodes - nodes,
            "solves": master.solves - solves, "out_of_time": out_of_time,
        })


def _add_cuts(search: Search, counts: NDArray[np.float64], constant: NDArray[np.float64]) -> None:
    for row, value in zip(counts, constant, strict=True):
        search.pool.add(row.copy(), float(value))
