"""The root of the tree: first cuts, columns and plans, the first bound, and the columns that it rules out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.bounds.bounding import cut_loop
from taylor.pipeline_solver.bounds.count_master import master_of
from taylor.pipeline_solver.tree.tree_search import Search


def start_search(
    search: Search,
    warm: NDArray[np.int64] | None,
    first_columns: NDArray[np.int64] | None = None,
    kept: Sequence[int] = (),
) -> None:
    """Seed cuts, first columns and first plans.

    Parameters
    ----------
    warm : int64 [S] or None
        A plan to begin with.
    first_columns : int64, optional
        Columns that an LP with column generation starts with, by default drawn at random.
    kept : sequence of int
        Further cuts of the pool that the LP starts with.
    """
    plans, price_above = search.plans, search.params.bounds.price_above
    cuts = plans.paths.seeds()
    active = np.arange(len(plans.columns))
    if len(active) > price_above and first_columns is not None:
        active = first_columns
    elif len(active) > price_above:
        start = plans.columns.start
        active = np.unique(
            np.concatenate(
                [
                    start[s] + plans.random.integers(0, start[s + 1] - start[s], search.params.tree.first_columns)
                    for s in range(plans.problem.stages)
                ]
            )
        )
    if warm is not None:
        plans.try_choice(warm)
        active = np.union1d(active, warm)
    first = plans.programs.best(plans.noisy(plans.columns.work**2, 0.0))
    if first is not None:
        plans.try_choice(first)
        active = np.union1d(active, first)
    if plans.best is not None and np.isinf(search.target) and search.params.heuristics.root_annealing:
        plans.anneal(plans.best, plans.anneal_moves() // 2, 0.01)
        active = np.union1d(active, plans.best)
    search.master = master_of(plans.columns, active, plans.pool, search.params.bounds)
    for cut in dict.fromkeys([*cuts, *kept]):
        search.master.keep(cut)
    _, search.alive = search.floors.tighten(search.alive, search.cutoff)
    search.master.allow(search.alive)


def bound_root(search: Search) -> float:
    """Solve the root LP with cuts, improve the best plan, drop columns that cannot matter.

    Returns the lower bound (inf: infeasible) and keeps the root in `open` unless it is closed.
    """
    plans = search.plans
    master, most = search.lp(), search.params.tree.root_lps
    bound, result, _ = cut_loop(master, plans.paths, search.stopper, search.cutoff, most, search.note_root_bound)
    if bound >= search.cutoff:
        return bound
    if result is not None:
        if np.isinf(search.target):
            _improve(search, bound)
        result = master.solve()
        while len(result.entering):
            master.add_columns(result.entering)
            result = master.solve()
        if result.reduced is not None and result.least is not None:
            bound = max(bound, result.bound)
            search.root_floor = result.reduced + result.bound - result.least[plans.columns.stage]
            _fix_columns(search)
    # Where the LP failed, the root stays open: nothing is proven of it.
    if bound < search.cutoff:
        search.push(bound, search.alive.copy())
    return bound


def _improve(search: Search, bound: float) -> None:
    """DP under dual values, then annealing, until the bound is met or attempts stop helping."""
    plans, own = search.plans, search.params.heuristics
    plans.try_at_prices(search.lp(), 12 if len(plans.columns) < 5000 else 4)
    in_vain = 0
    for attempt in range(own.annealing_runs if own.root_annealing else 0):
        search.stopper.check()
        closed = plans.best is None or plans.best_time * (1 - search.gap) <= bound
        if closed or plans.best is None or in_vain >= own.annealing_without_success:
            break
        before, in_vain = plans.best_time, in_vain + 1
        hot = own.annealing_hot[attempt % len(own.annealing_hot)]
        plans.anneal(plans.best, plans.anneal_moves() * (1 + attempt // 3), hot)
        if plans.best_time < before:
            in_vain = 0


def _fix_columns(search: Search) -> None:
    """Drop the columns that no better plan can use, by the root's reduced costs."""
    plans = search.plans
    search.alive &= search.root_floor <= search.cutoff + 1e-9 * abs(search.cutoff)
    if plans.best is not None:
        search.alive[plans.best] = True
    master, most = search.lp(), search.params.bounds.price_above
    few = int(search.alive.sum()) <= most
    if few:
        master.rebuild(np.nonzero(search.alive)[0], partial=False)
    else:
        active = master.active[search.alive[master.active]]
        order = np.argsort(search.root_floor[active], kind="stable")[: most // 2]
        keep = active[order] if plans.best is None else np.union1d(active[order], plans.best)
        master.rebuild(keep, partial=True)
