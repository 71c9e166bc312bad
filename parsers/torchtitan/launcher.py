"""torchtitan, as TOML files configure it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.alike_recompute import BOTH_MODES, AlikeRecompute
from taylor.parsers.launcher import ExportForm, Tools, UsualDevice
from taylor.parsers.small_run import JobSizes
from taylor.parsers.text.toml_edit import TomlSource
from taylor.parsers.torchtitan import write
from taylor.parsers.torchtitan.actions import actions_table
from taylor.parsers.torchtitan.read import NAME, PARTS, config_from_source
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.register.registry import Registry


def export_parts(plan: PipelinePlan, mtp_counted: bool, v_shape: bool) -> str:
    """An override for its Python configurations: the modules of every model part."""
    parts = json.dumps(write.part_names(plan, v_shape), separators=(",", ":"))
    return f"--parallelism.{PARTS}={parts}"


class Torchtitan(AlikeRecompute):
    """torchtitan's TOML files."""

    recomputing = "torchtitan"
    recompute_modes = BOTH_MODES
    degree_words = {
        "dp": "parallelism.data_parallel_shard_degree",
        "tp": "parallelism.tensor_parallel_degree",
        "pp": "parallelism.pipeline_parallel_degree",
        "ep": "parallelism.expert_parallel_degree",
        "cp": "parallelism.context_parallel_degree",
        "op": "parallelism.data_parallel_shard_degree",
        "vpp": "parallelism.pipeline_parallel_schedule",
        "mbs": "parallelism.pipeline_parallel_microbatch_size",
        "gbs": "training.global_batch_size",
        "seq": "training.seq_len",
    }
    name = NAME
    title = "torchtitan TOML"
    suffixes: tuple[str, ...] = (".toml",)
    telltale = re.compile(r"^\s*\[model\][\s\S]*^\s*\[training\]|^\s*\[training\][\s\S]*^\s*\[model\]", re.MULTILINE)
    plan_keys = write.PLAN_KEYS
    usual_device = UsualDevice("h100-80g", "torchtitan files")
    export_forms = {
        "torchtitan": ExportForm(export_parts, places_only=True),
        "torch-actions": ExportForm(None, order=actions_table),
    }

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_from_source(TomlSource.read(path), Registry.load(register_path))

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        source = TomlSource.read(config.path)
        return source.text, write.with_plan(source, config, plan, micro_batches).text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are ``table.key``."""
        return write.with_strategy(TomlSource.read(config.path), config, strategy, plan, extra).text

    def job_sizes(self, path: Path) -> JobSizes:
        """None: layers and experts are those of a flavour, which torchtitan's sources hold.

        A flavour's ``n_layers`` is no option of a job: pytorch/torchtitan b5bcd76c
        torchtitan/models/llama3/__init__.py:119-164.
        """
        cure = "small runs are written for Megatron's and MindSpeed's scripts, and MindFormers' and Primus' YAML"
        reason = "names its network by a flavour: a TOML file cannot set fewer layers"
        raise InputError(reason, file=path, field="model.flavor", cure=cure)

    def dryrun_command(self, file: Path, original: Path, tools: Tools) -> tuple[str, ...]:
        """The package's own entry point."""
        return (tools.interpreter, "-m", "torchtitan.train", "--job.config_file", str(file))
