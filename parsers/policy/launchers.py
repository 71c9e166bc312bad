"""Launchers whose files train a policy: on Megatron, or on parameters that torch shards."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.alike_recompute import OneStage
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.named_jobs import NamedJobs
from taylor.parsers.policy.job import PolicyJob
from taylor.parsers.policy.options import Options
from taylor.parsers.policy.sharded import refuse_other_degrees
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan


def counted(options: Options, key: str, samples: int, each: int) -> int:
    """What a key states of samples of which it counts `each` as one: the answers to a prompt, or a pair.

    Raises
    ------
    InputError
        When they are no whole number of these.
    """
    if samples % each:
        raise options.error(key, f"counts {each} samples as one", samples, "plan other micro-batches")
    return samples // each


class MegatronPolicy(NamedJobs, FlagLauncher):
    """Files whose policy Megatron trains; a subclass defines `start` and `job`."""

    degree_words = {
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "ep": "expert_model_parallel_size",
        "cp": "context_parallel_size",
        "op": "use_distributed_optimizer",
        "sp": "sequence_parallel",
        "vpp": "virtual_pipeline_model_parallel_size",
    }
    knows_parameters = False
    has_own_marks = True
    start: ClassVar[Callable[..., Any]]
    """What a file says, by its path, that of the register, and the model where it is known."""
    job: ClassVar[Callable[..., PolicyJob]]
    """The launch of what a file says."""

    def launch(self, path: Path) -> PolicyJob:
        """See `FlagLauncher.launch`."""
        return self.job(self.start(path))

    def launch_of(self, config: TrainingConfig) -> PolicyJob:
        """See `FlagLauncher.launch_of`: of the model that is known, and that a file only names."""
        return self.job(self.start(config.path, model=config.model))

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return self.job(self.start(path, register_path)).config()


class ShardedPolicy(OneStage):
    """Files whose policy is trained on parameters that torch shards; a subclass defines what is declared here."""

    recomputing = "the file"
    has_own_marks = True
    start: ClassVar[Callable[..., Any]]
    """As `MegatronPolicy.start`."""
    fixed: tuple[str, ...]
    """Degrees, by `Strategy`'s names, that no option of its files states."""

    @abstractmethod
    def edits(self, start: Any, own: Strategy, wanted: Strategy) -> dict[str, object]:
        """Options that state another strategy, by their keys.

        Raises
        ------
        InputError
            When none states its batch.
        """

    @abstractmethod
    def recompute(self, start: Any, plan: PipelinePlan) -> dict[str, object]:
        """Options that state a plan's recompute, where it differs."""

    @abstractmethod
    def texts(self, start: Any, wanted: Mapping[str, object]) -> tuple[str, str]:
        """The file's text, and with some options set."""

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        start, own = self.start(config.path, model=config.model), config.strategy
        wanted = self.edits(start, own, own.replace(micro_batches=micro_batches or own.micro_batches))
        return self.texts(start, wanted | self.recompute(start, plan))

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are options."""
        refuse_other_degrees(config, strategy, self.fixed)
        start = self.start(config.path, model=config.model)
        wanted = {**extra, **self.edits(start, config.strategy, strategy)}
        wanted |= {} if plan is None else self.recompute(start, plan)
        return self.texts(start, wanted)[1]
