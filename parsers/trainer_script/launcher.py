"""Launch scripts of Hugging Face's Trainer: torchrun, deepspeed or accelerate with a user's program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.alike_recompute import OneStage
from taylor.parsers.launcher import NoDryrun
from taylor.parsers.llamafactory.read import CHECKPOINTS as KEEPS_ALL
from taylor.parsers.text.flag_edit import Setting, edit_flags
from taylor.parsers.text.script_flags import flags_of
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.trainer.job import TrainerJob, config_of
from taylor.parsers.trainer.launcher import USUAL_DEVICE
from taylor.parsers.trainer_script.read import ACCUMULATION, CHECKPOINTS, FORM, MBS, NAME, script_job
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.register.model import ModelSpec

_NEAR = ("per-device-train-batch-size", "learning-rate", "output-dir")


class TrainerScript(OneStage):
    """Scripts with the Trainer's options."""

    recomputing = "gradient checkpointing"
    form = FORM
    degree_words = {"mbs": f"--{MBS}", "gbs": f"--{ACCUMULATION}", "seq": "--block_size"}
    name = NAME
    title = "script of Hugging Face's Trainer"
    suffixes = (".sh",)
    telltale = re.compile(
        r"\A(?![\s\S]*_parallel_degree)[\s\S]*^[^#\n]*--per[-_]device[-_]train[-_]batch[-_]size\b", re.MULTILINE
    )
    plan_keys = frozenset({MBS, ACCUMULATION, CHECKPOINTS, KEEPS_ALL})
    usual_device = USUAL_DEVICE
    no_dryrun = NoDryrun("starts a program of Hugging Face's Trainer, which has no dry-run", cure="take the estimate")
    has_own_marks = True

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_of(self.job(ShellScript.read(path), register_path))

    def job(self, script: ShellScript, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
        """The job that a script starts.

        Raises
        ------
        InputError
            As `Launcher.read` does.
        """
        return script_job(script, register_path, model)

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        config.refuse_other_stages(plan, "pipeline stages")
        script = ShellScript.read(config.path)
        return script.text, self._edited(script, config, plan, None, micro_batches).text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`: micro-batches alone."""
        for name in ("tp", "pp", "ep", "cp", "vpp"):
            if getattr(strategy, name) != getattr(config.strategy, name):
                problem = "cannot be said by a script of Hugging Face's Trainer, which has one stage"
                raise InputError(problem, file=config.path, field=name, value=getattr(strategy, name))
        script = ShellScript.read(config.path)
        plan = config.even_plan(strategy) if plan is None else plan
        edited = self._edited(script, config, plan, strategy.mbs, strategy.micro_batches)
        further: dict[str, Setting] = {name.replace("_", "-"): str(value) for name, value in extra.items()}
        return edit_flags(edited, further, self.form, near=_NEAR).text if further else edited.text

    def _edited(
        self, script: ShellScript, config: TrainingConfig, plan: PipelinePlan, mbs: int | None, accumulation: int | None
    ) -> ShellScript:
        job = self.job(script, model=config.model)
        flags = flags_of(script, self.form)
        wanted: dict[str, Setting] = {}
        if plan.uses(FULL) != job.recomputes:
            kept = flags.has("finetuning-type", "stage")
            name, on = (KEEPS_ALL, not plan.uses(FULL)) if kept else (CHECKPOINTS, plan.uses(FULL))
            wanted[name.replace("_", "-")] = "True" if on else "False"
        if mbs is not None and mbs != job.mbs:
            wanted[MBS.replace("_", "-")] = str(mbs)
        if accumulation is not None and accumulation != job.accumulation:
            wanted[ACCUMULATION.replace("_", "-")] = str(accumulation)
        return edit_flags(script, wanted, self.form, near=_NEAR) if wanted else script
