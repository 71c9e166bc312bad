"""Border of the last layer and the head, from the final norm's kernel.

Every layer of a network runs the same number of norm kernels behind its attention kernel (one with pre-norm,
two or three with norms around the MLP), visible on the stages without the head. The next one behind the last
layer's attention is the final norm, with which the head begins; in the backward its gradient ends the head's.
Names of the kernels behind it do not distinguish them: a next layer would begin with the same norm and a GEMM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.parsers.profiles.kernels import BACKWARD_MARKER, COMPUTE, FORWARD_MARKER, RankProfile, norm_marker
from taylor.profiling.measure import NamedSample, again_after
from taylor.profiling.pattern import Piece, StagePattern

MOST_NORMS = 12
"""More norm kernels than any layer runs on one side of its attention kernel, forward or backward."""

NormCount = tuple[int, int, int]
"""Counts of a window: passes behind their attention kernel, passes before it (each 0 or 1), and norm kernels found."""


@dataclass(frozen=True)
class HeadByNorm:
    """Samples of single pieces if a layer runs this number of norm kernels.

    Parameters
    ----------
    behind : int
        Forward norm kernels of a layer behind its attention kernel.
    gradients : int
        Kernels of one norm's gradient; 0 when the samples do not depend on it.
    """

    behind: int
    gradients: int
    samples: tuple[NamedSample, ...]


@dataclass(frozen=True)
class RankNorms:
    """Norm kernels of one rank: how many its windows without the head hold, and where the head would lie."""

    forward: frozenset[NormCount] = frozenset()
    backward: frozenset[NormCount] = frozenset()
    heads: tuple[HeadByNorm, ...] = ()


def find_norms(profile: RankProfile, pattern: StagePattern, steps: NDArray[np.int64], limit: int = 200) -> RankNorms:
    """Count a rank's norm kernels between attention kernels, and separate head from layer by the last one before it.

    Parameters
    ----------
    steps : int64 [steps, n]
        Kernel numbers of the markers, as `match` gives them.
    limit : int
        Samples of a window a step, at most.
    """
    marker = np.array([norm_marker(name) for name in profile.names], dtype=np.int8)[profile.name]
    marker[profile.role != COMPUTE] = 0
    forward, backward = (
        _counts(marker == direction, pattern, steps, pieces)
        for direction, pieces in (
            (FORWARD_MARKER, ("after", "before", "again before", "back before", "back after")),
            (BACKWARD_MARKER, ("back before", "back after", "after", "before", "again before", "again after")),
        )
    )
    heads: list[HeadByNorm] = []
    for number, window in enumerate(pattern.windows):
        inside = [piece for piece, _ in window.pieces]
        whats = {what: (what, kind) for what, kind in inside}
        if {"after", "head", "back head"} <= whats.keys():
            columns = np.flatnonzero(pattern.window == number)[:limit]
            heads += _turn(profile, marker, steps, columns, whats, pattern)
    return RankNorms(forward, backward, tuple(heads))


def head_samples(ranks: Iterable[RankNorms]) -> list[tuple[NamedSample, ...]]:
    """Each rank's samples that the norm kernels of all ranks confirm; none where the ranks do not agree."""
    ranks = list(ranks)
    behind = _behind({count for rank in ranks for count in rank.forward})
    gradients = _behind({count for rank in ranks for count in rank.backward})
    return [
        tuple(
            sample
            for head in rank.heads
            if head.behind == behind and (not head.gradients or gradients == behind * head.gradients)
            for sample in head.samples
        )
        for rank in ranks
    ]


def _counts(
    norm: NDArray[np.bool_], pattern: StagePattern, steps: NDArray[np.int64], pieces: tuple[str, ...]
) -> frozenset[NormCount]:
    """Counts of the windows that hold nothing but these pieces of layers.

    Of `pieces` the first two are the ones behind, and before, attention in their direction. A recomputed
    forward runs as many norms before attention as a plain one; behind it, it may end early.
    """
    before = np.concatenate(([0], np.cumsum(norm)))
    found = np.diff(before[steps], axis=1)
    result: set[NormCount] = set()
    forward = pieces[0] == "after"
    for number, window in enumerate(pattern.windows):
        whats = {what for (what, _), _ in window.pieces}
        if not whats <= set(pieces):
            continue
        first = int(pieces[0] in whats)
        second = int(pieces[1] in whats or (forward and "again before" in whats))
        result.update((first, second, int(count)) for count in np.unique(found[:, pattern.window == number]))
    return frozenset(result)


def _behind(counts: set[NormCount]) -> int | None:
    """Norm kernels behind attention that alone explain every count; None when several do, or none, or it is 0."""
    possible = {
        behind
        for behind in range(MOST_NORMS + 1)
        for before in range(MOST_NORMS + 1)
        if all(first * behind + second * before == found for first, second, found in counts)
    }
    return possible.pop() or None if len(possible) == 1 else None


def _turn(
    profile: RankProfile,
    marker: NDArray[np.int8],
    steps: NDArray[np.int64],
    columns: NDArray[np.int64],
    whats: dict[str, Piece],
    pattern: StagePattern,
) -> list[HeadByNorm]:
    """Times from the norms where the last layer's forward, the head both ways and a backward lie in one window.

    The norms of the forward come first, the final one last of them; then the final norm's gradient, then
    those of the layer, or the norms of its forward run again. Any other order gives no samples.
    """
    places = [(step, int(column)) for step in range(len(steps)) for column in columns]
    found = {
        (step, column): np.flatnonzero(marker[steps[step, column] : steps[step, column + 1]]) + steps[step, column]
        for step, column in places
    }
    orders = {tuple(marker[at].tolist()) for at in found.values()}
    if len(orders) != 1:
        return []
    order = orders.pop()
    ahead = order.index(BACKWARD_MARKER) if BACKWARD_MARKER in order else len(order)
    behind = ahead - 1
    if behind < 1 or "again before" in whats and ahead == len(order):
        return []
    starts, ends = profile.start_ns, profile.end_ns
    final = {place: int(at[behind]) for place, at in found.items()}
    samples = [
        NamedSample(whats["after"], step, column, (int(starts[at]) - int(starts[steps[step, column]])) / 1e6)
        for (step, column), at in final.items()
    ]
    step, column = places[0]
    samples += again_after(profile, pattern, steps, whats["after"][1], int(steps[step, column]), final[step, column])
    heads = [HeadByNorm(behind, 0, tuple(samples))]
    tail = whats.get("again before", whats.get("back before"))
    if tail is None or not whats.keys() <= {"after", "head", "back head", tail[0]}:
        return heads
    rest = order[ahead:]
    if tail[0] == "again before":
        gradients = rest.index(FORWARD_MARKER) if FORWARD_MARKER in rest else len(rest)
        fits = BACKWARD_MARKER not in rest[gradients:]
    else:
        gradients, left = divmod(len(rest), behind + 1)
        fits = not left and FORWARD_MARKER not in rest
    if not fits or not gradients:
        return heads
    back = [
        NamedSample(
            tail, step, column, (int(starts[steps[step, column + 1]]) - int(ends[at[ahead + gradients - 1]])) / 1e6
        )
        for (step, column), at in found.items()
    ]
    return [*heads, HeadByNorm(behind, gradients, tuple(back))]
