"""slime's scripts, which train a policy beside roll-outs; the training half is read."""

from __future__ import annotations

import re
from pathlib import Path

from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.megatron import write
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.rl_iteration import RlIteration
from taylor.parsers.slime.iteration import iteration_of
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
    no_dryrun = NoDryrun("is started by slime beside its roll-outs, which no dry-run has")
    has_own_marks = True

    def launch(self, path: Path) -> SlimeScript:
        """See `FlagLauncher.launch`."""
        return SlimeScript.read(path)

    def iteration(self, config: TrainingConfig) -> RlIteration:
        """See `Launcher.iteration`."""
        return iteration_of(SlimeScript.read(config.path), config)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_from_launch(SlimeScript(ShellScript.read(path), register_path))
