"""Launchers imported when they are needed: their modules take a third of the start of a short command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import overload

from taylor.parsers.launcher import Launcher


@dataclass(frozen=True)
class Late:
    """A launcher that is not imported yet, with what decides whether it must be.

    Parameters
    ----------
    place : str
        Its module below `taylor.parsers`, a colon and its class.
    name, suffixes : str, tuple of str
        The launcher's; a test compares them.
    mark : str
        Regular expression found in every file that the launcher recognises; empty where none is so short.
    forms : tuple of str
        Names of its export forms.
    """

    place: str
    name: str
    suffixes: tuple[str, ...]
    mark: str = ""
    forms: tuple[str, ...] = ()

    @cached_property
    def launcher(self) -> Launcher:
        """The launcher, imported."""
        module, _, of = self.place.partition(":")
        found: Launcher = getattr(import_module(f"taylor.parsers.{module}"), of)()
        return found

    def may_recognise(self, text: str) -> bool:
        """Return whether the launcher may know the text as one of its files'."""
        return not self.mark or re.search(self.mark, text, re.MULTILINE) is not None


class Launchers(Sequence[Launcher]):
    """Launchers in order; each is imported when it is asked for.

    Parameters
    ----------
    entries : Launcher or Late
        A launcher given itself is imported already.
    further : callable
        Returns those of plug-ins; called when a launcher is first asked for.
    """

    def __init__(self, *entries: Launcher | Late, further: Callable[[], Sequence[Launcher]] = tuple) -> None:
        self.shipped, self._further = entries, further

    @cached_property
    def entries(self) -> tuple[Launcher | Late, ...]:
        """All launchers in order, those of plug-ins last and loaded."""
        return (*self.shipped, *self._further())

    @overload
    def __getitem__(self, index: int) -> Launcher: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Launcher, ...]: ...

    def __getitem__(self, index: int | slice) -> Launcher | tuple[Launcher, ...]:
        """The launcher of a number, or those of a slice."""
        if isinstance(index, slice):
            return tuple(map(_imported, self.entries[index]))
        return _imported(self.entries[index])

    def __len__(self) -> int:
        """Number of launchers."""
        return len(self.entries)

    def __iter__(self) -> Iterator[Launcher]:
        """All launchers, imported one by one."""
        return map(_imported, self.entries)

    def named(self, name: str) -> Launcher | None:
        """The launcher of a name."""
        return next((_imported(entry) for entry in self.entries if entry.name == name), None)

    def for_suffix(self, suffix: str, text: str | None = None) -> list[Launcher]:
        """The launchers whose files have a suffix; with a text, only those that may recognise it."""
        return [
            _imported(entry)
            for entry in self.entries
            if suffix in entry.suffixes and (text is None or not isinstance(entry, Late) or entry.may_recognise(text))
        ]

    def count_of(self, suffix: str) -> int:
        """Number of launchers whose files have a suffix; imports none."""
        return sum(suffix in entry.suffixes for entry in self.entries)

    def form_names(self) -> tuple[str, ...]:
        """Names of all export forms; imports none."""
        return forms_of(self.entries)


def forms_of(entries: Iterable[Launcher | Late]) -> tuple[str, ...]:
    """Names of all export forms; imports none."""
    forms = (entry.forms if isinstance(entry, Late) else tuple(entry.export_forms) for entry in entries)
    return tuple(name for names in forms for name in names)


def _imported(entry: Launcher | Late) -> Launcher:
    return entry.launcher if isinstance(entry, Late) else entry
