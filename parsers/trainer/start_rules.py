"""Start-up checks of Hugging Face's Trainer and of DeepSpeed, over a training file's settings and DeepSpeed's JSON.

The checks of precision, sharding, recompute and batch are here; those of data, evaluation and checkpoints are not, for
no plan depends on them.
"""

from __future__ import annotations

from typing import Any

from taylor.parsers.start_rules import KeyRule, Keys, is_on, of_mapping
from taylor.parsers.trainer.deepspeed import AUTO, DeepSpeedConfig
from taylor.parsers.trainer.settings import fsdp_words

_TRAINER = "transformers v4.57.1 src/transformers"
_DEEPSPEED = "DeepSpeed edaa7221 deepspeed/runtime"
BELOW = "deepspeed."
"""Beginning of the keys of DeepSpeed's JSON (`keys_with`)."""


def keys_with(keys: Keys, zero: DeepSpeedConfig | None) -> Keys:
    """Keys of a training file, with DeepSpeed's JSON below ``deepspeed``."""
    of_json = of_mapping({} if zero is None else zero.fields.data)
    return lambda key: of_json(key.removeprefix(BELOW)) if key.startswith(BELOW) else keys(key)


def _words(keys: Keys) -> set[str]:
    return {word.lower() for word in fsdp_words(keys("fsdp"))}


def stage(keys: Keys) -> int:
    """Stage of ZeRO; 0 where no JSON states one."""
    written = keys("deepspeed.zero_optimization.stage")
    return written if isinstance(written, int) and not isinstance(written, bool) else 0


def _enabled(keys: Keys, name: str) -> bool:
    return keys(f"deepspeed.{name}.enabled") is True


def _differs(key: str, own: str, usual: Any) -> Any:
    """Whether the JSON states a value that is not the trainer's own (deepspeed.py:46-70, ``fill_match``)."""

    def broken(keys: Keys) -> bool:
        written, stated = keys(f"deepspeed.{key}"), keys(own)
        return written not in (None, AUTO) and _number(written) != _number(usual if stated is None else stated)

    return broken


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _precision_differs(name: str) -> Any:
    def broken(keys: Keys) -> bool:
        written = keys(f"deepspeed.{name}.enabled")
        return isinstance(written, bool) and written != (is_on(keys(name)) or is_on(keys(f"{name}_full_eval")))

    return broken


def _mismatch(name: str, key: str, own: str, broken: Any, *, any_strategy: bool = True) -> KeyRule:
    return KeyRule(
        f"deepspeed-{name}-as-stated",
        f"deepspeed.{key}",
        broken,
        f"is not the file's {own}",
        "write auto in DeepSpeed's JSON, or the same value in both",
        f"{_TRAINER}/integrations/deepspeed.py:271",
        any_strategy,
    )


MATCHES = (
    _mismatch(
        "micro-batch",
        "train_micro_batch_size_per_gpu",
        "per_device_train_batch_size",
        _differs("train_micro_batch_size_per_gpu", "per_device_train_batch_size", 8),
        any_strategy=False,
    ),
    _mismatch(
        "accumulation",
        "gradient_accumulation_steps",
        "gradient_accumulation_steps",
        _differs("gradient_accumulation_steps", "gradient_accumulation_steps", 1),
        any_strategy=False,
    ),
    _mismatch("fp16", "fp16.enabled", "fp16", _precision_differs("fp16")),
    _mismatch("bf16", "bf16.enabled", "bf16", _precision_differs("bf16")),
    _mismatch("clipping", "gradient_clipping", "max_grad_norm", _differs("gradient_clipping", "max_grad_norm", 1.0)),
)
"""Values of the JSON that the Trainer compares with its own options (deepspeed.py:74-138)."""

DEEPSPEED_CHECKS = (
    KeyRule(
        "deepspeed-one-half-type",
        "deepspeed.bf16.enabled",
        lambda keys: _enabled(keys, "bf16") and _enabled(keys, "fp16"),
        "is on beside fp16.enabled",
        "switch one of the two off in DeepSpeed's JSON",
        f"{_DEEPSPEED}/config.py:827",
    ),
    KeyRule(
        "deepspeed-partial-offload-in-stage-3",
        "deepspeed.zero_optimization.offload_optimizer.ratio",
        lambda keys: (
            isinstance(keys("deepspeed.zero_optimization.offload_optimizer.ratio"), (int, float))
            and keys("deepspeed.zero_optimization.offload_optimizer.ratio") < 1
            and stage(keys) != 3
        ),
        "is below 1, which ZeRO's stage 3 alone knows",
        "write 1.0, or stage 3",
        f"{_DEEPSPEED}/zero/config.py:392",
    ),
    KeyRule(
        "deepspeed-sum-without-stage-3",
        "deepspeed.gradient_allreduce_op",
        lambda keys: keys("deepspeed.gradient_allreduce_op") == "sum" and stage(keys) == 3,
        "does not go with ZeRO's stage 3",
        "write mean, or a lower stage",
        f"{_DEEPSPEED}/config.py:1031",
    ),
    *(
        KeyRule(
            f"deepspeed-{name.replace('_', '-')}-needs-zero",
            f"deepspeed.{half}.{name}",
            lambda keys, half=half, name=name: (  # type: ignore[misc]
                _enabled(keys, half) and keys(f"deepspeed.{half}.{name}") is True and stage(keys) == 0
            ),
            "needs ZeRO's stage 1, 2 or 3",
            "write a stage",
            f"{_DEEPSPEED}/config.py:{line}",
        )
        for half, name, line in (
            ("fp16", "fp16_master_weights_and_grads", 1038),
            ("bf16", "bf16_master_weights_and_grads", 1042),
        )
    ),
)
"""DeepSpeed's own checks of its JSON."""

TRAINER_CHECKS = (
    KeyRule(
        "one-half-type",
        "fp16",
        lambda keys: is_on(keys("fp16")) and is_on(keys("bf16")),
        "is on beside bf16",
        "leave one of the two out",
        f"{_TRAINER}/training_args.py:1750",
    ),
    KeyRule(
        "fsdp-without-deepspeed",
        "fsdp",
        lambda keys: bool(_words(keys)) and is_on(keys("deepspeed")),
        "does not go with deepspeed",
        "leave one of the two out",
        f"{_TRAINER}/trainer.py:574",
    ),
    KeyRule(
        "fsdp-offload-with-shards",
        "fsdp",
        lambda keys: _words(keys) == {"offload"},
        "offloads and does not say how to shard",
        "add full_shard or shard_grad_op",
        f"{_TRAINER}/training_args.py:1923",
    ),
    KeyRule(
        "fsdp-one-sharding",
        "fsdp",
        lambda keys: {"full_shard", "shard_grad_op"} <= _words(keys),
        "names two ways to shard",
        "write full_shard or shard_grad_op",
        f"{_TRAINER}/training_args.py:1928",
    ),
    KeyRule(
        "one-recompute",
        "fsdp_config.activation_checkpointing",
        lambda keys: (
            bool(_words(keys))
            and any(is_on(keys(f"fsdp_config.{prefix}activation_checkpointing")) for prefix in ("", "fsdp_"))
            and is_on(keys("gradient_checkpointing"))
        ),
        "is on beside gradient_checkpointing",
        "leave one of the two out",
        f"{_TRAINER}/trainer.py:5531",
    ),
)
"""The Trainer's checks of its options."""
