"""LLaMA-Factory's YAML files of ``llamafactory-cli train``, of both of its generations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taylor.parsers.llamafactory import newer, read
from taylor.parsers.text.yaml_source import YamlPath, YamlSource
from taylor.parsers.trainer.job import TrainerJob
from taylor.parsers.trainer.launcher import TrainerYaml
from taylor.register.model import ModelSpec


class LlamaFactory(TrainerYaml):
    """LLaMA-Factory's YAML."""

    degree_words = {"mbs": read.MBS, "gbs": read.ACCUMULATION, "seq": "cutoff_len"}
    name = read.NAME
    title = "LLaMA-Factory YAML"
    telltale = re.compile(
        r"\A(?![\s\S]*^(?:export_dir|infer_backend)\s*:)(?:"
        r"(?=[\s\S]*^model_name_or_path\s*:)(?=[\s\S]*^(?:stage|finetuning_type|template)\s*:)"
        r"|(?=[\s\S]*^model\s*:[ \t]*\S)(?=[\s\S]*^train_dataset\s*:)"
        r"(?=[\s\S]*^(?:model_class|dist_config|kernel_config|cutoff_len|peft_config)\s*:))",
        re.MULTILINE,
    )
    plan_keys = frozenset({read.MBS, read.ACCUMULATION, read.CHECKPOINTS, *newer.PLAN_KEYS})

    def job(self, source: YamlSource, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
        """See `TrainerYaml.job`."""
        reader = newer.job_of if newer.is_newer(source.data) else read.job_of
        return reader(source, register_path, model)

    def edits(
        self, source: YamlSource, recomputes: bool | None, mbs: int | None, accumulation: int | None
    ) -> Mapping[YamlPath, Any]:
        """See `TrainerYaml.edits`."""
        if newer.is_newer(source.data):
            return newer.edits_of(source, recomputes, mbs, accumulation)
        return read.edits_of(recomputes, mbs, accumulation)
