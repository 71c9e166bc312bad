"""The AMD device that a Primus experiment states: by its name, a folder above it, or its comments."""

from __future__ import annotations

import re
from pathlib import Path

_DEVICES = {"MI300X": "mi300x-192g", "MI325X": "mi325x-256g", "MI350X": "mi350x-288g", "MI355X": "mi355x-288g"}
"""Devices of the register by their names in Primus' folders (AMD-AGI/Primus fd1eeabb examples/megatron/configs)."""
_NAMED = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(_DEVICES)})(?![A-Za-z0-9])", re.IGNORECASE)
_COMMENT = re.compile(r"(?:^|\s)#(.*)$", re.MULTILINE)
_FOLDERS = 3
"""Folders above a file whose names count: ``configs/MI300X/diffusion``."""


def stated_device(path: Path, text: str) -> tuple[str, str] | None:
    """The device, and what says so as the end of a sentence; None where nothing does, or the next best names several.

    Parameters
    ----------
    text : str
        The text of the file.
    """
    where = path.absolute()
    folders = [folder.name for folder in list(where.parents)[:_FOLDERS]]
    for texts, said in (
        ([where.name], f"its name, {where.name}"),
        *(([folder], f"its folder, {folder}") for folder in folders),
        (_COMMENT.findall(text), "its comments"),
    ):
        found = {match[1].upper() for each in texts for match in _NAMED.finditer(each)}
        if len(found) == 1:
            return _DEVICES[found.pop()], f"by {said}"
    return None
