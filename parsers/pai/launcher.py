"""Pai-Megatron-Patch of Alibaba Cloud, whose scripts start Megatron with positional arguments."""

from __future__ import annotations

import re
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.megatron import write
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.pai.script import NAME, PaiScript, without_arguments
from taylor.parsers.training_config import TrainingConfig


class Pai(FlagLauncher):
    """Launch scripts of Pai-Megatron-Patch."""

    name = NAME
    title = "Pai-Megatron-Patch script"
    suffixes = (".sh",)
    telltale = re.compile(
        r"^[^#\n]*\bMEGATRON_PATCH_PATH=[\s\S]*?--(?:tensor|micro|num)[-_](?:model|batch|layers)", re.M
    )
    plan_keys = write.PLAN_FLAGS
    usual_device = UsualDevice("h100-80g", "Pai-Megatron-Patch files")
    no_dryrun = NoDryrun("is started with data and a checkpoint by its arguments, which no dry-run has")
    has_own_marks = True

    def launch(self, path: Path) -> PaiScript:
        """See `FlagLauncher.launch`."""
        return PaiScript.read(path)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        launch = self.launch(path)
        try:
            return config_from_launch(launch)
        except InputError as error:
            raise without_arguments(error, path, launch.text, launch.begun) from None
