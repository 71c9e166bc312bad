"""The flags of a Megatron or MindSpeed launch, found in a script, with the place of each."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Sequence

from taylor.base.errors import InputError
from taylor.parsers.text.fields import MAX_DEGREE
from taylor.parsers.text.shell_source import Command, ShellScript
from taylor.parsers.text.shell_words import Word

_REQUIRED: Any = object()
_FLAG = re.compile(r"--([A-Za-z][\w\-]*)(=?)")
_TELLTALE = (
    "num-layers",
    "hidden-size",
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "num-experts",
    "micro-batch-size",
    "global-batch-size",
)
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


class Flags:
    """All flags of the launch command; of a doubled one the last counts, as in argparse.

    Raises
    ------
    InputError
        When no command of the script, and no variable, holds training flags.
    """

    def __init__(self, script: ShellScript) -> None:
        self.script, self.file = script, script.file
        words = _launch_words(script)
        self.flags: list[Flag] = _parse(words)
        program = next((at for at, word in enumerate(words) if word.text.endswith(".py")), 0)
        self.starting = len(_parse(words[:program]))
        """How many of `flags` stand before the training program: options of what starts the ranks."""
        self.by_name = {flag.name: flag for flag in self.flags}

    def has(self, *names: str) -> bool:
        """Whether any of the flags is given."""
        return any(name in self.by_name for name in names)

    def error(self, name: str, problem: str, value: Any = InputError._NO_VALUE, cure: str | None = None) -> InputError:
        """An error about one flag."""
        return InputError(problem, file=self.file, field=f"--{name}", value=value, cure=cure)

    def text(self, *names: str, default: Any = _REQUIRED) -> Any:
        """The value of the first of the flags that is given."""
        flag = next((self.by_name[name] for name in names if name in self.by_name), None)
        if flag is None:
            if default is _REQUIRED:
                raise self.error(names[0], "is missing", cure="add the flag to the script")
            return default
        if not flag.values:
            raise self.error(flag.name, "has no value", cure="write one after the flag")
        word = flag.values[0]
        if word.unknown:
            raise self.error(
                flag.name, "has a value that only a running shell knows", word.text, "write the number in the script"
            )
        return word.text

    def words(self, name: str) -> list[str]:
        """Every word behind a flag that takes several; nothing where it is not given."""
        self.text(name, default=None)
        flag = self.by_name.get(name)
        return [] if flag is None else " ".join(word.text for word in flag.values).split()

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
        """Whether a value of the flags is the default of a variable that the script leaves to the outside."""
        return any(word.assumed for name in names if name in self.by_name for word in self.by_name[name].values)

    def world_size(self) -> int | None:
        """Ranks that the launcher starts; None when the script does not settle it."""
        try:
            workers = self.integer("worker-num", default=None)
            if workers is not None:
                return workers
            per_node = self.integer("nproc-per-node", "local-worker-num", default=None)
            return None if per_node is None else per_node * self.integer("nnodes", default=1)
        except InputError:
            return None  # Set by the cluster's scheduler, or from the outside.


def _launch_words(script: ShellScript) -> Sequence[Word]:
    def score(words: Sequence[Word]) -> int:
        names = {flag.name for flag in _parse(words)}
        return sum(name in names for name in _TELLTALE)

    def rank(command: Command) -> tuple[int, bool]:
        return score(command.words), command.words[0].text not in ("echo", "printf")

    commands: list[Command] = sorted((each for each in script.commands if each.words), key=rank)
    if commands and score(commands[-1].words) >= 2:
        return commands[-1].words
    # A script that only sets the flags, for another one to start.
    parts = [word for variable in script.variables.values() for value in variable.words for word in value.split()]
    if score(parts) >= 2:
        script.notes.append("no command starts the training here: the flags of all variables are taken together")
        return parts
    raise InputError(
        "starts no training: no command has flags such as --num-layers and --tensor-model-parallel-size",
        file=script.file,
        cure="give the script that launches the training",
    )


def _parse(words: Sequence[Word]) -> list[Flag]:
    flags: list[Flag] = []
    for word in words:
        match = _FLAG.match(word.text) if word.text.startswith("--") else None
        if match and (match[2] or match.end() == len(word.text)):
            name = match[1].replace("_", "-")
            joined = bool(match[2])
            flags.append(Flag(name, word, (word.part(match.end()),) if joined else (), joined))
        elif flags and not flags[-1].joined:
            last = flags[-1]
            flags[-1] = Flag(last.name, last.word, (*last.values, word))
    return flags
