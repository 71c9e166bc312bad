"""The order of a model's chunks over the stages: straight (a loop), folded like a V, or any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

Chunk = tuple[int, int]
"""(virtual stage, stage)."""


LOOP, V_SHAPE, FREE = "loop", "V", "free"
"""Names of placements (`Placement.name`)."""


@dataclass(frozen=True)
class Placement:
    """The stage of every chunk of a model.

    The chunks of a stage are its virtual stages, in model order.

    Parameters
    ----------
    stage_of : tuple of int [chunks]
        Stages of the chunks in model order; each stage holds as many.

    Raises
    ------
    ValueError
        When a stage holds more chunks than another.
    """

    stage_of: tuple[int, ...]

    def __post_init__(self) -> None:
        counts = Counter(self.stage_of)
        if not counts or set(counts) != set(range(len(counts))) or len(set(counts.values())) > 1:
            raise ValueError(f"every stage must have as many chunks, found the stages {list(self.stage_of)}")

    @classmethod
    def shaped(cls, stages: int, interleaves: int, *, v_shape: bool) -> Placement:
        """A loop, in which each virtual stage runs from the first stage to the last, or a V."""
        return cls(tuple(s for _, s in chunk_order(stages, interleaves, v_shape)))

    @cached_property
    def stages(self) -> int:
        """Number of stages."""
        return 1 + max(self.stage_of)

    @cached_property
    def interleaves(self) -> int:
        """Chunks of a stage."""
        return len(self.stage_of) // self.stages

    @cached_property
    def chunks(self) -> tuple[Chunk, ...]:
        """(virtual stage, stage) of every chunk in model order."""
        counts, found = [0] * self.stages, []
        for s in self.stage_of:
            found.append((counts[s], s))
            counts[s] += 1
        return tuple(found)

    @cached_property
    def positions(self) -> dict[Chunk, int]:
        """Position in model order of every chunk."""
        return {chunk: k for k, chunk in enumerate(self.chunks)}

    def values(self, grid: Sequence[Sequence[int]]) -> list[int]:
        """The entries of a grid [vpp, pp] by chunk in model order."""
        return [grid[v][s] for v, s in self.chunks]

    def grid(self, values: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Values by chunk in model order as a grid [vpp, pp]; the inverse of `values`."""
        places = self.positions
        return tuple(tuple(int(values[places[v, s]]) for s in range(self.stages)) for v in range(self.interleaves))

    @property
    def name(self) -> str:
        """`LOOP`, `V_SHAPE`, or `FREE` for one that is neither."""
        shapes = {LOOP: False, V_SHAPE: True}
        found = (
            name
            for name, v_shape in shapes.items()
            if self == Placement.shaped(self.stages, self.interleaves, v_shape=v_shape)
        )  # fmt: skip
        return next(found, FREE)


def chunk_at(position: int, stages: int, v_shape: bool) -> tuple[int, int]:
    """(virtual stage, stage) of the chunk at a position in model order.

    Parameters
    ----------
    v_shape : bool
        Odd virtual stages run through the stages in reverse.
    """
    v, s = divmod(position, stages)
    return (v, stages - 1 - s) if v_shape and v % 2 else (v, s)


def position_of(interleave: int, stage: int, stages: int, v_shape: bool) -> int:
    """Position in model order of the chunk (virtual stage, stage); the inverse of `chunk_at`."""
    return interleave * stages + (stages - 1 - stage if v_shape and interleave % 2 else stage)


def chunk_order(stages: int, interleaves: int, v_shape: bool) -> list[tuple[int, int]]:
    """(virtual stage, stage) of every chunk in model order."""
    return [chunk_at(position, stages, v_shape) for position in range(stages * interleaves)]
