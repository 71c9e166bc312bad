"""The flags of a Megatron or MindSpeed launch, found in a shell script, with the place of each."""

from __future__ import annotations

import re
from collections.abc import Sequence

from taylor.base.errors import InputError
from taylor.parsers.megatron.flags import Flag, Flags
from taylor.parsers.text.shell_source import Command, ShellScript
from taylor.parsers.text.shell_words import Word

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


def flags_of(script: ShellScript) -> Flags:
    """The flags of a script's launch command.

    Raises
    ------
    InputError
        When no command of the script, and no variable, holds training flags.
    """
    words = _launch_words(script)
    program = next((at for at, word in enumerate(words) if word.text.endswith(".py")), 0)
    return Flags(script.file, _parse(words), starting=len(_parse(words[:program])))


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
