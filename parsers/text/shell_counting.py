"""``(( … ))``: tests and assignments of whole numbers, and the loops that count by them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from taylor.parsers.text.shell_arithmetic import evaluate_arithmetic

MOST_ROUNDS = 4096
"""Most rounds of one loop that are followed."""
MOST_STEPS = 20_000
"""Most rounds of all loops of a script together."""
_COMPARED = re.compile(r"(<=|>=|==|!=|<|>)")
_STEP = re.compile(r"\s*(?:([A-Za-z_]\w*)\s*(\+\+|--)|(\+\+|--)\s*([A-Za-z_]\w*))\s*")
_SET = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/]?)=(?!=)(.*)", re.DOTALL)
Lookup = Callable[[str], "int | None"]


@dataclass
class CountingLoop:
    """A loop ``for ((start; test; step))`` whose rounds are followed.

    Parameters
    ----------
    test, step : str
        Texts between its semicolons.
    body : int
        Place of its first command.
    rounds : int
        Rounds so far.
    """

    test: str
    step: str
    body: int
    rounds: int = 0


def holds(text: str, value_of: Lookup) -> bool | None:
    """Return whether a condition is satisfied; None where only a running shell knows."""
    for joint, decides in (("||", True), ("&&", False)):
        if joint in text:
            parts = [holds(part, value_of) for part in text.split(joint)]
            return decides if decides in parts else None if None in parts else not decides
    sides = _COMPARED.split(text)
    if len(sides) == 1:
        value = evaluate_arithmetic(text, value_of)
        return None if value is None else value != 0
    if len(sides) != 3:
        return None
    left, right = evaluate_arithmetic(sides[0], value_of), evaluate_arithmetic(sides[2], value_of)
    if left is None or right is None:
        return None
    return {
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
        "==": left == right,
        "!=": left != right,
    }[sides[1]]


def assigned(text: str, value_of: Lookup) -> tuple[str, int | None] | None:
    """The variable that an expression sets, and its value (None: unknown); None where it sets none."""
    step = _STEP.fullmatch(text)
    if step:
        name = step[1] or step[4]
        value = value_of(name)
        change = 1 if (step[2] or step[3]) == "++" else -1
        return name, None if value is None else value + change
    found = _SET.fullmatch(text)
    if not found:
        return None
    name, operator, right = found.groups()
    return name, evaluate_arithmetic(f"{name}{operator}({right})" if operator else right, value_of)
