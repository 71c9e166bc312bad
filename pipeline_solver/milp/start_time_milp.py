"""The start-time MILP: one start variable a task, no path cuts.

Large and slow, but simple: the reference for the compact MILP, and the full form of the model file. Its optimum is the
same.
"""

from __future__ import annotations

import time

import numpy as np

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule
from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.linear_form import LinearForm
from taylor.pipeline_solver.milp.milp import MilpStatus
from taylor.pipeline_solver.milp.plan_model import PlanModel, plan_model
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import FEASIBLE, INFEASIBLE, Solution, Termination
from taylor.pipeline_solver.timing.durations import chunk_durations, graph_of
from taylor.pipeline_solver.timing.event_graph import edge_lags


def start_time_model(problem: PipelineProblem) -> tuple[PlanModel, LinearForm]:
    """Build the model with the start of every task as a variable.

    ``start[s,t]`` is the start of task t in stage s's order. Rows: a task begins after the one before
    it on its stage, and after its input has arrived; the step ends after every stage's last task and tail.
    """
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    plans = plan_model(problem, schedule)
    model = plans.model
    stages, tasks = schedule.order.shape[:2]
    step_time = model.variable("step_time")
    start = {(s, t): model.variable("start", (s, t)) for s in range(stages) for t in range(tasks)}
    in_turn, after_input, step_end = map(model.group, ("in_turn", "after_input", "step_end"))
    lags = edge_lags(schedule, problem.boundary_lags)
    class_of = graph_of(problem).class_in_order
    index = {
        (direction, schedule.position(v, s), micro_batch, split): (s, t)
        for s, order in enumerate(schedule.order.tolist())
        for t, (direction, v, micro_batch, split) in enumerate(order)
    }
    for s, order in enumerate(schedule.order.tolist()):
        for t, (direction, v, micro_batch, split) in enumerate(order):
            if t:
                took = plans.durations[int(class_of[s, t - 1])]
                in_turn.add((s, t), [(1, start[s, t]), (-1, start[s, t - 1]), (-1, took)], lower=0)
            needed = _needed(schedule, direction, schedule.position(v, s))
            if needed is None:
                continue
            need_direction, place = needed
            other, u = index[need_direction, place, micro_batch, split]
            if (other, u) == (s, t - 1):
                continue  # added already
            took = plans.durations[int(class_of[other, u])]
            lag = float(lags[s, direction * schedule.interleaves + v])
            after_input.add((s, t), [(1, start[s, t]), (-1, start[other, u]), (-1, took)], lower=lag)
        took = plans.durations[int(class_of[s, tasks - 1])]
        step_end.add((s,), [(1, step_time), (-1, start[s, tasks - 1]), (-1, took)], lower=plans.tails[s])
    return plans, model.form(step_time)


def solve_start_times(problem: PipelineProblem, options: SolveOptions = DEFAULT_OPTIONS) -> Solution:
    """Solve the start-time MILP with HiGHS; the time limit starts after the model is built."""
    began = time.monotonic()
    plans, form = start_time_model(problem)
    outcome = HighsModel(form, seed=options.seed, threads=options.workers).solve_milp(
        gap=options.gap, time_limit=options.time_limit
    )
    plan: PipelinePlan | None = None
    objective = None
    if outcome.values is not None:
        plan = plans.plan(outcome.values)
        objective = graph_of(problem).longest_path(chunk_durations(problem, plan))
    bound = outcome.bound if np.isfinite(outcome.bound) else None
    solution = Solution(
        FEASIBLE,
        plan=plan,
        objective=objective,
        bound=min(bound, objective) if bound is not None and objective is not None else bound,
        solver="HIGHS start-time MILP",
        seconds=time.monotonic() - began,
        statistics={"columns": len(form.names), "rows": len(form.rows)},
    )
    if outcome.status is MilpStatus.INFEASIBLE:
        return solution.replace(status=INFEASIBLE, termination=Termination.INFEASIBLE, bound=None)
    if outcome.status is MilpStatus.OPTIMAL:
        return solution.closed(interrupted=outcome.interrupted)
    if outcome.status is MilpStatus.FAILED:
        return solution.ended_by(Termination.SOLVER_FAILURE)
    return solution.ended_by(Termination.INTERRUPTED if outcome.interrupted else Termination.TIME_LIMIT)


def _needed(schedule: Schedule, direction: int, place: int) -> tuple[int, int] | None:
    """(direction, position in model order) of the task whose output a task needs."""
    if direction == FORWARD:
        return (FORWARD, place - 1) if place else None
    if direction == WEIGHT_GRADIENT:
        return BACKWARD, place
    return (FORWARD, place) if place == schedule.chunks - 1 else (BACKWARD, place + 1)
