"""Sizes with units, as configuration files write them."""

from __future__ import annotations

import math
import re
from pathlib import Path

from taylor.base.errors import InputError

_MIB_PER_UNIT = {"B": 1 / 2**20, "K": 1 / 2**10, "M": 1.0, "G": 2.0**10, "T": 2.0**20}
_SIZE = re.compile(r"\s*(\d{1,12}(?:\.\d{1,12})?)\s*(?:([KMGT])(?:I?B)?|(B))\s*", re.IGNORECASE)
_CURE = 'write a number and a unit, as in "55GB"'
MAX_DEVICE_MIB = 2**30
"""A pebibyte: no device holds more."""


def memory_mib(text: object, *, file: str | Path | None = None, field: str | None = None) -> float:
    """Read a memory size, in MiB.

    MindSpore's ``max_device_memory`` counts in binary units whatever the spelling: ``"55GB"`` is
    55 · 1024 = 56320 MiB.

    Parameters
    ----------
    text : object
        ``"55GB"``, ``"52.5 GB"``, ``"60000MB"``, ….
    file, field
        Named in the error.

    Raises
    ------
    InputError
        When it is not a size, or not above 0.
    """
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InputError("is not a memory size with its unit", file=file, field=field, value=text, cure=_CURE)
    mib = float(match[1]) * _MIB_PER_UNIT[(match[2] or match[3]).upper()]
    if not (math.isfinite(mib) and 0 < mib <= MAX_DEVICE_MIB):
        raise InputError("must be above 0 and below a pebibyte", file=file, field=field, value=text, cure=_CURE)
    return mib
