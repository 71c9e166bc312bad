"""Shell scripts that start a program on a configuration of its own: which one, and what they set for it, is said."""

from __future__ import annotations

from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import SCRIPT, form_of
from taylor.parsers.registry import LAUNCHERS
from taylor.parsers.text.shell_source import ShellScript


def refuse_launch_of_other(file: Path) -> None:
    """Refuse a script that starts a launcher's program on a configuration file, for that file is the one to give.

    Nothing is refused where the script starts no such program. The variable that chooses between two orders of
    interleaving is named where the script sets it.

    Raises
    ------
    InputError
        With the program, its configuration and how to give that.
    """
    if form_of(file) != SCRIPT:
        return
    script = ShellScript.read(file)
    words = " ".join(word.text for command in script.commands for word in command.words).replace("=", " ").split()
    for launcher in LAUNCHERS:
        if launcher.program is None or not any(word.endswith(launcher.program.file) for word in words):
            continue
        named = [after for word, after in zip(words, words[1:], strict=False) if word == "--config"]
        own = named[-1] if named else f"its {launcher.title}"
        variable = launcher.low_memory_variable
        values = script.variables[variable].texts() if variable is not None and variable in script.variables else []
        low_memory = ""
        if variable is not None and values:
            switch = "y" if launcher.low_memory_in({variable: values[0]}) else "n"
            low_memory = f" and -low_mem {switch}, for the script sets {variable}={values[0]}"
        raise InputError(
            f"starts {launcher.program.file} on {own}",
            file=file,
            cure=f"give that file with -yaml (parallel_tool.py: --yaml_path){low_memory}",
        )
