"""Colours of tasks, and ink that can be read on them."""

from __future__ import annotations

import pytest

from taylor.pipeline.schedule import FORWARD
from taylor.report.palette import ink, shade
from taylor.report.timeline import OTHER


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


@pytest.mark.parametrize(
    ("interleave", "expected"),
    # From #8ecdf2 towards #08306b: four tenths of the way in the middle one of three, eight in the last.
    [(0, (0x8E, 0xCD, 0xF2)), (1, (88, 142, 188)), (2, (35, 79, 134))],
)
def test_a_later_virtual_stage_is_deeper_by_the_same_step(interleave, expected):
    assert shade(FORWARD, interleave, 3) == "#{:02x}{:02x}{:02x}".format(*expected)
    assert shade(FORWARD, interleave, 1) == shade(FORWARD, 0, 3) and shade(OTHER, interleave, 3) == "#bbbbbb"
