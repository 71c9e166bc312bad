"""The model of the compact MILP: the plans' rows and a step time above path cuts; plans as points, points as plans."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.linear_form import LinearForm, Row
from taylor.pipeline_solver.milp.milp import MilpOutcome, MilpStatus
from taylor.pipeline_solver.milp.plan_model import PlanModel, plan_model
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import chunk_durations, graph_of
from taylor.pipeline_solver.timing.event_graph import EventGraph

MAX_LP_ROUNDS = 400
"""Most LP rounds. The relaxation converges in some dozens; the limit only ends a numerical stalemate."""


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
        """Build the model without cuts; `stopper` is checked meanwhile.

        Raises
        ------
        OutOfTime
            If the stopper's deadline passes first.
        """
        schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
        plans = plan_model(problem, schedule, stopper)
        step_time = plans.model.variable("step_time")
        return cls(problem, plans, graph_of(problem), plans.model.form(step_time), step_time)

    def add_cut(self, cut: tuple[float, ...]) -> Row | None:
        """Add one path cut; None for a known one.

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
            (self.step_time, *(self.plans.durations[r] for r in used)),
            (1.0, *(-cut[r] for r in used)),
            lower=fixed,
        )
        self.form.rows.append(row)
        return row

    def forget(self, known: int) -> None:
        """Remove the cuts after the first `known` ones."""
        gone = {f"path_cut[{number + 1}]" for number in range(known, len(self.cuts))}
        self.form.rows[:] = [row for row in self.form.rows if row.name not in gone]
        self._seen.difference_update(self.cuts[known:])
        del self.cuts[known:]

    def cut_at(self, durations: NDArray[np.float64]) -> tuple[float, list[Row]]:
        """Longest path at task times d [R], and the new cuts among both ways of breaking ties."""
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
        for r, column in self.plans.durations.items():
            durations[r] = values[column]
        return durations

    def plan_of(self, values: NDArray[np.float64]) -> PipelinePlan:
        """The plan that a point of the linear form rounds to."""
        return self.plans.plan(values)

    def point_of(self, plan: PipelinePlan) -> NDArray[np.float64]:
        """A starting point of the linear form for a solver: the plan's integers, times and step time."""
        values = np.zeros(len(self.form.names))
        self.plans.set_plan(values, plan)
        durations = chunk_durations(self.problem, plan)
        for r, column in self.plans.durations.items():
            values[column] = durations[r]
        values[self.step_time] = self.graph.longest_path(durations)
        return values

    def seed(self) -> list[Row]:
        """Cuts known before any solve: for each stage, its work with warm-up and cool-down around it.

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
