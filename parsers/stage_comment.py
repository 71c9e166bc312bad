"""The comment of a training file that says on what its stages lie: ``# taylor: stage_devices h100-80g:4,a100-80g:4``.

No launcher's own words say it, for each rank sees its own device; without it a plan for several cards would be read as
one for stages that are all alike.
"""

from __future__ import annotations

import re
from pathlib import Path

from taylor.base.errors import InputError

Rows = tuple[tuple[str, int], ...]
"""Devices, and how many stages in a row lie on each."""

MOST_STAGES = 4096

BYTE_ORDER_MARK = "\ufeff"

_COMMENT = re.compile(
    r"(?:^|(?<=\ufeff))[ \t]*#[ \t]*taylor:[ \t]*stage_devices[ \t]+(\S.*?)[ \t]*(?:\r?\n|\Z)", re.MULTILINE
)


def rows_of(text: str) -> Rows:
    """The rows of ``NAME:N,NAME:N``; a number that is left out is 1.

    Raises
    ------
    ValueError
        Saying what is wrong with the text.
    """
    rows = []
    for part in text.split(","):
        name, _, count = part.strip().partition(":")
        if not name:
            raise ValueError(f"{text!r} must name devices with their stages: h100-80g:4,a100-80g:4")
        if count and not (count.isdecimal() and 0 < int(count[:9]) <= MOST_STAGES):
            raise ValueError(f"{count!r} is no number of stages from 1 to {MOST_STAGES}")
        rows.append((name, int(count) if count else 1))
    if sum(count for _, count in rows) > MOST_STAGES:
        raise ValueError(f"more than {MOST_STAGES} stages are named")
    return tuple(rows)


def text_of(rows: Rows) -> str:
    """The rows as the flag and the comment write them."""
    return ",".join(f"{name}:{count}" for name, count in rows)


def comment_of(rows: Rows) -> str:
    """The comment, without the end of its line."""
    return f"# taylor: stage_devices {text_of(rows)}"


def stage_devices_in(text: str, path: Path) -> Rows:
    """The rows that a file's comment names; empty where it has none.

    Raises
    ------
    InputError
        When it names them twice, or wrongly.
    """
    found = [match.group(1) for match in _COMMENT.finditer(text)]
    if not found:
        return ()
    try:
        if len(found) > 1:
            raise ValueError("stands in the file twice")
        return rows_of(found[0])
    except ValueError as wrong:
        raise InputError(
            str(wrong),
            file=path,
            field="# taylor: stage_devices",
            value=found[-1],
            cure="keep one such comment, that names devices with their stages",
        ) from None


def with_stage_devices(text: str, rows: Rows) -> str:
    """A file with the comment of these rows in place of the one that it has, if any; without rows, without one."""
    new = comment_of(rows)
    known = _COMMENT.search(text)
    if known is not None:
        line = known.group(0)
        end = line[len(line.rstrip("\r\n")) :]
        return text[: known.start()] + (new + end if rows else "") + text[known.end() :]
    if not rows:
        return text
    newline = "\r\n" if "\r\n" in text else "\n"
    mark, text = (text[0], text[1:]) if text.startswith(BYTE_ORDER_MARK) else ("", text)
    first, found, rest = text.partition("\n")
    if first.startswith("#!"):  # the line that names the interpreter stays the first
        return mark + first + (found or newline) + new + newline + rest
    return mark + new + newline + text
