"""Documents are checked as they are written."""

from __future__ import annotations

import json

import pytest

from taylor.base.documents import TEXT
from taylor.base.errors import DocumentError
from taylor.schemas.writing import checked_text


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("name", ["\udcd0\udccd.yaml", "\ud800.yaml", "\U0001f600", "C:\\udcd0", "\\ud83d\udcd0", "型"])
def test_a_name_of_any_characters_is_written_as_it_is(name: str, ascii_only: bool) -> None:
    assert json.loads(checked_text(TEXT, {"lines": [name]}, ascii_only=ascii_only))["lines"] == [name]


@pytest.mark.parametrize("data", [{"lines": [1]}, {"lines": [], "more": 1}, {}])
def test_a_document_that_differs_from_its_schema_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(DocumentError, match=f"no {TEXT}"):
        checked_text(TEXT, data)


def test_a_text_is_ascii_unless_it_may_be_otherwise() -> None:
    assert "\\u578b" in checked_text(TEXT, {"lines": ["型"]}) and checked_text(TEXT, {"lines": ["型"]}).isascii()
    assert "型" in checked_text(TEXT, {"lines": ["型"]}, ascii_only=False)


def test_a_documents_values_are_of_the_types_of_its_schema_and_not_only_like_them() -> None:
    with pytest.raises(DocumentError, match="exit_code: .*integer"):
        checked_text(ERROR, {**NO_FILE, "exit_code": "2"})
    with pytest.raises(DocumentError) as refused:
        checked_text(ERROR, {**NO_FILE, "file": 1, "cure": 1})
    assert str(refused.value).startswith(f"the answer is no {ERROR}: file: Input should be a valid string")
    assert "https" not in str(refused.value) and "input_value" not in str(refused.value)


NO_FILE = {"code": "bad_input", "exit_code": 2, "message": "m", "problem": None, "file": None, "field": None,
           "value": None, "cure": None, "source": None}  # fmt: skip
ERROR = "taylor.error/1"
