"""Mutants of a small file, the tests that reach one, and the list of those that change no result."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.reliability.campaign import ROOT
from benchmarks.reliability.mutated_code import mutants_of, sample
from benchmarks.reliability.mutation import EQUIVALENT
from benchmarks.reliability.reached_tests import Reached, digest_of, put_probes

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
    assert sample(tmp_path, ["m.py"], 3, "seed") == sample(tmp_path, ["m.py"], 5, "seed")[:3]


def test_tests_of_a_line_are_those_that_enter_its_block_while_their_file_is_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(SOURCE)
    (tmp_path / "test_m.py").write_text("")
    row = {"of": digest_of(tmp_path, "test_m.py"), "cpu": 1.0, "wall": 1.0, "passed": True}
    rows = [{**row, "test": "test_m.py::large", "blocks": ["m.py:7", "m.py:9"]}]
    rows += [{**row, "test": "test_m.py::small", "blocks": ["m.py:7"]}]
    (tmp_path / "kept.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    reached = Reached.read(tmp_path / "kept.jsonl", tmp_path)
    assert [each["test"] for each in reached.tests_at(tmp_path, "m.py", 9)] == ["test_m.py::large"]
    assert len(reached.tests_at(tmp_path, "m.py", 10)) == 2
    (tmp_path / "test_m.py").write_text("# another")
    assert Reached.read(tmp_path / "kept.jsonl", tmp_path).rows == ()


def test_a_probed_module_tells_the_blocks_that_it_enters(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "m.py").write_text(SOURCE)
    put_probes(tmp_path, ["m.py"])
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "taylor_reached", raising=False)
    told = tmp_path / "told"
    monkeypatch.setenv("TAYLOR_REACHED", str(told))
    names: dict = {}
    exec(compile((tmp_path / "m.py").read_text(), "m.py", "exec"), names)
    assert names["larger"](2, 1) == 2
    assert set(told.read_text().split()) == {"m.py:7", "m.py:9"}


def test_every_fault_that_is_said_to_change_nothing_is_one_of_today_s_code() -> None:
    for (file, line), reason in EQUIVALENT.items():
        assert reason and line in {mutant.line_of(ROOT) for mutant in mutants_of(ROOT, file)}, line
