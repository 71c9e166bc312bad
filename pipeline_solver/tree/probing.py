"""Probing: classes of a stage's configurations that no plan below a step time can use, found by an LP each.

The LP mixes configurations, long chunks of one stage with short ones of another, and splits of one stage at its mean
change little while the others go on mixing. What an integer plan cannot do shows when a stage is held to its extreme
ones alone: with a long chunk on one stage, every path through it is long. Most such classes are ruled out, and when
all are, little is left to mix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.bounds.bounding import cut_loop
from taylor.pipeline_solver.bounds.master import PRICE_ABOVE
from taylor.pipeline_solver.tree.tree_search import Search

CLASS_SHARE = 0.5
"""Share that the LP may give to a class which is probed: the largest such class of each key is."""

PROBE_ROUNDS, PROBE_CUTS = 8, 8
"""LPs for a class at most, and known paths that each of them takes at most."""

MOST_HELD = 320
"""Cuts that the LP may hold before those are dropped that are slack over all columns that are left."""

PROMISE = 0.15
"""Share of the way to the cut-off that the first LP must go, or the class is let be."""

ANEW = 0.6
"""Share of the LP's columns that must be left, or it starts afresh with those."""


def probe(search: Search, stages: Sequence[int]) -> None:
    """Rule out classes of the stages' columns: `alive` shrinks, and the prices that were met are kept.

    Raises
    ------
    OutOfTime, KeyboardInterrupt
        From the stopper; what is ruled out until then is.
    """
    if not len(stages):
        return
    master = search.lp()
    left = np.nonzero(search.alive)[0]
    if len(left) < ANEW * len(master.active) and (not master.partial or len(left) <= PRICE_ABOVE):
        master.rebuild(left, partial=False)
    base = _base_of(search)
    for s in stages:
        if base is None:
            return
        for members in _classes(search, s, base.weights):
            if not search.alive[members].any():
                continue
            mask = search.alive.copy()
            mask[search.columns.start[s] : search.columns.start[s + 1]] = False
            mask[members] = search.alive[members]
            if _holds_nothing(search, mask, base):
                search.alive[members] = False
            if len(master.held) > MOST_HELD:
                base = _base_of(search, base.basis)
                if base is None:
                    return
        bound, search.alive = search.floors.tighten(search.alive, search.cutoff)
        if bound >= search.cutoff:
            search.alive[:] = False
            return


class _Base(NamedTuple):
    """The LP over all columns that are left: its bound, a step time; `weights` float64 [columns]; and its basis."""

    bound: float
    weights: NDArray[np.float64]
    basis: highspy.HighsBasis


def _base_of(search: Search, start: highspy.HighsBasis | None = None) -> _Base | None:
    """Solve the LP from which classes are probed, from a basis where one is given.

    None where it leaves nothing to probe: no column is left, or it failed.
    """
    master = search.lp()
    master.allow(search.alive)
    if start is not None:
        master.start_from(start)
    bound, result, _ = cut_loop(master, search.plans.paths, search.stopper, search.cutoff, 1)
    if bound >= search.cutoff:
        search.alive[:] = False
    if result is None or result.point is None:
        return None
    search.keep_prices(result)
    if len(master.held) > MOST_HELD:
        master.purge()
    return _Base(bound, result.point, master.lp.getBasis())


def _classes(search: Search, s: int, weights: NDArray[np.float64]) -> Iterator[NDArray[np.int64]]:
    """For every key of the stage's columns, those of the largest values and those of the least."""
    columns = search.columns
    seen = set()
    for key in search.splits.keys:
        for sign in (1.0, -1.0):
            members = columns.start[s] + np.nonzero(search.alive[columns.start[s] : columns.start[s + 1]])[0]
            value = np.round(sign * key[members], 9)
            order = np.argsort(-value, kind="stable")
            share = np.cumsum(weights[members][order])
            ends = np.nonzero((np.diff(value[order]) < 0) & (share[:-1] <= CLASS_SHARE))[0]
            if len(ends):
                found = np.sort(members[order[: ends[-1] + 1]])
                if found.tobytes() not in seen:
                    seen.add(found.tobytes())
                    yield found


def _holds_nothing(search: Search, mask: NDArray[np.bool_], base: _Base) -> bool:
    """Whether no plan below the cut-off is in the columns."""
    bound, mask = search.floors.tighten(mask, search.cutoff)
    if bound >= search.cutoff:
        return True
    master = search.lp()
    master.allow(mask)
    master.start_from(base.basis)  # from here it is fewer steps to a class than from one class to the next
    for turn in range(PROBE_ROUNDS):
        bound, result, _ = cut_loop(master, search.plans.paths, search.stopper, search.cutoff, 1, known=PROBE_CUTS)
        if bound >= search.cutoff:
            return True
        if result is None or result.point is None:
            return False
        search.keep_prices(result)
        # The LP's value: as long as columns enter its bound says little.
        if turn == 0 and result.value - base.bound < PROMISE * (search.cutoff - base.bound):
            return False
    return False
