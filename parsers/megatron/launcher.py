"""Megatron-LM and MindSpeed-LLM, as launch scripts start them."""

from __future__ import annotations

import re
from pathlib import Path

from taylor.base.files import read_text
from taylor.parsers.launcher import ExportForm, Tools, UsualDevice
from taylor.parsers.megatron import write
from taylor.parsers.megatron.context import fixed_context
from taylor.parsers.megatron.export import export_layer_list, export_layout
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.megatron.script import NAME, Script
from taylor.parsers.training_config import TrainingConfig

_RUN = 'eval "$(cat -- "$1")"'
"""Runs a variant of a script under the original's name ($0): ``dirname $0`` then says the original's folder."""


_OTHER_STARTERS = (
    r"\A(?!(?:.*\n)*?[^#\n]*(?:\bmegatron[ \t]+(?:pt|sft|rlhf)\b|--actor-num-nodes\b|\bMEGATRON_PATCH_PATH="
    r"|--recipe[ =]))[\s\S]*?"
)
"""Marks of tools that pass Megatron's options on to it and have readers of their own."""


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
        if re.search(r"\bmm[-_]model\b", read_text(config.path)) is None:
            return config.path
        return self.launch_of(config).plan_home or config.path

    def fixed_context(self, config: TrainingConfig) -> str | None:
        """See `Launcher.fixed_context`: MindSpeed's other kinds, and what goes with one kind alone, keep theirs."""
        return fixed_context(self.launch_of(config).flags)

    def dryrun_command(self, file: Path, original: Path, tools: Tools) -> tuple[str, ...]:
        """The script itself, under the original's name."""
        return ("bash", "-c", _RUN, str(original), str(file))
