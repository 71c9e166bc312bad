"""Micro-batches of an encoder run in the bubbles of a language model's pipeline: what runs, and where it was put.

Every stage has a whole encoder. A stage takes the encoder's micro-batches in rising order and runs all of one, its
layers (`EncoderWork.pieces`) one after the other, in one bubble or in several. The tasks of the language model keep
their order and their distances in time, and all of them begin `Insertion.delay` later than they do alone. In a bubble
forwards come before backwards. (Feng et al. 2024, arXiv:2408.03505, put single kernels in bubbles, and layers of one
micro-batch on several stages, too.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FIRST = 0
"""Stage of the chunk that takes the encoder's results, in every order of tasks."""


@dataclass(frozen=True)
class EncoderWork:
    """The encoder's work for one micro-batch on the ranks of one stage; times in body-layer forward times.

    Parameters
    ----------
    pieces : int
        Layers, which run one after the other and are not interrupted.
    forward, backward : float
        Time of one piece; no backward where the encoder is frozen.
    lag : float
        Transfer of a result to the first stage from another one, and of its gradient back.
    kept_mib : float
        What a micro-batch keeps on its stage from its first forward piece to its last backward piece.
    """

    pieces: int
    forward: float
    backward: float = 0.0
    lag: float = 0.0
    kept_mib: float = 0.0

    def __post_init__(self) -> None:
        if self.pieces < 1 or not self.forward > 0 or min(self.backward, self.lag, self.kept_mib) < 0:
            raise ValueError(f"an encoder's work has at least one piece and no time below 0, found {self!r}")

    @property
    def forward_time(self) -> float:
        """Time of a micro-batch's forward: no task of the language model begins earlier."""
        return self.pieces * self.forward

    @property
    def backward_time(self) -> float:
        """Time of a micro-batch's backward."""
        return self.pieces * self.backward

    @property
    def time(self) -> float:
        """Time of a micro-batch in both directions."""
        return self.forward_time + self.backward_time

    def lag_of(self, stage: int) -> float:
        """Transfer between a stage and the first one."""
        return 0.0 if stage == FIRST else self.lag


@dataclass(frozen=True, order=True)
class EncoderRun:
    """Pieces of one micro-batch that run without a break.

    Parameters
    ----------
    stage : int
    start : float
        Counted from the start of the step.
    micro_batch, direction, pieces : int
    """

    stage: int
    start: float
    micro_batch: int
    direction: int
    pieces: int


@dataclass(frozen=True)
class Insertion:
    """An encoder's micro-batches in a pipeline.

    Parameters
    ----------
    delay : float
        Time by which every task of the language model begins later than alone.
    step : float
        Step time with the encoder.
    runs : tuple of EncoderRun
        By stage and start.
    """

    delay: float
    step: float
    runs: tuple[EncoderRun, ...]

    def micro_batches_by_stage(self, stages: int) -> tuple[int, ...]:
        """Number of micro-batches whose encoder each stage runs, int [S]."""
        found = [{run.micro_batch for run in self.runs if run.stage == stage} for stage in range(stages)]
        return tuple(map(len, found))


@dataclass(frozen=True)
class InsertionResult:
    """The outcome of a search for an insertion into one plan.

    Parameters
    ----------
    insertion : Insertion or None
        None where the stages' memory takes no encoder.
    bound : float
        No insertion into this plan has a shorter step.
    proven : bool
        The bound meets the step.
    """

    insertion: Insertion | None
    bound: float
    proven: bool


Pieces = Sequence[Sequence[Sequence[int]]]
"""Pieces by stage, window and micro-batch."""
