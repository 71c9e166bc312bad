"""FlagScale, whose experiments state Megatron's flags as YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.flagscale.experiment import Experiment
from taylor.parsers.flagscale.job import NAME, FlagScaleJob
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.megatron import write
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan


class FlagScale(FlagLauncher):
    """FlagScale's experiments and train files.

    A plan is written into the train file, which an experiment may name; a file made for another strategy holds both.
    """

    name = NAME
    title = "FlagScale YAML"
    suffixes = (".yaml", ".yml")
    telltale = re.compile(r"^\ufeff?(experiment|system)\s*:", re.MULTILINE)
    plan_keys = frozenset(flag.replace("-", "_") for flag in write.PLAN_FLAGS)
    usual_device = UsualDevice("h100-80g", "FlagScale files")
    no_dryrun = NoDryrun("is started by FlagScale, which runs no training without its devices")

    def launch(self, path: Path) -> FlagScaleJob:
        """See `FlagLauncher.launch`."""
        return FlagScaleJob(Experiment.read(path))

    def home_of_plan(self, config: TrainingConfig) -> Path:
        """The train file."""
        return Experiment.read(config.path).source.file

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`: experiment and train file in one, so that the ranks go with it."""
        return write.with_strategy(self.launch(config.path).in_one_file(), config, strategy, plan, extra).text
