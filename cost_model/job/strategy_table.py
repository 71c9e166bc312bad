"""Many strategies at once: one array a degree, so that a formula runs over all of them in one go."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Iterator, Protocol, Sequence, TypeAlias

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.strategy import Strategy, TrainingRules

IntArray = NDArray[np.int64]


Quantity: TypeAlias = float | NDArray[Any]
"""A figure of one strategy, or one for each row of a `StrategyTable`.

The dtype is open: with whole and floating arrays apart, numpy's stubs give sums and quotients that are neither.
"""


class Degrees(Protocol):
    """Input of every formula: a `Strategy` (scalars) or a `StrategyTable` (arrays [n])."""

    @property
    def dp(self) -> Quantity: ...
    @property
    def tp(self) -> Quantity: ...
    @property
    def pp(self) -> Quantity: ...
    @property
    def ep(self) -> Quantity: ...
    @property
    def cp(self) -> Quantity: ...
    @property
    def op(self) -> Quantity: ...
    @property
    def sp(self) -> Quantity: ...
    @property
    def vpp(self) -> Quantity: ...
    @property
    def mbs(self) -> Quantity: ...
    @property
    def micro_batches(self) -> Quantity: ...
    @property
    def ulysses(self) -> Quantity: ...


def ulysses_ranks(degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Context ranks that exchange heads (Ulysses): the strategy's, else the job's; the others form the ring."""
    stated = degrees.cp if rules.ulysses_degree is None else np.minimum(rules.ulysses_degree, degrees.cp)
    return np.where(np.greater(degrees.ulysses, 0), np.minimum(degrees.ulysses, degrees.cp), stated)


@dataclass(frozen=True, eq=False)
class StrategyTable:
    """Strategies as columns, int64 [n] each (`sp` bool [n]); the fields mean what they mean in `Strategy`.

    Without `ulysses` the job's rules have it in every row.

    Raises
    ------
    ValueError
        When the columns differ in length.
    """

    dp: IntArray
    tp: IntArray
    pp: IntArray
    ep: IntArray
    cp: IntArray
    op: IntArray
    sp: NDArray[np.bool_]
    vpp: IntArray
    mbs: IntArray
    micro_batches: IntArray
    ulysses: IntArray = field(default_factory=lambda: np.zeros(1, dtype=np.int64))

    def __post_init__(self) -> None:
        if not np.any(self.ulysses):
            object.__setattr__(self, "ulysses", np.zeros_like(np.atleast_1d(np.asarray(self.dp, dtype=np.int64))))
        for column in fields(self):
            dtype: type = np.bool_ if column.name == "sp" else np.int64
            object.__setattr__(self, column.name, np.atleast_1d(np.asarray(getattr(self, column.name), dtype=dtype)))
        lengths = {column.name: getattr(self, column.name).shape for column in fields(self)}
        if len(set(lengths.values())) != 1 or len(self.dp.shape) != 1:
            raise ValueError(f"a strategy table's columns must be one-dimensional and equally long, found {lengths}")

    def __len__(self) -> int:
        return len(self.dp)

    def __iter__(self) -> Iterator[Strategy]:
        return (self.row(i) for i in range(len(self)))

    @classmethod
    def from_strategies(cls, strategies: Sequence[Strategy]) -> StrategyTable:
        """The table whose row i is ``strategies[i]``."""
        columns: dict[str, Any] = {
            column.name: [getattr(each, column.name) for each in strategies] for column in fields(cls)
        }
        return cls(**columns)

    def row(self, index: int) -> Strategy:
        """Row `index` as a `Strategy`."""
        values = {column.name: getattr(self, column.name)[index].item() for column in fields(self)}
        return Strategy(**values)

    def select(self, index: Any) -> StrategyTable:
        """The rows that a boolean mask, an index array or a slice chooses."""
        return StrategyTable(**{column.name: getattr(self, column.name)[index] for column in fields(self)})

    @property
    def world_size(self) -> IntArray:
        """Ranks used, int64 [n]."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def global_batch(self) -> IntArray:
        """Samples a step, int64 [n]."""
        return self.dp * self.mbs * self.micro_batches
