"""A bash launch script's words with the place of every character; nothing is ever executed.

Enough of the language is understood to follow what launch scripts do: assignments, arrays, quotes,
line continuations, comments, parameter expansion with defaults, integer arithmetic, here-documents.
What only a running shell could know (command substitution, positional parameters, unset variables)
stays as it is written and is marked as unknown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.parsers.text.shell_arithmetic import evaluate_arithmetic
from taylor.parsers.text.shell_words import Char, Word

MAX_BYTES = 2**18
"""Launch scripts have some kilobytes; this reader takes a few seconds for a megabyte."""
MAX_EXPANDED = 500_000
"""Most characters that all expansions of a script may produce together."""

_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_BRACED = re.compile(r"([A-Za-z_]\w*)(?:\[([@*]|\d+)\])?(?:(:?[-=+?])(.*))?", re.DOTALL)
_OPENERS = frozenset({"for", "while", "until", "case", "{", "select"})
_CLOSERS = frozenset({"done", "esac", "}"})
_WORDLESS = frozenset({"then", "do", "in", "!", "time", "function"})
_DECLARE = frozenset({"export", "declare", "local", "readonly", "typeset"})


@dataclass(frozen=True)
class Command:
    """A simple command: its words after expansion, and where it starts."""

    words: tuple[Word, ...]
    start: int


@dataclass
class _Variable:
    words: list[Word]
    array: bool
    settled: bool = True

    def texts(self) -> list[str]:
        """The words as text."""
        return [word.text for word in self.words]


@dataclass
class _Branches:
    """An ``if`` that is being read: the variables before it, and after each branch so far."""

    before: dict[str, _Variable]
    after: list[dict[str, _Variable]] = field(default_factory=list)
    otherwise: bool = False


@dataclass
class ShellScript:
    """A script read from start to end.

    Parameters
    ----------
    text : str
        The script.
    file : Path
        Named in errors.

    Raises
    ------
    InputError
        When a quote or bracket is never closed, or expansions grow without measure.
    """

    text: str
    file: Path
    commands: list[Command] = field(default_factory=list)
    variables: dict[str, _Variable] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    quotes: list[tuple[int, int]] = field(default_factory=list)
    """Spans of '…' and "…" in the text, quotes included."""

    def __post_init__(self) -> None:
        self._at = 0
        self._depth = 0
        self._branches: list[_Branches] = []
        self._expanded = 0
        self._documents: list[str] = []
        self._run()

    @classmethod
    def read(cls, path: Path) -> ShellScript:
        """Read a script of at most 2 MiB."""
        return cls(read_text(path, limit_bytes=MAX_BYTES), path)

    def quote_at(self, at: int) -> str:
        """The quote that a place of the text stands in: ``'``, ``"`` or none."""
        inside = [span for span in self.quotes if span[0] < at < span[1]]
        return self.text[min(inside)[0]] if inside else ""

    # ---- commands ------------------------------------------------------------------------------

    def _run(self) -> None:
        text = self.text
        words: list[Word] = []
        start = 0
        declaring = False
        while self._at < len(text):
            char = text[self._at]
            if char in " \t\r" or text.startswith(("\\\n", "\\\r\n"), self._at):
                self._at += 1 if char != "\\" else text.index("\n", self._at) + 1 - self._at
            elif char == "#":
                self._skip_line()
            elif char in "\n;&|()":
                self._end_command(words, start)
                words, declaring = [], False
                self._at += 1
                if char == "\n":
                    self._skip_documents()
            elif char in "<>" or re.match(r"\d+[<>]", text[self._at : self._at + 8]):
                self._redirect()
            else:
                if not words:
                    start = self._at
                match = _ASSIGN.match(text, self._at)
                if match and (not words or declaring):
                    self._assign(match)
                    continue
                added = self._word()
                first = not words and len(added) == 1 and added[0].text
                if first == "if":
                    self._branches.append(_Branches(dict(self.variables)))
                elif first in ("elif", "else", "fi"):
                    self._end_branch(first)
                elif first in _OPENERS or first in _CLOSERS:
                    self._depth = max(0, self._depth + (1 if first in _OPENERS else -1))
                elif first in _WORDLESS:
                    pass
                else:
                    declaring = declaring or first in _DECLARE
                    words += added
        self._end_command(words, start)

    def _end_branch(self, word: str) -> None:
        """Close a branch of an ``if``; at its end take what the branches agree on."""
        if not self._branches:
            return
        branches = self._branches[-1]
        branches.after.append(self.variables)
        self.variables = dict(branches.before)
        branches.otherwise = branches.otherwise or word == "else"
        if word != "fi":
            return
        self._branches.pop()
        if not branches.otherwise:
            branches.after.append(dict(branches.before))
        names = dict.fromkeys(name for after in branches.after for name in after)
        for name in names:
            value = self._agreed(name, branches.before.get(name), [after.get(name) for after in branches.after])
            if value is not None:
                self.variables[name] = value

    def _agreed(self, name: str, before: _Variable | None, after: list[_Variable | None]) -> _Variable | None:
        """A variable after an ``if``, by its values after the branches (None: not set there).

        Where they differ the value before it is taken, else the last that a branch sets. Of arrays that
        branches add to, what all of them add.
        """
        given = [value for value in after if value is not None]
        last = given[-1]
        if len(given) == len(after) and all(value.texts() == last.texts() for value in given):
            return given[0]
        if before is None or not before.settled:
            return _Variable(last.words, last.array, settled=False)
        self.notes.append(f"{name} is set again under a condition: the value before it is taken")
        if before.array and len(given) == len(after):
            count = len(before.words)
            if all(value.texts()[:count] == before.texts() for value in given):
                others = [set(value.texts()[count:]) for value in given[1:]]
                common = [word for word in given[0].words[count:] if all(word.text in texts for texts in others)]
                return _Variable(before.words + common, True)
        return before

    def _end_command(self, words: list[Word], start: int) -> None:
        if words:
            self.commands.append(Command(tuple(words), start))

    def _skip_line(self) -> None:
        end = self.text.find("\n", self._at)
        self._at = len(self.text) if end < 0 else end

    def _redirect(self) -> None:
        match = re.compile(r"\d*(<<<|<<-?|>>|[<>]&?|>\|)[ \t]*").match(self.text, self._at)
        assert match is not None
        self._at = match.end()
        if self._at < len(self.text) and self.text[self._at] not in "\n;|()":
            target = self._word()
            if match[1] in ("<<", "<<-") and target:
                self._documents.append(target[0].text)

    def _skip_documents(self) -> None:
        for name in self._documents:
            while self._at < len(self.text):
                line_end = self.text.find("\n", self._at)
                line_end = len(self.text) if line_end < 0 else line_end
                line = self.text[self._at : line_end]
                self._at = min(len(self.text), line_end + 1)
                if line.strip() == name:
                    break
        self._documents = []

    def _assign(self, match: re.Match[str]) -> None:
        name, more = match[1], bool(match[2])
        self._at = match.end()
        if self.text.startswith("(", self._at):
            value = _Variable(self._array(), True)
        else:
            value = _Variable([Word(tuple(char for word in self._word(split=False) for char in word.chars))], False)
        old = self.variables.get(name)
        if more and old is not None:
            if value.array or old.array:
                value = _Variable(old.words + value.words, True)
            else:
                value = _Variable([Word(old.words[0].chars + value.words[0].chars)], False)
            self._grow(sum(len(word.chars) for word in value.words))
        value.settled = self._depth == 0
        if old is not None and old.settled and not value.settled:
            self.notes.append(f"{name} is set again under a condition: the value before it is taken")
            return
        self.variables[name] = value

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
            elif self.text.startswith(("\\\n", "\\\r\n"), self._at):
                self._at = self.text.index("\n", self._at) + 1
            else:
                before = self._at
                words += self._word(stop=" \t\r\n)")
                if self._at == before:
                    self._at += 1
        raise self._unclosed("an array", opened)

    # ---- words ---------------------------------------------------------------------------------

    def _word(self, split: bool = True, stop: str = " \t\r\n;&|()<>") -> list[Word]:
        """Read one word of the script; its expansion may be none or several."""
        done: list[Word] = []
        current: list[Char] | None = None
        text = self.text
        while self._at < len(text) and text[self._at] not in stop:
            char = text[self._at]
            if char == "\\":
                if text.startswith(("\\\n", "\\\r\n"), self._at):
                    self._at = text.index("\n", self._at) + 1
                    continue
                current = (current or []) + [Char(each, self._at + 1) for each in text[self._at + 1 : self._at + 2]]
                self._at += 2
            elif char == "'":
                end = text.find("'", self._at + 1)
                if end < 0:
                    raise self._unclosed("a quote", self._at)
                current = (current or []) + [Char(text[i], i) for i in range(self._at + 1, end)]
                self.quotes.append((self._at, end + 1))
                self._at = end + 1
            elif char == '"':
                parts = self._double_quoted()
                current = (current or []) + list(parts[0])
                for part in parts[1:]:
                    done.append(Word(tuple(current)))
                    current = list(part)
            elif char in "$`":
                for index, part in enumerate(self._expansion()):
                    if index:
                        if current is not None:
                            done.append(Word(tuple(current)))
                        current = None
                    for piece in part:
                        if split and piece.text.isspace() and not piece.unknown:
                            if current is not None:
                                done.append(Word(tuple(current)))
                            current = None
                        else:
                            current = current or []
                            current.append(piece)
            else:
                current = current or []
                current.append(Char(char, self._at))
                self._at += 1
        if current is not None:
            done.append(Word(tuple(current)))
        return done

    def _double_quoted(self) -> list[list[Char]]:
        """The inside of "…": one part, or several where an array is expanded in it."""
        opened, self._at = self._at, self._at + 1
        parts: list[list[Char]] = [[]]
        text = self.text
        while self._at < len(text):
            char = text[self._at]
            if char == '"':
                self._at += 1
                self.quotes.append((opened, self._at))
                return parts
            if char == "\\" and self._at + 1 < len(text):
                if text.startswith(("\\\n", "\\\r\n"), self._at):
                    self._at = text.index("\n", self._at) + 1
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
            value = evaluate_arithmetic(text[start + 3 : end - 2], self._number)
            self._at = end
            if value is None:
                return [self._as_written(start, end)]
            return [[Char(digit, None, (start, end)) for digit in str(value)]]
        if text.startswith("$(", start):
            return [self._as_written(start, self._matching(start + 1, "(", ")"))]
        if text.startswith("${", start):
            end = self._matching(start + 1, "{", "}")
            return self._parameter(text[start + 2 : end - 1], start, end)
        match = _NAME.match(text, start + 1)
        if match:
            return self._parameter(match.group(), start, match.end())
        if start + 1 < len(text) and (text[start + 1].isdigit() or text[start + 1] in "@*#?$!-"):
            return [self._as_written(start, start + 2)]
        self._at += 1
        return [[Char("$", start)]]

    def _parameter(self, inside: str, start: int, end: int) -> list[list[Char]]:
        match = _BRACED.fullmatch(inside)
        if match is None:
            return [self._as_written(start, end)]
        name, index, operator, default = match[1], match[2], match[3], match[4]
        variable = self.variables.get(name)
        self._at = end
        empty = variable is None or not any(word.chars for word in variable.words)
        if operator and operator.endswith("+"):
            return self._default(default, start, end) if not empty else [[]]
        if operator and empty and (variable is None or operator.startswith(":")):
            return self._default(default, start, end) if not operator.endswith("?") else [self._as_written(start, end)]
        if variable is None:
            return [self._as_written(start, end)]
        words = variable.words
        if variable.array and index not in ("@", "*"):
            chosen = int(index) if index else 0
            words = words[chosen : chosen + 1]
        self._grow(sum(len(word.chars) for word in words))
        # The innermost expansion is the one nearest to the characters' own place.
        return [
            [char if char.via or char.unknown else char._replace(via=(start, end)) for char in word.chars]
            for word in words
        ]

    def _default(self, default: str, start: int, end: int) -> list[list[Char]]:
        """The word behind ``:-``: quotes taken off, expansions in it followed."""
        whole, self.text, self._at = self.text, self.text[: end - 1], end - 1 - len(default)
        try:
            words = self._word(split=False, stop="")
        except InputError:  # Inside "…" a lone quote is a character like any other.
            return [self._as_written(start, end)]
        finally:
            self.text = whole
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
        variable = self.variables.get(name)
        text = variable.words[0].text.strip() if variable is not None and variable.words else ""
        return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None

    def _grow(self, count: int) -> None:
        self._expanded += count
        if self._expanded > MAX_EXPANDED:
            raise InputError("its variables expand without measure", file=self.file)

    def _unclosed(self, what: str, at: int) -> InputError:
        line = self.text.count("\n", 0, at) + 1
        return InputError(f"{what} opened at line {line} is never closed", file=self.file)
