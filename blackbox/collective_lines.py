"""Times of a large job's collectives, from those of small runs: a line for each kind and link.

Steps and bytes sent are those of a ring: of n ranks each sends (n - 1) / n of the whole buffer in n - 1 steps, an
all-reduce twice (Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009); a transfer sends it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

ALL_REDUCE, TRANSFER = "all-reduce", "transfer"
"""Kinds with figures of their own; any other name is a kind that sends its buffer once around."""
IN_NODE, BETWEEN, MIXED = "in-node", "between nodes", "mixed"
LEAST_POINTS = 3
"""Different collectives that a line is fitted to."""
_ALSO_ACROSS = {BETWEEN: MIXED, MIXED: BETWEEN}
"""The other links that leave a node."""


@dataclass(frozen=True, order=True)
class Collective:
    """A collective.

    Parameters
    ----------
    group, stride : int
        Ranks that take part, and the distance of their numbers.
    bytes : int
        Of the whole buffer: gathered, reduced, or sent.
    """

    kind: str
    group: int
    stride: int
    bytes: int

    def link(self, per_node: int) -> str:
        """Links that it uses: those of one node, those between nodes, or both."""
        if self.group * self.stride <= per_node:
            return IN_NODE
        return BETWEEN if self.stride >= per_node else MIXED

    @property
    def work(self) -> tuple[float, float, float]:
        """(1, steps, bytes that a rank sends)."""
        if self.kind == TRANSFER:
            return 1.0, 1.0, float(self.bytes)
        times = 2 if self.kind == ALL_REDUCE else 1
        return 1.0, float(times * (self.group - 1)), times * self.bytes * (self.group - 1) / self.group


@dataclass(frozen=True)
class CollectiveLine:
    """Time in ns over `Collective.work`.

    Parameters
    ----------
    error : float
        Median relative error of collectives left out of the fit.
    points : int
        Number of different ones in the fit.
    """

    weights: tuple[float, float, float]
    error: float
    points: int

    def at(self, collective: Collective) -> float:
        """Time of a collective, ns."""
        return float(np.dot(self.weights, collective.work))


class CollectiveLines:
    """The lines of small runs.

    Parameters
    ----------
    samples : iterable of (Collective, float)
        Each with its time, ns; of a collective's several samples the median counts, so that stragglers do not.
    per_node : int
        Ranks of a node.
    """

    def __init__(self, samples: Iterable[tuple[Collective, float]], per_node: int) -> None:
        self.per_node = per_node
        times: dict[Collective, list[float]] = {}
        for collective, ns in samples:
            if ns > 0 and collective.group > 1:
                times.setdefault(collective, []).append(ns)
        groups: dict[tuple[str, str], dict[Collective, float]] = {}
        for collective, each in times.items():
            group = groups.setdefault((collective.kind, collective.link(per_node)), {})
            group[collective] = float(np.median(each))
        pooled: dict[str, dict[Collective, float]] = {}
        for (_, link), points in groups.items():
            pooled.setdefault(link, {}).update(points)
        lines = {key: _line(points) for key, points in groups.items() if len(points) >= LEAST_POINTS}
        self.lines = MappingProxyType(_with_steps(lines, groups))
        links = {("", link): points for link, points in pooled.items() if len(points) >= LEAST_POINTS}
        self._links = _with_steps({key: _line(points) for key, points in links.items()}, links)
        self._unlike = _unlike(groups)
        beside = {
            (kind, link): {one: ns for one, ns in pooled[link].items() if one.kind != kind} for kind, link in groups
        }
        beside = {key: points for key, points in beside.items() if len(points) >= LEAST_POINTS}
        self._beside = _with_steps({key: _line(points) for key, points in beside.items()}, beside)
        self._ratios = {
            key: np.array([ns / line.at(one) for one, ns in groups[key].items()]) for key, line in self._beside.items()
        }

    def line(self, collective: Collective) -> CollectiveLine | None:
        """The line of its kind and link, else of its link; None where small runs had too few of both.

        Few of its kind on the link, or on the other one that leaves a node, scale the line of all; the error covers
        how much, where they are of the other one. What a kind takes on a link where only others were seen may differ
        from these as it does on links with both, which the error then covers; of a kind that was seen beside others
        nowhere, as any kind does.
        """
        link = collective.link(self.per_node)
        own, others = self.lines.get((collective.kind, link)), self._links.get(("", link))
        if own is not None or others is None:
            return own
        for near in (link, _ALSO_ACROSS.get(link, "")):
            ratios = self._ratios.get((collective.kind, near))
            if ratios is not None:
                others = self._beside.get((collective.kind, link), others)
                scale = float(np.median(ratios))
                apart = float(np.median(np.abs(ratios / scale - 1))) if near == link else abs(scale - 1)
                base, step, byte = others.weights
                weights = scale * base, scale * step, scale * byte
                return CollectiveLine(weights, max(others.error, apart), others.points)
        unlike = [each for kind, each in self._unlike if kind == collective.kind] or [each for _, each in self._unlike]
        return replace(others, error=max((others.error, *unlike)))


def _unlike(groups: Mapping[tuple[str, str], Mapping[Collective, float]]) -> list[tuple[str, float]]:
    """(kind, median relative error of its times by a line of the others) on each link that shows enough of both."""
    found = []
    for (kind, link), points in groups.items():
        others = {
            one: ns for key, each in groups.items() if key[1] == link and key[0] != kind for one, ns in each.items()
        }
        if min(len(points), len(others)) >= LEAST_POINTS:
            predicted = _works(points) @ _solved(_works(others), np.array(list(others.values())))
            found.append((kind, float(np.median(np.abs(predicted / np.array(list(points.values())) - 1)))))
    return found


def _with_steps(
    lines: Mapping[tuple[str, str], CollectiveLine], groups: Mapping[tuple[str, str], Mapping[Collective, float]]
) -> dict[tuple[str, str], CollectiveLine]:
    """The lines, those whose groups were all as large with the time of a step of the slowest other one.

    Where groups do not vary a fit cannot distinguish a step's time from that of the start.
    """
    steps = {key: {one.work[1] for one in groups[key]} for key in lines}
    known = [line.weights[1] for key, line in lines.items() if len(steps[key]) > 1]
    found = dict(lines)
    for key, line in lines.items():
        if len(steps[key]) == 1 and known:
            (count,) = steps[key]
            start = line.weights[0] + line.weights[1] * count
            step = min(max(known), start / count)
            found[key] = replace(line, weights=(start - step * count, step, line.weights[2]))
    return found


def _works(points: Iterable[Collective]) -> NDArray[np.float64]:
    return np.array([one.work for one in points])


def _line(points: dict[Collective, float]) -> CollectiveLine:
    work = _works(points)
    measured = np.array(list(points.values()))
    errors = []
    for out in range(len(measured)):
        kept = np.arange(len(measured)) != out
        errors.append(abs(float(work[out] @ _solved(work[kept], measured[kept])) / measured[out] - 1))
    base, step, byte = map(float, _solved(work, measured))
    return CollectiveLine((base, step, byte), float(np.median(errors)), len(measured))


def _solved(work: NDArray[np.float64], measured: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of least relative squares, none below 0."""
    scale = np.maximum(work.max(axis=0), 1.0)
    found, _ = nnls(work / scale / measured[:, None], np.ones(len(measured)))
    return np.asarray(found / scale, dtype=np.float64)
