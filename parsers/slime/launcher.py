"""slime's scripts, which train a policy beside roll-outs; the training half is read."""

from __future__ import annotations

import re
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.launcher import Tools, UsualDevice
from taylor.parsers.megatron import write
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.slime.script import NAME, NODES, SlimeScript
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.training_config import TrainingConfig


class Slime(FlagLauncher):
    """Launch scripts of slime."""

    name = NAME
    title = "slime script"
    suffixes = (".sh",)
    telltale = re.compile(rf"^[^#\n]*--{NODES}\b", re.M)
    plan_keys = write.PLAN_FLAGS
    usual_device = UsualDevice("h100-80g", "slime files")
    has_own_marks = True

    def launch(self, path: Path) -> SlimeScript:
        """See `FlagLauncher.launch`."""
        return SlimeScript.read(path)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_from_launch(SlimeScript(ShellScript.read(path), register_path))

    def dryrun_command(self, file: Path, original: Path, tools: Tools) -> tuple[str, ...]:
        """slime starts its training by Ray, beside engines for roll-outs.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError(
            "is started by slime beside its roll-outs, which no dry-run has",
            file=original,
            field="--dryrun_backend",
            cure="take the estimate, or torch's dry-run",
        )
