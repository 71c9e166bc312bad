"""A script of Pai-Megatron-Patch as a launch by Megatron's flags: its positional arguments are often in a README alone.

Source: alibaba/Pai-Megatron-Patch a098ca5 examples/qwen3/run_mcore_qwen3.sh:3-57 (positions), examples/qwen3/README.md
:71-174 (their meaning and a command line of each use), megatron_patch/arguments.py (the options beside Megatron's).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.parsers.flag_table import FlagTable, load_flag_table
from taylor.parsers.megatron.hybrid import HYBRID_BEFORE
from taylor.parsers.megatron.other_programs import refuse_other_program
from taylor.parsers.megatron.script import Script
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.pai.examples import closest_example, example_of, positions
from taylor.parsers.pai.options import completed, own_stack, refuse_other_models
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.shell_source import MAX_BYTES, ShellScript
from taylor.parsers.text.shell_start import ShellStart, current_start

if TYPE_CHECKING:
    from typing_extensions import Self

NAME = "pai"
_MOST_SHOWN = 30


class PaiScript(Script):
    """A script that starts a training; see `Script`.

    Raises
    ------
    InputError
        When it starts no training, or trains what has no layers of Megatron's.
    """

    launcher = NAME

    def __init__(self, script: ShellScript) -> None:
        super().__init__(script)
        options = self.flags.of_other_tool()
        refuse_other_models(options)
        notes = [*self.notes]
        self.flags = completed(options, notes)
        self.notes = tuple(notes)
        if own_stack(options) is not None:
            problem = "deals layers of the patch's own: no plan is written into it"
            self.plan_error = options.error(HYBRID_BEFORE, problem, cure="solve with -write n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a script with the arguments of its start, or of the first example that states all of them.

        Raises
        ------
        InputError
            When it starts no training, or a value depends on an argument that nothing states.
        """
        text, start, notes = read_text(path, limit_bytes=MAX_BYTES), current_start(), list[str]()
        if start.arguments is None and (example := example_of(path, text)) is not None:
            start = ShellStart(example.arguments, start.variables)
            notes.append(
                f"the arguments are those of an example ({example.place}); -shell 'FILE ARGUMENT …' sets others"
            )
        source = ShellScript(text, path, start=start)
        source.notes[:0] = notes
        try:
            for command in source.commands:
                refuse_other_program(source, command.words)
            return cls(source)
        except InputError as error:
            raise without_arguments(error, path, text, start) from None

    @property
    def begun(self) -> ShellStart:
        """Arguments and variables that it was read with."""
        return self._script.start or current_start()

    def table(self) -> FlagTable:
        """See `Launch.table`: the patch's own options too."""
        own = load_flag_table("taylor.parsers.pai", "flags.yaml")
        return FlagTable(own.launcher, {**flag_table().rows, **own.rows})

    def with_ranks(self, world: int) -> tuple[Script, dict[str, Setting]]:
        """See `Launch.with_ranks`."""
        changed, wanted = super().with_ranks(world)
        return (changed if isinstance(changed, PaiScript) else PaiScript(changed._script)), wanted


def without_arguments(error: InputError, file: Path, text: str, start: ShellStart) -> InputError:
    """The error of a script that was read without arguments which it takes: every position with its line."""
    given = 0 if start.arguments is None else len(start.arguments)
    wanted: Mapping[int, tuple[str, int]] = {at: name for at, name in positions(text).items() if at > given}
    if not wanted or "known only when the job starts" not in str(error):
        return error
    named = [f"{at} {name or 'unnamed'} (line {line})" for at, (name, line) in wanted.items()]
    more = "" if len(named) <= _MOST_SHOWN else f" and {len(named) - _MOST_SHOWN} more"
    takes, other = max(positions(text)), closest_example(file, text)
    example = "no comment and no README beside it has an example"
    if other is not None:
        example = f"the example in {other.place} states {len(other.arguments)}, so that they may be another version's"
    return InputError(
        f"takes {takes} arguments, of which {given} are given, and {example}: missing are "
        f"{', '.join(named[:_MOST_SHOWN])}{more}",
        file=file,
        field=error.field,
        cure="give them in quotes: -shell 'FILE ARGUMENT …'",
    )
