"""One entry point for every training configuration: the launcher whose file it is reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.parsers import registry
from taylor.parsers.launch_scripts import refuse_launch_of_other
from taylor.parsers.other_files import refuse_other_file
from taylor.parsers.other_tools import refuse_mistaken, refuse_other_tool
from taylor.parsers.stage_comment import Rows, stage_devices_in
from taylor.parsers.stated_size import size_note
from taylor.parsers.training_config import TrainingConfig


def config_of(path: Path) -> Path:
    """The ``config.json`` of a Hugging Face folder; what is no folder with one stays as it is."""
    inside = path / "config.json"
    return inside if inside.is_file() else path


def read_config(
    path: str | Path, register_path: Path | None = None, environment: Mapping[str, str] | None = None
) -> TrainingConfig:
    """Read a training configuration.

    Parameters
    ----------
    path : path
        MindFormers, FlagScale or Primus ``.yaml``/``.yml``, Megatron or MindSpeed ``.sh``, torchtitan ``.toml``, a
        Hugging Face ``config.json`` or its folder.
    register_path : Path, optional
        The user's folder of registrations: models that a file names and does not describe.
    environment : mapping, optional
        Variables with which the job is started, over those of this process; they settle what a launcher
        reads from its environment.

    Raises
    ------
    InputError
        When the suffix is none of these, the file cannot be read or is another tool's (which is named), or file or
        environment hold wrong values.
    """
    file = config_of(Path(path))
    try:
        return _config_in(file, register_path, environment)
    except RecursionError:
        cure = "is this a training configuration?"
        raise InputError("is nested too deep", file=file, cure=cure) from None


def _config_in(file: Path, register_path: Path | None, environment: Mapping[str, str] | None) -> TrainingConfig:
    # A file that none recognises is read all the same: the reader says what is missing.
    launchers = registry.reading(file)
    if not launchers:
        refuse_other_tool(file)
        refuse_other_file(file)
        kinds = [f"{launcher.title} ({', '.join(launcher.suffixes)})" for launcher in registry.LAUNCHERS]
        raise InputError(
            "is not a known kind of configuration",
            file=file,
            value=file.suffix,
            cure=f"give a {', a '.join(kinds)}",
        )
    launcher = launchers[0]
    refuse_mistaken(file)
    try:
        config = launcher.read(file, register_path)
    except InputError:
        if launcher.has_own_marks and launcher.recognises(file, read_text(file)):
            raise
        refuse_launch_of_other(file)
        refuse_other_tool(file)
        refuse_other_file(file)
        raise
    low_memory = launcher.low_memory_in({**os.environ, **(environment or {})})
    schedule = replace(config.schedule, low_memory=low_memory)
    note = size_note(config)
    notes = config.notes if note is None else (note, *config.notes)
    return config.replace(schedule=schedule, stage_devices=_stage_devices(config), notes=notes)


def _stage_devices(config: TrainingConfig) -> Rows:
    """The devices of the stages that the file, or the one that holds its plan, names in a comment."""
    home = registry.launcher_of(config).home_of_plan(config)
    for path in dict.fromkeys((home, config.path)):
        if rows := stage_devices_in(read_text(path), path):
            return rows
    return ()
