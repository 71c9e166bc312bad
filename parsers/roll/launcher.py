"""ROLL's YAML: roles that Megatron Core trains, and those on FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.megatron.write import PLAN_FLAGS
from taylor.parsers.policy.fields import field_of
from taylor.parsers.policy.launchers import MegatronPolicy, ShardedPolicy, counted
from taylor.parsers.policy.sharded import sharded_config
from taylor.parsers.roll.experiment import TELLTALE, RollExperiment
from taylor.parsers.roll.job import (
    FSDP2,
    MEGATRON,
    NAME,
    SHARDED_NAME,
    RollMegatronJob,
    RollStart,
    sharded_job,
    sharded_unmodelled,
)
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.register.model import ModelSpec

_USUAL = UsualDevice("h100-80g", "ROLL files")
_NO_DRYRUN = NoDryrun("is started by ROLL through Ray, which no dry-run has", cure="take the estimate")
_BATCH = ("gradient_accumulation_steps", "per_device_train_batch_size")


def _start(path: Path, register_path: Path | None = None, model: ModelSpec | None = None) -> RollStart:
    return RollStart(RollExperiment.read(path), register_path, model)


class Roll(MegatronPolicy):
    """Files whose role Megatron Core trains, and the refusal of damaged ones."""

    degree_words = {
        **MegatronPolicy.degree_words,
        "mbs": "per_device_train_batch_size",
        "gbs": "gradient_accumulation_steps",
        "seq": "sequence_length",
    }
    name = NAME
    title = "ROLL YAML"
    suffixes = (".yaml", ".yml")
    telltale = TELLTALE
    plan_keys = frozenset({*map(field_of, PLAN_FLAGS), *_BATCH, "strategy_config"})
    usual_device = _USUAL
    no_dryrun = _NO_DRYRUN
    start = staticmethod(_start)
    job = RollMegatronJob

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        return super().recognises(path, text) and not _is_sharded(path)


class RollSharded(ShardedPolicy):
    """Files whose role is trained on parameters that FSDP2 shards."""

    degree_words = {
        "dp": "device_mapping",
        "cp": "ulysses_size",
        "ep": "ep_size",
        "op": "fsdp_size",
        "mbs": "per_device_train_batch_size",
        "gbs": "gradient_accumulation_steps",
        "seq": "sequence_length",
    }
    name = SHARDED_NAME
    title = "ROLL YAML of FSDP2"
    suffixes = (".yaml", ".yml")
    telltale = TELLTALE
    plan_keys = frozenset({"disable_gradient_checkpointing", "gradient_accumulation_steps"})
    usual_device = _USUAL
    no_dryrun = _NO_DRYRUN
    start = staticmethod(_start)
    fixed = ("tp", "pp", "vpp", "ep", "op")

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        return super().recognises(path, text) and _is_sharded(path)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        start = _start(path, register_path)
        names = {"dp": f"{start.role}device_mapping", "gbs": f"{start.training}gradient_accumulation_steps"}
        return sharded_config(sharded_job(start), start.notes, sharded_unmodelled(start), names)

    def texts(self, start: RollStart, wanted: Mapping[str, object]) -> tuple[str, str]:
        """See `ShardedPolicy.texts`."""
        return start.experiment.source.text, start.experiment.edited(wanted).source.text

    def edits(self, start: RollStart, own: Strategy, wanted: Strategy) -> dict[str, object]:
        """See `ShardedPolicy.edits`."""
        found: dict[str, object] = {}
        if wanted.cp != own.cp:
            found[f"{start.arguments}ulysses_size"] = wanted.cp
        if wanted.mbs != own.mbs:
            key = f"{start.training}per_device_train_batch_size"
            found[key] = counted(start.options, key, wanted.mbs, start.each)
        return found | _steps(start, own, wanted)

    def recompute(self, start: RollStart, plan: PipelinePlan) -> dict[str, object]:
        """See `ShardedPolicy.recompute`."""
        key = f"{start.arguments}disable_gradient_checkpointing"
        return {key: not plan.uses(FULL)} if plan.uses(FULL) == start.options.is_on(key) else {}


def _steps(start: RollStart, own: Strategy, wanted: Strategy) -> dict[str, object]:
    """Micro-batches of a rank, where they differ; those that are packed count as many as are stated."""
    key = f"{start.training}gradient_accumulation_steps"
    if wanted.mbs * wanted.micro_batches == own.mbs * own.micro_batches and wanted.mbs == own.mbs:
        return {}
    each = wanted.mbs if wanted.mbs != own.mbs else start.stated_micro_batch()
    return {key: counted(start.options, key, wanted.mbs * wanted.micro_batches, each)}


def _is_sharded(path: Path) -> bool:
    try:
        experiment = RollExperiment.read(path)
        name = f"{experiment.role}.strategy_args.strategy_name"
        return str(experiment.options().text(name, default=FSDP2)) not in (MEGATRON, "deepspeed_train")
    except InputError:
        return False  # The reader says what is wrong.
