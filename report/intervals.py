"""Stretches of time: merged, cut to a window, and measured where others do not cover them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def merged(start: FloatArray, end: FloatArray) -> FloatArray:
    """Union of stretches as float [k, 2], ascending and disjoint; those of no length are omitted."""
    lasting = end > start
    order = np.argsort(start[lasting], kind="stable")
    begin, finish = start[lasting][order], end[lasting][order]
    if not len(begin):
        return np.zeros((0, 2))
    reached = np.maximum.accumulate(finish)
    first = np.flatnonzero(np.concatenate([[True], begin[1:] > reached[:-1]]))
    return np.stack([begin[first], reached[np.append(first[1:], len(begin)) - 1]], axis=1)


def union(*parts: FloatArray) -> FloatArray:
    """Union of several merged stretches, float [k, 2]."""
    together = np.concatenate(parts)
    return merged(together[:, 0], together[:, 1])


def cut(spans: FloatArray, begin: float, end: float) -> FloatArray:
    """Parts of merged stretches in [begin, end], float [k, 2]."""
    inside = spans.clip(begin, end)
    return inside[inside[:, 1] > inside[:, 0]]


def length(spans: FloatArray) -> float:
    """Total length of merged stretches."""
    return float((spans[:, 1] - spans[:, 0]).sum())


def uncovered(spans: FloatArray, cover: FloatArray) -> float:
    """Total length of merged stretches outside `cover`, merged too."""
    return length(union(spans, cover)) - length(cover)


@dataclass(frozen=True)
class Activity:
    """Activity of a device; each field float [k, 2], merged.

    Parameters
    ----------
    compute : float [k, 2]
        Forward, backward, optimizer and every other job except communication.
    communication : float [k, 2]
        Sends, receives, collectives.
    receive : float [k, 2]
        Those of them that receive from another stage, and so wait for it too.
    """

    compute: FloatArray
    communication: FloatArray
    receive: FloatArray

    def scaled(self, factor: float) -> Activity:
        """Copy with every time multiplied."""
        return Activity(self.compute * factor, self.communication * factor, self.receive * factor)

    def shifted(self, time: float) -> Activity:
        """Copy with every time later."""
        return Activity(self.compute + time, self.communication + time, self.receive + time)
