"""The Ascend device that a training file states: by its name, its folder, its comments, or the NPUs of a node."""

from __future__ import annotations

import re
from pathlib import Path

A2, A3, A5 = "ascend-910b", "ascend-a3", "ascend-950dt"
GENERATIONS = (
    (A2, r"A2|910[Bb]\d?"),
    (A3, r"A3|910[Cc]|910_93\d*"),
    (A5, r"A5|950(?:DT|PR)|[Aa]scend[ _-]?950"),
)
"""Devices of the register, and what files call them: ``pretrain_qwen3_8b_4k_A3_ptd.sh``.

Source: Ascend/MindSpeed-LLM c77308a1 docs/zh/pytorch/training/install_guide.md:11-15 (Ascend 950, Atlas A3 and Atlas A2
training series), tests/poc (``_A5_`` scripts of Ascend 950).
"""
_NAMED = tuple(
    (device, re.compile(rf"(?<![A-Za-z0-9])(?:[Aa]scend[ _-]?)?(?:{words})(?![A-Za-z0-9])"))
    for device, words in GENERATIONS
)
_COMMENT = re.compile(r"(?:^|\s)#(.*)$", re.MULTILINE)
_FOLDERS = 2
"""Folders above a file whose names count."""
A3_NODE = 16
"""NPUs of a node of the A3 series, two dies of eight packages (register/devices/ascend-a3.yaml); A2 has eight."""


def stated_device(path: Path, text: str, npus_a_node: int | None) -> tuple[str, str] | None:
    """The device that a file for Ascend devices states, and what says so, as the end of a sentence.

    Evidence that names several generations settles nothing, and the next is asked.

    Parameters
    ----------
    npus_a_node : int or None
        Number that it starts, where the file states it.
    """
    where = path.absolute()
    folders = [folder.name for folder in list(where.parents)[:_FOLDERS]]
    for device, said in (
        (_only([where.name]), f"its name, {where.name}"),
        *((_only([folder]), f"its folder, {folder}") for folder in folders),
        (_only(_COMMENT.findall(text)), "its comments"),
    ):
        if device is not None:
            return device, f"by {said}"
    if npus_a_node == A3_NODE:
        return A3, f"for it starts {npus_a_node} NPUs a node"
    return None


def _only(texts: list[str]) -> str | None:
    """The one device that the texts name; None where they name none, or several."""
    found = {device for device, pattern in _NAMED for text in texts if pattern.search(text)}
    return found.pop() if len(found) == 1 else None
