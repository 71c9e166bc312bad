"""Outputs of a run without times, by which two runs are compared."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path

COMPARED = (".csv", ".yaml", ".yml", ".sh", ".toml", ".mps", ".sol", ".json", ".orig")
"""Endings of the files compared; pages and pictures draw the solve's own clock."""

_STAMP = re.compile(r"(test_result_|runs/)\d{14}(?:_\d+)?")
_STAMP_BYTES = re.compile(_STAMP.pattern.encode())
_TIMES = re.compile(
    rb'("(?:solve_seconds|seconds|time|wall_seconds|time_limit)": )[0-9.eE+-]+|("sha256": )"[0-9a-f]{64}"'
)
"""A kept file's checksum counts its times too; what it is of is compared itself. A limit of time is the time left."""

_WORKERS = re.compile(rb"(-workers )\d+")
"""Of the command that a verdict repeats: runs with other numbers of workers are compared."""


def comparable(folder: Path) -> dict[str, bytes]:
    """Every output file below a folder by its name without time stamps, with times taken out of its content."""
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in COMPARED and not is_debris(path):
            found[_STAMP.sub(r"\1", str(path.relative_to(folder)))] = without_times(path.name, path.read_bytes())
    return found


def without_times(name: str, content: bytes) -> bytes:
    """A file's content without wall-clock times, stamps in paths, and the number of workers that a command states."""
    if name.endswith(".csv"):
        rows = list(csv.reader(io.StringIO(content.decode("utf-8"))))
        if rows and "time" in rows[0]:
            place = rows[0].index("time")
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(row[:place] + row[place + 1 :] for row in rows)
            content = text.getvalue().encode()
        content = _STAMP_BYTES.sub(rb"\1", content)
    elif name.endswith(".json"):
        content = _WORKERS.sub(rb"\g<1>N", _TIMES.sub(rb"\g<1>\g<2>0", content))
    return content


def differences(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> list[str]:
    """Files that two runs do not share byte for byte."""
    found = []
    for name in sorted({*one, *other}):
        if name not in one or name not in other:
            found.append(f"{name} is missing in one")
        elif one[name] != other[name]:
            found.append(f"{name} {_first_difference(one[name], other[name])}")
    return found


def is_debris(path: Path) -> bool:
    """Return whether a file is the temporary one of a write that was killed."""
    return path.name.startswith(".")


def _first_difference(one: bytes, other: bytes) -> str:
    for number, (a, b) in enumerate(zip(one.splitlines(), other.splitlines(), strict=False), 1):
        if a != b:
            return f"line {number}: {a[:80]!r} and {b[:80]!r}"
    return f"has {len(one)} and {len(other)} bytes"
