"""The compact MILP: plans alone, and path cuts T >= n_P·d + lag_P added in rounds until bound = value.

The step time of a plan is the longest path of the event graph, so every path is a valid linear cut on
the task times d, and only a few of the paths ever bind. A round solves the MILP over the known cuts (its bound is
proven), evaluates the plan found exactly (its step time is attained) and adds the critical paths of both ways of
breaking ties. Cuts at the optimum of the linear relaxation come first: they are cheap and carry most of the bound.
"""

from __future__ import annotations

import time
from math import inf, isfinite
from typing import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.columns.work_limits import WorkLimits
from taylor.pipeline_solver.milp.chunk_ranges import layer_ranges, narrow_ranges, rule_out_short
from taylor.pipeline_solver.milp.compact_model import CompactModel
from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.least_memory import explain_infeasible, most_frugal_plan, over_limit
from taylor.pipeline_solver.milp.milp import MilpSolver, MilpStatus
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress, Progress
from taylor.pipeline_solver.model.solution import (
    FEASIBLE,
    INFEASIBLE,
    MILP_ROUNDS,
    RANGED_ROUNDS,
    Solution,
    Termination,
)
from taylor.pipeline_solver.model.stopping import OutOfTime, Stopper, no_cutoff
from taylor.pipeline_solver.timing.durations import chunk_durations
from taylor.pipeline_solver.timing.evaluate import step_time

HAIR = 1e-9
"""Relative tolerance on step times, for rounding."""


def solve_compact(
    problem: PipelineProblem,
    options: SolveOptions = DEFAULT_OPTIONS,
    *,
    warm_start: PipelinePlan | None = None,
    on_progress: OnProgress | None = None,
    solver_name: str = "HIGHS-MILP",
    make_solver: Callable[[CompactModel], MilpSolver] | None = None,
    cuts: Sequence[tuple[float, ...]] = (),
    most_rounds: int | None = None,
) -> Solution:
    """Solve a pipeline problem by the compact MILP with path cuts.

    Parameters
    ----------
    options : SolveOptions
        `solver` is ignored: `make_solver` decides.
    warm_start : PipelinePlan, optional
        A plan to begin from.
    on_progress : callable, optional
        Called with a `Progress` now and then.
    solver_name : str
        Name of the solver in the solution.
    make_solver : callable, optional
        Returns the MILP solver for the model; HiGHS by default.
    cuts : sequence of tuple of float
        Known path cuts, in the form of `CompactModel.cuts`.
    most_rounds : int, optional
        Rounds after which to stop: a limit that, unlike the clock, is the same on every machine.

    Returns
    -------
    Solution
        Ctrl-C and the time limit give the best plan so far with its bound.
    """
    run = _MilpRun(problem, options, solver_name, on_progress)
    try:
        model = CompactModel.build(problem, Stopper(run.deadline))
    except OutOfTime:
        stopped = run.no_solution(Termination.TIME_LIMIT)
        if warm_start is None or over_limit(problem, warm_start):
            return stopped
        return stopped.replace(status=FEASIBLE, plan=warm_start, objective=step_time(problem, warm_start))
    try:
        if warm_start is not None:
            run.offer(model, warm_start)
        elif not run.over():
            # Feasibility is decided without step times, which is quick.
            frugal = most_frugal_plan(problem, run.left())
            if frugal is None or over_limit(problem, frugal):
                return run.infeasible(explain_infeasible(problem, frugal))
            run.offer(model, frugal)
        run.raise_bound(WorkLimits(problem, model.graph).bound())
        run.report("solving the relaxation")
        for cut in cuts:
            model.add_cut(cut)
        model.seed()
        root = model.tighten_relaxation(run.deadline)
        if root.status is MilpStatus.INFEASIBLE:
            return run.infeasible()
        run.raise_bound(root.bound)
        run.report(f"{len(model.cuts)} path cuts at the relaxation")
        if make_solver is None and most_rounds is None and _narrows(run, problem):
            _search_ranges(run, model, options)
        else:
            # With a free step time the search finds the paths of other plans, which a model file needs.
            _search(run, model, make_solver or _highs(options), inf, run.params.first_nodes, most_rounds)
    except KeyboardInterrupt:
        run.ended = Termination.INTERRUPTED
    except TimeoutError:
        run.ended = Termination.TIME_LIMIT
    return run.infeasible() if run.is_infeasible else run.solution(model)


def _narrows(run: _MilpRun, problem: PipelineProblem) -> bool:
    """Return whether to narrow the ranges of layers first."""
    far = run.to_beat() - run.bound > run.params.close_relaxation * run.to_beat()
    allowed = run.params.narrowing and problem.interleaves > 1
    return allowed and len(problem.uniform_recompute) == 1 and isfinite(run.to_beat()) and far


def _search_ranges(run: _MilpRun, model: CompactModel, options: SolveOptions) -> None:
    """Narrow the ranges of layers to those of plans as short as the best one, and search these."""
    run.ranged = True
    below = run.to_beat() * (1.0 + HAIR)
    ranges = layer_ranges(model)
    root = narrow_ranges(model, ranges, below, run.deadline)
    if root.status is MilpStatus.OPTIMAL and root.bound < below:
        left = run.left()
        until = None if left is None else time.monotonic() + run.params.narrowed_share * left
        root = rule_out_short(model, ranges, below, until, run.deadline)
    run.raise_bound(below if root.status is MilpStatus.INFEASIBLE else min(root.bound, below))
    run.report("ranges of layers")
    _search(run, model, _highs(options), below, run.params.first_nodes * run.params.growth_without_success)


def _search(
    run: _MilpRun,
    model: CompactModel,
    make_solver: Callable[[CompactModel], MilpSolver],
    below: float,
    nodes: int,
    most_rounds: int | None = None,
) -> None:
    """Run MILP rounds with new paths until the best plan is proven, or that no plan is as short as `below`."""
    model.form.upper[model.step_time] = below
    solver = make_solver(model)
    known = len(model.cuts)
    while not run.over() and (most_rounds is None or run.rounds < most_rounds):
        asked = run.gap_of_round()
        points: list[NDArray[np.float64]] = []
        outcome = solver.solve_milp(
            gap=asked,
            time_limit=run.left(),
            # A long round keeps the cuts of its start: stop it now and then to renew them.
            node_limit=nodes,
            start=model.point_of(run.plan) if run.plan is not None and run.objective <= below else None,
            on_point=points.append,
            on_bound=lambda bound: run.note_bound(min(bound, below)),
            enough=lambda: run.cut_off() or run.left() == 0.0,
        )
        if outcome.status is MilpStatus.INFEASIBLE:
            if isfinite(below):
                run.raise_bound(below)
            else:
                run.is_infeasible = True
            return
        run.raise_bound(min(outcome.bound, below))
        if outcome.values is not None:
            points.append(outcome.values)
        fresh = any([run.offer(model, model.plan_of(point)) for point in points])
        # With no new path and no smaller gap to request, the next round would repeat this one.
        again = not fresh and outcome.status is MilpStatus.OPTIMAL and run.gap_of_round() >= asked
        if outcome.interrupted:
            run.ended = Termination.INTERRUPTED
        elif run.cut_off():
            run.ended = Termination.CUT_OFF
        elif not fresh and outcome.status is MilpStatus.FAILED:
            run.ended = Termination.SOLVER_FAILURE
        elif again and not run.closed():
            run.ended = Termination.STALLED
        nodes *= run.params.nodes_growth if fresh else run.params.growth_without_success
        run.rounds += 1
        run.report(f"round {run.rounds}: {len(model.cuts)} path cuts")
        solver.add_rows(model.form.rows[len(model.form.rows) - (len(model.cuts) - known) :])
        known = len(model.cuts)


def _highs(options: SolveOptions) -> Callable[[CompactModel], MilpSolver]:
    return lambda model: HighsModel(model.form, seed=options.seed, threads=options.workers)


class _MilpRun:
    """Clock, best plan, lower bound and reasons to stop of one solve."""

    def __init__(
        self, problem: PipelineProblem, options: SolveOptions, solver_name: str, on_progress: OnProgress | None
    ) -> None:
        self.params = options.params.milp
        self.problem, self.solver_name, self.gap, self.on_progress = problem, solver_name, options.gap, on_progress
        self.began = time.monotonic()
        self.deadline = None if options.time_limit is None else self.began + options.time_limit
        self.plan: PipelinePlan | None = None
        self.objective, self.bound = float("inf"), 0.0 if options.memory is None else options.memory.bound
        self.rounds = 0
        self.is_infeasible = self.ranged = False
        self.cutoff = options.cutoff or no_cutoff
        self.ended: Termination | None = None

    def to_beat(self) -> float:
        """The best plan's step time, or a lower cutoff set by others."""
        return min(self.objective, self.cutoff())

    def left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def closed(self) -> bool:
        return self.plan is not None and self.objective - self.bound <= self.gap * abs(self.objective)

    def cut_off(self) -> bool:
        return self.bound >= self.cutoff()

    def over(self) -> bool:
        return self.closed() or self.cut_off() or self.ended is not None or self.left() == 0.0

    def gap_of_round(self) -> float:
        """A tenth of the open gap: the early rounds serve for their cuts, not for their proof."""
        present = 1e-3 if self.plan is None else (self.objective - self.bound) / self.objective
        return min(1e-3, max(self.gap / 4, present / 10))

    def raise_bound(self, bound: float) -> None:
        # A bound above an attained value by less than the solver's tolerance is that value.
        self.bound = min(max(self.bound, bound), self.objective)

    def offer(self, model: CompactModel, plan: PipelinePlan) -> bool:
        """Take a plan if it is the best; return whether its critical paths were new cuts."""
        longest, rows = model.cut_at(chunk_durations(self.problem, plan))
        if longest < self.objective:
            self.plan, self.objective = plan, longest
            self.bound = min(self.bound, longest)
        return bool(rows)

    def note_bound(self, bound: float) -> None:
        """Take a bound that the solver reports during a round."""
        if bound > self.bound:
            self.raise_bound(bound)
            self.report(f"round {self.rounds + 1}")

    def report(self, note: str) -> None:
        if self.on_progress is not None:
            objective = None if self.plan is None else self.objective
            self.on_progress(Progress(time.monotonic() - self.began, objective, self.bound or None, note))

    def infeasible(self, message: str | None = None) -> Solution:
        seconds = time.monotonic() - self.began
        return Solution(
            INFEASIBLE, Termination.INFEASIBLE, solver=self.solver_name, seconds=seconds, message=message or ""
        )

    def no_solution(self, end: Termination) -> Solution:
        """The solution without a plan, before the model is built."""
        seconds = time.monotonic() - self.began
        bound = self.bound or None
        return Solution(FEASIBLE, bound=bound, solver=self.solver_name, seconds=seconds).ended_by(end)

    def solution(self, model: CompactModel) -> Solution:
        solution = Solution(
            FEASIBLE,
            plan=self.plan,
            objective=None if self.plan is None else self.objective,
            bound=self.bound,
            solver=self.solver_name,
            seconds=time.monotonic() - self.began,
            statistics={RANGED_ROUNDS if self.ranged else MILP_ROUNDS: self.rounds, "cuts": len(model.cuts)},
            cuts=tuple(model.cuts),
        )
        if self.closed():
            return solution.closed(interrupted=self.ended is Termination.INTERRUPTED)
        if self.cut_off() and self.ended is not Termination.INTERRUPTED:
            return solution.ended_by(Termination.CUT_OFF)
        late = Termination.TIME_LIMIT if self.left() == 0.0 else Termination.ROUND_LIMIT
        ended = solution.ended_by(self.ended or late)
        if self.ended is Termination.STALLED and self.problem.pairing is not None:
            # Its rows do not decide which layers of combined passes are paired (`plan_rows`).
            return ended.replace(message="the MILP counts combined passes at their least time and proves no more")
        return ended
