"""The flags of a launch, found in a shell script, with the place of each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from taylor.base.errors import InputError
from taylor.parsers.text.flags import Flag, Flags, Start
from taylor.parsers.text.shell_source import Command, ShellScript
from taylor.parsers.text.shell_words import Word

_FLAG = re.compile(r"--([A-Za-z][\w\-]*)(=?)")

ENOUGH = 2
"""Telltale flags that a training has at least."""

_STARTER = re.compile(r"(?:^|/)(?:torchrun|deepspeed|accelerate|msrun)$|^torch\.distributed")
"""Programs that start several ranks themselves, of which ``srun`` starts one a node."""


@dataclass(frozen=True)
class FlagForm:
    """Signs of a family of flags, and its spelling.

    Parameters
    ----------
    telltale : tuple of str
        Flags of which a training has `ENOUGH` at least, with ``-`` for ``_``.
    beside : tuple of str
        Flags that every training has: a new one goes beside them.
    joint : str
        Joint between the words of a written flag: ``-`` or ``_``.
    starts : pattern, optional
        Words of a command that starts a training whatever its flags are: they may stand in a file that it names.
    """

    telltale: tuple[str, ...]
    beside: tuple[str, ...]
    joint: str = "-"
    starts: re.Pattern[str] | None = None

    def written(self, name: str) -> str:
        """A flag as a script has it."""
        return f"--{name.replace('-', self.joint)}"


def flags_of(script: ShellScript, form: FlagForm) -> Flags:
    """The flags of a script's launch command.

    Raises
    ------
    InputError
        When no command of the script, and no variable, holds training flags.
    """
    command = _launch(script, form)
    words = command.words
    program = next((at for at, word in enumerate(words) if word.text.endswith(".py")), 0)
    started = takewhile(lambda word: not word.text.startswith("-"), words)
    programs = [word.text.rpartition("/")[2] for word in (*started, *words[program : program + 1])]
    before = _parse(words[:program])
    starter = [word.text for word in command.within or words[:program]]
    tasks = None
    if "srun" in starter and not any(_STARTER.search(word.text) for word in words[:program]):
        tasks = script.slurm.with_options(starter[starter.index("srun") + 1 :]).started
    start = Start(
        tuple(dict.fromkeys(programs)), tuple(script.variables), script.text, to_state=script.to_state, tasks=tasks
    )
    starting = len(before)
    return Flags(script.file, _parse(words), starting=starting, place=form.written, start=start)


def launch_words(script: ShellScript, form: FlagForm) -> Sequence[Word]:
    """The words of a script's launch command; those of its variables where no command starts a training.

    Raises
    ------
    InputError
        When there is neither.
    """
    return _launch(script, form).words


def _launch(script: ShellScript, form: FlagForm) -> Command:

    def score(words: Sequence[Word]) -> int:
        names = {flag.name for flag in _parse(words)}
        alone = form.starts is not None and form.starts.search(" ".join(word.text for word in words))
        return sum(name in names for name in form.telltale) + (ENOUGH if alone else 0)

    def rank(command: Command) -> tuple[int, bool]:
        return score(command.words), command.words[0].text not in ("echo", "printf")

    commands: list[Command] = sorted((each for each in script.commands if each.words), key=rank)
    if commands and score(commands[-1].words) >= ENOUGH:
        return commands[-1]
    # A script that only sets the flags, for another one to start.
    parts = [word for variable in script.variables.values() for value in variable.words for word in value.split()]
    if score(parts) >= ENOUGH:
        if not {flag.name for flag in _parse(parts)} & {form.telltale[0], *form.beside}:
            cure = "give the script that takes it in by source and launches the training"
            problem = (
                f"sets flags for another script: no command starts a training, and {form.written(form.telltale[0])} "
            )
            raise InputError(f"{problem}stands elsewhere", file=script.file, cure=cure)
        script.notes.append("no command starts the training here: the flags of all variables are taken together")
        return Command(tuple(parts), 0)
    first, second = form.beside[0], form.telltale[2]
    raise InputError(
        f"starts no training that is read: no command has flags such as {form.written(first)} and "
        f"{form.written(second)}",
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
