"""Files that a script names: its own folder, and the files of its checkout that it takes in by ``source``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from taylor.base.files import SCRIPT_SUFFIXES, may_read
from taylor.parsers.text.shell_words import Word

MOST_DEPTH = 4
"""Most files that take in one another."""
MOST_FILES = 20
_FOLDERS = 6
_ROOT_MARKS = (".git", "pyproject.toml", "setup.py")
_SUFFIXES = (*SCRIPT_SUFFIXES, ".env")
_OWN = r"[\"']?\$(?:0|\{0\}|\{?BASH_SOURCE(?:\[0\])?\}?)[\"']?"
_RESOLVED = rf"[\"']?\$\(\s*(?:realpath|readlink\s+-f)\s+(?:--\s+)?{_OWN}\s*\)[\"']?"
_DIRNAME = rf"\$?\(?\s*dirname\s+(?:--\s+)?(?:{_RESOLVED}|{_OWN})\s*\)?"
_FOLDER = re.compile(rf"\s*{_DIRNAME}\s*")
_CHANGED = re.compile(
    rf"\s*cd\s+(?:--\s+)?[\"']?{_DIRNAME}(?P<up>(?:/\.\.)*)/?[\"']?\s*(?:[&\d]*>\s*/dev/null\s*)?(?:2>&1\s*)?"
    r"(?:&&|;)\s*pwd(?:\s+-[PL])?\s*"
)


def folder_of(command: str, file: Path) -> str | None:
    """The folder that a command's output names where it is the script's folder, or one above it; None otherwise.

    Parameters
    ----------
    command : str
        Text between ``$(`` and ``)``.
    file : Path
        The script.
    """
    folder = file.absolute().parent
    if _FOLDER.fullmatch(command):
        return str(folder)
    changed = _CHANGED.fullmatch(command)
    if changed is None:
        return None
    for _ in range(min(changed["up"].count(".."), _FOLDERS)):
        folder = folder.parent
    return str(folder)


def checkout_of(file: Path) -> Path:
    """The folder whose files a script may take in: its repository's root, its own folder where no mark tells it."""
    folder = file.resolve().parent
    for above in (folder, *list(folder.parents)[:_FOLDERS]):
        if any(os.path.exists(above / mark) for mark in _ROOT_MARKS):
            return above
    return folder


def named_file(word: Word, file: Path) -> Path | None:
    """The file of the checkout that a word names, by what stands behind its unknown part; None where there is none.

    A path from another machine (``/opt/slime/scripts/models/a.sh``) stands for the file whose path ends alike, with
    its folder's name at least.
    """
    start = 1 + max((at for at, char in enumerate(word.chars) if char.unknown), default=-1)
    text = "".join(char.text for char in word.chars[start:])
    if not text or len(text) > 1000 or "\0" in text or not text.endswith(_SUFFIXES):
        return None
    root = checkout_of(file)
    for path in _candidates(text, file.resolve().parent, root):
        try:
            found = path.resolve()
            if found.is_relative_to(root) and may_read(found) and found.is_file():
                return found
        except (OSError, RuntimeError):
            continue
    return None


def _candidates(text: str, folder: Path, root: Path) -> Iterator[Path]:
    yield folder / text
    parts = [part for part in Path(text).parts if part != "/"]
    above = [folder, *(each for each in folder.parents if each.is_relative_to(root))]
    for first in range(max(1, len(parts) - 1)):
        for place in above:
            yield place.joinpath(*parts[first:])
