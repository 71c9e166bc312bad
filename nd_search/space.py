"""Array space of strategies: every combination of the searched dimensions for one world size."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Iterator

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.options import SearchContext, SearchOptions

DEFAULT_BOUNDS = {"vpp": (1, 4), "mbs": (1, 8)}
"""Ranges searched when no bound is given; beyond them memory or transfers between stages cost more than is gained."""

Ints = NDArray[np.int64]


def divisors(number: int) -> Ints:
    """Divisors of a positive integer, ascending, int64 [n]."""
    small = np.arange(1, int(number**0.5) + 1, dtype=np.int64)
    small = small[number % small == 0]
    return np.unique(np.concatenate([small, number // small]))


@dataclass(frozen=True)
class StrategySpace:
    """Product of meshes and free dimensions, unfolded block by block.

    Parameters
    ----------
    meshes : int64 [k, 5]
        (dp, tp, pp, cp, op): every division of the world, with every optimizer sharding of it.
    free : int64 [j, 5]
        (ep, vpp, mbs, sp, ulysses): every combination of the dimensions independent of the mesh; sp −1 = by rule.
        Rows whose ulysses does not divide cp are not built.
    samples : int
        Samples a step over the micro-batch interleave: dp · mbs · micro_batches.
    micro_batch_range : (int, int)
        Micro-batch numbers that are built.
    """

    meshes: Ints
    free: Ints
    samples: int
    micro_batch_range: tuple[int, int]

    @property
    def size(self) -> int:
        """Number of strategies before a bound on the micro-batch number, and before those of a wrong `ulysses`."""
        return len(self.meshes) * len(self.free)

    def blocks(self, rows: int = 1 << 17) -> Iterator[StrategyTable]:
        """Space in tables of at most about `rows` strategies, so that memory stays bounded.

        Where dp·mbs does not divide the batch, micro_batches is rounded down: a rule removes it.
        """
        step = max(1, rows // max(1, len(self.free)))
        for start in range(0, len(self.meshes), step):
            part = self.meshes[start : start + step]
            dp, tp, pp, cp, op = (np.repeat(column, len(self.free)) for column in part.T)
            ep, vpp, mbs, sp, ulysses = (np.tile(column, len(part)) for column in self.free.T)
            table = StrategyTable(
                dp=dp,
                tp=tp,
                pp=pp,
                ep=ep,
                cp=cp,
                op=op,
                vpp=vpp,
                mbs=mbs,
                sp=np.where(sp < 0, tp > 1, sp > 0),
                micro_batches=self.samples // (dp * mbs),
                ulysses=ulysses,
            )
            low, high = self.micro_batch_range
            within = (table.micro_batches >= low) & (table.micro_batches <= high)
            within &= cp % np.maximum(ulysses, 1) == 0
            yield table if within.all() else table.select(within)

    def contains(self, strategy: Strategy) -> bool:
        """Return whether a strategy is in the space."""
        rows = [f.name for f in fields(strategy) if f.name != "micro_batches"]
        return any(
            bool(np.logical_and.reduce([getattr(block, name) == getattr(strategy, name) for name in rows]).any())
            for block in self.blocks()
        )


def build_space(context: SearchContext, options: SearchOptions) -> StrategySpace:
    """Space that the options span.

    Every searched degree ranges over the divisors of the world size (op: of dp·cp), vpp and mbs over their bounds
    (`DEFAULT_BOUNDS`; mbs over powers of two); the others keep the file's value, op and sp follow by rule (see
    `SearchOptions`). So do those that no file of the framework can state (`Framework.searched`).
    """
    searched = set(options.search) - set(options.fix)
    if "micro_batches" in options.search or "micro_batches" in options.fix:
        searched |= {"mbs"} - set(options.fix)
    if context.rules.framework.searched is not None:
        searched &= set(context.rules.framework.searched)
    every_degree = divisors(context.world_size)

    def bounded(name: str, values: Ints) -> Ints:
        low, high = options.bounds.get(name, (0, np.iinfo(np.int64).max))
        return values[(values >= low) & (values <= high)]

    def values(name: str, when_searched: Ints) -> Ints:
        if name in options.fix:
            return np.array([options.fix[name]], dtype=np.int64)
        return bounded(name, when_searched) if name in searched else np.array([getattr(context.own, name)], np.int64)

    tp, pp, cp = (
        axis.ravel()
        for axis in np.meshgrid(
            values("tp", every_degree), values("pp", every_degree), values("cp", every_degree), indexing="ij"
        )
    )
    fits = context.world_size % (tp * pp * cp) == 0
    tp, pp, cp = tp[fits], pp[fits], cp[fits]
    dp = context.world_size // (tp * pp * cp)
    allowed = np.isin(dp, values("dp", every_degree))
    meshes = _with_optimizer_split(np.stack([dp, tp, pp, cp], axis=1)[allowed], context, options, searched)
    vpp_low, vpp_high = options.bounds.get("vpp", DEFAULT_BOUNDS["vpp"])
    free = np.stack(
        [
            axis.ravel()
            for axis in np.meshgrid(
                values("ep", every_degree),
                values("vpp", np.arange(vpp_low, vpp_high + 1, dtype=np.int64)),
                _micro_batch_sizes(context, options, searched),
                _sequence_parallel(options, searched),
                values("ulysses", every_degree),
                indexing="ij",
            )
        ],
        axis=1,
    ).astype(np.int64)
    return StrategySpace(
        meshes=meshes,
        free=free,
        samples=context.gbs,
        micro_batch_range=_micro_batch_range(options),
    )


def _micro_batch_sizes(context: SearchContext, options: SearchOptions, searched: set[str]) -> Ints:
    if "mbs" in options.fix:
        return np.array([options.fix["mbs"]], dtype=np.int64)
    if "mbs" not in searched:
        return np.array([context.own.mbs], dtype=np.int64)
    low, high = options.bounds.get("mbs", DEFAULT_BOUNDS["mbs"])
    powers = 2 ** np.arange(0, int(high).bit_length(), dtype=np.int64)
    return powers[(powers >= low) & (powers <= high)]


def _sequence_parallel(options: SearchOptions, searched: set[str]) -> Ints:
    if "sp" in options.fix:
        return np.array([options.fix["sp"]], dtype=np.int64)
    return np.array([0, 1] if "sp" in searched else [-1], dtype=np.int64)


def _micro_batch_range(options: SearchOptions) -> tuple[int, int]:
    if "micro_batches" in options.fix:
        return options.fix["micro_batches"], options.fix["micro_batches"]
    return options.bounds.get("micro_batches", (0, int(np.iinfo(np.int64).max)))


def _with_optimizer_split(meshes: Ints, context: SearchContext, options: SearchOptions, searched: set[str]) -> Ints:
    """Meshes [k, 4] to [k', 5] with op: searched, pinned, or by rule."""
    replicas = meshes[:, 0] * meshes[:, 3]
    if "op" in options.fix:
        split = np.full(len(meshes), options.fix["op"], dtype=np.int64)
        return np.column_stack([meshes, split])
    if "op" not in searched:
        return np.column_stack([meshes, split_by_rule(replicas, context)])
    degrees = divisors(context.world_size)
    low, high = options.bounds.get("op", (1, int(np.iinfo(np.int64).max)))
    degrees = degrees[(degrees >= low) & (degrees <= high)]
    mesh, degree = np.nonzero(replicas[:, None] % degrees[None, :] == 0)
    return np.column_stack([meshes[mesh], degrees[degree]])


def split_by_rule(replicas: Ints, context: SearchContext) -> Ints:
    """Optimizer sharding where it is not searched: over all ranks, unless the file sets fewer and that fits."""
    if not context.rules.parallel_optimizer and not context.rules.parameter_shard:
        return np.ones_like(replicas)
    own = context.own
    if 1 < own.op < own.dp * own.cp:
        return np.where(replicas % own.op == 0, own.op, replicas)
    return replicas.copy()


def with_ruled_splits(strategy: Strategy, context: SearchContext, options: SearchOptions) -> Strategy:
    """Strategy with op and sp as the space gives them to its mesh: pinned, else by rule."""
    op = int(split_by_rule(np.array([strategy.dp * strategy.cp]), context)[0])
    return strategy.replace(op=options.fix.get("op", op), sp=bool(options.fix.get("sp", strategy.tp > 1)))
