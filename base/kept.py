"""Work that a tool keeps for its own later runs: found again unchanged, or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import MAX_TEXT_BYTES, read_text, write_atomic


def write_kept(path: str | Path, data: Any) -> Path:
    """Keep plain JSON data with its checksum.

    Raises
    ------
    WriteError
        When the file cannot be written.
    """
    text = _canonical(data)
    return write_atomic(path, f'{{"sha256": "{_digest(text)}",\n"kept": {text}}}\n')


def read_kept(path: str | Path, *, limit_bytes: int = MAX_TEXT_BYTES) -> Any:
    """The data that `write_kept` kept; None where the file is missing, or is not as it was written.

    A kept file saves work and decides nothing that could not be found again. So a file changed by a disk, another
    version or a person is no error: the work is done again.
    """
    try:
        record = json.loads(read_text(path, limit_bytes=limit_bytes))
        return record["kept"] if record["sha256"] == _digest(_canonical(record["kept"])) else None
    except (InputError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _canonical(data: Any) -> str:
    return json.dumps(data, indent=1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
