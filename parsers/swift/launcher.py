"""ms-swift's scripts of ``megatron pt``, ``sft`` and ``rlhf``."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from taylor.base.files import SCRIPT, form_of
from taylor.parsers.flag_table import UnmodelledFlag
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.megatron import write
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.named_jobs import NamedJobs
from taylor.parsers.swift.options import FORM, NAME, NEGATED, OPTIONS
from taylor.parsers.swift.script import SwiftScript
from taylor.parsers.swift.yaml_job import YAML_TELLTALE, SwiftYaml, options_file
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.training_config import TrainingConfig
from taylor.register.model import ModelSpec


class Swift(NamedJobs, FlagLauncher):
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
    title = "ms-swift script or YAML (megatron pt, sft, rlhf)"
    suffixes = (".sh", ".yaml", ".yml")
    telltale = re.compile(
        r"^[^#\n]*(?:\bmegatron\s+(?:pt|sft|rlhf)\b|\bswift/cli/_megatron/(?:pt|sft|rlhf)\.py\b)", re.M
    )
    plan_keys = frozenset(OPTIONS.get(name, name).replace("-", "_") for name in write.PLAN_FLAGS)
    usual_device = UsualDevice("h100-80g", "ms-swift files")
    no_dryrun = NoDryrun("is started by ms-swift, which has no dry-run", cure="take the estimate")
    knows_parameters = False
    has_own_marks = True

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        suffix = form_of(path)
        telltale = self.telltale if suffix == SCRIPT else YAML_TELLTALE
        return suffix in self.suffixes and telltale.search(text) is not None

    def home_of_plan(self, config: TrainingConfig) -> Path:
        """The YAML of options, where a script names one."""
        launch = self.launch_of(config)
        return launch.home if isinstance(launch, SwiftYaml) else config.path

    def written(self, flag: str, setting: Setting) -> str:
        """See `FlagLauncher.written`."""
        return f"--{OPTIONS.get(flag, flag).replace('-', '_')} {'true' if setting is True else setting}"

    def launch(self, path: Path) -> SwiftScript:
        """See `FlagLauncher.launch`."""
        return _launch(path)

    def launch_of(self, config: TrainingConfig) -> SwiftScript:
        """See `FlagLauncher.launch_of`: of the model that is known, and that a script only names."""
        return _launch(config.path, model=config.model)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        launch = _launch(path, register_path)
        config = config_from_launch(launch)
        unmodelled = tuple(map(_as_written, config.unmodelled))
        return config.replace(
            rules=config.rules.replace(pairs=launch.pairs, adapters=launch.adapters), unmodelled=unmodelled
        )


def _launch(path: Path, register_path: Path | None = None, model: ModelSpec | None = None) -> SwiftScript:
    """A script, or the YAML of options that it names or that is given."""
    if form_of(path) != SCRIPT:
        return SwiftYaml(YamlSource.read(path), None, register_path, model)
    script = ShellScript.read(path)
    file = options_file(script)
    if file is not None:
        return SwiftYaml(YamlSource.read(file), script, register_path, model)
    return SwiftScript(script, register_path, model)


def _as_written(found: UnmodelledFlag) -> UnmodelledFlag:
    """A flag that no figure includes, by ms-swift's option for it."""
    name = found.name.removeprefix("--")
    off = next((option for option, negated in NEGATED.items() if negated == name), None)
    if off is not None:
        return replace(found, name=FORM.written(off), value="false")
    return replace(found, name=FORM.written(OPTIONS.get(name, name)))
