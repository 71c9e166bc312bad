"""A mixin for launchers whose plan and strategy a module writes into the one file that they read."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.launcher import Launcher
from taylor.parsers.text.toml_edit import TomlSource
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan


class EditedFile(Launcher):
    """Stands before other bases."""

    source: type[YamlSource] | type[TomlSource]
    """Form of the file."""
    writer: ModuleType
    """Has `with_plan` and `with_strategy`, of such a file to such a file."""

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        source = self.source.read(config.path)
        return source.text, str(self.writer.with_plan(source, config, plan, micro_batches).text)

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are dotted."""
        return str(self.writer.with_strategy(self.source.read(config.path), config, strategy, plan, extra).text)
