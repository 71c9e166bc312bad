"""What a started process imports and finds: nothing of the working folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taylor.base import isolated, memory_limit
from taylor.base.isolated import (
    PACKAGE,
    command_without_folder,
    import_path,
    isolate_path,
    isolate_solver,
    module_command,
)


def test_the_import_path_is_absolute_without_the_folder_and_has_the_checkout_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert import_path(["", ".", "a", str(PACKAGE), "/b"]) == [str(tmp_path / "a"), "/b", str(PACKAGE)]
    assert import_path(["/b"]) == ["/b"]


def test_a_shell_s_interpreter_leaves_out_the_folder_from_python_3_11_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 11))
    assert command_without_folder("my python") == "'my python' -P"
    monkeypatch.setattr(sys, "version_info", (3, 10, 9))
    assert command_without_folder("python") == "python"


@pytest.mark.parametrize(
    ("before", "after"),
    [("/a::b:./c:/d", "/a:/d"), ("", os.defpath), ("b:.", os.defpath)],
)
def test_programs_are_looked_for_on_absolute_entries(before: str, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", before)
    isolate_path()
    assert os.environ["PATH"] == after


def test_a_module_is_run_from_where_this_process_imports(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('taken from the folder')")
    words = [*module_command("taylor.__main__", "--version")]
    assert words[:4] == [sys.executable, "-I", "-u", "-c"] and words[-2:] == ["taylor.__main__", "--version"]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout.startswith("taylor"), run.stderr


def test_only_solvers_that_pyomo_starts_change_its_search(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(isolated, "isolate_programs", lambda: called.append("yes"))
    for name in ("HiGHS", " highs-milp "):
        isolate_solver(name)
    assert not called
    isolate_solver("CBC")
    assert called == ["yes"]


def test_a_solver_is_found_by_its_whole_path_alone() -> None:
    def find(name: str, **given: Any) -> tuple[str, dict[str, Any]]:
        return name, given

    found: Callable[..., Any] = isolated._found_elsewhere
    assert found(find, "cbc", ext=".exe") == ("cbc", {"cwd": False, "ext": ".exe"})
    assert found(find, "/usr/bin/cbc") == ("/usr/bin/cbc", {"cwd": True})


def test_memory_of_a_process_is_limited_and_its_hard_limit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    set_to: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (5, 7))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: set_to.append((kind, limits)))
    memory_limit.limit_memory(6)
    assert set_to == [(resource.RLIMIT_DATA, (6, 7))]
