"""The order of a model's chunks over the stages, straight or folded like a V."""

from __future__ import annotations


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
