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
    params, root = master.params, on_root_bound is not None
    known = params.known_cuts if known is None else known
    stall = params.root_stall_lps if root else params.node_stall_lps
    stall_share = params.root_stall_share if root else params.node_stall_share
    bound, length = -np.inf, np.inf
    history: list[float] = []
    centre = _Centre()
    result: LpResult | None = None
    for turn in range(rounds):
        stopper.check()
        result = master.solve()
        if result.point is None:
            infeasible = np.isinf(result.value) and result.value > 0
            return np.inf if infeasible else bound, None, np.inf
        bound = max(bound, result.bound)
        history.append(bound)
        if on_root_bound is not None:
            on_root_bound(bound)
        if bound >= cutoff:
            return bound, None, np.inf
        durations = master.durations(result.point)
        # A known path that is not in this LP is as good as a new one.
        found = _violated(master, paths, durations, result.value, known)
        length, cut = paths.path(durations)
        found += [cut, paths.path(durations, 1)[1]]
        converged = length - result.value <= 1e-7 * abs(length)
        if converged and not len(result.entering):
            return bound, result, length
        if params.half_way_cuts and (root or master.half_way) and not converged:
            found += centre.half_way(paths, durations)
        centre.move(durations, length)
        missing = [] if converged else [g for g in found if not master.keeps(g)]
        for g in missing:
            master.keep(g)
        master.add_columns(result.entering)
        stuck = not converged and not missing and not len(result.entering)
        if stuck or _stalled(history, cutoff, stall, stall_share):
            return bound, result, length
        if root and turn > 40 and len(master.kept) > 3 * params.most_cuts:
            master.purge()
    return bound, result, length


def _violated(
    master: PathLp, paths: PathCuts, durations: NDArray[np.float64], value: float, known: int
) -> list[int]:  # fmt: skip
    """Known paths longer than the LP's value at its durations, `known` of them at most."""
    longest = paths.pool.longest(durations, 2 * known, master.params.recent_cuts)
    return [g for length, g in longest if length > value * (1 + 1e-7) and not master.keeps(g)][:known]


class _Centre:
    """The durations of least step time so far: cuts half-way to them reach deeper than those at an LP's corner."""

    def __init__(self) -> None:
        self.durations: NDArray[np.float64] | None = None
        self.length = np.inf

    def half_way(self, paths: PathCuts, durations: NDArray[np.float64]) -> list[int]:
        """The cut of the longest path half-way to other durations; none before there is a centre."""
        if self.durations is None:
            return []
        middle = 0.5 * (durations + self.durations)
        length, cut = paths.path(middle)
        self.move(middle, length)
        return [cut]

    def move(self, durations: NDArray[np.float64], length: float) -> None:
        """Move to durations of lower step time."""
        if length < self.length:
            self.durations, self.length = durations, length


def _stalled(history: list[float], cutoff: float, rounds: int, share: float) -> bool:
    """Return whether branching promises more than further cuts: the last ones closed little of the gap."""
    if len(history) <= rounds or not np.isfinite(history[-1 - rounds]):
        return False
    gained = history[-1] - history[-1 - rounds]
    left = cutoff - history[-1] if np.isfinite(cutoff) else 1e-2 * abs(history[-1])
    return gained < share * left
