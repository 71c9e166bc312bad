"""Places in quotes, and texts that a second shell reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_words import Char, Word, read_again

PIECES = ["'a b'", '"c d"', "\"${X:-'e'}\"", '${Y:-"f g"}', " ", "x=1\n", "\n", "echo ", "\\ ", "h", "'", '"']


def spans_by_hand(text: str) -> list[str]:
    """The quote around each character, read with a state and no record of spans; for text without expansions."""
    found, quote, escaped = [], "", False
    for char in text:
        opens = not quote and char in "'\"" and not escaped
        closes = bool(quote) and char == quote and not escaped
        found.append("" if opens else quote)
        escaped = char == "\\" and quote != "'" and not escaped
        quote = char if opens else "" if closes else quote
    return found


@given(st.lists(st.sampled_from([piece for piece in PIECES if "$" not in piece]), max_size=30))
def test_the_quote_around_a_place_is_the_one_that_a_reading_by_hand_finds(pieces: list[str]) -> None:
    text = "echo " + "".join(pieces)
    try:
        script = ShellScript(text, Path("run.sh"))
    except InputError:
        return
    assert [script.quote_at(at) for at in range(len(text))] == spans_by_hand(text)


def test_of_quotes_in_quotes_the_outer_ones_count() -> None:
    text = "echo \"a ${X:-'b'} c\" 'd'"
    script = ShellScript(text, Path("run.sh"))
    assert script.quote_at(text.index("b")) == '"' and script.quote_at(text.index("d'")) == "'"


def test_quotes_that_a_loop_reads_again_are_those_of_the_first_round() -> None:
    text = "for ((i=0; i<3; i++)); do echo 'a' \"b\"; done; echo 'c'"
    script = ShellScript(text, Path("run.sh"))
    assert [script.quote_at(text.index(each)) for each in ("a'", 'b"', "c'")] == ["'", '"', "'"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a 'b c' d", ["a", "b c", "d"]),
        ("a\\ b", ["a b"]),
        ("''", [""]),
        ("a''b \"\"", ["ab", ""]),
        ("'a\\b' \"c\\d\"", ["a\\b", "cd"]),
        ("  ", []),
        ("a'b", ["ab"]),
        ("\\", [""]),
    ],
)
def test_a_second_shell_takes_quotes_and_backslashes_off(text: str, words: list[str]) -> None:
    assert [word.text for word in read_again([Word(tuple(Char(char, None) for char in text))])] == words
