"""The known launchers: one line each."""

from __future__ import annotations

from pathlib import Path

from taylor.parsers.flagscale.launcher import FlagScale
from taylor.parsers.huggingface.launcher import HuggingFace
from taylor.parsers.launcher import Launcher
from taylor.parsers.megatron.launcher import Megatron
from taylor.parsers.mindformers.launcher import MindFormers
from taylor.parsers.torchtitan.launcher import Torchtitan
from taylor.parsers.training_config import TrainingConfig

LAUNCHERS: tuple[Launcher, ...] = (
    MindFormers(),
    Megatron(),
    Torchtitan(),
    FlagScale(),
    HuggingFace(),
)


def launcher_of(config: TrainingConfig) -> Launcher:
    """The launcher that a configuration's file belongs to."""
    return {launcher.name: launcher for launcher in LAUNCHERS}[config.launcher]


def launchers_for(path: Path) -> list[Launcher]:
    """The launchers whose files end as this path does."""
    return [launcher for launcher in LAUNCHERS if path.suffix.lower() in launcher.suffixes]


def config_suffixes() -> tuple[str, ...]:
    """The suffixes of training files, in lower case."""
    return tuple(dict.fromkeys(suffix for launcher in LAUNCHERS for suffix in launcher.suffixes))
