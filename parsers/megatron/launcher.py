"""Megatron-LM and MindSpeed-LLM, as launch scripts start them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from taylor.cost_model.strategy import Strategy
from taylor.parsers.launcher import ExportForm, Launcher, Tools, UsualDevice
from taylor.parsers.megatron import recompute, write
from taylor.parsers.megatron.export import export_layer_list, export_layout
from taylor.parsers.megatron.read import V_SCHEDULE, config_from_launch, is_mindspeed
from taylor.parsers.megatron.script import NAME, Script
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import PLAIN, ScheduleSpec
from taylor.register.frameworks import MEGATRON

_RUN = 'eval "$(cat -- "$1")"'
"""Runs a variant of a script under the original's name ($0): ``dirname $0`` then says the original's folder."""


ON_ASCEND = UsualDevice("ascend-910b", "MindSpeed files")
"""MindSpeed is Megatron on Ascend devices."""


class Megatron(Launcher):
    """Launch scripts of Megatron-LM and MindSpeed-LLM."""

    name = NAME
    title = "Megatron or MindSpeed script"
    suffixes = (".sh",)
    telltale = re.compile(r"--(num|pipeline|tensor|hidden|micro|global)[-_](layers|model|size|batch)")
    plan_keys = write.PLAN_FLAGS
    usual_device = UsualDevice("h100-80g", "Megatron files")
    export_forms = {
        "megatron-layout": ExportForm(export_layout, places_only=True),
        "mindspeed-list": ExportForm(export_layer_list, places_only=True),
    }

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_from_launch(Script.read(path))

    def usual_device_of(self, config: TrainingConfig) -> UsualDevice:
        """An Ascend device where the script uses MindSpeed's flags."""
        return ON_ASCEND if is_mindspeed(Script.read(config.path).flags) else self.usual_device

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        script = Script.read(config.path)
        return script.text, write.with_plan(script, config, plan, micro_batches).text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are flags."""
        return write.with_strategy(Script.read(config.path), config, strategy, plan, extra).text

    def can_write(self, config: TrainingConfig, schedule: ScheduleSpec) -> bool:
        """The flags know 1F1B, plain and interleaved, and in MindSpeed the V."""
        if schedule.name == V_SCHEDULE.name:
            return is_mindspeed(Script.read(config.path).flags)
        return schedule.name in (PLAIN, MEGATRON.interleaved_schedule)

    def nearest_plan(self, plan: PipelinePlan) -> tuple[PipelinePlan, tuple[str, ...]]:
        """One recompute choice for all chunks."""
        return recompute.nearest_plan(plan)

    def uniform_recompute(self, layers: int, modes: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """The first N layers of every chunk, or all selectively."""
        return recompute.uniform_choices(layers, modes)

    def dryrun_command(self, file: Path, original: Path, tools: Tools) -> tuple[str, ...]:
        """The script itself, under the original's name."""
        return ("bash", "-c", _RUN, str(original), str(file))
