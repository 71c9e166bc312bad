"""Mutants of a small file, the tests that reach one, and the list of those that change no result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.reliability import mutation
from benchmarks.reliability.campaign import PACKAGES, ROOT
from benchmarks.reliability.former_list import FORMER
from benchmarks.reliability.mutated_code import mutants_of, sample
from benchmarks.reliability.mutation import equivalent
from benchmarks.reliability.switches import Reached, Switched, digest_of, given_to_compiler

SOURCE = '''"""A module."""

from __future__ import annotations


def larger(a: int, b: int = 0) -> int:
    """The larger one."""
    if a > b:
        return a
    return max(b, -1)
'''


def test_a_file_has_each_of_its_small_faults_once(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(SOURCE)
    lines = [mutant.line_of(tmp_path) for mutant in mutants_of(tmp_path, "m.py")]
    assert sorted(lines) == [
        "def larger(a: int, b: int = (1)) -> int:",
        "if (a >= b):",
        "return (min(b, -1))",
        "return max(b, (1))",
        "return max(b, -(2))",
    ]
    (tmp_path / "asserted.py").write_text("assert 1\npairs = list(zip((2,), (3,), strict=True))\n")
    assert [mutant.old for mutant in mutants_of(tmp_path, "asserted.py")] == ["2", "3"]
    assert sample(tmp_path, ["m.py"], 3, "seed") == sample(tmp_path, ["m.py"], 5, "seed")[:3]


def test_tests_of_a_switch_are_those_that_pass_it_while_their_file_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "test_m.py").write_text("")
    row = {"of": digest_of(tmp_path, "test_m.py"), "passed": True}
    rows = [{**row, "test": "test_m.py::large", "cpu": 2.0, "passes": [3, 4]}]
    rows += [{**row, "test": "test_m.py::small", "cpu": 1.0, "passes": [3]}]
    rows += [{**row, "test": "test_m.py::failed", "cpu": 0.0, "passes": [3], "passed": False}]
    (tmp_path / "kept.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    reached = Reached.read(tmp_path / "kept.jsonl", tmp_path)
    assert [each["test"] for each in reached.tests_at([3])] == ["test_m.py::small", "test_m.py::large"]
    assert [each["test"] for each in reached.tests_at([4, 5])] == ["test_m.py::large"]
    assert len(reached.tests_at([])) == 2, "a file without a function: any test may notice its mutants"
    (tmp_path / "test_m.py").write_text("# another")
    assert Reached.read(tmp_path / "kept.jsonl", tmp_path).rows == ()


def test_a_switched_module_is_each_of_its_mutants_and_tells_what_it_passes(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "m.py").write_text(SOURCE)
    switched = Switched.put(tmp_path, ["m.py"])
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "taylor_switch", raising=False)
    monkeypatch.setenv("MUTANTS_PASSED", str(tmp_path / "passed"))
    names: dict = {}
    exec(compile((tmp_path / "m.py").read_text(), "m.py", "exec"), names)
    number = {f"{mutant.old} -> {mutant.new}": at for at, mutant in enumerate(switched.mutants)}
    # A default is evaluated while the module is loaded.
    default = number["0 -> (1)"]
    assert switched.placed == set(number.values()) - {default}
    assert names["larger"](2, 1) == 2
    assert set(map(int, (tmp_path / "passed").read_text().split())) == {number["a > b -> (a >= b)"]}
    assert switched.telling(tmp_path, switched.mutants[default]) == switched.placed
    results = {}
    for at in switched.placed:
        sys.modules["taylor_switch"].Switch.on = at
        results[at] = [names["larger"](*pair) for pair in ((2, 1), (1, 1), (0, 5), (-9, -8))]
    assert results == {
        number["a > b -> (a >= b)"]: [2, 1, 5, -1],
        number["max(b, -1) -> (min(b, -1))"]: [2, -1, -1, -8],
        number["-1 -> (1)"]: [2, 1, 5, 1],
        number["1 -> (2)"]: [2, 1, 5, -2],
    }


@pytest.mark.parametrize(("code", "runs"), [(0, 1), (1, 1), (2, 2), (-9, 2)])
def test_a_recording_that_was_broken_off_goes_on_the_next_time(
    code: int, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed tests are recorded too; an interrupted run and a killed one leave some unrecorded."""
    begun = []

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        begun.append(words)
        Path(words[5]).touch()
        return subprocess.CompletedProcess(words, code)

    monkeypatch.setattr(mutation, "PLACE", tmp_path)
    monkeypatch.setattr(subprocess, "run", run)
    for _ in range(2):
        mutation.recorded("base", tmp_path)
    assert all(words[-1] == "tests/base" for words in begun)
    assert len(begun) == runs


def test_kernels_are_found_in_sub_packages_too() -> None:
    """A switch in a function that runs as machine code would break every test of its package."""
    assert {"longest_path", "walk_back", "task_levels"} <= given_to_compiler(ROOT)


def test_every_package_of_the_product_is_mutated_and_judged_by_the_tests_that_mirror_it() -> None:
    assert set(mutation.PACKAGES) == set(PACKAGES)
    for package, folders in mutation.PACKAGES.items():
        assert mutation.files_of(package) and all((ROOT / folder).is_dir() for folder in folders)


def test_every_fault_that_is_said_to_change_nothing_is_one_of_today_s_code() -> None:
    for (file, line), reason in equivalent().items():
        assert reason and line in {mutant.line_of(ROOT) for mutant in mutants_of(ROOT, file)}, line


def test_every_former_fault_can_be_put_back_into_today_s_code_and_names_tests_that_there_are() -> None:
    for former in FORMER:
        assert former.old in (ROOT / former.file).read_text(encoding="utf-8"), former.fault
        for test in former.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).exists(), test
            assert not name or f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(encoding="utf-8"), test
