"""The lower bound of a node: LPs, cut and priced until their value is the step time at their durations."""

from __future__ import annotations

from typing import Callable

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.path_lp import LpResult, PathLp
from taylor.pipeline_solver.model.stopping import Stopper


def cut_loop(
    master: PathLp,
    paths: PathCuts,
    stopper: Stopper,
    cutoff: float,
    rounds: int,
    on_root_bound: Callable[[float], None] | None = None,
    known: int | None = None,
) -> tuple[float, LpResult | None, float]:
    """Cut and price until the LP's value is the step time at its durations, or progress stalls.

    Parameters
    ----------
    cutoff : float
        Bound at which no better plan remains.
    rounds : int
        Most LPs.
    on_root_bound : callable, optional
        At the root, called with every lower bound; the root cuts deeper and stops later than a node.

    known : int
        Most known paths that the LP takes a round, in addition to those found for it; by default as its parameters say.

    Returns
    -------
    (float, LpResult or None, float)
        Lower bound, the last LP (None when infeasible or closed, or when it failed), step time at its durations.
    """
    pool, params, root = paths.pool, master.params, on_root_bound is not None
    known = params.known_cuts if known is None else known
    stall = params.root_stall_lps if root else params.node_stall_lps
    stall_share = params.root_stall_share if root else params.node_stall_share
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
            for path_length, g in pool.longest(durations, 2 * known, params.recent_cuts)
            if path_length > result.value * (1 + 1e-7) and not master.holds(g)
        ][:known]
        length, cut = paths.path(durations)
        _, other = paths.path(durations, 1)
        converged = length - result.value <= 1e-7 * abs(length)
        if converged and not len(result.entering):
            return bound, result, length
        new = [cut, other]
        if params.half_way_cuts and (root or master.half_way) and centre is not None and not converged:
            middle = 0.5 * (durations + centre)
            middle_length, middle_cut = paths.path(middle)
            new.append(middle_cut)
            if middle_length < centre_length:
                centre_length, centre = middle_length, middle
        if length < centre_length:
            centre_length, centre = length, durations
        # A known path that is not in this LP is as good as a new one.
        missing = [g for g in [*violated, *new] if not master.holds(g)]
        if not converged:
            for g in missing:
                master.hold(g)
        master.add_columns(result.entering)
        if not converged and not missing and not len(result.entering):
            return bound, result, length
        if _stalled(history, cutoff, stall, stall_share):
            return bound, result, length
        if root and turn > 40 and len(master.held) > 3 * params.most_cuts:
            master.purge()
    return bound, result, length


def _stalled(history: list[float], cutoff: float, rounds: int, share: float) -> bool:
    """Return whether branching promises more than further cuts: the last ones closed little of the gap."""
    if len(history) <= rounds or not np.isfinite(history[-1 - rounds]):
        return False
    gained = history[-1] - history[-1 - rounds]
    left = cutoff - history[-1] if np.isfinite(cutoff) else 1e-2 * abs(history[-1])
    return gained < share * left
