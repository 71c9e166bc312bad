"""Standard output for programs: the one JSON document of a command, and its errors as data."""

from __future__ import annotations

import errno
import io
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from taylor.base.errors import EXIT_INTERRUPTED, InputError, TaylorError

JSON_FLAG = "--json"

TEXT, ERROR, RESULT = "taylor.text/1", "taylor.error/1", "taylor.result/1"
"""Schemas of what a command without a document of its own prints, of an error, and of a plan."""


class OneDocument(io.TextIOBase):
    """Standard output of a command with ``--json``: whatever the command prints, one document is written.

    Parameters
    ----------
    stream : text stream
        Where the document goes.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._printed: list[str] = []
        self._done = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the stream behind it."""
        return str(self._stream.encoding)

    def writable(self) -> bool:
        """Return that text can be written."""
        return True

    def write(self, text: str) -> int:
        """Keep what the command prints, for `end`."""
        self._printed.append(text)
        return len(text)

    def document(self, text: str) -> None:
        """Write the document; a second one has no place any more."""
        if not self._done:
            self._done = True
            self._stream.write(text)
            self._stream.flush()

    def end(self) -> None:
        """Write what was printed as a document of lines, where the command had none of its own."""
        self.document(document_text(TEXT, {"lines": "".join(self._printed).splitlines()}))


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line has ``--json``."""
    words = list(arguments)
    flags = words[: words.index("--")] if "--" in words else words
    return JSON_FLAG in flags or JSON_FLAG[1:] in flags


@contextmanager
def one_document(*, wanted: bool) -> Iterator[None]:
    """Let standard output take one JSON document, an error's where one ends the command, while the block runs."""
    if not wanted:
        yield
        return
    real = sys.stdout
    sys.stdout = only = OneDocument(real)
    try:
        yield
        only.end()
    except SystemExit:  # --help and --version
        only.end()
        raise
    except BaseException as error:
        only.document(document_text(ERROR, error_data(error)))
        raise
    finally:
        sys.stdout = real


def error_data(error: BaseException) -> dict[str, Any]:
    """An error as plain data; one that no user causes has the code ``fault``."""
    if isinstance(error, TaylorError):
        return error.to_dict()
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return error_data(MemoryError())
    if isinstance(error, OSError) and error.filename is not None:
        return refused_path(error).to_dict()
    if isinstance(error, KeyboardInterrupt):
        stated = TaylorError("interrupted; what was finished is kept").to_dict()
        return stated | {"code": "interrupted", "exit_code": EXIT_INTERRUPTED}
    if isinstance(error, MemoryError):
        stated = TaylorError("needs more memory than this process may take").to_dict()
        return stated | {"code": "too_much", "exit_code": 1}
    return TaylorError(f"{type(error).__name__}: {error}").to_dict() | {"code": "fault", "exit_code": 1}


def refused_path(error: OSError) -> InputError:
    """Error of a path that the system refuses: too long, no permission on its folder, a broken disk."""
    return InputError(error.strerror or str(error), file=error.filename, cure="check the path")


def print_text(text: str) -> None:
    """Print the text of a document on standard output."""
    if isinstance(sys.stdout, OneDocument):
        sys.stdout.document(text)
    else:
        sys.stdout.write(text)


def document_text(schema: str, data: Mapping[str, Any], *, ascii_only: bool = True) -> str:
    """Text of a document, one key a line; a number that JSON lacks is null."""
    lines = (
        f"  {json.dumps(key)}: {json.dumps(finite(value), ensure_ascii=ascii_only, allow_nan=False, default=str)}"
        for key, value in ({"schema": schema} | dict(data) | {"schema": schema}).items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def finite(value: Any) -> Any:
    """Plain data with None in place of every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return value
