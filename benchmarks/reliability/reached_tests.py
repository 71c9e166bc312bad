"""Which tests run which block of code: a copy of the tree that writes down every block that a test enters.

Coverage tools trace every line; here a block tells once a test that it is entered, which costs next to nothing, and
reaches processes that a test starts. The copy's `taylor_reached.py` keeps the blocks of one process, `RecordTests`
gives every test a file for those of all its processes. Kernels are compiled and can tell nothing: `Reached.tests_at`
takes the tests that enter a function that names one.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

PROBE = """
import os
_told = set()
_place = None


def reached(block):
    global _told, _place
    place = os.environ.get("TAYLOR_REACHED")
    if place != _place:
        _place, _told = place, set()
    if place and block not in _told:
        _told.add(block)
        with open(place, "a") as stream:
            stream.write(block + "\\n")
"""


def copy_tree(root: Path, place: Path) -> None:
    """The repository's files without their history and outputs; shared data stays where it is, beside the copy."""
    listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=root, capture_output=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (root / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, place / name)
    shared = root.parent / "shared"
    if shared.is_dir() and not (place.parent / "shared").exists():
        (place.parent / "shared").symlink_to(shared.resolve())


def is_compiled(node: ast.AST) -> bool:
    """Whether a function runs as machine code."""
    decorators = getattr(node, "decorator_list", [])
    return any("compiled" in ast.unparse(each) or "njit" in ast.unparse(each) for each in decorators)


class _Probes(ast.NodeTransformer):
    """Puts a call at the beginning of every block of Python."""

    def __init__(self, file: str):
        self.file = file

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if is_compiled(node):
            return node
        self.generic_visit(node)
        documented = ast.get_docstring(node, clean=False) is not None
        node.body[documented:documented] = [self._probe(node.body[0].lineno)]
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            inside = isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.ExceptHandler))
            if inside and isinstance(block, list) and block:
                block.insert(0, self._probe(block[0].lineno))
        return node

    def _probe(self, line: int) -> ast.stmt:
        [call] = ast.parse(f"__import__('taylor_reached').reached('{self.file}:{line}')").body
        return call


def put_probes(place: Path, files: Sequence[str]) -> None:
    """Rewrite files of a copied tree so that they tell which of their blocks are entered."""
    (place / "taylor_reached.py").write_text(PROBE)
    for file in files:
        tree = _Probes(file).visit(ast.parse((place / file).read_text(encoding="utf-8")))
        # A program started by its path, as the guard of dry-runs is, does not look into the tree.
        [finds] = ast.parse(f"__import__('sys').path.append({str(place)!r})").body
        tree.body.insert(_first_statement(tree), finds)
        text = ast.unparse(ast.fix_missing_locations(tree))
        (place / file).write_text(text + "\n", encoding="utf-8")


def _first_statement(tree: ast.Module) -> int:
    """Where a module's own statements begin, behind its docstring and what it takes from ``__future__``."""
    ahead = [isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body]
    return max((at + 1 for at, future in enumerate(ahead) if future), default=ast.get_docstring(tree) is not None)


class RecordTests:
    """A pytest plugin: for every test its blocks, its CPU seconds with those of its processes, and how it ended."""

    def __init__(self, kept: Path, root: Path):
        self.kept, self.scratch, self.root = kept, kept, root
        self.passed, self.count = True, 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        """pytest's word on one phase of a test."""
        self.passed = self.passed and report.outcome == "passed"

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> None:
        """A test begins."""
        self.count += 1  # A place of its own, by which processes see that another test has begun.
        self.scratch = self.kept.with_suffix(f".{self.count}")
        self.scratch.write_text("")
        self.passed, self.began = True, _cpu()
        self.clock = time.monotonic()
        os.environ["TAYLOR_REACHED"] = str(self.scratch)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test is over: its row is written."""
        del os.environ["TAYLOR_REACHED"]
        row = {"test": nodeid, "cpu": round(_cpu() - self.began, 3), "wall": round(time.monotonic() - self.clock, 3)}
        row |= {
            "of": digest_of(self.root, nodeid),
            "passed": self.passed,
            "blocks": sorted(set(self.scratch.read_text().split())),
        }
        self.scratch.unlink()
        with self.kept.open("a") as stream:
            stream.write(json.dumps(row) + "\n")


def digest_of(root: Path, nodeid: str) -> str:
    """The state of a test's file: what was recorded of another one is recorded anew."""
    path = root / nodeid.partition("::")[0]
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def _cpu() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@dataclass(frozen=True)
class Reached:
    """The tests of some folders, each with the blocks that it enters.

    Parameters
    ----------
    rows : tuple of dict
        ``test``, ``of`` (the state of its file), ``cpu`` (s), ``wall`` (s), ``passed``, ``blocks`` ("FILE:LINE").
    """

    rows: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, kept: Path, root: Path) -> Reached:
        """The rows of a recording whose tests are as they were, and passed."""
        rows = {row["test"]: row for row in _current(kept, root)}
        return cls(tuple(row for row in rows.values() if row["passed"]))

    @cached_property
    def by_block(self) -> dict[str, list[dict[str, Any]]]:
        """Rows of the tests that enter each block."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            for block in row["blocks"]:
                found.setdefault(block, []).append(row)
        return found

    def tests_at(self, root: Path, file: str, line: int) -> list[dict[str, Any]]:
        """The tests that run a line, the quickest first; of a module's own level, all that enter the module."""
        blocks = set(_blocks_around(root, file, line))
        rows: dict[str, dict[str, Any]] = {}
        for block in blocks or [each for each in self.by_block if each.startswith(file + ":")]:
            rows |= {row["test"]: row for row in self.by_block.get(block, [])}
        return sorted(rows.values(), key=lambda row: (row["cpu"], row["test"]))


def _blocks_around(root: Path, file: str, line: int) -> Iterator[str]:
    """The innermost block that holds a line; of a kernel the functions of the tree that name a kernel of its file."""
    tree = ast.parse((root / file).read_bytes())
    innermost: tuple[int, int] | None = None  # (extent, line of the first statement)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and is_compiled(node) and node.lineno <= line <= (node.end_lineno or 0):
            names = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and is_compiled(each)}
            yield from _naming(root, frozenset(names))
            return
        parts = ("body", "orelse", "finalbody")
        blocks = [getattr(node, name, None) for name in parts] if isinstance(node, _BLOCKS) else []
        for block in blocks:
            if isinstance(block, list) and block and block[0].lineno <= line <= (block[-1].end_lineno or 0):
                extent = (block[-1].end_lineno or 0) - block[0].lineno
                if innermost is None or extent <= innermost[0]:
                    innermost = extent, block[0].lineno
    if innermost is not None:
        yield f"{file}:{innermost[1]}"


_BLOCKS = (ast.FunctionDef, ast.If, ast.For, ast.While, ast.With, ast.Try, ast.ExceptHandler)


@cache
def _naming(root: Path, names: frozenset[str]) -> tuple[str, ...]:
    """Blocks of the functions that name one of some kernels, through other kernels too."""
    found, known, wanted = set(), set(names), True
    while wanted:
        wanted = False
        for path in sorted(root.glob("*/*.py")) + sorted(root.glob("*/*/*.py")):
            if path.parts[len(root.parts)] in ("tests", "benchmarks", "build"):
                continue
            source = path.read_text(encoding="utf-8")
            if not any(name in source for name in known):
                continue
            for node in ast.walk(ast.parse(source)):
                if not isinstance(node, ast.FunctionDef) or not known & _names_in(node):
                    continue
                if is_compiled(node):
                    wanted = wanted or node.name not in known
                    known.add(node.name)
                else:
                    found.add(f"{path.relative_to(root)}:{node.body[0].lineno}")
    return tuple(sorted(found))


def _names_in(node: ast.FunctionDef) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _current(kept: Path, root: Path) -> list[dict[str, Any]]:
    """Rows of tests whose files are as they were when they were recorded."""
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    states: dict[str, str] = {}
    for row in rows:
        file = row["test"].partition("::")[0]
        if file not in states:
            states[file] = digest_of(root, file)
    return [row for row in rows if row["of"] == states[row["test"].partition("::")[0]]]


def main(place: str, kept: str, *tests: str) -> int:
    """In a copied tree: run tests and write down what they enter; what is written already is not run again."""
    import pytest

    record = Path(kept)
    done = {row["test"] for row in _current(record, Path(place))}

    class SkipDone:
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            items[:] = [item for item in items if item.nodeid not in done]

    plugins = [RecordTests(record, Path(place)), SkipDone()]
    return int(
        pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:randomly", f"--rootdir={place}", *tests], plugins)
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
