"""The compact MILP: plans alone, and path cuts T >= n_P·d + lag_P added in rounds until bound = value.

The step time of a plan is the longest path of the event graph, so every path is a valid linear cut on
the task times d, and only a few of the paths ever bind. A round solves the MILP over the cuts known
(its bound is proven), takes the plan found, evaluates it exactly (its step time is attained) and adds
the critical paths of both ways of breaking ties. Cuts at the optimum of the linear relaxation come
first: they are cheap and carry most of the bound.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Callable, Sequence

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.chunk_ranges import layer_ranges, narrow_ranges, rule_out_short
from taylor.pipeline_solver.durations import chunk_durations, graph_of
from taylor.pipeline_solver.evaluate import step_time
from taylor.pipeline_solver.event_graph import EventGraph
from taylor.pipeline_solver.highs_model import HighsModel
from taylor.pipeline_solver.least_memory import explain_infeasible, most_frugal_plan, over_limit
from taylor.pipeline_solver.linear_form import LinearForm, Row, linear_form
from taylor.pipeline_solver.milp import MilpOutcome, MilpSolver, MilpStatus
from taylor.pipeline_solver.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.plan_model import PlanModel, plan_model
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.progress import OnProgress, Progress
from taylor.pipeline_solver.solution import FEASIBLE, INFEASIBLE, MILP_ROUNDS, RANGED_ROUNDS, Solution, Termination
from taylor.pipeline_solver.stopping import OutOfTime, Stopper, no_cutoff
from taylor.pipeline_solver.work_limits import WorkLimits

HAIR = 1e-9
"""Share by which plans may be longer than what they must not exceed, for rounding."""

MAX_LP_ROUNDS = 400
"""The relaxation converges in some dozens of rounds; this only ends a numerical stalemate."""


@dataclass
class CompactModel:
    """The compact MILP of a problem with the path cuts found so far.

    Parameters
    ----------
    cuts : list of tuple of float
        Counts of the event graph's duration classes [R], then the path's lag total.
    """

    problem: PipelineProblem
    plans: PlanModel
    graph: EventGraph
    form: LinearForm
    step_time: int
    cuts: list[tuple[float, ...]] = field(default_factory=list)
    _seen: set[tuple[float, ...]] = field(default_factory=set, repr=False)

    @classmethod
    def build(cls, problem: PipelineProblem, stopper: Stopper | None = None) -> CompactModel:
        """The model without any cut; `stopper` is asked as it grows.

        Raises
        ------
        OutOfTime
            When the stopper's deadline passes first.
        """
        schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
        plans = plan_model(problem, schedule, stopper)
        plans.model.step_time = pyo.Var(domain=pyo.NonNegativeReals)
        plans.model.step = pyo.Objective(expr=plans.model.step_time)
        plans.model.path_cut = pyo.Constraint(pyo.Any)
        form = linear_form(plans.model, plans.model.step_time, stopper)
        graph = graph_of(problem)
        return cls(problem, plans, graph, form, form.column(plans.model.step_time))

    def add_cut(self, cut: tuple[float, ...]) -> Row | None:
        """Add one path cut; None when it is known already.

        A cut without its lag total (R entries) is taken with lag 0: valid, as lags are >= 0.
        """
        classes = self.graph.classes
        cut = tuple(map(float, cut)) + (0.0,) * (classes + 1 - len(cut))
        if cut in self._seen:
            return None
        self._seen.add(cut)
        self.cuts.append(cut)
        used = [r for r in self.plans.durations if cut[r]]
        first_tail = classes - self.problem.stages
        fixed = cut[-1] + float(np.dot(cut[first_tail:classes], self.plans.tails))
        row = Row(
            f"path_cut[{len(self.cuts)}]",
            (self.step_time, *(self.form.column(self.plans.durations[r]) for r in used)),
            (1.0, *(-cut[r] for r in used)),
            lower=fixed,
        )
        self.form.rows.append(row)
        return row

    def forget(self, known: int) -> None:
        """Take out the cuts behind the first `known` ones, as if they had never been met."""
        gone = {f"path_cut[{number + 1}]" for number in range(known, len(self.cuts))}
        self.form.rows[:] = [row for row in self.form.rows if row.name not in gone]
        self._seen.difference_update(self.cuts[known:])
        del self.cuts[known:]

    def cut_at(self, durations: NDArray[np.float64]) -> tuple[float, list[Row]]:
        """Longest path at task times d [R], and the cuts of both ways of breaking ties that are new."""
        longest, rows = 0.0, []
        for prefer in (0, 1):
            longest, counts, lag = self.graph.critical_path(durations, prefer)
            row = self.add_cut((*counts.tolist(), float(lag)))
            if row is not None:
                rows.append(row)
        return longest, rows

    def durations_of(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Task times [R] at a point of the linear form."""
        durations = np.zeros(self.graph.classes)
        durations[self.graph.classes - self.problem.stages :] = self.plans.tails
        for r, variable in self.plans.durations.items():
            durations[r] = values[self.form.column(variable)]
        return durations

    def plan_of(self, values: NDArray[np.float64]) -> PipelinePlan:
        """The plan that a point of the linear form rounds to."""
        self.form.load(values)
        return self.plans.plan()

    def point_of(self, plan: PipelinePlan) -> NDArray[np.float64]:
        """A starting point of the linear form for a solver: the plan's integers, times and step time."""
        for variable in self.plans.model.component_data_objects(pyo.Var):
            variable.set_value(0.0, skip_validation=True)
        self.plans.set_plan(plan)
        durations = chunk_durations(self.problem, plan)
        for r, variable in self.plans.durations.items():
            variable.set_value(float(durations[r]), skip_validation=True)
        values = self.form.values()
        values[self.step_time] = self.graph.longest_path(durations)
        return values

    def seed(self) -> list[Row]:
        """Cuts known before anything is solved: for each stage, all of its work with the fill and drain around it.

        They are the longest paths where one stage is far slower than all others.
        """
        stages, rows = self.problem.stages, []
        of_stage = np.arange(self.graph.classes) % stages
        for stage in range(stages):
            durations = np.where(of_stage == stage, 1e4, 1.0)
            durations[self.graph.classes - stages :] = self.plans.tails
            rows += self.cut_at(durations)[1]
        return rows

    def tighten_relaxation(self, deadline: float | None = None) -> MilpOutcome:
        """Add path cuts until the linear relaxation's bound equals the longest path at its optimum."""
        relaxation = HighsModel(self.form, relaxed=True)
        outcome = MilpOutcome(MilpStatus.STOPPED, None, float("-inf"))
        centre, centre_time, bound = None, float("inf"), float("-inf")
        for _ in range(MAX_LP_ROUNDS):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            outcome = relaxation.solve_lp(left)
            if outcome.values is None:
                infeasible = outcome.status is MilpStatus.INFEASIBLE
                return outcome if infeasible else MilpOutcome(outcome.status, None, bound)
            bound = max(bound, outcome.bound)
            durations = self.durations_of(outcome.values)
            longest, rows = self.cut_at(durations)
            if longest < centre_time:
                centre, centre_time = durations, longest
            elif centre is not None:
                # In-out separation: the point half-way to the best one gives deeper cuts.
                middle = (durations + centre) / 2
                middle_time, deeper = self.cut_at(middle)
                rows += deeper
                if middle_time < centre_time:
                    centre, centre_time = middle, middle_time
            if longest - outcome.bound <= 1e-7 * max(1.0, longest) or not rows:
                break
            relaxation.add_rows(rows)
        return MilpOutcome(outcome.status, outcome.values, bound)


FIRST_ROUND_NODES = 2000
NODES_AFTER, NODES_IN_VAIN = 2, 8
"""Nodes of the first round at most; each further one may take so many times those of the one before, more where that
one met no new path: a round begins its tree anew."""

NARROWED_SHARE = 0.7
"""Share of the time left that may go into finding the chunks which hold no fewer layers than they recompute."""

CLOSE_RELAXATION = 2e-3
"""Share of the step time between the relaxation's bound and the best plan below which ranges are not narrowed."""


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
        `solver` plays no role here: `make_solver` decides.
    warm_start : PipelinePlan, optional
        A plan to begin from.
    on_progress : callable, optional
        Called with a `Progress` now and then.
    solver_name : str
        The name that the solution bears.
    make_solver : callable, optional
        Gives the MILP solver for the model; HiGHS by default.
    cuts : sequence of tuple of float
        Path cuts known already, as `CompactModel.cuts` holds them.
    most_rounds : int, optional
        Rounds after which to stop: a limit that, unlike the clock's, is the same on every machine.

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
            # Whether there is a plan at all is decided without the clock of the step, which is quick.
            frugal = most_frugal_plan(problem, run.left())
            if frugal is None or over_limit(problem, frugal):
                return run.infeasible(explain_infeasible(problem, frugal))
            run.offer(model, frugal)
        run.raise_bound(WorkLimits(problem, model.graph).bound())
        run.tell("solving the relaxation")
        for cut in cuts:
            model.add_cut(cut)
        model.seed()
        root = model.tighten_relaxation(run.deadline)
        if root.status is MilpStatus.INFEASIBLE:
            return run.infeasible()
        run.raise_bound(root.bound)
        run.tell(f"{len(model.cuts)} path cuts at the relaxation")
        if make_solver is None and most_rounds is None and _narrows(run, problem):
            _search_ranges(run, model, options)
        else:
            # With the step time left free the search meets the paths of other plans, which a model file needs.
            _search(run, model, make_solver or _highs(options), inf, FIRST_ROUND_NODES, most_rounds)
    except KeyboardInterrupt:
        run.ended = Termination.INTERRUPTED
    except TimeoutError:
        run.ended = Termination.TIME_LIMIT
    return run.infeasible() if run.is_infeasible else run.solution(model)


def _narrows(run: _MilpRun, problem: PipelineProblem) -> bool:
    """Whether to narrow the ranges of layers first."""
    far = run.to_beat() - run.bound > CLOSE_RELAXATION * run.to_beat()
    return problem.interleaves > 1 and len(problem.uniform_recompute) == 1 and isfinite(run.to_beat()) and far


def _search_ranges(run: _MilpRun, model: CompactModel, options: SolveOptions) -> None:
    """Narrow the ranges of layers to those of plans that are as short as the best one, and search these."""
    run.ranged = True
    below = run.to_beat() * (1.0 + HAIR)
    ranges = layer_ranges(model)
    root = narrow_ranges(model, ranges, below, run.deadline)
    if root.status is MilpStatus.OPTIMAL and root.bound < below:
        left = run.left()
        until = None if left is None else time.monotonic() + NARROWED_SHARE * left
        root = rule_out_short(model, ranges, below, until, run.deadline)
    run.raise_bound(below if root.status is MilpStatus.INFEASIBLE else min(root.bound, below))
    run.tell("ranges of layers")
    _search(run, model, _highs(options), below, FIRST_ROUND_NODES * NODES_IN_VAIN)


def _search(
    run: _MilpRun,
    model: CompactModel,
    make_solver: Callable[[CompactModel], MilpSolver],
    below: float,
    nodes: int,
    most_rounds: int | None = None,
) -> None:
    """Rounds of the MILP and of new paths, until the best plan is proven, or that none takes as little as `below`."""
    model.form.upper[model.step_time] = below
    solver = make_solver(model)
    known = len(model.cuts)
    while not run.over() and (most_rounds is None or run.rounds < most_rounds):
        asked = run.gap_of_round()
        points: list[NDArray[np.float64]] = []
        outcome = solver.solve_milp(
            gap=asked,
            time_limit=run.left(),
            # A long round works with the cuts of its beginning: stop it now and then to renew them.
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
        # With no new path and no finer gap to ask for, the next round would be this one again.
        again = not fresh and outcome.status is MilpStatus.OPTIMAL and run.gap_of_round() >= asked
        if outcome.interrupted:
            run.ended = Termination.INTERRUPTED
        elif run.cut_off():
            run.ended = Termination.CUT_OFF
        elif not fresh and outcome.status is MilpStatus.FAILED:
            run.ended = Termination.SOLVER_FAILURE
        elif again and not run.closed():
            run.ended = Termination.STALLED
        nodes *= NODES_AFTER if fresh else NODES_IN_VAIN
        run.rounds += 1
        run.tell(f"round {run.rounds}: {len(model.cuts)} path cuts")
        solver.add_rows(model.form.rows[len(model.form.rows) - (len(model.cuts) - known) :])
        known = len(model.cuts)


def _highs(options: SolveOptions) -> Callable[[CompactModel], MilpSolver]:
    return lambda model: HighsModel(model.form, seed=options.seed, threads=options.workers)


class _MilpRun:
    """Clock, best plan, proven bound and reasons to stop of one solve."""

    def __init__(
        self, problem: PipelineProblem, options: SolveOptions, solver_name: str, on_progress: OnProgress | None
    ) -> None:
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
        """The best plan's step time, or less where others have set a cut-off."""
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
        """A tenth of the gap that is open: the early rounds are there for their cuts, not for their proof."""
        present = 1e-3 if self.plan is None else (self.objective - self.bound) / self.objective
        return min(1e-3, max(self.gap / 4, present / 10))

    def raise_bound(self, bound: float) -> None:
        # A bound above an attained value by less than the solver's tolerance is that value.
        self.bound = min(max(self.bound, bound), self.objective)

    def offer(self, model: CompactModel, plan: PipelinePlan) -> bool:
        """Take a plan if it is the best; whether its critical paths were new cuts."""
        longest, rows = model.cut_at(chunk_durations(self.problem, plan))
        if longest < self.objective:
            self.plan, self.objective = plan, longest
            self.bound = min(self.bound, longest)
        return bool(rows)

    def note_bound(self, bound: float) -> None:
        """Take a bound that the solver tells in the middle of a round."""
        if bound > self.bound:
            self.raise_bound(bound)
            self.tell(f"round {self.rounds + 1}")

    def tell(self, note: str) -> None:
        if self.on_progress is not None:
            objective = None if self.plan is None else self.objective
            self.on_progress(Progress(time.monotonic() - self.began, objective, self.bound or None, note))

    def infeasible(self, message: str | None = None) -> Solution:
        seconds = time.monotonic() - self.began
        return Solution(
            INFEASIBLE, Termination.INFEASIBLE, solver=self.solver_name, seconds=seconds, message=message or ""
        )

    def no_solution(self, end: Termination) -> Solution:
        """What there is before the model."""
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
            # Its rows leave open which layers of combined passes have one beside them (`plan_rows`).
            return ended.replace(message="the MILP takes combined passes at the least, and has no more to tell")
        return ended
