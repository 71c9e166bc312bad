"""A pipeline plan: layers and recompute of every chunk, and the file forms it translates to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Sequence

FULL, SELECT, NONE = "full", "select", "none"
RECOMPUTE_MODES = (FULL, SELECT, NONE)
"""Recompute modes in the order in which a chunk's layers take them: the first layers are fully
recomputed, the next ones selectively, the rest keep everything (MindFormers and Megatron `block`)."""

Grid = tuple[tuple[int, ...], ...]
"""int [vpp, pp]: one row an interleave, one column a stage."""


def as_grid(rows: Sequence[Sequence[int]]) -> Grid:
    """Freeze nested sequences of integers as a `Grid`."""
    return tuple(tuple(int(value) for value in row) for row in rows)


@dataclass(frozen=True)
class PipelinePlan:
    """Layers and recomputed layers of every chunk.

    Parameters
    ----------
    layers : mapping of str to int [vpp, pp]
        Layers by kind, kinds in model order; entry ``[v][s]`` is interleave v of stage s.
    recompute : mapping of str to int [vpp, pp]
        Layers of each chunk under a recompute mode (`FULL`, `SELECT`); a layer counts once, and a
        mode that is absent recomputes nothing.

    Raises
    ------
    ValueError
        When shapes differ, a count is negative, or a chunk recomputes more layers than it holds.
    """

    layers: Mapping[str, Grid]
    recompute: Mapping[str, Grid]

    def __post_init__(self) -> None:
        grids = [*self.layers.values(), *self.recompute.values()]
        if not self.layers:
            raise ValueError("a plan needs at least one layer kind")
        shape = (len(grids[0]), len(grids[0][0]))
        if any(len(grid) != shape[0] or any(len(row) != shape[1] for row in grid) for grid in grids):
            raise ValueError(f"every grid of a plan must have the shape [vpp, pp] = {list(shape)}")
        if any(value < 0 for grid in grids for row in grid for value in row):
            raise ValueError("layer and recompute counts must be >= 0")
        for v, row in enumerate(self.total_layers()):
            for s, held in enumerate(row):
                recomputed = sum(grid[v][s] for grid in self.recompute.values())
                if recomputed > held:
                    raise ValueError(f"chunk [{v}][{s}] holds {held} layers but recomputes {recomputed}")

    @property
    def interleaves(self) -> int:
        """Number of interleaves (vpp)."""
        return len(next(iter(self.layers.values())))

    @property
    def stages(self) -> int:
        """Number of stages (pp)."""
        return len(next(iter(self.layers.values()))[0])

    def total_layers(self, kinds: Sequence[str] | None = None) -> Grid:
        """Layers of each chunk, int [vpp, pp], over all kinds or the given ones."""
        chosen = [self.layers[kind] for kind in (self.layers if kinds is None else kinds)]
        return tuple(
            tuple(sum(grid[v][s] for grid in chosen) for s in range(self.stages)) for v in range(self.interleaves)
        )

    def offset(self, uncounted: Sequence[str] = ()) -> Grid:
        """Layers of each chunk above the even share L // (pp·vpp), int [vpp, pp].

        `uncounted` names kinds that do not count as layers (MTP in mcore-style files). The raw
        offset sums to L mod (pp·vpp), as MindFormers checks.
        """
        held = self.total_layers([kind for kind in self.layers if kind not in uncounted])
        base = sum(map(sum, held)) // (self.stages * self.interleaves)
        return tuple(tuple(value - base for value in row) for row in held)

    def recompute_by_kind(self) -> dict[str, dict[str, Grid]]:
        """Layers by kind and mode (`NONE` included), each int [vpp, pp].

        The first layers of a chunk are fully recomputed, the next selectively, in layer order, so
        the chunk's counts by mode say which kinds are meant.
        """
        result = {
            kind: {mode: [[0] * self.stages for _ in range(self.interleaves)] for mode in RECOMPUTE_MODES}
            for kind in self.layers
        }
        for v in range(self.interleaves):
            for s in range(self.stages):
                left = {mode: grid[v][s] for mode, grid in self.recompute.items()}
                for kind, grid in self.layers.items():
                    held = grid[v][s]
                    for mode in (FULL, SELECT):
                        taken = min(held, left.get(mode, 0))
                        result[kind][mode][v][s] = taken
                        left[mode] = left.get(mode, 0) - taken
                        held -= taken
                    result[kind][NONE][v][s] = held
        return {kind: {mode: as_grid(rows) for mode, rows in modes.items()} for kind, modes in result.items()}
