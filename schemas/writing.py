"""Documents written: each is checked against the model of its schema before it leaves.

This is the one way in which a command prints or writes a document; an error's and that of plain lines, which
`base.documents` makes, have models of a few fields each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taylor.base.documents import document_text, print_text
from taylor.base.errors import DocumentError
from taylor.base.files import write_atomic

_SURROGATE = re.compile(r"\\ud[89a-f][0-9a-f]{2}")
"""Escape of a surrogate: alone it is a byte of a file's name that is no text, or comes so from a JSON file."""


def checked_text(schema: str, data: Mapping[str, Any], *, ascii_only: bool = True) -> str:
    """Text of a document that is valid under its schema.

    Parameters
    ----------
    schema : str
        Name and version, as ``taylor.result/1``: the first key.

    Raises
    ------
    DocumentError
        With the field that differs from the schema.
    """
    text = document_text(schema, data, ascii_only=ascii_only)
    check_text(schema, text)
    return text


def check_text(schema: str, text: str) -> None:
    """Check the text of a document against its schema.

    Raises
    ------
    DocumentError
        With the field that differs from it.
    """
    from pydantic import ValidationError

    from taylor.schemas.registry import model_of

    try:
        # Names may have surrogates, which pydantic refuses; no schema says anything of a text's characters.
        known = _SURROGATE.sub(r"\\ufffd", text).encode("utf-8", "replace")
        model_of(schema).model_validate_json(known, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise DocumentError(f"the answer is no {schema}: {field}: {first['msg']}; please report it") from None


def print_document(schema: str, data: Mapping[str, Any]) -> None:
    """Print a document on standard output.

    Raises
    ------
    DocumentError
        When it is not valid.
    """
    print_text(checked_text(schema, data))


def write_document(path: str | Path, schema: str, data: Mapping[str, Any]) -> Path:
    """Write a document to a file, atomically.

    Raises
    ------
    DocumentError
        When it is not valid; no file is written.
    WriteError
        When the file cannot be written.
    """
    return write_atomic(path, checked_text(schema, data))
