"""Results of a shell's tests where the script itself settles them, and the variables after an ``if``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from taylor.parsers.text.shell_words import Variable, Word

_COMPARED = {
    "-eq": int.__eq__,
    "-ne": int.__ne__,
    "-lt": int.__lt__,
    "-le": int.__le__,
    "-gt": int.__gt__,
    "-ge": int.__ge__,
}
_PATTERN = re.compile(r"[*?\[\]\\]|[@!+]\(")
"""Characters that make the right side of ``==`` in ``[[ … ]]`` a pattern."""


def is_test(words: Sequence[Word]) -> bool:
    """Return whether a command is ``[ … ]``, ``[[ … ]]`` or ``test …``, with ``!`` before it or without.

    Of ``[[ … && … ]]`` the first part is one too.
    """
    texts = [word.text for word in words[:2]]
    return texts[texts[:1] == ["!"] :][:1] in (["["], ["[["], ["test"])


def test_outcome(words: Sequence[Word]) -> bool | None:
    """Return whether one test succeeds; None where only a running shell knows, or the form is another one.

    Parameters
    ----------
    words : sequence of Word
        Of the whole command, after expansion.
    """
    return joined([("", words)])


def _simple(texts: list[str], double: bool) -> bool | None:
    if texts[:1] == ["!"] and len(texts) > 1:
        value = _simple(texts[1:], double)
        return None if value is None else not value
    if len(texts) == 2 and texts[0] in ("-n", "-z"):
        return bool(texts[1]) == (texts[0] == "-n")
    if len(texts) != 3:
        return None
    left, operator, right = texts
    if operator in _COMPARED:
        if not all(re.fullmatch(r"-?\d{1,18}", text) for text in (left, right)):
            return None
        return _COMPARED[operator](int(left), int(right))
    if operator not in ("=", "==", "!=") or (double and _PATTERN.search(right)):
        return None
    return (left == right) == (operator != "!=")


def joined(parts: Sequence[tuple[str, Sequence[Word]]]) -> bool | None:
    """Return whether tests joined by ``&&`` or ``||`` succeed, also inside ``[[ … ]]``; None where that is unknown.

    Parameters
    ----------
    parts : sequence of (operator, words)
        Each command with the operator before it; none before the first one.
    """
    operators = {operator for operator, _ in parts[1:]}
    if not parts or len(operators) > 1 or not operators <= {"&&", "||"}:
        return None
    values, double = [], False
    for _, words in parts:
        texts = [word.text for word in words]
        negated = not double and texts[:1] == ["!"]
        if not double:
            texts = texts[negated:]
            opening = texts[0] if is_test(words) else None
            double, texts = opening == "[[", texts[1:]
            closing = {"[": "]", "[[": "]]"}.get(opening or "")
        inside = double
        if closing is not None and texts[-1:] == [closing]:
            texts, double = texts[:-1], False
        elif not double and closing is not None:
            opening = None
        unknown = opening is None or any(word.unknown for word in words)
        value = None if unknown else _simple(texts, inside)
        values.append(not value if negated and value is not None else value)
    if operators == {"||"}:
        return True if True in values else None if None in values else False
    return False if False in values else None if None in values else True


def matches(subject: Word, pattern: Word, literal: Sequence[bool]) -> bool | None:
    """Return whether a pattern of ``case`` fits its subject; None where only a running shell knows.

    Parameters
    ----------
    literal : sequence of bool
        For every character of the pattern whether it is quoted, and so stands for itself.
    """
    active = "".join("a" if quoted else char.text for char, quoted in zip(pattern.chars, literal, strict=True))
    if active == "*":
        return True
    if subject.unknown or pattern.unknown or re.search(r"[@!+?*]\(|\[\^|\[\[", active):
        return None
    written = zip(pattern.chars, literal, strict=True)
    return fnmatchcase(
        subject.text,
        "".join(f"[{char.text}]" if quoted and char.text in "*?[" else char.text for char, quoted in written),
    )


@dataclass
class Branches:
    """An ``if`` or a ``case`` that is being read.

    Parameters
    ----------
    before : dict of str to Variable
        The variables before it.
    after : list of dict
        The variables after each branch so far that may run.
    sure : bool
        One of those branches surely runs, so that no further one does.
    dead : bool
        The branch that is being read surely does not run.
    commands, notes : int
        Their number when the branch began.
    parts : list of (operator, words), optional
        The commands of the condition that is being read; None outside of one.
    subject : Word, optional
        Subject of a ``case``; None of an ``if``.
    """

    before: dict[str, Variable]
    after: list[dict[str, Variable]] = field(default_factory=list)
    sure: bool = False
    dead: bool = False
    commands: int = 0
    notes: int = 0
    parts: list[tuple[str, Sequence[Word]]] | None = field(default_factory=list)
    subject: Word | None = None

    def begin(self, condition: bool | None, commands: int, notes: int) -> None:
        """A branch begins: its condition's result, and the numbers of commands and notes."""
        self.dead = self.sure or condition is False
        self.sure = self.sure or condition is True
        self.parts, self.commands, self.notes = None, commands, notes

    def merged(self, notes: list[str]) -> dict[str, Variable]:
        """The variables after the whole ``if``."""
        after = self.after if self.sure else [*self.after, dict(self.before)]
        if len(after) == 1:
            return after[0]
        variables = dict(self.before)
        for name in dict.fromkeys(name for each in after for name in each):
            value = _agreed(name, self.before.get(name), [each.get(name) for each in after], notes)
            if value is not None:
                variables[name] = value
        return variables


def set_under_condition(name: str) -> str:
    """Message for a variable that has no value before the conditions that set it."""
    return f"{name} is set under a condition that the script does not settle: the last value is taken"


def _agreed(name: str, before: Variable | None, after: list[Variable | None], notes: list[str]) -> Variable | None:
    """A variable after an ``if``, by its values after the branches that may run (None: not set there).

    Where they differ the value before it is taken, else the last that a branch sets. Of arrays that
    branches add to, what all of them add.
    """
    given = [value for value in after if value is not None]
    last = given[-1]
    if len(given) == len(after) and all(value.texts() == last.texts() for value in given):
        return given[0]
    if before is None or not before.settled:
        if any(value.texts() != last.texts() for value in given):
            notes.append(set_under_condition(name))
        return Variable(last.words, last.array, settled=False)
    notes.append(f"{name} is set again under a condition: the value before it is taken")
    if before.array and len(given) == len(after):
        count = len(before.words)
        if all(value.texts()[:count] == before.texts() for value in given):
            others = [set(value.texts()[count:]) for value in given[1:]]
            common = [word for word in given[0].words[count:] if all(word.text in texts for texts in others)]
            return Variable(before.words + common, True)
    return before
