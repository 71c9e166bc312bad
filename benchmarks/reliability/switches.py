"""A copy of the tree that holds every mutant at once, each behind a switch, and a pytest run that throws one at a time.

    python -m benchmarks.reliability.switches record|judge PLACE KEPT [TEST...]

Every expression that a mutant would change becomes ``mutant if switch.on == number else expression``. One process
loads the product and its tests once; a mutant is then judged by a fork of it in which its switch is on, so that it
costs what its tests cost. `record` runs every test in a fork without a mutant and writes down which switches it
passes, those of the processes that it starts included; `judge` reads {"mutant": number, "tests": [...], "seconds": s}
line by line and answers {"told": ..., "by": ...}. What is evaluated while a module is loaded (defaults, constants,
classes) and kernels, which are compiled, have no switch.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reliability.mutated_code import Mutant, mutants_of
from benchmarks.reliability.reached_tests import is_compiled

PARAMETRIZATIONS = 12
"""Of one test, those that are run."""

SWITCH = """
import os


class Passed:
    def __init__(self):
        self.place, self.told = None, set()

    def __eq__(self, number):
        place = os.environ.get("MUTANTS_PASSED")
        if place != self.place:
            self.place, self.told = place, set()
        if place and number not in self.told:
            self.told.add(number)
            with open(place, "a") as stream:
                stream.write(f"{number}\\n")
        return False

    __hash__ = None


class Switch:
    on = int(os.environ["MUTANT"]) if "MUTANT" in os.environ else Passed() if "MUTANTS_PASSED" in os.environ else -1


switch = Switch()
"""


class _Switches(ast.NodeTransformer):
    """Puts a switch wherever mutants change an expression that is evaluated when a function runs."""

    def __init__(self, mutants: Mapping[tuple[int, int], Sequence[tuple[int, Mutant]]], starts: Sequence[int]):
        self.mutants, self.starts = mutants, starts
        self.depth = 0
        self.placed: list[int] = []

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            return self._function(node)
        if isinstance(node, (ast.JoinedStr, ast.pattern, ast.Assert)):
            return node
        before = (node.lineno, node.end_lineno) if isinstance(node, ast.expr) else None
        changed = self.generic_visit(node)
        if before is None or not self.depth:
            return changed
        start = self.starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self.starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        for number, mutant in self.mutants.get((start, end), []):
            self.placed.append(number)
            on = ast.parse(f"_taylor_switch.on == {number}", mode="eval").body
            changed = ast.copy_location(ast.IfExp(on, ast.parse(mutant.new, mode="eval").body, changed), node)
        return changed

    def _function(self, node: ast.FunctionDef | ast.Lambda) -> ast.AST:
        if isinstance(node, ast.FunctionDef) and is_compiled(node):
            return node
        self.depth += 1
        if isinstance(node, ast.Lambda):
            node.body = self.visit(node.body)
        else:
            node.body = [self.visit(each) for each in node.body]
        self.depth -= 1
        # A default within a function is evaluated when that runs.
        if self.depth:
            node.args.defaults = [self.visit(each) for each in node.args.defaults]
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        depth, self.depth = self.depth, 0
        self.generic_visit(node)
        self.depth = depth
        return node


def put_switches(place: Path, files: Sequence[str]) -> tuple[list[Mutant], set[int]]:
    """Rewrite files of a copied tree; every mutant by its number, and the numbers that have a switch."""
    (place / "taylor_switch.py").write_text(SWITCH)
    every: list[Mutant] = []
    placed: set[int] = set()
    for file in files:
        source = (place / file).read_bytes()
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        by_place: dict[tuple[int, int], list[tuple[int, Mutant]]] = {}
        for mutant in mutants_of(place, file):
            by_place.setdefault((mutant.start, mutant.end), []).append((len(every), mutant))
            every.append(mutant)
        switches = _Switches(by_place, starts)
        tree = switches.visit(ast.parse(source))
        # A program started by its path, as the guard of dry-runs is, does not look into the tree.
        finds = ast.parse(
            f"__import__('sys').path.append({str(place)!r})\nfrom taylor_switch import switch as _taylor_switch"
        )
        at = _first_statement(tree)
        tree.body[at:at] = finds.body
        (place / file).write_text(ast.unparse(ast.fix_missing_locations(tree)) + "\n", encoding="utf-8")
        placed |= set(switches.placed)
    return every, placed


def _first_statement(tree: ast.Module) -> int:
    """Where a module's own statements begin, behind its docstring and what it takes from ``__future__``."""
    ahead = [isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body]
    return max((at + 1 for at, future in enumerate(ahead) if future), default=ast.get_docstring(tree) is not None)


def in_fork(work: Callable[[], int], cpu_seconds: float, wall_seconds: float) -> int | None:
    """The exit code of some work in a fork; None where it took too long."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        silent = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(silent, stream)
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_seconds) + 1, int(cpu_seconds) + 3))
        resource.setrlimit(resource.RLIMIT_AS, (24 << 30, 24 << 30))
        code = 70
        try:
            code = work()
        finally:
            os._exit(code)
    latest, pause = time.monotonic() + wall_seconds, 0.002
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended:
        if time.monotonic() > latest:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(pause)
        pause = min(0.05, pause * 1.3)
        ended, status = os.waitpid(child, os.WNOHANG)
    try:
        os.killpg(child, signal.SIGKILL)  # What the tests left running.
    except ProcessLookupError:
        pass
    if os.WIFSIGNALED(status):
        return None if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else 71
    return os.WEXITSTATUS(status)


class Loop:
    """A pytest plugin that runs the collected tests its own way."""

    def __init__(self, mode: str, place: Path, kept: Path, limit: float):
        self.mode, self.place, self.kept, self.limit = mode, place, kept, limit
        self.failed = False

    def pytest_runtest_logreport(self, report: Any) -> None:
        """pytest's word on one phase of a test."""
        self.failed = self.failed or report.failed

    def pytest_runtestloop(self, session: Any) -> bool:
        """All tests are collected."""
        _load()
        for item in session.items:
            _without_shrinking(item)
        gc.collect()
        gc.freeze()
        items = {item.nodeid: item for item in session.items}
        self.loaded = set(sys.modules)
        if self.mode == "record":
            self._record(items)
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
        """Load what a fork has loaded from others, so that the next one need not."""
        told = self.kept.with_suffix(".loaded")
        names = told.read_text().split() if told.exists() else []
        self.loaded |= set(names)
        for name in names:
            if name.split(".")[0] not in ("taylor", "tests", "dask", "distributed", "dask_jobqueue", "conftest"):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        told.unlink(missing_ok=True)

    def _record(self, items: Mapping[str, Any]) -> None:
        done = (
            {json.loads(line)["test"] for line in self.kept.read_text().splitlines()} if self.kept.exists() else set()
        )
        for name, item in _thinned(items).items():
            if name in done:
                continue
            passed = self.kept.with_suffix(".passed")
            passed.write_text("")

            def work(item: Any = item) -> int:
                import taylor_switch

                os.environ["MUTANTS_PASSED"] = str(passed)
                taylor_switch.Switch.on = taylor_switch.Passed()
                passing = self._run(item)
                self._tell_loaded()
                return 0 if passing else 1

            before = _cpu()
            code = in_fork(work, self.limit, 3 * self.limit + 10)
            self._load_too()
            row = {
                "test": name, "cpu": round(_cpu() - before, 3), "passed": code == 0, "code": code,
                "reach": sorted({int(word) for word in passed.read_text().split()}),
            }  # fmt: skip
            with self.kept.open("a") as stream:
                stream.write(json.dumps(row) + "\n")

    def _judge(self, items: Mapping[str, Any]) -> None:
        # pytest takes the standard streams for itself.
        jobs, answers = os.fdopen(int(os.environ["JOBS"])), os.fdopen(int(os.environ["ANSWERS"]), "w")
        failure = self.kept
        print(json.dumps({"ready": len(items)}), file=answers, flush=True)
        for line in jobs:
            job = json.loads(line)
            failure.write_text("")

            def work(job: dict[str, Any] = job) -> int:
                import taylor_switch

                taylor_switch.Switch.on = job["mutant"]
                os.environ["MUTANT"] = str(job["mutant"])
                for name in job["tests"]:
                    if name in items and not self._run(items[name]):
                        failure.write_text(name)
                        return 1
                self._tell_loaded()
                return 0

            code = in_fork(work, 10 + 5 * job["seconds"], 60 + 15 * job["seconds"])
            self._load_too()
            told = {0: "survived", 1: "killed", 71: "killed", None: "time"}.get(code, "broken")
            print(json.dumps({"told": told, "by": failure.read_text()}), file=answers, flush=True)


def _thinned(items: Mapping[str, Any]) -> dict[str, Any]:
    """Of the parametrizations of one test a few, spread over them: most of them enter the same blocks."""
    by_test: dict[str, list[str]] = {}
    for name in items:
        by_test.setdefault(name.partition("[")[0], []).append(name)
    chosen = []
    for names in by_test.values():
        step = max(1, -(-len(names) // PARAMETRIZATIONS))
        chosen += names[::step]
    return {name: items[name] for name in chosen}


def _load() -> None:
    """What the product loads late, so that no fork loads it again."""
    for name in ("pyomo.environ", "pandas", "scipy.optimize", "scipy.sparse", "matplotlib.pyplot"):
        importlib.import_module(name)


def _without_shrinking(item: Any) -> None:
    """A failing example is enough: which is the smallest does not matter."""
    function = getattr(item, "obj", None)
    used = getattr(function, "_hypothesis_internal_use_settings", None)
    if used is not None:
        from hypothesis import Phase, settings

        phases = tuple(each for each in used.phases if each not in (Phase.shrink, Phase.explain))
        function = getattr(function, "__func__", function)
        function._hypothesis_internal_use_settings = settings(used, phases=phases)


def _cpu() -> float:
    used = os.times()
    return used.children_user + used.children_system


def numbered(place: Path) -> Iterator[tuple[int, Mutant]]:
    """Mutants of a prepared place."""
    for row in json.loads((place / "mutants.json").read_text()):
        yield row["number"], Mutant(**row["mutant"])


def main(mode: str, place: str, kept: str, limit: str, *tests: str) -> int:
    """In a prepared place: run tests in a way of our own."""
    import pytest

    loop = Loop(mode, Path(place), Path(kept), float(limit))
    words = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
        "--assert=plain",
        f"--rootdir={place}",
    ]
    return int(pytest.main([*words, *tests], plugins=[loop]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
