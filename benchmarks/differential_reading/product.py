"""The fields of a training file as the product reads it."""

from __future__ import annotations

from pathlib import Path

from benchmarks.differential_reading.checkout import LINEAR
from benchmarks.differential_reading.positions import grid_text
from benchmarks.differential_reading.reading import Reading, Value, settled
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, kind_of, zero_grid
from taylor.register.adapters import ALL_HUGGING_FACE, ALL_MEGATRON
from taylor.register.model import MTP


def read_product(path: Path) -> Reading:
    """Read a file as the commands do.

    Raises
    ------
    InputError
        When the product refuses it.
    """
    config = read_config(path)
    model, strategy, plan = config.model, config.strategy, config.plan
    moe = model.moe
    recompute = None
    if plan is not None:
        recompute = "full" if plan.uses(FULL) else "selective" if plan.uses(SELECT) else "none"
    values: dict[str, Value | None] = {
        "layers": model.n_layers,
        "hidden": model.hidden,
        "heads": model.n_heads,
        "kv_heads": model.n_kv_heads,
        "ffn": model.ffn_hidden,
        "vocab": model.vocab,
        "experts": 1 if moe is None else moe.n_experts,
        "top_k": 0 if moe is None else moe.top_k,
        "expert_width": 0 if moe is None else moe.expert_hidden,
        "sequence": config.rules.seq_length,
        "tp": strategy.tp,
        "pp": strategy.pp,
        "cp": strategy.cp,
        "ep": strategy.ep,
        "vpp": strategy.vpp,
        "dp": strategy.dp,
        "mbs": strategy.mbs,
        "batch": strategy.global_batch,
        "recompute": recompute,
        "sharded_optimizer": config.rules.parallel_optimizer,
    }
    return settled(values | _further(config) | _places(config))


def _further(config: TrainingConfig) -> dict[str, Value | None]:
    """Ranks, precision, sharding and adapters."""
    rules, strategy, adapters = config.rules, config.strategy, config.rules.adapters
    stages = (rules.parameter_shard, rules.gradient_shard, rules.parallel_optimizer)
    names = () if adapters is None else adapters.targets
    return {
        "ranks": strategy.world_size,
        "accumulation": strategy.micro_batches,
        "compute_bytes": rules.compute_bytes,
        "weight_bytes": rules.param_bytes,
        "zero": 3 - stages.index(True) if True in stages else 0,
        "adapter_rank": 0 if adapters is None else adapters.rank,
        "adapter_targets": LINEAR if names in (ALL_HUGGING_FACE, ALL_MEGATRON) else ", ".join(sorted(names)) or None,
    }


def _places(config: TrainingConfig) -> dict[str, Value | None]:
    """Layers by chunk and stage of the plan that the file says."""
    if config.plan is None:
        return {}
    runs = [run for run in config.plan.layers if kind_of(run) != MTP]
    experts = [run for run in runs if config.model.layer(run).moe is not None]
    none = zero_grid(config.plan.stages, config.plan.interleaves)
    return {
        "layers_at": grid_text(config.plan.total_layers(runs)),
        "experts_at": grid_text(config.plan.total_layers(experts) if experts else none),
        "full_at": grid_text(config.plan.recomputed(FULL)),
    }
