"""LLaMA-Factory's start-up checks beyond the Trainer's, of precision, sharding, recompute and what trains.

Source: hiyouga/LLaMA-Factory ff6d4d12 src/llamafactory/hparams/.
"""

from __future__ import annotations

from collections.abc import Callable

from taylor.parsers.start_rules import KeyRule, Keys, is_on
from taylor.parsers.trainer.start_rules import DEEPSPEED_CHECKS, MATCHES, TRAINER_CHECKS, stage

_HPARAMS = "LLaMA-Factory ff6d4d12 src/llamafactory/hparams"


def _kind(keys: Keys) -> str:
    return str(keys("finetuning_type") or "lora")


def _sft(keys: Keys) -> bool:
    return str(keys("stage") or "sft") == "sft"


def _positive(value: object) -> bool:
    return isinstance(value, int) and value > 0


def _rule(name: str, field: str, broken: Callable[[Keys], bool], problem: str, cure: str, place: str) -> KeyRule:
    return KeyRule(name, field, broken, problem, cure, f"{_HPARAMS}/{place}")


def _without_stage_3(name: str, line: int) -> KeyRule:
    return _rule(
        f"{name.replace('_', '-')}-without-zero-3",
        name,
        lambda keys: is_on(keys(name)) and stage(keys) == 3,
        "does not go with DeepSpeed's ZeRO-3",
        f"leave {name} out, or take another stage",
        f"parser.py:{line}",
    )


def _of_adapters(name: str, line: int) -> KeyRule:
    return _rule(
        f"{name.replace('_', '-')}-needs-lora",
        name,
        lambda keys: is_on(keys(name)) and _kind(keys) != "lora",
        "is for LoRA alone",
        f"leave {name} out, or write finetuning_type: lora",
        f"finetuning_args.py:{line}",
    )


def _of_sft(name: str, line: int) -> KeyRule:
    return _rule(
        f"{name.replace('_', '-')}-needs-sft",
        name,
        lambda keys: is_on(keys(name)) and not _sft(keys),
        "is for stage: sft alone",
        f"leave {name} out",
        f"parser.py:{line}",
    )


START_RULES = (
    *TRAINER_CHECKS,
    *MATCHES,
    *DEEPSPEED_CHECKS,
    _without_stage_3("pure_bf16", 503),
    _without_stage_3("use_unsloth", 533),
    _without_stage_3("predict_with_generate", 487),
    _without_stage_3("pissa_init", 496),
    _of_sft("predict_with_generate", 420),
    _of_sft("neat_packing", 423),
    _of_sft("train_on_prompt", 426),
    _of_sft("mask_history", 426),
    _of_adapters("loraplus_lr_ratio", 626),
    _of_adapters("use_rslora", 629),
    _of_adapters("use_dora", 632),
    _of_adapters("pissa_init", 635),
    _rule(
        "adapter-name-or-path-needs-lora",
        "adapter_name_or_path",
        lambda keys: is_on(keys("adapter_name_or_path")) and _kind(keys) != "lora",
        "is for LoRA alone",
        "leave adapter_name_or_path out, or write finetuning_type: lora",
        "parser.py:233",
    ),
    _rule(
        "fp8-without-quantization",
        "fp8",
        lambda keys: is_on(keys("fp8")) and keys("quantization_bit") is not None,
        "does not go with quantization_bit",
        "leave one of the two out",
        "parser.py:527",
    ),
    _rule(
        "whole-vocabulary-of-quantized-model",
        "resize_vocab",
        lambda keys: is_on(keys("resize_vocab")) and keys("quantization_bit") is not None,
        "does not go with quantization_bit",
        "leave one of the two out",
        "parser.py:243",
    ),
    _rule(
        "pissa-of-unquantized-model",
        "pissa_init",
        lambda keys: is_on(keys("pissa_init")) and keys("quantization_bit") is not None,
        "does not go with quantization_bit",
        "leave one of the two out",
        "parser.py:240",
    ),
    _rule(
        "streaming-states-steps",
        "max_steps",
        lambda keys: is_on(keys("streaming")) and not _positive(keys("max_steps")),
        "is missing beside streaming",
        "write max_steps",
        "parser.py:475",
    ),
    _rule(
        "training-has-data",
        "dataset",
        lambda keys: is_on(keys("do_train")) and keys("dataset") is None,
        "is missing",
        "write dataset",
        "parser.py:478",
    ),
)
"""By the program's own order of kinds: the Trainer's, DeepSpeed's, then these."""
