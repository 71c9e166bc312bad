"""The common part of all MILPs of the pipeline problem: the set of plans, as a Pyomo model.

Variables have the names of the model file: ``x_moe[3,0]`` is the number of MoE layers on stage 3, virtual stage 0;
``recompute_moe[3,0]`` and ``select_moe[3,0]`` count those that are fully and selectively recomputed; ``forward[3,0]``
and ``backward[3,0]`` are the times of one task of the chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import PipelinePlan, as_grid
from taylor.pipeline.schedule import Schedule
from taylor.pipeline_solver.milp.plan_rows import (
    Chunk,
    add_durations,
    add_layer_rows,
    add_memory_rows,
    add_order_rows,
    add_recompute_rows,
    layer_bounds,
    mode_prefix,
    safe_name,
)
from taylor.pipeline_solver.milp.uniform_rows import add_uniform_rows
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.model.uniform_rule import uniform_choice


@dataclass(frozen=True)
class PlanModel:
    """A Pyomo model whose feasible points are the plans of a problem, and the handles to read it.

    Parameters
    ----------
    model : pyomo ConcreteModel
        With rows for layers, order of kinds, recompute and memory; no objective.
    layers : dict of kind name to pyomo Var
    recompute : dict of (mode, kind name) to pyomo Var
    durations : dict of duration class to pyomo variable
        Task times by the class index of the event graph; tails are not among them.
    begun : dict of kind index to pyomo Var
        1 where a chunk or one before it has the kind or a later one.
    reached : dict of (mode, kind index) to pyomo Var
        1 where recompute in the mode or one before it reaches the kind.
    uniform : pyomo Var or None
        1 for the one choice of `PipelineProblem.uniform_recompute` that applies to every chunk.
    whole : dict of mode to pyomo Var
        1 where a chunk has no more layers than that choice recomputes, so that all are recomputed.
    """

    problem: PipelineProblem
    schedule: Schedule
    model: Any
    layers: dict[str, Any]
    recompute: dict[tuple[str, str], Any]
    durations: dict[int, Any]
    begun: dict[int, Any]
    reached: dict[tuple[str, int], Any]
    uniform: Any
    whole: dict[str, Any]

    @cached_property
    def tails(self) -> NDArray[np.float64]:
        """End-of-step tails, float64 [S]."""
        return np.array(self.problem.tail or [0.0] * self.problem.stages)

    def plan(self) -> PipelinePlan:
        """The plan that the variables' present values round to."""
        problem = self.problem

        def grid(variables: list[Any]) -> list[list[int]]:
            rows = [[0] * problem.stages for _ in range(problem.interleaves)]
            for variable in variables:
                for (s, v), entry in variable.items():
                    rows[v][s] += round(entry.value or 0.0)
            return rows

        layers = {}
        for kind in problem.kinds:
            rows = grid([self.layers[kind.name]] if kind.name in self.layers else [])
            if kind.pinned_last:
                v, s = self.schedule.chunk_at(problem.places_of(kind)[0])
                rows[v][s] = kind.count
            layers[kind.name] = as_grid(rows)
        recompute = {
            mode: as_grid(grid([var for (of, _), var in self.recompute.items() if of == mode]))
            for mode in problem.searched_modes
        }
        return PipelinePlan(layers, recompute)

    def set_plan(self, plan: PipelinePlan) -> None:
        """Set the variables to a plan (except for task times)."""
        by_kind = plan.recompute_by_kind()
        for name, variable in self.layers.items():
            for (s, v), entry in variable.items():
                entry.set_value(plan.layers[name][v][s], skip_validation=True)
        for (mode, name), variable in self.recompute.items():
            for (s, v), entry in variable.items():
                count = by_kind[name][mode][v][s] if mode in by_kind[name] else 0
                entry.set_value(count, skip_validation=True)
        for index, variable in self.begun.items():
            late, seen = list(self.layers)[index:], False
            for (s, v), entry in variable.items():  # in model order
                seen = seen or any(plan.layers[name][v][s] for name in late)
                entry.set_value(int(seen), skip_validation=True)
        for (mode, index), variable in self.reached.items():
            modes = self.problem.searched_modes
            modes = modes[: modes.index(mode) + 1]
            for (s, v), entry in variable.items():
                late = list(self.layers)[index:]
                taken = any(by_kind[name][of][v][s] for name in late for of in modes if of in by_kind[name])
                entry.set_value(int(taken), skip_validation=True)
        if self.uniform is not None and (chosen := uniform_choice(self.problem, plan)) is not None:
            self.uniform[chosen].set_value(1, skip_validation=True)
            count = plan.total_layers(list(self.layers))
            for mode, variable in self.whole.items():
                for (s, v), entry in variable.items():
                    again = plan.recompute[mode][v][s] if mode in plan.recompute else 0
                    entry.set_value(int(again == count[v][s]), skip_validation=True)


def plan_model(problem: PipelineProblem, schedule: Schedule | None = None, stopper: Stopper | None = None) -> PlanModel:
    """Build the model of a problem's plans.

    Rows: layers by kind; least, greatest and given layers a chunk; a contiguous run of the model's
    layers a chunk; recompute of the first layers of a chunk (as a file can express it);
    memory of every stage at every Pareto-maximal moment; times of every chunk's tasks. A `stopper` is checked now and
    then.
    """
    schedule = schedule or build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    model = pyo.ConcreteModel()
    chunks: list[Chunk] = [(s, v) for v, s in map(schedule.chunk_at, range(schedule.chunks))]
    kinds = [kind for kind in problem.free_kinds if kind.count]
    most = layer_bounds(problem, kinds, chunks)
    layers: dict[str, Any] = {}
    recompute: dict[tuple[str, str], Any] = {}
    for kind in kinds:
        possible = [chunk for chunk in chunks if most[kind.name, chunk] > 0]
        name = safe_name(kind.name)
        variable = pyo.Var(possible, domain=pyo.NonNegativeIntegers, bounds=_bounds(most, kind.name))
        model.add_component(f"x_{name}", variable)
        layers[kind.name] = variable
        for mode in problem.searched_modes:
            counted = pyo.Var(possible, domain=pyo.NonNegativeIntegers, bounds=_bounds(most, kind.name))
            model.add_component(f"{mode_prefix(mode)}_{name}", counted)
            recompute[mode, kind.name] = counted
    add_layer_rows(model, problem, kinds, chunks, layers)
    begun = add_order_rows(model, kinds, chunks, layers, most)
    reached = add_recompute_rows(model, problem, kinds, chunks, layers, recompute, most)
    add_memory_rows(model, problem, schedule, kinds, layers, recompute, stopper)
    durations = add_durations(model, problem, schedule, kinds, layers, recompute)
    prefixes = {mode: mode_prefix(mode) for mode in problem.searched_modes}
    uniform, whole = add_uniform_rows(model, problem, prefixes, kinds, chunks, layers, recompute, most)
    return PlanModel(problem, schedule, model, layers, recompute, durations, begun, reached, uniform, whole)


def _bounds(most: dict[tuple[str, Chunk], int], name: str) -> Any:
    return lambda _model, s, v: (0, most[name, (s, v)])
