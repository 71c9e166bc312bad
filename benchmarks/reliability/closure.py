"""Files that a figure rests on: the modules that a file imports, wherever it does, and the tables beside them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

TABLES = (".css", ".csv", ".html", ".js", ".json", ".toml", ".yaml", ".yml")
"""Endings of files that modules read from their own folder."""


def closure(starts: Iterable[Path], root: Path) -> set[Path]:
    """The files of a checkout that some of its files import, directly or through others, and those files themselves.

    Imports inside functions and for types count, and so does a text that is the name of a module, as one that is
    loaded by its name has it. What `taylor` itself loads at need counts for those who take it from there.
    """
    found: set[Path] = set()
    waiting = list(starts)
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        if file.suffix == ".py" and file != root / "taylor" / "__init__.py":
            named = {path for name in _names(file, root, file.stat().st_mtime_ns) for path in _files(name, root)}
            waiting += sorted(named - found)
            waiting += [each for each in file.parent.iterdir() if each.suffix in TABLES and each not in found]
    return found


@cache
def _names(file: Path, root: Path, changed: int) -> tuple[str, ...]:
    """Names of what a file imports, those of a `from` with each name behind it; read again where it has `changed`."""
    return tuple(dict.fromkeys(_imports(file, root)))


def _imports(file: Path, root: Path) -> Iterator[str]:
    package = file.parent.relative_to(root).parts
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{each.name}" for each in node.names)
            if base == "taylor":
                yield f"{base}.face"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(".") and (
            node.value.replace(".", "").replace("_", "").isalnum()
        ):  # fmt: skip
            yield node.value


@cache
def _files(name: str, root: Path) -> tuple[Path, ...]:
    """The files that the import of a module runs: its own, and those of the packages around it."""
    return tuple(_modules(name.split("."), root))


def _modules(parts: list[str], root: Path) -> Iterator[Path]:
    for count in range(1, len(parts) + 1):
        for place in _places(parts[:count], root):
            for file in (place / "__init__.py", place.with_suffix(".py")):
                if file.is_file():
                    yield file


def _places(parts: list[str], root: Path) -> Iterator[Path]:
    if parts[0] == "taylor":
        # In a checkout the sub-packages lie beside the folder `taylor`, some modules in it.
        yield root.joinpath("taylor", *parts[1:])
        if len(parts) > 1:
            yield root.joinpath(*parts[1:])
    elif (root / parts[0]).is_dir():
        yield root.joinpath(*parts)
