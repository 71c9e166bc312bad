"""Megatron-Bridge of NVIDIA NeMo: its resolved configurations and the scripts that start its recipes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from taylor.parsers.bridge import container, script
from taylor.parsers.bridge.container import BridgeContainer
from taylor.parsers.bridge.fields import unread
from taylor.parsers.bridge.script import BridgeScript
from taylor.parsers.flag_table import UnmodelledFlag
from taylor.parsers.launcher import Launcher, NoDryrun, UsualDevice
from taylor.parsers.megatron import write
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.megatron.section_adapters import refuse_grouped_dora
from taylor.parsers.small_run import JobSizes
from taylor.parsers.training_config import TrainingConfig

_USUAL = UsualDevice("h100-80g", "Megatron-Bridge files")
_DEVICES = {
    "h100": "h100-80g",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "b200": "b200-180g",
    "b300": "b300-270g",
}
_NO_DRYRUN = NoDryrun("is started by Megatron-Bridge, which runs no training without its devices")


class Bridge(FlagLauncher):
    """Resolved configurations."""

    degree_words = {
        word: f"model.{flag.removeprefix('--').replace('-', '_')}" for word, flag in FlagLauncher.degree_words.items()
    } | {
        "op": "ddp.use_distributed_optimizer",
        "vpp": "model.virtual_pipeline_model_parallel_size",
        "mbs": "train.micro_batch_size",
        "gbs": "train.global_batch_size",
    }
    name = container.NAME
    title = "Megatron-Bridge YAML (ConfigContainer)"
    suffixes = (".yaml", ".yml")
    telltale = re.compile(r"\A(?=[\s\S]*^_target_:[^\n]*ConfigContainer)(?=[\s\S]*^model:)(?=[\s\S]*^train:)", re.M)
    plan_keys = frozenset(
        {
            *(flag.replace("-", "_") for flag in write.PLAN_FLAGS),
            "virtual_pipeline_model_parallel_size",
            "num_layers_in_first_pipeline_stage",
            "num_layers_in_last_pipeline_stage",
            "microbatch_group_size_per_vp_stage",
        }
    )
    usual_device = _USUAL
    no_dryrun = _NO_DRYRUN
    has_own_marks = True

    def launch(self, path: Path) -> BridgeContainer:
        """See `FlagLauncher.launch`."""
        return BridgeContainer.read(path)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return _config_of(self.launch(path))

    def job_sizes(self, path: Path) -> JobSizes:
        """None: a small run would need a recipe of its own."""
        return Launcher.job_sizes(self, path)


class BridgeRecipe(FlagLauncher):
    """Scripts that start a published recipe with overrides."""

    degree_words = Bridge.degree_words
    name = script.NAME
    title = "Megatron-Bridge script (--recipe)"
    suffixes = (".sh",)
    telltale = re.compile(
        r"^[^#\n]*(?:--recipe[= ](?!\S*\.ya?ml\b)\S|--model_recipe_name[= ]|(?<!\S)-mr[= ]"
        r"|--mode[= ](?:pretrain|sft|lora|dora)\b)(?<!\n)",
        re.M,
    )
    plan_keys = frozenset[str]()
    usual_device = _USUAL
    no_dryrun = _NO_DRYRUN
    has_own_marks = True

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`: of Bridge's programs alone."""
        return super().recognises(path, text) and _PROGRAMS.search(text) is not None

    def launch(self, path: Path) -> BridgeScript:
        """See `FlagLauncher.launch`."""
        return BridgeScript.read(path)

    def launch_of(self, config: TrainingConfig) -> BridgeScript:
        """See `FlagLauncher.launch_of`."""
        return BridgeScript.read(config.path, model=config.model)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return _config_of(BridgeScript.read(path, register_path))

    def usual_device_of(self, config: TrainingConfig) -> UsualDevice:
        """The device in the recipe's name, written out or selected by the performance launcher's options."""
        found = re.search(r"_\d+gpu_([a-z]+\d+)_", self.launch_of(config).recipe.name)
        known = _DEVICES.get(found[1]) if found else None
        return (
            _USUAL
            if known is None or found is None
            else replace(_USUAL, name=known, why=f"by the recipe's name, {found[1]}")
        )

    def job_sizes(self, path: Path) -> JobSizes:
        """None: a recipe's model cannot be cut down."""
        return Launcher.job_sizes(self, path)


_PROGRAMS = re.compile(
    r"\brun_recipe\.py\b|\btrain\.sh\b|\bsetup_experiment\.py\b|\brun_script\.py\b|\bperformance/bootstrap\.py\b"
)


def _config_of(launch: BridgeContainer | BridgeScript) -> TrainingConfig:
    """The configuration of a launch: its adapters, and what no figure includes by its field."""
    config = config_from_launch(launch)
    written = (_as_written(found, launch) for found in config.unmodelled)
    config = config.replace(
        rules=config.rules.replace(adapters=launch.adapters),
        unmodelled=(*written, *unread(launch.fields, launch.stated)),
    )
    refuse_grouped_dora(config, "peft")
    return config


def _as_written(found: UnmodelledFlag, launch: BridgeContainer | BridgeScript) -> UnmodelledFlag:
    """A flag that no figure includes, by its field."""
    name = found.name.removeprefix("--")
    stated = launch.stated.get(name)
    return found if stated is None else replace(found, name=stated[0])
