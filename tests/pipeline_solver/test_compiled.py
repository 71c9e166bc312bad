"""Kernels are compiled whether or not this machine has a place to keep them."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from types import SimpleNamespace

import numba
import pytest

from taylor.base.compiled import announce_compilation, compiled, kernel_part
from taylor.base.console import log
from tests.conftest import ROOT


def double(x):
    """Twice a number."""
    return x + x


def test_a_kernel_is_compiled_where_no_folder_can_be_written(monkeypatch):
    real = numba.njit

    def no_folder(*function, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(*function, **options)

    monkeypatch.setattr(numba, "njit", no_folder)
    assert compiled(double)(21) == 42 and compiled(double).py_func is double


@pytest.mark.parametrize(
    "kept, folder, words",
    [
        (False, "here", "later runs find them"),
        (True, "here", ""),
        (False, None, "NUMBA_CACHE_DIR"),
    ],
)
def test_what_is_compiled_now_is_told_with_what_would_spare_it(tmp_path, caplog, monkeypatch, kept, folder, words):
    if kept:
        (tmp_path / "test_compiled.double-20.py311.nbi").touch()
    kernel = SimpleNamespace(py_func=double, stats=SimpleNamespace(cache_path=folder and str(tmp_path)))
    monkeypatch.setattr(log, "propagate", True)
    with caplog.at_level(logging.WARNING):
        announce_compilation([kernel])
    assert (words in caplog.text) if words else not caplog.text


def test_without_compilation_the_kernels_are_the_functions_themselves_and_that_is_said(caplog, monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", True)
    monkeypatch.setattr(log, "propagate", True)
    kernel = compiled(double)
    with caplog.at_level(logging.WARNING):
        announce_compilation([kernel])
    assert kernel(21) == 42 and "plain Python" in caplog.text


def test_a_part_is_compiled_into_its_kernel_and_runs_as_python_elsewhere():
    part = kernel_part(double)
    assert part is double and part("ab") == "abab"
    assert compiled(_twice_double)(10) == 40


def _twice_double(x):
    return double(double(x))


PACKAGES = ("base", "pipeline", "pipeline_solver", "layerwise", "blackbox", "workflows", "dryrun")


def _decorated(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(one, ast.Name) and one.id == name for one in node.decorator_list
    )


def _outside_kernels(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below one that no kernel and no part contains."""
    for child in ast.iter_child_nodes(node):
        if not _decorated(child, "compiled") and not _decorated(child, "kernel_part"):
            yield child
            yield from _outside_kernels(child)


def _kernels(decorator: str) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Module and name of the functions with a decorator: all, and those that are named outside kernels."""
    trees = {
        "taylor." + ".".join(file.relative_to(ROOT).with_suffix("").parts): ast.parse(file.read_text("utf-8"))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
    }
    every = {(module, one.name) for module, tree in trees.items() for one in tree.body if _decorated(one, decorator)}
    named = set()
    for module, tree in trees.items():
        known = {name: (of, name) for of, name in every if of == module}
        imported = {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for node in _outside_kernels(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                named.add(known.get(node.id) or imported.get(node.id, ("", "")))
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                named.add((".".join(imported.get(node.value.id, ())), node.attr))
    return every, named & every


@pytest.mark.slow
def test_parts_are_called_by_kernels_alone_and_all_other_kernels_from_python() -> None:
    """From Python a part runs as Python, some hundred times slower, and nothing else would show it. A kernel that only
    kernels call has a wrapper to compile that nothing uses."""
    parts, called = _kernels("kernel_part")
    assert len(parts) > 50 and called == set()
    kernels, called = _kernels("compiled")
    assert kernels == called
