"""Values set in a TOML text by splicing: nothing but the wanted values changes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, Mapping

from taylor.base.errors import InputError
from taylor.base.files import read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES, MAX_LINES = 2**19, 5_000
"""Most that a file may hold: ten times what training configurations do, for a search writes dozens of copies."""

TomlPath = tuple[str, str]
"""Table (dotted) and key."""

MAX_DEPTH = 60
"""Dots of a name; the library's time to read one grows with their square."""

_DOTS = re.compile(rf"(?:\.[^.=,{{}}\[\]\r\n]*){{{MAX_DEPTH + 1}}}")
_HEADER = re.compile(r"[ \t]*\[([^\[\]\r\n]+)\][ \t]*(?:#[^\r\n]*)?\r?(?=\n|\Z)")
_ARRAY_HEADER = re.compile(r"[ \t]*\[\[")
_KEY = re.compile(r"[ \t]*(\"[^\"\r\n]*\"|'[^'\r\n]*'|[A-Za-z0-9_\-]+)[ \t]*=[ \t]*")


class TomlSource:
    """A TOML file: its text, its data, and where each plain ``key = value`` stands.

    Raises
    ------
    InputError
        When the text is not TOML, is empty, or is too big.
    """

    def __init__(self, text: str, file: Path) -> None:
        self.text, self.file = text, file
        self.asked: set[str] = set()  # Dotted paths of the entries that readers ask for.
        if text.count("\n") >= MAX_LINES:
            raise InputError(f"has more than {MAX_LINES:,} lines", file=file, cure="is this a training configuration?")
        if _DOTS.search(text):
            raise InputError("is nested too deep", file=file, cure="is this a training configuration?")
        try:
            self.data: dict[str, Any] = tomllib.loads(text.removeprefix("\ufeff").replace("\r\n", "\n"))
        except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
            raise InputError(f"is not valid TOML: {error}", file=file) from None
        if not self.data:
            raise InputError("is empty", file=file, cure="give a training configuration")
        self.values: dict[TomlPath, tuple[int, int]] = {}
        self.line_ends: dict[TomlPath, int] = {}
        self.headers: dict[str, int] = {}
        self._scan()

    @classmethod
    def read(cls, path: Path) -> TomlSource:
        """Read a file of at most `MAX_BYTES` bytes."""
        return cls(read_text(path, limit_bytes=MAX_BYTES), path)

    def _scan(self) -> None:
        at, table = (1 if self.text.startswith("\ufeff") else 0), ""
        text = self.text
        while at < len(text):
            header = None if _ARRAY_HEADER.match(text, at) else _HEADER.match(text, at)
            key = _KEY.match(text, at)
            if header:
                table = ".".join(part.strip().strip("\"'") for part in header[1].split("."))
                self.headers[table] = header.end()
            elif _ARRAY_HEADER.match(text, at):
                table = "\0"  # Arrays of tables hold nothing that is ever set here.
            elif key:
                end = value_end(text, key.end())
                path = (table, key[1].strip("\"'"))
                self.values[path] = (key.end(), end)
                at = end
                self.line_ends[path] = _line_end(text, end)
            at = text.find("\n", at) + 1 or len(text)


def value_end(text: str, at: int) -> int:
    """End of a TOML value that starts at a place (without blanks and comment)."""
    for quote in ('"""', "'''"):
        if text.startswith(quote, at):
            end = text.find(quote, at + 3)
            return len(text) if end < 0 else end + 3
    if text[at : at + 1] in "\"'":
        quote, at = text[at], at + 1
        while at < len(text) and text[at] != quote:
            at += 2 if text[at] == "\\" and quote == '"' else 1
        return at + 1
    if text[at : at + 1] in ("[", "{"):
        depth = 0
        while at < len(text):
            if text[at] in "\"'":
                at = value_end(text, at)
                continue
            if text[at] == "#":
                at = _line_end(text, at)
                continue
            depth += (text[at] in "[{") - (text[at] in "]}")
            at += 1
            if depth == 0:
                return at
        return at
    match = re.compile(r"[^#\r\n]*").match(text, at)
    assert match is not None
    return at + len(match.group().rstrip())


def _line_end(text: str, at: int) -> int:
    match = re.compile(r"[^\r\n]*").match(text, at)
    assert match is not None
    return match.end()


def toml_text(value: Any) -> str:
    """A value in TOML on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    raise TypeError(f"no TOML form for {type(value).__name__}")


def edit_toml(source: TomlSource, wanted: Mapping[TomlPath, Any]) -> TomlSource:
    """Set values; None removes a key with its line. What already means the same stays as written.

    Raises
    ------
    InputError
        When a value cannot be set without changing another.
    """
    before = source
    for path, value in wanted.items():
        found = _get(source.data, path)
        if value is None and found is None:
            continue
        if value is not None and found is not None and type(found) is type(value) and found == value:
            continue
        source = _set(source, path, value)
    for path, value in wanted.items():
        if _get(source.data, path) != value:
            raise InputError("cannot be set", file=before.file, field=".".join(path), value=value)
    if _others(before.data, wanted) != _others(source.data, wanted):
        raise InputError("its values cannot be set without changing others", file=before.file)
    return source


def _set(source: TomlSource, path: TomlPath, value: Any) -> TomlSource:
    text, newline = source.text, "\r\n" if "\r\n" in source.text else "\n"
    table, key = path
    if path in source.values:
        start, end = source.values[path]
        if value is None:
            start = text.rfind("\n", 0, start) + 1
            end = text.find("\n", end) + 1 or len(text)
            return TomlSource(text[:start] + text[end:], source.file)
        return TomlSource(text[:start] + toml_text(value) + text[end:], source.file)
    if _get(source.data, path) is not None:
        raise InputError(
            "is written in a form that is not changed here",
            file=source.file,
            field=".".join(path),
            cure=f"write it as {key} = … under [{table}]",
        )
    entry = f"{key} = {toml_text(value)}"
    siblings = [end for (other, _), end in source.line_ends.items() if other == table]
    if siblings or table in source.headers:
        at = max(siblings) if siblings else source.headers[table]
        return TomlSource(text[:at] + newline + entry + text[at:], source.file)
    gap = "" if text.endswith("\n") else newline
    return TomlSource(f"{text}{gap}{newline}[{table}]{newline}{entry}{newline}", source.file)


def _get(data: Mapping[str, Any], path: TomlPath) -> Any:
    table: Any = data
    for part in path[0].split(".") if path[0] else ():
        table = table.get(part) if isinstance(table, Mapping) else None
    return table.get(path[1]) if isinstance(table, Mapping) else None


def _others(data: Mapping[str, Any], wanted: Mapping[TomlPath, Any], prefix: str = "") -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            kept |= _others(value, wanted, f"{prefix}.{key}" if prefix else key)
        elif (prefix, key) not in wanted:
            kept[f"{prefix}.{key}"] = value
    return kept
