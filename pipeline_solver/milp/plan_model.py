"""The common part of all MILPs of the pipeline problem: the set of plans, as a linear model.

Variables have the names of the model file: ``x_moe[3,0]`` is the number of MoE layers on stage 3, virtual stage 0;
``recompute_moe[3,0]`` and ``select_moe[3,0]`` count those that are fully and selectively recomputed; ``forward[3,0]``
and ``backward[3,0]`` are the times of one task of the chunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import Grid, PipelinePlan, as_grid
from taylor.pipeline.schedule import Schedule
from taylor.pipeline_solver.milp.linear_form import LinearModel
from taylor.pipeline_solver.milp.plan_rows import (
    Chunk,
    Columns,
    add_durations,
    add_joined_rows,
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
from taylor.pipeline_solver.timing.evaluate import lent_memory_mib


@dataclass(frozen=True)
class PlanModel:
    """A linear model whose feasible points are the plans of a problem, and its columns.

    Parameters
    ----------
    model : LinearModel
        With rows for layers, order of kinds, recompute and memory; no objective.
    layers : dict of kind name to columns
    recompute : dict of (mode, kind name) to columns
    durations : dict of duration class to column
        Task times by the class index of the event graph; tails are not among them.
    begun : dict of kind index to columns
        1 where a chunk or one before it has the kind or a later one.
    holds : dict of kind name to columns
        1 where a chunk has a joined kind.
    reached : dict of (mode, kind index) to columns
        1 where recompute in the mode or one before it reaches the kind.
    uniform : list of column
        1 for the one choice of `PipelineProblem.uniform_recompute` that applies to every chunk; empty without a rule.
    whole : dict of mode to columns
        1 where a chunk has no more layers than that choice recomputes, so that all are recomputed.
    reserved : dict of stage to column
        MiB that are reserved on the stage's lender.
    """

    problem: PipelineProblem
    schedule: Schedule
    model: LinearModel
    layers: dict[str, Columns]
    recompute: dict[tuple[str, str], Columns]
    durations: dict[int, int]
    begun: dict[int, Columns]
    holds: dict[str, Columns]
    reached: dict[tuple[str, int], Columns]
    uniform: list[int]
    whole: dict[str, Columns]
    reserved: dict[int, int]

    @cached_property
    def tails(self) -> NDArray[np.float64]:
        """End-of-step tails, float64 [S]."""
        return np.array(self.problem.tail or [0.0] * self.problem.stages)

    def plan(self, values: NDArray[np.float64]) -> PipelinePlan:
        """The plan that a point, float64 [n], rounds to."""
        problem = self.problem

        def grid(variables: list[Columns]) -> list[list[int]]:
            rows = [[0] * problem.stages for _ in range(problem.interleaves)]
            for variable in variables:
                for (s, v), column in variable.items():
                    rows[v][s] += round(values[column])
            return rows

        layers = {}
        for kind in problem.kinds:
            rows = grid([self.layers[kind.name]] if kind.name in self.layers else [])
            if kind.pinned:
                v, s = self.schedule.chunk_at(problem.places_of(kind)[0])
                rows[v][s] = kind.count
            layers[kind.name] = as_grid(rows)
        recompute = {
            mode: as_grid(grid([counted for (of, _), counted in self.recompute.items() if of == mode]))
            for mode in problem.searched_modes
        }
        return PipelinePlan(layers, recompute)

    def set_plan(self, values: NDArray[np.float64], plan: PipelinePlan) -> None:
        """Set a point of zeros, float64 [n], to a plan (except for task times)."""
        by_kind = plan.recompute_by_kind()
        for name, variable in self.layers.items():
            for (s, v), column in variable.items():
                values[column] = plan.layers[name][v][s]
        for (mode, name), variable in self.recompute.items():
            for (s, v), column in variable.items():
                values[column] = by_kind[name][mode][v][s] if mode in by_kind[name] else 0
        for index, variable in self.begun.items():
            late, seen = list(self.layers)[index:], False
            for (s, v), column in variable.items():  # in model order
                seen = seen or any(plan.layers[name][v][s] for name in late)
                values[column] = int(seen)
        for name, variable in self.holds.items():
            for (s, v), column in variable.items():
                values[column] = int(plan.layers[name][v][s] > 0)
        self._set_reached(values, by_kind)
        self._set_reserved(values, plan)
        if self.uniform and (chosen := uniform_choice(self.problem, plan)) is not None:
            values[self.uniform[chosen]] = 1
            count = plan.total_layers(list(self.layers))
            for mode, variable in self.whole.items():
                for (s, v), column in variable.items():
                    again = plan.recompute[mode][v][s] if mode in plan.recompute else 0
                    values[column] = int(again == count[v][s])

    def _set_reserved(self, values: NDArray[np.float64], plan: PipelinePlan) -> None:
        """Set the columns of `reserved` to the most that a plan's stages lend."""
        lent = lent_memory_mib(self.problem, plan) if self.reserved else ()
        for s, column in self.reserved.items():
            values[column] = lent[s]

    def _set_reached(self, values: NDArray[np.float64], by_kind: Mapping[str, Mapping[str, Grid]]) -> None:
        """Set the columns of `reached` to a plan's layers by kind and mode."""
        for (mode, index), variable in self.reached.items():
            modes = self.problem.searched_modes
            modes = modes[: modes.index(mode) + 1]
            for (s, v), column in variable.items():
                late = list(self.layers)[index:]
                taken = any(by_kind[name][of][v][s] for name in late for of in modes if of in by_kind[name])
                values[column] = int(taken)


def plan_model(problem: PipelineProblem, schedule: Schedule | None = None, stopper: Stopper | None = None) -> PlanModel:
    """Build the model of a problem's plans.

    Rows: layers by kind; least, greatest and given layers a chunk; a contiguous run of the model's
    layers a chunk; recompute of the first layers of a chunk (as a file can express it);
    memory of every stage at every Pareto-maximal moment; times of every chunk's tasks. A `stopper` is checked at
    every row.
    """
    schedule = schedule or build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    model = LinearModel(stopper)
    chunks: list[Chunk] = [(s, v) for v, s in map(schedule.chunk_at, range(schedule.chunks))]
    kinds = [kind for kind in problem.free_kinds if kind.count]
    most = layer_bounds(problem, kinds, chunks)
    layers: dict[str, Columns] = {}
    recompute: dict[tuple[str, str], Columns] = {}
    for kind in kinds:
        possible = [chunk for chunk in chunks if most[kind.name, chunk] > 0]
        name = safe_name(kind.name)

        def counts(name: str, kind: str = kind.name, possible: list[Chunk] = possible) -> Columns:
            return {chunk: model.variable(name, chunk, upper=most[kind, chunk], integer=True) for chunk in possible}

        layers[kind.name] = counts(f"x_{name}")
        for mode in problem.searched_modes:
            recompute[mode, kind.name] = counts(f"{mode_prefix(mode)}_{name}")
    add_layer_rows(model, problem, kinds, chunks, layers)
    begun = add_order_rows(model, kinds, chunks, layers, most)
    holds = add_joined_rows(model, kinds, chunks, layers)
    reached = add_recompute_rows(model, problem, kinds, chunks, layers, recompute, most)
    reserved = add_memory_rows(model, problem, schedule, kinds, layers, recompute)
    durations = add_durations(model, problem, schedule, kinds, layers, recompute)
    ruled = [mode for mode in problem.searched_modes if mode not in problem.lending_choices]
    prefixes = {mode: mode_prefix(mode) for mode in ruled}
    uniform, whole = add_uniform_rows(model, problem, prefixes, kinds, chunks, layers, recompute, most)
    return PlanModel(
        problem, schedule, model, layers, recompute, durations, begun, holds, reached, uniform, whole, reserved
    )
