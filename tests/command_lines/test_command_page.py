"""The page of the commands is as the parsers say."""

from __future__ import annotations

from benchmarks.command_page import PAGE, page


def test_the_page_of_commands_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m benchmarks.command_page"
