"""What moved between two evaluations, by launcher and cause, and whether the changelog explains it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.gate.evaluate import CAUSES, MEMORY, STEP
from benchmarks.gate.points import Group

MOVED = 1e-3
"""Change of a part, as a fraction of the whole step or memory before, from which on a point counts as moved."""

SAME = 0.02
"""Difference of two figures of a move, in points of percent, up to which they are the same."""


@dataclass(frozen=True)
class Move:
    """Points of one launcher and precision whose figure moved by one cause.

    Parameters
    ----------
    points, of : int
        Points that moved, and all that both sides evaluate.
    median, least, most : float
        Change of that part, in percent of the whole step or memory before; of the points that moved.
    """

    launcher: str
    cause: str
    points: int
    of: int
    median: float
    least: float
    most: float

    @property
    def name(self) -> str:
        """Its name in `accepted.json`."""
        return f"{self.launcher} {self.cause}"

    def figures(self) -> dict[str, float]:
        """The figures that are recorded."""
        return {"points": self.points, "median": self.median, "least": self.least, "most": self.most}


def moves(groups: Sequence[Group], before: Mapping[int, Any], after: Mapping[int, Any]) -> list[Move]:
    """What moved, by launcher with its precision; what one side alone reads is a move of its own."""
    found = []
    launchers = list(dict.fromkeys(f"{group.launcher} {group.precision}" for group in groups))
    for launcher in launchers:
        own = [at for at, group in enumerate(groups) if f"{group.launcher} {group.precision}" == launcher]
        both = [at for at in own if at in before and at in after]
        for side, word in ((before, "read no more"), (after, "newly read")):
            alone = sum(len(side[at]) for at in own if at in side and at not in both)
            if alone:
                found.append(Move(launcher, word, alone, alone, 0.0, 0.0, 0.0))
        if both:
            old, new = (np.concatenate([side[at] for at in both]) for side in (before, after))
            found += [move for part in (STEP, MEMORY) for move in _moves_of(launcher, part, old, new)]
    return found


def _moves_of(launcher: str, part: tuple[str, ...], old: np.ndarray, new: np.ndarray) -> list[Move]:
    columns = [CAUSES.index(cause) for cause in part]
    old, new = old[:, columns], new[:, columns]
    whole = old.sum(axis=1)
    with np.errstate(all="ignore"):
        change = (new - old) / whole[:, None]
    known = np.isfinite(old).all(axis=1) & (whole > 0)
    found = []
    for cause, column in zip(part, change.T, strict=True):
        # A figure that is no number on one side alone is a move beyond all bounds.
        moved = np.where(known & np.isfinite(column), np.abs(column) > MOVED, known)
        if moved.any():
            percent = np.round(100 * np.nan_to_num(column[moved], nan=1e6, posinf=1e6, neginf=-1e6), 2)
            found.append(
                Move(
                    launcher,
                    cause,
                    int(moved.sum()),
                    len(old),
                    float(np.round(np.median(percent), 2)),
                    float(percent.min()),
                    float(percent.max()),
                )  # fmt: skip
            )
    return found


def unexplained(
    found: Sequence[Move], accepted: Mapping[str, Any], version: str, changelog: str
) -> list[tuple[Move, str]]:
    """The moves that the changelog's «Unreleased» does not explain, each with the reason.

    Parameters
    ----------
    accepted : mapping
        ``release``, and ``moves`` by name: the figures when it was recorded, and the beginning of a changelog line.
    """
    unreleased = " ".join(changelog.partition("## Unreleased")[2].partition("\n## ")[0].split())
    known = accepted.get("moves", {}) if accepted.get("release") == version else {}
    problems = []
    for move in found:
        entry = known.get(move.name)
        if entry is None:
            problems.append((move, "it is not recorded; say it in CHANGELOG.md, then --accept that line"))
        elif len(entry["changelog"]) < 20 or " ".join(entry["changelog"].split()) not in unreleased:
            problems.append((move, f"CHANGELOG.md has no line {entry['changelog']!r} under «Unreleased»"))
        elif any(abs(value - entry[name]) > SAME * (100 if name == "points" else 1) for name, value in _same(move)):
            problems.append((move, f"it moved further since it was recorded: {entry}; say it and --accept it again"))
    return problems


def _same(move: Move) -> list[tuple[str, float]]:
    return list(move.figures().items())


def table_text(found: Sequence[Move]) -> str:
    """The moves as a table."""
    if not found:
        return "nothing moved"
    rows: list[tuple[str, ...]] = [("launcher", "cause", "points moved", "median", "from", "to")]
    rows += [
        (each.launcher, each.cause, f"{each.points:,} of {each.of:,}", *(f"{value:+.2f} %" for value in figures))
        for each in found
        for figures in [(each.median, each.least, each.most)]
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(f"  {line}" for line in lines)
