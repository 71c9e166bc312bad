"""One door for every training configuration: the launcher whose file it is reads it."""

from __future__ import annotations

from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.parsers import registry
from taylor.parsers.registry import launchers_for
from taylor.parsers.training_config import TrainingConfig


def read_config(path: str | Path, register_path: Path | None = None) -> TrainingConfig:
    """Read a training configuration.

    Parameters
    ----------
    path : path
        MindFormers ``.yaml``/``.yml``, Megatron or MindSpeed ``.sh``, torchtitan ``.toml``.
    register_path : Path, optional
        The user's folder of registrations: models that a file names and does not describe.

    Raises
    ------
    InputError
        When the suffix is none of these, or the file cannot be read or holds wrong values.
    """
    file = Path(path)
    launchers = launchers_for(file)
    if not launchers:
        kinds = [f"{launcher.title} ({', '.join(launcher.suffixes)})" for launcher in registry.LAUNCHERS]
        raise InputError(
            "is not a known kind of configuration",
            file=path,
            value=file.suffix,
            cure=f"give a {', a '.join(kinds)}",
        )
    if len(launchers) > 1:
        text = read_text(file)
        # A file that none recognises is read all the same: the reader says what is missing.
        launchers = [launcher for launcher in launchers if launcher.recognises(file, text)] or launchers
    return launchers[0].read(file, register_path)
