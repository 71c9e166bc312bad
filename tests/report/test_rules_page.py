"""Rules as tables: their source, taken apart into checks."""

from __future__ import annotations

import pytest

from taylor.report.rules import checks_of


@pytest.mark.parametrize(
    ("source", "checks"),
    [
        ("a", ("a",)),
        ("a; b", ("a", "b")),
        ("a (b; c); d", ("a (b; c)", "d")),
        ("a ((b; c); d); e;", ("a ((b; c); d)", "e")),
        ("(a; b)", ("(a; b)",)),
        (" ; ", ()),
        ("", ()),
    ],
)
def test_checks_are_separated_by_semicolons_outside_brackets(source, checks):
    assert checks_of(source) == checks
