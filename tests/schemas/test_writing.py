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
