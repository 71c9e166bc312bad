"""Peak memory read from a dry-run's log: every known form of the line, any encoding."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError

_AMOUNT = rb"\s*[:=]?\s*(\d{1,9}(?:\.\d{1,6})?)\s*M(?:i?B)?\b"
_USED = re.compile(rb"Used peak memory usage \(without fragments\)" + _AMOUNT, re.IGNORECASE)
_ACTUAL = re.compile(rb"Actual peak memory usage \(with fragments\)" + _AMOUNT, re.IGNORECASE)
_POOL = re.compile(rb"(actual )?peak used mem" + _AMOUNT, re.IGNORECASE)
_STATIC = re.compile(rb"Total Static Memory size" + _AMOUNT, re.IGNORECASE)
_DYNAMIC = re.compile(rb"Total Dynamic memory size" + _AMOUNT, re.IGNORECASE)
_COLOUR = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_OUT_OF_MEMORY = re.compile(
    r"out[ _]?of[ _]?memory|memory (?:is )?not enough|not enough memory|alloc\w* (?:device )?memory failed"
    r"|failed to alloc\w* (?:device )?memory",
    re.IGNORECASE,
)
_MATTERS = re.compile(
    r"error|exception|fatal|critical|killed|abort|out of memory|not enough|failed|refuse|segmentation|not supported",
    re.IGNORECASE,
)
_CHUNK = 1 << 22
_OVERLAP = 4096
"""Bytes of a chunk that are read again with the next one, so that no line is missed at a seam."""
_TAIL = 1 << 17
LINES_KEPT = 6
LINE_WIDTH = 240


@dataclass(frozen=True)
class LoggedPeak:
    """Memory figures of a log, MiB.

    Parameters
    ----------
    used_mib : float or None
        The peak without fragments; the figure that plans are checked against.
    actual_mib : float or None
        The peak with fragments. It may be the smaller one, since the two are taken at different moments.
    """

    used_mib: float | None = None
    actual_mib: float | None = None


def read_peak(path: Path) -> LoggedPeak:
    """Find the peak memory in a log.

    Of several lines of a form the largest counts. In order of preference: ``Used peak memory usage
    (without fragments)``, the memory pools' ``peak used mem``, ``Actual peak memory usage (with
    fragments)``, and the sum of ``Total Static Memory size`` and ``Total Dynamic memory size`` that
    old versions print. Encodings need not be known: NULs are dropped (so UTF-16 reads as ASCII) and
    the words sought are ASCII.

    Raises
    ------
    InputError
        When the file cannot be read.
    """
    largest: dict[str, float] = {}

    def note(form: str, amount: bytes) -> None:
        largest[form] = max(largest.get(form, 0.0), float(amount))

    try:
        with open(path, "rb") as stream:
            rest = b""
            while chunk := stream.read(_CHUNK):
                text = rest + _COLOUR.sub(b"", chunk.replace(b"\0", b""))
                # A number cut off at the seam must not be read as a smaller one: keep the last line back.
                end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
                end = end if end > len(text) - _OVERLAP else len(text)
                _note_forms(text[:end], note)
                rest = text[end:]
            _note_forms(rest, note)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=path) from error
    old = sum(largest[form] for form in ("static", "dynamic")) if {"static", "dynamic"} <= set(largest) else None
    used = next((largest[form] for form in ("used", "pool", "actual", "pool-actual") if form in largest), old)
    actual = largest.get("actual", largest.get("pool-actual"))
    return LoggedPeak(used, actual)


def _note_forms(text: bytes, note: object) -> None:
    assert callable(note)
    for form, pattern in (("used", _USED), ("actual", _ACTUAL), ("static", _STATIC), ("dynamic", _DYNAMIC)):
        for match in pattern.finditer(text):
            note(form, match[1])
    for match in _POOL.finditer(text):
        note("pool-actual" if match[1] else "pool", match[2])


def last_lines(path: Path, count: int = LINES_KEPT) -> tuple[str, ...]:
    """The last lines of a log that matter: those about an error, else simply the last ones."""
    try:
        with open(path, "rb") as stream:
            stream.seek(max(0, path.stat().st_size - _TAIL))
            data = stream.read(_TAIL)
    except OSError:
        return ()
    text = _COLOUR.sub(b"", data.replace(b"\0", b"")).decode("utf-8", errors="replace")
    lines = [line.strip()[:LINE_WIDTH] for line in text.splitlines() if line.strip()]
    relevant = [line for line in lines if _MATTERS.search(line)]
    return tuple((relevant or lines)[-count:])


def reports_out_of_memory(path: Path) -> bool:
    """Return whether the end of a log says that device memory ran out."""
    return any(_OUT_OF_MEMORY.search(line) for line in last_lines(path, 200))
