"""The known launchers: one line each."""

from __future__ import annotations

from pathlib import Path

from taylor.base.files import read_text
from taylor.parsers.axolotl.launcher import Axolotl
from taylor.parsers.bridge.launcher import Bridge, BridgeRecipe
from taylor.parsers.flagscale.launcher import FlagScale
from taylor.parsers.gptneox.launcher import GptNeox, GptNeoxScript
from taylor.parsers.huggingface.launcher import HuggingFace
from taylor.parsers.huggingface.registered import RegisteredModel
from taylor.parsers.launcher import Launcher
from taylor.parsers.llamafactory.launcher import LlamaFactory
from taylor.parsers.megatron.launcher import Megatron
from taylor.parsers.mindformers.launcher import MindFormers
from taylor.parsers.mlperf.launcher import Mlperf
from taylor.parsers.nanotron.launcher import Nanotron
from taylor.parsers.nemo_rl.launcher import NemoRl, NemoRlSharded
from taylor.parsers.olmo.launcher import OlmoConfig, OlmoScript
from taylor.parsers.paddlenlp.launcher import PaddleNLP
from taylor.parsers.pai.launcher import Pai
from taylor.parsers.primus.launcher import Primus, PrimusTorchtitan
from taylor.parsers.slime.launcher import Slime
from taylor.parsers.swift.launcher import Swift
from taylor.parsers.torchtitan.launcher import Torchtitan
from taylor.parsers.torchtitan.script_launcher import TorchtitanScript
from taylor.parsers.trainer_script.launcher import TrainerScript
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.verl.launcher import Verl, VerlSharded

LAUNCHERS: tuple[Launcher, ...] = (
    MindFormers(),
    Megatron(),
    Swift(),
    Slime(),
    Pai(),
    Mlperf(),
    Bridge(),
    BridgeRecipe(),
    Torchtitan(),
    TorchtitanScript(),
    FlagScale(),
    PaddleNLP(),
    Primus(),
    PrimusTorchtitan(),
    Verl(),
    VerlSharded(),
    NemoRl(),
    NemoRlSharded(),
    LlamaFactory(),
    Axolotl(),
    GptNeox(),
    GptNeoxScript(),
    TrainerScript(),
    Nanotron(),
    OlmoScript(),
    HuggingFace(),
    RegisteredModel(),
    OlmoConfig(),
)


def launcher_of(config: TrainingConfig) -> Launcher:
    """The launcher that a configuration's file belongs to."""
    return {launcher.name: launcher for launcher in LAUNCHERS}[config.launcher]


def speaking_for(config: TrainingConfig) -> Launcher:
    """The launcher whose files a plan of the configuration has to be said in: that of its framework, where its own file
    describes a training and starts none."""
    own = launcher_of(config)
    if own.starts_training:
        return own
    return {each.name: each for each in LAUNCHERS}.get(config.rules.framework.name, own)


def launchers_for(path: Path) -> list[Launcher]:
    """The launchers whose files end as this path does."""
    return [launcher for launcher in LAUNCHERS if path.suffix.lower() in launcher.suffixes]


def recognising(path: Path) -> list[Launcher]:
    """The launchers whose files end as this path does, and that know the text as one of theirs: those with marks of
    their own alone, where there are any.

    Raises
    ------
    InputError
        When the file cannot be read.
    """
    launchers = launchers_for(path)
    text = read_text(path) if launchers else ""
    found = [launcher for launcher in launchers if launcher.recognises(path, text)]
    return [launcher for launcher in found if launcher.has_own_marks] or found


def is_training_file(path: Path) -> bool:
    """Return whether a file is one of a launcher's, by its suffix, and by its text where that is common to other files.

    Raises
    ------
    InputError
        When such a file cannot be read.
    """
    return any(launcher.suffix_decides for launcher in launchers_for(path)) or bool(recognising(path))


def config_suffixes() -> tuple[str, ...]:
    """The suffixes that only training files have, in lower case."""
    deciding = [launcher for launcher in LAUNCHERS if launcher.suffix_decides]
    return tuple(dict.fromkeys(suffix for launcher in deciding for suffix in launcher.suffixes))
