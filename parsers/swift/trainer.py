"""ms-swift's trainer on Hugging Face (``swift pt``, ``sft`` and ``rlhf``), read to a job of one stage.

Sources: modelscope/ms-swift 3602360a swift/trainers/arguments.py:129-153, 283-286 (batches, gradient checkpointing),
swift/arguments/base_args/base_args.py and tuner_args.py:95-150 (tuners), sft_args.py:251-310 (presets of DeepSpeed and
FSDP), base_args/model_args.py:120-143 (precision), rlhf_args.py:232-300, swift/cli/main.py:30-83 (ranks),
swift/sequence_parallel/sequence_parallel.py:343-374, 643-655 (ranks that share a sample).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.flag_table import FlagTable, UnmodelledFlag, load_flag_table
from taylor.parsers.frozen import frozen_vision
from taylor.parsers.named_model import named_model
from taylor.parsers.nested_keys import unmodelled_keys
from taylor.parsers.start_rules import misfits_of, of_mapping
from taylor.parsers.text.fields import MAX_SIZE, Fields
from taylor.parsers.text.flags import Flags
from taylor.parsers.text.script_flags import FlagForm, flags_of, launch_words
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.spelling import likely_meant
from taylor.parsers.trainer.adapters import bits_named, low_rank, rank_of
from taylor.parsers.trainer.deepspeed import DeepSpeedConfig
from taylor.parsers.trainer.fsdp import read_fsdp
from taylor.parsers.trainer.job import ASSUMED_RANKS, TrainerJob
from taylor.parsers.trainer.optimizers import USUAL
from taylor.parsers.trainer.settings import (
    Accelerate,
    attends_eagerly,
    count,
    length_of,
    loaded_bytes,
    optimizer_of,
    refuse,
    started_deepspeed,
    switch,
)
from taylor.parsers.trainer.sharding import DDP, Context, Sharding
from taylor.parsers.trainer.start_rules import DEEPSPEED_CHECKS, MATCHES, TRAINER_CHECKS, keys_with
from taylor.parsers.trainer_script.read import ACCUMULATION, CHECKPOINTS, MBS, settings_of
from taylor.register.adapters import ALL_HUGGING_FACE, Adapters
from taylor.register.model import ModelSpec

NAME, MODEL, LENGTH = "swift-trainer", "model", "max_length"
STARTS = re.compile(r"(?:\bswift\s+|\bswift\.cli\.|\bswift/cli/(?=\w+\.py\b))(pt|sft|rlhf)\b")
"""A command of ms-swift, and the program that it starts."""
FORM = FlagForm(
    telltale=("model", "tuner-type", "train-type", "per-device-train-batch-size", "dataset", "max-length", "deepspeed",
              "torch-dtype", "lora-rank", "output-dir"),
    beside=("per-device-train-batch-size", "model", "output-dir"),
    joint="_",
)  # fmt: skip
_BATCH = 16
"""Samples a step that ms-swift aims at where no accumulation is stated."""
_SMALL = {"allgather_bucket_size": 200_000_000, "reduce_bucket_size": 200_000_000}
_THREE = {"reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
          "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": 1_000_000_000,
          "stage3_max_reuse_distance": 1_000_000_000}  # fmt: skip
_HOST = {"device": "cpu"}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "zero0": {"stage": 0, **_SMALL},
    "zero1": {"stage": 1, **_SMALL},
    "zero2": {"stage": 2, **_SMALL},
    "zero3": {"stage": 3, **_THREE},
    "zero2_offload": {"stage": 2, "offload_optimizer": _HOST, **_SMALL},
    "zero3_offload": {"stage": 3, "offload_optimizer": _HOST, "offload_param": _HOST, **_THREE},
}
"""ZeRO's settings that ms-swift has by name (swift/config/*.json); each with ``overlap_comm`` off."""
FSDP2 = {"fsdp_version": 2, "reshard_after_forward": True, "activation_checkpointing": True}
"""The settings of ``--fsdp fsdp2`` (swift/config/fsdp2.json)."""
_PAIRS, _ROLLED_OUT = "dpo", "grpo"
OTHER_LOSSES = {
    "kto": "keeps a reference model beside single answers",
    "rm": "trains a head of one label",
    "orpo": "trains pairs without a reference model",
    "simpo": "trains pairs without a reference model",
    "cpo": "trains pairs without a reference model",
    "ppo": "trains beside roll-outs, a reward and a value model",
    "gkd": "trains beside a teacher",
}
_FROZEN = ("freeze_parameters", "freeze_parameters_regex", "freeze_parameters_ratio", "trainable_parameters",
           "trainable_parameters_regex")  # fmt: skip
_OTHERS = {
    "use_galore": "keeps the optimizer's states of projected gradients, whose size is not modelled",
    "deepspeed_autotp_size": "splits layers by DeepSpeed's AutoTP, which is not modelled",
    "freeze_llm": "trains the vision part alone, and only language models are planned",
}
_WHERE = "NPROC_PER_NODE"


def trainer_job(script: ShellScript, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
    """The job that a script starts.

    Raises
    ------
    InputError
        When it starts none of ms-swift's trainer, trains something that is not modelled, or a value is wrong.
    """
    found = STARTS.search(" ".join(word.text for word in launch_words(script, FORM)))
    if found is None:
        cure = "give the script that starts swift pt, sft or rlhf, with its options in the command"
        raise InputError("starts no training: no command starts swift pt, sft or rlhf", file=script.file, cure=cure)
    flags = flags_of(script, FORM)
    # A plug-in's file among the options looks like a program behind them.
    first = None if flags.world_size() is not None else 0
    fields = Fields(settings_of(flags, first), script.file)
    accelerate = Accelerate.named_in(script.text, script.file)
    world = _world(script, flags) if accelerate is None else accelerate.world
    job = job_in(fields, world, register_path, model, rlhf=found[1] == "rlhf", accelerate=accelerate)
    return replace(job, notes=(*script.notes, *job.notes))


def job_in(
    fields: Fields,
    world: int | None,
    register_path: Path | None = None,
    model: ModelSpec | None = None,
    *,
    rlhf: bool,
    accelerate: Accelerate | None = None,
) -> TrainerJob:
    """The job that options state.

    Parameters
    ----------
    world : int, optional
        Ranks, where they are stated.
    rlhf : bool
        It is started by ``swift rlhf``, whose loss is DPO's by default.
    accelerate : Accelerate, optional
        The configuration with which accelerate starts it.

    Raises
    ------
    InputError
        When it trains something that is not modelled, or a value is wrong.
    """
    notes: list[str] = []
    loss = str(fields.text("rlhf_type", default=_PAIRS)) if rlhf else ""
    tuner = _refuse_other_jobs(fields, loss)
    if fields.has("train_type"):
        notes.append(
            "--train_type is read as ms-swift up to 4.0 reads it; later releases refuse it: write --tuner_type"
        )
    if model is None:
        model, remarks = named_model(str(fields.text(MODEL)), fields.file, f"--{MODEL}", register_path)
        notes += remarks
    frozen = frozen_vision(model, notes, freezes=switch(fields, "freeze_vit", default=True))
    zero = _deepspeed(fields)
    sharding = _sharding(fields, zero, model, accelerate)
    zero = started_deepspeed(zero, fields, accelerate)
    mbs, shared = count(fields, MBS, 1), count(fields, "sequence_parallel_size", 1)
    stated = fields.raw(ACCUMULATION) is not None
    accumulation = count(fields, ACCUMULATION) if stated else max(1, math.ceil(_BATCH / mbs / (world or ASSUMED_RANKS)))
    liger = switch(fields, "use_liger_kernel")
    return TrainerJob(
        file=fields.file,
        launcher=NAME,
        model=model,
        sharding=sharding,
        mbs=mbs,
        accumulation=accumulation,
        seq_length=_length(fields, loss, notes),
        length=length_of(fields),
        recomputes=switch(fields, CHECKPOINTS, default=True) or sharding.checkpoints,
        optimizer=optimizer_of(fields, "optim", USUAL),
        usual_optimizer=not fields.has("optim"),
        world=world,
        context=_context(model, shared, fields),
        loaded_bytes=loaded_bytes(fields, "torch_dtype", default="bfloat16"),
        compute_bytes=2,
        pairs=loss == _PAIRS,
        fused_loss=liger,
        fused_elements=liger,
        eager_attention=attends_eagerly(fields, "attn_impl"),
        compiled=switch(fields, "torch_compile"),
        adapters=_adapters(fields) if tuner == "lora" else None,
        frozen=frozen,
        stated_batch=None if zero is None else zero.whole("train_batch_size"),
        misfits=misfits_of((*TRAINER_CHECKS, *MATCHES, *DEEPSPEED_CHECKS), keys_with(of_mapping(fields.data), zero)),
        notes=tuple(notes),
        unmodelled=(
            *unmodelled_keys(table(), dict(fields.data), ["@experts"] if model.moe else ()),
            *_beside(fields, loss),
        ),
    )


def table() -> FlagTable:
    """Meaning of every option: ms-swift's own and those of Hugging Face's Trainer."""
    own = load_flag_table("taylor.parsers.swift", "trainer.yaml")
    theirs = load_flag_table("taylor.parsers.trainer_script", "options.yaml")
    return FlagTable(own.launcher, {**theirs.rows, **own.rows})


def _refuse_other_jobs(fields: Fields, loss: str) -> str:
    """Refuse what is not modelled; returns the kind of training, ``full`` or ``lora``.

    Raises
    ------
    InputError
        With the option.
    """
    if not fields.has(MODEL):
        raise fields.error(
            MODEL, "is missing", cure="write --model with the model's name at Hugging Face, or its folder"
        )
    name = "train_type" if fields.has("train_type") else "tuner_type"
    tuner = str(fields.text(name, default="lora"))
    if tuner not in ("full", "lora"):
        near = likely_meant(tuner, ("full", "lora"))
        why = "trains a part of the model that is not modelled" if near is None else "is none of ms-swift's"
        raise fields.error(name, why, shortened(tuner, 40), f"write --{name} {near or 'full or lora'}")
    if loss not in ("", _PAIRS, _ROLLED_OUT):
        why = f"{OTHER_LOSSES[loss]}, which is not modelled" if loss in OTHER_LOSSES else "is none of ms-swift's"
        raise fields.error("rlhf_type", why, shortened(loss, 40), "write --rlhf_type dpo or grpo, or plan swift sft")
    task = str(fields.text("task_type", default="causal_lm"))
    if task != "causal_lm":
        why = "ends in another head than the language model's, which is not modelled"
        raise fields.error("task_type", why, shortened(task, 40), "write --task_type causal_lm")
    for option, why in _OTHERS.items():
        if str(fields.raw(option) or "false").lower() not in ("false", "0", "none"):
            raise refuse(fields, option, why, f"leave --{option} out")
    for option in _FROZEN:
        if tuner == "full" and fields.has(option) and str(fields.raw(option)) not in ("0", "0.0"):
            why = "freezes a part of the parameters, which is read of megatron sft alone"
            raise refuse(fields, option, why, f"leave --{option} out to plan the training of all weights")
    return tuner


def _adapters(fields: Fields) -> Adapters:
    """LoRA by peft (swift/pipelines/train/tuner.py:92-118, 174-206): all linear modules but the head, unless named."""
    if fields.has("target_regex"):
        why = "names modules by a pattern, which is not read"
        raise refuse(fields, "target_regex", why, "name the modules by --target_modules")
    stated = fields.raw("quant_bits") not in (None, "0", 0)
    bits = count(fields, "quant_bits") if stated else bits_named(str(fields.raw(MODEL)))
    if fields.raw("lora_dropout") is None:
        fields = Fields({**fields.data, "lora_dropout": 0.05}, fields.file, fields.prefix, fields.asked)
    return low_rank(
        fields,
        rank_of(fields, "lora_rank", 8),
        "target_modules",
        "lora_dropout",
        bits=bits,
        bits_by="quant_bits",
        usual=ALL_HUGGING_FACE,
        saved="modules_to_save",
        decomposed="use_dora",
    )


def _deepspeed(fields: Fields) -> DeepSpeedConfig | None:
    """DeepSpeed's configuration: a preset by its name, JSON, or the path of a file (sft_args.py:251-271)."""
    written = fields.raw("deepspeed")
    if written in (None, "", False):
        return None
    preset = PRESETS.get(str(written))
    read: Any = written
    if preset is not None:
        automatic = {"enabled": "auto"}
        read = {"zero_optimization": {**preset, "overlap_comm": False, "contiguous_gradients": True},
                "bf16": automatic, "fp16": automatic}  # fmt: skip
    elif str(written).lstrip().startswith("{"):
        try:
            read = json.loads(str(written))
        except (ValueError, RecursionError):
            raise fields.error("deepspeed", "is not valid JSON", shortened(str(written), 60)) from None
    elif isinstance(written, str) and not re.search(r"[./]", written):
        near = likely_meant(written, list(PRESETS))
        cure = f"write {near}" if near else f"write one of {', '.join(PRESETS)}, or the path of a JSON file"
        raise fields.error("deepspeed", "is no configuration of ms-swift's", shortened(written, 60), cure)
    group = fields.raw("zero_hpz_partition_size")
    if group is not None and isinstance(read, Mapping):
        section = {
            **read.get("zero_optimization", {}),
            "zero_hpz_partition_size": count(fields, "zero_hpz_partition_size"),
        }
        read = {**read, "zero_optimization": section}
    return DeepSpeedConfig.read(read, fields.file, "deepspeed")


def _sharding(
    fields: Fields, zero: DeepSpeedConfig | None, model: ModelSpec, accelerate: Accelerate | None
) -> Sharding:
    written = fields.raw("fsdp")
    if written in (None, "", False):
        if zero is not None:
            return zero.sharding(model.hidden, total_parameters(model))
        return Sharding(DDP) if accelerate is None else accelerate.sharding(model, total_parameters(model))
    if zero is not None:
        cure = "leave --fsdp or --deepspeed out"
        raise fields.error("fsdp", "does not start with DeepSpeed", shortened(str(written), 60), cure)
    if str(written) == "fsdp2":
        return read_fsdp(["full_shard", "auto_wrap"], Fields(FSDP2, fields.file, "fsdp_config"))
    file = DeepSpeedConfig.read(written, fields.file, "fsdp").fields
    words = str(file.raw("fsdp") or "full_shard auto_wrap").split()
    return read_fsdp(words, file.section("fsdp_config"), version=file.section("fsdp_config").raw("fsdp_version") or 2)


def _context(model: ModelSpec, ranks: int, fields: Fields) -> Context:
    """Ranks that share a sample: they exchange heads as far as these divide, and pass keys and values beyond.

    Raises
    ------
    InputError
        Where both are needed, which is not planned.
    """
    if ranks == 1:
        return Context()
    heads = model.n_kv_heads or model.n_heads
    by_heads = math.gcd(heads, ranks)
    if by_heads not in (1, ranks):
        why = f"exchanges the {heads} key-value heads over {by_heads} ranks and passes them round a ring of the others"
        cure = f"write --sequence_parallel_size {by_heads}"
        raise fields.error("sequence_parallel_size", why, ranks, cure)
    return Context(ranks, by_heads == ranks)


def _length(fields: Fields, loss: str, notes: list[str]) -> int:
    """Tokens of a sample at most, with the answer's where it is rolled out.

    Raises
    ------
    InputError
        When none is stated: samples are then as long as the model takes.
    """
    name = "packing_length" if fields.has("packing_length") and switch(fields, "packing") else LENGTH
    if not fields.has(name):
        why = "is not stated, and ms-swift then takes samples as long as the model can"
        raise fields.error(LENGTH, why, cure=f"write --{LENGTH} to plan its step")
    length = count(fields, name, high=MAX_SIZE)
    if loss != _ROLLED_OUT:
        return length
    answer = count(fields, "max_completion_length", 512, MAX_SIZE)
    notes.append(f"samples are as long as they can be: {length} tokens of prompt and {answer} of answer")
    return length + answer


def _beside(fields: Fields, loss: str) -> list[UnmodelledFlag]:
    """Work beside the predicted step, which no figure includes."""
    if loss != _ROLLED_OUT:
        return []
    why = "the update alone is predicted: roll-outs, rewards and a reference model run beside it"
    if str(fields.raw("vllm_mode")) == "server":
        why = "the update alone is predicted: rewards and a reference model run beside it, roll-outs elsewhere"
    return [UnmodelledFlag("--rlhf_type", loss, "more", "more", None, why)]


def _world(script: ShellScript, flags: Flags) -> int:
    """Ranks: torchrun's, or those of the variables that ms-swift's launcher passes on to it; else one.

    Raises
    ------
    InputError
        When one process sees several devices, over which it spreads the layers.
    """
    world = flags.world_size()
    if world is not None:
        return world
    if "accelerate" in flags.start.programs:
        problem = "takes its ranks and sharding from a configuration of accelerate that is not found"
        cure = "put the YAML that --config_file names beside the script, or start it by swift or torchrun"
        raise InputError(problem, file=script.file, cure=cure)
    each = _number(script, _WHERE) or 1
    for name in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        seen = script.variable(name)
        text = "" if seen is None or not seen.words else seen.words[0].text
        devices = text.count(",") + 1
        # swift/utils/env.py:64-75 (``is_mp``): as many devices as make two or more for each process.
        if re.fullmatch(r"\d{1,3}(?:,\d{1,3}){1,1023}", text) and devices // each > 1:
            spread = devices // each
            problem = f"starts processes that spread the layers over {spread} devices each, which is not planned"
            cure = f"write {_WHERE}={devices} before the command"
            raise InputError(problem, file=script.file, field=name, value=text, cure=cure)
    return each * (_number(script, "NNODES") or 1)


def _number(script: ShellScript, name: str) -> int | None:
    value = script.variable(name)
    text = "" if value is None or not value.words else value.words[0].text
    if not text:
        return None
    if not re.fullmatch(r"\d{1,6}", text) or not int(text):
        problem = "is known only when the job starts" if "$" in text else "must be a whole number from 1"
        cure = f"give --env {name}=NUMBER"
        raise InputError(problem, file=script.file, field=name, value=text, cure=cure)
    return int(text)
