"""nanotron, as its YAML files configure it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.alike_recompute import AlikeRecompute
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.nanotron import write
from taylor.parsers.nanotron.read import ENGINES, NAME, config_from_source
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec


class Nanotron(AlikeRecompute):
    """nanotron's YAML files."""

    recomputing = NAME
    degree_words = {
        "dp": "parallelism.dp",
        "tp": "parallelism.tp",
        "pp": "parallelism.pp",
        "cp": "parallelism.context_parallel_size",
        "op": "optimizer.zero_stage",
        "sp": "parallelism.tp_mode",
        "mbs": "tokens.micro_batch_size",
        "seq": "tokens.sequence_length",
    }
    name = NAME
    title = "nanotron YAML"
    suffixes = (".yaml", ".yml")
    telltale = re.compile(r"^[ \t]+(?:batch_accumulation_per_replica|tp_mode|pp_engine)[ \t]*:", re.MULTILINE)
    plan_keys = write.PLAN_KEYS
    usual_device = UsualDevice("h100-80g", "nanotron files")
    no_dryrun = NoDryrun("is started by nanotron, which runs no training without its devices")
    has_own_marks = True

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_from_source(YamlSource.read(path))

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        source = YamlSource.read(config.path)
        return source.text, write.with_plan(source, config, plan, micro_batches).text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are ``section.key``."""
        return write.with_strategy(YamlSource.read(config.path), config, strategy, plan, extra).text

    def can_write(self, config: TrainingConfig, schedule: ScheduleSpec) -> bool:
        """Return whether one of nanotron's engines runs the schedule."""
        return schedule.name in ENGINES.values()
