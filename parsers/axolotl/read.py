"""axolotl's training files, read to a job of Hugging Face's Trainer.

Source of names and defaults: axolotl-ai-cloud/axolotl 067b021c src/axolotl/utils/schemas/ (config.py:600, 665,
1091-1125; training.py:71-122; fsdp.py:10-90), src/axolotl/utils/config/__init__.py:191-196 (the type in which weights
are loaded).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.axolotl.start_rules import ACCUMULATION, START_RULES, accumulation, fsdp_version, keys_of
from taylor.parsers.axolotl.unfrozen import UNFROZEN, with_unfrozen
from taylor.parsers.flag_table import load_flag_table
from taylor.parsers.frozen import frozen_vision
from taylor.parsers.named_model import named_model
from taylor.parsers.nested_keys import unmodelled_keys
from taylor.parsers.start_rules import misfits_of, of_mapping
from taylor.parsers.text.fields import MAX_SIZE, Fields
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.trainer.adapters import low_rank, rank_of, refuse_whole
from taylor.parsers.trainer.deepspeed import DeepSpeedConfig
from taylor.parsers.trainer.fsdp import read_fsdp
from taylor.parsers.trainer.job import TrainerJob
from taylor.parsers.trainer.settings import count, fsdp_words, length_of, optimizer_of, refuse, switch
from taylor.parsers.trainer.sharding import DDP, Context, Sharding
from taylor.parsers.trainer.start_rules import keys_with
from taylor.register.adapters import ALL_HUGGING_FACE, Adapters
from taylor.register.model import ModelSpec

NAME = "axolotl"
_TILE = 32_768
_LOW_RANK = ("lora", "qlora")
MODEL, MBS, CHECKPOINTS = "base_model", "micro_batch_size", "gradient_checkpointing"
_WHOLE = "leave adapter out to plan the training of all weights"
_PARTS = {
    "lisa_n_layers": "trains a few layers at a time, others in turn (LISA)",
    "relora": "trains LoRA adapters, merged from time to time",
    "ebft": "trains beside roll-outs of its own, which are not modelled",
    "hatchery": "trains by a remote service, which states no ranks",
    "use_onebitllms": "trains weights of one bit, whose layers are not modelled",
}
"""Settings that train something else than the job that is predicted (src/axolotl/utils/schemas/)."""
_PAIRS, _ROLL_OUTS = ("dpo", "ipo"), ("grpo", "gdpo", "ebft", "gkd", "distillation")


def job_of(source: YamlSource, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
    """The job that a file states.

    Raises
    ------
    InputError
        When it trains a part of the weights, or a value is wrong.
    """
    fields = Fields(source.data, source.file, asked=source.asked)
    _refuse_other_jobs(fields)
    notes: list[str] = []
    if model is None:
        model, remarks = named_model(str(fields.text(MODEL)), source.file, MODEL, register_path)
        notes += remarks
    frozen = frozen_vision(model, notes, freezes=switch(fields, "freeze_mm_modules"))
    if fields.raw(UNFROZEN):
        model, frozen = with_unfrozen(fields, model, notes)
    # The schema's default of bf16 is ``auto``: on, where no fp16 is stated (config.py:559, config/__init__.py:157).
    mixed = "bf16" not in source.data or _is_on(fields, "bf16") or _is_on(fields, "fp16")
    half = mixed or _is_on(fields, "bfloat16") or _is_on(fields, "float16")
    plugins = " ".join(map(str, fields.raw("plugins") or ())) if isinstance(fields.raw("plugins"), list) else ""
    tp, cp = count(fields, "tensor_parallel_size", 1), _context_ranks(fields)
    zero = DeepSpeedConfig.of(fields)
    sharding = _sharding(fields, model, zero, mixed=mixed)
    return TrainerJob(
        file=source.file,
        launcher=NAME,
        model=model,
        sharding=sharding,
        mbs=count(fields, MBS, 1),
        accumulation=_accumulation(fields),
        seq_length=count(fields, "sequence_len", 512, MAX_SIZE),
        length=length_of(fields),
        recomputes=_recomputes(fields) or sharding.checkpoints,
        optimizer=optimizer_of(fields, "optimizer", "adamw_torch_fused"),
        world=_world(fields, tp, cp),
        tp=tp,
        context=Context(cp),
        loaded_bytes=2 if half else 4,
        compute_bytes=2 if half else 4,
        pairs=str(fields.raw("rl") or "").lower() in _PAIRS,
        fused_loss=switch(fields, "liger_fused_linear_cross_entropy") or "CutCrossEntropyPlugin" in plugins,
        fused_elements=switch(fields, "liger_rms_norm") and switch(fields, "liger_glu_activation"),
        eager_attention=str(fields.raw("attn_implementation") or "") == "eager",
        compiled=_is_on(fields, "torch_compile"),
        adapters=_adapters(fields),
        frozen=frozen,
        mlp_tiles=_mlp_tiles(fields, cp),
        stated_batch=None if zero is None else zero.whole("train_batch_size"),
        misfits=misfits_of(START_RULES, keys_with(keys_of(source.data), zero)),
        notes=tuple(notes),
        unmodelled=unmodelled_keys(
            load_flag_table("taylor.parsers.axolotl", "options.yaml"),
            source.data,
            ["@experts"] if model.moe else (),
        ),
    )


def _adapter(fields: Fields) -> str | None:
    """Kind of the adapters that train; None where all weights do."""
    adapter = fields.raw("adapter")
    return None if adapter in (None, "", False) or str(adapter).lower() == "none" else str(adapter).lower()


def _adapters(fields: Fields) -> Adapters | None:
    """LoRA or QLoRA (src/axolotl/utils/schemas/peft.py:31-62, 80)."""
    if _adapter(fields) is None:
        return None
    bits = 4 if switch(fields, "load_in_4bit") else 8 if switch(fields, "load_in_8bit") else None
    usual = ALL_HUGGING_FACE if switch(fields, "lora_target_linear") else ()
    rank = rank_of(fields, "lora_r")
    found = low_rank(
        fields,
        rank,
        "lora_target_modules",
        "lora_dropout",
        bits=bits,
        usual=usual,
        everywhere="lora_target_linear",
        saved="lora_modules_to_save",
        decomposed="peft_use_dora",
    )
    return replace(found, targets=tuple(sorted({*found.targets, *usual})))


def _mlp_tiles(fields: Fields, cp: int) -> int:
    """Parts of the sequence of a dense MLP: 32,768 tokens each, unless stated.

    Source: axolotl 067b021c src/axolotl/monkeypatch/tiled_mlp/patch.py:55-76.
    """
    if not switch(fields, "tiled_mlp"):
        return 0
    tokens = -(-count(fields, "sequence_len", 512, MAX_SIZE) // cp)
    return count(fields, "tiled_mlp_num_shards", max(1, -(-tokens // _TILE)))


def _is_on(fields: Fields, name: str) -> bool:
    """A switch that ``auto`` and ``full`` turn on too, on devices that have the type."""
    return str(fields.raw(name)).lower() in ("true", "auto", "full", "yes")


def _recomputes(fields: Fields) -> bool:
    """Gradient checkpointing; ``offload`` and ``offload_disk`` recompute too (config.py:600)."""
    return str(fields.raw(CHECKPOINTS)).lower() in ("true", "offload", "offload_disk", "unsloth", "yes")


def _accumulation(fields: Fields) -> int:
    if fields.has("batch_size"):
        count(fields, "batch_size")
    return count(fields, ACCUMULATION, accumulation(fields.data))


def _context_ranks(fields: Fields) -> int:
    name = "context_parallel_size" if fields.has("context_parallel_size") else "sequence_parallel_degree"
    return count(fields, name, 1)


def _world(fields: Fields, tp: int, cp: int) -> int | None:
    """Ranks, where the file states how shards and their copies lie (config.py:1091-1125)."""
    if not fields.has("dp_shard_size"):
        return None
    return count(fields, "dp_shard_size") * count(fields, "dp_replicate_size", 1) * tp * cp


def _sharding(fields: Fields, model: ModelSpec, zero: DeepSpeedConfig | None, *, mixed: bool) -> Sharding:
    if zero is not None:
        return zero.sharding(model.hidden, total_parameters(model))
    words, shards = fsdp_words(fields.raw("fsdp")), count(fields, "dp_shard_size", 1)
    if not words and not fields.has("fsdp_config") and shards == 1:
        return Sharding(DDP)
    stated = fields.section("fsdp_config")
    version = fsdp_version(of_mapping(fields.data))
    group = None
    if fields.has("dp_shard_size") and count(fields, "dp_replicate_size", 1) > 1:
        group = shards * _context_ranks(fields)
    sharding = read_fsdp(words, stated, group, version)
    if version == "2" and stated.raw("reshard_after_forward", "fsdp_reshard_after_forward") is None:
        sharding = replace(sharding, stays_gathered=False)
    return replace(sharding, wide_weights=mixed)


def _refuse_other_jobs(fields: Fields) -> None:
    """Refuse what trains something else than all weights.

    Raises
    ------
    InputError
        With the setting.
    """
    adapter = _adapter(fields)
    if adapter not in (None, *_LOW_RANK):
        raise refuse(fields, "adapter", "trains adapters of another kind than LoRA, which are not modelled", _WHOLE)
    if adapter is not None:
        refuse_whole(fields, "lora_target_parameters", "lora_rank_pattern", UNFROZEN)
    for name, why in _PARTS.items():
        value = fields.raw(name)
        if value not in (None, False, "", [], 0):
            what = value if not isinstance(value, (list, Mapping)) else f"{len(value)} entries"
            raise refuse(fields, name, why, f"leave {name} out to plan the training of all weights", what)
    rl = str(fields.raw("rl") or "").lower()
    if rl in _PAIRS and fields.raw(UNFROZEN):
        why = "keeps a reference model beside frozen layers, which is not modelled"
        raise refuse(fields, "rl", why, f"leave rl or {UNFROZEN} out")
    if rl in _ROLL_OUTS:
        why = "trains beside roll-outs and rewards, of which none is modelled"
        raise refuse(fields, "rl", why, "leave rl out to plan one training step")


def edits_of(
    source: YamlSource, recomputes: bool | None, mbs: int | None, accumulated: int | None
) -> dict[tuple[Any, ...], Any]:
    """Settings that say a plan's recompute and batch; ``batch_size`` does not go with the accumulation."""
    wanted: dict[tuple[Any, ...], Any] = {}
    if recomputes is not None:
        wanted[(CHECKPOINTS,)] = recomputes
    if mbs is not None:
        wanted[(MBS,)] = mbs
    fields = Fields(source.data, source.file)
    if fields.has("batch_size") and (mbs is not None or accumulated is not None):
        wanted[(ACCUMULATION,)] = accumulated or accumulation(source.data)
        wanted[("batch_size",)] = None
    elif accumulated is not None:
        wanted[(ACCUMULATION,)] = accumulated
    return wanted
