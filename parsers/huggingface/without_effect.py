"""Fields of a config.json that leave parameters and layers alone."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from taylor.base.shipped import shipped_table

_PATTERNS = re.compile(
    r"_.*|.*_(token_id|token_index|alpha_factor|beta_factor|pdrop)|.*dropout.*|return_dict|output_(attentions|hidden_states)"
    r"|(max|min)_(length|new_tokens)|unsloth.*"
)
"""By what their names begin or end with."""


_SHAPE = re.compile(r".*(_size|_dim|_rank|_width|_heads|_experts)|.*(latent|low_?rank|n_streams|hyper).*")
"""Endings of names of widths and ranks: of a language model they are not passed over."""


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(shipped_table(Path(__file__).with_suffix(".yaml"))["names"])


def is_shape(name: str, value: Any) -> bool:
    """Return whether a field without known effect is a width, a rank or a number of heads or experts."""
    return isinstance(value, int) and value > 1 and _SHAPE.fullmatch(name) is not None


def has_effect(name: str, value: Any) -> bool:
    """Return whether a field that no reader asked for may change the shape: it is not known here and is set."""
    if value in (None, False, 0, "", [], {}) or name in _names():
        return False
    return _PATTERNS.fullmatch(name) is None
