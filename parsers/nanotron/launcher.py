"""nanotron, as its YAML files configure it."""

from __future__ import annotations

import re
from pathlib import Path

from taylor.parsers.alike_recompute import AlikeRecompute
from taylor.parsers.edited_file import EditedFile
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.nanotron import write
from taylor.parsers.nanotron.read import ENGINES, NAME, config_from_source
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.schedule import ScheduleSpec


class Nanotron(EditedFile, AlikeRecompute):
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
    source = YamlSource
    writer = write
    usual_device = UsualDevice("h100-80g", "nanotron files")
    no_dryrun = NoDryrun("is started by nanotron, which runs no training without its devices")
    has_own_marks = True

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_from_source(YamlSource.read(path))

    def can_write(self, config: TrainingConfig, schedule: ScheduleSpec) -> bool:
        """Return whether one of nanotron's engines runs the schedule."""
        return schedule.name in ENGINES.values()
