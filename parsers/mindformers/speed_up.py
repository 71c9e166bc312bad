"""The JSON file of MindSpore's overlaps that a MindFormers file names: its switches as if they stood in the file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import read_text

_SECTIONS = ("context", "ascend_config")
_PATH, _SWITCHES = "parallel_speed_up_json_path", "parallel_speed_up_json"
_MAX_BYTES = 2**16


def with_speed_up(data: Mapping[Any, Any], file: Path) -> Mapping[Any, Any]:
    """The keys of a training file, with the switches of the JSON file that it names in place of that name.

    The name stays where no such file lies beside the training file, or what lies there is no JSON mapping. Jobs are
    started from MindFormers' root, so a name that begins with the training file's folder means that folder.
    """
    context = data.get(_SECTIONS[0])
    ascend = context.get(_SECTIONS[1]) if isinstance(context, Mapping) else None
    name = ascend.get(_PATH) if isinstance(ascend, Mapping) else None
    if not isinstance(name, str) or not isinstance(context, Mapping) or not isinstance(ascend, Mapping):
        return data
    found = _beside(name, file)
    try:
        switches = None if found is None else json.loads(read_text(found, limit_bytes=_MAX_BYTES))
    except (InputError, ValueError, RecursionError):
        return data
    if not isinstance(switches, dict):
        return data
    changed = {key: value for key, value in ascend.items() if key != _PATH} | {_SWITCHES: switches}
    return {**data, _SECTIONS[0]: {**context, _SECTIONS[1]: changed}}


def _beside(name: str, file: Path) -> Path | None:
    """The file of that name below the training file's folder; None where there is none."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or path.suffix != ".json":
        return None
    folder = file.absolute().parent
    own = path.parent.parts
    tried = [folder / path]
    if own and folder.parts[-len(own) :] == own:
        tried.append(folder / path.name)
    return next((each for each in tried if os.path.isfile(each)), None)
