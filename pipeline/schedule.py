"""The order of tasks on every stage: what a schedule is, independent of how long a task takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FORWARD, BACKWARD, WEIGHT_GRADIENT = 0, 1, 2
"""Directions of a task. With `WEIGHT_GRADIENT` tasks, `BACKWARD` is the input gradient alone."""

SCHEDULES = ("gpipe", "1f1b", "interleaved", "megatron-interleaved", "seqpipe", "zero_bubble_v")

AUTO = "auto"
"""In place of a schedule's name or a number of interleaves: every one that can run is tried."""


@dataclass(frozen=True)
class ScheduleSpec:
    """Which schedule a job runs.

    Parameters
    ----------
    name : str
        One of `SCHEDULES`. ``1f1b`` with several interleaves is not a schedule: use ``interleaved``.
    low_memory : bool
        Of ``interleaved``: one more warm-up forward a stage instead of two.
    seq_splits : int
        Of ``seqpipe``: pieces a sequence is cut into.
    """

    name: str = "1f1b"
    low_memory: bool = True
    seq_splits: int = 1


@dataclass(frozen=True)
class Schedule:
    """The fixed task order of every stage.

    Parameters
    ----------
    order : int32 [stages, tasks, 4]
        Row t of stage s is its t-th task: (direction, interleave, micro-batch, sequence split).
    v_shape : bool
        Odd interleaves run through the stages in reverse (zero-bubble V).
    """

    spec: ScheduleSpec
    stages: int
    interleaves: int
    micro_batches: int
    order: NDArray[np.int32]
    v_shape: bool = False

    @property
    def chunks(self) -> int:
        """Chunks in the model, stages · interleaves."""
        return self.stages * self.interleaves

    def chunk_at(self, position: int) -> tuple[int, int]:
        """(interleave, stage) of the chunk at a position in model order."""
        v, s = divmod(position, self.stages)
        return (v, self.stages - 1 - s) if self.v_shape and v % 2 else (v, s)

    def position(self, interleave: int, stage: int) -> int:
        """Position in model order of the chunk (interleave, stage)."""
        reverse = self.v_shape and interleave % 2
        return interleave * self.stages + (self.stages - 1 - stage if reverse else stage)

    @property
    def directions(self) -> int:
        """Kinds of task: forward and backward, with the weight gradient apart 3."""
        return 3 if (self.order[:, :, 0] == WEIGHT_GRADIENT).any() else 2

    def blocks(self) -> NDArray[np.int64]:
        """direction · V + interleave of every task, int64 [stages, tasks]."""
        return (self.order[:, :, 0] * self.interleaves + self.order[:, :, 1]).astype(np.int64)

    def pieces(self) -> NDArray[np.int64]:
        """micro-batch · splits + sequence split of every task, int64 [stages, tasks]."""
        return (self.order[:, :, 2] * self.spec.seq_splits + self.order[:, :, 3]).astype(np.int64)
