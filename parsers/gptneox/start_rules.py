"""gpt-neox's start-up checks of model, precision, ZeRO and batch, and those of DeepSpeed's pipeline.

Source: EleutherAI/gpt-neox ea7aefd8 megatron/neox_arguments/arguments.py. The batch, the whole number of replicas and
the model's heads are read as they are checked (`taylor.parsers.gptneox`), and two half types end at its own check of
precision, before DeepSpeed's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from taylor.parsers.start_rules import KeyRule, Keys, is_on, whole
from taylor.parsers.trainer.start_rules import BELOW, DEEPSPEED_CHECKS

_ARGUMENTS = "gpt-neox ea7aefd8 megatron/neox_arguments/arguments.py"
_WORDS = {"fp16": "fp16", "bf16": "bfloat16"}


def _stage(keys: Keys) -> int:
    return whole(keys, "zero_optimization.stage", 0)


def _kinds(keys: Keys) -> set[str]:
    """Kinds of attention that the file names (neox_args.py, ``attention_config``)."""
    written = keys("attention_config")
    found: set[str] = set()
    for part in written if isinstance(written, list) else []:
        kinds = part[0] if isinstance(part, list) and part else part
        found |= {str(kind) for kind in (kinds if isinstance(kinds, list) else [kinds])}
    return found or {"global"}


def _grouped(keys: Keys) -> bool:
    groups, heads = whole(keys, "num_kv_heads", 0), whole(keys, "num_attention_heads", 0)
    return 0 < groups < heads


def _rule(
    name: str,
    field: str,
    broken: Callable[[Keys], bool],
    problem: str,
    cure: str,
    line: int,
    *,
    any_strategy: bool = True,
) -> KeyRule:
    return KeyRule(name, field, broken, problem, cure, f"{_ARGUMENTS}:{line}", any_strategy)


def _precision(keys: Keys) -> str | None:
    """The precision that is stated, else fp16 by its own section (972), which is asked before that of bf16."""
    stated = keys("precision")
    return "fp16" if stated is None and is_on(keys("fp16.enabled")) else stated


def _conflict(half: str) -> Callable[[Keys], bool]:
    return lambda keys: is_on(keys(f"{half}.enabled")) and _precision(keys) not in (None, _WORDS[half])


def _of_file(rule: KeyRule) -> KeyRule:
    """A check of DeepSpeed's, whose keys stand at the top of gpt-neox's files."""
    return replace(rule, field=rule.field.removeprefix(BELOW), broken=lambda keys: rule.broken(_at_the_top(keys)))


def _at_the_top(keys: Keys) -> Keys:
    return lambda key: keys(key.removeprefix(BELOW))


START_RULES = (
    _rule("precision-as-in-fp16", "precision", _conflict("fp16"), "is not fp16, which is on", "write fp16", 972),
    _rule(
        "precision-as-in-bf16",
        "precision",
        _conflict("bf16"),
        "is not that of bf16, which is on",
        "write bfloat16",
        979,
    ),
    _rule(
        "experts-keep-gradients",
        "zero_optimization.stage",
        lambda keys: whole(keys, "moe_num_experts", 1) > 1 and _stage(keys) > 1,
        "does not go with experts above 1",
        "write stage 1",
        1089,
    ),
    _rule(
        "mamba-below-zero-3",
        "zero_optimization.stage",
        lambda keys: "mamba" in _kinds(keys) and _stage(keys) > 2,
        "does not go with Mamba above 2",
        "write stage 2",
        1111,
    ),
    _rule(
        "kv-groups-without-sparsity",
        "sparsity_config",
        lambda keys: _grouped(keys) and bool(keys("sparsity_config")),
        "does not go with fewer num_kv_heads",
        "leave it out",
        1139,
    ),
    _rule(
        "kv-groups-of-plain-attention",
        "attention_config",
        lambda keys: _grouped(keys) and not _kinds(keys) <= {"global", "flash"},
        "names another attention than global and flash, with fewer num_kv_heads",
        "write flash",
        1142,
    ),
    _rule(
        "sequence-in-positions",
        "max_position_embeddings",
        lambda keys: 0 < whole(keys, "max_position_embeddings", 0) < whole(keys, "seq_length", 0),
        "is below seq_length",
        "write at least seq_length",
        1265,
    ),
    _rule(
        "fp16-cross-entropy-in-fp16",
        "fp16_lm_cross_entropy",
        lambda keys: is_on(keys("fp16_lm_cross_entropy")) and _precision(keys) != "fp16",
        "needs precision fp16",
        "leave it out",
        1321,
    ),
    KeyRule(
        "gradients-whole-in-one-stage",
        "zero_optimization.stage",
        lambda keys: whole(keys, "pipe_parallel_size", 0) == 1 and _stage(keys) > 1,
        "does not go with DeepSpeed's pipeline, which pipe_parallel_size 1 starts too",
        "write stage 1, or pipe_parallel_size 0",
        "DeepSpeed edaa7221 deepspeed/runtime/pipe/engine.py:76",
        any_strategy=False,
    ),
    *(_of_file(rule) for rule in DEEPSPEED_CHECKS if rule.name != "deepspeed-one-half-type"),
)
