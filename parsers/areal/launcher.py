"""AReaL's YAML: actors on FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.alike_recompute import OneStage
from taylor.parsers.areal.job import NAME, TELLTALE, ArealStart, sharded_job, unmodelled
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.policy.sharded import refuse_other_degrees, sharded_config
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan

_RECOMPUTE, _BATCH = "actor.gradient_checkpointing", "train_dataset.batch_size"


class Areal(OneStage):
    """Files whose actor is trained on parameters that FSDP2 shards."""

    recomputing = "the file"
    degree_words = {
        "dp": "backend",
        "tp": "backend",
        "cp": "backend",
        "mbs": "max_tokens_per_mb",
        "gbs": "batch_size",
        "seq": "max_new_tokens",
    }
    name = NAME
    title = "AReaL YAML"
    suffixes = (".yaml", ".yml")
    telltale = TELLTALE
    plan_keys = frozenset({"gradient_checkpointing", "batch_size"})
    usual_device = UsualDevice("h100-80g", "AReaL files")
    no_dryrun = NoDryrun("is started by AReaL's scheduler, which no dry-run has", cure="take the estimate")
    has_own_marks = True

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        start = ArealStart.read(path, register_path)
        job, note = sharded_job(start)
        notes = [*start.notes, note] if note else start.notes
        return sharded_config(job, notes, unmodelled(start), {"dp": "actor.backend", "gbs": _BATCH})

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        start = ArealStart.read(config.path, model=config.model)
        strategy = config.strategy.replace(micro_batches=micro_batches or config.strategy.micro_batches)
        wanted = _recompute(start, plan) | _samples(start, strategy)
        return start.source.text, start.edited(wanted).source.text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are options."""
        start = ArealStart.read(config.path, model=config.model)
        refuse_other_degrees(config, strategy, ("tp", "cp", "pp", "ep", "vpp", "op", "mbs"))
        wanted = dict(extra) | _samples(start, strategy)
        wanted |= {} if plan is None else _recompute(start, plan)
        return start.edited(wanted).source.text


def _recompute(start: ArealStart, plan: PipelinePlan) -> dict[str, object]:
    return {} if plan.uses(FULL) == start.options.is_on(_RECOMPUTE) else {_RECOMPUTE: plan.uses(FULL)}


def _samples(start: ArealStart, strategy: Strategy) -> dict[str, object]:
    """The batch, where it differs.

    Raises
    ------
    InputError
        When the samples are no whole number of prompts.
    """
    samples = strategy.global_batch
    if samples == start.samples():
        return {}
    if samples * start.minibatches % start.samples_each:
        problem, cure = f"counts {start.samples_each} samples as one", "plan other micro-batches"
        raise start.options.error(_BATCH, problem, samples, cure)
    return {_BATCH: samples * start.minibatches // start.samples_each}
