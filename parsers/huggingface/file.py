"""A config.json, opened and read as a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from taylor.parsers.huggingface.model import read_model
from taylor.parsers.text.json_source import read_json
from taylor.register.model import ModelSpec


def read_model_file(file: Path) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model that a config.json describes, and what was assumed.

    Raises
    ------
    InputError
        When the file cannot be read, is no JSON, or describes no model that can be counted.
    """
    return read_model(read_config(file), file)


def read_config(file: Path) -> Any:
    """Content of a config.json, unchecked.

    Raises
    ------
    InputError
        When the file is missing, too large, no JSON, or names a field twice.
    """
    return read_json(file, "a config.json")
