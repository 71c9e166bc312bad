"""The lower bound of a node: LPs, cut and priced until their value is the step time of their own durations."""

from __future__ import annotations

from typing import Callable

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.path_lp import LpResult, PathLp
from taylor.pipeline_solver.model.stopping import Stopper

MAX_HELD_CUTS = 120
"""Cuts that an LP may hold before the slack ones are dropped; longer LPs cost more than they prove."""

KNOWN_CUTS = 4
"""Paths known before that an LP takes a round at most, besides those found for it."""

NODE_STALL = 6, 0.1
ROOT_STALL = 25, 0.01
"""A node branches when its last cut rounds, so many, closed less than this share of what is left."""


def cut_loop(
    master: PathLp,
    paths: PathCuts,
    stopper: Stopper,
    cutoff: float,
    rounds: int,
    on_root_bound: Callable[[float], None] | None = None,
    known: int = KNOWN_CUTS,
) -> tuple[float, LpResult | None, float]:
    """Cut and price until the LP's value is the step time of its own durations, or little more comes.

    Parameters
    ----------
    cutoff : float
        Bound at which nothing better is left.
    rounds : int
        LPs at most.
    on_root_bound : callable, optional
        At the root, called with every proven bound; the root cuts deeper and gives up later than a node.

    known : int
        Paths known before that the LP takes a round at most, besides those found for it.

    Returns
    -------
    (float, LpResult or None, float)
        Proven bound, the last LP (None when infeasible or closed, or when it failed), step time at its durations.
    """
    pool, root = paths.pool, on_root_bound is not None
    bound, length = -np.inf, np.inf
    history: list[float] = []
    centre: NDArray[np.float64] | None = None
    centre_length = np.inf
    result: LpResult | None = None
    for turn in range(rounds):
        stopper.check()
        result = master.solve()
        if result.point is None:
            if np.isinf(result.value) and result.value > 0:
                return np.inf, None, np.inf
            return bound, None, np.inf
        bound = max(bound, result.bound)
        history.append(bound)
        if on_root_bound is not None:
            on_root_bound(bound)
        if bound >= cutoff:
            return bound, None, np.inf
        durations = master.durations(result.point)
        violated = [
            g
            for path_length, g in pool.longest(durations, 2 * known)
            if path_length > result.value * (1 + 1e-7) and not master.holds(g)
        ][:known]
        length, cut = paths.path(durations)
        _, other = paths.path(durations, 1)
        converged = length - result.value <= 1e-7 * abs(length)
        if converged and not len(result.entering):
            return bound, result, length
        new = [cut, other]
        if (root or master.half_way) and centre is not None and not converged:
            middle = 0.5 * (durations + centre)
            middle_length, middle_cut = paths.path(middle)
            new.append(middle_cut)
            if middle_length < centre_length:
                centre_length, centre = middle_length, middle
        if length < centre_length:
            centre_length, centre = length, durations
        # A path may be known and yet not in this LP: then it is as good as new.
        missing = [g for g in [*violated, *new] if not master.holds(g)]
        if not converged:
            for g in missing:
                master.hold(g)
        master.add_columns(result.entering)
        if not converged and not missing and not len(result.entering):
            return bound, result, length
        if _stalled(history, cutoff, *(ROOT_STALL if root else NODE_STALL)):
            return bound, result, length
        if root and turn > 40 and len(master.held) > 3 * MAX_HELD_CUTS:
            master.purge()
    return bound, result, length


def _stalled(history: list[float], cutoff: float, rounds: int, share: float) -> bool:
    """Whether further cuts promise less than branching: the last ones closed little of what is left."""
    if len(history) <= rounds or not np.isfinite(history[-1 - rounds]):
        return False
    gained = history[-1] - history[-1 - rounds]
    left = cutoff - history[-1] if np.isfinite(cutoff) else 1e-2 * abs(history[-1])
    return gained < share * left
