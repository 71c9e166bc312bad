"""Kernels are compiled whether or not this machine has a place to keep them."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numba
import pytest

from taylor.base.compiled import announce_compilation, compiled
from taylor.base.console import log


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
