"""Messages between the coordinator of a tree search and its subtree batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.bounds.cut_pool import CutPool
from taylor.pipeline_solver.bounds.path_lp import Prices
from taylor.pipeline_solver.bounds.price_pool import PricePool
from taylor.pipeline_solver.columns.columns import ColumnSet
from taylor.pipeline_solver.heuristics.incumbents import Incumbents
from taylor.pipeline_solver.model.params import SolverParams
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.event_graph import EventGraph


@dataclass(frozen=True)
class Origin:
    """Immutable data from which every batch starts."""

    problem: PipelineProblem
    columns: ColumnSet
    graph: EventGraph
    gap: float
    target: float
    params: SolverParams


@dataclass(frozen=True)
class Cuts:
    """Some cuts of a pool: class counts float64 [n, classes] and constants float64 [n]."""

    counts: NDArray[np.float64]
    constant: NDArray[np.float64]

    @classmethod
    def of(cls, pool: CutPool, first: int) -> Cuts:
        """Copies of the pool's cuts from number `first` on."""
        part = slice(first, pool.size)
        return cls(pool.counts[part].copy(), pool.constant[part].copy())

    def add_to(self, pool: CutPool) -> None:
        """Add them to a pool."""
        for row, value in zip(self.counts, self.constant, strict=True):
            pool.add(row.copy(), float(value))


@dataclass(frozen=True)
class Best:
    """The best choice of one column a stage, int64 [S] or None, and its step time."""

    chosen: NDArray[np.int64] | None
    step_time: float

    @classmethod
    def of(cls, plans: Incumbents) -> Best:
        """The best choice of a search."""
        return cls(plans.best, float(plans.best_time))


@dataclass(frozen=True)
class Priced:
    """Some of a pool's LP values and dual values."""

    values: list[float]
    prices: list[Prices]

    @classmethod
    def of(cls, pool: PricePool, first: int) -> Priced:
        """The pool's dual values from number `first` on."""
        return cls(pool.values[first:], pool.prices[first:])

    def add_to(self, pool: PricePool) -> None:
        """Add them to a pool."""
        for value, prices in zip(self.values, self.prices, strict=True):
            pool.add(value, prices)


def unpacked(packed: NDArray[np.uint8], columns: int) -> NDArray[np.bool_]:
    """Unpack columns from bits, bool [columns]."""
    return np.unpackbits(packed, count=columns).astype(bool)


@dataclass(frozen=True)
class OpenNode:
    """An open node: its lower bound, and its columns packed to bits, uint8 [columns / 8]."""

    bound: float
    packed: NDArray[np.uint8]

    @classmethod
    def of(cls, bound: float, mask: NDArray[np.bool_]) -> OpenNode:
        """A node of a search, packed."""
        return cls(bound, np.packbits(mask))

    def mask(self, columns: int) -> NDArray[np.bool_]:
        """Its columns, bool [columns]."""
        return unpacked(self.packed, columns)


@dataclass(frozen=True)
class RootState:
    """State after the root, with which every batch begins.

    Parameters
    ----------
    kept : list of int
        Cuts of the LP.
    alive : bool [columns]
    root_floor : float64 [columns]
        Lower bound with each column in the plan.
    active : int64
        Columns of the LP; with `partial` others may enter.
    """

    cuts: Cuts
    best: Best
    prices: Priced
    kept: list[int]
    alive: NDArray[np.bool_]
    root_floor: NDArray[np.float64]
    active: NDArray[np.int64]
    partial: bool


@dataclass(frozen=True)
class ShareTask:
    """A batch's part of a round: its nodes, the others' results, and its budget of simplex iterations."""

    nodes: list[OpenNode]
    cuts: Cuts
    best: Best
    iteration_budget: int


@dataclass(frozen=True)
class ShareAnswer:
    """Result of a batch: the remaining nodes, its cuts, dual values and plan, and its work.

    `nodes`, `solves` and `iterations` count the nodes, LPs and simplex iterations of this round; `trouble` is empty
    unless its LPs kept failing.
    """

    open: list[OpenNode]
    cuts: Cuts
    best: Best
    nodes: int
    solves: int
    iterations: int
    out_of_time: bool
    trouble: str


@dataclass(frozen=True)
class News:
    """Results of others that a batch does not have yet."""

    cuts: Cuts
    prices: Priced
    best: Best


@dataclass(frozen=True)
class ProbeTask:
    """Stages whose columns a batch probes; `alive` uint8 [columns / 8], packed, are the remaining ones."""

    stages: tuple[int, ...]
    alive: NDArray[np.uint8]
    news: News


@dataclass(frozen=True)
class ProbeAnswer:
    """The remaining columns of a probing batch, packed, its results, and its LPs and their simplex iterations."""

    alive: NDArray[np.uint8]
    cuts: Cuts
    prices: Priced
    solves: int
    iterations: int
    out_of_time: bool


@dataclass(frozen=True)
class EnumerationTask:
    """A portion of a node's choices, which a batch enumerates; its enumeration continues from task to task.

    Parameters
    ----------
    portion : uint8 [columns / 8], optional
        The columns to begin with, packed; None continues with those of the task before.
    order : int64 [S]
        Of the stages.
    durations : float64 [classes], optional
        Of the node's LP.
    steps : int
        Columns to visit now.
    """

    portion: NDArray[np.uint8] | None
    order: NDArray[np.int64]
    durations: NDArray[np.float64] | None
    steps: int
    news: News


@dataclass(frozen=True)
class EnumerationAnswer:
    """Progress of a batch with its portion, and its results.

    Parameters
    ----------
    left : uint8 [columns / 8]
        Columns below which the search is not complete, packed.
    done : float
        Fraction of its choices that is visited; 1 where all are.
    steps : int
        Columns visited since it began.
    stuck : bool
        It cannot continue.
    """

    left: NDArray[np.uint8]
    done: float
    steps: int
    stuck: bool
    cuts: Cuts
    best: Best
    out_of_time: bool
