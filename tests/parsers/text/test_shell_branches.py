"""Defaults with quotes and the branches of an `if`, read as bash would run them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from taylor.parsers.text.shell_source import ShellScript


def words(text: str) -> list[str]:
    return [word.text for word in ShellScript(text, Path("start.sh")).commands[-1].words]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    "text",
    [
        'N=${UNSET_NODES:-"4"}\necho --nnodes $N',
        "N=${UNSET_NODES:-'4'}\necho --nnodes ${N}",
        'A=3\nN=${UNSET_NODES:-$A}\nM="${UNSET_MORE:-"$A"}"\necho $N $M',
        "echo a${UNSET_NODES:-}b",
        "if [ a = b ]; then A=1; B=2; else A=1; B=2; fi\necho $A $B",
        "A=0\nif [ a = b ]; then A=1; elif [ a = c ]; then A=1; else A=1; fi\necho $A",
        'L=(--a 1)\nif [ a = b ]; then L+=(--v 5); else L+=(--v 5); fi\necho "${L[@]}"',
        "A=1\nif [ a = a ]; then if [ a = b ]; then A=2; else A=2; fi; else A=2; fi\necho $A",
    ],
)
def test_quoted_defaults_and_branches_that_agree_expand_as_under_bash(text: str) -> None:
    out = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True).stdout
    assert " ".join(words(text)[1:]) == out.strip()


def test_branches_that_differ_keep_the_value_before_them_and_say_so() -> None:
    script = ShellScript("A=0\nif [ x ]; then A=1; else A=2; fi\necho $A", Path("start.sh"))
    assert [word.text for word in script.commands[-1].words] == ["echo", "0"]
    assert script.notes == ["A is set again under a condition: the value before it is taken"]


def test_of_lists_that_branches_add_to_what_all_of_them_add_holds() -> None:
    text = 'L=(--a 1)\nif [ x ]; then L+=(--mock "--v 5"); else L+=(--data d "--v 5"); fi\necho ${L[@]}'
    assert words(text) == ["echo", "--a", "1", "--v", "5"]


def test_a_value_in_a_quoted_default_has_its_place_in_the_script() -> None:
    text = 'N=${UNSET_NODES:-"4"}\necho $N'
    word = ShellScript(text, Path("start.sh")).commands[-1].words[1]
    assert word.span() == (text.index("4"), text.index("4") + 1)
