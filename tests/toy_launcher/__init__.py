"""A launcher of a few lines, as somebody would add one: its files say degrees, layers and recompute by stage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from taylor.base.files import read_text
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.parsers.launcher import ExportForm, Launcher, Tools, UsualDevice
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.frameworks import MEGATRON
from taylor.register.model import DENSE, ModelSpec


class Toy(Launcher):
    """``toy_job`` files: YAML too, so only what stands in a file tells it from MindFormers'."""

    name = "toy"
    title = "toy job"
    suffixes = (".yaml",)
    telltale = re.compile(r"^toy_job:", re.MULTILINE)
    plan_keys = frozenset({"layers", "recompute"})
    usual_device = UsualDevice("a100-80g", "toy jobs")
    export_forms = {"toy": ExportForm(lambda plan, mtp_counted, v_shape: str(list(plan.total_layers()[0])), True)}

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        job = yaml.safe_load(read_text(path))["toy_job"]
        dp, tp, pp = job["degrees"]
        model = ModelSpec("toy", sum(job["layers"]), 1024, 16, 16, 64, 4096, 32000)
        return TrainingConfig(
            path=path,
            launcher=self.name,
            model=model,
            strategy=Strategy(dp, tp, pp, micro_batches=job["micro_batches"]),
            rules=TrainingRules(framework=MEGATRON, seq_length=2048),
            schedule=ScheduleSpec("1f1b"),
            plan=PipelinePlan({DENSE: as_grid([job["layers"]])}, {FULL: as_grid([job["recompute"]])}),
        )

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        text = read_text(config.path)
        return text, _told(text, plan)

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        even = [config.model.n_layers // strategy.pp] * strategy.pp
        plan = plan or PipelinePlan({DENSE: as_grid([even])}, {FULL: as_grid([[0] * strategy.pp])})
        text = re.sub(r"degrees: .*", f"degrees: {[strategy.dp, strategy.tp, strategy.pp]}", read_text(config.path))
        return _told(text, plan)

    def dryrun_command(self, file: Path, original: Path, tools: Tools) -> tuple[str, ...]:
        return ("toy", str(file))


def _told(text: str, plan: PipelinePlan) -> str:
    text = re.sub(r"layers: .*", f"layers: {list(plan.total_layers()[0])}", text)
    return re.sub(r"recompute: .*", f"recompute: {list(plan.recompute[FULL][0])}", text)
