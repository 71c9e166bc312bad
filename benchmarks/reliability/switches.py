"""A copy of the tree that holds every mutant at once, each behind a switch, and a pytest run that throws one at a time.

    python -m benchmarks.reliability.switches record|judge PLACE KEPT SECONDS [TEST...]

Every expression that a mutant would change becomes ``mutant if switch.on == number else expression``. One process
loads the product and its tests once; a mutant is then judged by a fork of it in which its switch is on, so that it
costs what its tests cost. `record` runs every test in a fork without a mutant, `SECONDS` of CPU time at most, and
writes down which switches it passes, those of the processes that it starts included; `judge` reads a line
{"mutant": number, "tests": [...], "seconds": s} after the other and answers {"outcome": ..., "by": ...}. What is
evaluated while a module is loaded (defaults, constants, classes) and kernels, which are compiled, have no switch.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.reliability.campaign import PACKAGES
from benchmarks.reliability.forks import KILLED, in_fork
from benchmarks.reliability.mutated_code import Mutant, mutants_of

PARAMETRIZATIONS = 100
"""Of one test, those that are run: most of them enter the same lines."""

SWITCH = """
import os


class Passed:
    def __init__(self):
        self.place, self.reported = None, set()

    def __eq__(self, number):
        place = os.environ.get("MUTANTS_PASSED")
        if place != self.place:
            self.place, self.reported = place, set()
        if place and number not in self.reported:
            self.reported.add(number)
            with open(place, "a") as stream:
                stream.write(f"{number}\\n")
        return False

    __hash__ = None


class Switch:
    on = int(os.environ["MUTANT"]) if "MUTANT" in os.environ else Passed() if "MUTANTS_PASSED" in os.environ else -1


switch = Switch()
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


def _sources(root: Path) -> list[Path]:
    """Modules of the product."""
    return [path for name in PACKAGES for path in sorted((root / name).rglob("*.py"))]


def given_to_compiler(root: Path) -> frozenset[str]:
    """Names of functions that some module of a tree hands to ``compiled`` rather than decorating them."""
    texts = [path.read_text(encoding="utf-8") for path in _sources(root)]
    return frozenset(name for text in texts for name in re.findall(r"[^@\w]compiled\((?:\w+\.)*(\w+)\)", text))


def kernels_of(source: bytes, handed: Container[str]) -> list[ast.FunctionDef]:
    """The functions of a file that run as machine code; `handed` are those of `given_to_compiler`."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    return [node for node in functions if is_compiled(node, handed)]


def is_compiled(node: ast.AST, handed: Container[str]) -> bool:
    """Return whether a function runs as machine code."""
    decorators = [ast.unparse(each) for each in getattr(node, "decorator_list", [])]
    return getattr(node, "name", "") in handed or any("compiled" in each or "njit" in each for each in decorators)


class _Switches(ast.NodeTransformer):
    """Puts a switch wherever mutants change an expression that is evaluated when a function runs."""

    def __init__(
        self, mutants: Mapping[tuple[int, int], Sequence[tuple[int, Mutant]]], starts: Sequence[int],
        handed: Container[str],
    ):  # fmt: skip
        self.mutants, self.starts, self.handed = mutants, starts, handed
        self.depth = 0
        self.placed: list[int] = []

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            return self._function(node)
        if isinstance(node, (ast.JoinedStr, ast.pattern, ast.Assert)):
            return node
        changed = super().visit(node)
        if not isinstance(node, ast.expr) or not self.depth:
            return changed
        assert node.end_lineno is not None and node.end_col_offset is not None
        start, end = (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )
        for number, mutant in self.mutants.get((start, end), []):
            self.placed.append(number)
            on = ast.parse(f"_taylor_switch.on == {number}", mode="eval").body
            changed = ast.copy_location(ast.IfExp(on, ast.parse(mutant.new, mode="eval").body, changed), node)
        return changed

    def _function(self, node: ast.FunctionDef | ast.Lambda) -> ast.AST:
        if is_compiled(node, self.handed):
            return node
        self.depth += 1
        if isinstance(node, ast.Lambda):
            node.body = self.visit(node.body)
        else:
            node.body = [self.visit(each) for each in node.body]
        self.depth -= 1
        if self.depth:  # A default within a function is evaluated when that runs.
            node.args.defaults = [self.visit(each) for each in node.args.defaults]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        depth, self.depth = self.depth, 0
        self.generic_visit(node)
        self.depth = depth
        return node


@dataclass(frozen=True)
class Switched:
    """The mutants of a tree that is rewritten so that each can be switched on.

    Parameters
    ----------
    mutants : tuple of Mutant
        By number.
    placed : frozenset of int
        Those that have a switch.
    """

    mutants: tuple[Mutant, ...]
    placed: frozenset[int]

    @classmethod
    def put(cls, place: Path, files: Sequence[str]) -> Switched:
        """Rewrite files of a copied tree."""
        (place / "taylor_switch.py").write_text(SWITCH)
        every: list[Mutant] = []
        placed: set[int] = set()
        handed = given_to_compiler(place)
        for file in files:
            source = (place / file).read_bytes()
            starts = [0]
            for line in source.splitlines(keepends=True):
                starts.append(starts[-1] + len(line))
            by_place: dict[tuple[int, int], list[tuple[int, Mutant]]] = {}
            for mutant in mutants_of(place, file):
                by_place.setdefault((mutant.start, mutant.end), []).append((len(every), mutant))
                every.append(mutant)
            switches = _Switches(by_place, starts, handed)
            tree = switches.visit(ast.parse(source))
            # A program started by its path, as the guard of dry-runs is, does not look into the tree.
            finds = f"__import__('sys').path.append({str(place)!r})\nfrom taylor_switch import switch as _taylor_switch"
            at = _first_statement(tree)
            tree.body[at:at] = ast.parse(finds).body
            (place / file).write_text(ast.unparse(ast.fix_missing_locations(tree)) + "\n", encoding="utf-8")
            placed |= set(switches.placed)
        return cls(tuple(every), frozenset(placed))

    @cached_property
    def numbers(self) -> dict[Mutant, int]:
        """The number of every mutant."""
        return {mutant: number for number, mutant in enumerate(self.mutants)}

    def telling(self, root: Path, mutant: Mutant) -> frozenset[int]:
        """The switches whose tests may notice a mutant.

        Its own; of a mutant that has none all of its file, or, of a kernel, those of the functions that name a kernel
        of its file. None where the file has no function: any test may notice such a mutant.
        """
        number = self.numbers[mutant]
        if number in self.placed:
            return frozenset((number,))
        kernels = kernels_of((root / mutant.file).read_bytes(), given_to_compiler(root))
        inside = any(node.lineno <= mutant.line <= (node.end_lineno or 0) for node in kernels)
        places = _naming(root, {node.name for node in kernels}) if inside else {(mutant.file, 0, 1 << 30)}
        return frozenset(
            other
            for other in self.placed
            if any(
                self.mutants[other].file == file and first <= self.mutants[other].line <= last
                for file, first, last in places
            )
        )


def _first_statement(tree: ast.Module) -> int:
    """First of a module's statements, behind its docstring and what it takes from ``__future__``."""
    ahead = [isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body]
    return max((at + 1 for at, future in enumerate(ahead) if future), default=ast.get_docstring(tree) is not None)


def _naming(root: Path, names: set[str]) -> set[tuple[str, int, int]]:
    """Functions (file, first and last line) that name one of some kernels, through other kernels too."""
    found, known, wanted = set(), set(names), True
    handed = given_to_compiler(root)
    while wanted:
        wanted = False
        for path in _sources(root):
            source = path.read_text(encoding="utf-8")
            if not any(name in source for name in known):
                continue
            for node in ast.walk(ast.parse(source)):
                if not isinstance(node, ast.FunctionDef) or not known & _names_in(node):
                    continue
                if is_compiled(node, handed):
                    wanted = wanted or node.name not in known
                    known.add(node.name)
                else:
                    found.add((str(path.relative_to(root)), node.lineno, node.end_lineno or node.lineno))
    return found


def _names_in(node: ast.FunctionDef) -> set[str]:
    nodes = list(ast.walk(node))
    plain = {each.id for each in nodes if isinstance(each, ast.Name)}
    return plain | {each.attr for each in nodes if isinstance(each, ast.Attribute)}


@dataclass(frozen=True)
class Reached:
    """The tests of some folders, each with the switches that it passes.

    Parameters
    ----------
    rows : tuple of dict
        ``test``, ``of`` (the state of its file), ``cpu`` (s), ``passed``, ``passes`` (numbers of switches).
    """

    rows: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, kept: Path, root: Path) -> Reached:
        """The rows of a recording whose tests are as they were, and passed."""
        rows = {row["test"]: row for row in _current(kept, root)}
        return cls(tuple(row for row in rows.values() if row["passed"]))

    @cached_property
    def by_switch(self) -> dict[int, list[dict[str, Any]]]:
        """Rows of the tests that pass each switch."""
        found: dict[int, list[dict[str, Any]]] = {}
        for row in self.rows:
            for number in row["passes"]:
                found.setdefault(number, []).append(row)
        return found

    def tests_at(self, switches: Iterable[int]) -> list[dict[str, Any]]:
        """The tests that pass one of some switches, or all where there are none, the quickest first."""
        switches = list(switches)
        passing = (row for number in switches for row in self.by_switch.get(number, []))
        rows = {row["test"]: row for row in (passing if switches else self.rows)}
        return sorted(rows.values(), key=lambda row: (row["cpu"], row["test"]))


def digest_of(root: Path, nodeid: str) -> str:
    """The state of a test's file: the record of another one is made again."""
    path = root / nodeid.partition("::")[0]
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def _current(kept: Path, root: Path) -> list[dict[str, Any]]:
    """Rows of tests whose files are as they were when they were recorded."""
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    states = {file: digest_of(root, file) for file in {row["test"].partition("::")[0] for row in rows}}
    return [row for row in rows if row["of"] == states[row["test"].partition("::")[0]]]


class Loop:
    """A pytest plugin that runs the collected tests its own way."""

    def __init__(self, mode: str, place: Path, kept: Path, limit: float):
        self.mode, self.place, self.kept, self.limit = mode, place, kept, limit
        self.failed = False
        self.loaded: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """pytest's word on one phase of a test."""
        self.failed = self.failed or report.failed

    def pytest_runtestloop(self, session: Any) -> bool:
        """All tests are collected."""
        for item in session.items:
            _without_shrinking(item)
        gc.collect()
        gc.freeze()
        items = {item.nodeid: item for item in session.items}
        self.loaded = set(sys.modules)
        if self.mode == "record":
            self._record(_thinned(items))
        else:
            self._judge(items)
        return True

    def _run(self, item: Any) -> bool:
        self.failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self.failed

    def _tell_loaded(self) -> None:
        self.kept.with_suffix(".loaded").write_text("\n".join(name for name in sys.modules if name not in self.loaded))

    def _load_too(self) -> None:
        """Load what a fork has loaded from others, so that the next one need not; what meddles with signals apart."""
        loaded = self.kept.with_suffix(".loaded")
        names = loaded.read_text().split() if loaded.exists() else []
        self.loaded |= set(names)
        for name in names:
            if name.split(".")[0] not in ("taylor", "tests", "benchmarks", "dask", "distributed", "dask_jobqueue"):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        loaded.unlink(missing_ok=True)

    def _record(self, items: Mapping[str, Any]) -> None:
        done = {row["test"] for row in _current(self.kept, self.place)}
        parent = os.getppid()
        passed = self.kept.with_suffix(".passed")
        for name in [name for name in items if name not in done]:
            passed.write_text("")

            def work(name: str = name) -> int:
                switch = importlib.import_module("taylor_switch")
                os.environ["MUTANTS_PASSED"] = str(passed)
                switch.Switch.on = switch.Passed()
                passing = self._run(items[name])
                self._tell_loaded()
                return 0 if passing else 1

            before = _cpu()
            code = in_fork(work, self.limit, 10 * self.limit + 60)
            row = {
                "test": name, "of": digest_of(self.place, name), "cpu": round(_cpu() - before, 3),
                "passed": code == 0, "passes": sorted({int(word) for word in passed.read_text().split()}),
            }  # fmt: skip
            self._load_too()
            if os.getppid() != parent:  # the campaign was killed: another one may replace this tree
                break
            with self.kept.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
        passed.unlink(missing_ok=True)

    def _judge(self, items: Mapping[str, Any]) -> None:
        # pytest takes the standard streams for itself.
        jobs, answers = os.fdopen(int(os.environ["JOBS"])), os.fdopen(int(os.environ["ANSWERS"]), "w")
        for line in jobs:
            job = json.loads(line)
            self.kept.write_text("")

            def work(job: dict[str, Any] = job) -> int:
                importlib.import_module("taylor_switch").Switch.on = job["mutant"]
                os.environ["MUTANT"] = str(job["mutant"])
                for name in job["tests"]:
                    if not self._run(items[name]):
                        self.kept.write_text(name)
                        return 1
                self._tell_loaded()
                return 0

            code = in_fork(work, 10 + 5 * job["seconds"], 60 + 20 * job["seconds"])
            outcome = {0: "survived", 1: "killed", KILLED: "killed", None: "time"}.get(code, "broken")
            self._load_too()
            print(json.dumps({"outcome": outcome, "by": self.kept.read_text()}), file=answers, flush=True)


def _thinned(items: Mapping[str, Any]) -> dict[str, Any]:
    """Of the parametrizations of one test a few, spread over them."""
    by_test: dict[str, list[str]] = {}
    for name in items:
        by_test.setdefault(name.partition("[")[0], []).append(name)
    chosen = [names[:: -(-len(names) // PARAMETRIZATIONS)] for names in by_test.values()]
    return {name: items[name] for names in chosen for name in names}


def _without_shrinking(item: Any) -> None:
    """A failing example is enough: which is the smallest does not matter."""
    function: Any = getattr(item, "obj", None)
    used = getattr(function, "_hypothesis_internal_use_settings", None)
    if used is not None:
        from hypothesis import Phase, settings

        phases = tuple(each for each in used.phases if each not in (Phase.shrink, Phase.explain))
        function = getattr(function, "__func__", function)
        function._hypothesis_internal_use_settings = settings(used, phases=phases)


def _cpu() -> float:
    used = os.times()
    return used.children_user + used.children_system


def main(mode: str, place: str, kept: str, limit: str, *tests: str) -> int:
    """In a rewritten tree: run tests in a way of our own."""
    import pytest

    loop = Loop(mode, Path(place), Path(kept), float(limit))
    # A developer of a package runs its quick tests.
    words = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
        "-m",
        "not slow",
        f"--rootdir={place}",
        *tests,
    ]
    return int(pytest.main(words, plugins=[loop]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
