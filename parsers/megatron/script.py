"""A shell script as a launch by Megatron's flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.errors import InputError
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.model_file import with_model_file
from taylor.parsers.megatron.other_programs import refuse_other_program
from taylor.parsers.text.flag_edit import Setting, edit_flags, plain_value, set_variable
from taylor.parsers.text.flags import WORLD_FLAGS
from taylor.parsers.text.script_flags import FlagForm, flags_of, launch_words
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.slurm import with_nodes

if TYPE_CHECKING:
    from typing_extensions import Self

NAME = "megatron"
FORM = FlagForm(
    telltale=(
        "num-layers",
        "hidden-size",
        "tensor-model-parallel-size",
        "pipeline-model-parallel-size",
        "num-experts",
        "micro-batch-size",
        "global-batch-size",
    ),
    beside=("num-layers", "hidden-size"),
)
_NODE_VARIABLES = ("NNODES", "NUM_NODES", "NODES", "NODE_NUM", "N_NODES")


class Script(Launch):
    """A script that starts a training; see `Launch`.

    Raises
    ------
    InputError
        When no command of the script, and no variable, holds training flags.
    """

    launcher = NAME

    def __init__(self, script: ShellScript, model_text: str | None = None) -> None:
        self._script, self.file, self.text = script, script.file, script.text
        self.flags, self._model_file = with_model_file(flags_of(script, FORM), model_text)
        self.notes = tuple(script.notes)
        self.plan_home = None if self._model_file is None else self._model_file.path
        """The JSON of a MindSpeed-MM job, which has the layers: a plan is written into it."""
        if self._model_file is not None:
            self.tower, self.notes = self._model_file.tower, (*self.notes, *self._model_file.notes)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a script; see `ShellScript.read`.

        Raises
        ------
        InputError
            When it starts no training, or a program that trains nothing.
        """
        source = ShellScript.read(path)
        try:
            script = cls(source)
        except InputError:
            for command in source.commands:
                refuse_other_program(source, command.words)
            raise
        refuse_other_program(source, launch_words(source, FORM))
        _refuse_missing_argument(script)
        return script

    def with_flags(self, wanted: Mapping[str, Setting], near: tuple[str, ...]) -> Self:
        """See `Launch.with_flags`: every value where it is written, new flags on lines of their own."""
        if self._model_file is not None:
            self._model_file.refuse_change(self.flags, wanted)
        return type(self)(edit_flags(self._script, wanted, FORM, near=near))

    def with_model_text(self, text: str) -> Self:
        """The same with another text of `plan_home`."""
        return type(self)(self._script, text)

    def with_ranks(self, world: int) -> tuple[Script, dict[str, Setting]]:
        """See `Launch.with_ranks`: by the variable or the line of Slurm's that counts the nodes, else by flags of the
        launcher."""
        flags = self.flags
        if flags.world_size() == world or not (flags.has(*WORLD_FLAGS) or flags.start.tasks):
            return self, {}
        script, wanted = self._script, dict[str, Setting]()
        tasks = script.slurm.tasks_per_node or 8
        per_node = flags.integer("nproc-per-node", "local-worker-num", default=tasks)
        lines = None if world % per_node else with_nodes(script.text, world // per_node)
        if lines is not None:
            renumbered = ShellScript(lines, script.file)
            if flags_of(renumbered, FORM).world_size() == world:
                return Script(renumbered), wanted
        if not flags.has(*WORLD_FLAGS):
            cure = "state --nodes and --ntasks-per-node in #SBATCH lines of its head, as numbers"
            raise InputError(f"do not let it start {world} ranks", file=self.file, field="#SBATCH", cure=cure)
        if world % per_node:
            per_node = world
            for name in ("nproc-per-node", "local-worker-num"):
                if flags.has(name):
                    wanted[name] = str(per_node)
            script = edit_flags(script, wanted, FORM, computed=("worker-num", "nnodes"))
        for name in _NODE_VARIABLES:
            changed = set_variable(script, name, str(world // per_node))
            if changed is not None and flags_of(changed, FORM).world_size() == world:
                return Script(changed), wanted
        if flags.has("worker-num"):
            wanted["worker-num"] = str(world)
        elif flags.has("nnodes"):
            wanted["nnodes"] = str(world // per_node)
        else:
            wanted["nproc-per-node"] = str(world)
        return Script(script), wanted

    def setting(self, name: str, value: object) -> Setting:
        """See `Launch.setting`; text that a shell would take apart is refused."""
        return plain_value(value, self.file, name)


_BY_ARGUMENT = re.compile(r"takes in (\S*\$\{([1-9])\}\S*),")
"""A file that a script takes in by the name in one of its arguments (`ShellScript.notes`)."""


def _refuse_missing_argument(script: Script) -> None:
    """Refuse a script whose model stands in a file that one of its arguments names.

    Raises
    ------
    InputError
        With the argument.
    """
    if script.flags.has(*FORM.beside):
        return
    found = next((match for match in map(_BY_ARGUMENT.search, script.notes) if match), None)
    if found is not None:
        problem = f"stands in a file that argument {found[2]} of the script names"
        cure = "give the script's arguments in quotes: -shell 'FILE ARGUMENT …'"
        raise script.flags.error(FORM.beside[0], problem, found[1].rpartition("/")[2], cure)
