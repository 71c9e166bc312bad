"""torchtitan of 2026, as scripts start it on a registered Python configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.flag_table import FlagTable, UnmodelledFlag, load_flag_table
from taylor.parsers.launcher import Launcher, NoDryrun, Tools, UsualDevice
from taylor.parsers.nested_keys import unmodelled_keys
from taylor.parsers.small_run import JobSizes
from taylor.parsers.torchtitan import write
from taylor.parsers.torchtitan.launcher import Torchtitan
from taylor.parsers.torchtitan.read import config_from_source
from taylor.parsers.torchtitan.script import TitanJob, as_toml, registry
from taylor.parsers.torchtitan.script_write import PLAN_OPTIONS, edited
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.register import frameworks
from taylor.register.registry import Registry

NAME = "torchtitan-script"
_LOSS_CHUNKS = 8
"""b5bcd76c torchtitan/components/loss.py:544."""
_CHUNKED = "ChunkedLossWrapper"
_JOINED = replace(frameworks.TORCHTITAN, activations=replace(frameworks.TORCHTITAN.activations, joined_qkv=True))
"""Queries, keys and values of one GEMM (b5bcd76c torchtitan/models/common/attention.py:722-770, ``fuse_qkv=True`` in
models/llama3/__init__.py:82, 116 and models/qwen3/__init__.py)."""
_SINGLE = ("debugmodel_non_fused_qkv",)
_LATENT = ("deepseek_v3", "kimi_k2_7")


class TorchtitanScript(Torchtitan):
    """Scripts that start torchtitan by ``--module`` and ``--config``."""

    name = NAME
    title = "torchtitan script"
    suffixes: tuple[str, ...] = (".sh",)
    telltale = re.compile(
        r"^[^#\n]*(?:\btorchtitan\.train\b|\btorchtitan_train\b|(?<![\w.-])MODULE=[\s\S]*\brun_train\.sh\b"
        r"|\brun_train\.sh\b[^#]*--module\b)",
        re.MULTILINE,
    )
    plan_keys = PLAN_OPTIONS
    usual_device = UsualDevice("h100-80g", "torchtitan files")
    no_dryrun = NoDryrun("is started by a script, which runs no training without its devices")
    export_forms = {}
    has_own_marks = True

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_of(TitanJob.read(path), Registry.load(register_path))

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        job = TitanJob.read(config.path)
        before = as_toml(job, _names(config))
        after = write.with_plan(before, config, plan, micro_batches)
        return job.script.text, edited(job, before, after).script.text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are ``section.key``."""
        job = TitanJob.read(config.path)
        before = as_toml(job, _names(config))
        after = write.with_strategy(before, config, strategy, plan, extra)
        return edited(job, before, after, strategy.world_size).script.text

    def job_sizes(self, path: Path) -> JobSizes:
        """None: a registered configuration builds its layers in Python, which its options do not change.

        b5bcd76c torchtitan/models/llama3/__init__.py:119-164.

        Raises
        ------
        InputError
            Always.
        """
        cure = "write the job as a TOML file of torchtitan v0.2.0 to v0.2.2 for `taylor tune`"
        reason = "names a registered configuration: its options cannot set fewer layers"
        raise InputError(reason, file=path, field="--config", cure=cure)

    def dryrun_command(self, file: Path, original: Path, tools: Tools) -> tuple[str, ...]:
        """See `Launcher.dryrun_command`: none, unlike a file of torchtitan's own."""
        return Launcher.dryrun_command(self, file, original, tools)


def flag_table() -> FlagTable:
    """Meaning of each option of torchtitan of August 2026 for a plan."""
    return load_flag_table("taylor.parsers.torchtitan", "options.yaml")


def config_of(job: TitanJob, models: Registry) -> TrainingConfig:
    """Read a job.

    Raises
    ------
    InputError
        When its configuration is not known, a value is wrong, or the job does not start on its ranks.
    """
    source = as_toml(job, models.model_names())
    config = config_from_source(source, models)
    if job.world is not None and config.open_ranks is not None:
        config = config.on_ranks(job.world)
    elif job.world is not None and job.world != config.strategy.world_size:
        raise InputError(
            f"starts {job.world} ranks, and its degrees make {config.strategy.world_size}",
            file=job.file,
            field="--parallelism.data_parallel_shard_degree",
            cure="write degrees whose product is the number of ranks",
        )
    row, settings = job.row(), job.settings()
    rules = config.rules
    chunks = _LOSS_CHUNKS if row.get("loss") == _CHUNKED else 1
    joined = row["family"] not in _LATENT and row["flavor"] not in _SINGLE
    rules = rules.replace(loss_chunks=chunks, framework=_JOINED if joined else rules.framework)
    strategy = config.strategy
    if settings.get("parallelism.enable_sequence_parallel") is False:
        strategy = strategy.replace(sp=False)
    commit = registry()["commit"]
    source_row = f"{job.module} {job.config} is read as pytorch/torchtitan {commit} registers it ({row['source']})"
    notes = [note for note in config.notes if not note.startswith("the newest torchtitan with TOML files")]
    own = _unmodelled(job, config)
    return config.replace(
        launcher=NAME,
        strategy=strategy,
        rules=rules,
        notes=(source_row, *job.notes, *notes),
        unmodelled=(*(each for each in config.unmodelled if each.name == "model.converters"), *own),
    )


def _unmodelled(job: TitanJob, config: TrainingConfig) -> tuple[UnmodelledFlag, ...]:
    """Settings of the registered configuration and of the command that no figure takes into account."""
    nested: dict[str, object] = {}
    settings = dict(job.settings())
    row = job.row()
    settings |= {f"model_spec.{name}": value for name, value in row.get("model", {}).items()}
    for each in row.get("converters", ()):
        settings[f"converters.{each['name']}"] = True
    if row["optimizers"] != ["AdamW"]:
        settings["optimizer.name"] = ", ".join(row["optimizers"])
    for dotted, value in settings.items():
        nested[dotted] = value
    facts = ["@experts"] if config.model.moe else []
    if config.strategy.pp == 1 and not settings.get("training.disable_cuda_graphs"):
        nested["training.cuda_graphs"] = True
    return unmodelled_keys(flag_table(), _nested(nested), facts)


def _nested(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings by section, from their dotted names."""
    result: dict[str, object] = {}
    for dotted, value in settings.items():
        *above, last = dotted.split(".")
        place = result
        for name in above:
            inner = place.setdefault(name, {})
            if not isinstance(inner, dict):
                break
            place = inner
        else:
            place[last] = value
    return result


def _names(config: TrainingConfig) -> tuple[str, ...]:
    """Names under which the model's flavour may be registered."""
    return (*Registry.load().model_names(), config.model.name)
