"""LLaMA-Factory's training files, read to a job of Hugging Face's Trainer.

Source of names and defaults: hiyouga/LLaMA-Factory ff6d4d12 src/llamafactory/hparams/ (data_args.py:46,
model_args.py:145, finetuning_args.py:456-560), and huggingface/transformers v4.57.1
src/transformers/training_args.py for what it hands on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.flag_table import FlagTable, load_flag_table
from taylor.parsers.frozen import frozen_vision
from taylor.parsers.llamafactory.freeze import LAYERS, partly_frozen, passes_frozen, trains_norms
from taylor.parsers.llamafactory.start_rules import START_RULES
from taylor.parsers.named_model import named_model
from taylor.parsers.nested_keys import unmodelled_keys
from taylor.parsers.start_rules import misfits_of, of_mapping
from taylor.parsers.text.fields import MAX_SIZE, Fields
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.trainer.adapters import bits_named, low_rank, rank_of
from taylor.parsers.trainer.deepspeed import DeepSpeedConfig
from taylor.parsers.trainer.fsdp import read_fsdp
from taylor.parsers.trainer.job import TrainerJob
from taylor.parsers.trainer.optimizers import USUAL
from taylor.parsers.trainer.settings import (
    Accelerate,
    count,
    fsdp_words,
    length_of,
    optimizer_of,
    refuse,
    started_deepspeed,
    switch,
)
from taylor.parsers.trainer.sharding import DDP, Sharding
from taylor.parsers.trainer.start_rules import keys_with
from taylor.register.adapters import ALL_HUGGING_FACE, Adapters
from taylor.register.model import ModelSpec

NAME, LORA, FREEZE = "llamafactory", "lora", "freeze"
MODEL = "model_name_or_path"
MBS, ACCUMULATION, CHECKPOINTS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "disable_gradient_checkpointing",
)
_ALL_WEIGHTS = "write finetuning_type: full to plan the training of all weights"
_ON_MEGATRON = "is started on Megatron-LM (MCoreAdapter or Megatron-Bridge), whose options are not read from this file"
_ELSEWHERE = {
    "use_mca": "is started by MCoreAdapter on Megatron-LM, whose options are not read from this file",
    "tensor_model_parallel_size": _ON_MEGATRON,
    "pipeline_model_parallel_size": _ON_MEGATRON,
    "use_kt": "is started by KTransformers, whose experts compute on the host",
    "use_badam": "trains one block of layers at a time",
    "use_galore": "keeps the optimizer's states of projected gradients, whose size is not modelled",
    "use_apollo": "keeps the optimizer's states of projected gradients, whose size is not modelled",
    "use_llama_pro": "trains added layers alone",
    "mixture_of_depths": "lets tokens skip layers, which is not modelled",
}
"""Settings that train something else than the job that is predicted (finetuning_args.py, model_args.py)."""
_PAIRS, _SEVERAL = ("dpo",), ("ppo",)


def job_of(source: YamlSource, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
    """The job that a file states; see `job_in`."""
    return job_in(Fields(source.data, source.file, asked=source.asked), source.text, register_path, model)


def job_in(fields: Fields, text: str, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
    """The job that settings state.

    Parameters
    ----------
    text : str
        The file's text, whose comments may say how it is started.

    Raises
    ------
    InputError
        When it trains a part of the weights or nothing, or a value is wrong.
    """
    _refuse_other_jobs(fields)
    notes: list[str] = []
    if model is None:
        model, remarks = named_model(str(fields.text(MODEL)), fields.file, MODEL, register_path)
        notes += remarks
    if switch(fields, "freeze_language_model"):
        why = "trains the vision part alone, and only language models are planned"
        raise refuse(fields, "freeze_language_model", why, "write false to plan the training of the language model")
    frozen = frozen_vision(model, notes, freezes=switch(fields, "freeze_vision_tower", default=True))
    if fields.text("finetuning_type", default=LORA) == FREEZE:
        model, frozen = partly_frozen(fields, model, notes)
        _refuse_with_frozen(fields, model)
    pure = switch(fields, "pure_bf16")
    mixed = switch(fields, "bf16") or switch(fields, "fp16")
    accelerate = Accelerate.named_in(text, fields.file)
    zero = DeepSpeedConfig.of(fields)
    sharding = _sharding(fields, model, accelerate, zero, notes)
    zero = started_deepspeed(zero, fields, accelerate)
    if sharding.wide_weights and pure:
        sharding = replace(sharding, wide_weights=False)
    return TrainerJob(
        file=fields.file,
        launcher=NAME,
        model=model,
        sharding=sharding,
        mbs=count(fields, MBS, 8),
        accumulation=count(fields, ACCUMULATION, 1),
        seq_length=count(fields, "cutoff_len", 2048, MAX_SIZE),
        length=length_of(fields),
        recomputes=not switch(fields, CHECKPOINTS),
        optimizer=_optimizer(fields),
        usual_optimizer=not fields.has("optim"),
        world=None if accelerate is None else accelerate.world,
        loaded_bytes=2 if pure else 4,
        compute_bytes=2 if mixed or pure else 4,
        pairs=fields.text("stage", default="sft") in _PAIRS,
        fused_loss=switch(fields, "enable_liger_kernel"),
        fused_elements=switch(fields, "enable_liger_kernel"),
        eager_attention=fields.raw("flash_attn") == "disabled",
        compiled=switch(fields, "torch_compile"),
        adapters=_adapters(fields),
        frozen=frozen,
        stated_batch=None if zero is None else zero.whole("train_batch_size"),
        misfits=misfits_of(START_RULES, keys_with(of_mapping(fields.data), zero)),
        notes=tuple(notes),
        unmodelled=unmodelled_keys(table(), dict(fields.data), ["@experts"] if model.moe else ()),
    )


def _adapters(fields: Fields) -> Adapters | None:
    """LoRA, which is trained by default (finetuning_args.py:77, 81, 464; model_args.py:283)."""
    if fields.text("finetuning_type", default=LORA) != LORA:
        return None
    stated = fields.raw("quantization_bit") is not None
    bits = count(fields, "quantization_bit") if stated else bits_named(str(fields.raw(MODEL)))
    rank = rank_of(fields, "lora_rank", 8)
    return low_rank(
        fields,
        rank,
        "lora_target",
        "lora_dropout",
        bits=bits,
        usual=ALL_HUGGING_FACE,
        saved="additional_target",
        decomposed="use_dora",
    )


def _refuse_with_frozen(fields: Fields, model: ModelSpec) -> None:
    """Refuse what goes with frozen layers and is not modelled.

    Layers of which nothing trains are not checkpointed (src/llamafactory/model/model_utils/checkpointing.py:105-128),
    and keep all activations where a gradient passes through them.

    Raises
    ------
    InputError
        With the setting.
    """
    if passes_frozen(model) and not trains_norms(fields) and not switch(fields, CHECKPOINTS):
        why = "leaves gradient checkpointing to the layers that train, though a gradient passes through frozen ones"
        raise refuse(fields, LAYERS, why, f"write {CHECKPOINTS}: true, or train the last layers")
    if fields.text("stage", default="sft") in _PAIRS:
        why = "keeps a reference model beside frozen layers, which is not modelled"
        raise refuse(fields, "stage", why, "write stage: sft, or finetuning_type: full")


def table() -> FlagTable:
    """Meaning of every setting."""
    return load_flag_table("taylor.parsers.llamafactory", "options.yaml")


def _sharding(
    fields: Fields, model: ModelSpec, accelerate: Accelerate | None, zero: DeepSpeedConfig | None, notes: list[str]
) -> Sharding:
    if zero is not None:
        return zero.sharding(model.hidden, total_parameters(model))
    words = fsdp_words(fields.raw("fsdp"))
    if words or fields.has("fsdp_config"):
        return read_fsdp(words, fields.section("fsdp_config"))
    if accelerate is not None:
        notes.append(f"ranks and sharding are those of {accelerate.file.name}, with which the file says it is started")
        return accelerate.sharding(model, total_parameters(model))
    return Sharding(DDP)


def _optimizer(fields: Fields) -> str:
    if switch(fields, "use_adam_mini"):
        return "adam_mini"
    if switch(fields, "use_muon"):
        return "muon"
    return optimizer_of(fields, "optim", USUAL)


def _refuse_other_jobs(fields: Fields) -> None:
    """Refuse what trains something else than all weights, or nothing.

    Raises
    ------
    InputError
        With the setting.
    """
    if not fields.has(MODEL):
        raise fields.error(MODEL, "is missing", cure="give the YAML that llamafactory-cli train starts")
    if fields.has("export_dir"):
        raise refuse(fields, "export_dir", "exports a model and trains nothing", "give a file with do_train: true")
    if fields.has("infer_backend"):
        raise refuse(fields, "infer_backend", "answers prompts and trains nothing", "give a file with do_train: true")
    kind = str(fields.text("finetuning_type", default=LORA))
    if kind not in ("full", FREEZE, LORA):
        what = {"oft": "orthogonal adapters"}.get(kind, "something else")
        problem = f"trains {what}, whose memory and step are not modelled"
        raise fields.error("finetuning_type", problem, kind[:40], _ALL_WEIGHTS)
    if kind != LORA and fields.has("quantization_bit"):
        why = "quantizes the weights, with which all of them cannot be trained"
        raise refuse(fields, "quantization_bit", why, "leave quantization_bit out, or write finetuning_type: lora")
    for name, why in _ELSEWHERE.items():
        if name == "use_llama_pro" and kind == FREEZE:
            continue  # It spreads the layers that train.
        value = fields.raw(name)
        if value is not None and str(value).lower() not in ("false", "none", "0"):
            raise refuse(fields, name, why, f"leave {name} out to plan it under Hugging Face's Trainer")
    if fields.text("stage", default="sft") in _SEVERAL:
        why = "trains beside roll-outs, a reward and a value model, of which none is modelled"
        raise refuse(fields, "stage", why, "write stage: sft to plan one training step")
    if not switch(fields, "do_train", default=True):
        raise refuse(fields, "do_train", "trains nothing", "give a file with do_train: true")


def edits_of(recomputes: bool | None, mbs: int | None, accumulation: int | None) -> dict[tuple[Any, ...], Any]:
    """Settings that say a plan's recompute and batch."""
    wanted: dict[tuple[Any, ...], Any] = {}
    if recomputes is not None:
        wanted[(CHECKPOINTS,)] = not recomputes
    if mbs is not None:
        wanted[(MBS,)] = mbs
    if accumulation is not None:
        wanted[(ACCUMULATION,)] = accumulation
    return wanted
