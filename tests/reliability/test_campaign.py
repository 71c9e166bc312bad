"""The campaign itself: portions kept and found again, measured anew when the code changes; many candidates; Ctrl-C."""

from __future__ import annotations

import json
import signal
import time

import pytest

from benchmarks.reliability import campaign, load
from benchmarks.reliability.__main__ import table
from benchmarks.reliability.campaign import Figure, Part, Portion, kept_figures, run_part, split


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
    lines = table([("solver", Figure("f", "a", "1 | 2", False, "h"))]).splitlines()
    assert lines[2] == "| f | a | 1 \\| 2 | **no** | h | `python -m benchmarks.reliability --parts solver` |"


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
