"""Branching: one stage's columns split in two, at the LP mean of a distinguishing key."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.columns.columns import ColumnSet


class Split(NamedTuple):
    """A stage's columns in two parts, int64 [n] each, of which a child node loses one."""

    merit: float
    above: NDArray[np.int64]
    below: NDArray[np.int64]


class StageSplits:
    """Splits of a set of columns by the stage's work, its layers, a chunk's forward, its time, and its phases."""

    def __init__(self, columns: ColumnSet, interleaves: int) -> None:
        self.columns = columns
        table = columns.durations
        self.keys = [columns.work, columns.totals.sum(axis=1).astype(np.float64)]
        for v in range(interleaves):
            self.keys += [table[:, v], table[:, v::interleaves].sum(axis=1)]
        if columns.phases is not None:
            for v in range(interleaves):
                self.keys += [of[:, v].astype(np.float64) for of in (columns.phases.begin, columns.phases.end)]

    def ways(self, weights: NDArray[np.float64], mask: NDArray[np.bool_]) -> list[Split]:
        """Every split of a stage with fractional columns.

        Parameters
        ----------
        weights : float64 [columns]
            The LP's weight of every column.
        mask : bool [columns]
            Columns of the node.
        """
        found = []
        start = self.columns.start
        for first, end in zip(start[:-1], start[1:], strict=True):
            members = first + np.nonzero(mask[first:end])[0]
            share = weights[members]
            if len(members) and share.max() <= 1 - 1e-6:
                found += self._of_stage(members, share)
        return found

    def between(
        self, layers: NDArray[np.float64], time: NDArray[np.float64], mask: NDArray[np.bool_]
    ) -> tuple[list[Split], bool]:
        """The same at the counts of an LP over counts, at whole ones where all are whole.

        The second result says whether they are.

        Parameters
        ----------
        layers : float64 [V, S]
        time : float64 [D, V, S]
        mask : bool [columns]
            Columns of the node.
        """
        V, S = layers.shape
        pieces = self.columns.problem.schedule.seq_splits
        means = np.empty((len(self.keys), S))
        means[0], means[1] = pieces * time.sum(axis=(0, 1)), layers.sum(axis=0)
        means[2::2], means[3::2] = time[0], time.sum(axis=0)
        parted: list[Split] = []
        whole: list[Split] = []
        start = self.columns.start
        for s in range(S):
            members = start[s] + np.nonzero(mask[start[s] : start[s + 1]])[0]
            if len(members) > 1:
                self._at(members, means[:, s], parted, whole)
        return (parted, False) if parted else (whole, True)

    def _at(
        self, members: NDArray[np.int64], means: NDArray[np.float64], parted: list[Split], whole: list[Split]
    ) -> None:
        """A stage's splits between two values of a key, and those at one of its values."""
        seen = set()
        for k, (key, mean) in enumerate(zip(self.keys, means, strict=True)):
            value = key[members]
            slack = 1e-6 * max(1.0, abs(mean))
            spread = float(value.max() - value.min())
            for below in (value <= mean + slack, value < mean - slack):
                if below.all() or not below.any() or below.tobytes() in seen:
                    continue
                seen.add(below.tobytes())
                low, high = float(value[below].max()), float(value[~below].min())
                part = (mean - low) / (high - low)
                merit = min(part, 1.0 - part) * (spread if k == 0 else 1.0)
                inside = low + slack < mean < high - slack
                (parted if inside else whole).append(Split(merit, members[~below], members[below]))

    def _of_stage(self, members: NDArray[np.int64], share: NDArray[np.float64]) -> list[Split]:
        found = []
        used = np.nonzero(share > 1e-12)[0]
        seen = set()
        for k, key in enumerate(self.keys):
            value = key[members]
            below = value <= float((value[used] * share[used]).sum()) + 1e-9
            part = float(share[used][below[used]].sum())
            if not 1e-6 < part < 1 - 1e-6 or below.tobytes() in seen:
                continue
            seen.add(below.tobytes())
            merit = min(part, 1 - part) * (float(value.max() - value.min()) if k == 0 else 1.0)
            found.append(Split(merit, members[~below], members[below]))
        if not found:
            top = int(np.argmax(share))
            merit = min(float(share[top]), 1 - float(share[top]))
            found.append(Split(merit, np.delete(members, top), members[top : top + 1]))
        return found
