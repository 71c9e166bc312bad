"""A candidate of a ranking: its configuration and the facts known before the solve."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from taylor.cost_model.choices.module_choices import ModuleWords
from taylor.cost_model.job.length import TrainingLength
from taylor.cost_model.profile import MemoryProfile, TimeRatios
from taylor.cost_model.time.throughput import Throughput
from taylor.parsers.training_config import TrainingConfig
from taylor.workflows.statement.devices import ChosenDevice
from taylor.workflows.statement.job_facts import JobFacts
from taylor.workflows.statement.measured_run import SeenMemory


def same_model(config: TrainingConfig) -> Hashable:
    """Facts that configurations of one model share: all but its name, which may be the file's, and the vocabulary,
    which launchers pad by the degree of TP.
    """
    return config.model.replace(name="", vocab=0)


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
        Reason why it cannot be solved.
    nd_peak_mib : float or None
        Peak memory that the search predicted, MiB.
    unread : Path or None
    other_batch : bool
        The configuration's number of micro-batches is not its file's (`--gbs`), so that a plan for it is written
        with that number.
    device : ChosenDevice or None
        Device that it is planned for.
    modules : ModuleWords or None
        Modules to choose from, where recompute or offload by module was requested.
    seen : SeenMemory
        What runs showed of its memory, and limits of single stages.
    """

    config: TrainingConfig | None
    memory: MemoryProfile | None
    ratios: TimeRatios | None
    failure: str = ""
    nd_peak_mib: float | None = None
    unread: Path | None = None
    other_batch: bool = False
    device: ChosenDevice | None = None
    modules: ModuleWords | None = None
    seen: SeenMemory = SeenMemory()

    @property
    def job(self) -> Hashable:
        """Facts that make step times comparable where they are equal: model, sequence, batch, ranks."""
        if self.config is None:
            return None
        strategy = self.config.strategy
        return same_model(self.config), self.config.rules.seq_length, strategy.global_batch, strategy.world_size

    def throughput(self, step_ms: float, length: TrainingLength, *, stated: bool = True) -> Throughput | None:
        """Performance at a step time; None where its device is not known.

        Parameters
        ----------
        length : TrainingLength
            Of the training; `stated`: what it leaves out is as the file states it.
        """
        if self.config is None or self.device is None:
            return None
        return JobFacts(
            self.config, self.device, length=length.over(self.config.length) if stated else length
        ).throughput(step_ms)

    @property
    def path(self) -> Path:
        """File of the candidate.

        Raises
        ------
        ValueError
            When it has neither a configuration nor a path.
        """
        path = self.unread if self.config is None else self.config.path
        if path is None:
            raise ValueError("a candidate needs a configuration, or the path of the file that cannot be read")
        return path
