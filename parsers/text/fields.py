"""Values taken out of a user's mapping, each checked on entry and named by file and dotted field."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Mapping, Sequence

from taylor.base.errors import InputError
from taylor.parsers.text.spelling import likely_meant

_REQUIRED: Any = object()

MAX_DEGREE = 2**20
"""Largest parallel degree, batch or micro-batch count accepted."""
MAX_SIZE = 2**31
"""Largest model dimension (vocabulary, hidden size, sequence) accepted."""
MAX_LAYERS = 10_000


class Fields:
    """A read-only view of one mapping in a file.

    Parameters
    ----------
    data : mapping
        Content of the file at `prefix`.
    file : Path
        Named in errors.
    prefix : str
        Dotted path of the mapping in the file.
    asked : set of str, optional
        Takes the dotted path of every entry that is asked for, here and in every `section`.
    below : sequence of mapping
        Places to search for entries that `data` has under none of the names, in order.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        file: Path,
        prefix: str = "",
        asked: set[str] | None = None,
        below: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.data, self.file, self.prefix = data, file, prefix
        self.asked: set[str] = set() if asked is None else asked
        self._layers = (data, *below)
        self.filled: dict[str, Any] = {}
        """Entries that only the last of `below` had, where they differ from the default asked with."""

    def over(self, values: Mapping[str, Any]) -> Fields:
        """The same mapping with a further one to look in where this one has no value."""
        return Fields(self.data, self.file, self.prefix, self.asked, (*self._layers[1:], values))

    def path(self, name: str) -> str:
        """Dotted path of an entry."""
        return f"{self.prefix}.{name}" if self.prefix else name

    def has(self, *names: str) -> bool:
        """Return whether any of the names holds a value (an empty one counts as absent)."""
        self._note(names)
        return any(layer.get(name) is not None for layer in self._layers for name in names)

    def raw(self, *names: str) -> Any:
        """The first of the names that holds a value, unchecked; None when there is none."""
        return self._find(names, None)[1]

    def section(self, name: str) -> Fields:
        """A sub-mapping; empty when absent.

        Raises
        ------
        InputError
            When the entry is there and is not a mapping.
        """
        self._note((name,))
        value = self.data.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error(name, "must be a mapping of names to values", value)
        return Fields(value, self.file, self.path(name), self.asked)

    def error(self, name: str, problem: str, value: Any = InputError._NO_VALUE, cure: str | None = None) -> InputError:
        """An error about one entry of this mapping."""
        return InputError(problem, file=self.file, field=self.path(name), value=value, cure=cure)

    def _note(self, names: tuple[str, ...]) -> None:
        self.asked.update(map(self.path, names))

    def _find(self, names: tuple[str, ...], default: Any) -> tuple[str, Any]:
        self._note(names)
        for depth, layer in enumerate(self._layers):
            for name in names:
                if layer.get(name) is not None:
                    if depth and depth == len(self._layers) - 1 and layer[name] != default:
                        self.filled[name] = layer[name]
                    return name, layer[name]
        if default is _REQUIRED:
            known = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
            raise self.error(names[0], f"is missing{known}", cure=self._cure_of_missing(names))
        return names[0], default

    def _cure_of_missing(self, names: tuple[str, ...]) -> str:
        near = ((name, likely_meant(name, [str(key) for key in self.data])) for name in names)
        for name, found in near:
            if found is not None:
                return f"{self.path(found)} is one letter from it: write {name}"
        return "add it to the file"

    def integer(self, *names: str, default: Any = _REQUIRED, low: int = 1, high: int = MAX_DEGREE) -> Any:
        """A whole number in [low, high], under the first of the names that is there.

        Raises
        ------
        InputError
            When it is required and missing, not a whole number, or out of range.
        """
        name, value = self._find(names, default)
        if value is default:
            return value
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # Frameworks take 8.0 for 8.
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, "must be a whole number", value, f"write a number from {low} to {high}")
        if not low <= value <= high:
            raise self.error(name, f"must be from {low} to {high}", value)
        return value

    def number(self, *names: str, default: Any = _REQUIRED, low: float = 0.0, high: float = math.inf) -> Any:
        """A finite number in [low, high]; whole numbers are taken too."""
        name, value = self._find(names, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.error(name, "must be a finite number", value)
        if not low <= value <= high:
            raise self.error(name, f"must be from {low} to {high}", value)
        return float(value)

    def boolean(self, *names: str, default: Any = _REQUIRED) -> Any:
        """True or False."""
        name, value = self._find(names, default)
        if value is default:
            return value
        if not isinstance(value, bool):
            raise self.error(name, "must be True or False", value)
        return value

    def text(self, *names: str, default: Any = _REQUIRED) -> Any:
        """A string."""
        name, value = self._find(names, default)
        if value is default:
            return value
        if not isinstance(value, str):
            raise self.error(name, "must be text", value, "put it in quotes")
        return value
