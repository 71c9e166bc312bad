"""One outer choice as a MILP with the end of every task as a variable: a second opinion, and the model as a file.

It shares only the costs with the exact search: no contents, no cuts, no bounds. Every layer takes one path through
chunks and layouts; a task ends after the one before it on its stage, and after its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from taylor.layerwise.exact.events import LaggedGraph
from taylor.layerwise.exact.fixed import FixedProblem
from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.linear_form import INFINITY, LinearForm, Row, write_mps_file
from taylor.pipeline_solver.milp.milp import MilpOutcome

STEP = "step_time"
Terms = list[tuple[int, float]]


class _Placed(NamedTuple):
    """The column that is 1 where a layer is in a chunk, by its number in model order, with a choice."""

    column: int
    chunk: int
    choice: int


class _Form:
    """Columns and rows as they are stated."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.upper: list[float] = []
        self.integer: list[bool] = []
        self.rows: list[Row] = []

    def column(self, name: str, upper: float = INFINITY, integer: bool = False) -> int:
        self.names.append(name)
        self.upper.append(upper)
        self.integer.append(integer)
        return len(self.names) - 1

    def row(self, name: str, terms: Terms, lower: float = -INFINITY, upper: float = INFINITY) -> None:
        # A reader of the file takes a column once a row.
        merged: dict[int, float] = {}
        for column, weight in terms:
            merged[column] = merged.get(column, 0.0) + weight
        kept = {column: weight for column, weight in merged.items() if weight}
        self.rows.append(Row(name, tuple(kept), tuple(kept.values()), lower, upper))

    def form(self) -> LinearForm:
        count = len(self.names)
        cost = np.zeros(count)
        cost[self.names.index(STEP)] = 1.0
        upper, whole = np.array(self.upper), np.array(self.integer, dtype=bool)
        return LinearForm(tuple(self.names), np.zeros(count), upper, cost, whole, self.rows)


def milp_form(problem: FixedProblem) -> LinearForm:
    """State one outer choice as a MILP whose optimum is the least step, s.

    ``x[layer,chunk,choice]`` is 1 for the chunk and the choice of a layer. ``stay`` and ``move``
    ``[layer,chunk,from,to]`` are the change of layout in front of a layer that is in the chunk of the layer before it,
    or begins the next. ``end[n]`` is the end of a task, ``time[class]`` the time of a class's tasks.
    """
    form, graph = _Form(), LaggedGraph.of(problem.schedule)
    step = form.column(STEP)
    paths = _Paths(form, problem, graph)
    _memory(form, problem, paths.placed)
    _tasks(form, problem, graph, paths.terms, step)
    return form.form()


def milp_solution(problem: FixedProblem, *, gap: float = 1e-9, time_limit: float | None = None) -> MilpOutcome:
    """Solve it with HiGHS; the first value of the point is the step, s."""
    return HighsModel(milp_form(problem)).solve_milp(gap=gap, time_limit=time_limit)


def write_milp(problem: FixedProblem, path: Path, comments: Sequence[str] = ()) -> Path:
    """Write it as an MPS file that any solver reads.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    schedule = problem.schedule
    header = [
        f"{schedule.stages} stages, {schedule.interleaves} virtual stages, {schedule.micro_batches} micro-batches; "
        f"{problem.layers} layers; minimise {STEP}, in seconds",
        *comments,
        "x[layer,chunk,choice]: chunk, in model order, and choice of a layer",
        *(f"choice {c}: {strategy.name}" for c, strategy in enumerate(problem.strategies)),
    ]
    return write_mps_file(milp_form(problem), path, header)


class _Paths:
    """Choices and paths of the layers: their times by class, and the choices' columns."""

    def __init__(self, form: _Form, problem: FixedProblem, graph: LaggedGraph) -> None:
        self.form, self.problem, self.graph = form, problem, graph
        self.terms: list[Terms] = [[] for _ in range(graph.classes)]
        self.placed: list[_Placed] = []
        # By layer, chunk and layout: flow that reaches it from the layer before, and flow to the layer behind.
        self.into: dict[tuple[int, int, int], Terms] = {}
        self.out: dict[tuple[int, int, int], Terms] = {}
        kinds = np.repeat(np.arange(len(problem.by_kind)), problem.by_kind)
        for layer in range(problem.layers):
            self._place(layer, np.nonzero(problem.kind == kinds[layer])[0].tolist())
        for layer, chunk, y in list(self.into):
            if layer:
                self._arrive(layer, chunk, y)
        for (layer, chunk, y), arriving in self.into.items():
            if layer > 0:
                form.row(f"into[{layer},{chunk},{y}]", arriving, 0.0, 0.0)
            if layer < problem.layers - 1:
                form.row(f"out[{layer},{chunk},{y}]", self.out[layer, chunk, y], 0.0, 0.0)

    def _place(self, layer: int, choices: list[int]) -> None:
        """Columns of a layer's chunk and choice, of which one is 1."""
        problem, chunks, end = self.problem, self.problem.chunks, self.problem.end_layout
        placed: Terms = []
        # Every chunk has a layer at least, so that the first and the last of them have few places.
        for chunk in range(max(0, chunks - problem.layers + layer), min(chunks, layer + 1)):
            for c in choices:
                x = self.form.column(f"x[{layer},{chunk},{c}]", 1.0, integer=True)
                self.placed.append(_Placed(x, chunk, c))
                placed.append((x, 1.0))
                self._add_times(chunk, x, c)
                y = int(problem.layout[c])
                self.into.setdefault((layer, chunk, y), []).append((x, -1.0))
                self.out.setdefault((layer, chunk, y), []).append((x, -1.0))
                if layer == 0:
                    self._add_change(0, x, float(problem.change[end, y]))
                if layer == problem.layers - 1:
                    self._add_change(chunks - 1, x, float(problem.change[y, end]))
        self.form.row(f"one_choice[{layer}]", placed, 1.0, 1.0)

    def _arrive(self, layer: int, chunk: int, y: int) -> None:
        """Flows to a layer from the one before it, in the same chunk or the chunk before."""
        problem = self.problem
        for moved, name in enumerate(("stay", "move")):
            for a in range(len(problem.change)):
                source = layer - 1, chunk - moved, a
                if source not in self.out:
                    continue
                flow = self.form.column(f"{name}[{layer},{chunk},{a},{y}]", 1.0)
                self.into[layer, chunk, y].append((flow, 1.0))
                self.out[source].append((flow, 1.0))
                self._add_change(chunk, flow, float(problem.change[a, y]))
                if moved:
                    self.terms[self.graph.lag(chunk - 1)].append((flow, float(problem.handover[a])))

    def _add_times(self, chunk: int, column: int, choice: int) -> None:
        problem, graph = self.problem, self.graph
        stage = problem.schedule.chunk_at(chunk)[1]
        self.terms[graph.class_of(0, chunk)].append((column, float(problem.forward[choice])))
        self.terms[graph.class_of(1, chunk)].append((column, float(problem.backward[choice])))
        self.terms[graph.tail(stage)].append((column, float(problem.tail[choice])))

    def _add_change(self, chunk: int, column: int, seconds: float) -> None:
        for direction in (0, 1):
            self.terms[self.graph.class_of(direction, chunk)].append((column, seconds / 2))


def _memory(form: _Form, problem: FixedProblem, placed: Sequence[_Placed]) -> None:
    """Layers and the largest working memory fit at every worst moment of a stage."""
    working = [form.column(f"working[{s}]") for s in range(problem.stages)]
    columns: list[list[tuple[int, int, int]]] = [[] for _ in working]
    for column, chunk, c in placed:
        v, s = problem.schedule.chunk_at(chunk)
        columns[s].append((column, v, c))
        if problem.working[c]:
            name = form.names[column].removeprefix("x")
            form.row(f"works{name}", [(working[s], 1.0), (column, -float(problem.working[c]))], lower=0.0)
    for s, (memory, free) in enumerate(zip(problem.memory, problem.free, strict=True)):
        for moment, most in enumerate(free.tolist()):
            terms = [(working[s], 1.0), *((column, float(memory[moment, v, c])) for column, v, c in columns[s])]
            form.row(f"memory[{s},{moment}]", terms, upper=most)


def _tasks(form: _Form, problem: FixedProblem, graph: LaggedGraph, terms: list[Terms], step: int) -> None:
    """Times of the classes, ends of the tasks, and the step behind them all."""
    constant = np.zeros(graph.classes)
    for chunk in range(problem.chunks):
        constant[graph.class_of(0, chunk)] = problem.end_forward[chunk]
        constant[graph.class_of(1, chunk)] = problem.end_backward[chunk]
    for s in range(problem.stages):
        constant[graph.tail(s)] = problem.end_tail[s]
    times = [form.column(f"time[{each}]") for each in range(graph.classes)]
    for each, column in enumerate(times):
        form.row(f"takes[{each}]", [(column, 1.0), *((x, -weight) for x, weight in terms[each])],
                 float(constant[each]), float(constant[each]))  # fmt: skip
    tasks = graph.graph
    ends = [-1, *(form.column(f"end[{n + 1}]") for n in range(len(tasks.before)))]
    for n, (before, needed, kind, edge) in enumerate(
        zip(tasks.before.tolist(), tasks.needed.tolist(), tasks.task_class.tolist(), graph.edge_class.tolist(),
            strict=True)
    ):  # fmt: skip
        took: Terms = [(ends[n + 1], 1.0), (times[kind], -1.0)]
        form.row(f"in_turn[{n + 1}]", took + ([(ends[before], -1.0)] if before > 0 else []), lower=0.0)
        if needed > 0:
            lag: Terms = [(times[edge], -1.0)] if edge >= 0 else []
            form.row(f"after_input[{n + 1}]", [*took, (ends[needed], -1.0), *lag], lower=0.0)
    for s, last in enumerate(tasks.last.tolist()):
        form.row(f"step_end[{s}]", [(step, 1.0), (ends[last], -1.0), (times[graph.tail(s)], -1.0)], lower=0.0)
