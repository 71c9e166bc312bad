"""Ranges of the layers of chunks and stages in plans below a step time, which tighten the compact MILP.

Under one recompute choice a chunk recomputes min(N, layers) of them. A relaxation only has the chord between the fewest
and the most layers of the chunk, which is far too low where that range is wide. So the ranges are narrowed first: with
the step time bounded by that of the best plan, an LP gives the least and the most layers of a chunk or a stage.
Narrower ranges raise the chords, and these narrow the ranges again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import TYPE_CHECKING

from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.linear_form import Row
from taylor.pipeline_solver.milp.milp import MilpOutcome, MilpStatus

if TYPE_CHECKING:
    from taylor.pipeline_solver.milp.compact_model import CompactModel

PASSES = 8
"""Most passes over all ranges."""

WORTH = 0.05
"""Least fraction of all ranges that a pass must remove to be followed by another."""

CUT_ROUNDS = 4
"""LPs for one end of a range by default."""

RANGE, CHORD = "range", "chord"
"""Names of the rows."""

ROUNDING = 1e-5
"""Error of an LP's optimum, in layers."""


@dataclass
class LayerRange:
    """The columns whose sum is the layers of a chunk or a stage, and the sum's bounds.

    Parameters
    ----------
    taken : tuple of int
        Columns whose sum is the chunk's recomputed layers; empty for a stage.
    switch : int or None
        The column that is 1 where all the chunk's layers are recomputed, where the model has one.
    """

    layers: tuple[int, ...]
    taken: tuple[int, ...]
    switch: int | None
    least: int
    most: int

    def rows(self, count: int) -> list[Row]:
        """The bounds, and the least recomputed layers between them, which are min(count, layers)."""
        ones = (1.0,) * len(self.layers)
        rows = [Row(RANGE, self.layers, ones, float(self.least), float(self.most))]
        low, high = min(count, self.least), min(count, self.most)
        if not self.taken:
            return rows
        all_of_them = tuple(1.0 for _ in self.taken)
        if self.switch is None or low == high or self.most <= count:
            slope = (high - low) / (self.most - self.least) if self.most > self.least else 0.0
            chord = (*self.taken, *self.layers), (*all_of_them, *(-slope for _ in ones))
            return [*rows, Row(CHORD, *chord, low - slope * self.least)]
        # Where the switch is on, there are at most `count` layers and all are recomputed: two rows whose sum over the
        # switch is the chord, and which are tighter once it is set.
        beyond = float(self.most - count)
        some = (*self.taken, self.switch), (*all_of_them, float(count - low))
        every = (*self.taken, *self.layers, self.switch), (*all_of_them, *(-1.0 for _ in ones), -beyond)
        return [*rows, Row(CHORD, *some, float(count)), Row(CHORD, *every, -beyond)]


def narrow_ranges(
    model: CompactModel,
    ranges: list[LayerRange],
    below: float,
    deadline: float | None = None,
    cut_rounds: int = CUT_ROUNDS,
) -> MilpOutcome:
    """Narrow ranges to those of plans below a step time, and replace the model's range rows.

    Parameters
    ----------
    model : CompactModel
        Of a problem with one recompute choice. Paths of the final relaxation are added.
    ranges : list of LayerRange
        `layer_ranges` of the model, or narrower ones that are valid for a step time not below this one.
    deadline : float, optional
        `time.monotonic()` at which to stop; the ranges so far are used.
    cut_rounds : int
        Most LPs for one end of a range, each with the longest paths at the one before.

    Returns
    -------
    MilpOutcome
        The relaxation's outcome; infeasible where no plan lies below the step time.
    """
    known = len(model.cuts)
    for turn in range(PASSES + 1):
        outcome = _bounded(model, ranges, deadline)
        if outcome.bound > below:
            return MilpOutcome(MilpStatus.INFEASIBLE, None, inf)
        if outcome.status is not MilpStatus.OPTIMAL or turn == PASSES:
            break
        wide = sum(one.most - one.least for one in ranges)
        if not _narrowed(model, ranges, below, deadline, cut_rounds):
            return MilpOutcome(MilpStatus.INFEASIBLE, None, inf)
        if wide - sum(one.most - one.least for one in ranges) <= WORTH * wide:
            break
    if outcome.status is MilpStatus.OPTIMAL:
        # The ends of the ranges have added hundreds of paths, of which the optimum needs few.
        model.forget(known)
        outcome = model.tighten_relaxation(deadline)
    return outcome


def rule_out_short(
    model: CompactModel,
    ranges: list[LayerRange],
    below: float,
    until: float | None = None,
    deadline: float | None = None,
) -> MilpOutcome:
    """Find the chunks that cannot have fewer layers than the recompute count, which the relaxation alone does not show.

    With a chunk restricted to fewer, the ranges of all others are narrowed once more. Where that is infeasible, the
    chunk recomputes exactly the count of the choice. The chunk whose relaxation is the longest comes first, and each
    success makes the next relaxations longer; the first failure ends the search.

    Parameters
    ----------
    ranges : list of LayerRange
        Result of `narrow_ranges`; narrowed in place.
    until, deadline : float, optional
        `time.monotonic()` at which to stop with the chunks, and entirely.

    Returns
    -------
    MilpOutcome
        As `narrow_ranges` gives it.
    """
    ((_, count),) = model.problem.uniform_recompute
    tried = []
    for number, one in enumerate(ranges):
        if one.taken and one.least < count <= one.most:
            tried.append((_length(model, _short(ranges, number, count), until), number))
    for _, number in sorted(tried, reverse=True):
        known = len(model.cuts)
        closer = narrow_ranges(model, _short(ranges, number, count), below, until, 1)
        model.forget(known)
        if closer.status is not MilpStatus.INFEASIBLE:
            break
        ranges[number].least = count
    return narrow_ranges(model, ranges, below, deadline)


def _length(model: CompactModel, ranges: list[LayerRange], deadline: float | None) -> float:
    """The relaxation's step time with these ranges; its paths are not kept."""
    known = len(model.cuts)
    outcome = _bounded(model, ranges, deadline)
    model.forget(known)
    return outcome.bound


def _short(ranges: list[LayerRange], number: int, count: int) -> list[LayerRange]:
    """The ranges with one chunk restricted to fewer layers than `count`."""
    return [replace(one, most=count - 1) if at == number else replace(one) for at, one in enumerate(ranges)]


def _bounded(model: CompactModel, ranges: list[LayerRange], deadline: float | None) -> MilpOutcome:
    """Solve the relaxation with these ranges in its rows."""
    ((_, count),) = model.problem.uniform_recompute
    others = [row for row in model.form.rows if row.name not in (RANGE, CHORD)]
    model.form.rows[:] = [*(row for one in ranges for row in one.rows(count)), *others]
    return model.tighten_relaxation(deadline)


def layer_ranges(model: CompactModel) -> list[LayerRange]:
    """The range of every chunk and of every stage in the problem."""
    problem, form, plans = model.problem, model.form, model.plans
    ((mode, _),) = problem.uniform_recompute
    chunks: dict[tuple[int, int], LayerRange] = {}
    for place, least in enumerate(problem.least_layers):
        v, s = plans.schedule.chunk_at(place)
        able = [name for name, by_chunk in plans.layers.items() if (s, v) in by_chunk]
        by_chunk = tuple(plans.layers[name][s, v] for name in able)
        taken = tuple(plans.recompute[mode, name][s, v] for name in able)
        most = min(problem.layers, sum(int(form.upper[column]) for column in by_chunk))
        switches = plans.whole.get(mode, {})
        switch = switches.get((s, v))
        chunks[s, v] = LayerRange(by_chunk, taken, switch, min(least, most), most)
    stages = []
    for s in range(problem.stages):
        own = [chunks[s, v] for v in range(problem.interleaves)]
        every = tuple(column for one in own for column in one.layers)
        most = min(problem.layers, sum(one.most for one in own))
        stages.append(LayerRange(every, (), None, sum(one.least for one in own), most))
    return [one for one in (*chunks.values(), *stages) if one.layers]


def _narrowed(
    model: CompactModel, ranges: list[LayerRange], below: float, deadline: float | None, cut_rounds: int
) -> bool:
    """Narrow every range by LPs over the model's present rows; return whether a plan can exist."""
    relaxation = HighsModel(model.form, relaxed=True)
    relaxation.set_bounds(model.step_time, 0.0, below)
    relaxation.set_costs((model.step_time,), 0.0)
    places = [place for place, row in enumerate(model.form.rows) if row.name == RANGE]
    for place, one in zip(places, ranges, strict=True):
        for sign in (1.0, -1.0):
            relaxation.set_costs(one.layers, sign)
            before = known = one.least if sign > 0 else -one.most
            for _ in range(cut_rounds):
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return True
                outcome = relaxation.solve_lp(left)
                if outcome.status is MilpStatus.INFEASIBLE:
                    return False
                if outcome.values is None:
                    break
                known = max(known, ceil(outcome.bound - ROUNDING))
                longest, cuts = model.cut_at(model.durations_of(outcome.values))
                if outcome.bound <= before + ROUNDING or not cuts or longest <= below:
                    break
                relaxation.add_rows(cuts)
            if sign > 0:
                one.least = max(one.least, known)
            else:
                one.most = min(one.most, -known)
            relaxation.set_costs(one.layers, 0.0)
            if one.least > one.most:
                return False
            relaxation.set_row_bounds(place, float(one.least), float(one.most))
    return True
