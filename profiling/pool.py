"""The windows of all ranks put together; micro-batches that straggled are omitted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from taylor.parsers.profiles.kernels import FORWARD_MARKER
from taylor.profiling.measure import NamedSample
from taylor.profiling.norms import RankNorms, head_samples
from taylor.profiling.pattern import KernelWindow, Piece, StagePattern

STRAGGLES = 1.15
"""A micro-batch straggles on a rank when three quarters of its windows take this many times the usual time."""


@dataclass(frozen=True)
class RankTimes:
    """Times of one rank's windows, ms, float64 [steps, n - 1], and of single pieces.

    `named` come from names and sends, `again` is recompute behind a forward that a send ends, `norms` are the head's
    times by the norm kernels.
    """

    rank: int
    pattern: StagePattern
    times_ms: NDArray[np.float64]
    named: tuple[NamedSample, ...] = ()
    norms: RankNorms = RankNorms()
    again: tuple[NamedSample, ...] = ()


@dataclass(frozen=True)
class Pooled:
    """All times of one window, ms, and over how many micro-batches they spread."""

    times_ms: NDArray[np.float64]
    micro_batches: int


@dataclass(frozen=True)
class PooledTimes:
    """Times of all ranks, ms.

    Parameters
    ----------
    windows : mapping
        By window between attention kernels.
    by_name, by_norm, by_send : mapping
        By single piece, from kernel names, from the final norm, and from the sends.
    """

    windows: Mapping[KernelWindow, Pooled]
    by_name: Mapping[Piece, NDArray[np.float64]] = field(default_factory=dict)
    by_norm: Mapping[Piece, NDArray[np.float64]] = field(default_factory=dict)
    by_send: Mapping[Piece, NDArray[np.float64]] = field(default_factory=dict)


def pool_windows(ranks: Iterable[RankTimes]) -> tuple[PooledTimes, list[str]]:
    """The times of all ranks, and a note on each micro-batch that straggled.

    A slow micro-batch does not only lengthen samples, which a robust centre would pass over: some windows
    occur once a step, and would show that micro-batch alone.
    """
    ranks = list(ranks)
    usual = {
        window: float(np.median(found.times_ms))
        for window, found in _gather(ranks, {}).items()
        if found.micro_batches >= 3
    }
    notes: list[str] = []
    dropped: dict[int, NDArray[np.bool_]] = {}
    for number, each in enumerate(ranks):
        dropped[number] = _straggling(each, usual, notes)
    pooled = _gather(ranks, dropped)
    windows = {window: found for window, found in pooled.items() if len(found.times_ms)}
    by_name = _by_piece([each.named for each in ranks], dropped)
    by_norm = _by_piece(head_samples([each.norms for each in ranks]), dropped)
    by_send = _by_piece([each.again for each in ranks], dropped)
    return PooledTimes(windows, by_name, by_norm, by_send), notes


def _by_piece(
    samples: list[tuple[NamedSample, ...]], dropped: dict[int, NDArray[np.bool_]]
) -> dict[Piece, NDArray[np.float64]]:
    """Times of each piece, ms, of all ranks' samples that belong to no straggling micro-batch."""
    times: dict[Piece, list[float]] = {}
    for number, mine in enumerate(samples):
        for sample in mine:
            if not dropped[number][sample.step, sample.column]:
                times.setdefault(sample.piece, []).append(sample.time_ms)
    return {piece: np.array(found) for piece, found in times.items()}


def _straggling(each: RankTimes, usual: dict[KernelWindow, float], notes: list[str]) -> NDArray[np.bool_]:
    """Windows [steps, n - 1] that belong to a straggling micro-batch."""
    pattern = each.pattern
    middle = np.array([usual.get(window, 0.0) for window in pattern.windows])[pattern.window]
    owners = pattern.micro_batch[:-1], pattern.micro_batch[1:]
    result = np.zeros(each.times_ms.shape, dtype=np.bool_)
    judged = np.flatnonzero(middle > 0)
    if not len(judged):
        return result
    shares = each.times_ms[:, judged] / middle[judged]
    members: dict[int, tuple[NDArray[np.bool_], NDArray[np.bool_]]] = {}
    for micro_batch in np.unique(pattern.micro_batch).tolist():
        mine = (owners[0] == micro_batch) | (owners[1] == micro_batch)
        inside = (_mostly(pattern) == micro_batch)[judged]
        members[micro_batch] = (mine, inside if inside.sum() >= 2 else mine[judged])
    for step in range(len(shares)):
        while True:
            # The slowest first: once its windows are out, its neighbours no longer look slow.
            left = ~result[step, judged]
            slow = {
                micro_batch: float(np.quantile(shares[step, inside & left], 0.25))
                for micro_batch, (_, inside) in members.items()
                if (inside & left).sum() >= 2
            }
            worst = max(slow, key=lambda each: slow[each], default=None)
            if worst is None or slow[worst] <= STRAGGLES:
                break
            mine, inside = members[worst]
            notes.append(
                f"rank {each.rank}: micro-batch {worst} of measured step {step + 1} straggled "
                f"({np.median(shares[step, inside & left]):.2f} times the usual) and is ignored"
            )
            result[step, mine] = True
    # Where nearly everything is slow there is no usual to compare with.
    return result if result.mean() < 0.5 else np.zeros_like(result)


def _mostly(pattern: StagePattern) -> NDArray[np.int64]:
    """The micro-batch to which most of each window belongs, int64 [n - 1]; -1 where it is two alike.

    Most of a forward lies behind its attention kernel, and most of a backward ahead of it.
    """
    first, second = pattern.micro_batch[:-1], pattern.micro_batch[1:]
    ahead, behind = pattern.markers[:-1], pattern.markers[1:]
    forwards = (ahead == FORWARD_MARKER) & (behind == FORWARD_MARKER)
    backwards = (ahead != FORWARD_MARKER) & (behind != FORWARD_MARKER)
    return np.where((first == second) | forwards, first, np.where(backwards, second, -1))


def _gather(ranks: list[RankTimes], dropped: dict[int, NDArray[np.bool_]]) -> dict[KernelWindow, Pooled]:
    times: dict[KernelWindow, list[NDArray[np.float64]]] = {}
    owners: dict[KernelWindow, set[int]] = {}
    for number, each in enumerate(ranks):
        kept = ~dropped[number] if number in dropped else np.ones(each.times_ms.shape, dtype=np.bool_)
        for index, window in enumerate(each.pattern.windows):
            columns = np.flatnonzero(each.pattern.window == index)
            mask = kept[:, columns]
            times.setdefault(window, []).append(each.times_ms[:, columns][mask])
            seen = np.broadcast_to(each.pattern.micro_batch[columns], mask.shape)[mask]
            owners.setdefault(window, set()).update(np.unique(seen).tolist())
    return {window: Pooled(np.concatenate(parts), len(owners[window])) for window, parts in times.items()}
