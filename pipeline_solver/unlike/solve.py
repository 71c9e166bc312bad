"""One plan for many scenarios: least mean step, with a proven bound.

Every scenario has a variable for its step time above the paths found so far, and the mean of these is minimised over
the plans' MILP (`milp.plan_model`): Van Slyke and Wets 1969 (doi:10.1137/0117061), with cuts by scenario (Birge and
Louveaux 1988, doi:10.1016/0377-2217(88)90159-2). A path cut is valid for every plan, whole or fractional, so cuts of
the relaxation, which are cheap, come first. The bound of a round is proven; a plan's mean is attained; both meet as the
scenarios' longest paths at the best plan become known.

The mean of the step times is at least the step of the mean factors (it is convex in them), so that the plan for the
mean length has a bound of its own: a test compares.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.linear_form import LinearForm, Row
from taylor.pipeline_solver.milp.milp import MilpStatus
from taylor.pipeline_solver.milp.plan_model import PlanModel, plan_model
from taylor.pipeline_solver.model.places import has_places
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.durations import chunk_durations
from taylor.pipeline_solver.unlike.scenarios import PathCut, ScenarioGraph, Scenarios

Array = NDArray[np.float64]

_LP_ROUNDS = 60
"""Most rounds of cuts at the relaxation."""
_LP_GAIN = 1e-4
"""Relative gain of the relaxation's bound below which whole plans are searched."""
_ROUND_SHARE = 0.5
"""Part of the asked gap that one MILP leaves."""
_HAIR = 1e-9
"""Relative tolerance on step times, for rounding."""
_NODES = 20_000
"""Nodes after which a MILP is stopped, to renew its cuts."""


@dataclass(frozen=True)
class ExpectedStep:
    """Best plan found for scenarios.

    Parameters
    ----------
    plan : PipelinePlan or None
        None where no plan fits, or none was found in the time.
    step_times : float64 [n]
        Its step in every scenario, in forward times of a body layer.
    bound : float
        No plan has a smaller mean.
    infeasible : bool
        No plan fits.
    rounds : int
        MILPs solved.
    seconds : float
    """

    plan: PipelinePlan | None
    step_times: Array
    bound: float
    infeasible: bool
    rounds: int
    seconds: float

    @property
    def mean(self) -> float:
        """Mean step, in forward times of a body layer; infinite without a plan."""
        return float(self.step_times.mean()) if self.plan is not None else inf

    @property
    def gap(self) -> float:
        """Mean over the bound, less 1, over the mean; 1 without a plan."""
        return 1.0 if self.plan is None else max(0.0, 1.0 - self.bound / self.mean)

    def quantile(self, share: float) -> float:
        """Step that a share of the scenarios do not exceed."""
        return float(np.quantile(self.step_times, share))


def solve_expected(
    problem: PipelineProblem,
    scenarios: Scenarios,
    *,
    gap: float = 0.01,
    time_limit: float | None = 60.0,
    start: PipelinePlan | None = None,
) -> ExpectedStep:
    """Find the plan whose mean step over scenarios is least.

    Parameters
    ----------
    gap : float
        Relative gap at which to stop.
    time_limit : float or None
        Seconds.
    start : PipelinePlan, optional
        A plan to begin from, such as that for the mean length; one that does not fit is left out.

    Raises
    ------
    ValueError
        When the problem has a pairing, or kinds with several places, or other micro-batches than the scenarios.
    """
    if has_places(problem):
        raise ValueError("kinds with several places are placed before micro-batches of unlike cost are planned for")
    run = _Run(problem, scenarios, gap, time_limit)
    if start is not None and not check(problem, start):
        run.offer(start)
    try:
        if run.tighten_relaxation():
            run.search()
    except KeyboardInterrupt:
        if run.plan is None:
            raise
    return run.result()


class _Run:
    """Clock, master problem, best plan and bound of one solve."""

    def __init__(self, problem: PipelineProblem, scenarios: Scenarios, gap: float, time_limit: float | None) -> None:
        self.began = time.monotonic()
        self.deadline = None if time_limit is None else self.began + time_limit
        self.problem, self.gap = problem, gap
        self.graph = ScenarioGraph(problem, scenarios)
        self.plans: PlanModel = plan_model(problem)
        self.steps = [self.plans.model.variable("step", (one,)) for one in range(len(scenarios))]
        self.form: LinearForm = self.plans.model.form(self.steps[0])
        self.form.cost[self.steps] = 1.0 / len(scenarios)
        self.plan: PipelinePlan | None = None
        self.step_times = np.zeros(0)
        self.bound, self.rounds, self.infeasible = 0.0, 0, False
        self._fresh: list[Row] = []
        self._offered: list[PipelinePlan] = []

    @property
    def mean(self) -> float:
        return float(self.step_times.mean()) if self.plan is not None else inf

    def left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def closed(self) -> bool:
        return self.mean < inf and self.bound >= (1.0 - self.gap - _HAIR) * self.mean

    def over(self) -> bool:
        return self.infeasible or self.closed() or self.left() == 0.0

    def add(self, cuts: list[PathCut]) -> None:
        tails = len(cuts[0].weights) - self.problem.stages if cuts else 0
        for cut in cuts:
            used = [r for r in self.plans.durations if cut.weights[r]]
            fixed = cut.constant + float(cut.weights[tails:] @ self.plans.tails)
            columns = (self.steps[cut.scenario], *(self.plans.durations[r] for r in used))
            weights = (1.0, *(-float(cut.weights[r]) for r in used))
            name = f"path[{cut.scenario},{len(self.form.rows)}]"
            row = Row(name, columns, weights, lower=fixed)
            self.form.rows.append(row)
            self._fresh.append(row)

    def taken(self) -> list[Row]:
        """Rows that no solver has yet."""
        rows, self._fresh = self._fresh, []
        return rows

    def offer(self, plan: PipelinePlan) -> None:
        """Add a plan's longest paths, once, and keep it where its mean is the least."""
        if plan in self._offered:
            return
        self._offered.append(plan)
        times, cuts = self.graph.cuts(chunk_durations(self.problem, plan))
        self.add(cuts)
        if times.mean() < self.mean:
            self.plan, self.step_times = plan, times

    def durations_at(self, values: Array) -> Array:
        """Durations of a point of the master, float64 [R]."""
        found = np.zeros(self.graph.classes)
        for r, column in self.plans.durations.items():
            found[r] = values[column]
        found[len(found) - self.problem.stages :] = self.plans.tails
        return found

    def tighten_relaxation(self) -> bool:
        """Add cuts at the relaxation's optima; return whether plans exist."""
        solver = HighsModel(self.form, relaxed=True)
        self.taken()
        for _ in range(_LP_ROUNDS):
            outcome = solver.solve_lp(self.left())
            if outcome.status is MilpStatus.INFEASIBLE:
                self.infeasible = True
                return False
            if outcome.values is None:
                return True
            gained = outcome.bound - self.bound
            self.bound = max(self.bound, outcome.bound)
            if self.over() or gained <= _LP_GAIN * max(self.bound, 1e-12) and self.bound > 0:
                return True
            _, cuts = self.graph.cuts(self.durations_at(outcome.values))
            self.add(cuts)
            solver.add_rows(self.taken())
        return True

    def search(self) -> None:
        """Solve MILPs over the known paths until bound and mean meet."""
        solver = HighsModel(self.form)
        self.taken()
        while not self.over():
            points: list[Array] = []
            outcome = solver.solve_milp(
                gap=_ROUND_SHARE * self.gap,
                time_limit=self.left(),
                node_limit=_NODES,
                start=None if self.plan is None else self.point(self.plan),
                on_point=points.append,
                on_bound=self._note,
            )
            self.rounds += 1
            if outcome.status is MilpStatus.INFEASIBLE:
                self.infeasible = self.plan is None
                return
            self._note(outcome.bound)
            if outcome.values is not None:
                points.append(outcome.values)
            known = len(self.form.rows)
            for point in points[-_OFFERED:]:
                self.offer(self.plans.plan(point))
            if outcome.interrupted or outcome.status is MilpStatus.FAILED or len(self.form.rows) == known:
                return
            solver.add_rows(self.taken())

    def _note(self, bound: float) -> None:
        self.bound = max(self.bound, min(bound, self.mean))

    def point(self, plan: PipelinePlan) -> Array:
        """A plan as a point of the master."""
        values = np.zeros(len(self.form.names))
        self.plans.set_plan(values, plan)
        durations = chunk_durations(self.problem, plan)
        for r, column in self.plans.durations.items():
            values[column] = durations[r]
        values[self.steps] = self.graph.step_times(plan)
        return values

    def result(self) -> ExpectedStep:
        return ExpectedStep(
            self.plan,
            self.step_times,
            min(self.bound, self.mean),
            self.infeasible,
            self.rounds,
            time.monotonic() - self.began,
        )


_OFFERED = 8
"""Last points of a MILP whose plans are evaluated."""
