"""OLMo-core's start-up checks of recompute and context parallelism; those of degrees and batch are read as checked.

Source: allenai/OLMo-core fa6c5014 src/olmo_core/.
"""

from __future__ import annotations

from taylor.parsers.start_rules import KeyRule, Keys, is_on

_OLMO = "OLMo-core fa6c5014 src/olmo_core"
_MODE = "train_module.ac_config.mode"


def _mode(keys: Keys) -> str:
    return str(keys(_MODE) or "full") if keys("train_module.ac_config") is not None else ""


def _has_experts(keys: Keys) -> bool:
    return str(keys("model.block.name") or "").startswith("moe") or keys("model.block.feed_forward_moe") is not None


START_RULES = (
    KeyRule(
        "budget-needs-compiler",
        _MODE,
        lambda keys: _mode(keys) == "budget" and not is_on(keys("train_module.compile_model")),
        "needs compile_model",
        "write compile_model: true",
        f"{_OLMO}/train/train_module/transformer/train_module.py:157",
    ),
    KeyRule(
        "interval-of-recomputed-blocks",
        "train_module.ac_config.block_interval",
        lambda keys: _mode(keys) == "selected_blocks" and keys("train_module.ac_config.block_interval") is None,
        "is missing for selected_blocks",
        "write a number of blocks",
        f"{_OLMO}/train/train_module/transformer/config.py:283",
    ),
    KeyRule(
        "modules-of-recompute",
        "train_module.ac_config.modules",
        lambda keys: _mode(keys) == "selected_modules" and keys("train_module.ac_config.modules") is None,
        "is missing for selected_modules",
        "write the modules",
        f"{_OLMO}/train/train_module/transformer/config.py:290",
    ),
    KeyRule(
        "experts-without-block-recompute",
        _MODE,
        lambda keys: _has_experts(keys) and _mode(keys) in ("full", "selected_blocks"),
        "wraps whole blocks, which OLMo-core does not do with experts",
        "write selected_modules",
        f"{_OLMO}/nn/transformer/model.py:812-822",
    ),
    KeyRule(
        "one-context-style",
        "train_module.cp_config",
        lambda keys: keys("train_module.cp_config.ring") is not None and keys("train_module.cp_config.uly") is not None,
        "names a ring and Ulysses",
        "leave one of the two out",
        f"{_OLMO}/train/train_module/transformer/config.py:198",
    ),
)
