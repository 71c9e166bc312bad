"""A command line of Hugging Face's Trainer, or of LLaMA-Factory, read to a job.

Source of names and defaults: huggingface/transformers v4.57.1 src/transformers/training_args.py;
the sample's length is the user's program's own option, by the names of transformers' and TRL's examples
(examples/pytorch/language-modeling/run_clm.py, ``block_size``; huggingface/trl trl/trainer/sft_config.py,
``max_length``) and of programs derived from Alpaca's (``model_max_length``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.base.errors import shortened
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.flag_table import load_flag_table
from taylor.parsers.llamafactory import read as llamafactory
from taylor.parsers.named_model import named_model
from taylor.parsers.nested_keys import unmodelled_keys
from taylor.parsers.start_rules import Keys, misfits_of, of_mapping
from taylor.parsers.text.fields import MAX_SIZE, Fields
from taylor.parsers.text.flags import Flags
from taylor.parsers.text.json_source import read_json
from taylor.parsers.text.script_flags import FlagForm, flags_of
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.trainer.adapters import low_rank, rank_of
from taylor.parsers.trainer.deepspeed import DeepSpeedConfig, beside
from taylor.parsers.trainer.fsdp import read_fsdp
from taylor.parsers.trainer.job import TrainerJob
from taylor.parsers.trainer.optimizers import USUAL
from taylor.parsers.trainer.settings import (
    Accelerate,
    attends_eagerly,
    count,
    fsdp_words,
    length_of,
    loaded_bytes,
    optimizer_of,
    refuse,
    started_deepspeed,
    switch,
)
from taylor.parsers.trainer.sharding import DDP, Context, Sharding
from taylor.parsers.trainer.start_rules import DEEPSPEED_CHECKS, MATCHES, TRAINER_CHECKS, keys_with
from taylor.register.adapters import QUERY, VALUE, Adapters
from taylor.register.model import ModelSpec

NAME = "trainer"
MBS, ACCUMULATION, CHECKPOINTS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
)
FORM = FlagForm(
    telltale=("per-device-train-batch-size", "model-name-or-path", "output-dir", "learning-rate", "deepspeed", "bf16"),
    beside=("per-device-train-batch-size", "output-dir", "learning-rate"),
    joint="_",
)
_MODELS = ("model_name_or_path", "model_id", "model_name", "config_name", "model")
_LENGTHS = ("block_size", "model_max_length", "max_seq_length", "max_length", "cutoff_len", "max_seq_len")
_ADAPTERS = ("use_lora", "lora_enable", "lora_r", "lora_rank", "use_qlora", "load_in_4bit", "load_in_8bit")
_OF_TRL = ("lora_r", "load_in_4bit", "load_in_8bit")
_LISTS = ("lora_target_modules", "lora_modules_to_save", "target_modules", "modules_to_save")
"""Options that take several words."""
_OFF = ("false", "0", "none", "no", "")


def script_job(script: ShellScript, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
    """The job that a script starts.

    Raises
    ------
    InputError
        When it starts none of the Trainer's, trains adapters of its own, or a value is wrong.
    """
    flags = flags_of(script, FORM)
    fields = Fields(settings_of(flags), script.file)
    if fields.has("finetuning_type", "stage"):
        job = llamafactory.job_in(fields, script.text, register_path, model)
    else:
        job = plain_job(fields, Accelerate.named_in(script.text, script.file), register_path, model)
    world = world_of(script, flags)
    return replace(
        job,
        launcher=NAME,
        world=job.world if world is None else world,
        notes=(*script.notes, *job.notes),
    )


def settings_of(flags: Flags, first: int | None = None) -> dict[str, Any]:
    """Options by name, with ``_`` for ``-``; a bare one is true.

    Parameters
    ----------
    first : int, optional
        Number of the first one; by default the one behind the program.

    Raises
    ------
    InputError
        When a value is known only as the job starts.
    """
    found: dict[str, Any] = {}
    for flag in flags.flags[flags.starting if first is None else first :]:
        name = flag.name.replace("-", "_")
        if name == "deepspeed" or not flag.values:
            found[name] = flags.text(flag.name) if flag.values else True
        elif name in _LISTS:
            found[name] = [word.text for word in flag.values]
        elif any(word.unknown for word in flag.values[:1]) and name not in (*_MODELS, *_LENGTHS, MBS, ACCUMULATION):
            continue
        else:
            found[name] = flags.text(flag.name)
    return found


def plain_job(
    fields: Fields,
    accelerate: Accelerate | None,
    register_path: Path | None = None,
    model: ModelSpec | None = None,
    launcher: str = NAME,
) -> TrainerJob:
    """The job that options of Hugging Face's Trainer state, with those of trl's ``ModelConfig`` for adapters.

    Parameters
    ----------
    accelerate : Accelerate or None
        The configuration with which accelerate starts it.

    Raises
    ------
    InputError
        When it trains adapters of another program's options, or a value is wrong.
    """
    adapted = switch(fields, "use_peft")
    for name in _ADAPTERS:
        if not fields.has(name) or str(fields.raw(name)).lower() in _OFF:
            continue
        if adapted and name not in _OF_TRL:
            cure = "leave it out; trl's rank is --lora_r" if name == "lora_rank" else "leave it out"
            raise refuse(fields, name, "is no option beside --use_peft, which is trl's", cure)
        if not adapted:
            why = "trains adapters by options of the program's own, whose meaning is not known"
            raise refuse(fields, name, why, f"leave --{name} out to plan the training of all weights")
    named = next((name for name in _MODELS if fields.has(name)), None)
    if named is None:
        raise fields.error(_MODELS[0], "is missing", cure="give the script that starts a training with it")
    notes: list[str] = []
    if model is None:
        model, remarks = named_model(str(fields.raw(named)), fields.file, f"--{named}", register_path)
        notes += remarks
    zero = DeepSpeedConfig.of(fields)
    sharding = _sharding(fields, model, accelerate, zero, notes)
    zero = started_deepspeed(zero, fields, accelerate)
    half = switch(fields, "bf16") or switch(fields, "fp16")
    wide = loaded_bytes(fields, "torch_dtype", "dtype", default="float32") == 4
    return TrainerJob(
        file=fields.file,
        launcher=launcher,
        model=model,
        sharding=sharding,
        mbs=count(fields, MBS, 8),
        accumulation=count(fields, ACCUMULATION, 1),
        seq_length=_length(fields),
        length=length_of(fields),
        recomputes=switch(fields, CHECKPOINTS) or sharding.checkpoints,
        optimizer=optimizer_of(fields, "optim", USUAL),
        usual_optimizer=not fields.has("optim"),
        world=None if accelerate is None else accelerate.world,
        context=Context() if accelerate is None else accelerate.context,
        loaded_bytes=4 if wide else 2,
        compute_bytes=2 if half or not wide else 4,
        adapters=_adapters(fields, model, notes, wide=wide) if adapted else None,
        fused_loss=switch(fields, "use_liger_kernel"),
        fused_elements=switch(fields, "use_liger_kernel"),
        eager_attention=attends_eagerly(fields, "attn_implementation"),
        compiled=switch(fields, "torch_compile"),
        stated_batch=None if zero is None else zero.whole("train_batch_size"),
        misfits=misfits_of((*TRAINER_CHECKS, *MATCHES, *DEEPSPEED_CHECKS), _keys(fields, zero)),
        notes=tuple(notes),
        unmodelled=unmodelled_keys(
            load_flag_table("taylor.parsers.trainer_script", "options.yaml"),
            dict(fields.data),
            ["@experts"] if model.moe else (),
        ),
    )


def _adapters(fields: Fields, model: ModelSpec, notes: list[str], *, wide: bool) -> Adapters:
    """LoRA of trl's ``ModelConfig`` (huggingface/trl f2cd5771 trl/trainer/model_config.py:103-172).

    Where no modules are named, peft gives queries and values an adapter in most families of a table, and refuses those
    that it lacks (peft 5d602fdb src/peft/utils/constants.py:67-108, src/peft/tuners/lora/model.py:590-599).

    Parameters
    ----------
    wide : bool
        Frozen weights are loaded in fp32.

    Raises
    ------
    InputError
        When peft or trl refuses it, or a value is wrong.
    """
    if switch(fields, "load_in_4bit") and switch(fields, "load_in_8bit"):
        cure = "leave one of them out"
        raise fields.error("load_in_8bit", "does not start with --load_in_4bit", "true", cure)
    bits = 4 if switch(fields, "load_in_4bit") else 8 if switch(fields, "load_in_8bit") else None
    if not fields.has("lora_target_modules"):
        if model.mla is not None:
            why = "is missing, and peft has no usual modules of a model with latent attention"
            raise fields.error("lora_target_modules", why, cure="write --lora_target_modules all-linear")
        notes.append(
            "no --lora_target_modules: adapters stand beside queries and values, as in most families of peft's table; "
            "peft refuses a model of another family"
        )
    if fields.raw("lora_dropout") is None:
        fields = Fields({**fields.data, "lora_dropout": 0.05}, fields.file, fields.prefix, fields.asked)
    found = low_rank(
        fields,
        rank_of(fields, "lora_r", 16),
        "lora_target_modules",
        "lora_dropout",
        bits=bits,
        usual=(QUERY, VALUE),
        saved="lora_modules_to_save",
        decomposed="use_dora",
    )
    return replace(found, base_bytes=4.0) if wide and bits is None else found


def _keys(fields: Fields, zero: DeepSpeedConfig | None) -> Keys:
    """Options, with the configurations that they name in place of their paths."""
    data = dict(fields.data)
    if fields.has("fsdp_config") and fsdp_words(fields.raw("fsdp")):
        data["fsdp_config"] = dict(_fsdp_config(fields).data)
    return keys_with(of_mapping(data), zero)


def _length(fields: Fields) -> int:
    """Tokens of a sample.

    Raises
    ------
    InputError
        When no option says so.
    """
    named = next((name for name in _LENGTHS if fields.has(name)), None)
    if named is None:
        cure = f"add one of {', '.join(f'--{name}' for name in _LENGTHS)} to the command"
        raise fields.error(_LENGTHS[0], "is missing: no option says how long a sample is", cure=cure)
    return count(fields, named, high=MAX_SIZE)


def _sharding(
    fields: Fields, model: ModelSpec, accelerate: Accelerate | None, zero: DeepSpeedConfig | None, notes: list[str]
) -> Sharding:
    if zero is not None:
        return zero.sharding(model.hidden, total_parameters(model))
    words = fsdp_words(fields.raw("fsdp"))
    if words:
        return read_fsdp(words, _fsdp_config(fields))
    if accelerate is not None:
        notes.append(f"sharding is that of {accelerate.file.name}, with which the script starts it")
        return accelerate.sharding(model, total_parameters(model))
    return Sharding(DDP)


def _fsdp_config(fields: Fields) -> Fields:
    """``--fsdp_config``: a JSON file, or JSON itself."""
    written = fields.raw("fsdp_config")
    if written is None:
        return Fields({}, fields.file, "fsdp_config")
    text = str(written)
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise fields.error("fsdp_config", "is not valid JSON", shortened(text, 60)) from None
    else:
        file = beside(text, fields.file)
        if file is None:
            cure = "put it beside the script, or in a folder above it"
            raise fields.error("fsdp_config", "is not found", shortened(text, 120), cure)
        data = read_json(file, "a configuration of FSDP")
    if not isinstance(data, Mapping):
        raise fields.error("fsdp_config", "is no configuration of FSDP", shortened(text, 60))
    return Fields(data, fields.file, "fsdp_config")


def world_of(script: ShellScript, flags: Flags) -> int | None:
    """Ranks that the command starts: by torchrun's, DeepSpeed's or accelerate's options, or the devices it may see.

    Raises
    ------
    InputError
        When an option that the script settles is no whole number.
    """
    world = flags.world_size()
    if world is not None:
        return world
    for name, nodes in (("num-processes", None), ("num-gpus", "num-nodes")):
        given = [flag for flag in flags.flags if flag.name in (name, nodes)]
        if any(word.unknown for flag in given for word in flag.values):
            return None
        each = flags.integer(name, default=None)
        if each is not None:
            return int(each * (1 if nodes is None else flags.integer(nodes, default=1)))
    seen = script.variable("CUDA_VISIBLE_DEVICES")
    text = "" if seen is None or not seen.words else seen.words[0].text
    return text.count(",") + 1 if re.fullmatch(r"\d{1,3}(?:,\d{1,3}){0,1023}", text) else None
