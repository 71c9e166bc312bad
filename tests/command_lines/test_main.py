"""The command's own words: what it says of a word that is none of its commands."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.command_lines.main import run


@pytest.mark.parametrize(
    ("word", "cure"),
    [
        ("sovle", "did you mean solve? taylor --help explains the commands"),
        ("evaluate", "taylor solve FILE -evaluate y prices the plan in the file; taylor --help explains the commands"),
    ],
)
def test_a_word_that_is_no_command_is_answered_with_the_one_that_does_it(word: str, cure: str) -> None:
    with pytest.raises(InputError) as refused:
        run([word, "config.yaml"])
    assert refused.value.cure == cure


def test_a_word_near_no_command_names_some_of_them() -> None:
    with pytest.raises(InputError, match=r"known are solve, .* more; taylor --help"):
        run(["xyzzyx"])
