"""Protocol of the launchers whose YAML files hand a job to Hugging Face's Trainer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.alike_recompute import OneStage
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.text.yaml_edit import edit_yaml
from taylor.parsers.text.yaml_source import YamlPath, YamlSource
from taylor.parsers.trainer.job import TrainerJob, config_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.register.model import ModelSpec

USUAL_DEVICE = UsualDevice("h100-80g", "files of Hugging Face's Trainer")
_DEGREES = ("tp", "pp", "ep", "cp", "vpp")


class TrainerYaml(OneStage):
    """YAML files of a job on one stage: recompute, micro-batch and accumulation are what a plan can say."""

    recomputing = "gradient checkpointing"
    suffixes = (".yaml", ".yml")
    usual_device = USUAL_DEVICE
    no_dryrun = NoDryrun("is started by Hugging Face's Trainer, which has no dry-run", cure="take the estimate")
    has_own_marks = True

    @abstractmethod
    def job(self, source: YamlSource, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
        """The job of a parsed file.

        Raises
        ------
        InputError
            As `Launcher.read` does.
        """

    @abstractmethod
    def edits(
        self, source: YamlSource, recomputes: bool | None, mbs: int | None, accumulation: int | None
    ) -> Mapping[YamlPath, Any]:
        """Settings that say recompute of every layer, samples a micro-batch, and micro-batches a step of a rank."""

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_of(self.job(YamlSource.read(path), register_path))

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        config.refuse_other_stages(plan, "pipeline stages")
        source = YamlSource.read(config.path)
        return source.text, self._edited(source, config, plan, None, micro_batches).text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`: micro-batches alone; ranks stand in no such file."""
        for name in _DEGREES:
            if getattr(strategy, name) != getattr(config.strategy, name):
                problem = f"cannot be said by a {self.title}, which has one stage and the degrees that it states"
                raise InputError(problem, file=config.path, field=name, value=getattr(strategy, name))
        source = YamlSource.read(config.path)
        plan = config.even_plan(strategy) if plan is None else plan
        edited = self._edited(source, config, plan, strategy.mbs, strategy.micro_batches)
        if extra:
            edited = edit_yaml(edited, {tuple(name.split(".")): value for name, value in extra.items()})
        return edited.text

    def _edited(
        self, source: YamlSource, config: TrainingConfig, plan: PipelinePlan, mbs: int | None, accumulation: int | None
    ) -> YamlSource:
        job = self.job(source, model=config.model)
        recomputes = plan.uses(FULL)
        wanted = self.edits(
            source,
            None if recomputes == job.recomputes else recomputes,
            None if mbs == job.mbs else mbs,
            None if accumulation == job.accumulation else accumulation,
        )
        return edit_yaml(source, wanted) if wanted else source
