"""Operator base, filled from folders of profiles, merged, exported, and summed up."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from taylor.base.errors import InputError
from taylor.blackbox.operator_base import OperatorBase, OperatorOrigin
from taylor.blackbox.operator_speed import OperatorSpeeds, SpeedLine
from taylor.blackbox.rejection import clean
from taylor.parsers.profiles.folder import RankSource, rank_sources


@dataclass(frozen=True)
class FilledProfile:
    """Profile of one rank: added, known before, or rejected for a reason."""

    path: Path
    taken: int = 0
    rejected: int = 0
    unread: int = 0
    known: bool = False
    left_out: str = ""


@dataclass(frozen=True)
class OriginSummary:
    """Content of a base for one device and its software.

    Parameters
    ----------
    samples, rejected : int
        Added, and rejected, by rule and in all.
    lines : mapping
        By ("type" or "core", name).
    """

    origin: OperatorOrigin
    operators: int
    samples: int
    rejected: dict[str, int]
    lines: dict[tuple[str, str], SpeedLine]


def fill_base(base: OperatorBase, folders: Sequence[Path], origin: OperatorOrigin) -> list[FilledProfile]:
    """Add the profiles below folders; those without shapes are rejected, with the reason.

    Raises
    ------
    InputError
        When a folder has no profile.
    """
    return [_fill(base, source, origin) for folder in folders for source in rank_sources(folder)]


def _fill(base: OperatorBase, source: RankSource, origin: OperatorOrigin) -> FilledProfile:
    file = source.operators_file
    try:
        table = source.operators()
    except InputError as error:
        return FilledProfile(file, left_out=str(error))
    with open(file, "rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
    when = datetime.fromtimestamp(file.stat().st_mtime, timezone.utc).date().isoformat()
    cleaned = clean([sample for sample in table.samples if sample.operator.is_compute])
    done = base.fill(origin, cleaned, digest=digest.hexdigest(), when=when)
    return FilledProfile(file, done.taken, sum(done.rejected.values()), table.unread, done.known)


def summaries(base: OperatorBase) -> list[OriginSummary]:
    """Content of the base, by origin."""
    found = []
    for origin in sorted(base.origins()):
        times = base.times(origin)
        samples = sum(time.count for time in times.values())
        lines = OperatorSpeeds(times).lines
        found.append(OriginSummary(origin, len(times), samples, base.rejected(origin), dict(lines)))
    return found
