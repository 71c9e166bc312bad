"""Setting one key of a file after another: the files to start from, and what the figures make of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.cost_model.memory.breakdown import memory_profile
from taylor.cost_model.time.step import estimate_ratios
from taylor.parsers.flag_table import READ, FlagRow
from taylor.parsers.mindformers import read as mindformers
from taylor.parsers.text.toml_edit import TomlSource
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.torchtitan import read as torchtitan
from taylor.parsers.training_config import TrainingConfig
from taylor.register.registry import Registry

KEYS = Path(__file__).parent / "keys"
VALUES: tuple[Any, ...] = (True, False, 7, "another", 0.3)
"""Tried in turn for a key that costs, until one is not the default or like it."""


@dataclass(frozen=True)
class Change:
    """A file's data, and the changes that set one key in it."""

    launcher: str
    before: dict[str, Any]
    after: dict[str, Any]


def with_keys(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a file's data with some dotted keys set, or taken out where the value is None."""
    result: dict[str, Any] = copy.deepcopy(dict(data))
    for name, value in changes.items():
        *sections, last = name.split(".")
        place = result
        for section in sections:
            if not isinstance(place.get(section), dict):
                place[section] = {}
            place = place[section]
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return result


def _load() -> tuple[dict[str, tuple[str, dict[str, Any]]], dict[str, Change], dict[str, dict[str, Any]]]:
    stated = yaml.safe_load((KEYS / "sweep.yaml").read_text(encoding="utf-8"))
    bases: dict[str, tuple[str, dict[str, Any]]] = {}
    for name, base in stated["bases"].items():
        launcher, data = bases[base["based_on"]] if "based_on" in base else (base["launcher"], {})
        bases[name] = launcher, with_keys(data, base["keys"])
    sweep: dict[str, Change] = {}
    for group in stated["read"]:
        launcher, data = bases[group["base"]]
        before = with_keys(data, group.get("first", {}))
        left = with_keys(before, {group["instead"]: None}) if "instead" in group else before
        for name, value in group["keys"].items():
            sweep[name] = Change(launcher, before, with_keys(left, value if name.endswith(".*") else {name: value}))
    facts = {name: with_keys(bases[fact["base"]][1], fact.get("keys", {})) for name, fact in stated["facts"].items()}
    return bases, sweep, facts


BASES, READ_SWEEP, FACTS = _load()
"""Each base's launcher and data by its name; for each key that is read, how to change it; data that show a fact."""


def base_for(launcher: str, name: str, needs: tuple[str, ...] = ()) -> dict[str, Any]:
    """The data of a file in which a key can be in force, with what it needs."""
    fact = next((FACTS[need] for need in needs if need in FACTS), None)
    if fact is not None:
        return fact
    if launcher == "torchtitan":
        return BASES["titan experts"][1]
    return BASES["legacy" if name.startswith("moe_config") else "mcore"][1]


def attempt(launcher: str, data: Mapping[str, Any]) -> tuple[TrainingConfig | InputError, set[str]]:
    """What a launcher's reader makes of a file with this data, and the keys that it asked for."""
    if launcher == "torchtitan":
        toml = TomlSource(_toml(data), Path("swept.toml"))
        try:
            return torchtitan.config_from_source(toml), toml.asked
        except InputError as error:
            return error, toml.asked
    source = YamlSource(yaml.safe_dump(dict(data)), Path("swept.yaml"))
    try:
        return mindformers.config_from_source(source), source.asked
    except InputError as error:
        return error, source.asked


def config_of(launcher: str, data: Mapping[str, Any]) -> TrainingConfig:
    """The configuration of a file that is known to be right."""
    config, _ = attempt(launcher, data)
    assert isinstance(config, TrainingConfig), config
    return config


def _toml(data: Mapping[str, Any], above: str = "") -> str:
    plain = [f"{key} = {json.dumps(value)}" for key, value in data.items() if not isinstance(value, dict)]
    tables = [_toml(value, f"{above}.{key}".lstrip(".")) for key, value in data.items() if isinstance(value, dict)]
    return "\n".join([*([f"[{above}]"] if above else []), *plain, *tables]) + "\n"


def figures(config: TrainingConfig) -> tuple[Any, ...]:
    """Everything that Taylor tells of a file: model, placement, memory and time."""
    device = Registry.load().device("ascend-910b")
    job = config.model, config.strategy, config.rules
    return (
        config.model,
        total_parameters(config.model),
        config.strategy,
        config.schedule,
        config.plan,
        config.device_limit_mib,
        memory_profile(*job, 60000.0, config.schedule),
        estimate_ratios(*job, device),
    )


def switched_on(row: FlagRow, written: str, rows: Mapping[str, FlagRow]) -> dict[str, Any]:
    """The changes that put a key that costs in force."""
    changes: dict[str, Any] = {written: _costly(row, VALUES)}
    needed = [name for name in row.needs if not name.startswith("@")]
    if needed:
        row = rows[needed[0]]
        changes[needed[0]] = True if row.status == READ else _costly(row, (True, 7, "another"))
    return changes


def _costly(row: FlagRow, values: tuple[Any, ...]) -> Any:
    return next(value for value in values if not row.is_silent(str(value).lower()))
