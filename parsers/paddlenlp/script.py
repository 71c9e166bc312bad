"""A shell script that starts PaddleNLP's trainer: its flags, the ranks it starts, the strategy file that it names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.measured.layer_strategy import LayerwisePlan
from taylor.parsers.galvatron.strategy_file import PADDLE, read_strategy
from taylor.parsers.text.flags import Flags
from taylor.parsers.text.script_flags import FlagForm, flags_of, launch_words
from taylor.parsers.text.shell_source import ShellScript

NAME = "paddlenlp"
FORM = FlagForm(
    telltale=(
        "num-hidden-layers",
        "hidden-size",
        "tensor-parallel-degree",
        "pipeline-parallel-degree",
        "sharding-parallel-degree",
        "per-device-train-batch-size",
        "gradient-accumulation-steps",
    ),
    beside=("num-hidden-layers", "tensor-parallel-degree"),
    joint="_",
)
FINE, COARSE = "fine_grained", "coarse_grained"
GRANULARITY, STRATEGY_PATH, ULYSSES, SHARDING_LEVEL = (
    "granularity-type",
    "fine-grained-config-path",
    "usp-flag",
    "sharding-stage-level",
)
"""Flags of Galvatron's runtime (paddle-galvatron b0bdd07
paddlenlp/experimental/galvatron/runtime/comm_group.py:9-12)."""
DEVICES = ("gpus", "devices", "xpus", "npus")


@dataclass(frozen=True)
class PaddleScript:
    """A script and what it starts.

    Parameters
    ----------
    source : ShellScript
    flags : Flags
    """

    source: ShellScript
    flags: Flags

    @classmethod
    def read(cls, path: Path) -> PaddleScript:
        """Read a script.

        Raises
        ------
        InputError
            When it is missing, no script, or starts no training of PaddleNLP's.
        """
        return cls.of(ShellScript.read(path))

    @classmethod
    def of(cls, source: ShellScript) -> PaddleScript:
        """A script that has been read.

        Raises
        ------
        InputError
            When it starts no training of PaddleNLP's.
        """
        return cls(source, flags_of(source, FORM))

    @property
    def world(self) -> int | None:
        """Ranks that its launcher starts: nodes times devices; None where the file does not settle them."""
        flags = self.flags
        try:
            nodes = flags.integer("nnodes", default=1)
            devices = flags.text(*DEVICES, default=None)
        except InputError:
            return None
        return None if devices is None else int(nodes * len(devices.split(",")))

    def start_folder(self, otherwise: Path) -> Path:
        """The folder that the script is started from, from which it names files.

        It is the script's folder or the one above, whichever has the program that it starts; where neither has it,
        the working folder if it is one of the two, else `otherwise`.
        """
        folder = self.source.file.resolve().parent
        words = (word.text for word in launch_words(self.source, FORM))
        program = next((word for word in words if word.endswith(".py")), None)
        for place in (folder, folder.parent):
            if program is not None and os.path.isfile(place / program):
                return place
        return Path.cwd() if Path.cwd().resolve() in (folder, folder.parent) else otherwise

    @property
    def layerwise_path(self) -> Path | None:
        """The strategy file that it names; None where one strategy serves all layers.

        The trainer looks from the folder that it is started in: that of the script, or the one above, where scripts
        have a folder of their own.

        Raises
        ------
        InputError
            When it is in neither.
        """
        flags = self.flags
        if flags.text(GRANULARITY, default=COARSE) != FINE:
            return None
        named = Path(flags.text(STRATEGY_PATH))
        script = self.source.file.resolve()
        places = [named] if named.is_absolute() else [script.parent / named, script.parent.parent / named]
        for place in places:
            if os.path.isfile(place):  # A name that no file can have is no error here.
                return place
        raise flags.error(
            STRATEGY_PATH,
            "names no file that is there",
            str(named),
            "put it beside the script, or in the folder that the script is started from",
        )

    def layerwise(self) -> LayerwisePlan | None:
        """The strategy of every layer; None where one serves all.

        Raises
        ------
        InputError
            When the file that it names is missing or wrong.
        """
        path = self.layerwise_path
        if path is None:
            return None
        found = read_strategy(path)
        if found.form != PADDLE:
            raise InputError(
                "is a strategy file of Hetu's Galvatron",
                file=path,
                cure="write it in Paddle's form: taylor galvatron FILE --to paddle -o fine_grained_config.json",
            )
        return found.plan


def enabled(flags: Flags, name: str, default: bool = False) -> bool:
    """Return whether a switch is on: ``true`` or ``1``.

    Raises
    ------
    InputError
        When its value is neither that nor ``false`` or ``0``.
    """
    if not flags.has(name):
        return default
    if not flags.by_name[name].values:
        return True
    written = flags.text(name)
    if written.lower() in ("true", "1"):
        return True
    if written.lower() in ("false", "0"):
        return False
    raise flags.error(name, "must be true or false", written, "write one of the two")
