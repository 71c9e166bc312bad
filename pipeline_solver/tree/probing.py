"""Probing: classes of a stage's columns that no plan below a step time can use, found by an LP each.

The LP mixes columns, long chunks of one stage with short ones of another, and splits of one stage at its mean change
little while the others remain mixed. A stage restricted to its extreme columns shows what no integer plan can do: with
a long chunk on one stage, every path through it is long. Most such classes are ruled out, and when all are, little
remains to mix.
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
"""Most weight in the LP of a probed class: of each key, the largest such class is probed."""

PROBE_ROUNDS, PROBE_CUTS = 8, 8
"""Most LPs for a class, and most known paths that each of them takes."""

MOST_HELD = 320
"""Most cuts of the LP before those that are slack over all remaining columns are dropped."""

PROMISE = 0.15
"""Least fraction of the gap to the cutoff that the first LP must close, or the class is skipped."""

ANEW = 0.6
"""Least remaining fraction of the LP's columns; below it the LP is rebuilt from the rest."""


def probe(search: Search, stages: Sequence[int]) -> None:
    """Rule out classes of the stages' columns: `alive` shrinks, and the dual values found are kept.

    Raises
    ------
    OutOfTime, KeyboardInterrupt
        From the stopper; what was ruled out before stays so.
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
    """The LP over all remaining columns: its bound, a step time; `weights` float64 [columns]; and its basis."""

    bound: float
    weights: NDArray[np.float64]
    basis: highspy.HighsBasis


def _base_of(search: Search, start: highspy.HighsBasis | None = None) -> _Base | None:
    """Solve the LP from which classes are probed, from a basis where one is given.

    None where there is nothing to probe: no column remains, or the LP failed.
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
    """Return whether the columns have no plan below the cutoff."""
    bound, mask = search.floors.tighten(mask, search.cutoff)
    if bound >= search.cutoff:
        return True
    master = search.lp()
    master.allow(mask)
    master.start_from(base.basis)  # from here a class takes fewer steps than from another class
    for turn in range(PROBE_ROUNDS):
        bound, result, _ = cut_loop(master, search.plans.paths, search.stopper, search.cutoff, 1, known=PROBE_CUTS)
        if bound >= search.cutoff:
            return True
        if result is None or result.point is None:
            return False
        search.keep_prices(result)
        # The LP's value, because its bound is weak as long as columns enter.
        if turn == 0 and result.value - base.bound < PROMISE * (search.cutoff - base.bound):
            return False
    return False
