"""The table of Megatron-Bridge's published recipes, one of which is read at a time.

`benchmarks.bridge_recipes` writes ``recipes.yaml``: a line a recipe, so that a reader parses the one that it asks for.
"""

from __future__ import annotations

import difflib
import importlib.resources
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import yaml

from taylor.base.shipped import SAFE_LOADER

SOURCE = "NVIDIA-NeMo/Megatron-Bridge 067f987d"
"""Repository and commit that the table was written from."""


@dataclass(frozen=True)
class Recipe:
    """One published recipe.

    Parameters
    ----------
    name : str
        Name that ``--recipe`` takes.
    source : str
        File and line below ``src/megatron/bridge``.
    model : str or None
        Hugging Face name of its model; None where it states the sizes itself.
    options : mapping
        Fields that it sets, by ``section.field``.
    adapters : bool
        It trains adapters that the text does not settle.
    peft : mapping or None
        Fields of its low-rank adapters; ``kind`` is their class. None: all weights train.
    unsettled : tuple of str
        Fields that it computes from what no text states.
    rebuilds : bool
        Its layout is computed again for another number of stages or virtual stages.
    """

    name: str
    source: str
    model: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    adapters: bool = False
    peft: Mapping[str, Any] | None = None
    unsettled: tuple[str, ...] = ()
    rebuilds: bool = False

    @property
    def ranks(self) -> int | None:
        """Devices that its name states: ``…_64gpu_h100_…``."""
        match = re.search(r"_(\d{1,6})gpu_", self.name)
        return int(match[1]) if match else None


@cache
def _lines() -> dict[str, dict[str, str]]:
    """The table's sections, each with its lines by name."""
    text = importlib.resources.files("taylor.parsers.bridge").joinpath("recipes.yaml").read_text(encoding="utf-8")
    sections: dict[str, dict[str, str]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("  "):
            name, _, rest = line.strip().partition(": ")
            sections[section][name] = rest
        elif line.endswith(":"):
            section = line[:-1]
            sections[section] = {}
    return sections


def recipe_names() -> tuple[str, ...]:
    """Every name that ``--recipe`` takes."""
    sections = _lines()
    return (*sections["recipes"], *sections["aliases"])


def recipe_fields() -> frozenset[str]:
    """Every field that a recipe sets, by ``section.field``."""
    rows = "\n".join(row for section in _lines().values() for row in section.values())
    return frozenset(re.findall(r"\b(?:model|train|ddp|optimizer|dataset|comm_overlap|dist)\.[a-z]\w*", rows))


def known_recipe(name: str) -> Recipe | None:
    """The recipe of a name; None where none is published under it."""
    sections = _lines()
    first = sections["aliases"].get(name, name)
    if first not in sections["recipes"]:
        return None
    row = yaml.load(sections["recipes"][first], Loader=SAFE_LOADER)
    usual = {key: yaml.load(value, Loader=SAFE_LOADER) for key, value in sections["usual"].items()}
    options = {**usual, **row.get("options", {})}
    return Recipe(
        first,
        row["source"],
        row.get("model"),
        {key: value for key, value in options.items() if value is not None},
        bool(row.get("adapters", False)),
        row.get("peft"),
        tuple(row.get("unsettled", ())),
        bool(row.get("rebuilds", False)),
    )


def nearest_names(name: str) -> list[str]:
    """Published names that are spelt like one."""
    return difflib.get_close_matches(name, recipe_names(), n=3, cutoff=0.6)


def precision(name: str) -> Mapping[str, Any] | None:
    """The settings of a named mixed precision; None where none has that name."""
    lines = _lines()["precisions"]
    settings: Mapping[str, Any] | None = yaml.load(lines[name], Loader=SAFE_LOADER) if name in lines else None
    return settings
