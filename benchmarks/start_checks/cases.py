"""The cases: settings that a program refuses and takes, by program and rule."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CASES = Path(__file__).with_name("cases.yaml")
JSON = "deepspeed"
"""Key of the settings that stand in DeepSpeed's own file."""


@dataclass(frozen=True)
class Case:
    """Settings with which one rule is broken or obeyed.

    Parameters
    ----------
    program, rule : str
    how : str
        ``broken`` or ``obeyed``.
    settings : mapping
        All of the job's, nested.
    """

    program: str
    rule: str
    how: str
    settings: Mapping[str, Any]


def read_cases() -> list[Case]:
    """All cases, in the order of their file."""
    found = []
    for program, entry in yaml.safe_load(CASES.read_text(encoding="utf-8")).items():
        for rule, changes in entry["rules"].items():
            for how in ("broken", "obeyed"):
                found.append(Case(program, rule, how, nested({**entry["base"], **changes[how]})))
    return found


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their dotted keys, as mappings; those of null are left out."""
    found: dict[str, Any] = {}
    for key, value in flat.items():
        *above, last = key.split(".")
        place = found
        for name in above:
            place = place.setdefault(name, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = copy.deepcopy(value)
    return found
