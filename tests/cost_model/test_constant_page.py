"""Every constant of the cost model has a source or a fit, and docs/cost_model.md shows it."""

from __future__ import annotations

import pytest

from benchmarks.constant_page import BEGIN, END, PAGE, SHARES, constants, page
from taylor.cost_model.time.speed import ASSUMED_EFFICIENCY
from tests.conftest import SHARED


def test_no_constant_is_without_a_source() -> None:
    found = list(constants())
    assert {"step", "overlap", "host_operations", "known_error"} <= {module for module, *_ in found}
    assert [f"{module}.{name}" for module, name, _, source in found if not source] == []
    assert set(SHARES) == set(ASSUMED_EFFICIENCY)


def test_the_page_shows_every_constant_with_its_value() -> None:
    shown = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    for module, name, value, _ in constants():
        assert f"| `{module}.{name}` | `{value}` |" in shown, "write it anew: python -m benchmarks.constant_page"


@pytest.mark.skipif(not (SHARED / "data" / "published").is_dir(), reason="the shared data are not here")
def test_the_page_is_what_its_command_writes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "write it anew: python -m benchmarks.constant_page"
