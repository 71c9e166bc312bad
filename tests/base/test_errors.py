"""Exit codes and kinds of errors are promises: scripts of users branch on them."""

from __future__ import annotations

import pytest

from taylor.base import errors


def test_the_exit_codes_are_those_of_the_contract() -> None:
    codes = {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert sorted(codes.values()) == [0, 2, 3, 4, 5, 130]
    assert errors.EXIT_DONE == 0 and errors.EXIT_BAD_INPUT == 2 and errors.EXIT_INTERRUPTED == 130


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("InputError", 2),
        ("WriteError", 2),
        ("InfeasibleError", 3),
        ("OutsideProgramError", 5),
        ("InterruptedSolve", 130),
    ],
)
def test_each_kind_of_error_ends_a_command_with_its_code(kind: str, code: int) -> None:
    assert getattr(errors, kind).exit_code == code
