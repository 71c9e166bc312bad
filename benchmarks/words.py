"""The word check: words that the project's texts do not use, each with what stands in their place.

Run from the repository's root: ``python -m benchmarks.words``. It prints one line a hit and ends with 1 where there is
one. `SOURCES` says which files are read and how.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

WORDS = {
    r"told|tell(?:s|ing)? apart": "predicted, estimated; reported, printed; distinguished",
    r"held (?:against|by a test)|holds? (?:\w+ ){0,4}against": "checked against, covered by a test",
    r"rows? holds?|does not hold|do not hold": "passes, is satisfied; fails",
    r"rooms?|houses?|doors?|roads?|face": "package, project, entry point, path; memory or time that is free",
    r"own plans?|(?:file|script)'s own": "baseline, the plan in the file; the same file",
    r"states (?:are )?split": "distributed optimizer (ZeRO-1) over n ranks",
    r"interleaves": "virtual stages (VPP)",
    r"closed forms?": "analytical model",
    r"walks?|walked": "local search; depth-first enumeration; sweep",
    r"crowded|fruitless|hemmed in|in vain": "too many columns, no progress, stalled, without success",
    r"anew": "again",
    r"at hand": "available",
    r"besides": "in addition (to), apart from",
    r"lest": "so that … not",
    r"such as (?:are|is)": "which are",
    r"so many|as many as wanted": "n, the number of",
    r"19 of 20": "95 % upper limit",
    r"fits \(tight\)": "likely to run out of memory: x MiB free, y % risk",
}
"""Pattern of what is not written, whole words in any case, and what is."""

MESSAGE_WORDS = {
    **WORDS,
    r"told|tells?|telling": "predicted, estimated; reported, printed; distinguished",
    r"holds?|held|holding": "contains, has; passes, is satisfied; applies to",
    r"interleaves?": "virtual stages (VPP)",
}
"""The same for messages."""

NAMES = {
    r"told": "predicted, shown, printed; state, answer",
    r"held": "kept, alive, stored; counts",
    r"rooms?": "free, margin",
    r"houses?|doors?|roads?": "package, project, entry point, path",
    r"anew": "again",
}
"""The same for names in code."""

ALLOWED: dict[str, tuple[str, ...]] = {}
"""Phrases that a page may use, by its path; each is a quotation or a name. Keep it short."""

GENERATED = ("docs/commands.md", "docs/flags.md", "docs/recipes.md")
"""Pages that are written from code: their words are changed there."""

NOT_COVERED = ("benchmarks/words.py",)
"""Files whose messages and names are not checked: this one lists the words."""

Lines = Iterator[tuple[int, str]]
"""(line number, text) of what a reader of a file reads as prose."""

_CODE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_WRITTEN = re.compile(r"<!--[^>]*\bwritten by\b.*?<!--[^>]*\bend of\b[^>]*-->", re.IGNORECASE | re.DOTALL)
_NAMES = re.compile(r"\s*(?:[\w*]+(?:, [\w*]+)*(?: : |$)|>>>|\.\.\. |python -m |\{)")
"""Lines of docstrings that hold names: fields with their types, examples, commands, data."""
_SHAPE = re.compile(r"\[[^\]]*\]")
_INLINE = re.compile(r"``.*?``|`[^`\n]*`|\]\([^)\n]*\)")


def prose(text: str) -> Lines:
    """Markdown without its code, link targets and the parts that a program writes."""
    for pattern in (_CODE, _WRITTEN, _INLINE):
        text = pattern.sub(lambda match: "`" + "\n" * match[0].count("\n") + "`", text)
    yield from enumerate(text.splitlines(), 1)


def docstrings(text: str) -> Lines:
    """Docstrings of a module, its classes and functions, and the strings below its constants and fields."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for number, line in prose(node.value.value):
                if not _NAMES.match(line):
                    yield node.lineno + number - 1, _SHAPE.sub("", line)


def messages(text: str) -> Lines:
    """String literals with a blank, docstrings left out: what a program may print."""
    tree = ast.parse(text)
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in documented:
            continue
        if isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value.replace("\n", " ")


def comments(text: str) -> Lines:
    """Comments of Python, their quotations in backticks left out."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], _INLINE.sub("`", token.string)


def notes(text: str) -> Lines:
    """Comments of YAML that stand on lines of their own."""
    return ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith("#"))


def names(text: str) -> Lines:
    """Names that a module gives to functions, classes, parameters and variables, a blank for each underscore."""
    for node in ast.walk(ast.parse(text)):
        given = ""
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            given = node.name
        elif isinstance(node, ast.arg):
            given = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            given = node.id
        if given:
            yield getattr(node, "lineno", 0), given.replace("_", " ")


def reasons(text: str) -> Lines:
    """The `why` of a table of flags or keys."""
    return ((number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip().startswith("why:"))


PACKAGES = (
    "base", "pipeline", "register", "pipeline_solver", "cost_model", "layerwise", "parsers", "dryrun", "nd_search",
    "profiling", "blackbox", "report", "workflows", "serve", "taylor", "benchmarks",
)  # fmt: skip

SOURCES: tuple[tuple[str, Callable[[str], Lines]], ...] = (
    ("README*.md", prose),
    ("CONTRIBUTING.md", prose),
    ("SECURITY.md", prose),
    ("docs/**/*.md", prose),
    *((f"{package}/**/*.py", docstrings) for package in PACKAGES),
    *((f"{package}/**/*.py", messages) for package in PACKAGES),
    *((f"{package}/**/*.py", names) for package in PACKAGES),
    *((f"{package}/**/*.py", comments) for package in PACKAGES),
    ("parsers/**/*.yaml", reasons),
    ("parsers/**/*.yaml", notes),
)
"""Glob from the root, and the reader of such files."""
READ_WITH: Mapping[Callable[[str], Lines], Mapping[str, str]] = {
    messages: MESSAGE_WORDS,
    reasons: MESSAGE_WORDS,
    names: NAMES,
}
"""Words that are not written in what a reader yields; `WORDS` for all others."""


@dataclass(frozen=True)
class Hit:
    """A word that is not to be written."""

    place: str
    """Path and line, as `docs/api.md:12`."""
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.place}: «{self.word}»: {self.instead}"


def hits(place: str, lines: Lines, allowed: Sequence[str] = (), words: Mapping[str, str] = WORDS) -> Iterator[Hit]:
    """Hits in the lines of one file."""
    for number, line in lines:
        for phrase in allowed:
            line = line.replace(phrase, "")
        for pattern, instead in words.items():
            for found in re.finditer(rf"(?<![\w-])(?:{pattern})(?![\w-])", line, _flags(pattern)):
                yield Hit(f"{place}:{number}", found[0], instead)


def _flags(pattern: str) -> re.RegexFlag:
    # «Hugging Face» is a name.
    return re.RegexFlag(0) if "face" in pattern else re.IGNORECASE


def check(root: Path = ROOT) -> list[Hit]:
    """Hits in all files that `SOURCES` names."""
    found: list[Hit] = []
    for pattern, reader in SOURCES:
        for path in sorted(root.glob(pattern)):
            place = path.relative_to(root).as_posix()
            if place in GENERATED or (place in NOT_COVERED and reader in (messages, names)):
                continue
            words = READ_WITH.get(reader, WORDS)
            found += hits(place, reader(path.read_text(encoding="utf-8")), ALLOWED.get(place, ()), words)
    return found


def main() -> int:
    """Print the hits; exit code 1 where there is one."""
    found = check()
    print(*found, sep="\n", end="\n" if found else "")
    print(f"words: {len(found)} hits")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
