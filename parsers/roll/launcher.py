"""ROLL's YAML: roles that Megatron Core trains, and those on FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.alike_recompute import OneStage
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.megatron.write import PLAN_FLAGS
from taylor.parsers.named_jobs import NamedJobs
from taylor.parsers.policy.fields import field_of
from taylor.parsers.policy.sharded import refuse_other_degrees, sharded_config
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

_USUAL = UsualDevice("h100-80g", "ROLL files")
_NO_DRYRUN = NoDryrun("is started by ROLL through Ray, which no dry-run has", cure="take the estimate")
_BATCH = ("gradient_accumulation_steps", "per_device_train_batch_size")


class Roll(NamedJobs, FlagLauncher):
    """Files whose role Megatron Core trains, and the refusal of damaged ones."""

    degree_words = {
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "ep": "expert_model_parallel_size",
        "cp": "context_parallel_size",
        "op": "use_distributed_optimizer",
        "sp": "sequence_parallel",
        "vpp": "virtual_pipeline_model_parallel_size",
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
    knows_parameters = False
    has_own_marks = True

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        return super().recognises(path, text) and not _is_sharded(path)

    def launch(self, path: Path) -> RollMegatronJob:
        """See `FlagLauncher.launch`."""
        return RollMegatronJob(RollStart(RollExperiment.read(path)))

    def launch_of(self, config: TrainingConfig) -> RollMegatronJob:
        """See `FlagLauncher.launch_of`: of the model that is known, and that a file only names."""
        return RollMegatronJob(RollStart(RollExperiment.read(config.path), model=config.model))

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return RollMegatronJob(RollStart(RollExperiment.read(path), register_path)).config()


class RollSharded(OneStage):
    """Files whose role is trained on parameters that FSDP2 shards."""

    recomputing = "the file"
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
    has_own_marks = True

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        return super().recognises(path, text) and _is_sharded(path)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        start = RollStart(RollExperiment.read(path), register_path)
        names = {"dp": f"{start.role}device_mapping", "gbs": f"{start.training}gradient_accumulation_steps"}
        return sharded_config(sharded_job(start), start.notes, sharded_unmodelled(start), names)

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        experiment = RollExperiment.read(config.path)
        start = RollStart(experiment, model=config.model)
        own = config.strategy
        wanted = _recompute(start, plan) | _steps(
            start, config, own.replace(micro_batches=micro_batches or own.micro_batches)
        )
        return experiment.source.text, experiment.edited(wanted).source.text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are options."""
        experiment = RollExperiment.read(config.path)
        start = RollStart(experiment, model=config.model)
        refuse_other_degrees(config, strategy, ("tp", "pp", "vpp", "ep", "op"))
        wanted: dict[str, object] = dict(extra)
        if strategy.cp != config.strategy.cp:
            wanted[f"{start.arguments}ulysses_size"] = strategy.cp
        if strategy.mbs != config.strategy.mbs:
            wanted[f"{start.training}per_device_train_batch_size"] = strategy.mbs // start.each
        wanted |= _steps(start, config, strategy)
        wanted |= {} if plan is None else _recompute(start, plan)
        return experiment.edited(wanted).source.text


def _recompute(start: RollStart, plan: PipelinePlan) -> dict[str, object]:
    key = f"{start.arguments}disable_gradient_checkpointing"
    return {key: not plan.uses(FULL)} if plan.uses(FULL) == start.options.is_on(key) else {}


def _steps(start: RollStart, config: TrainingConfig, wanted: Strategy) -> dict[str, object]:
    """Micro-batches of a rank, where they differ; those that are packed count as many as are stated.

    Raises
    ------
    InputError
        When a packed batch is no whole number of stated micro-batches.
    """
    own, key = config.strategy, f"{start.training}gradient_accumulation_steps"
    if wanted.mbs * wanted.micro_batches == own.mbs * own.micro_batches and wanted.mbs == own.mbs:
        return {}
    each = wanted.mbs if wanted.mbs != own.mbs else start.stated_micro_batch()
    samples = wanted.mbs * wanted.micro_batches
    if samples % each:
        problem, cure = f"counts {each} samples as one", "plan other micro-batches"
        raise start.options.error(key, problem, samples, cure)
    return {key: samples // each}


def _is_sharded(path: Path) -> bool:
    try:
        experiment = RollExperiment.read(path)
        name = f"{experiment.role}.strategy_args.strategy_name"
        return str(experiment.options().text(name, default=FSDP2)) not in (MEGATRON, "deepspeed_train")
    except InputError:
        return False  # The reader says what is wrong.
