"""axolotl's start-up checks of precision, sharding, batch, recompute and adapters.

Source: axolotl-ai-cloud/axolotl 067b021c src/axolotl/utils/schemas/. Its check of tensor parallelism with 8-bit
optimizers (validation.py:1776) belongs to a class that no schema takes in, and is never made. What the Trainer checks
comes last, by axolotl's names of its options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from taylor.parsers.start_rules import KeyRule, Keys, is_on, of_mapping, whole
from taylor.parsers.trainer.start_rules import DEEPSPEED_CHECKS, MATCHES, TRAINER_CHECKS

_SCHEMAS = "axolotl 067b021c src/axolotl/utils/schemas"
_LOW_RANK = ("lora", "qlora")
_LEFT_OUT = {"one-half-type", "fsdp-without-deepspeed"}
"""Checks of the Trainer's that axolotl forestalls: it leaves fp16 out beside bf16, and has one of its own for FSDP."""
_OF_TRAINER = {"deepspeed-micro-batch-as-stated", "deepspeed-accumulation-as-stated", "deepspeed-clipping-as-stated"}
ACCUMULATION, _HANDED_ON = "gradient_accumulation_steps", "accumulation that is handed on"
_BATCH = ("micro_batch_size", ACCUMULATION, "batch_size")
_FLASH = ("flash_attention_2", "flash_attention_3")
_LORA_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")


def _rule(
    name: str, field: str, broken: Callable[[Keys], bool], problem: str, cure: str, place: str, **settings: Any
) -> KeyRule:
    return KeyRule(name, field, broken, problem, cure, f"{_SCHEMAS}/{place}", **settings)


def fsdp_version(keys: Keys) -> str:
    """Version of FSDP: at the top, else in its section by either name; the first by default (validation.py:1107)."""
    names = ("fsdp_version", "fsdp_config.version", "fsdp_config.fsdp_version")
    return str(next((keys(name) for name in names if keys(name)), 1))


def accumulation(stated: Mapping[str, Any]) -> int:
    """Micro-batches of a step on one rank.

    ``batch_size`` counts only where the key is there and empty: where it is missing, the schema's default of one comes
    first (training.py:71, utils/config/__init__.py:202).
    """
    keys = of_mapping(stated)
    if ACCUMULATION not in stated:
        return 1
    from_batch = whole(keys, "batch_size", 0) // max(1, whole(keys, "micro_batch_size", 1))
    return whole(keys, ACCUMULATION, 0) or max(1, from_batch)


def keys_of(stated: Mapping[str, Any]) -> Keys:
    """Keys of a file, with the accumulation that axolotl hands on."""
    return of_mapping({**stated, _HANDED_ON: accumulation(stated)})


def _optimizer(keys: Keys) -> str:
    return str(keys("optimizer") or "")


def _context(keys: Keys) -> int:
    written = keys("context_parallel_size") or keys("sequence_parallel_degree")
    return written if isinstance(written, int) else 1


def _flash(keys: Keys) -> bool:
    return is_on(keys("flash_attention")) or str(keys("attn_implementation")) in _FLASH


def _model(keys: Keys) -> str:
    return str(keys("base_model")).lower()


def _of_axolotl(rule: KeyRule) -> KeyRule:
    """A check of the Trainer's, of the options that axolotl hands on."""

    def broken(keys: Keys) -> bool:
        handed: dict[str, Callable[[], Any]] = {
            "per_device_train_batch_size": lambda: keys("micro_batch_size"),
            "gradient_accumulation_steps": lambda: keys(_HANDED_ON),
        }
        return rule.broken(lambda key: handed[key]() if key in handed else keys(key))

    return KeyRule(rule.name, rule.field, broken, rule.problem, rule.cure, rule.source, rule.any_strategy)


START_RULES = (
    _rule(
        "two-of-batch",
        "gradient_accumulation_steps",
        lambda keys: sum(bool(keys(name)) for name in _BATCH) < 2,
        "is missing: two of micro_batch_size, gradient_accumulation_steps and batch_size are needed",
        "write it",
        "validation.py:225",
    ),
    _rule(
        "accumulation-or-batch",
        "batch_size",
        lambda keys: bool(keys("gradient_accumulation_steps")) and bool(keys("batch_size")),
        "stands beside gradient_accumulation_steps",
        "leave one of the two out",
        "validation.py:276",
    ),
    _rule(
        "fsdp-without-deepspeed",
        "fsdp",
        lambda keys: bool(keys("deepspeed")) and bool(keys("fsdp")),
        "does not go with deepspeed",
        "leave one of the two out",
        "validation.py:1228",
    ),
    _rule(
        "muon-without-deepspeed",
        "optimizer",
        lambda keys: _optimizer(keys) == "muon" and bool(keys("deepspeed")),
        "does not go with deepspeed",
        "write another optimizer, or FSDP's second version",
        "validation.py:894",
    ),
    _rule(
        "muon-needs-fsdp-2",
        "optimizer",
        lambda keys: (
            _optimizer(keys) == "muon" and bool(keys("fsdp") or keys("fsdp_config")) and fsdp_version(keys) != "2"
        ),
        "does not go with the first version of FSDP",
        "write fsdp_version: 2",
        "validation.py:900",
    ),
    _rule(
        "fsdp-1-offload-without-8-bit-optimizer",
        "optimizer",
        lambda keys: (
            "8bit" in _optimizer(keys)
            and fsdp_version(keys) != "2"
            and is_on(keys("fsdp_config.offload_params") or keys("fsdp_config.fsdp_offload_params"))
        ),
        "does not go with offload_params",
        "write adamw_torch_fused, or fsdp_version: 2",
        "validation.py:1136",
    ),
    _rule(
        "fsdp-2-without-bitsandbytes-adam",
        "optimizer",
        lambda keys: (
            _optimizer(keys) in ("adamw_8bit", "adamw_bnb_8bit")
            and bool(keys("fsdp_config"))
            and fsdp_version(keys) == "2"
        ),
        "does not go with the second version of FSDP",
        "write adamw_torch_8bit",
        "validation.py:1150",
    ),
    _rule(
        "context-needs-flash-attention",
        "context_parallel_size",
        lambda keys: _context(keys) > 1 and not _flash(keys) and not is_on(keys("use_glm_dsa_kernels")),
        "needs flash attention",
        "write attn_implementation: flash_attention_2",
        "validation.py:1654",
        any_strategy=False,
    ),
    _rule(
        "packed-context-has-one-sample",
        "micro_batch_size",
        lambda keys: _context(keys) > 1 and is_on(keys("sample_packing")) and (keys("micro_batch_size") or 1) != 1,
        "must be 1 where samples are packed and split over context_parallel_size",
        "write micro_batch_size: 1",
        "validation.py:1660",
        any_strategy=False,
    ),
    _rule(
        "falcon-without-fsdp",
        "fsdp",
        lambda keys: "falcon" in _model(keys) and bool(keys("fsdp")),
        "does not go with falcon models",
        "take DeepSpeed",
        "validation.py:1399",
    ),
    _rule(
        "mpt-without-recompute",
        "gradient_checkpointing",
        lambda keys: "mpt" in _model(keys) and is_on(keys("gradient_checkpointing")),
        "does not go with MPT models",
        "leave gradient_checkpointing out",
        "validation.py:1407",
    ),
    _rule(
        "nemotron-h-recompute-needs-packing",
        "gradient_checkpointing",
        lambda keys: (
            "nemotron-h" in _model(keys) and is_on(keys("gradient_checkpointing")) and not is_on(keys("sample_packing"))
        ),
        "needs sample_packing for Nemotron-H",
        "write sample_packing: true",
        "validation.py:1418",
    ),
    _rule(
        "activation-offload-needs-recompute",
        "activation_offloading",
        lambda keys: is_on(keys("activation_offloading")) and not is_on(keys("gradient_checkpointing")),
        "needs gradient_checkpointing",
        "write gradient_checkpointing: true",
        "validation.py:1447",
    ),
    _rule(
        "selective-recompute-needs-recompute",
        "selective_checkpointing",
        lambda keys: bool(keys("selective_checkpointing")) and not is_on(keys("gradient_checkpointing")),
        "needs gradient_checkpointing",
        "write gradient_checkpointing: true",
        "validation.py:1460",
    ),
    _rule(
        "selective-recompute-without-reentry",
        "gradient_checkpointing_kwargs.use_reentrant",
        lambda keys: (
            bool(keys("selective_checkpointing")) and is_on(keys("gradient_checkpointing_kwargs.use_reentrant"))
        ),
        "does not go with selective_checkpointing",
        "write use_reentrant: false",
        "validation.py:1462",
    ),
    _rule(
        "bits-need-an-adapter",
        "load_in_4bit",
        lambda keys: (
            not keys("adapter")
            and not keys("inference")
            and (is_on(keys("load_in_4bit")) or is_on(keys("load_in_8bit")))
        ),
        "quantizes weights, of which none trains without an adapter",
        "write adapter: qlora, or leave load_in_4bit and load_in_8bit out",
        "peft.py:185",
    ),
    _rule(
        "qlora-in-4-bits",
        "load_in_4bit",
        lambda keys: (
            keys("adapter") == "qlora"
            and not keys("merge_lora")
            and (not is_on(keys("load_in_4bit")) or is_on(keys("load_in_8bit")) or bool(keys("gptq")))
        ),
        "must be true for adapter: qlora, without load_in_8bit and gptq",
        "write load_in_4bit: true",
        "peft.py:216-223",
    ),
    _rule(
        "lora-without-fused-mlp",
        "flash_attn_fuse_mlp",
        lambda keys: keys("adapter") in _LOW_RANK and bool(keys("flash_attn_fuse_mlp")),
        "does not go with LoRA",
        "leave it out",
        "validation.py:617",
    ),
    _rule(
        "lora-kernels-without-8-bits",
        "load_in_8bit",
        lambda keys: (
            keys("adapter") == "lora"
            and is_on(keys("load_in_8bit"))
            and any(is_on(keys(name)) for name in _LORA_KERNELS)
        ),
        "does not go with lora_mlp_kernel, lora_qkv_kernel and lora_o_kernel",
        "leave the kernels out",
        "validation.py:655",
    ),
    _rule(
        "pairs-without-packing",
        "sample_packing",
        lambda keys: is_on(keys("sample_packing")) and bool(keys("rl")),
        "does not go with rl",
        "write sample_packing: false",
        "validation.py:690",
    ),
    *(rule for rule in TRAINER_CHECKS if rule.name not in _LEFT_OUT),
    *(_of_axolotl(rule) for rule in MATCHES if rule.name in _OF_TRAINER),
    *DEEPSPEED_CHECKS,
)
