"""The flags of a launch, whatever file states them, and their values as argparse takes them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.parsers.text.fields import MAX_DEGREE
from taylor.parsers.text.shell_words import Word

_REQUIRED: Any = object()
_COUNT = re.compile(r"[1-9][0-9]{0,14}")
WORLD_FLAGS = ("nproc-per-node", "nnodes", "worker-num", "local-worker-num")


@dataclass(frozen=True)
class Flag:
    """One flag of the launch.

    Parameters
    ----------
    name : str
        Without the dashes; ``_`` read as ``-``.
    word : Word
        The flag's own word (of ``--flag=value``, the whole).
    values : tuple of Word
        The words up to the next flag; of ``--flag=value``, the part after the sign.
    joined : bool
        Written as ``--flag=value``.
    """

    name: str
    word: Word
    values: tuple[Word, ...]
    joined: bool = False


def _none_known(_text: str, _at: int | None) -> str | None:
    return None


@dataclass(frozen=True)
class Start:
    """Start command of a script, beside its flags.

    Parameters
    ----------
    programs : tuple of str
        Names of the programs in the command, without their folders: ``torchrun``, ``pretrain_gpt.py``.
    variables : tuple of str
        Names of the variables that the script sets, in their order.
    text : str
        The script, for the lines of messages; empty for other files.
    other_tool : bool
        A tool with options of its own starts it: no option's name is a sign of MindSpeed.
    to_state : callable
        The variable whose value settles a text at a place, as `ShellScript.to_state`.
    tasks : int, optional
        Processes that Slurm's ``srun`` starts; None where it starts none, or nothing says how many.
    """

    programs: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    text: str = ""
    other_tool: bool = False
    to_state: Callable[[str, int | None], str | None] = _none_known
    tasks: int | None = None


class Flags:
    """All flags of one launch; of a doubled one the last counts, as in argparse.

    Parameters
    ----------
    file : Path
        Their source; named in errors.
    flags : sequence of Flag
        In their order.
    starting : int
        Number of them before the training program: options of the program that starts the ranks.
    place : callable
        The file's name of a flag, given or not; for errors.
    start : Start
        Programs and variables of the script that states them; empty for other files.
    """

    def __init__(
        self,
        file: Path,
        flags: Sequence[Flag],
        starting: int = 0,
        place: Callable[[str], str] = "--{}".format,
        start: Start = Start(),
    ) -> None:
        self.file, self.flags, self.starting, self.start = file, list(flags), starting, start
        self.by_name = {flag.name: flag for flag in self.flags}
        self._place = place

    def of_other_tool(self) -> Flags:
        """These flags, of a tool whose options' names are no sign of MindSpeed."""
        return Flags(self.file, self.flags, self.starting, self._place, replace(self.start, other_tool=True))

    def overlaid(self, stated: Sequence[Flag], without: Collection[str] = ()) -> Flags:
        """These flags with some that another file states in their place, or beside them, and others left out."""
        names = {*without, *(flag.name for flag in stated)}
        own = [flag for flag in self.flags if flag.name not in names]
        starting = sum(flag.name not in names for flag in self.flags[: self.starting])
        return Flags(self.file, [*own, *stated], starting, self._place, self.start)

    def has(self, *names: str) -> bool:
        """Return whether any of the flags is given."""
        return any(name in self.by_name for name in names)

    def error(self, name: str, problem: str, value: Any = InputError._NO_VALUE, cure: str | None = None) -> InputError:
        """An error about one flag."""
        return InputError(problem, file=self.file, field=self._place(name), value=value, cure=cure)

    def text(self, *names: str, default: Any = _REQUIRED) -> Any:
        """The value of the first of the flags that is given."""
        flag = next((self.by_name[name] for name in names if name in self.by_name), None)
        if flag is None:
            if default is _REQUIRED:
                raise self.error(names[0], "is missing", cure="add it to the file")
            return default
        if not flag.values:
            raise self.error(flag.name, "has no value", cure="write one after the flag")
        word = flag.values[0]
        if word.unknown:
            raise self._left_open(flag.name, word)
        return word.text

    def _left_open(self, name: str, word: Word) -> InputError:
        """The error about a value that the file leaves to its start: the line that does, and the ways to state it."""
        at = next((char.at for char in word.chars if char.unknown and char.at is not None), None)
        line = "" if at is None or not self.start.text else f" (line {self.start.text.count(chr(10), 0, at) + 1})"
        argument = re.search(r"\$\{?\d", word.text)
        variable = self.start.to_state(word.text, at)
        cure = "write it out"
        if argument:
            cure += ", or give the script's arguments in quotes: -shell 'FILE ARGUMENT …'"
        elif variable:
            cure += f", or give --env {variable}=VALUE"
        return self.error(name, f"has a value that is known only when the job starts{line}", word.text, cure)

    def words(self, name: str) -> list[str]:
        """Every word behind a flag that takes several; nothing where it is not given."""
        self.text(name, default=None)
        flag = self.by_name.get(name)
        return [] if flag is None else " ".join(word.text for word in flag.values).split()

    def listed(self, name: str) -> list[str]:
        """The names behind a flag, bare or as a list that the shell was given as text; none where it is not given."""
        flag = self.by_name.get(name)
        words = () if flag is None else flag.values
        for word in words:
            if word.unknown:
                raise self._left_open(name, word)
        return [part for word in words for part in re.findall(r"[^\s,\[\]()\"']+", word.text)]

    def known_count(self, name: str) -> int | None:
        """A count that no plan depends on; None where it is not stated, or known only when the job starts."""
        each = self.by_name.get(name)
        if each is None or len(each.values) != 1 or each.values[0].unknown:
            return None
        text = each.values[0].text
        return int(text) if _COUNT.fullmatch(text) else None

    def integer(self, *names: str, default: Any = _REQUIRED, low: int = 1, high: int = MAX_DEGREE) -> Any:
        """A whole number in [low, high]."""
        text = self.text(*names, default=None)
        if text is None:
            return self.text(*names) if default is _REQUIRED else default
        name = next(name for name in names if name in self.by_name)
        if not re.fullmatch(r"[+-]?\d{1,30}", text):
            raise self.error(name, "must be a whole number", text, f"write a number from {low} to {high}")
        if not low <= int(text) <= high:
            raise self.error(name, f"must be from {low} to {high}", int(text))
        return int(text)

    def number(self, *names: str, default: Any = _REQUIRED) -> Any:
        """A finite number >= 0."""
        text = self.text(*names, default=None)
        if text is None:
            return self.text(*names) if default is _REQUIRED else default
        name = next(name for name in names if name in self.by_name)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            raise self.error(name, "must be a finite number >= 0", text)
        return value

    def integers(self, name: str, *, low: int = 0, high: int = 10_000) -> list[int] | None:
        """A comma-separated list of whole numbers; None when the flag is absent."""
        text = self.text(name, default=None)
        if text is None:
            return None
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not parts or not all(re.fullmatch(r"\d{1,9}", part) and low <= int(part) <= high for part in parts):
            raise self.error(name, f"must be numbers from {low} to {high}, separated by commas", text)
        return [int(part) for part in parts]

    def assumed(self, *names: str) -> bool:
        """Return whether a value of the flags is the default of a variable that the script leaves to the outside."""
        return any(word.assumed for name in names if name in self.by_name for word in self.by_name[name].values)

    def world_size(self) -> int | None:
        """Ranks that the launcher starts; None when the file does not settle it."""
        try:
            workers = self.integer("worker-num", default=None)
            if workers is not None:
                return workers
            per_node = self.integer("nproc-per-node", "local-worker-num", default=None)
            return self.start.tasks if per_node is None else per_node * self.integer("nnodes", default=1)
        except InputError:
            return None  # Set by the cluster's scheduler, or from the outside.
