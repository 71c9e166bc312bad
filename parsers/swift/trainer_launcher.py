"""ms-swift's scripts and YAML files of ``swift pt``, ``sft`` and ``rlhf``, its trainer on Hugging Face."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.swift.trainer import FORM, NAME, STARTS, job_in, trainer_job
from taylor.parsers.swift.yaml_job import ENVIRONMENT
from taylor.parsers.text.fields import Fields
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.yaml_source import YamlPath, YamlSource
from taylor.parsers.trainer.job import TrainerJob
from taylor.parsers.trainer.launcher import TrainerYaml
from taylor.parsers.trainer.settings import count
from taylor.parsers.trainer_script.launcher import TrainerScript
from taylor.parsers.trainer_script.read import ACCUMULATION, CHECKPOINTS, MBS
from taylor.register.model import ModelSpec


class SwiftTrainer(TrainerScript):
    """Scripts of ms-swift's trainer on Hugging Face: one stage."""

    form = FORM
    degree_words = {"mbs": f"--{MBS}", "gbs": f"--{ACCUMULATION}", "seq": "--max_length"}
    name = NAME
    title = "ms-swift script (swift pt, sft, rlhf)"
    telltale = re.compile(rf"^[^#\n]*{STARTS.pattern}", re.MULTILINE)
    plan_keys = frozenset({MBS, ACCUMULATION, CHECKPOINTS})
    usual_device = UsualDevice("h100-80g", "ms-swift files")
    no_dryrun = NoDryrun("is started by ms-swift, which has no dry-run", cure="take the estimate")

    def job(self, script: ShellScript, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
        """See `TrainerScript.job`."""
        return trainer_job(script, register_path, model)


class SwiftTrainerYaml(TrainerYaml):
    """The same options as a YAML, which ``swift sft FILE`` takes for its command line (swift/cli/main.py:38-70)."""

    degree_words = SwiftTrainer.degree_words
    name = f"{NAME}-yaml"
    title = "ms-swift YAML (swift pt, sft, rlhf)"
    telltale = re.compile(
        r"\A(?=[\s\S]*^model\s*:[ \t]*\S)(?=[\s\S]*^(?:tuner_type|train_type)\s*:)"
        r"(?=[\s\S]*^per_device_train_batch_size\s*:)",
        re.MULTILINE,
    )
    plan_keys = SwiftTrainer.plan_keys
    usual_device = SwiftTrainer.usual_device
    no_dryrun = SwiftTrainer.no_dryrun

    def job(self, source: YamlSource, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
        """See `TrainerYaml.job`."""
        options = {str(name): value for name, value in source.data.items() if name != ENVIRONMENT}
        fields = Fields(options, source.file, asked=source.asked)
        started = Fields(source.data, source.file, asked=source.asked).section(ENVIRONMENT)
        world = None
        if started.has("NPROC_PER_NODE"):
            world = count(started, "NPROC_PER_NODE") * count(started, "NNODES", 1)
        job = job_in(fields, world, register_path, model, rlhf=fields.has("rlhf_type"))
        return replace(job, launcher=self.name)

    def edits(
        self, source: YamlSource, recomputes: bool | None, mbs: int | None, accumulation: int | None
    ) -> Mapping[YamlPath, Any]:
        """See `TrainerYaml.edits`."""
        wanted = {CHECKPOINTS: recomputes, MBS: mbs, ACCUMULATION: accumulation}
        return {(name,): value for name, value in wanted.items() if value is not None}
