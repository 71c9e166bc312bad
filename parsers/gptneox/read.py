"""gpt-neox configurations, one file or several merged, read to a `TrainingConfig`.

Source of names and defaults: EleutherAI/gpt-neox ea7aefd8 megatron/neox_arguments/neox_args.py and deepspeed_args.py;
megatron/neox_arguments/arguments.py:95-157 (merging), 826-960 (the batch), 963-1047 (precision and ZeRO).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.job.parameters import total_parameters
from taylor.cost_model.job.ranks import OpenRanks
from taylor.cost_model.job.strategy import ONE_KERNEL, Strategy, TrainingRules
from taylor.parsers.flag_table import load_flag_table
from taylor.parsers.gptneox.model import FLASH, attention_kinds, read_model
from taylor.parsers.gptneox.partition import stage_layers
from taylor.parsers.gptneox.start_rules import START_RULES
from taylor.parsers.nested_keys import unmodelled_keys
from taylor.parsers.start_rules import misfits_of, of_mapping
from taylor.parsers.text.fields import MAX_SIZE, Fields
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.trainer.deepspeed import DeepSpeedConfig
from taylor.parsers.trainer.job import ASSUMED_RANKS
from taylor.parsers.trainer.settings import switch
from taylor.parsers.trainer.sharding import Sharding
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid, deal_kinds, zero_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import ModelSpec
from taylor.register.trainers import GPT_NEOX

NAME = "gpt-neox"
MBS, ACCUMULATION, TOTAL, CHECKPOINTS = (
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_batch_size",
    "checkpoint_activations",
)
METHOD = "pipe_partition_method"
_MIB = 2**20
_WIDE, _HALF = 4, 2
_OPTIMIZERS = {"adam": 2, "cpu_adam": 2, "cpu_torch_adam": 2, "onebitadam": 2, "lion": 1, "sgd": 0, "sm3": 1}
"""Moments a parameter by the optimizer's type (neox_args.py:608-619)."""


def merged(sources: Sequence[YamlSource]) -> dict[str, Any]:
    """Settings of all files, with ``_`` for ``-`` in their names; a name stands in one of them.

    Raises
    ------
    InputError
        When a name stands in two, which gpt-neox refuses (arguments.py:113-134).
    """
    data: dict[str, Any] = {}
    for source in sources:
        own = {str(name).replace("-", "_"): value for name, value in source.data.items()}
        for name in own:
            if name in data:
                raise InputError("stands in an earlier file too", file=source.file, field=name, cure="keep one of them")
        data |= own
    return data


def config_of(data: Mapping[str, Any], file: Path) -> TrainingConfig:
    """The configuration of merged settings.

    Raises
    ------
    InputError
        When it has no model, layers are not modelled, or a value is wrong.
    """
    fields = Fields(data, file)
    if not fields.has("num_layers"):
        cure = "give the file with the model's sizes, or a script that runs deepy.py with all files"
        problem = "is a part of a gpt-neox configuration, without a model"
        raise InputError(problem, file=file, field="num_layers", cure=cure)
    if not fields.has(MBS, TOTAL):
        problem = "is a part of a gpt-neox configuration: it states the model and no batch"
        cure = f"write {MBS}, or give a script that runs deepy.py with all files"
        raise InputError(problem, file=file, field=MBS, cure=cure)
    notes: list[str] = []
    pp = max(1, fields.integer("pipe_parallel_size", default=0, low=0))
    tp = max(1, fields.integer("model_parallel_size", default=1, low=0))
    model = read_model(fields, tp, notes)
    if pp > model.n_layers:
        raise fields.error("pipe_parallel_size", f"asks for {pp} stages and the model has {model.n_layers} layers", pp)
    zero = DeepSpeedConfig.read(_deepspeed(fields), file, "").sharding(model.hidden, total_parameters(model))
    notes += zero.notes
    strategy, left_open, follows = _strategy(fields, pp, tp, zero, notes)
    plan, group = _plan(fields, model, pp, notes)
    return TrainingConfig(
        path=file,
        launcher=NAME,
        model=model,
        strategy=strategy,
        rules=_rules(fields, zero),
        schedule=ScheduleSpec(),
        plan=plan,
        recompute_group=group,
        mtp_counted=False,
        misfits=misfits_of(START_RULES, of_mapping(data)),
        open_ranks=left_open,
        batch_follows_ranks=follows,
        notes=tuple(notes),
        unmodelled=unmodelled_keys(
            load_flag_table("taylor.parsers.gptneox", "options.yaml"),
            data,
            [*(["@experts"] if model.moe else []), *(["@tensor"] if tp > 1 else [])],
        ),
    )


def _deepspeed(fields: Fields) -> dict[str, Any]:
    """The settings that gpt-neox hands on to DeepSpeed; ZeRO's default is stage 0 (arguments.py:69-79)."""
    zero = fields.section("zero_optimization")
    if zero.data and not zero.has("stage"):
        raise zero.error("stage", "is missing", cure="write 0, 1, 2 or 3")
    types = fields.section("data_types").data
    return {"zero_optimization": {"overlap_comm": False, **zero.data}, "data_types": dict(types)}


def compute_bytes(fields: Fields) -> int:
    """Bytes of a computing parameter (arguments.py:963-1011).

    Raises
    ------
    InputError
        When ``precision`` is none that gpt-neox knows.
    """
    written = fields.raw("precision")
    if written is None:
        half = any(str(fields.section(name).raw("enabled")).lower() == "true" for name in ("fp16", "bf16"))
        return _HALF if half else _WIDE
    known = {"fp16": _HALF, "bfloat16": _HALF, "fp32": _WIDE}
    if written not in known:
        raise fields.error("precision", "is no known precision", str(written)[:40], f"write one of {', '.join(known)}")
    return known[written]


def _strategy(
    fields: Fields, pp: int, tp: int, zero: Sharding, notes: list[str]
) -> tuple[Strategy, OpenRanks | None, bool]:
    """Degrees and batch; the ranks where the file settles them, and whether the batch grows with them."""
    accumulation = fields.integer(ACCUMULATION, default=1)
    total, micro = fields.integer(TOTAL, default=None), fields.integer(MBS, default=None)
    left_open = None
    dp = _replicas(fields, pp, tp)
    if dp is None and total is not None and micro is not None:
        if total % (micro * accumulation):
            problem = f"must be a multiple of micro-batch x accumulation = {micro} x {accumulation}"
            raise fields.error(TOTAL, problem, total)
        dp = total // (micro * accumulation)
    if dp is None:
        unit, why = pp * tp, f"PP x TP = {pp * tp:,}"
        world = unit * max(1, -(-ASSUMED_RANKS // unit))
        note = f"no file states the ranks: a world size of {world:,} is assumed; --world_size names another"
        notes.append(note)
        left_open, dp = OpenRanks(unit, why, note), world // unit
    if micro is None:
        if total % (dp * accumulation):
            problem = f"must be a multiple of data-parallel ranks x accumulation = {dp} x {accumulation}"
            raise fields.error(TOTAL, problem, total)
        micro = total // (dp * accumulation)
    if total is not None and total != dp * micro * accumulation:
        problem = f"is not data-parallel ranks x micro-batch x accumulation = {dp} x {micro} x {accumulation}"
        raise fields.error(TOTAL, problem, total)
    strategy = Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        op=dp if zero.shards_optimizer else 1,
        sp=tp > 1 and switch(fields, "sequence_parallel"),
        mbs=micro,
        micro_batches=accumulation,
    )
    return strategy, left_open, total is None


def _replicas(fields: Fields, pp: int, tp: int) -> int | None:
    """Data-parallel ranks where the file states the devices (deepspeed_args.py, ``num_gpus`` and ``num_nodes``)."""
    world = fields.integer("global_num_gpus", default=None)
    if world is None:
        each = fields.integer("num_gpus", default=None)
        if each is None:
            return None
        world = each * fields.integer("num_nodes", default=1)
    if world % (pp * tp):
        raise fields.error("num_gpus", f"makes {world:,} ranks, which is no multiple of PP x TP = {pp * tp}")
    return int(world // (pp * tp))


def _plan(fields: Fields, model: ModelSpec, pp: int, notes: list[str]) -> tuple[PipelinePlan | None, int]:
    """Layers of every stage by the partition's method, and layers that recompute takes together."""
    method = fields.text(METHOD, default="type:transformer|mlp")
    group = fields.integer("checkpoint_num_layers", default=1) if switch(fields, CHECKPOINTS) else 1
    try:
        sizes = stage_layers(method, model, pp)
    except ValueError as problem:
        notes.append(f"the file settles no plan: {METHOD} {problem}")
        return None, group
    if len(set(sizes)) > 1:
        notes.append(f"{METHOD} {method} places {', '.join(map(str, sizes))} layers on the stages")
    if 0 in sizes:
        notes.append("a stage has no transformer layer")
    layers = deal_kinds(model.layer_counts(), sizes, pp, False)
    full = as_grid([sizes]) if switch(fields, CHECKPOINTS) else zero_grid(pp, 1)
    return PipelinePlan(layers, {FULL: full}), group


def _rules(fields: Fields, zero: Sharding) -> TrainingRules:
    """Bytes of the states.

    In 16 bits the optimizer has an fp32 copy of its part, and gradients stay in the computing type unless
    ``data_types.grad_accum_dtype`` says fp32 (DeepSpeed edaa7221 deepspeed/runtime/engine.py:1483-1496).
    """
    compute = compute_bytes(fields)
    section = fields.section("optimizer")
    kind = section.text("type", default="Adam").lower()
    if kind not in _OPTIMIZERS:
        cure = f"the optimizers whose states are known are {', '.join(_OPTIMIZERS)}"
        raise section.error("type", "has states that are not modelled", kind[:40], cure)
    on_host = zero.states_on_host or kind.startswith("cpu")
    eight_bits = switch(fields, "use_bnb_optimizer")
    moments = _OPTIMIZERS[kind] * (1 if eight_bits else _WIDE)
    half = compute == _HALF
    gradient = 0 if zero.gradients_on_host else (zero.gradient_bytes or compute)
    optimizer = OptimizerStates(
        gradient,
        master_bytes=_WIDE if half else None,
        moments_bytes=moments,
        step_bytes=_WIDE if half and gradient == _HALF and zero.stage < 3 and not on_host else 0,
        host_share=1.0 if on_host else 0.0,
        host_updates=on_host,
        reduced_bytes=compute,
    )
    kinds = attention_kinds(fields)
    dropout = any(fields.number(name, default=0.0, high=1.0) > 0 for name in ("hidden_dropout", "attention_dropout"))
    buffers = zero.buffer_elements * compute / _MIB
    return TrainingRules(
        framework=GPT_NEOX,
        seq_length=fields.integer("seq_length", high=MAX_SIZE),
        parallel_optimizer=zero.shards_optimizer,
        gradient_shard=zero.shards_gradients,
        parameter_shard=zero.shards_weights,
        param_bytes=compute,
        compute_bytes=compute,
        flash_attention=kinds == {FLASH},
        dropout=dropout,
        expert_tensor_parallel=True,
        expert_gemms=ONE_KERNEL,
        overlap_reduction=zero.overlaps,
        optimizer=optimizer,
        overhead_mib=GPT_NEOX.statics.overhead_mib + buffers if buffers else None,
    )
