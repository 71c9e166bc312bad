"""Checks of keys that a program makes as it starts, as data: each that a file fails keeps its job from starting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from taylor.base.errors import shortened
from taylor.parsers.text.flags import Flags
from taylor.parsers.training_config import Misfit, TrainingConfig

Keys = Callable[[str], Any]
"""Value at a dotted key; None where there is none."""
_FALSE = ("", "false", "no", "off", "none", "null", "0", "auto")


@dataclass(frozen=True)
class KeyRule:
    """One check.

    Parameters
    ----------
    name : str
        Name by which a job may break it (``--allow_illegal``).
    field : str
        Key at fault.
    broken : callable
        Takes `Keys`; true where the program refuses the file.
    problem : str
        What is wrong, as the rest of a sentence that begins with the key.
    cure : str
    source : str
        Repository, commit, file and line.
    any_strategy : bool
        No strategy that is written into the file is sure to change its answer, so that a search refuses the job too.
    """

    name: str
    field: str
    broken: Callable[[Keys], bool]
    problem: str
    cure: str
    source: str
    any_strategy: bool = True


def is_on(value: Any) -> bool:
    """Return whether a key's value means yes; ``auto`` leaves it to the trainer."""
    return str(value).strip().lower() not in _FALSE


def of_mapping(data: Any) -> Keys:
    """Keys of nested mappings; a name with dots of its own is found as it stands."""

    def value(key: str) -> Any:
        found = data
        if isinstance(found, dict) and key in found:
            return found[key]
        for part in key.split("."):
            found = found.get(part) if hasattr(found, "get") else None
        return found

    return value


def whole(keys: Keys, name: str, usual: int) -> int:
    """A whole number, as YAML or a command line writes it; `usual` where there is none."""
    written = keys(name)
    if isinstance(written, int) and not isinstance(written, bool):
        return written
    text = str(written or "").strip()
    return int(text) if text.isdecimal() and len(text) < 10 else usual


class UnknownValue(Exception):
    """A rule reads a value that only the start of the job knows."""


def of_options(options: Flags) -> Keys:
    """Keys of options by their dotted names; one whose value only the start knows raises `UnknownValue`."""

    def value(key: str) -> Any:
        found = options.by_name.get(key)
        if found is None or not found.values:
            return None
        if found.values[0].unknown:
            raise UnknownValue(key)
        return found.values[0].text

    return value


def _misfit(rule: KeyRule, keys: Keys) -> Misfit | None:
    """The misfit of a rule that is broken; none where it rests on a value that only the start knows."""
    try:
        if not rule.broken(keys):
            return None
        value = shortened(str(keys(rule.field)), 80)
    except UnknownValue:
        return None
    return Misfit(rule.field, value, rule.problem, rule.cure, rule.name, rule.source, any_strategy=rule.any_strategy)


def misfits_of(rules: Sequence[KeyRule], keys: Keys) -> tuple[Misfit, ...]:
    """Reasons why a file's job does not start, one for each rule that it breaks."""
    return tuple(misfit for misfit in (_misfit(rule, keys) for rule in rules) if misfit is not None)


def checked(config: TrainingConfig, rules: Sequence[KeyRule], keys: Keys) -> TrainingConfig:
    """A configuration with the rules that its file breaks."""
    return config.replace(misfits=(*config.misfits, *misfits_of(rules, keys)))
