"""Values that a script gets from outside: its arguments and the variables that it is started with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.text.shell_words import Char, Variable, Word

MOST_VALUES = 1000
MOST_CHARACTERS = 10_000
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class ShellStart:
    """Arguments and variables of a script's start.

    Parameters
    ----------
    arguments : tuple of str or None
        ``$1`` and on; None where they are not known.
    variables : mapping of str to str
        Variables of its environment, as far as they are known.
    """

    arguments: tuple[str, ...] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def values(self, file: Path) -> dict[str, Variable]:
        """The variables with which a script begins: those of the environment, its name and its arguments."""
        words = {"0": str(file), **self.variables}
        if self.arguments is not None:
            words |= {str(at): text for at, text in enumerate(self.arguments, 1)}
        return {name: Variable([given(text)], False) for name, text in words.items()}


def given(text: str) -> Word:
    """A word that stands nowhere in the script."""
    return Word(tuple(Char(char, None) for char in text))


_CURRENT: ContextVar[ShellStart | None] = ContextVar("shell_start", default=None)


def current_start() -> ShellStart:
    """The start that every script of this command is read with."""
    return _CURRENT.get() or ShellStart()


@contextmanager
def started(start: ShellStart) -> Iterator[None]:
    """Read every script with these arguments and variables."""
    token = _CURRENT.set(start)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def parse_start(command: str | None, settings: Sequence[str]) -> tuple[str | None, ShellStart]:
    """A script's file, and the start that a user states.

    Parameters
    ----------
    command : str or None
        A file, or a file and its arguments as a shell takes them: ``run.sh dlc A3B 1 8``.
    settings : sequence of str
        Variables as ``NAME=VALUE``.

    Raises
    ------
    InputError
        When a quote of the command is never closed, or a setting is none.
    """
    arguments: tuple[str, ...] | None = None
    if command is not None and not Path(command).is_file():
        try:
            words = shlex.split(command)
        except ValueError as error:
            cure = "quote the arguments as in a shell"
            raise InputError(f"cannot be read: {error}", field="-shell", value=command, cure=cure) from None
        if 1 <= len(words) <= MOST_VALUES and Path(words[0]).is_file():
            command, arguments = words[0], tuple(words[1:]) or None
    variables = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not _NAME.fullmatch(name) or len(value) > MOST_CHARACTERS:
            raise InputError("must be NAME=VALUE", field="--env", value=setting, cure="as in --env TP=4")
        variables[name] = value
    return command, ShellStart(arguments, variables)
