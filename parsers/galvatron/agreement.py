"""Check that a file's tables are those of its own raw runs."""

from __future__ import annotations

import math
from pathlib import Path

from taylor.base.errors import InputError

NEAR = 0.02
"""Share by which a table may differ from what its file's raw runs make."""


def refuse_stale(stated: float, made: float | None, file: Path, field: str) -> None:
    """Refuse a figure of a table that the file's raw runs contradict.

    Raises
    ------
    InputError
        When both are there and differ by more than `NEAR`.
    """
    if made is not None and not math.isclose(stated, made, rel_tol=NEAR, abs_tol=1e-3):
        raise InputError(
            f"contradicts the raw runs of the same file, which make it {made:.6g}",
            file=file,
            field=field,
            value=stated,
            cure="process the raw runs again, or take out the ones that are not of this table",
        )
