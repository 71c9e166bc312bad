"""The flags that a launch gives its training program, as the program's start rules read them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class StatedFlags:
    """Flags of a launch, without dashes, and whose start rules judge them.

    Parameters
    ----------
    programs : frozenset of str
        Names of what starts the job beside its framework (`nd_search.mindspeed`); empty where no rule reads flags.
    values : mapping of str to str or None
        First value of every flag that is given; None where it has none, or one that is known only as the job starts.
    facts : frozenset of str
        Values that follow from the launch's own words, where a rule asks for them.
    """

    programs: frozenset[str] = frozenset()
    values: Mapping[str, str | None] = field(default_factory=dict)
    facts: frozenset[str] = frozenset()

    def without(self, names: Collection[str]) -> StatedFlags:
        """The same without some flags."""
        return replace(self, values={name: value for name, value in self.values.items() if name not in names})

    def on(self, *names: str) -> bool:
        """Return whether any of the flags is given."""
        return any(name in self.values for name in names)

    def shown(self, name: str) -> str:
        """The value of a flag for a message."""
        return self.values[name] or "on" if name in self.values else "not given"

    def text(self, name: str, usual: str = "") -> str:
        """The value of a flag; `usual` where it is not given, or not known."""
        return self.values.get(name) or usual

    def number(self, name: str, usual: int = 0) -> int:
        """The whole number behind a flag; `usual` where it is not given, not known or no number."""
        text = self.values.get(name) or ""
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else usual

    def real(self, name: str, usual: float = 0.0) -> float:
        """The number behind a flag; `usual` where it is not given, not known or no number."""
        text = self.values.get(name) or ""
        return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", text[:40]) else usual
