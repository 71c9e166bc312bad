"""Words of a shell script after expansion, each character with its place in the script."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple


class Char(NamedTuple):
    """One character of an expanded word.

    `at` is where it stands in the script (None when it was computed); `via` is the span of the
    innermost expansion that brought it, None for a character written in place. `assumed` marks what stands
    behind ``:-`` for a variable that only the outside sets.
    """

    text: str
    at: int | None
    via: tuple[int, int] | None = None
    unknown: bool = False
    assumed: bool = False


@dataclass(frozen=True)
class Word:
    """A word after expansion."""

    chars: tuple[Char, ...]

    @cached_property
    def text(self) -> str:
        """The word as the program would get it."""
        return "".join(char.text for char in self.chars)

    @property
    def unknown(self) -> bool:
        """Return whether a part of it is known only when the shell runs."""
        return any(char.unknown for char in self.chars)

    @property
    def assumed(self) -> bool:
        """Return whether a part of it is the default of a variable that only the outside sets."""
        return any(char.assumed for char in self.chars)

    def part(self, start: int) -> Word:
        """The word from its `start`-th character on."""
        return Word(self.chars[start:])

    def split(self) -> list[Word]:
        """The words that blanks part it into."""
        words: list[Word] = []
        current: list[Char] = []
        for char in self.chars:
            if not char.text.isspace():
                current.append(char)
            elif current:
                words.append(Word(tuple(current)))
                current = []
        return [*words, Word(tuple(current))] if current else words

    def span(self) -> tuple[int, int] | None:
        """Place of the word in the script, if in one piece."""
        places = [char.at for char in self.chars]
        if not places or any(at is None for at in places):
            return None
        first = places[0]
        assert first is not None
        return (first, first + len(places)) if places == list(range(first, first + len(places))) else None

    def via(self) -> tuple[int, int] | None:
        """The expansion that produced the whole word, where one did."""
        spans = {char.via for char in self.chars}
        return next(iter(spans)) if len(spans) == 1 else None


class OpenValue(NamedTuple):
    """A variable whose value the script leaves to its start.

    `start` and `end` are the place of its value in the script; `by` is the variable to state: itself, or the one that
    its value is computed from.
    """

    name: str
    start: int
    end: int
    by: str


_NAME = re.compile(r"[A-Za-z_]\w*")
_ALONE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")
_EXPANDED = re.compile(r"\$\{?([A-Za-z_]\w*)")
_OUTPUT = re.compile(r"\$\((?!\()|`")


def variable_to_state(text: str, at: int | None, opened: Sequence[OpenValue], known: Collection[str]) -> str | None:
    """The variable whose value settles a text that a script leaves to its start; None where none does.

    Parameters
    ----------
    text : str
        The text, its expansions as they are written.
    at : int or None
        Place of its first unknown character in the script.
    opened : sequence of OpenValue
        Variables that are left to the start, in their order.
    known : collection of str
        Variables that have a value.
    """
    by = {each.name: each.by for each in opened}
    alone = _ALONE.fullmatch(text.strip())
    name = (alone[1] or alone[2]) if alone else ""
    if name and (name in by or name not in known):
        return by.get(name, name)
    here = next((each.by for each in reversed(opened) if at is not None and each.start <= at < each.end), None)
    if here is not None or _OUTPUT.search(text):
        return here
    names = (_NAME if "$((" in text else _EXPANDED).findall(text)
    return next((by.get(name, name) for name in names if name in by or name not in known), None)


def joined_words(words: Sequence[Word]) -> Word:
    """One word with a blank between the parts, as an assignment joins ``"… ${ARRAY[@]}"``."""
    chars = [char for word in words for char in (Char(" ", None), *word.chars)]
    return Word(tuple(chars[1:]))


def read_again(words: Sequence[Word]) -> list[Word]:
    """The words that a shell makes of text it is given, as behind ``eval``: quotes and backslashes are taken off."""
    done: list[Word] = []
    current: list[Char] | None = None
    quote = ""
    chars = iter(joined_words(words).chars)
    for char in chars:
        if char.text == "\\" and quote != "'":
            current = [] if current is None else current
            current += [char for char in (next(chars, None),) if char is not None]
        elif char.text == quote:
            quote = ""
        elif not quote and char.text in "'\"":
            quote, current = char.text, [] if current is None else current
        elif quote or not char.text.isspace():
            current = [] if current is None else current
            current.append(char)
        elif current is not None:
            done.append(Word(tuple(current)))
            current = None
    return done if current is None else [*done, Word(tuple(current))]


@dataclass
class Variable:
    """A shell variable: its words, whether it is an array, and whether it surely has this value."""

    words: list[Word]
    array: bool
    settled: bool = True

    def texts(self) -> list[str]:
        """The words as text."""
        return [word.text for word in self.words]
