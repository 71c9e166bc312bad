"""Step times by which strategies are chosen: quick solves of those that may be among the chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.choose import choose
from taylor.nd_search.options import SearchOptions

SOLVED, ESTIMATED = "solved", "estimate"
"""Sources of a step time: a plan found for the strategy, or a formula over its average stage."""

OPTIMISM = 0.95
"""Factor on the formula's step time in a comparison with solved ones, so that it is seldom above a solve's result:
over 126 strategies of four shipped jobs it was at most 4 % above (benchmarks/estimated_steps.py).
"""

MOST_SOLVED = 8
"""Quick solves, in multiples of the number to choose, after which only solved strategies are chosen."""


@dataclass(frozen=True)
class SolvedStep:
    """Outcome of a quick solve.

    Parameters
    ----------
    ms : float or None
        Step time of the plan found; None where there is none.
    refused : str
        Reason why there is no plan, where that is proven; empty where none was found in time.
    peaks_mib, limits_mib : tuple of float [pp]
        Peak of each stage of the plan, and what the plan may take there, MiB; empty without a plan.
    """

    ms: float | None
    refused: str = ""
    peaks_mib: tuple[float, ...] = ()
    limits_mib: tuple[float, ...] = ()


class QuickSolve(Protocol):
    """Solves strategies quickly, under the same memory and times as a ranking does."""

    def __call__(self, strategies: Sequence[Strategy], limit_mib: float) -> Sequence[SolvedStep]:
        """One outcome a strategy; `limit_mib` is the memory of a device."""
        ...


@dataclass(frozen=True)
class ChosenSteps:
    """Strategies chosen by solved step times.

    Parameters
    ----------
    chosen : int64 [k]
        Indices, the fastest first.
    step_ms : float64 [n]
        Solved where `solved`, else by the formula.
    solved : bool [n]
    refused : mapping of index to str
        Strategies without a plan, with the reason.
    """

    chosen: NDArray[np.int64]
    step_ms: NDArray[np.float64]
    solved: NDArray[np.bool_]
    refused: dict[int, str]


def choose_by_estimate(table: StrategyTable, estimated_ms: NDArray[np.float64], options: SearchOptions) -> ChosenSteps:
    """Choose by the formula alone."""
    chosen = choose(table, estimated_ms, options.profile_num, options.spread)
    return ChosenSteps(chosen, estimated_ms, np.zeros(len(table), dtype=np.bool_), {})


def choose_by_solves(
    table: StrategyTable,
    estimated_ms: NDArray[np.float64],
    options: SearchOptions,
    solve: QuickSolve,
    limit_mib: float,
) -> ChosenSteps:
    """Choose by solved step times: strategies chosen by the formula are solved, until all chosen ones are.

    A strategy without a plan, as the solve proves, is removed, and the next one takes its place.
    """
    number = options.profile_num
    step_ms, looked = estimated_ms.copy(), np.zeros(len(table), dtype=np.bool_)
    solved = np.zeros(len(table), dtype=np.bool_)
    refused: dict[int, str] = {}
    while True:
        rank_ms = np.where(looked, step_ms, OPTIMISM * step_ms)
        if (
            looked.sum() >= MOST_SOLVED * number and solved.sum() >= number
        ):  # enough strategies are tried, and enough solved
            rank_ms[~looked] = np.inf
        possible = np.flatnonzero(np.isfinite(rank_ms))
        chosen = possible[choose(table.select(possible), rank_ms[possible], number, options.spread)]
        open_ones = chosen[~looked[chosen]]
        if not len(open_ones):
            return ChosenSteps(chosen, step_ms, solved, refused)
        outcomes = solve([table.row(int(index)) for index in open_ones], limit_mib)
        for index, outcome in zip(open_ones.tolist(), outcomes, strict=True):
            looked[index] = True
            if outcome.ms is not None:
                step_ms[index], solved[index] = outcome.ms, True
            elif outcome.refused:
                step_ms[index], refused[index] = np.inf, outcome.refused
