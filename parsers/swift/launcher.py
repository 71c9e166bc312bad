"""ms-swift's scripts of ``megatron pt``, ``sft`` and ``rlhf``."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.flag_table import UnmodelledFlag
from taylor.parsers.launcher import Launcher, Tools, UsualDevice
from taylor.parsers.megatron import write
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.small_run import JobSizes, Machines, PlannedJob, ProfiledSteps, RunSetting, Switch
from taylor.parsers.swift.options import FORM, NAME, NEGATED, OPTIONS
from taylor.parsers.swift.script import SwiftScript
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.training_config import TrainingConfig


class Swift(FlagLauncher):
    """Launch scripts of ms-swift's trainer on Megatron.

    The model is named, by its Hugging Face name or its folder: a plan states its layers and changes none.
    """

    degree_words = {
        "tp": "--tensor_model_parallel_size",
        "pp": "--pipeline_model_parallel_size",
        "ep": "--expert_model_parallel_size",
        "cp": "--context_parallel_size",
        "op": "--use_distributed_optimizer",
        "sp": "--sequence_parallel",
        "vpp": "--virtual_pipeline_model_parallel_size",
        "mbs": "--micro_batch_size",
        "gbs": "--global_batch_size",
        "seq": "--max_length",
    }
    name = NAME
    title = "ms-swift script (megatron pt, sft, rlhf)"
    suffixes = (".sh",)
    telltale = re.compile(
        r"^[^#\n]*(?:\bmegatron\s+(?:pt|sft|rlhf)\b|\bswift/cli/_megatron/(?:pt|sft|rlhf)\.py\b)", re.M
    )
    plan_keys = frozenset(OPTIONS.get(name, name).replace("-", "_") for name in write.PLAN_FLAGS)
    usual_device = UsualDevice("h100-80g", "ms-swift files")
    log_names_parameters = False
    has_own_marks = True

    def written(self, flag: str, setting: Setting) -> str:
        """See `FlagLauncher.written`."""
        return f"--{OPTIONS.get(flag, flag).replace('-', '_')} {'true' if setting is True else setting}"

    def launch(self, path: Path) -> SwiftScript:
        """See `FlagLauncher.launch`."""
        return SwiftScript.read(path)

    def launch_of(self, config: TrainingConfig) -> SwiftScript:
        """See `FlagLauncher.launch_of`: of the model that is known, and that a script only names."""
        return SwiftScript.read(config.path, model=config.model)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        launch = SwiftScript.read(path, register_path)
        config = config_from_launch(launch)
        unmodelled = tuple(map(_as_written, config.unmodelled))
        return config.replace(rules=config.rules.replace(pairs=launch.pairs), unmodelled=unmodelled)

    def job_sizes(self, path: Path) -> JobSizes:
        """See `Launcher.job_sizes`: a model that is named cannot be cut down."""
        return Launcher.job_sizes(self, path)

    def small_run(
        self,
        path: Path,
        setting: RunSetting,
        machines: Machines,
        profile: ProfiledSteps,
        switched: Collection[str] = (),
    ) -> str:
        """See `Launcher.small_run`."""
        return Launcher.small_run(self, path, setting, machines, profile, switched)

    def planned_job(self, path: Path, setting: RunSetting, job: PlannedJob) -> str:
        """See `Launcher.planned_job`."""
        return Launcher.planned_job(self, path, setting, job)

    def whole_run(self, path: Path, setting: RunSetting, job: PlannedJob, machines: Machines, iterations: int) -> str:
        """See `Launcher.whole_run`."""
        return Launcher.whole_run(self, path, setting, job, machines, iterations)

    def switches(self, path: Path) -> tuple[Switch, ...]:
        """See `Launcher.switches`: none."""
        return ()

    def dryrun_command(self, file: Path, original: Path, tools: Tools) -> tuple[str, ...]:
        """ms-swift loads the model's weights before it trains.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError(
            "is started by ms-swift, which has no dry-run",
            file=original,
            field="--dryrun_backend",
            cure="take the estimate",
        )


def _as_written(found: UnmodelledFlag) -> UnmodelledFlag:
    """A flag that no figure includes, by ms-swift's option for it."""
    name = found.name.removeprefix("--")
    off = next((option for option, negated in NEGATED.items() if negated == name), None)
    if off is not None:
        return replace(found, name=FORM.written(off), value="false")
    return replace(found, name=FORM.written(OPTIONS.get(name, name)))
