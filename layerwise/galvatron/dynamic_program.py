"""The dynamic program that Galvatron runs for every stage: layers x whole MiB x strategies, compiled.

Hetu-Galvatron cea12ff csrc/dp_core.cpp. Its ties decide which of several equal plans comes out, so the order of
candidates and of additions is kept.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.base.compiled import compiled


@compiled
def fill(memory, inside, between, layers, f, mark):  # type: ignore[no-untyped-def]
    """Fill `f` float64 [MiB + 1, S] with least times and `mark` int8 [layers, MiB + 1, S] with the strategy before."""
    limit, strategies = f.shape
    for i in range(layers):
        for v in range(limit - 1, -1, -1):
            for s in range(strategies):
                left = v - memory[s]
                if left < 0:
                    mark[i, v, s] = -1
                    f[v, s] = np.inf
                    continue
                best, least = 0, np.inf
                for si in range(strategies):
                    candidate = f[left, si] + between[i, si, s] + inside[s]
                    if candidate < least:
                        best, least = si, candidate
                mark[i, v, s] = best
                f[v, s] = least


class StageProgram:
    """The program of one stage, asked for several sizes of memory.

    Parameters
    ----------
    memory : int64 [S]
        Memory of a layer, MiB.
    inside : float64 [S]
        Time of a layer.
    between : float64 [S, S]
        Time between a layer and the next one.
    layers : int
    limit : int
        Most memory that is asked for, MiB.
    first : bool
        The model's first layer is on the stage: nothing stands before it.
    """

    def __init__(
        self,
        memory: NDArray[np.int64],
        inside: NDArray[np.float64],
        between: NDArray[np.float64],
        layers: int,
        limit: int,
        first: bool,
    ) -> None:
        self.memory, self.layers = memory, layers
        self.f = np.zeros((limit + 1, len(memory)))
        self.mark = np.empty((layers, limit + 1, len(memory)), dtype=np.int8)
        costs = np.broadcast_to(between, (layers, *between.shape)).copy()
        if first:
            costs[0] = 0.0
        fill(memory, inside, costs, layers, self.f, self.mark)

    def choices(self, limit: int) -> list[int] | None:
        """The strategy of every layer within so much memory; None where nothing fits."""
        if limit < 0:
            return None
        at = int(np.argmin(self.f[limit]))
        if not np.isfinite(self.f[limit, at]):
            return None
        found = [at]
        for i in range(self.layers - 1, 0, -1):
            before = int(self.mark[i, limit, at])
            limit -= int(self.memory[at])
            at = before
            found.append(at)
        return found[::-1]
