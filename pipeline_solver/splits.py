"""Ways to branch: one stage's columns parted in two, at the LP mean of what tells them apart."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.columns import ColumnSet


class Split(NamedTuple):
    """A stage's columns in two parts, int64 [n] each, of which a child node loses one."""

    merit: float
    above: NDArray[np.int64]
    below: NDArray[np.int64]


class StageSplits:
    """Splits of a set of columns by the stage's work, its layers, a chunk's forward, a chunk's time."""

    def __init__(self, columns: ColumnSet, interleaves: int) -> None:
        self.columns = columns
        table = columns.durations
        self.keys = [columns.work, columns.totals.sum(axis=1).astype(np.float64)]
        for v in range(interleaves):
            self.keys += [table[:, v], table[:, v::interleaves].sum(axis=1)]

    def ways(self, weights: NDArray[np.float64], mask: NDArray[np.bool_]) -> list[Split]:
        """Every split of a stage on which the LP has not decided.

        Parameters
        ----------
        weights : float64 [columns]
            The LP's share of every column.
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
