"""What is said of kernels that are not compiled yet."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taylor.base import compiled
from taylor.base.compiled import announce_compilation, are_kept


def a_kernel() -> None:
    """Do nothing."""


def kernel(folder: Path | None, *, loaded: bool = False) -> Any:
    place = None if folder is None else str(folder)
    return SimpleNamespace(stats=SimpleNamespace(cache_path=place), py_func=a_kernel, overloads=[1] * loaded)


def keep(folder: Path, *, age: float = 0.0) -> None:
    file = folder / "test_compiled.a_kernel-12.py311.nbi"
    file.touch()
    written = Path(__file__).stat().st_mtime - age
    os.utime(file, (written, written))


def said(monkeypatch: pytest.MonkeyPatch, kernels: list[Any]) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(compiled.log, "warning", lambda text: lines.append(text))
    announce_compilation(kernels)
    return [line.partition(":")[0] for line in lines]


def test_kernels_on_the_disk_are_silent_and_older_or_missing_ones_are_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = kernel(tmp_path)
    assert said(monkeypatch, [one]) == ["compiling the solver's kernels"]
    assert are_kept([one]) is False
    keep(tmp_path)
    assert said(monkeypatch, [one]) == []
    assert are_kept([one]) is True
    keep(tmp_path, age=1.0)
    assert are_kept([one]) is False
    assert are_kept([one, kernel(None, loaded=True)]) is False
    assert are_kept([kernel(None, loaded=True)]) is True


def test_kernels_without_a_folder_or_a_compiler_are_announced_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(compiled.log, "warning", lambda text: lines.append(text))
    keep(tmp_path)
    announce_compilation([kernel(tmp_path), kernel(None)])
    announce_compilation([kernel(tmp_path), a_kernel])
    assert ["NUMBA_CACHE_DIR" in line for line in lines] == [True, False]
    assert ["NUMBA_DISABLE_JIT" in line for line in lines] == [False, True]
    assert are_kept([kernel(None)]) is None
    assert are_kept([kernel(tmp_path), a_kernel]) is None


def test_numba_takes_no_settings_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: here")
    monkeypatch.chdir(tmp_path)
    assert not Path(compiled.config._config_fname).exists()


def test_a_part_of_a_kernel_overwrites_the_first_elements() -> None:
    values = [1, 2, 3]
    compiled.overwrite(values, [7, 8, 9], 2)
    assert values == [7, 8, 3]
