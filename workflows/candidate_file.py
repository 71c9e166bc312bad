"""A candidate of a ranking: its configuration and what is known of it before the solve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taylor.cost_model.profile import MemoryProfile, TimeRatios
from taylor.parsers.training_config import TrainingConfig


@dataclass(frozen=True)
class CandidateFile:
    """One configuration to solve.

    Parameters
    ----------
    config : TrainingConfig or None
        None for a file that cannot be read, which has only its `unread` path.
    memory : MemoryProfile or None
    ratios : TimeRatios or None
    failure : str
        Why it cannot be solved.
    nd_peak_mib : float or None
        Peak memory that the search told, MiB.
    unread : Path or None
    other_batch : bool
        The configuration's number of micro-batches is not its file's (`--gbs`), so that a plan for it is written
        with that number.
    """

    config: TrainingConfig | None
    memory: MemoryProfile | None
    ratios: TimeRatios | None
    failure: str = ""
    nd_peak_mib: float | None = None
    unread: Path | None = None
    other_batch: bool = False

    @property
    def path(self) -> Path:
        """The candidate's file.

        Raises
        ------
        ValueError
            When it has neither a configuration nor a path.
        """
        path = self.unread if self.config is None else self.config.path
        if path is None:
            raise ValueError("a candidate needs a configuration, or the path of the file that cannot be read")
        return path
