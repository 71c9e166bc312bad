"""Example command lines of a script: in its own comments, and in the README files beside it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.parsers.text.shell_start import MOST_CHARACTERS, MOST_VALUES

_MOST_READMES = 8
_MOST_BYTES = 2**20
_MOST_LINES = 80
"""Lines of one command, each but the last ended by a backslash."""
_NAMED = re.compile(r"^[ \t]*([A-Za-z_]\w*)=[\"']?\$\{?(\d{1,2})(?!\d)", re.M)
_USED = re.compile(r"\$(?:\{(\d{1,2})[}:]|([1-9]))")
_PLACEHOLDER = re.compile(r"\$|<|\[|\.\.\.")


@dataclass(frozen=True)
class Example:
    """One command line that starts a script.

    Parameters
    ----------
    arguments : tuple of str
        Its words behind the script's name.
    place : str
        File and line that state it: ``README.md, line 111``.
    """

    arguments: tuple[str, ...]
    place: str


def positions(text: str) -> dict[int, tuple[str, int]]:
    """The positional arguments that a script takes: by position, the variable that it is assigned to and its line."""
    found: dict[int, tuple[str, int]] = {}
    for match in _USED.finditer(text):
        at = int(match[1] or match[2])
        if at:
            found.setdefault(at, ("", text.count("\n", 0, match.start()) + 1))
    for match in _NAMED.finditer(text):
        at = int(match[2])
        if at and not found.get(at, ("", 0))[0]:
            found[at] = (match[1], text.count("\n", 0, match.start()) + 1)
    return dict(sorted(found.items()))


def example_of(file: Path, text: str) -> Example | None:
    """The first example that states as many arguments as a script takes; None where there is none.

    One with more or fewer is an older version's, and its words may stand for other positions.

    Parameters
    ----------
    file : Path
        The script.
    text : str
        Its text.
    """
    last = max(positions(text), default=0)
    if not last:
        return None
    return next((each for each in _examples(file, text) if len(each.arguments) == last), None)


def closest_example(file: Path, text: str) -> Example | None:
    """The example of a script whose number of arguments is nearest to what it takes."""
    last = max(positions(text), default=0)
    return min(_examples(file, text), key=lambda each: abs(len(each.arguments) - last), default=None)


def _examples(file: Path, text: str) -> Iterator[Example]:
    comments = "\n".join(line.lstrip()[1:] if line.lstrip().startswith("#") else "" for line in text.splitlines())
    yield from _in_text(comments, file.name, "its comments")
    try:
        readmes = sorted(file.absolute().parent.glob("README*.md"), key=lambda path: (len(path.name), path.name))
    except OSError:
        return
    for readme in readmes[:_MOST_READMES]:
        try:
            yield from _in_text(read_text(readme, limit_bytes=_MOST_BYTES), file.name, readme.name)
        except InputError:
            continue


def _in_text(text: str, name: str, where: str) -> Iterator[Example]:
    lines = text.splitlines()
    start = re.compile(rf"^\s*(?:\$ )?(?:(?:sh|bash)\s+)?(?:\S*/)?{re.escape(name)}(?:\s+|\\?$)")
    for at, line in enumerate(lines):
        match = start.match(line[:MOST_CHARACTERS])
        if match is None:
            continue
        words = _words(_joined([line[match.end() :], *lines[at + 1 : at + _MOST_LINES]]))
        if words and not any(_PLACEHOLDER.search(word) for word in words):
            yield Example(words, f"{where}, line {at + 1}")


def _joined(lines: list[str]) -> str:
    parts = []
    for line in lines:
        bare = line.rstrip()
        if not bare.endswith("\\"):
            parts.append(bare)
            break
        parts.append(bare[:-1])
    return " ".join(parts)[:MOST_CHARACTERS]


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text, comments=True)[:MOST_VALUES])
    except ValueError:
        return ()
