"""The search around the layers: batch, micro-batches, stages, virtual stages, schedule, embedding and head, the buffer.

Every outer choice is bounded first; the one of the best bound is solved first, and those whose bound is no better than
the best plan are cut off. The search proves that no plan of the whole space has more samples a second than its
bound.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, field, replace

import numpy as np

from taylor.base.errors import InputError
from taylor.cost_model.measured.cost_table import CostProvider
from taylor.cost_model.measured.layer_strategy import LayerStrategy, LayerwisePlan
from taylor.layerwise.exact.events import Array, LaggedGraph
from taylor.layerwise.exact.fixed import FixedProblem
from taylor.layerwise.exact.relaxation import Relaxed, relax
from taylor.layerwise.exact.solve import MANY_CHUNKS, FixedSolution, first_plan, solve_fixed
from taylor.layerwise.exact.uniform import uniform_plan
from taylor.layerwise.job import LayerwiseJob, OuterChoice
from taylor.layerwise.space import SpaceLimits, divisors
from taylor.pipeline.schedule import PLAIN, ScheduleSpec
from taylor.pipeline_solver.model.stopping import OutOfTime

Report = Callable[[str], None]
Moved = Callable[[int, str], None]

FEW_ROUNDS = 10
"""LPs that bound an outer choice at first: most are cut off by that."""
UNIFORM_SHARE = 0.25
"""Most of the time limit, as a fraction, for plans of one strategy for all layers, before any bound."""
BOUND_SHARE = 0.8
"""Fraction of the time limit after which no further outer choice is bounded, for a plan needs time too."""
LONG_SECONDS = 0.1
"""A relaxation that takes longer is worth other processes for those that follow; starting one takes about as long."""
AHEAD = 8
"""Relaxations under way or waiting in other processes at most: those further behind are likely to be cut off."""


@dataclass(frozen=True)
class OuterSpace:
    """Choices around the layers.

    Parameters
    ----------
    batches : tuple of int
    micro_batches : tuple of int
        Numbers of micro-batches; empty: every divisor of the batch.
    stages : tuple of int
        Numbers of stages; empty: those of the limits.
    interleaves : tuple of int
    schedule : str
        With one chunk a stage.
    interleaved : str
        With several chunks a stage.
    limits : SpaceLimits
    one_for_all : bool
        Every layer has the same strategy, which embedding and head share.
    """

    batches: tuple[int, ...]
    micro_batches: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    interleaves: tuple[int, ...] = (1,)
    schedule: str = PLAIN
    interleaved: str = "megatron-interleaved"
    limits: SpaceLimits = field(default_factory=SpaceLimits)
    one_for_all: bool = False

    def choices(self, job: LayerwiseJob) -> Iterator[OuterChoice]:
        """Every outer choice of a job; each stage and each virtual stage has a layer, each rank a sample."""
        for batch in self.batches:
            for m in self.micro_batches or divisors(batch):
                if batch % m:
                    continue
                for pp in self.stages or self.limits.stage_numbers(job.world, job.layers):
                    if job.world % pp or pp > m:
                        continue
                    ranks = job.world // pp
                    for v in self.interleaves:
                        if v * pp > job.layers or (v > 1 and pp == 1):
                            continue
                        spec = ScheduleSpec(self.schedule if v == 1 else self.interleaved)
                        if not spec.fits_rounds(pp, m):
                            continue
                        for ends in self.limits.ends(ranks):
                            if batch // m % ends.dp == 0:
                                for buffer in _buffers(job, self.limits, ranks, ends.tp):
                                    yield OuterChoice(batch, m, pp, ends, v, spec, buffer)


def _buffers(job: LayerwiseJob, limits: SpaceLimits, ranks: int, end_tp: int) -> list[int | None]:
    """TP degrees that the buffer of gathered hidden states may be kept for."""
    if not job.global_buffer:
        return [None]
    degrees = sorted({each.tp for each in limits.layers(ranks)} | {end_tp})
    return [None if tp == 1 else tp for tp in degrees if tp >= end_tp]


@dataclass(frozen=True)
class Tried:
    """One outer choice and its outcome.

    Parameters
    ----------
    outer : OuterChoice
    bound_s : float
        No plan of it has a shorter step, s; inf where none fits.
    solution : FixedSolution or None
        None: cut off by its bound.
    only : LayerStrategy or None
        The strategy of all layers, where they share one.
    """

    outer: OuterChoice
    bound_s: float
    solution: FixedSolution | None = None
    only: LayerStrategy | None = None

    @property
    def most_samples_a_s(self) -> float:
        """Samples a second that its bound allows."""
        return self.outer.global_batch / self.bound_s if np.isfinite(self.bound_s) else 0.0


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Parameters
    ----------
    plan : LayerwisePlan or None
    step_s : float
        inf where there is no plan.
    most_samples_a_s : float
        No plan of the space has more.
    tried : tuple of Tried
        Every outer choice, the most promising first.
    left_out : tuple of str
        Outer choices and strategies without a cost, each with what is missing.
    seconds : float
    interrupted : bool
        Ctrl-C ended the search; the plan is the best until then.
    problem : FixedProblem or None
        The plan's outer choice with its costs.
    """

    plan: LayerwisePlan | None
    step_s: float
    most_samples_a_s: float
    tried: tuple[Tried, ...]
    left_out: tuple[str, ...]
    seconds: float
    interrupted: bool = False
    problem: FixedProblem | None = None

    @property
    def samples_a_s(self) -> float:
        """Throughput of the plan, 0 without one."""
        return 0.0 if self.plan is None else self.plan.global_batch / self.step_s

    @property
    def gap(self) -> float:
        """Relative distance of the bound from the plan."""
        return 0.0 if self.plan is None else max(0.0, self.most_samples_a_s / self.samples_a_s - 1)


def search(
    job: LayerwiseJob,
    provider: CostProvider,
    space: OuterSpace,
    *,
    gap: float = 1e-4,
    time_limit: float | None = None,
    report: Report | None = None,
    moved: Moved | None = None,
    executor: Executor | None = None,
) -> SearchResult:
    """Find the plan of most samples a second in a space, with a proven gap.

    Ctrl-C ends the search as a time limit does.

    Parameters
    ----------
    gap : float
        Relative gap to which it is proven.
    time_limit : float, optional
        Seconds; the best plan so far is returned then, with what is proven.
    report : callable, optional
        Called with every better plan.
    moved : callable, optional
        Called with the steps done, of two for each outer choice, and the next one.
    executor : concurrent.futures.Executor, optional
        Processes that bound outer choices in advance; the result is the same without them.
    """
    run = _Search(job, provider, space, gap, time_limit, report or _silent, moved or _silent, executor)
    try:
        run.begin()
        run.bound()
        run.solve()
    except OutOfTime:
        pass  # what is bounded by then is what is proven
    except KeyboardInterrupt:
        run.interrupted = True
    finally:
        run.ahead.end()
    return run.result()


def _silent(*reported: object) -> None:
    """Report nothing."""


@dataclass(frozen=True, eq=False)
class _Open:
    """A bounded choice that may be solved; one bounded by few LPs is first bounded well."""

    bound: float
    number: int
    outer: OuterChoice
    problem: FixedProblem
    only: LayerStrategy | None
    relaxed: Relaxed
    settled: bool = False

    @property
    def rank(self) -> tuple[float, int]:
        """The most promising first."""
        return self.bound, self.number


def _relax_well(problem: FixedProblem, cuts: tuple[Array, ...], deadline: float | None) -> Relaxed | None:
    """Bound an outer choice by as many LPs as it takes, or as the time allows; None without any."""
    try:
        return relax(problem, LaggedGraph.of(problem.schedule), cuts=cuts, deadline=deadline)
    except OutOfTime:
        return None


class _Ahead:
    """Relaxations started in other processes in advance, once one has taken long here."""

    def __init__(self, executor: Executor | None, deadline: float | None) -> None:
        self.executor, self.deadline = executor, deadline
        self.under_way: dict[_Open, Future[Relaxed | None]] = {}
        self.long = False

    def begin(self, queue: Sequence[_Open], hopeless: float) -> None:
        """Start the next ones; `hopeless` is the bound from which on a choice is cut off."""
        if self.executor is None or not self.long:
            return
        for each in queue:
            if len(self.under_way) >= AHEAD or each.bound >= hopeless:
                return
            if not each.settled and each not in self.under_way:
                try:
                    self.under_way[each] = self.executor.submit(
                        _relax_well, each.problem, each.relaxed.cuts, self.deadline
                    )
                except BrokenExecutor:  # a process died, of too little memory perhaps: this one goes on alone
                    self.executor = None
                    return

    def relaxed(self, each: _Open) -> Relaxed | None:
        """One relaxation, in any process."""
        future = self.under_way.pop(each, None)
        if future is not None:
            try:
                return future.result()
            except BrokenExecutor:
                self.executor = None
        began = time.monotonic()
        found = _relax_well(each.problem, each.relaxed.cuts, self.deadline)
        self.long = self.long or time.monotonic() - began > LONG_SECONDS
        return found

    def end(self) -> None:
        """Cancel relaxations that have not begun."""
        for future in self.under_way.values():
            future.cancel()


class _Search:
    """One search under way."""

    def __init__(
        self, job: LayerwiseJob, provider: CostProvider, space: OuterSpace, gap: float, time_limit: float | None,
        report: Report, moved: Moved, executor: Executor | None,
    ) -> None:  # fmt: skip
        self.job, self.provider, self.space, self.gap = job, provider, space, gap
        self.report, self.moved = report, moved
        self.began = time.monotonic()
        self.deadline = None if time_limit is None else self.began + time_limit
        self.ahead = _Ahead(executor, self.deadline)
        self.left_out: dict[str, None] = {}
        self.open: list[_Open] = []
        self.closed: list[Tried] = []
        self.best: FixedSolution | None = None
        self.best_problem: FixedProblem | None = None
        self.slowest = np.inf  # seconds a sample of the best plan
        self.interrupted = False
        self.all_bounded = False
        self.priced: dict[int, list[tuple[LayerStrategy | None, FixedProblem]]] = {}

    def begin(self) -> None:
        """With a time limit: the best plan of one strategy for all layers, so that there always is one."""
        if self.deadline is None:
            return
        enough = self.began + UNIFORM_SHARE * (self.deadline - self.began)
        for number, outer in enumerate(self.space.choices(self.job)):
            if time.monotonic() > enough and (self.best is not None or time.monotonic() > self.deadline):
                break
            self.priced[number] = self._problems(outer)
            for _, problem in self.priced[number]:
                found = uniform_plan(problem, outer)
                if found is not None:
                    self._keep(outer, problem, found)
        if self.best is not None and self.best.plan is not None:
            self._report_plan(self.best.step_s, self.best.plan.global_batch)

    def bound(self) -> None:
        """Bound every outer choice, or those that the time allows before a plan."""
        enough = None if self.deadline is None else self.began + BOUND_SHARE * (self.deadline - self.began)
        for number, outer in enumerate(self.space.choices(self.job)):
            if self.open and enough is not None and time.monotonic() > enough:
                break
            self.moved(1, f"{outer.stages} stages, {outer.micro_batches} micro-batches")
            problems = self.priced.pop(number, None) or self._problems(outer)
            if not problems:
                self.closed.append(Tried(outer, np.inf))
            for only, problem in problems:
                relaxed: Relaxed | None = None
                if len(problem.strategies):
                    relaxed = relax(
                        problem, LaggedGraph.of(problem.schedule), rounds=FEW_ROUNDS, deadline=self.deadline
                    )
                if relaxed is None:
                    self.closed.append(Tried(outer, np.inf, only=only))
                else:
                    bound = relaxed.bound / outer.global_batch
                    self.open.append(_Open(bound, number, outer, problem, only, relaxed))
        else:
            self.all_bounded = True
        self.open.sort(key=lambda each: each.rank)

    def solve(self) -> None:
        """Solve the outer choices whose bounds are below the best plan, best bound first."""
        if self.open and self.best is None and self.open[0].problem.chunks >= MANY_CHUNKS:
            # Bounding this number of chunks well takes seconds each: a plan is there before.
            first = self.open[0]
            found = first_plan(first.problem, first.outer)
            if found.plan is not None:
                self._keep(first.outer, first.problem, found)
                self._report_plan(found.step_s, first.outer.global_batch)
        while self.open:
            each = self.open[0]
            bound_s = each.bound * each.outer.global_batch
            late = self.deadline is not None and time.monotonic() > self.deadline
            if each.bound >= self.slowest * (1 - self.gap) or late:
                self.open.pop(0)
                self._close(Tried(each.outer, bound_s, only=each.only))
                continue
            if not each.settled:
                self._settle(each)
                continue
            self._solve(each)

    def _solve(self, each: _Open) -> None:
        """Find the plan of an outer choice, as far as it may be the best."""
        self.open.remove(each)
        left = None if self.deadline is None else max(self.deadline - time.monotonic(), 0.1)
        batch = each.outer.global_batch
        cutoff = self.slowest * batch * (1 - self.gap / 2)

        def on_plan(step_s: float, bound_s: float) -> None:
            self._report_plan(step_s, batch)

        gap = self.gap / 2
        found = solve_fixed(each.problem, each.outer, gap=gap, cutoff_s=cutoff, time_limit=left, on_plan=on_plan)
        self._close(Tried(each.outer, max(found.bound_s, each.bound * batch), found, each.only))
        self._keep(each.outer, each.problem, found)
        if found.interrupted:
            raise KeyboardInterrupt

    def _keep(self, outer: OuterChoice, problem: FixedProblem, found: FixedSolution) -> None:
        batch = outer.global_batch
        if found.plan is not None and found.step_s / batch < self.slowest:
            self.best, self.slowest, self.best_problem = found, found.step_s / batch, problem

    def _report_plan(self, step_s: float, batch: int) -> None:
        self.report(f"{step_s:.6g} s, {batch / step_s:.6g} samples/s")

    def _settle(self, each: _Open) -> None:
        """Bound a choice well, and put it where it then belongs."""
        self.open.remove(each)
        self.ahead.begin([each, *self.open], self.slowest * (1 - self.gap))
        relaxed = self.ahead.relaxed(each) or each.relaxed
        bound = max(each.bound, relaxed.bound / each.outer.global_batch)
        insort(self.open, replace(each, bound=bound, relaxed=relaxed, settled=True), key=lambda one: one.rank)

    def _close(self, tried: Tried) -> None:
        self.closed.append(tried)
        self.moved(1, "")

    def result(self) -> SearchResult:
        """The plan found and the bound proven."""
        waiting = [Tried(each.outer, each.bound * each.outer.global_batch, only=each.only) for each in self.open]
        tried = sorted([*self.closed, *waiting], key=lambda each: -each.most_samples_a_s)
        most = max((each.most_samples_a_s for each in tried), default=0.0) if self.all_bounded else np.inf
        if self.best is not None:
            most = max(most, 1 / self.slowest)
        return SearchResult(
            None if self.best is None else self.best.plan, np.inf if self.best is None else self.best.step_s, most,
            tuple(tried), tuple(self.left_out), time.monotonic() - self.began, self.interrupted,
            self.best_problem,
        )  # fmt: skip

    def _problems(self, outer: OuterChoice) -> list[tuple[LayerStrategy | None, FixedProblem]]:
        """One outer choice with its costs, once for every strategy where all layers share one.

        Empty where its ends have no cost, or no layer has one.
        """
        setting = self.job.setting(outer)
        known: dict[str, list[LayerStrategy]] = {name: [] for name, _ in self.job.stack}
        for each in self.space.limits.layers(self.job.ranks(outer)):
            if setting.micro_batch % each.dp or (self.space.one_for_all and each.end != outer.ends):
                continue
            for kind, strategies in known.items():
                try:
                    self.provider.layer(kind, each, setting)
                except InputError as error:
                    of = "" if len(known) == 1 else f" of {kind} layers"
                    self.left_out[f"{each.name}{of} on {outer.stages} stages: {error}"] = None
                else:
                    strategies.append(each)
        try:
            if self.space.one_for_all:
                shared = [each for each in next(iter(known.values())) if all(each in some for some in known.values())]
                return [(each, FixedProblem.of(self.job, outer, self.provider, [each])) for each in shared]
            return [(None, FixedProblem.of(self.job, outer, self.provider, known))]
        except InputError as error:
            self.left_out[f"ends {outer.ends.name} on {outer.stages} stages: {error}"] = None
            return []


def cut_off(result: SearchResult) -> Sequence[Tried]:
    """The outer choices that a search did not solve, for their bound was no better than the best plan."""
    return [each for each in result.tried if each.solution is None and np.isfinite(each.bound_s)]
