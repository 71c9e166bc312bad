"""One door for every training configuration: the file's suffix says which reader takes it."""

from __future__ import annotations

from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.megatron.read import read_megatron
from taylor.parsers.mindformers.read import read_mindformers
from taylor.parsers.torchtitan.read import read_torchtitan
from taylor.parsers.training_config import TrainingConfig

_READERS = {
    ".yaml": read_mindformers,
    ".yml": read_mindformers,
    ".sh": read_megatron,
    ".toml": read_torchtitan,
}
CONFIG_SUFFIXES = tuple(_READERS)


def read_config(path: str | Path) -> TrainingConfig:
    """Read a training configuration.

    Parameters
    ----------
    path : path
        MindFormers ``.yaml``/``.yml``, Megatron or MindSpeed ``.sh``, torchtitan ``.toml``.

    Raises
    ------
    InputError
        When the suffix is none of these, or the file cannot be read or holds wrong values.
    """
    file = Path(path)
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise InputError(
            "is not a known kind of configuration",
            file=path,
            value=file.suffix,
            cure=f"give a {', '.join(CONFIG_SUFFIXES)} file",
        )
    return reader(file)
