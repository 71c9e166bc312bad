"""The words of a shell script from any place on, their expansions followed, each character with its place."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.text.shell_arithmetic import evaluate_arithmetic
from taylor.parsers.text.shell_files import folder_of
from taylor.parsers.text.shell_words import Char, Variable, Word

MAX_EXPANDED = 500_000
"""Most characters that all expansions of a script may produce together."""

_NAME = re.compile(r"[A-Za-z_]\w*")
_BRACED = re.compile(r"([A-Za-z_]\w*|\d{1,3})(?:\[([@*]|\d+)\])?(?:(:?[-=+?])(.*))?", re.DOTALL)
_COUNTED = re.compile(r"\s*expr((?:\s+(?:\d{1,18}|\$\w+|\$\{\w+\}|[-+/%]|\\\*|'\*'|\"\*\"))+)\s*")
"""The program expr with whole numbers and variables, whose results are those of ``$(( … ))``."""
_JOINED = re.compile(
    r"\s*(?:IFS=[\"']?([^\"';\s]?)[^\"';]*[\"']?;\s*)?echo\s+[\"']?\$\{([A-Za-z_]\w*)\[\*\]\}[\"']?\s*"
)


class _Words:
    """Words put together from characters: those that have ended, and one that may be open."""

    def __init__(self) -> None:
        self.done: list[Word] = []
        self._open: list[Char] | None = None

    def add(self, chars: Iterable[Char]) -> None:
        """Add to the open word, which may get no character."""
        if self._open is None:
            self._open = []
        self._open += chars

    def end(self) -> None:
        """End the open word."""
        if self._open is not None:
            self.done.append(Word(tuple(self._open)))
            self._open = None

    def add_parts(self, parts: list[list[Char]]) -> None:
        """Add the first part to the open word; each further one is a word of its own, the last stays open."""
        for index, part in enumerate(parts):
            if index:
                self.end()
            self.add(part)

    def add_expansion(self, parts: list[list[Char]], split: bool) -> None:
        """Add an expansion outside quotes: a part without characters is no word, blanks may split one."""
        for index, part in enumerate(parts):
            if index:
                self.end()
            for char in part:
                if split and char.text.isspace() and not char.unknown:
                    self.end()
                else:
                    self.add((char,))


@dataclass
class ShellText:
    """A script's text, a place in it, and the variables that hold there.

    Parameters
    ----------
    text : str
        The script.
    file : Path
        Named in errors.
    """

    text: str
    file: Path
    variables: dict[str, Variable] = field(default_factory=dict)
    quotes: list[tuple[int, int]] = field(default_factory=list)
    """Spans of '…' and "…" in the text, quotes included, in their order; those inside another are left out."""

    def __post_init__(self) -> None:
        self._at = 0
        self._expanded = 0
        self._assumed = False
        self.arguments: list[str] | None = None
        self.outside: dict[str, Variable] = {}

    def variable(self, name: str) -> Variable | None:
        """A variable, as the script sets it or else as it is given from outside."""
        return self.variables.get(name) or self.outside.get(name)

    def quote_at(self, at: int) -> str:
        """The quote that a place of the text stands in: ``'``, ``"`` or none."""
        place = bisect_left(self.quotes, (at, 0)) - 1
        return self.text[self.quotes[place][0]] if place >= 0 and at < self.quotes[place][1] else ""

    def _note_quote(self, start: int, end: int) -> None:
        """Note a span of quotes that has been read; a loop reads its own again."""
        if self.quotes and self.quotes[-1][0] <= start and end <= self.quotes[-1][1]:
            return
        while self.quotes and self.quotes[-1][0] >= start:
            self.quotes.pop()
        self.quotes.append((start, end))

    def _skip_line(self) -> None:
        end = self.text.find("\n", self._at)
        self._at = len(self.text) if end < 0 else end

    def _array(self) -> list[Word]:
        opened, self._at = self._at, self._at + 1
        words: list[Word] = []
        while self._at < len(self.text):
            char = self.text[self._at]
            if char == ")":
                self._at += 1
                return words
            if char in " \t\r\n":
                self._at += 1
            elif char == "#":
                self._skip_line()
            elif not self._line_continued():
                before = self._at
                words += self._word(stop=" \t\r\n)")
                if self._at == before:
                    self._at += 1
        raise self._unclosed("an array", opened)

    def _word(self, split: bool = True, stop: str = " \t\r\n;&|()<>") -> list[Word]:
        """Read one word of the script; its expansion may be none or several."""
        words = _Words()
        while self._at < len(self.text) and self.text[self._at] not in stop:
            char = self.text[self._at]
            if char == "\\":
                if not self._line_continued():
                    words.add(Char(each, self._at + 1) for each in self.text[self._at + 1 : self._at + 2])
                    self._at += 2
            elif char == "'":
                words.add(self._single_quoted())
            elif char == '"':
                words.add_parts(self._double_quoted())
            elif char in "$`":
                words.add_expansion(self._expansion(), split)
            else:
                words.add([Char(char, self._at)])
                self._at += 1
        words.end()
        return words.done

    def _line_continued(self) -> bool:
        """Pass by a backslash that ends its line; return whether there is one."""
        found = self.text.startswith(("\\\n", "\\\r\n"), self._at)
        if found:
            self._at = self.text.index("\n", self._at) + 1
        return found

    def _single_quoted(self) -> list[Char]:
        """The inside of '…'."""
        opened, end = self._at, self.text.find("'", self._at + 1)
        if end < 0:
            raise self._unclosed("a quote", opened)
        self._at = end + 1
        self._note_quote(opened, self._at)
        return [Char(self.text[at], at) for at in range(opened + 1, end)]

    def _double_quoted(self) -> list[list[Char]]:
        """The inside of "…": one part, or several where an array is expanded in it."""
        opened, self._at = self._at, self._at + 1
        parts: list[list[Char]] = [[]]
        text = self.text
        while self._at < len(text):
            char = text[self._at]
            if char == '"':
                self._at += 1
                self._note_quote(opened, self._at)
                return parts
            if char == "\\" and self._at + 1 < len(text):
                if self._line_continued():
                    continue
                if text[self._at + 1] in '$`"\\':
                    self._at += 1
                parts[-1].append(Char(text[self._at], self._at))
                self._at += 1
            elif char in "$`":
                expansion = self._expansion()
                parts[-1] += expansion[0] if expansion else []
                parts += expansion[1:]
            else:
                parts[-1].append(Char(char, self._at))
                self._at += 1
        raise self._unclosed("a quote", opened)

    def _expansion(self) -> list[list[Char]]:
        """Read ``$…`` or a back-quoted command: the words it stands for."""
        text, start = self.text, self._at
        if text[start] == "`":
            end = text.find("`", start + 1)
            if end < 0:
                raise self._unclosed("a back quote", start)
            return [self._as_written(start, end + 1)]
        if text.startswith("$((", start):
            end = self._matching(start + 1, "(", ")")
            return self._number_of(text[start + 3 : end - 2], start, end)
        if text.startswith("$(", start):
            return self._substitution(start, self._matching(start + 1, "(", ")"))
        if text.startswith("${", start):
            end = self._matching(start + 1, "{", "}")
            return self._parameter(text[start + 2 : end - 1], start, end)
        match = _NAME.match(text, start + 1)
        if match:
            return self._parameter(match.group(), start, match.end())
        if start + 1 < len(text) and text[start + 1].isdigit():
            return self._parameter(text[start + 1], start, start + 2)
        if start + 1 < len(text) and text[start + 1] in "@*#?$!-":
            return self._arguments(text[start + 1], start)
        self._at += 1
        return [[Char("$", start)]]

    def _number_of(self, expression: str, start: int, end: int) -> list[list[Char]]:
        """The value of an expression of whole numbers; as it is written where it is not known."""
        self._assumed = False
        value = evaluate_arithmetic(expression, self._number)
        self._at = end
        if value is None:
            return [self._as_written(start, end)]
        return [[Char(digit, None, (start, end), assumed=self._assumed) for digit in str(value)]]

    def _arguments(self, sign: str, start: int) -> list[list[Char]]:
        """The script's arguments (``$@``, ``$*``) or their number (``$#``), where they are known."""
        known = self.arguments
        if known is None or sign not in "@*#":
            return [self._as_written(start, start + 2)]
        self._at, span = start + 2, (start, start + 2)
        texts = [str(len(known))] if sign == "#" else known
        self._grow(sum(map(len, texts)))
        return [[Char(char, None, span) for char in text] for text in texts]

    def _substitution(self, start: int, end: int) -> list[list[Char]]:
        """The output of ``$(…)`` where no program has to run: the script's folder, or an array's words joined."""
        inside = self.text[start + 2 : end - 1]
        counted = _COUNTED.fullmatch(inside)
        if counted is not None:
            return self._number_of(re.sub(r"[\\'\"]", "", counted[1]), start, end)
        output = folder_of(inside, self.file)
        joined = _JOINED.fullmatch(inside)
        if output is None and joined is not None and joined[2] in self.variables:
            words = self.variables[joined[2]].words
            if not any(word.unknown for word in words):
                output = (joined[1] or " ")[:1].join(word.text for word in words)
        if output is None:
            return [self._as_written(start, end)]
        self._at = end
        self._grow(len(output))
        return [[Char(char, None, (start, end)) for char in output]]

    def _parameter(self, inside: str, start: int, end: int) -> list[list[Char]]:
        match = _BRACED.fullmatch(inside)
        if match is None:
            return [self._as_written(start, end)]
        name, index, operator, default = match[1], match[2], match[3], match[4]
        variable = self.variable(name)
        self._at = end
        empty = variable is None or not any(word.chars for word in variable.words)
        if operator and operator.endswith("+"):
            given = not empty or (operator == "+" and variable is not None and bool(variable.words))
            return self._default(default, start, end) if given else [[]]
        if operator and empty and (variable is None or operator.startswith(":")):
            if operator.endswith("?"):
                return [self._as_written(start, end)]
            words = self._default(default, start, end)
            if variable is None:
                words = [[char._replace(assumed=True) for char in word] for word in words]
            if operator.endswith("="):
                self._set(name, Variable([Word(tuple(word)) for word in words], False))
            return words
        if variable is None and name.isdecimal() and self.arguments is not None:
            return [[]]
        if variable is None:
            return [self._as_written(start, end)]
        taken = variable.words
        if variable.array and index not in ("@", "*"):
            chosen = int(index) if index else 0
            taken = taken[chosen : chosen + 1]
        self._grow(sum(len(word.chars) for word in taken))
        # The innermost expansion is the one nearest to the characters' own place.
        return [
            [char if char.via or char.unknown else char._replace(via=(start, end)) for char in word.chars]
            for word in taken
        ]

    def _set(self, name: str, value: Variable) -> None:
        """Give a variable the value of ``${NAME:=…}``."""
        self.variables[name] = value

    def _default(self, default: str, start: int, end: int) -> list[list[Char]]:
        """The word behind ``:-``: quotes taken off, expansions in it followed."""
        whole, self.text, self._at = self.text, self.text[: end - 1], end - 1 - len(default)
        words: list[Word] | None = None
        with suppress(InputError):  # Inside "…" a lone quote is a character like any other.
            words = self._word(split=False, stop="")
        self.text = whole
        if words is None:
            return [self._as_written(start, end)]
        self._at = end
        return [
            [
                char if char.via or char.unknown else char._replace(via=(start, end))
                for word in words
                for char in word.chars
            ]
        ]

    def _as_written(self, start: int, end: int) -> list[Char]:
        self._at = end
        return [Char(self.text[i], i, (start, end), True) for i in range(start, end)]

    def _matching(self, start: int, opener: str, closer: str) -> int:
        depth = 0
        for at in range(start, len(self.text)):
            depth += (self.text[at] == opener) - (self.text[at] == closer)
            if depth == 0:
                return at + 1
        raise self._unclosed("a bracket", start)

    def _number(self, name: str) -> int | None:
        variable = self.variable(name)
        text = variable.words[0].text.strip() if variable is not None and variable.words else ""
        self._assumed = self._assumed or (variable is not None and any(word.assumed for word in variable.words))
        return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None

    def _grow(self, count: int) -> None:
        self._expanded += count
        if self._expanded > MAX_EXPANDED:
            raise InputError("its variables expand to too long a text", file=self.file)

    def _unclosed(self, what: str, at: int) -> InputError:
        line = self.text.count("\n", 0, at) + 1
        return InputError(f"{what} opened at line {line} is never closed", file=self.file)
