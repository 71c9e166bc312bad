"""Rounds over the tree: the open nodes dealt out in shares, worked on by one process or several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Callable

import numpy as np

from taylor.base.errors import OutsideProgramError
from taylor.base.orphans import end_with_parent
from taylor.pipeline_solver.count_master import master_of
from taylor.pipeline_solver.cut_pool import PathCuts
from taylor.pipeline_solver.price_pool import PricePool
from taylor.pipeline_solver.probing import probe
from taylor.pipeline_solver.share_messages import (
    Best,
    Cuts,
    OpenNode,
    Origin,
    Priced,
    ProbeAnswer,
    ProbeTask,
    RootState,
    ShareAnswer,
    ShareTask,
)  # fmt: skip
from taylor.pipeline_solver.stopping import LpTrouble, OutOfTime, Stopper
from taylor.pipeline_solver.tree_search import Search

SHARES = 4
"""Shares that a round deals out, whatever the number of processes: the search, and so its result, is the same."""

PROBING_SHARES = 2
"""Shares that probe columns: what one has met makes its next LPs short, so more of them do more in all."""

SHARED_CUTS = 400
"""Cuts that a share tells the others after a round at most, the newest ones."""

DIED = "a solver process died: was it killed, or is the memory full? Fewer -workers take less"

POLL_SECONDS = 0.2
"""How often a waiting coordinator looks for an interrupt."""


class WorkerPool:
    """The shares of the tree, each with an LP of its own, warm from round to round.

    A round hands every share its part of the open nodes, the cuts and the best plan found by the
    others, and a budget of simplex iterations; it ends when all have answered. Nothing in it depends
    on the clock but the deadline, and nothing on the number of processes that do the work.

    Parameters
    ----------
    workers : int
        Processes; 1 works in this one. `iterations` counts the simplex iterations of all.
    """

    def __init__(self, workers: int, search: Search, seed: int) -> None:
        plans, master = search.plans, search.lp()
        state = RootState(
            cuts=Cuts.of(plans.pool, 0),
            best=Best.of(plans),
            prices=Priced.of(search.prices, 0),
            held=list(master.held),
            alive=search.alive,
            root_floor=search.root_floor,
            active=master.active,
            partial=master.partial,
        )
        origin = Origin(search.problem, search.columns, plans.paths.graph, search.gap, search.target)
        self.known = [plans.pool.size] * SHARES
        self.known_prices = len(search.prices)
        self.iterations = 0
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.own: list[_Share] = []
        seeds = [seed * 1009 + k + 1 for k in range(SHARES)]
        if workers == 1:
            self.own = [_Share(origin, state, own_seed, search.stopper) for own_seed in seeds]
            return
        # Forking is quick and shares the columns; where it is not safe or not there, start afresh.
        context: Any = multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")
        for k in range(min(workers, SHARES)):
            here, there = context.Pipe()
            process = context.Process(
                target=_work,
                daemon=True,
                args=(
                    there,
                    origin,
                    state,
                    seeds[k::workers],
                    search.stopper.deadline,
                    search.stopper.cutoff,
                    os.getpid(),
                ),
            )
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def round(self, search: Search, iteration_budget: int) -> None:
        """Deal out the open nodes, wait for all, gather what is left and what was learned.

        When interrupted, `search.open` holds every node that was dealt out.
        """
        plans = search.plans
        nodes = [
            OpenNode.of(bound, mask & search.alive)
            for bound, _, mask in sorted(search.open, key=lambda entry: entry[:2])
        ]
        tasks = [
            ShareTask(nodes[k::SHARES], Cuts.of(plans.pool, self.known[k]), Best.of(plans), iteration_budget)
            for k in range(SHARES)
        ]
        size = plans.pool.size
        answers: list[ShareAnswer] = self._answers(tasks, search)
        for answer in answers:
            answer.cuts.add_to(plans.pool)
            plans.take(answer.best.chosen, answer.best.step_time)
            search.nodes += answer.nodes
            search.foreign_solves += answer.solves
            self.iterations += answer.iterations
        self.known = [size] * SHARES
        # The old list stands until the new one is whole, so that every open node is found at any moment.
        columns = len(search.columns)
        search.replace_open(
            [
                (node.bound, node.mask(columns))
                for answer in answers
                for node in answer.open
                if node.bound < search.cutoff
            ]
        )
        if any(answer.out_of_time for answer in answers):
            raise OutOfTime
        trouble = next((answer.trouble for answer in answers if answer.trouble), "")
        if trouble:
            raise LpTrouble(trouble)

    def probe(self, search: Search, stages: Sequence[int]) -> None:
        """Let the shares probe the columns of some stages; what one has ruled out is gone for all."""
        pool, prices = search.plans.pool, search.prices
        alive, size, known = np.packbits(search.alive), pool.size, len(prices)
        tasks = [
            ProbeTask(
                tuple(stages[k::PROBING_SHARES]) if k < PROBING_SHARES else (),
                alive,
                Cuts.of(pool, self.known[k]),
                Priced.of(prices, self.known_prices),
                Best.of(search.plans),
            )
            for k in range(SHARES)
        ]
        answers: list[ProbeAnswer] = self._answers(tasks, search)
        for answer in answers:
            answer.cuts.add_to(pool)
            answer.prices.add_to(prices)
            search.foreign_solves += answer.solves
            self.iterations += answer.iterations
            search.alive &= np.unpackbits(answer.alive, count=len(search.alive)).astype(bool)
        self.known, self.known_prices = [size] * SHARES, known
        if any(answer.out_of_time for answer in answers):
            raise OutOfTime

    def _answers(self, tasks: Sequence[Any], search: Search) -> list[Any]:
        """The shares' answers in their order, whoever works on them."""
        if self.own:
            try:
                return [share.answer(task) for share, task in zip(self.own, tasks, strict=True)]
            except KeyboardInterrupt:
                for share in self.own:
                    search.plans.take(share.search.plans.best, share.search.plans.best_time)
                raise
        count = len(self.pipes)
        for k, pipe in enumerate(self.pipes):
            try:
                pipe.send(tasks[k::count])
            except ConnectionError:
                raise OutsideProgramError(DIED) from None
        answers: dict[int, Any] = {}
        for k, pipe in enumerate(self.pipes):
            answers |= zip(range(k, SHARES, count), _answer(pipe, search.stopper), strict=True)
        return [answers[k] for k in range(SHARES)]

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.terminate()
            process.join()


class _Share:
    """One share of the tree: a search with an LP of its own."""

    def __init__(self, origin: Origin, state: RootState, seed: int, stopper: Stopper) -> None:
        self.search = search = Search(
            origin.problem,
            origin.columns,
            PathCuts(origin.problem, origin.graph),
            origin.gap,
            seed,
            stopper,
            origin.target,
            PricePool(),
        )
        state.prices.add_to(search.prices)
        state.cuts.add_to(search.plans.pool)
        search.plans.take(state.best.chosen, state.best.step_time)
        search.alive, search.root_floor = state.alive.copy(), state.root_floor
        search.master = master = master_of(origin.columns, state.active, search.plans.pool)
        if master.partial != state.partial:
            master.rebuild(state.active, partial=state.partial)
        for cut in state.held:
            master.hold(cut)

    def answer(self, task: ShareTask | ProbeTask) -> ShareAnswer | ProbeAnswer:
        """Do what is asked."""
        return self.work(task) if isinstance(task, ShareTask) else self.probe(task)

    def probe(self, task: ProbeTask) -> ProbeAnswer:
        """Probe the columns of some stages."""
        search, plans, master = self.search, self.search.plans, self.search.lp()
        task.cuts.add_to(plans.pool)
        task.prices.add_to(search.prices)
        plans.take(task.best.chosen, task.best.step_time)
        search.alive &= np.unpackbits(task.alive, count=len(search.alive)).astype(bool)
        known, prices, solves = plans.pool.size, len(search.prices), master.solves
        iterations = master.iterations
        out_of_time = False
        try:
            probe(search, task.stages)
        except OutOfTime:
            out_of_time = True
        return ProbeAnswer(
            np.packbits(search.alive),
            Cuts.of(plans.pool, max(known, plans.pool.size - SHARED_CUTS)),
            Priced.of(search.prices, prices),
            master.solves - solves,
            master.iterations - iterations,
            out_of_time,
        )

    def work(self, task: ShareTask) -> ShareAnswer:
        """Work on some nodes with what the others have learned; what is left of them and what was learned here."""
        search, plans, master = self.search, self.search.plans, self.search.lp()
        task.cuts.add_to(plans.pool)
        plans.take(task.best.chosen, task.best.step_time)
        search.alive &= search.root_floor <= search.cutoff + 1e-9 * abs(search.cutoff)
        search.open.clear()
        for node in task.nodes:
            search.push(node.bound, node.mask(len(search.columns)))
        known, nodes, solves = plans.pool.size, search.nodes, master.solves
        iterations = master.iterations
        out_of_time, trouble = False, ""
        try:
            search.process(task.iteration_budget)
        except OutOfTime:
            out_of_time = True
        except LpTrouble as reason:
            trouble = str(reason)
        return ShareAnswer(
            open=[OpenNode.of(bound, mask) for bound, _, mask in search.open],
            cuts=Cuts.of(plans.pool, max(known, plans.pool.size - SHARED_CUTS)),
            best=Best.of(plans),
            nodes=search.nodes - nodes,
            solves=master.solves - solves,
            iterations=master.iterations - iterations,
            out_of_time=out_of_time,
            trouble=trouble,
        )


def _answer(pipe: Connection, stopper: Stopper) -> list[Any]:
    """What a worker sends; an interrupt ends the wait, a time limit is the worker's to notice."""
    try:
        while not pipe.poll(POLL_SECONDS):
            if stopper.interrupted:
                stopper.check()
        answers: list[Any] = pipe.recv()
    except (EOFError, ConnectionError):
        raise OutsideProgramError(DIED) from None
    return answers


def _work(
    pipe: Connection,
    origin: Origin,
    state: RootState,
    seeds: list[int],
    deadline: float | None,
    cutoff: Callable[[], float],
    coordinator: int,
) -> None:
    """A worker's life: rounds until the pipe closes or its coordinator, the process that started it, dies.

    Interrupts are the coordinator's business.
    """
    # A forked sibling may hold the pipe's other end open, so a dead coordinator does not close it.
    end_with_parent(coordinator)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shares = [_Share(origin, state, seed, Stopper(deadline, cutoff)) for seed in seeds]
    while True:
        try:
            tasks = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send([share.answer(task) for share, task in zip(shares, tasks, strict=True)])
