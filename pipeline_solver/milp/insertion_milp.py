"""The MILP of an insertion: how many pieces of which micro-batch of an encoder each idle window of a plan has.

A window has its forwards first, in rising order of micro-batches, and its backwards at its end, in rising order: a
forward may always be earlier and a backward later within a window. Rows then bound sums of pieces alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.linear_form import LinearForm, LinearModel, Term, times, write_mps_file
from taylor.pipeline_solver.milp.milp import MilpStatus
from taylor.pipeline_solver.model.insertion import EncoderWork, Insertion, InsertionResult, Pieces
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import PROVEN_GAP, proven_within
from taylor.pipeline_solver.timing.idle_windows import IdleWindows, idle_windows

Columns = dict[tuple[int, int, int], int]
"""Column by stage, window and micro-batch."""


@dataclass(frozen=True)
class InsertionModel:
    """The MILP, and the columns of its pieces."""

    form: LinearForm
    forward: Columns
    backward: Columns

    def pieces(self, values: NDArray[np.float64], idle: IdleWindows) -> tuple[Pieces, Pieces]:
        """Forward and backward pieces of a point, float64 [columns], rounded."""

        def of(columns: Columns) -> Pieces:
            return [
                [
                    [round(values[columns[s, g, j]]) if (s, g, j) in columns else 0 for j in range(idle.micro_batches)]
                    for g in range(len(windows))
                ]
                for s, windows in enumerate(idle.windows)
            ]

        return of(self.forward), of(self.backward)


def columns_of(idle: IdleWindows) -> int:
    """Number of columns of pieces that the MILP has at most."""
    return 2 * idle.micro_batches * sum(map(len, idle.windows))


def insertion_model(idle: IdleWindows, work: EncoderWork) -> InsertionModel:
    """Build the MILP; it minimises ``step``.

    ``forward[s,g,j]`` and ``backward[s,g,j]`` are pieces of micro-batch j in window g of stage s, ``on[j,s]`` its
    stage, ``delay`` that of the language model, ``last`` the end of the step after it began.
    """
    model = LinearModel()
    step, delay, last = model.variable("step"), model.variable("delay"), model.variable("last")
    model.group("step").add((), [(1, step), (-1, delay), (-1, last)], lower=0)
    model.group("alone").add((), [(1, last)], lower=idle.step)
    every = range(idle.micro_batches)
    on = model.switches("on", [(j, s) for j in every for s in range(idle.stages)])
    places = [(s, g, j) for s, windows in enumerate(idle.windows) for g in range(len(windows)) for j in every]
    forward = _pieces(model, "forward", places, [idle.most_forward(work, *place) for place in places])
    backward = _pieces(model, "backward", places, [idle.most_backward(work, *place) for place in places])
    for j in every:
        model.group("placed").add((j,), [(1, on[j, s]) for s in range(idle.stages)], lower=1, upper=1)
        for s, windows in enumerate(idle.windows):
            for name, columns in (("all_forward", forward), ("all_backward", backward if work.backward else None)):
                if columns is not None:
                    own = [(1.0, columns[s, g, j]) for g in range(len(windows)) if (s, g, j) in columns]
                    model.group(name).add((j, s), [*own, (-work.pieces, on[j, s])], lower=0, upper=0)
    for s, windows in enumerate(idle.windows):
        for g in range(len(windows)):
            before = _times(work.forward, forward, s, g, every)
            behind = _times(work.backward, backward, s, g, every)
            if g == 0:
                _front(model, idle, work, s, delay, before, on)
            elif g == len(windows) - 1:
                _back(model, idle, work, s, last, behind, on)
            else:
                _between(model, idle, work, (s, g), before, behind)
        if idle.alive[s] < idle.micro_batches:
            _memory(model, idle, work, s, forward, backward)
    return InsertionModel(model.form(step), forward, backward)


def write_insertion_mps(
    problem: PipelineProblem, plan: PipelinePlan, work: EncoderWork, found: Insertion, path: Path
) -> Path:
    """Write the MILP of an insertion into a plan; any MPS reader finds the best one in it.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    comments = [
        f"insert {work.pieces} pieces of {work.forward!r} forward and {work.backward!r} backward for each of "
        f"{problem.micro_batches} micro-batches into a plan of {problem.stages} stages; minimise step, in forward "
        "times of a body layer",
        f"found: step {found.step!r}, delay {found.delay!r}",
        "forward[stage,window,micro-batch], backward[...]: pieces; on[micro-batch,stage]: its stage",
    ]
    return write_mps_file(insertion_model(idle_windows(problem, plan, work), work).form, path, comments)


def solve_insertion(
    idle: IdleWindows, work: EncoderWork, time_limit: float | None, start: Insertion | None = None
) -> InsertionResult:
    """Solve the MILP with HiGHS; no worse than the insertion at the `start`, if one is given."""
    model = insertion_model(idle, work)
    outcome = HighsModel(model.form).solve_milp(gap=PROVEN_GAP / 10, time_limit=time_limit)
    if outcome.status is MilpStatus.INFEASIBLE:
        return InsertionResult(None, inf, proven=True)
    bound, found = max(idle.least_step(work), outcome.bound), start
    if outcome.values is not None:
        better = idle.timed(work, *model.pieces(outcome.values, idle))
        found = better if found is None or better.step < found.step else found
    if found is None:
        return InsertionResult(None, bound, proven=False)
    bound = min(bound, found.step)
    return InsertionResult(found, bound, proven_within(found.step, bound, PROVEN_GAP))


def _pieces(model: LinearModel, name: str, places: list[tuple[int, int, int]], most: list[int]) -> Columns:
    return {
        place: model.variable(name, place, upper=upper, integer=True)
        for place, upper in zip(places, most, strict=True)
        if upper
    }


def _times(each: float, columns: Columns, s: int, g: int, every: range) -> list[list[Term]]:
    """Time of each micro-batch's pieces in a window."""
    return [[(each, columns[s, g, j])] if (s, g, j) in columns else [] for j in every]


def _sum(parts: list[list[Term]]) -> list[Term]:
    return [term for part in parts for term in part]


def _front(
    model: LinearModel,
    idle: IdleWindows,
    work: EncoderWork,
    s: int,
    delay: int,
    before: list[list[Term]],
    on: dict[tuple[int, int], int],
) -> None:
    """The window before the stage's first task, which the delay makes longer."""
    first = idle.windows[s][0][1]
    model.group("first").add((s,), [(1, delay), *times(-1, _sum(before))], lower=-first)
    for j in range(idle.micro_batches):
        needed = idle.needed[j] - work.lag_of(s)
        if not before[j] or needed >= first:
            continue
        so_far = times(-1, _sum(before[: j + 1]))
        if needed >= 0:
            model.group("in_time").add((s, j), [(1, delay), *so_far], lower=-needed)
            continue
        for i in range(j + 1):  # only where the stage has one of these does the delay cover the transfer
            model.group("in_time").add((s, j, i), [(1, delay), (needed, on[i, s]), *so_far], lower=0)


def _back(
    model: LinearModel,
    idle: IdleWindows,
    work: EncoderWork,
    s: int,
    last: int,
    behind: list[list[Term]],
    on: dict[tuple[int, int], int],
) -> None:
    """The window behind the stage's last task."""
    end = idle.windows[s][-1][0]
    for j in range(idle.micro_batches):
        if not behind[j]:
            continue
        start = max(end, idle.there[j] + work.lag_of(s)) + idle.tail[s]
        rest = times(-1, _sum(behind[j:]))
        if start <= idle.step:
            model.group("ended").add((s, j), [(1, last), *rest], lower=start)
            continue
        for i in range(j, idle.micro_batches):  # only where the stage has one of these does it wait for the gradient
            terms = [(1.0, last), (idle.step - start, on[i, s]), *rest]
            model.group("ended").add((s, j, i), terms, lower=idle.step)


def _between(
    model: LinearModel,
    idle: IdleWindows,
    work: EncoderWork,
    at: tuple[int, int],
    before: list[list[Term]],
    behind: list[list[Term]],
) -> None:
    """A window between two tasks of the stage."""
    s, g = at
    start, end = idle.windows[s][g]
    if terms := [*_sum(before), *_sum(behind)]:
        model.group("window").add(at, terms, upper=end - start)
    for j in range(idle.micro_batches):
        needed = idle.needed[j] - work.lag_of(s)
        if before[j] and needed < end:
            model.group("in_time").add((s, g, j), _sum(before[: j + 1]), upper=needed - start)
        there = idle.there[j] + work.lag_of(s)
        if behind[j] and there > start:
            model.group("behind").add((s, g, j), _sum(behind[j:]), upper=end - there)


def _memory(
    model: LinearModel, idle: IdleWindows, work: EncoderWork, s: int, forward: Columns, backward: Columns
) -> None:
    """At most `IdleWindows.alive` micro-batches between their first forward and their last backward piece.

    A window's forwards come before its backwards, so that a micro-batch counts in every window from that of its first
    forward to that of its last backward.
    """
    windows = range(len(idle.windows[s]))
    alive: list[list[Term]] = [[] for _ in windows]
    for j in range(idle.micro_batches):
        begun = model.switches("begun", [(s, g, j) for g in windows])
        ended = model.switches("ended_before", [(s, g, j) for g in windows])
        for g in windows:
            if (s, g, j) in forward:
                pieces: list[Term] = [(work.pieces, begun[s, g, j]), (-1, forward[s, g, j])]
                model.group("begins").add((s, g, j), pieces, lower=0)
            if g:
                model.group("stays_begun").add((s, g, j), [(1, begun[s, g, j]), (-1, begun[s, g - 1, j])], lower=0)
            earlier = [(1.0, backward[s, k, j]) for k in range(g) if (s, k, j) in backward]
            model.group("ends").add((s, g, j), [*earlier, (-work.pieces, ended[s, g, j])], lower=0)
            alive[g] += [(1, begun[s, g, j]), (-1, ended[s, g, j])]
    for g in windows:
        model.group("alive").add((s, g), alive[g], upper=idle.alive[s])
