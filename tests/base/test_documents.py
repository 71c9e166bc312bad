"""Standard output as one document, and errors as data."""

from __future__ import annotations

import errno
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from taylor.base.documents import (
    OneDocument,
    asks_for_json,
    document_text,
    error_data,
    finite,
    one_document,
    print_text,
    refused_path,
)
from taylor.base.errors import InfeasibleError, InputError


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["rank", "--json"], True),
        (["rank", "-json"], True),
        (["rank"], False),
        (["run", "--", "--json"], False),
        (["--json", "--", "x"], True),
    ],
)
def test_a_command_line_asks_for_json_ahead_of_the_words_of_another_program(words: list[str], wanted: bool) -> None:
    assert asks_for_json(words) is wanted


@pytest.mark.parametrize(
    ("error", "code", "exit_code", "message"),
    [
        (InputError("is bad", field="--tp", value=3), "bad_input", 2, "--tp: is bad (found 3)"),
        (InfeasibleError("no plan"), "infeasible", 3, "no plan"),
        (OSError(errno.ENOMEM, "no memory", "file"), "too_much", 1, "needs more memory than this process may take"),
        (OSError(errno.EACCES, "Permission denied", "a/b"), "bad_input", 2, "a/b: Permission denied; check the path"),
        (OSError(errno.EPIPE, "Broken pipe"), "fault", 1, "BrokenPipeError: [Errno 32] Broken pipe"),
        (KeyboardInterrupt(), "interrupted", 130, "interrupted; what was finished is kept"),
        (MemoryError(), "too_much", 1, "needs more memory than this process may take"),
        (ValueError("odd"), "fault", 1, "ValueError: odd"),
    ],
)
def test_each_error_has_its_word_and_exit_code(error: BaseException, code: str, exit_code: int, message: str) -> None:
    data = error_data(error)
    assert (data["code"], data["exit_code"], data["message"]) == (code, exit_code, message)


def test_a_refused_path_without_words_of_the_system_has_those_of_the_error() -> None:
    assert refused_path(OSError("too long")).problem == "too long"


def test_a_document_has_a_key_a_line_its_schema_first_and_null_for_what_json_lacks() -> None:
    data = {"a": [1.5, float("inf")], "b": {"c": (float("nan"), 2)}, "schema": "other", "d": Path("é")}
    text = document_text("taylor.text/1", data)
    assert text.splitlines() == [
        "{", '  "schema": "taylor.text/1",', '  "a": [1.5, null],', '  "b": {"c": [null, 2]},', '  "d": "\\u00e9"', "}",
    ]  # fmt: skip
    assert '"d": "é"' in document_text("taylor.text/1", data, ascii_only=False)
    assert finite({1: -float("inf")}) == {"1": None}
    assert finite(True) is True


def test_one_document_leaves_a_command_whatever_it_prints(capsys: Any) -> None:
    with one_document(wanted=True):
        print("a")
        print("b")
    assert json.loads(capsys.readouterr().out) == {"schema": "taylor.text/1", "lines": ["a", "b"]}
    with one_document(wanted=True):
        print("lost")
        print_text('{"mine": 1}')
        print_text('{"second": 1}')
    assert capsys.readouterr().out == '{"mine": 1}'
    with one_document(wanted=False):
        print_text("plain\n")
    assert capsys.readouterr().out == "plain\n"


def test_an_error_is_the_document_and_goes_on(capsys: Any) -> None:
    real = sys.stdout
    with pytest.raises(InputError), one_document(wanted=True):
        print("lost")
        raise InputError("is bad")
    assert sys.stdout is real
    assert json.loads(capsys.readouterr().out)["message"] == "is bad"
    with pytest.raises(SystemExit), one_document(wanted=True):
        print("help")
        raise SystemExit(0)
    assert json.loads(capsys.readouterr().out)["lines"] == ["help"]


def test_the_stream_of_one_document_is_a_writable_text_stream() -> None:
    behind = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    stream = OneDocument(behind)
    assert stream.writable() and stream.encoding == "latin-1" and stream.write("abc") == 3
