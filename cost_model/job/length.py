"""Length of a training: what a file or a user states of its end, and of its data."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

SECONDS_AN_HOUR = 3_600
SECONDS_A_DAY = 86_400


@dataclass(frozen=True)
class TrainingLength:
    """Length of a training, as far as it is stated.

    Parameters
    ----------
    tokens : float or None
        Tokens of the whole training.
    epoch_samples : int or None
        Samples of the data set.
    steps, samples : int or None
        Steps, or samples, after which the training ends.
    """

    tokens: float | None = None
    epoch_samples: int | None = None
    steps: int | None = None
    samples: int | None = None

    def over(self, other: TrainingLength) -> TrainingLength:
        """This length, with what `other` states where it states nothing."""
        stated = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}
        return replace(other, **stated)

    def train_days(self, tokens_per_second: float) -> float | None:
        """Days in which all tokens of the training are trained; None where their number is not stated."""
        return None if self.tokens is None else self.tokens / tokens_per_second / SECONDS_A_DAY

    def epoch_hours(self, samples_per_second: float) -> float | None:
        """Hours in which every sample of the data set is trained once; None where its size is not stated."""
        return None if self.epoch_samples is None else self.epoch_samples / samples_per_second / SECONDS_AN_HOUR

    def run_hours(self, step_seconds: float, samples_per_second: float) -> float | None:
        """Hours until the training ends by its steps or samples; None where neither is stated."""
        if self.steps is not None:
            return self.steps * step_seconds / SECONDS_AN_HOUR
        return None if self.samples is None else self.samples / samples_per_second / SECONDS_AN_HOUR


UNSTATED = TrainingLength()
"""Nothing is stated."""
