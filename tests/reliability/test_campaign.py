"""The campaign itself: portions kept and found again, measured anew when the code changes; many candidates; Ctrl-C."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from benchmarks.reliability import campaign, load
from benchmarks.reliability.__main__ import table
from benchmarks.reliability.campaign import ROOT, Figure, Part, Portion, kept_figures, run_part, split
from benchmarks.reliability.closure import closure


def touch(folder: str, name: str) -> dict:
    """A portion that leaves a trace of being run."""
    with open(f"{folder}/{name}", "a") as stream:
        stream.write("x")
    return {"faults": [], "name": name}


def part_of(folder, names="ab") -> Part:
    def figures(results):
        return [Figure("all", "a and b", "|".join(sorted(results)), len(results) == len(names), "counted")]

    return Part("touch", lambda share: [Portion(n, touch, {"folder": str(folder), "name": n}) for n in names], figures)


@pytest.mark.slow
def test_what_was_measured_is_kept_and_what_is_missing_is_measured(tmp_path):
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    runs.mkdir()
    [figure] = run_part(part_of(runs), kept)
    assert figure.passed and figure.measured == "a|b"
    (kept / "touch" / "b.json").unlink()
    run_part(part_of(runs), kept)
    assert ((runs / "a").read_text(), (runs / "b").read_text()) == ("x", "xx")
    run_part(part_of(runs), kept, fresh=True)
    assert (runs / "a").read_text() == "xx"


@pytest.mark.slow
def test_results_of_other_code_are_measured_anew(tmp_path):
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    runs.mkdir()
    run_part(part_of(runs), kept)
    path = kept / "touch" / "a.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "code": "another"}))
    (kept / "touch" / "b.json").write_text('{"code": ')
    run_part(part_of(runs), kept)
    assert ((runs / "a").read_text(), (runs / "b").read_text()) == ("xx", "xx")


def test_figures_of_a_part_are_kept_only_when_all_of_it_was_measured(tmp_path):
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    runs.mkdir()
    assert kept_figures(part_of(runs), kept) is None
    figures = run_part(part_of(runs), kept)
    assert kept_figures(part_of(runs), kept) == figures
    (kept / "touch" / "b.json").unlink()
    assert kept_figures(part_of(runs), kept) is None
    assert table([], ["touch"]).endswith("Not measured in full on this code: touch.")


def test_the_table_has_a_row_a_figure_with_its_command_and_no_date():
    lines = table([("solver", Figure("f", "a", "1 | 2", False, "h", "0a1b2c3d"))]).splitlines()
    assert lines[2] == "| f | a | 1 \\| 2 | **no** | 0a1b2c3d | h | `python -m benchmarks.reliability --parts solver` |"


def test_a_row_says_at_which_commit_its_portions_were_measured(tmp_path):
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    runs.mkdir()
    [figure] = run_part(part_of(runs), kept)
    assert figure.commit == campaign.commit() and re.fullmatch(r"[0-9a-f]{8}\+?", figure.commit)
    path = kept / "touch" / "a.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "commit": "00000000"}))
    found = kept_figures(part_of(runs), kept)
    assert found is not None and found[0].commit == f"00000000, {figure.commit}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout: `start` imports `near` at once, `late` in a function, `named` by its name."""
    for name, text in {
        "benchmarks/__init__.py": "",
        "benchmarks/start.py": "from taylor.near import one\ndef f():\n    import taylor.late; g('taylor.named.deep')",
        "near/__init__.py": "from .part import one",
        "near/part.py": "one = 1",
        "near/table.yaml": "a: 1",
        "late/__init__.py": "",
        "named/__init__.py": "",
        "named/deep.py": "import json",
        "other/__init__.py": "import taylor.near",
        "taylor/__init__.py": "import taylor.other",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_module_rests_on_what_it_imports_wherever_it_does_and_on_nothing_else(checkout: Path):
    found = {str(file.relative_to(checkout)) for file in closure([checkout / "benchmarks" / "start.py"], checkout)}
    assert found == {
        "benchmarks/__init__.py", "benchmarks/start.py", "near/__init__.py", "near/part.py", "near/table.yaml",
        "late/__init__.py", "named/__init__.py", "named/deep.py", "taylor/__init__.py",
    } - {"benchmarks/__init__.py"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes"), [("near/part.py", True), ("near/table.yaml", True), ("named/deep.py", True),
                          ("other/__init__.py", False)],
)  # fmt: skip
def test_the_code_of_a_figure_changes_with_what_it_rests_on_alone(checkout: Path, name: str, changes: bool):
    before = campaign.code_digest(("benchmarks/start.py",), checkout)
    (checkout / name).write_text("two: 2")
    assert (campaign.code_digest(("benchmarks/start.py",), checkout) != before) is changes


def test_the_solvers_figures_rest_on_its_packages_and_not_on_those_above():
    found = {file.relative_to(ROOT).parts[0] for file in campaign.files_of(("benchmarks/reliability/solver.py",))}
    assert {"pipeline_solver", "pipeline", "base", "benchmarks"} <= found
    assert not found & {"parsers", "workflows", "serve", "report", "nd_search", "profiling"}


def test_counts_are_split_evenly():
    assert split(10, 4) == [3, 3, 2, 2] and split(2, 5) == [1, 1]
    assert len(campaign.code_digest()) == 16


@pytest.mark.slow
def test_many_candidates_are_ranked_in_one_call_with_progress():
    result = load.large(6)
    assert result["faults"] == [] and result["solved"] >= 3 and 50 < result["peak_mib"] < 2048


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_done_and_the_rest_follows(tmp_path):
    load.write_candidates(tmp_path, 8)
    solved = tmp_path / "pipeline_output" / "solved"
    began = time.monotonic()
    seen = load.watch(tmp_path, _first_row(solved))
    assert seen.code in (0, 130), seen.text
    assert load.interrupt_faults(seen, tmp_path) == []
    rows = {path: path.stat().st_mtime_ns for path in solved.glob("*.json")}
    assert rows, f"{time.monotonic() - began:.1f} s: {seen.text}"
    assert load.watch(tmp_path, None).code == 0
    assert all(path.stat().st_mtime_ns == when for path, when in rows.items())


def _first_row(folder):
    """The moment to interrupt: as soon as a row is kept."""
    return lambda: any(folder.glob("*.json"))


def test_ctrl_c_before_anything_is_read_ends_with_130_and_a_word(tmp_path):
    load.write_candidates(tmp_path, 2)
    seen = load.watch(tmp_path, 0.15)
    assert seen.code in (130, -signal.SIGINT) and "Traceback" not in seen.text
