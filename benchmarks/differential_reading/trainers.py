"""The fields of LLaMA-Factory's and axolotl's YAMLs, over the defaults of their own classes.

Sources: hiyouga/LLaMA-Factory ff6d4d12, axolotl-ai-cloud/axolotl 067b021c, by file and line; what they leave to
Hugging Face's Trainer: transformers v4.57.1 src/transformers/training_args.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.differential_reading.checkout import class_defaults, product_of, quotient, targets
from benchmarks.differential_reading.reading import NothingToRead, Reading, Value, settled, whole

_TRAINER = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "bf16": False,
    "fp16": False,
    "deepspeed": None,
}
"""transformers v4.57.1 src/transformers/training_args.py, ``TrainingArguments``."""
_ON = ("true", "auto", "full", "yes", "1")


def _mapping(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NothingToRead(f"is no YAML: {type(error).__name__}") from None
    if not isinstance(data, dict):
        raise NothingToRead("is no training file")
    return data


def _over_defaults(stated: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """What a file states over defaults; an empty key has the default."""
    return {**defaults, **{name: each for name, each in stated.items() if each is not None}}


def _zero_stage(deepspeed: Any, root: Path) -> int | None:
    """ZeRO stage of DeepSpeed's configuration, which is a mapping or the path of a JSON from the checkout's root."""
    if isinstance(deepspeed, str):
        try:
            deepspeed = json.loads((root / deepspeed).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
    section = deepspeed.get("zero_optimization") if isinstance(deepspeed, dict) else None
    return whole(section.get("stage", 0)) if isinstance(section, dict) else 0


def _is_on(value: Any) -> bool:
    return str(value).lower() in _ON


# ---- LLaMA-Factory -------------------------------------------------------------------------------

_HPARAMS = ("data_args.py", "finetuning_args.py", "model_args.py", "training_args.py")


def read_llamafactory(path: Path, root: Path) -> list[Reading]:
    """The fields of a file of either generation.

    Raises
    ------
    NothingToRead
        When it trains nothing.
    """
    stated = _mapping(path)
    if "model" in stated and "train_dataset" in stated:
        return [_second_generation(stated, root)]
    if "model_name_or_path" not in stated or not stated.get("do_train"):
        raise NothingToRead("trains nothing")
    defaults = class_defaults(root / "src/llamafactory/hparams", _HPARAMS)
    of = _over_defaults(stated, {**_TRAINER, **defaults})
    lora = of["finetuning_type"] == "lora"
    started = re.search(r"--config[_-]file[ =]+(\S+\.ya?ml)", path.read_text(encoding="utf-8"))
    fsdp = of.get("fsdp") or of.get("fsdp_config")
    zero = _zero_stage(of["deepspeed"], root) if of["deepspeed"] else None if started or fsdp else 0
    values: dict[str, Value | None] = {
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "mbs": whole(of["per_device_train_batch_size"]),
        "accumulation": whole(of["gradient_accumulation_steps"]),
        "sequence": whole(of["cutoff_len"]),
        # src/llamafactory/model/model_utils/checkpointing.py: every layer, unless it is switched off.
        "recompute": "none" if of.get("disable_gradient_checkpointing") else "full",
        # src/llamafactory/hparams/parser.py:640-643.
        "compute_bytes": 2 if of["bf16"] or of["pure_bf16"] or of["fp16"] else 4,
        "zero": zero,
        "adapter_rank": whole(of["lora_rank"]) if lora else 0,
        "adapter_targets": targets(of["lora_target"]) if lora else None,
    }
    if started and not of["deepspeed"] and not fsdp:
        values |= _accelerate(root / started[1])
    return [settled(values)]


def _accelerate(path: Path) -> dict[str, Value | None]:
    """Ranks and sharding of the configuration with which a comment says the file is started."""
    try:
        data = _mapping(path)
    except OSError:
        return {}
    ranks, kind = whole(data.get("num_processes")), str(data.get("distributed_type"))
    fsdp = data.get("fsdp_config") or {}
    shards = str(fsdp.get("fsdp_sharding_strategy", "FULL_SHARD")) != "NO_SHARD"
    return {"ranks": ranks, "dp": ranks, "zero": (3 if shards else 0) if kind == "FSDP" else None}


def _second_generation(stated: Mapping[str, Any], root: Path) -> Reading:
    """src/llamafactory/v1/config/training_args.py; plugins/model_plugins/peft.py:33-54 (LoRA's defaults)."""
    of = _over_defaults(stated, class_defaults(root / "src/llamafactory/v1/config", ("training_args.py",)))
    plugin = class_defaults(root / "src/llamafactory/v1/plugins/model_plugins", ("peft.py",))
    dist, peft = of.get("dist_config") or {}, of.get("peft_config") or {}
    lora = {**plugin, **peft} if peft.get("name") == "lora" else {}
    name = str(dist.get("name", "ddp")).lower()
    zero = {"ddp": 0, "fsdp2": 3}.get(name)
    if name == "deepspeed":
        zero = _zero_stage(dist.get("config_file"), root)
    return settled(
        {
            "tp": 1,
            "pp": 1,
            "cp": whole(of["cp_size"]),
            "mbs": whole(of["micro_batch_size"]),
            "batch": whole(of.get("global_batch_size")),
            "accumulation": None if of.get("global_batch_size") else 1,
            "sequence": whole(of["cutoff_len"]),
            "recompute": "full" if of["enable_activation_checkpointing"] else "none",
            "compute_bytes": 2 if of["bf16"] else 4,
            "zero": zero,
            "adapter_rank": whole(lora["r"]) if lora else 0,
            "adapter_targets": targets(lora["target_modules"]) if lora else None,
        }
    )


# ---- axolotl -------------------------------------------------------------------------------------

_SCHEMAS = ("config.py", "training.py", "peft.py", "model.py")


def read_axolotl(path: Path, root: Path) -> list[Reading]:
    """The fields of a training file.

    Raises
    ------
    NothingToRead
        When it is none.
    """
    stated = _mapping(path)
    if "base_model" not in stated:
        raise NothingToRead("is no training file")
    defaults = class_defaults(root / "src/axolotl/utils/schemas", _SCHEMAS)
    # A key that is there and empty is None, whatever the default (model_dump, exclude_none).
    of = {**defaults, **stated}
    mbs = whole(of.get("micro_batch_size") or 1)
    # src/axolotl/utils/config/__init__.py:202; the default of the first is 1 (utils/schemas/training.py:71).
    accumulation = whole(of.get("gradient_accumulation_steps") or 0) or quotient(whole(of.get("batch_size")), mbs)
    tp, cp = whole(of.get("tensor_parallel_size") or 1), _context(of)
    shard, copies = whole(of.get("dp_shard_size")), whole(of.get("dp_replicate_size") or 1)
    ranks = product_of(shard, copies, tp, cp) if shard else None
    fsdp, stage = of.get("fsdp_config") or {}, None
    if of.get("deepspeed"):
        stage = _zero_stage(of["deepspeed"], root)
    elif not of.get("fsdp") and not fsdp:
        stage = None if shard and shard > 1 else 0
    else:
        words = of.get("fsdp") if isinstance(of.get("fsdp"), list) else str(of.get("fsdp")).split()
        stage = 0 if "no_shard" in map(str, words or ()) or "NO_SHARD" in map(str, fsdp.values()) else 3
    recomputes = of.get("gradient_checkpointing") or fsdp.get("activation_checkpointing")
    recomputes = recomputes or fsdp.get("fsdp_activation_checkpointing")
    adapter = str(of.get("adapter") or "").lower()
    values: dict[str, Value | None] = {
        "tp": tp,
        "pp": 1,
        "cp": cp,
        "ranks": ranks,
        "dp": quotient(ranks, tp, cp),
        "mbs": mbs,
        "accumulation": accumulation,
        "sequence": whole(of["sequence_len"]),
        "recompute": "full" if recomputes else "none",
        "compute_bytes": _axolotl_type(of),
        "zero": stage,
        "adapter_rank": whole(of.get("lora_r")) if adapter in ("lora", "qlora") else 0 if not adapter else None,
        "adapter_targets": _axolotl_targets(of) if adapter in ("lora", "qlora") else None,
    }
    return [settled(values)]


def _context(of: Mapping[str, Any]) -> int | None:
    return whole(of.get("context_parallel_size") or of.get("sequence_parallel_degree") or 1)


def _axolotl_type(of: Mapping[str, Any]) -> int:
    """Bytes of a GEMM's numbers, on a device that has bf16 (src/axolotl/utils/config/__init__.py:157-196)."""
    return 2 if any(_is_on(of.get(name)) for name in ("bf16", "bfloat16", "fp16", "float16")) else 4


def _axolotl_targets(of: Mapping[str, Any]) -> str | None:
    """Modules that are named, and all linear ones beside them (src/axolotl/loaders/adapter.py:174-182)."""
    return targets("all") if of.get("lora_target_linear") else targets(of.get("lora_target_modules"))
