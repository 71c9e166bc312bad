"""Colours of tasks, and ink that can be read on them."""

from __future__ import annotations

import pytest

from taylor.report.palette import ink


@pytest.mark.parametrize(
    ("colour", "expected"),
    [
        ("#000000", "#ffffff"), ("#ffffff", "#000000"), ("#0a0a0a", "#ffffff"), ("#f5f5f5", "#000000"),
        # Green is bright, blue and red are dark: weights of WCAG 2.
        ("#00ff00", "#000000"), ("#0000ff", "#ffffff"), ("#ff0000", "#ffffff"),
    ],
)  # fmt: skip
def test_ink_is_black_on_bright_colours_and_white_on_dark_ones(colour, expected):
    assert ink(colour) == expected
