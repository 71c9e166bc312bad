"""Megatron-LM and MindSpeed-LLM, as launch scripts start them."""

from __future__ import annotations

import re
from pathlib import Path

from taylor.base.files import read_text
from taylor.parsers.launcher import ExportForm, Tools, UsualDevice
from taylor.parsers.megatron import model_file_write, write
from taylor.parsers.megatron.context import fixed_context
from taylor.parsers.megatron.export import export_layer_list, export_layout
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.megatron.model_file import MODEL_FILE
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.megatron.script import NAME, Script
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec

_RUN = 'eval "$(cat -- "$1")"'
"""Runs a variant of a script under the original's name ($0): ``dirname $0`` then says the original's folder."""


_OTHER_STARTERS = (
    r"\A(?!(?:.*\n)*?[^#\n]*(?:\bmegatron[ \t]+(?:pt|sft|rlhf)\b|--actor-num-nodes\b|\bMEGATRON_PATCH_PATH="
    r"|--recipe[ =]))[\s\S]*?"
)
"""Marks of tools that pass Megatron's options on to it and have readers of their own."""


_NAMES_MODEL_FILE = re.compile(rf"\b{MODEL_FILE.replace('-', '[-_]')}\b")


class Megatron(FlagLauncher):
    """Launch scripts of Megatron-LM and MindSpeed-LLM."""

    name = NAME
    title = "Megatron or MindSpeed script"
    suffixes = (".sh",)
    telltale = re.compile(rf"{_OTHER_STARTERS}--(num|pipeline|tensor|micro|global)[-_](layers|model|batch)")
    plan_keys = write.PLAN_FLAGS
    usual_device = UsualDevice("h100-80g", "Megatron files")
    export_forms = {
        "megatron-layout": ExportForm(export_layout, places_only=True),
        "mindspeed-list": ExportForm(export_layer_list, places_only=True),
    }

    def launch(self, path: Path) -> Script:
        """See `FlagLauncher.launch`."""
        return Script.read(path)

    def home_of_plan(self, config: TrainingConfig) -> Path:
        """The JSON of a MindSpeed-MM job, which has the layers."""
        if _NAMES_MODEL_FILE.search(read_text(config.path)) is None:
            return config.path
        return self.launch(config.path).plan_home or config.path

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        script = self.launch(config.path)
        if script.plan_home is None:
            return super().with_plan(config, plan, micro_batches)
        return model_file_write.with_plan(script, config, plan, micro_batches)

    def can_write(self, config: TrainingConfig, schedule: ScheduleSpec) -> bool:
        """See `FlagLauncher.can_write`; the script of a MindSpeed-MM job, which states the schedule, stays as it is."""
        script = self.launch(config.path)
        if script.plan_home is not None and schedule.name != config_from_launch(script).schedule.name:
            return False
        return super().can_write(config, schedule)

    def fixed_context(self, config: TrainingConfig) -> str | None:
        """See `Launcher.fixed_context`: MindSpeed's other kinds, and what goes with one kind alone, keep theirs."""
        return fixed_context(self.launch_of(config).flags)

    def dryrun_command(self, file: Path, original: Path, tools: Tools) -> tuple[str, ...]:
        """The script itself, under the original's name."""
        return ("bash", "-c", _RUN, str(original), str(file))
