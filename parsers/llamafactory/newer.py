"""Files of LLaMA-Factory's second generation: its own trainer over torch's FSDP2 or DeepSpeed.

Source of names and defaults: hiyouga/LLaMA-Factory ff6d4d12 src/llamafactory/v1/config/training_args.py:29-109,
src/llamafactory/v1/plugins/trainer_plugins/distributed/fsdp2.py:188-308.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.flag_table import load_flag_table
from taylor.parsers.llamafactory.freeze import partly_frozen
from taylor.parsers.named_model import named_model
from taylor.parsers.nested_keys import unmodelled_keys
from taylor.parsers.start_rules import misfits_of, of_mapping
from taylor.parsers.text.fields import MAX_SIZE, Fields
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.trainer.adapters import low_rank, rank_of
from taylor.parsers.trainer.deepspeed import DeepSpeedConfig
from taylor.parsers.trainer.job import ASSUMED_RANKS, TrainerJob
from taylor.parsers.trainer.settings import count, length_of, refuse, switch
from taylor.parsers.trainer.sharding import DDP, FSDP, Context, Sharding
from taylor.parsers.trainer.start_rules import DEEPSPEED_CHECKS, keys_with
from taylor.register.adapters import ALL_HUGGING_FACE, Adapters
from taylor.register.model import ModelSpec

NAME, LORA, FREEZE = "llamafactory", "lora", "freeze"
MBS, TOTAL, CHECKPOINTS = "micro_batch_size", "global_batch_size", "enable_activation_checkpointing"
PLAN_KEYS = (MBS, TOTAL, CHECKPOINTS)


def is_newer(data: Mapping[Any, Any]) -> bool:
    """Return whether a file names its model and data as the second generation does."""
    return "model" in data and "model_name_or_path" not in data


def job_of(source: YamlSource, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
    """The job that a file states.

    Raises
    ------
    InputError
        When it trains adapters or a part of the weights, trains nothing, or a value is wrong.
    """
    fields = Fields(source.data, source.file, asked=source.asked)
    _refuse_other_jobs(fields)
    notes: list[str] = []
    if model is None:
        model, remarks = named_model(str(fields.text("model")), source.file, "model", register_path)
        notes += remarks
    frozen: tuple[str, ...] = ()
    recomputes = switch(fields, CHECKPOINTS, default=True)
    if _peft_kind(fields) == FREEZE:
        # Under FSDP 2 the embedding's result takes a gradient
        # (src/llamafactory/v1/plugins/trainer_plugins/distributed/fsdp2.py:285-290).
        reached = recomputes and _kind(fields) == "fsdp2"
        model, frozen = partly_frozen(fields.section("peft_config"), model, notes, reached=reached)
    cp = count(fields, "cp_size", 1)
    mbs = count(fields, MBS, 1)
    zero = _deepspeed(fields)
    return TrainerJob(
        file=source.file,
        launcher=NAME,
        model=model,
        sharding=_sharding(fields, model, zero),
        mbs=mbs,
        accumulation=_accumulation(fields, mbs, cp),
        seq_length=count(fields, "cutoff_len", 2048, MAX_SIZE),
        length=length_of(fields),
        recomputes=recomputes,
        optimizer="muon" if fields.section("optim_config").raw("name") == "muon" else "adamw_torch",
        context=Context(cp),
        loaded_bytes=4,
        compute_bytes=2 if switch(fields, "bf16", default=True) else 4,
        fused_loss="liger" in str(fields.section("kernel_config").raw("name")),
        fused_elements="liger" in str(fields.section("kernel_config").raw("name")),
        adapters=_adapters(fields),
        frozen=frozen,
        stated_batch=None if zero is None else zero.whole("train_batch_size"),
        misfits=misfits_of(DEEPSPEED_CHECKS, keys_with(of_mapping(fields.data), zero)),
        notes=tuple(notes),
        unmodelled=unmodelled_keys(
            load_flag_table("taylor.parsers.llamafactory", "newer.yaml"), source.data, ["@experts"] if model.moe else ()
        ),
    )


def _accumulation(fields: Fields, mbs: int, cp: int) -> int:
    """Micro-batches of a step on one rank: by the samples of all ranks, those that are assumed."""
    total = fields.raw(TOTAL)
    if total is None:
        return 1
    replicas = max(1, ASSUMED_RANKS // cp)
    samples = count(fields, TOTAL)
    if samples % (mbs * replicas):
        problem = f"must be a multiple of micro-batch x data-parallel ranks = {mbs} x {replicas} (assumed)"
        raise fields.error(TOTAL, problem, samples)
    return samples // (mbs * replicas)


def _kind(fields: Fields) -> str:
    """Way to shard, by its name in the file."""
    return str(fields.section("dist_config").text("name", default="ddp").lower())


def _deepspeed(fields: Fields) -> DeepSpeedConfig | None:
    if _kind(fields) != "deepspeed":
        return None
    return DeepSpeedConfig.read(
        fields.section("dist_config").raw("config_file"), fields.file, "dist_config.config_file"
    )


def _sharding(fields: Fields, model: ModelSpec, zero: DeepSpeedConfig | None) -> Sharding:
    if zero is not None:
        return zero.sharding(model.hidden, total_parameters(model))
    dist, name = fields.section("dist_config"), _kind(fields)
    if name == "fsdp2":
        on_host = switch(dist, "offload_params")
        return Sharding(
            FSDP,
            3,
            stays_gathered=not switch(dist, "reshard_after_forward", default=True),
            group=count(fields, "mp_shard_size") if fields.has("mp_shard_size") else None,
            states_on_host=on_host,
            gradients_on_host=on_host,
            wide_weights=True,
        )
    if name == "ddp":
        return Sharding(DDP)
    cure = "write dist_config.name: fsdp2 or deepspeed"
    raise dist.error("name", "shards the model in a way that is not modelled", name[:40], cure)


def _adapters(fields: Fields) -> Adapters | None:
    """LoRA (src/llamafactory/v1/plugins/model_plugins/peft.py:33-54, 168-194); ``all`` linear modules by default.

    Raises
    ------
    InputError
        When the frozen weights are quantized by another number of bits than 4 or 8.
    """
    if _peft_kind(fields) != LORA:
        return None
    section = fields.section("peft_config")
    bits = fields.section("quant_config").raw("quantization_bit")
    rank = rank_of(section, "r", 8)
    return low_rank(section, rank, "target_modules", "lora_dropout", bits=bits, usual=ALL_HUGGING_FACE)


def _peft_kind(fields: Fields) -> str | None:
    """Name of what trains in place of all weights; None where all do."""
    peft = fields.raw("peft_config")
    if peft is None:
        return None
    return str(peft.get("name")) if isinstance(peft, Mapping) else str(peft)


def _refuse_other_jobs(fields: Fields) -> None:
    kind = _peft_kind(fields)
    if kind not in (None, LORA, FREEZE):
        problem = "trains adapters, whose memory and step are not modelled and are not those of a full training"
        raise refuse(fields, "peft_config", problem, "leave it out to plan the training of all weights", kind)
    if kind == LORA and fields.section("peft_config").has("export_dir"):
        raise refuse(fields, "peft_config", "merges adapters and trains nothing", "give a file that trains", kind)
    if kind != LORA and fields.raw("quant_config") is not None:
        problem = "quantizes the weights, with which all of them cannot be trained"
        raise refuse(fields, "quant_config", problem, "leave it out to plan the training of all weights")
    if not fields.has("train_dataset"):
        problem = "is missing: the file trains nothing"
        raise InputError(problem, file=fields.file, field="train_dataset", cure="give a file that trains")


def edits_of(
    source: YamlSource, recomputes: bool | None, mbs: int | None, accumulation: int | None
) -> dict[tuple[Any, ...], Any]:
    """Settings that say a plan's recompute and batch."""
    wanted: dict[tuple[Any, ...], Any] = {}
    if recomputes is not None:
        wanted[(CHECKPOINTS,)] = recomputes
    if mbs is None and accumulation is None:
        return wanted
    fields = Fields(source.data, source.file)
    now = count(fields, MBS, 1)
    cp = count(fields, "cp_size", 1)
    each = accumulation or _accumulation(fields, now, cp)
    wanted[(MBS,)] = mbs or now
    wanted[(TOTAL,)] = each * (mbs or now) * max(1, ASSUMED_RANKS // cp)
    return wanted
