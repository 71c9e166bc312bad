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
from taylor.pipeline_solver.tree.tree_search import Search


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
    few = not master.partial or len(left) <= search.params.bounds.price_above
    if few and len(left) < search.params.tree.probe_lp_rebuild * len(master.active):
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
            if _is_empty(search, mask, base):
                search.alive[members] = False
            if len(master.kept) > search.params.tree.probe_most_cuts:
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
    if len(master.kept) > search.params.tree.probe_most_cuts:
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
            ends = np.nonzero((np.diff(value[order]) < 0) & (share[:-1] <= search.params.tree.class_share))[0]
            if len(ends):
                found = np.sort(members[order[: ends[-1] + 1]])
                if found.tobytes() not in seen:
                    seen.add(found.tobytes())
                    yield found


def _is_empty(search: Search, mask: NDArray[np.bool_], base: _Base) -> bool:
    """Return whether the columns have no plan below the cutoff."""
    bound, mask = search.floors.tighten(mask, search.cutoff)
    if bound >= search.cutoff:
        return True
    master, own = search.lp(), search.params.tree
    master.allow(mask)
    master.start_from(base.basis)  # from here a class takes fewer steps than from another class
    for turn in range(own.probe_lps):
        bound, result, _ = cut_loop(master, search.plans.paths, search.stopper, search.cutoff, 1, known=own.probe_cuts)
        if bound >= search.cutoff:
            return True
        if result is None or result.point is None:
            return False
        search.keep_prices(result)
        # The LP's value, because its bound is weak as long as columns enter.
        if turn == 0 and result.value - base.bound < own.probe_promise * (search.cutoff - base.bound):
            return False
    return False
