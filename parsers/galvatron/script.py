"""Galvatron's shell scripts: the words that start its search or its training, and the folder they run in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.text.shell_source import Command, ShellScript

SEARCH, TRAINING = "search_dist.py", ("train_dist.py", "train_dist_random.py", "train.py")
"""Programs of Hetu-Galvatron (cea12ff galvatron/models/gpt/scripts) and of paddle-galvatron (b0bdd07
llm/auto_parallel/galvatron-llama-submit/scripts/search_dist.sh)."""


@dataclass(frozen=True)
class Started:
    """Command line of one of Galvatron's programs.

    Parameters
    ----------
    file : Path
        The script.
    before, words : tuple of str
        Words in front of the program, such as those of torchrun, and behind it.
    unknown : frozenset of int
        Places in `words` whose value only a running shell knows.
    """

    file: Path
    before: tuple[str, ...]
    words: tuple[str, ...]
    unknown: frozenset[int] = frozenset()

    @property
    def folder(self) -> Path:
        """Folder in which the script is meant to run: the one that holds its folder ``scripts``, else its own."""
        home = self.file.absolute().parent
        return home.parent if home.name == "scripts" else home

    def value(self, *flags: str) -> str | None:
        """Value of the last of some flags in `before` or `words`, spelled with either dash; None without one."""
        wanted = {flag.replace("-", "_") for flag in flags}
        found = None
        words = (*self.before, *self.words)
        for at, word in enumerate(words):
            name, equals, value = word.partition("=")
            if name.startswith("-") and name.lstrip("-").replace("-", "_") in wanted:
                follows = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else ""
                found = value if equals else follows
        return found

    def given(self, flag: str) -> bool:
        """Return whether a flag stands among the program's words."""
        return any(word.lstrip("-").replace("-", "_").partition("=")[0] == flag for word in self.words)


def search_started(path: Path) -> Started:
    """Command line of the search that a ``search_dist.sh`` starts.

    Raises
    ------
    InputError
        When the script cannot be read, or starts no search of Galvatron's.
    """
    found = _started(path, (SEARCH,))
    if found is None:
        cure = f"give the script that runs {SEARCH}, or its options"
        raise InputError("starts no search of Galvatron's", file=path, cure=cure)
    return found


def training_started(path: Path) -> Started | None:
    """Command line of the training that a script starts; None where it starts none of Galvatron's."""
    return _started(path, TRAINING)


def _started(path: Path, programs: Sequence[str]) -> Started | None:
    for command in ShellScript.read(path).commands:
        at = _program(command, programs)
        if at is not None:
            texts = [word.text for word in command.words]
            end = next((place for place, text in enumerate(texts) if place > at and text in ("|", "2>&1", "&")), None)
            behind = command.words[at + 1 : end]
            unknown = frozenset(place for place, word in enumerate(behind) if word.unknown)
            return Started(path, tuple(texts[:at]), tuple(word.text for word in behind), unknown)
    return None


def _program(command: Command, programs: Sequence[str]) -> int | None:
    return next((at for at, word in enumerate(command.words) if Path(word.text).name in programs), None)
