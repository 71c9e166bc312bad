"""The launcher of `toytrain:` files: a model's name, degrees, layers and recompute by stage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.parsers.launcher import Launcher, UsualDevice
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid
from taylor.pipeline.schedule import ScheduleSpec, schedule_names
from taylor.register.frameworks import MEGATRON
from taylor.register.registry import Registry

KEYS = ("model", "degrees", "micro_batches", "schedule", "layers", "recompute")


class ToyTrain(Launcher):
    """Reads and writes ``toytrain:`` files."""

    name = "toytrain"
    title = "toytrain YAML"
    suffixes = (".yaml",)
    telltale = re.compile(r"^toytrain:", re.MULTILINE)
    has_own_marks = True
    plan_keys = frozenset({"layers", "recompute"})
    usual_device = UsualDevice("toy-card", "toytrain files")
    no_dryrun = ("is started by nothing here", "take the estimate")

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """The job that a file states; messages name file, field, value and cure."""
        job = self._job(path)
        model = Registry.load(register_path).model(str(job["model"]))
        dp, tp, pp = self._numbers(path, job, "degrees", 3, least=1)
        layers = self._numbers(path, job, "layers", pp, least=0)
        if sum(layers) != model.n_layers:
            cure = f"{model.name} has {model.n_layers}"
            raise InputError("must add up to the model's layers", file=path, field="layers", value=layers, cure=cure)
        [micro_batches] = self._numbers(path, {"micro_batches": [job["micro_batches"]]}, "micro_batches", 1, least=1)
        schedule = str(job["schedule"])
        if schedule not in schedule_names():
            cure = f"use one of {', '.join(schedule_names())}"
            raise InputError("is no known schedule", file=path, field="schedule", value=schedule, cure=cure)
        [kind] = model.body_counts
        return TrainingConfig(
            path=path,
            launcher=self.name,
            model=model,
            strategy=Strategy(dp, tp, pp, micro_batches=micro_batches),
            rules=TrainingRules(framework=MEGATRON, seq_length=4096),
            schedule=ScheduleSpec(schedule),
            plan=PipelinePlan(
                {kind: as_grid([layers])}, {FULL: as_grid([self._numbers(path, job, "recompute", pp, least=0)])}
            ),
        )

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """The text of the file, and the same with another plan."""
        text = read_text(config.path)
        return text, _with_plan(text, plan)

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """The text of the file with other degrees."""
        degrees = [strategy.dp, strategy.tp, strategy.pp]
        text = re.sub(r"degrees: \[.*?\]", f"degrees: {degrees}", read_text(config.path))
        text = re.sub(r"micro_batches: \d+", f"micro_batches: {strategy.micro_batches}", text)
        if plan is None:
            each, rest = divmod(config.model.n_layers, strategy.pp)
            [kind] = config.model.body_counts
            even = [each + (stage < rest) for stage in range(strategy.pp)]
            plan = PipelinePlan({kind: as_grid([even])}, {FULL: as_grid([[0] * strategy.pp])})
        return _with_plan(text, plan)

    def _job(self, path: Path) -> dict[str, Any]:
        job = YamlSource.read(path).data.get("toytrain")
        if not isinstance(job, dict):
            raise InputError("must contain `key: value` lines", file=path, field="toytrain", value=job)
        for key in KEYS:
            if key not in job:
                raise InputError("is missing", file=path, field=key, cure=f"add `{key}: …`")
        return job

    def _numbers(self, path: Path, job: Mapping[str, Any], key: str, count: int, least: int) -> list[int]:
        value = job[key]
        if not isinstance(value, list) or len(value) != count or any(type(n) is not int or n < least for n in value):
            raise InputError(f"must be {count} whole numbers >= {least}", file=path, field=key, value=value)
        return value


def _with_plan(text: str, plan: PipelinePlan) -> str:
    text = re.sub(r"layers: \[.*?\]", f"layers: {list(plan.total_layers()[0])}", text)
    return re.sub(r"recompute: \[.*?\]", f"recompute: {list(plan.recompute[FULL][0])}", text)
