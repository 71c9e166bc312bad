"""OLMo-core: launches of its training scripts, and the configuration that a run saves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.alike_recompute import BOTH_MODES, AlikeRecompute
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.olmo import write
from taylor.parsers.olmo.read import NAME, SCHEDULES, Ranks, config_from_data
from taylor.parsers.olmo.saved import read_saved
from taylor.parsers.olmo.script import OlmoJob
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec

_USUAL = UsualDevice("h100-80g", "OLMo-core files")
_WORDS = {
    "dp": "train_module.dp_config",
    "tp": "train_module.tp_config.degree",
    "pp": "train_module.pp_config.degree",
    "ep": "train_module.ep_config.degree",
    "cp": "train_module.cp_config.degree",
    "op": "train_module.dp_config.shard_degree",
    "vpp": "train_module.pp_config.schedule",
    "mbs": "train_module.rank_microbatch_size",
    "gbs": "data_loader.global_batch_size",
    "seq": "train_module.max_sequence_length",
}


class OlmoScript(AlikeRecompute):
    """Shell scripts that start a published training script."""

    recomputing = "OLMo-core"
    recompute_modes = BOTH_MODES
    degree_words = _WORDS
    name = NAME
    title = "OLMo-core script"
    suffixes: tuple[str, ...] = (".sh",)
    telltale = re.compile(r"^[^#\n]*\bsrc/scripts/(?:train|official)/[\w./-]+\.py\b", re.MULTILINE)
    plan_keys = write.PLAN_KEYS
    usual_device = _USUAL
    no_dryrun = NoDryrun("is started by OLMo-core, which runs no training without its devices")
    has_own_marks = True

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        job = OlmoJob.of(ShellScript.read(path))
        row = job.row()
        notes = [f"{job.name} is read as allenai/OLMo-core has it ({row['source']})", *job.notes]
        return config_from_data(job.data(), path, job.ranks, Path(job.name).stem.lower(), notes)

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        config.refuse_other_stages(plan, "train_module.pp_config.degree")
        job = OlmoJob.of(ShellScript.read(config.path))
        wanted = write.plan_overrides(config, plan)
        if micro_batches is not None:
            wanted |= write.batch_overrides(config, config.strategy.replace(micro_batches=micro_batches))
        return job.script.text, write.written(job, wanted).text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are dotted names of the configuration."""
        job = OlmoJob.of(ShellScript.read(config.path))
        wanted = write.strategy_overrides(config, strategy) | write.batch_overrides(config, strategy)
        if plan is not None:
            wanted |= write.plan_overrides(config, plan)
        return write.written(job, {**wanted, **extra}, strategy.world_size).text

    def can_write(self, config: TrainingConfig, schedule: ScheduleSpec) -> bool:
        """Return whether OLMo-core runs the schedule."""
        return schedule.name in SCHEDULES.values()


class OlmoConfig(OlmoScript):
    """The config.json that a run saves with its checkpoints: read, and never written."""

    name = f"{NAME}-config"
    title = "OLMo-core config.json"
    suffixes = (".json",)
    telltale = re.compile(r'"train_module"\s*:\s*\{')
    suffix_decides = False

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        data, name = read_saved(path)
        return config_from_data(data, path, Ranks(), name, []).replace(launcher=self.name)

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """Nothing: the file is a record.

        Raises
        ------
        InputError
            Always.
        """
        raise _record(config.path)

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """Nothing: the file is a record.

        Raises
        ------
        InputError
            Always.
        """
        raise _record(config.path)


def _record(path: Path) -> InputError:
    cure = "export the plan as JSON, or give the script that starts the training"
    return InputError("is the record of a run, and starts no training", file=path, cure=cure)
