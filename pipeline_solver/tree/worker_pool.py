"""Rounds over the tree: the open nodes dealt out in subtree batches, processed by one process or several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Callable

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import OutsideProgramError
from taylor.base.isolated import isolate_processes
from taylor.base.orphans import end_with_parent
from taylor.pipeline_solver.bounds.count_master import CountMaster, master_of
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.master import Master
from taylor.pipeline_solver.bounds.price_pool import PricePool
from taylor.pipeline_solver.model.stopping import LpTrouble, OutOfTime, Stopper
from taylor.pipeline_solver.tree.choice_walk import ChoiceWalk
from taylor.pipeline_solver.tree.enumeration import Remaining
from taylor.pipeline_solver.tree.probing import probe
from taylor.pipeline_solver.tree.share_messages import (
    Best,
    Cuts,
    EnumerationAnswer,
    EnumerationTask,
    News,
    OpenNode,
    Origin,
    Priced,
    ProbeAnswer,
    ProbeTask,
    RootState,
    ShareAnswer,
    ShareTask,
    unpacked,
)  # fmt: skip
from taylor.pipeline_solver.tree.tree_search import Search

DIED = "a solver process died: was it killed, or is the memory full? Fewer -workers take less"

POLL_SECONDS = 0.2
"""Seconds between a waiting coordinator's checks for an interrupt."""


class WorkerPool:
    """The subtree batches, each with a separate LP, warm from round to round.

    A round sends every batch its part of the open nodes, the others' cuts and best plan, and a budget of simplex
    iterations; it ends when all have answered. Only the deadline depends on the clock, and nothing on the number of
    processes.

    Parameters
    ----------
    workers : int
        Processes; 1 works in this one. `iterations` counts the simplex iterations of all.
    """

    def __init__(self, workers: int, search: Search, seed: int) -> None:
        plans, master = search.plans, search.lp()
        batches = self.batches = search.params.tree.batches
        state = RootState(
            cuts=Cuts.of(plans.pool, 0),
            best=Best.of(plans),
            prices=Priced.of(search.prices, 0),
            kept=list(master.kept),
            alive=search.alive,
            root_floor=search.root_floor,
            active=master.active,
            partial=master.partial,
        )
        origin = Origin(search.problem, search.columns, plans.paths.graph, search.gap, search.target, search.params)
        self.known = [plans.pool.size] * batches
        self.known_prices = len(search.prices)
        self.iterations = 0
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.own: list[_Share] = []
        seeds = [seed * 1009 + k + 1 for k in range(batches)]
        if workers == 1:
            self.own = [_Share(origin, state, own_seed, search.stopper) for own_seed in seeds]
            return
        isolate_processes()
        # Forking is quick and shares the columns; where it is unsafe or unavailable, start a new process.
        context: Any = multiprocessing.get_context("fork" if sys.platform.startswith("linux") else "spawn")
        for k in range(min(workers, batches)):
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
        """Deal out the open nodes, wait for all, gather the remaining nodes and the results.

        When interrupted, `search.open` has every node that was dealt out.
        """
        plans = search.plans
        nodes = [
            OpenNode.of(bound, mask & search.alive)
            for bound, _, mask in sorted(search.open, key=lambda entry: entry[:2])
        ]
        tasks = [
            ShareTask(nodes[k :: self.batches], Cuts.of(plans.pool, self.known[k]), Best.of(plans), iteration_budget)
            for k in range(self.batches)
        ]
        size = plans.pool.size
        answers: list[ShareAnswer] = self._answers(tasks, search)
        for answer in answers:
            answer.cuts.add_to(plans.pool)
            plans.take(answer.best.chosen, answer.best.step_time)
            search.nodes += answer.nodes
            search.foreign_solves += answer.solves
            self.iterations += answer.iterations
        self.known = [size] * self.batches
        # The old list stays until the new one is complete, so that no open node is ever missing.
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
        """Let the batches probe the columns of some stages; what one rules out is removed for all."""
        alive, few = np.packbits(search.alive), search.params.tree.probing_batches
        tasks = [
            ProbeTask(tuple(stages[k::few]) if k < few else (), alive, news)
            for k, news in enumerate(self._news(search))
        ]
        answers: list[ProbeAnswer] = self._answers(tasks, search)
        for answer in answers:
            answer.cuts.add_to(search.plans.pool)
            answer.prices.add_to(search.prices)
            search.foreign_solves += answer.solves
            self.iterations += answer.iterations
            search.alive &= unpacked(answer.alive, len(search.alive))
        if any(answer.out_of_time for answer in answers):
            raise OutOfTime

    def enumerate(
        self,
        search: Search,
        remaining: Remaining,
        order: NDArray[np.int64],
        durations: NDArray[np.float64] | None,
        most: float,
    ) -> tuple[bool, int]:
        """Let the batches enumerate a node's choices, a portion each: as `enumeration.Deal`.

        They continue as long as their common progress promises an end.
        """
        own = search.params.tree
        few, steps = own.enumerating_batches, own.first_steps
        portions = [np.packbits(search.enumeration.portion(remaining.mask, order, k, few)) for k in range(few)]
        portions += [np.zeros_like(portions[0])] * (self.batches - few)
        begins: list[NDArray[np.uint8] | None] = [*portions]
        while True:
            tasks = [
                EnumerationTask(portion, order, durations, steps, news)
                for portion, news in zip(begins, self._news(search), strict=True)
            ]
            answers: list[EnumerationAnswer] = self._answers(tasks, search)
            for answer in answers:
                answer.cuts.add_to(search.plans.pool)
                search.plans.take(answer.best.chosen, answer.best.step_time)
            # A column is complete once every batch that was dealt it has completed it.
            left = [answer.left for answer in answers if answer.done < 1.0]
            if left:
                remaining.mask = remaining.mask & unpacked(np.bitwise_or.reduce(left), len(search.columns))
            if any(answer.out_of_time for answer in answers):
                raise OutOfTime
            spent = sum(answer.steps for answer in answers)
            whole = sum(answer.steps / answer.done if answer.done else np.inf for answer in answers)
            if not left or whole > most or any(answer.stuck for answer in answers):
                return not left, spent
            begins, steps = [None] * self.batches, min(2 * steps, own.last_steps)

    def _news(self, search: Search) -> list[News]:
        """The results that each batch does not have yet; they then count as sent."""
        pool, prices, best = search.plans.pool, search.prices, Best.of(search.plans)
        news = [News(Cuts.of(pool, known), Priced.of(prices, self.known_prices), best) for known in self.known]
        self.known, self.known_prices = [pool.size] * self.batches, len(prices)
        return news

    def _answers(self, tasks: Sequence[Any], search: Search) -> list[Any]:
        """The batches' answers in their order, whichever process computes them."""
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
            answers |= zip(range(k, self.batches, count), _answer(pipe, search.stopper), strict=True)
        return [answers[k] for k in range(self.batches)]

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.terminate()
            process.join()


class _Share:
    """One subtree batch: a search with a separate LP, and an enumeration of choices with the remaining ones."""

    walk: ChoiceWalk | None
    remaining: Remaining

    def __init__(self, origin: Origin, state: RootState, seed: int, stopper: Stopper) -> None:
        self.state = state
        self.search = search = Search(
            origin.problem,
            origin.columns,
            PathCuts(origin.problem, origin.graph),
            origin.gap,
            seed,
            stopper,
            origin.target,
            PricePool(),
            origin.params,
        )
        state.prices.add_to(search.prices)
        state.cuts.add_to(search.plans.pool)
        search.plans.take(state.best.chosen, state.best.step_time)
        search.alive, search.root_floor = state.alive.copy(), state.root_floor
        search.to_keep = state.kept

    def _lp(self) -> Master | CountMaster:
        """The batch's LP, built at first use: enumerations need none."""
        search, state = self.search, self.state
        if search.master is None:
            search.master = master = master_of(search.columns, state.active, search.plans.pool, search.params.bounds)
            if master.partial != state.partial:
                master.rebuild(state.active, partial=state.partial)
            for cut in state.kept:
                master.keep(cut)
        return search.master

    def answer(self, task: ShareTask | ProbeTask | EnumerationTask) -> ShareAnswer | ProbeAnswer | EnumerationAnswer:
        """Run a task."""
        if isinstance(task, EnumerationTask):
            return self.enumerate(task)
        self.walk = None  # its tables are large
        return self.work(task) if isinstance(task, ShareTask) else self.probe(task)

    def _learn(self, news: News) -> None:
        news.cuts.add_to(self.search.plans.pool)
        news.prices.add_to(self.search.prices)
        self.search.plans.take(news.best.chosen, news.best.step_time)

    def enumerate(self, task: EnumerationTask) -> EnumerationAnswer:
        """Enumerate a portion of a node's choices, or continue it."""
        search, plans = self.search, self.search.plans
        self._learn(task.news)
        known, out_of_time = plans.pool.size, False
        if task.portion is not None:
            left = unpacked(task.portion, len(search.columns))
            self.walk = None
            if np.logical_or.reduceat(left, search.columns.start[:-1]).all():
                paths = search.pruning_paths()
                self.walk = search.enumeration.walk_of(left, task.order, paths, search.cutoff, task.durations)
            else:
                left = np.zeros_like(left)
            self.remaining = Remaining(left)
        walk, remaining = self.walk, self.remaining
        try:
            until = 0 if walk is None else walk.steps + task.steps
            while remaining.mask.any() and walk is not None and not walk.stuck and walk.steps < until:
                if search.enumeration.look(walk, remaining, lambda: search.cutoff, search.stopper.check):
                    remaining.mask = np.zeros_like(remaining.mask)
        except OutOfTime:
            out_of_time = True
        left = remaining.mask
        done = 1.0 if not left.any() else 0.0 if walk is None else walk.done()
        return EnumerationAnswer(
            np.packbits(left),
            done,
            0 if walk is None else walk.steps,
            bool(left.any() and (walk is None or walk.stuck)),
            Cuts.of(plans.pool, max(known, plans.pool.size - search.params.tree.shared_cuts)),
            Best.of(plans),
            out_of_time,
        )

    def probe(self, task: ProbeTask) -> ProbeAnswer:
        """Probe the columns of some stages."""
        search, plans, master = self.search, self.search.plans, self._lp()
        self._learn(task.news)
        search.alive &= unpacked(task.alive, len(search.alive))
        known, prices, solves = plans.pool.size, len(search.prices), master.solves
        iterations = master.iterations
        out_of_time = False
        try:
            probe(search, task.stages)
        except OutOfTime:
            out_of_time = True
        return ProbeAnswer(
            np.packbits(search.alive),
            Cuts.of(plans.pool, max(known, plans.pool.size - search.params.tree.shared_cuts)),
            Priced.of(search.prices, prices),
            master.solves - solves,
            master.iterations - iterations,
            out_of_time,
        )

    def work(self, task: ShareTask) -> ShareAnswer:
        """Process some nodes with the others' results; return the remaining nodes and new results."""
        search, plans, master = self.search, self.search.plans, self._lp()
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
            cuts=Cuts.of(plans.pool, max(known, plans.pool.size - search.params.tree.shared_cuts)),
            best=Best.of(plans),
            nodes=search.nodes - nodes,
            solves=master.solves - solves,
            iterations=master.iterations - iterations,
            out_of_time=out_of_time,
            trouble=trouble,
        )


def _answer(pipe: Connection, stopper: Stopper) -> list[Any]:
    """The message of a worker; an interrupt ends the wait, the worker itself notices a time limit."""
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
    """Run a worker: rounds until the pipe closes or its coordinator, the process that started it, dies.

    The coordinator handles interrupts.
    """
    # A forked sibling may keep the pipe's other end open, so a dead coordinator does not close it.
    end_with_parent(coordinator)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    shares = [_Share(origin, state, seed, Stopper(deadline, cutoff)) for seed in seeds]
    while True:
        try:
            tasks = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send([share.answer(task) for share, task in zip(shares, tasks, strict=True)])
