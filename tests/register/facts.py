"""Every field of every framework and narrow format, in a file in which a changed fact is a changed line.

    python -m tests.register.facts

writes it again. Each fact has its source beside it in `register/frameworks.py`, `trainers.py` or `narrow_products.py`:
a line that changes here must change there with its source.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from taylor.register import narrow_products
from taylor.register.frameworks import FRAMEWORKS
from taylor.register.narrow_products import NarrowProducts
from taylor.register.trainers import TRAINERS

KEPT = Path(__file__).with_suffix(".yaml")


def plain(value: Any) -> Any:
    """A value as YAML holds it; sets in order, classes and functions by name."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    if callable(value):
        return value.__name__
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def facts() -> dict[str, dict[str, Any]]:
    """All entries by name."""
    formats = {name: each for name, each in vars(narrow_products).items() if isinstance(each, NarrowProducts)}
    return {
        "frameworks": {each.name: plain(each) for each in (*FRAMEWORKS.values(), *TRAINERS)},
        "narrow products": {name: plain(each) for name, each in formats.items()},
    }


if __name__ == "__main__":
    text = yaml.safe_dump(facts(), width=10_000, sort_keys=False, allow_unicode=True)
    KEPT.write_text(re.sub(r"[ \t]+$", "", text, flags=re.M), encoding="utf-8")
