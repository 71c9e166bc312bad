"""torchtitan TOML files (until February 2026, and the 2024 layout), read to a `TrainingConfig`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.cost_model.job.length import UNSTATED, TrainingLength
from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.job.ranks import OpenRanks
from taylor.cost_model.job.strategy import GATHERED_RING, PASSED_RING, Strategy, TrainingRules
from taylor.parsers.flag_table import FlagTable, load_flag_table
from taylor.parsers.nested_keys import unmodelled_keys
from taylor.parsers.text.fields import MAX_LAYERS, MAX_SIZE, Fields
from taylor.parsers.text.toml_edit import TomlSource
from taylor.parsers.torchtitan.flavours import OWN_FLAVOURS
from taylor.parsers.torchtitan.quantization import CONVERTERS, Quantization, read_quantization
from taylor.parsers.torchtitan.ranks import StatedDegrees, open_ranks
from taylor.parsers.torchtitan.recompute import read_recompute
from taylor.parsers.torchtitan.releases import Release, release_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, Grid, PipelinePlan, as_grid, deal_kinds, grid_in_order, zero_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register import frameworks
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry

NAME = "torchtitan"
PLACES = ("parallelism", "training", "experimental")
"""Sections that have had the parallel degrees, newest first."""
SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "torch-interleaved": "Interleaved1F1B",
    "zbv": "ZBVZeroBubble",
    "interleaved-zb": "InterleavedZeroBubble",
    "dualpipev": "DualPipeV",
}
"""torchtitan's names of schedules: names of ``torch.distributed.pipelining.schedules``, whose
``get_schedule_class`` torchtitan/distributed/pipeline_parallel.py (commit 02ef790) asks; torch 2.13 has all
of these."""
LAST_IN_V020 = {
    "training": ("seed", "deterministic", "debug_moe_force_load_balance"),
    "parallelism": ("enable_compiled_autograd",),
}
"""Keys that v0.2.0 still has and v0.2.1 has not (torchtitan/config/job_config.py), by section."""
_BYTES = {"bfloat16": 2, "float32": 4}
PARTS, POINTS = "module_fqns_per_model_part", "pipeline_parallel_split_points"


def config_from_source(source: TomlSource, models: Registry | ModelSpec | None = None) -> TrainingConfig:
    """Read a parsed file.

    Parameters
    ----------
    models : Registry or ModelSpec, optional
        Register of the model that the file names, or that model; the built-in register when left out.

    Raises
    ------
    InputError
        When it is none of torchtitan's, names an unknown model, or a value is wrong.
    """
    top = Fields(source.data, source.file, asked=source.asked)
    if not top.has("model") or not top.has("training"):
        raise InputError("is not a torchtitan file: it has no [model] and [training]", file=source.file)
    notes: list[str] = []
    model = models if isinstance(models, ModelSpec) else _read_model(top, models or Registry.load())
    if model.mtp_layers:
        model = model.replace(mtp_layers=0)  # torchtitan trains without the MTP module.
    schedule, interleaves = _read_schedule(top, model)
    release = release_in(source)
    strategy, sharded, left_open = _read_strategy(top, source, interleaves, notes, release)
    if model.n_layers + sum(_less_layers(top)) < strategy.pp * strategy.vpp:
        raise _degree_error(
            top,
            "pipeline_parallel_degree",
            f"asks for {strategy.pp * strategy.vpp} chunks and the model has {model.n_layers} layers",
            strategy.pp,
        )
    quantization = read_quantization(top, model, notes)
    rules = _read_rules(top, sharded, quantization, release)
    if matters_in(release, rules):
        notes.append(release.note)
    if max(strategy.op, strategy.tp, strategy.pp, strategy.cp) == 1 and rules.compute_bytes < rules.param_bytes:
        # v0.2.2 torchtitan/distributed/utils.py:242-263, ``maybe_enable_amp``.
        rules = rules.replace(autocast=True, wide_residual=True)
        notes.append("without sharding the job computes under autocast: weights stay in fp32, and casts are kept")
    plan: PipelinePlan | None = None
    try:
        plan = _read_plan(top, model, strategy, schedule, notes)
    except ValueError as problem:
        notes.append(f"the file settles no plan: {problem}")
    unmodelled = unmodelled_keys(_keys(), source.data, ["@experts"] if model.moe else ())
    return TrainingConfig(
        path=source.file,
        launcher=NAME,
        model=model,
        strategy=strategy,
        rules=rules,
        schedule=schedule,
        plan=plan,
        mtp_counted=False,
        open_ranks=left_open,
        batch_follows_ranks=top.section("training").integer("global_batch_size", default=-1, low=-1, high=2**31) <= 0,
        length=_length(source.data),
        notes=tuple(notes),
        unmodelled=tuple(each for each in unmodelled if quantization.recipe is None or each.name != CONVERTERS),
    )


def _keys() -> FlagTable:
    return load_flag_table("taylor.parsers.torchtitan", "keys.yaml")


def release_in(source: TomlSource) -> Release:
    """The release that runs a parsed file."""
    return release_of(source.text, source.data, _keys(), source.file)


def matters_in(release: Release, rules: TrainingRules) -> bool:
    """Return whether the log names the release: something dates the file, or its compiled loss depends on it."""
    return bool(release.why) or rules.compiled or rules.compiled_loss


def home_of(top: Fields, name: str) -> str:
    """The section that holds a parallel setting, or where this file's generation would hold it."""
    for place in PLACES:
        if top.section(place).has(name):
            return place
    if top.has("parallelism") or not top.has("experimental"):
        return "parallelism"
    return "experimental" if name.startswith(("pipeline", "context")) else "training"


def setting(top: Fields, name: str) -> Fields:
    """The section that holds a parallel setting."""
    return top.section(home_of(top, name))


def setting_of(top: Fields, *names: str) -> tuple[Fields, str]:
    """The section and the name of a parallel setting under the first of its names that holds a value."""
    name = next((name for name in names if setting(top, name).has(name)), names[0])
    return setting(top, name), name


def _degree_error(top: Fields, name: str, problem: str, value: Any) -> InputError:
    return setting(top, name).error(name, problem, value)


_FORMER_NAMES = {"llama": "llama2"}
"""Models by the name that torchtitan gave them in April 2024 (c22d1a8d1 torchtitan/models/llama/__init__.py)."""


_EXCHANGES_AGAIN = ("qwen3",)
"""Models whose operator policy does not name the experts' all-to-all: v0.2.2
torchtitan/models/qwen3/infra/parallelize.py:39-54, beside those of deepseek_v3 (:33), gpt_oss (:42), llama4 (:51)."""


def _read_model(top: Fields, registry: Registry) -> ModelSpec:
    """The registered model ``NAME-FLAVOUR``; a user's registration goes before the flavours known here."""
    section = top.section("model")
    written, flavour = section.text("name").lower(), section.text("flavor").lower()
    name = _FORMER_NAMES.get(written, written)
    key = f"{name.replace('_', '-')}-{flavour}"
    known = {model.lower().replace("_", "-"): model for model in registry.model_names()}
    if key in known:
        return registry.model(known[key])
    if (name, flavour) in OWN_FLAVOURS:
        return OWN_FLAVOURS[name, flavour]
    raise section.error(
        "flavor",
        f"is not a known flavour of {name}",
        flavour,
        f"register a model named {key} and name its folder with --register_path; known models: {', '.join(known)}",
    )


def _read_schedule(top: Fields, model: ModelSpec) -> tuple[ScheduleSpec, int]:
    pp = setting(top, "pipeline_parallel_degree").integer("pipeline_parallel_degree", default=1, high=4096)
    if pp == 1:
        return ScheduleSpec(), 1
    section = setting(top, "pipeline_parallel_schedule")
    written = section.text("pipeline_parallel_schedule", default="1F1B")
    name = next(
        (name for name, called in SCHEDULES.items() if called.lower() == written.lower().replace("_", "")), None
    )
    if name is None:
        raise section.error(
            "pipeline_parallel_schedule",
            "is not a schedule known here",
            written,
            f"use {', '.join(SCHEDULES.values())}",
        )
    traits = ScheduleSpec(name).traits
    interleaves = traits.least_interleaves
    parts, points = _listed(top, PARTS), _listed(top, POINTS)
    per_stage = setting(top, "pipeline_parallel_layers_per_stage").integer(
        "pipeline_parallel_layers_per_stage", default=None, high=MAX_LAYERS
    )
    chunks = len(parts) if parts else len(points) + 1 if points else None
    if chunks is None and per_stage is not None:
        less = sum(_less_layers(top))
        chunks = -(-(model.n_layers + less) // per_stage)
    if chunks is not None:
        if chunks % pp:
            raise section.error("pipeline_parallel_degree", f"does not divide the {chunks} model parts", pp)
        interleaves = chunks // pp
    if not traits.offered_with(interleaves):
        raise section.error("pipeline_parallel_schedule", f"does not fit {interleaves} model parts a rank", written)
    return ScheduleSpec(name), interleaves


def _less_layers(top: Fields) -> tuple[int, int]:
    """Number of layers that embedding and head count for on the first and the last stage."""
    first, last = "pipeline_parallel_first_stage_less_layers", "pipeline_parallel_last_stage_less_layers"
    return (
        setting(top, first).integer(first, default=1, low=0, high=MAX_LAYERS),
        setting(top, last).integer(last, default=1, low=0, high=MAX_LAYERS),
    )


def _listed(top: Fields, name: str) -> list[Any]:
    section = setting(top, name)
    value = section.raw(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise section.error(name, "must be a list", value)
    return value


def _read_strategy(
    top: Fields, source: TomlSource, interleaves: int, notes: list[str], release: Release
) -> tuple[Strategy, bool, OpenRanks | None]:
    """The strategy, whether parameters are sharded (as they are on all ranks), and ranks that the file leaves open."""

    def degree(*names: str, default: int = 1, low: int = 1) -> int:
        section, name = setting_of(top, *names)
        return int(section.integer(name, default=default, low=low))

    tp = degree("tensor_parallel_degree", "sequence_parallel_degree")
    pp, cp, ep = (degree(f"{kind}_parallel_degree") for kind in ("pipeline", "context", "expert"))
    replicas = degree("data_parallel_replicate_degree")
    section, name = setting_of(top, "data_parallel_shard_degree", "data_parallel_degree")
    written = shard = section.integer(name, default=-1, low=-1)
    if shard == 0:
        raise section.error(name, "must be -1 or at least 1", 0)
    training = top.section("training")
    local = training.integer("local_batch_size", "batch_size", default=8)
    total = training.integer("global_batch_size", default=-1, low=-1, high=2**31)
    left_open = None
    if shard == -1:
        degrees = StatedDegrees(replicas, tp, pp, cp, ep, degree("expert_tensor_parallel_degree"))
        world, left_open = open_ranks(source.file, source.text, degrees, total, local)
        shard = world // degrees.others
        notes.append(left_open.note)
    if training.text("data_parallel_type", default="fsdp") == "ddp":
        replicas, shard, written = shard, 1, 1
        left_open = None if left_open is None else replace(left_open, shards_grow=False)
    dp = replicas * shard
    if total > 0 and total % (local * dp):
        raise training.error(
            "global_batch_size", f"must be a multiple of local batch · data parallel = {local} · {dp}", total
        )
    rounds = total // (local * dp) if total > 0 else 1
    mbs, micro = local, rounds
    if pp > 1:
        mbs = _micro_batch_size(top, local, pp * interleaves, release)
        micro = local // mbs * rounds
        if rounds > 1:
            notes.append(f"{rounds} accumulated batches are taken as one pipeline of {micro} micro-batches")
    strategy = Strategy(
        dp=dp, tp=tp, pp=pp, ep=ep, cp=cp, op=shard * cp, sp=tp > 1, vpp=interleaves, mbs=mbs, micro_batches=micro
    )
    return strategy, written == -1 or strategy.op > 1, left_open


def counts_micro_batches(top: Fields, release: Release) -> bool:
    """Return whether the file states the number of micro-batches (releases before April 2025), not their size."""
    size = "pipeline_parallel_microbatch_size"
    if release.counts_micro_batches and not setting(top, size).has(size):
        return True
    if any(top.section(place).has("pipeline_parallel_microbatches") for place in PLACES):
        return True
    return not top.has("parallelism") and (
        top.has("experimental") or top.section("training").has("pipeline_parallel_degree")
    )


def _micro_batch_size(top: Fields, local: int, parts: int, release: Release) -> int:
    """Samples a micro-batch; the number of micro-batches is that of the model parts where nothing states it.

    That default is of the releases that state a number (torchtitan 38e7ee705 torchtitan/distributed/pipeline.py:111);
    a size is 1 by default (v0.2.2 torchtitan/config/job_config.py:412).
    """
    size, count = "pipeline_parallel_microbatch_size", "pipeline_parallel_microbatches"
    if setting(top, size).has(size) or not counts_micro_batches(top, release):
        mbs: int = setting(top, size).integer(size, default=1)
        if local % mbs:
            raise setting(top, size).error(size, f"must divide the local batch size {local}", mbs)
        return mbs
    micro_batches: int = setting(top, count).integer(count, default=parts)
    if local % micro_batches:
        raise setting(top, count).error(count, f"must divide the local batch size {local}", micro_batches)
    return local // micro_batches


def _read_rules(top: Fields, sharded: bool, quantization: Quantization, release: Release) -> TrainingRules:
    training = top.section("training")
    experts = setting(top, "expert_tensor_parallel_degree")
    reshard = setting(top, "fsdp_reshard_after_forward").text("fsdp_reshard_after_forward", default="default")
    return TrainingRules(
        framework=frameworks.TORCHTITAN,
        seq_length=training.integer("seq_len", high=MAX_SIZE),
        parallel_optimizer=sharded,
        gradient_shard=sharded,
        parameter_shard=sharded,
        param_bytes=type_bytes(training, "dtype"),
        optimizer=_read_optimizer(training),
        stay_gathered=sharded and reshard == "never",
        whole_ends=sharded and release.whole_ends,
        separate_pools=sharded,
        compute_bytes=type_bytes(training, "mixed_precision_param"),
        expert_tensor_parallel=experts.integer("expert_tensor_parallel_degree", default=1) != 1,
        compiled=_compiles(top) and _compiles_part(top, "model"),
        compiled_loss=_compiles(top) and release.compiles_loss and _compiles_part(top, "loss"),
        ring=_ring(top),
        saves_exchanges=top.section("model").text("name").lower() not in _EXCHANGES_AGAIN,
        narrow=quantization.recipe,
        narrow_experts=quantization.experts,
        narrow_gather=sharded and quantization.gather,
        ep_includes_cp=any(top.section(place).has(*names) for place, names in LAST_IN_V020.items()),
    )


def _ring(top: Fields) -> str:
    """`TrainingRules.ring` (v0.2.2 torchtitan/distributed/utils.py, ``set_rotate_method``)."""
    name = "context_parallel_rotate_method"
    return PASSED_RING if setting(top, name).text(name, default="allgather") == "alltoall" else GATHERED_RING


def _compiles_part(top: Fields, part: str) -> bool:
    """By its name since August 2025 (v0.2.2 torchtitan/components/loss.py:33, models/deepseek_v3/infra/parallelize.py:
    144-145); before, the model always, and the loss as `Release` has it."""
    components = top.section("compile").raw("components")
    return not isinstance(components, list) or part in components


def _compiles(top: Fields) -> bool:
    """A section of its own since August 2025 (v0.2.2 torchtitan/config/job_config.py:722)."""
    sections = (("compile", "enable"), ("training", "compile"))
    return any(top.section(name).boolean(key, default=False) for name, key in sections)


def type_bytes(training: Fields, name: str) -> int:
    """Bytes of an element of the type that ``dtype``, ``mixed_precision_param`` or ``mixed_precision_reduce`` names.

    Source: v0.2.2 torchtitan/config/job_config.py:275-290.

    Raises
    ------
    InputError
        When it names another type than bfloat16 and float32.
    """
    written = training.text(name, default="bfloat16" if name == "mixed_precision_param" else "float32")
    if written not in _BYTES:
        raise training.error(name, "is no type of torchtitan's", shortened(written, 40), f"write {' or '.join(_BYTES)}")
    return _BYTES[written]


def _read_optimizer(training: Fields) -> OptimizerStates:
    """Types of gradients and moments.

    Parameters in bf16 are updated as they are, with gradients and moments of their type (v0.2.2
    torchtitan/config/job_config.py:275); gradients are added up whole, and reduced, in a type of their own
    (:290; torch 2.13 torch/distributed/fsdp/_fully_shard/_fsdp_param.py, ``to_accumulated_grad_if_needed``).
    """
    stored, reduced = type_bytes(training, "dtype"), type_bytes(training, "mixed_precision_reduce")
    if stored < 4:
        return OptimizerStates(stored, 0, 2 * stored, reduced_bytes=reduced)
    return OptimizerStates(reduced_bytes=reduced if reduced < 4 else None)


def default_split(layers: int, chunks: int, first_less: int, last_less: int) -> list[int]:
    """torchtitan's split: even over layers, embedding and head counted as layers; the first stages take more.

    Neither may count for more layers than a stage has (v0.2.2 torchtitan/distributed/pipeline_parallel.py:279-297).
    """
    each, left = divmod(layers + first_less + last_less, chunks)
    if max(first_less, last_less, 1) > each:
        raise ValueError(f"embedding and head count for {first_less} and {last_less} layers, and a stage has {each}")
    sizes = [each + (index < left) for index in range(chunks)]
    sizes[0] -= first_less
    sizes[-1] -= last_less
    if min(sizes) < 0:
        raise ValueError("the first or last stage has fewer than 0 layers")
    return sizes


def _sizes(top: Fields, layers: int, chunks: int) -> list[int]:
    parts, points = _listed(top, PARTS), _listed(top, POINTS)
    if chunks == 1:
        return [layers]
    if parts:
        names = [[str(name) for name in part] for part in parts if isinstance(part, list)]
        places = [[int(name[7:]) for name in part if re.fullmatch(r"layers\.\d{1,6}", name)] for part in names]
        if [place for part in places for place in part] != list(range(layers)):
            raise ValueError(f"{PARTS} does not name layers.0 to layers.{layers - 1} in order")
        return [len(part) for part in places]
    if points:
        if not all(isinstance(point, str) and re.fullmatch(r"layers\.\d{1,6}", point) for point in points):
            raise ValueError(f"{POINTS} must name layers, as in layers.8")
        cuts = [0, *(int(point[7:]) for point in points), layers]
        if cuts != sorted(cuts):
            raise ValueError(f"{POINTS} must rise")
        return [end - start for start, end in zip(cuts, cuts[1:], strict=False)]
    return default_split(layers, chunks, *_less_layers(top))


def _read_plan(
    top: Fields, model: ModelSpec, strategy: Strategy, schedule: ScheduleSpec, notes: list[str]
) -> PipelinePlan:
    sizes = _sizes(top, model.n_layers, strategy.pp * strategy.vpp)
    layers = deal_kinds(model.layer_counts(), sizes, strategy.pp, schedule.v_shape)
    mode, every = read_recompute(top, notes)
    modes: dict[str, Grid] = {FULL: zero_grid(strategy.pp, strategy.vpp)}
    if mode == FULL:
        modes[FULL] = _every_nth(grid_in_order(sizes, strategy.pp, schedule.v_shape), every)
    elif mode == SELECT:
        modes[SELECT] = grid_in_order(sizes, strategy.pp, schedule.v_shape)
    return PipelinePlan(layers, modes)


def _every_nth(chunk_sizes: Grid, every: int) -> Grid:
    """Of each chunk's layers those whose number is a multiple of `every`: a rank counts its own, chunk after chunk.

    v0.2.2 torchtitan/distributed/activation_checkpoint.py:20-36, a counter of the process.
    """
    ends = [list(accumulate(column)) for column in zip(*chunk_sizes, strict=True)]
    return as_grid(
        [
            [ends[s][v] // every - (ends[s][v] - size) // every for s, size in enumerate(row)]
            for v, row in enumerate(chunk_sizes)
        ]
    )


def _length(data: Mapping[str, Any]) -> TrainingLength:
    """The steps that the file states."""
    training = data.get("training")
    steps = training.get("steps") if isinstance(training, Mapping) else None
    return TrainingLength(steps=steps) if type(steps) is int and 0 < steps <= MAX_SIZE else UNSTATED
