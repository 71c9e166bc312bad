"""A bash launch script's commands, read as bash would run them; nothing is ever executed.

Enough of the language is understood to follow what launch scripts do: assignments, arrays, quotes,
line continuations, comments, parameter expansion with defaults, integer arithmetic, here-documents,
and tests and ``case`` clauses that the script itself settles.
Files of the checkout that the script lies in are read where it sources them, and loops that count are followed. What
only a running shell could know (the output of programs, arguments and variables that nobody states) stays as it is
written and is marked as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.parsers.text.shell_conditions import Branches, is_test, joined, matches, set_under_condition, test_outcome
from taylor.parsers.text.shell_counting import MOST_ROUNDS, MOST_STEPS, CountingLoop, assigned, holds
from taylor.parsers.text.shell_expansion import ShellText
from taylor.parsers.text.shell_files import MOST_DEPTH, MOST_FILES, named_file
from taylor.parsers.text.shell_start import ShellStart, current_start, given
from taylor.parsers.text.shell_words import (
    OpenValue,
    Variable,
    Word,
    joined_words,
    read_again,
    variable_to_state,
)
from taylor.parsers.text.slurm import SlurmJob, slurm_job

MAX_BYTES = 2**18
"""Launch scripts have some kilobytes; this reader takes a few seconds for a megabyte."""
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_OPENERS = frozenset({"for", "while", "until", "{", "select"})
_CLOSERS = frozenset({"done", "}"})
_WORDLESS = frozenset({"do", "in", "time", "function"})
_DECLARE = frozenset({"export", "declare", "local", "readonly", "typeset"})


_OWN_VALUES = 2
"""Values that every script has from outside: its name, twice."""
_EQUAL = ("=", "==")
_UNSET = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_COUNTING = re.compile(r"\s*\(\(([^;()]*);([^;()]*);([^;()]*)\)\)\s*;?\s*do\b")


@dataclass(frozen=True)
class Command:
    """A simple command: its words after expansion, and where it starts; `within` are those of the command before the
    shell that runs it, as in ``srun --nodes 2 bash -c '…'``."""

    words: tuple[Word, ...]
    start: int
    within: tuple[Word, ...] = ()


@dataclass
class _Read:
    """What has been read of a simple command."""

    words: list[Word] = field(default_factory=list)
    start: int = 0
    declaring: bool = False
    """Assignments may follow its words, as behind ``export``."""
    assigned: bool = False
    """It has an assignment."""


@dataclass
class ShellScript(ShellText):
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

    commands: list[Command] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    start: ShellStart | None = None
    """Its arguments and variables; those of the command where it is left out."""
    opened: list[OpenValue] = field(default_factory=list)
    """Variables whose values are left to the start."""
    outer: ShellScript | None = field(default=None, repr=False)
    """The script that takes this one in."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._begin_values()
        self._depth = 0
        self._branches: list[Branches] = []
        self._before = ""
        self._runs: bool | None = True
        self._succeeds: bool | None = True
        self._documents: list[str] = []
        self._run()

    @classmethod
    def read(cls, path: Path) -> ShellScript:
        """Read a script of at most `MAX_BYTES`."""
        return cls(read_text(path, limit_bytes=MAX_BYTES), path)

    def _begin_values(self) -> None:
        """The variables that hold before the first command."""
        self._loops: list[CountingLoop | None] = []
        self._level: int = 0 if self.outer is None else self.outer._level + 1
        self._taken_in: list[Path] = [] if self.outer is None else self.outer._taken_in
        self._rounds = 0
        self.slurm: SlurmJob = slurm_job(self.text) if self.outer is None else self.outer.slurm
        if self.outer is not None:
            self.variables, self.arguments = dict(self.outer.variables), self.outer.arguments
            self.outside, self._expanded = dict(self.outer.outside), self.outer._expanded
        else:
            start = self.start or current_start()
            self.arguments = None if start.arguments is None else list(start.arguments)
            lines = {name: Variable([given(value)], False) for name, value in self.slurm.variables}
            self.outside = {**lines, **start.values(self.file)}
        self.outside["BASH_SOURCE"] = Variable([given(str(self.file.absolute()))], True)

    def _run(self) -> None:
        text, read = self.text, _Read()
        while self._at < len(text):
            char = text[self._at]
            if char in " \t\r":
                self._at += 1
            elif char == "#":
                self._skip_line()
            elif text.startswith((";;", ";&"), self._at) and self._in_case():
                self._end_command(read, "\n")
                read = _Read()
                self._end_branch("elif")
                self._begin_clause()
            elif char == "(" and self.text.startswith("((", self._at) and not read.words and not read.assigned:
                self._count(read)
            elif char in "\n;&|()":
                operator = text[self._at : self._at + 2]
                operator = operator if operator in ("&&", "||") else char
                self._end_command(read, operator)
                read = _Read()
                self._at += len(operator)
                if char == "\n":
                    self._skip_documents()
            elif char in "<>" or re.match(r"\d+[<>]", text[self._at : self._at + 8]):
                self._redirect()
            elif not self._line_continued():
                self._read_on(read)
        self._end_command(read, "\n")

    def _read_on(self, read: _Read) -> None:
        """Read the next assignment or word of a command."""
        if not read.words:
            read.start = self._at
        match = _ASSIGN.match(self.text, self._at)
        if match and (not read.words or read.declaring):
            self._assign(match)
            read.assigned = True
            return
        added = self._word()
        first = added[0].text if not read.words and len(added) == 1 else ""
        if not self._reserved(first):
            read.declaring = read.declaring or first in _DECLARE
            read.words += added

    def _reserved(self, word: str) -> bool:
        """Follow a reserved word of the shell; return whether it is one."""
        if word == "if":
            self._branches.append(Branches(dict(self.variables)))
        elif word == "then":
            self._begin_branch()
        elif word in ("elif", "else", "fi"):
            self._end_branch(word)
        elif word == "case":
            self._begin_case()
        elif word == "esac" and self._in_case():
            self._end_branch("fi")
        elif word == "for":
            self._begin_loop()
        elif word == "done":
            self._end_round()
        elif word in _OPENERS or word in _CLOSERS:
            if word in ("while", "until", "select"):
                self._loops.append(None)
            self._depth = max(0, self._depth + (1 if word in _OPENERS else -1))
        else:
            return word in _WORDLESS
        return True

    def _begin_loop(self) -> None:
        """The word ``for`` has been read: rounds are followed where the loop counts by numbers that are known."""
        header = _COUNTING.match(self.text, self._at)
        loop = None
        if header is not None and self._runs is True and not self._is_dead():
            self._at = header.end()
            self._set_number(header[1])
            body = self.text[self._at : self.text.find("done", self._at)]
            if holds(header[2], self._number) and not re.search(r"\b(break|continue)\b", body):
                loop = CountingLoop(header[2], header[3], self._at)
        self._loops.append(loop)
        if loop is None:
            self._depth += 1

    def _is_dead(self) -> bool:
        return any(branches.dead for branches in self._branches)

    def _end_round(self) -> None:
        """The word ``done`` has been read: the next round of a loop that is followed, or what stands behind it."""
        loop = self._loops.pop() if self._loops else None
        if loop is None:
            self._depth = max(0, self._depth - 1)
            return
        loop.rounds, self._rounds = loop.rounds + 1, self._rounds + 1
        self._set_number(loop.step)
        if holds(loop.test, self._number):
            if loop.rounds > MOST_ROUNDS or self._rounds > MOST_STEPS:
                raise InputError(f"has a loop of more than {MOST_ROUNDS} rounds", file=self.file)
            self._loops.append(loop)
            self._at = loop.body

    def _set_number(self, text: str) -> None:
        found = assigned(text, self._number)
        if found is None or self._runs is False:
            return
        name, value = found
        if value is None:
            self.variables.pop(name, None)
        else:
            self.variables[name] = Variable([given(str(value))], False, self._depth == 0 and self._runs is True)

    def _count(self, read: _Read) -> None:
        """Read ``(( … ))``: an assignment, or a test in the words of one."""
        start, end = self._at, self._matching(self._at, "(", ")")
        inside = self.text[start + 2 : max(start + 2, end - 2)]
        read.start, self._at = start, end
        outcome = holds(inside, self._number) if assigned(inside, self._number) is None else True
        self._set_number(inside)
        shown = {True: "1", False: "0"}
        first = given(shown[outcome]) if outcome is not None else Word(tuple(self._as_written(start, end)))
        read.words += [given("["), first, given("-eq"), given("1"), given("]")]

    def _take_in(self, words: list[Word], start: int) -> None:
        """``source FILE``: the commands and variables of a file of the checkout that the script lies in."""
        line = self.text.count("\n", 0, start) + 1
        word = words[1]
        path = named_file(word, self.file)
        if path is None or self._level >= MOST_DEPTH or len(self._taken_in) >= MOST_FILES:
            self.notes.append(
                f"line {line} takes in {word.text}, which is not in the script's checkout: it is not read"
            )
            return
        self._taken_in.append(path)
        try:
            inner = ShellScript(read_text(path, limit_bytes=MAX_BYTES), path, outer=self)
        except InputError as error:
            self.notes.append(f"line {line} takes in {path.name}, which cannot be read: {error.problem}")
            return
        self._expanded = inner._expanded
        for name, variable in inner.variables.items():
            if variable is not self.variables.get(name):
                self.variables[name] = Variable(_elsewhere(variable.words), variable.array, variable.settled)
        self.opened += [each._replace(start=0, end=0) for each in inner.opened]
        self.commands += [Command(tuple(_elsewhere(each.words)), start) for each in inner.commands]
        self.notes += [f"{path.name}: {note}" for note in inner.notes]

    def _format(self, words: list[Word]) -> None:
        """``printf -v NAME FORMAT WORD …`` with ``%s`` and ``%d``, where all of it is known."""
        name, texts = words[2].text, [word.text for word in words[4:]]
        parts = re.split(r"%[sd]", words[3].text)
        if any(word.unknown for word in words) or len(parts) != 1 + len(texts) or "%" in "".join(parts):
            self.variables.pop(name, None)
            return
        value = "".join(part + text for part, text in zip(parts, [*texts, ""], strict=True))
        self._grow(len(value))
        self.variables[name] = Variable([given(value)], False, self._depth == 0 and self._runs is True)

    def _without_unset(self, words: list[Word]) -> list[Word]:
        """The words of a test, with a variable empty that the script never sets, where the start is stated without it.

        Of ``-z``, ``-n`` and ``=`` alone: without quotes ``[ ${NAME} != yes ]`` is an error of the shell's.
        """
        stated = self.arguments is not None or len(self.outside) > _OWN_VALUES
        texts = [word.text for word in words]
        if not stated or not is_test(words) or not ({"-z", "-n", *_EQUAL} & set(texts)):
            return words
        unset = {at: _UNSET.fullmatch(text) for at, text in enumerate(texts) if words[at].unknown}
        for at, name in unset.items():
            equals = texts[at + 1 : at + 2] in ([each] for each in _EQUAL)
            if name is not None and (equals or texts[at - 1] in ("-z", "-n")):
                note = f"{name[1]} is taken for not set: --env {name[1]}=VALUE sets it"
                self.notes += [note] * (note not in self.notes)
                words = [*words[:at], Word(()), *words[at + 1 :]]
        return words

    def _built_in(self, words: list[Word], start: int) -> None:
        """Follow a command of the shell's own that changes what later ones see."""
        first = words[0].text
        if first in ("source", ".") and len(words) > 1:
            self._take_in(words, start)
        elif first == "printf" and len(words) > 3 and words[1].text == "-v":
            self._format(words)
        elif first == "shift" and self.arguments is not None:
            count = int(words[1].text) if len(words) > 1 and words[1].text.isdecimal() else 1
            self.arguments = self.arguments[min(count, len(self.arguments)) :]
            for name in [name for name in self.outside if name.isdecimal() and name != "0"]:
                del self.outside[name]
            self.outside |= {str(at): Variable([given(each)], False) for at, each in enumerate(self.arguments, 1)}

    def _begin_branch(self) -> None:
        """The words between ``if`` or ``elif`` and ``then`` have been read."""
        if self._branches and self._branches[-1].parts is not None:
            branches = self._branches[-1]
            branches.begin(joined(branches.parts or []), len(self.commands), len(self.notes))

    def _in_case(self) -> bool:
        return bool(self._branches) and self._branches[-1].subject is not None

    def _begin_case(self) -> None:
        """The word ``case`` has been read: its subject, ``in`` and the first clause's patterns follow."""
        self._skip_blanks()
        subject = joined_words(self._word(split=False))
        self._skip_blanks()
        if [word.text for word in self._word()] == ["in"]:
            self._branches.append(Branches(dict(self.variables), subject=subject, parts=None, dead=True))
            self._begin_clause()

    def _begin_clause(self) -> None:
        """Read what stands before the commands of a clause; ``;&`` and ``;;&`` leave open whether the next one runs."""
        branches = self._branches[-1]
        end = re.compile(r";;&|;;|;&|").match(self.text, self._at)
        assert end is not None
        self._at = end.end()
        if end[0].endswith("&"):
            branches.sure = False
        self._skip_blanks()
        if re.compile(r"esac(?![\w./-])").match(self.text, self._at):
            branches.dead = True  # What follows is no clause.
            branches.commands, branches.notes = len(self.commands), len(self.notes)
            return
        self._at += self.text.startswith("(", self._at)
        found: list[bool | None] = []
        while self._at < len(self.text):
            self._skip_blanks()
            pattern = joined_words(self._word(split=False))
            assert branches.subject is not None
            found.append(matches(branches.subject, pattern, [self._is_quoted(char.at) for char in pattern.chars]))
            self._skip_blanks()
            self._at += 1
            if self.text[self._at - 1 : self._at] != "|":
                break
        fits = True if True in found else None if None in found else False
        if end[0].endswith("&") and fits is False:
            fits = None
        branches.begin(fits, len(self.commands), len(self.notes))

    def _is_quoted(self, at: int | None) -> bool:
        return at is not None and (bool(self.quote_at(at)) or self.text[at - 1 : at] == "\\")

    def _skip_blanks(self) -> None:
        """Pass by blanks, ends of lines and comments."""
        blanks = re.compile(r"(?:[ \t\r\n]|\\\r?\n|#[^\n]*)*").match(self.text, self._at)
        assert blanks is not None
        self._at = blanks.end()

    def _end_branch(self, word: str) -> None:
        """Close a branch of an ``if`` or ``case``; at its end take what the branches that may run agree on."""
        if not self._branches:
            return
        branches = self._branches[-1]
        if branches.dead:
            del self.commands[branches.commands :], self.notes[branches.notes :]
        elif branches.parts is None:
            branches.after.append(self.variables)
        self.variables = dict(branches.before)
        if word == "fi":
            self._branches.pop()
            self.variables = branches.merged(self.notes)
        elif word == "else":
            branches.begin(True, len(self.commands), len(self.notes))
        else:
            branches.parts = []

    def _end_command(self, read: _Read, operator: str) -> None:
        """Take in a command that has been read, and whether the one behind `operator` runs."""
        words, assigned = self._without_unset(read.words), read.assigned
        if not words and not assigned and operator == "\n":
            return  # A line may end behind ``&&``.
        before, self._before = self._before, operator
        condition = self._branches[-1].parts if self._branches else None
        if condition is not None and words:
            condition.append((before, tuple(words)))
        if condition is not None and (not words or is_test(words)):
            return
        if self._runs is not False and (words or assigned):
            self._succeeds = test_outcome(words) if is_test(words) else True
            if self._runs is None:
                self._succeeds = None
            if words:
                self.commands.append(Command(tuple(words), read.start))
                self._built_in(words, read.start)
                self._started_shell(words, read.start)
        succeeds = self._succeeds
        self._runs = (
            succeeds if operator == "&&" else True if operator != "||" else None if succeeds is None else not succeeds
        )

    def _started_shell(self, words: list[Word], start: int) -> None:
        """The command of ``eval TEXT``, or of ``bash -c TEXT``: another program may start that shell."""
        if words[0].text == "eval":
            self.commands.append(Command(tuple(read_again(words[1:])), start))
        for at, (shell, option, text) in enumerate(zip(words, words[1:], words[2:], strict=False)):
            if option.text in ("-c", "-lc") and shell.text.rsplit("/")[-1] in ("bash", "sh"):
                self.commands.append(Command(tuple(self._reread(text)), start, tuple(words[:at])))

    def _reread(self, word: Word) -> list[Word]:
        """The words of a word that another shell reads: of '…' the expansions are followed now."""
        span = word.span()
        if span is None or self.quote_at(span[0]) != "'":
            return read_again([word])
        (at, whole), words = (self._at, self.text), []
        self.text, self._at = whole[: span[1]], span[0]
        try:
            while self._at < len(self.text):
                before = self._at
                words += self._word(stop=" \t\r\n;&|<>")
                self._at += self._at == before
        except InputError:  # A quote of the other shell's that ends elsewhere.
            return read_again([word])
        finally:
            self.text, self._at = whole, at
        return words

    def _redirect(self) -> None:
        match = re.compile(r"\d*(<<<|<<-?|>>|>\||[<>]&?)[ \t]*").match(self.text, self._at)
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
            value = Variable(self._array(), True)
        else:
            value = Variable([joined_words(self._word(split=False))], False)
        old = self.variables.get(name)
        if more and old is not None:
            if value.array or old.array:
                value = Variable(old.words + value.words, True)
            else:
                value = Variable([Word(old.words[0].chars + value.words[0].chars)], False)
            self._grow(sum(len(word.chars) for word in value.words))
        if self._runs is not False and not more and any(word.unknown for word in value.words):
            value = self._open_value(name, value, match.end())
        self._set(name, value)

    def _set(self, name: str, value: Variable) -> None:
        """Give a variable a value where the command runs; one from before a condition that is not settled stays."""
        if self._runs is False:
            return
        old = self.variables.get(name)
        value.settled = self._depth == 0 and self._runs is True
        if old is not None and old.settled and not value.settled:
            self.notes.append(f"{name} is set again under a condition: the value before it is taken")
            return
        if old is not None and not value.settled and value.texts() != old.texts():
            note = set_under_condition(name)
            self.notes += [note] * (note not in self.notes)
        self.variables[name] = value

    def _open_value(self, name: str, value: Variable, start: int) -> Variable:
        """A value that only the running script knows: as the user states it, else noted as left open."""
        stated = self.outside.get(name)
        if stated is not None:
            self.notes.append(f"{name} is as --env states it: the script computes it when it starts")
            return Variable(stated.words, False)
        place = next((char.at for word in value.words for char in word.chars if char.unknown), None)
        by = self.to_state(" ".join(value.texts()), place) or name
        self.opened.append(OpenValue(name, start, self._at, by))
        return value

    def to_state(self, text: str, at: int | None = None) -> str | None:
        """The variable whose value settles a text that the script leaves to its start (`variable_to_state`)."""
        return variable_to_state(text, at, self.opened, {*self.variables, *self.outside})

    def cure_of(self, word: Word) -> str:
        """The ways to state a word that the script leaves to its start."""
        by = self.to_state(word.text, next((char.at for char in word.chars if char.unknown), None))
        return "write it out" + (f", or give --env {by}=VALUE" if by else "")


def _elsewhere(words: Sequence[Word]) -> list[Word]:
    """Words of another file, whose places are none of this one's."""
    return [Word(tuple(char._replace(at=None, via=None) for char in word.chars)) for word in words]
