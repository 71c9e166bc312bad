"""axolotl's YAML files of ``axolotl train``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taylor.parsers.axolotl import read
from taylor.parsers.axolotl.start_rules import ACCUMULATION
from taylor.parsers.text.yaml_source import YamlPath, YamlSource
from taylor.parsers.trainer.job import TrainerJob
from taylor.parsers.trainer.launcher import TrainerYaml
from taylor.register.model import ModelSpec


class Axolotl(TrainerYaml):
    """axolotl's YAML."""

    degree_words = {
        "dp": "dp_shard_size",
        "tp": "tensor_parallel_size",
        "cp": "context_parallel_size",
        "mbs": read.MBS,
        "gbs": ACCUMULATION,
        "seq": "sequence_len",
    }
    name = read.NAME
    title = "axolotl YAML"
    telltale = re.compile(
        r"\A(?=[\s\S]*^base_model\s*:)(?=[\s\S]*^(?:datasets|sequence_len|micro_batch_size|pretraining_dataset|adapter)\s*:)",
        re.MULTILINE,
    )
    plan_keys = frozenset({read.MBS, ACCUMULATION, "batch_size", read.CHECKPOINTS})

    def job(self, source: YamlSource, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
        """See `TrainerYaml.job`."""
        return read.job_of(source, register_path, model)

    def edits(
        self, source: YamlSource, recomputes: bool | None, mbs: int | None, accumulation: int | None
    ) -> Mapping[YamlPath, Any]:
        """See `TrainerYaml.edits`."""
        return read.edits_of(source, recomputes, mbs, accumulation)
