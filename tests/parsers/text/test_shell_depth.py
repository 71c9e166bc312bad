"""How deep in loops and groups assignments stand: what is within any of them may not be run, or run again."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from taylor.parsers.text.shell_source import ShellScript

OPENERS = ("for i in 1 2; do", "while read x; do", "until false; do", "{", "select i in a b; do")
CLOSER = {"{": "}"}


def balanced(pairs: int) -> list[str]:
    """Every order of so many opening and closing words that a script can have."""
    words = ["".join(order) for order in itertools.product("()", repeat=2 * pairs)]
    return [
        word
        for word in words
        if word.count("(") == pairs and all(word[:end].count("(") >= word[:end].count(")") for end in range(len(word)))
    ]


def settled(text: str) -> list[bool]:
    """Whether each of the variables V0, V1, … is settled."""
    variables = ShellScript(text, Path("start.sh")).variables
    return [variables[f"V{place}"].settled for place in range(len(variables))]


@pytest.mark.parametrize("opener", OPENERS)
def test_an_assignment_is_settled_where_every_loop_before_it_has_ended(opener: str) -> None:
    for pairs in range(4):
        for order in balanced(pairs):
            lines, inside = ["V0=0"], [0]
            for place, word in enumerate(order, start=1):
                lines += [opener if word == "(" else CLOSER.get(opener, "done"), f"V{place}={place}"]
                inside.append(inside[-1] + (1 if word == "(" else -1))
            assert settled("\n".join(lines)) == [depth == 0 for depth in inside], order


def test_loops_of_several_kinds_close_each_other() -> None:
    for first, second in itertools.product(OPENERS, repeat=2):
        ends = [CLOSER.get(opener, "done") for opener in (second, first)]
        text = f"{first}\nV0=1\n{second}\nV1=1\n{ends[0]}\nV2=1\n{ends[1]}\nV3=1\n"
        assert settled(text) == [False, False, False, True]


def test_an_end_without_a_beginning_changes_nothing() -> None:
    for closer in ("done", "}"):
        for count in range(3):
            assert settled(f"{closer}\n" * count + "V0=1\n{\nV1=1\n}\nV2=1\n") == [True, False, True]


def test_a_value_from_within_a_loop_gives_way_to_the_one_before_it_and_both_are_told() -> None:
    script = ShellScript("A=1\nfor i in 1 2; do\nA=2\ndone\necho $A", Path("start.sh"))
    assert [word.text for word in script.commands[-1].words] == ["echo", "1"]
    assert script.notes == ["A is set again under a condition: the value before it is taken"]
