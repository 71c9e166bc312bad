"""AReaL's YAML: actors on FSDP2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.areal.job import NAME, TELLTALE, ArealStart, sharded_job, unmodelled
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.policy.launchers import ShardedPolicy, counted
from taylor.parsers.policy.sharded import sharded_config
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan

_RECOMPUTE, _BATCH = "actor.gradient_checkpointing", "train_dataset.batch_size"


class Areal(ShardedPolicy):
    """Files whose actor is trained on parameters that FSDP2 shards."""

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
    start = staticmethod(ArealStart.read)
    fixed = ("tp", "cp", "pp", "ep", "vpp", "op", "mbs")

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        start = ArealStart.read(path, register_path)
        job, note = sharded_job(start)
        notes = [*start.notes, note] if note else start.notes
        return sharded_config(job, notes, unmodelled(start), {"dp": "actor.backend", "gbs": _BATCH})

    def texts(self, start: ArealStart, wanted: Mapping[str, object]) -> tuple[str, str]:
        """See `ShardedPolicy.texts`."""
        return start.source.text, start.edited(wanted).source.text

    def recompute(self, start: ArealStart, plan: PipelinePlan) -> dict[str, object]:
        """See `ShardedPolicy.recompute`."""
        return {} if plan.uses(FULL) == start.options.is_on(_RECOMPUTE) else {_RECOMPUTE: plan.uses(FULL)}

    def edits(self, start: ArealStart, own: Strategy, wanted: Strategy) -> dict[str, object]:
        """See `ShardedPolicy.edits`: the batch."""
        if wanted.global_batch == own.global_batch:
            return {}
        samples = wanted.global_batch * start.minibatches
        return {_BATCH: counted(start.options, _BATCH, samples, start.samples_each)}
