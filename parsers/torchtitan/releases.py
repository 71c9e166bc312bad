"""The release of torchtitan that runs a TOML file, and what changed from one to the next.

A file has no key for it. In this order it is the release that a comment of the file states (``# taylor:
torchtitan_release 2024-12-26``, or a version: ``v0.2.0``), the date in a comment that names torchtitan, the last
release that knows every key of the file, and the newest with TOML files.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.parsers.flag_table import FlagTable
from taylor.parsers.nested_keys import leaves

VERSIONS = {
    "v0.1.0": date(2025, 6, 17),
    "v0.2.0": date(2025, 10, 17),
    "v0.2.1": date(2025, 12, 26),
    "v0.2.2": date(2026, 2, 20),
}
"""Dates of the tagged commits of pytorch/torchtitan."""
NEWEST = VERSIONS["v0.2.2"]

LOSS_COMPILED_FIRST = date(2024, 10, 22)
"""pytorch/torchtitan e10cb9494: ``compile`` takes the loss too, with the cast of the logits."""
LOSS_LEFT_OUT = date(2024, 12, 18)
"""e8977b007 train.py: "turning off compile on loss function"."""
LOSS_COMPILED_AGAIN = date(2025, 4, 2)
"""bbb1b616e torchtitan/components/loss.py: ``build_cross_entropy_loss``."""
MICRO_BATCH_SIZES = date(2025, 4, 7)
"""5e2033c75: a file states the size of a micro-batch; before, their number, by default that of the model parts."""
ENDS_IN_GROUPS = date(2025, 7, 28)
"""83e694105 torchtitan/models/llama3/infra/parallelize.py: embedding and head are groups of FSDP. Before, they belonged
to the root's group, which never reshards behind its forward (torch 2.13
torch/distributed/fsdp/_fully_shard/_fsdp_state.py:203-207)."""
EXPANDABLE_SEGMENTS = date(2024, 10, 22)
"""a5e57e4a9 run_llama_train.sh, today run_train.sh:43: the launch script sets ``expandable_segments:True``."""

_COMMENT = re.compile(r"^[ \t]*#(.*)$", re.MULTILINE)
_STATED = re.compile(r"^[ \t]*taylor:[ \t]*torchtitan_release[ \t]+(\S+)[ \t]*$")
_DATE = re.compile(r"(?<!\d)(20[2-9]\d)-?(0[1-9]|1[0-2])(?:-(0[1-9]|[12]\d|3[01]))?(?!\d)")
_WHOLE_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_LONGEST = 1000
"""Characters of a comment in which a date is looked for."""


@dataclass(frozen=True)
class Release:
    """A state of torchtitan's main branch.

    Parameters
    ----------
    day : date
        The newest commit's.
    why : str
        Where it is known from, as the end of a sentence; empty where nothing says it and the newest is taken.
    stated : bool
        A comment says it, which stays when entries are written.
    """

    day: date = NEWEST
    why: str = ""
    stated: bool = False

    @property
    def compiles_loss(self) -> bool:
        """Return whether the loss is compiled where the model is."""
        return LOSS_COMPILED_FIRST <= self.day < LOSS_LEFT_OUT or self.day >= LOSS_COMPILED_AGAIN

    @property
    def counts_micro_batches(self) -> bool:
        """Return whether a file of a stated release states the number of micro-batches, not their size."""
        return self.stated and self.day < MICRO_BATCH_SIZES

    @property
    def whole_ends(self) -> bool:
        """Return whether embedding and head stay gathered from the first forward on."""
        return self.day < ENDS_IN_GROUPS

    @property
    def note(self) -> str:
        """Sentence for the log."""
        if self.why:
            return f"torchtitan of {self.day.isoformat()} is assumed, {self.why}"
        return (
            f"the newest torchtitan with TOML files ({self.day.isoformat()}) is assumed: a comment"
            " «# taylor: torchtitan_release DATE» states another"
        )


def release_of(text: str, data: Mapping[str, Any], table: FlagTable, file: Path) -> Release:
    """The release that runs a file.

    Parameters
    ----------
    text : str
        The file's text.
    data : mapping
        Its tables.
    table : FlagTable
        With the months, or the last release, in which a key existed (`FlagRow.versions`).

    Raises
    ------
    InputError
        When the file's comment states neither a date nor a known version.
    """
    dated = None
    for comment in _COMMENT.finditer(text):
        line = comment[1][:_LONGEST]
        if stated := _STATED.match(line):
            return Release(_day_of(stated[1], file), "which a comment of the file states", stated=True)
        if dated is None and "torchtitan" in line.lower():
            dated = _newest_in(line)
    if dated is not None:
        return Release(dated, "the date in a comment of the file that names torchtitan", stated=True)
    return _by_keys(data, table)


def _day_of(word: str, file: Path) -> date:
    if word in VERSIONS:
        return VERSIONS[word]
    found = _WHOLE_DATE.fullmatch(word)
    try:
        if found:
            return date(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        pass
    raise InputError(
        "is neither a date nor a version of torchtitan with TOML files",
        file=file,
        field="# taylor: torchtitan_release",
        value=word[:80],
        cure=f"write a date, as 2024-12-26, or one of {', '.join(VERSIONS)}",
    )


def _newest_in(line: str) -> date | None:
    """The latest date of a line, of a month its last day; None where it has none."""
    days = []
    for year, month, day in _DATE.findall(line):
        last = monthrange(int(year), int(month))[1]
        days.append(date(int(year), int(month), min(int(day), last) if day else last))
    return min(max(days), NEWEST) if days else None


def _by_keys(data: Mapping[str, Any], table: FlagTable) -> Release:
    """The last release that knows all keys; the newest where no release knows them all."""
    first, last, name = date.min, NEWEST, ""
    for key, _ in leaves(data):
        row = table.find(key)
        if row is None or ".." not in row.versions:
            continue
        begin, _, end = row.versions.partition("..")
        first = max(first, _bound(begin, first=True) or date.min)
        if (until := _bound(end, first=False)) is not None and until < last:
            last, name = until, key
    if not name or first > last:
        return Release()
    return Release(last, f"the last that has the key {name}")


def _bound(word: str, *, first: bool) -> date | None:
    """The first or last day of a month, or a version's date; None where it is neither."""
    if word in VERSIONS:
        return VERSIONS[word]
    month = re.fullmatch(r"(\d{4})-(\d{2})", word)
    if month is None:
        return None
    year, number = int(month[1]), int(month[2])
    return date(year, number, 1 if first else monthrange(year, number)[1])
