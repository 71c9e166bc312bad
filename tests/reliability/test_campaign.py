"""The campaign itself: portions kept and found again, measured again when the code changes; many candidates; Ctrl-C."""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.reliability import campaign, load, reading
from benchmarks.reliability.__main__ import MINUTES, PAGE, PARTS, Run
from benchmarks.reliability.campaign import ROOT, Figure, Part, Portion, Sized, kept_figures, run_part, split
from benchmarks.reliability.closure import closure
from benchmarks.reliability.record import (
    FULL,
    NIGHTLY,
    RECORD,
    TABLE,
    Measured,
    nightly_order,
    read_record,
    table,
    write_record,
)


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
def test_results_of_other_code_are_measured_again(tmp_path):
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


def measured(part: str, form: str = FULL, code: str = "now", at: str = "2026-01-01", **more) -> Measured:
    row = Figure(f"{part} {form}", "a", "1|2", False, "h", "0a1b2c3d")
    share = {FULL: 1.0, TABLE: 0.3, NIGHTLY: 0.05}[form]
    return Measured(part, form, code, "0a1b2c3d", at, 1.0, share, (row,), **more)


def record_of(*entries: Measured) -> dict:
    return {(each.part, each.form): each for each in entries}


def test_the_table_has_a_row_a_figure_with_its_one_commit_its_size_and_its_command():
    lines = table(record_of(measured("solver")), {"solver": "now"}).splitlines()
    assert lines[2:] == [
        "| solver full | a | 1\\|2 | **no** | 0a1b2c3d | full | h | `python -m benchmarks.reliability --parts solver` |"
    ]


def test_a_row_whose_code_has_changed_since_its_commit_says_so():
    record = record_of(measured("solver"), measured("load", NIGHTLY))
    rows = table(record, {"solver": "other", "load": "now", "kills": "now"}).splitlines()
    assert " 0a1b2c3d \\* " in rows[2] and " 0a1b2c3d | 5 % | " in rows[3] and rows[3].endswith(" --nightly` |")
    assert rows[-1] == "Never measured: kills."


def test_the_table_shows_the_last_measurement_and_below_it_the_larger_ones_that_are_older():
    full, sized = measured("solver", at="2026-01-01"), measured("solver", TABLE, at="2026-01-02")
    night = measured("solver", NIGHTLY, at="2026-01-03")
    rows = table(record_of(full, sized, night), {"solver": "now"}).splitlines()
    shown = [row.split(" | ")[0] for row in rows if row.startswith("| solver")]
    assert shown == ["| solver nightly", "| solver full", "| solver table"]
    assert rows.index("Larger measurements, made earlier:") == 4 and " --table` |" in rows[-1]
    assert table(record_of(measured("solver", at="2026-01-04"), sized, night), {"solver": "now"}).count("| solver") == 1


def test_a_night_takes_what_has_changed_and_what_was_measured_longest_ago_first():
    record = record_of(
        measured("old", at="2026-01-01", code="then"), measured("same", at="2026-01-01"),
        measured("new", at="2026-01-03", code="then"), measured("both", at="2026-01-01", code="then"),
        measured("both", NIGHTLY, at="2026-01-02", code="then"),
    )  # fmt: skip
    assert nightly_order(record, dict.fromkeys(("same", "new", "both", "old", "never"), "now")) == [
        "never", "old", "both", "new",
    ]  # fmt: skip


def test_the_record_comes_back_as_it_was_written(tmp_path: Path):
    record = record_of(measured("solver"), measured("load", NIGHTLY))
    write_record(record, tmp_path / "measured.json")
    assert read_record(tmp_path / "measured.json") == record and read_record(tmp_path / "none.json") == {}


@pytest.fixture
def campaign_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A campaign of three parts whose measurements are counted, with a record of its own."""
    import benchmarks.reliability.__main__ as command

    monkeypatch.setattr(command, "read_record", lambda: read_record(tmp_path / "measured.json"))
    monkeypatch.setattr(command, "write_record", lambda each: write_record(each, tmp_path / "measured.json"))
    monkeypatch.setattr(command, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text(f"{command.BEGIN}\n{command.END}\n")
    counted: list[str] = []
    clock = iter(range(10**6))

    def run_part(part, folder, **_):
        counted.append(part.name)
        return [Figure(part.name, "a", "1", True, "h", "0a1b2c3d")]

    monkeypatch.setattr(command, "run_part", run_part)
    monkeypatch.setattr(command, "code_digest", lambda sources: sources[0])
    monkeypatch.setattr(command, "now", lambda: f"{next(clock):06d}")
    assert RECORD.is_file()

    def made(**codes: str) -> Run:
        parts = {
            name: Part(
                name, lambda share: [], lambda results: [], sources=(code,), nightly=0.1,
                table=Sized(0.5, {"a": 50.0, "b": 10.0, "c": 10.0}[name]),
            )
            for name, code in codes.items()
        }  # fmt: skip
        return Run(parts, list(parts), tmp_path, 1, False)

    return made, counted, tmp_path / "page.md"


def test_a_full_run_measures_what_has_changed_and_keeps_the_other_rows(campaign_of):
    made, counted, page = campaign_of
    made(a="1", b="1").full()
    made(a="1", b="2").full()
    made(a="1", b="2").full()
    assert counted == ["a", "b", "b"]
    assert [line.split(" | ")[0] for line in page.read_text().splitlines() if "0a1b2c3d" in line] == ["| a", "| b"]


def test_a_night_ends_in_its_time_and_goes_on_the_next_night_where_it_ended(campaign_of, monkeypatch):
    import benchmarks.reliability.__main__ as command

    made, counted, page = campaign_of
    clock = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: clock[0])
    whole = command.run_part

    def slow(part, folder, **more):
        clock[0] += 400.0
        return whole(part, folder, **more)

    monkeypatch.setattr(command, "run_part", slow)
    assert [each.part for each in made(a="1", b="1", c="1").nightly(15)] == ["a", "b"]
    assert "Not reached in 15 minutes of the last `--nightly`: c." in page.read_text()
    assert [each.part for each in made(a="2", b="2", c="2").nightly(15)] == ["c", "a"]
    assert [each.part for each in made(a="2", b="3", c="2").nightly(15)] == ["b"]
    assert "Not reached" not in page.read_text()


def test_the_table_of_one_commit_measures_every_part_the_longest_last_as_far_as_the_time_goes(campaign_of, monkeypatch):
    import benchmarks.reliability.__main__ as command

    made, counted, page = campaign_of
    clock = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(command, "LONGEST", ("a",))
    whole = command.run_part

    def slow(part, folder, **more):
        assert more["share"] == part.table.share
        clock[0] += 60.0 * part.table.minutes
        return whole(part, folder, **more)

    monkeypatch.setattr(command, "run_part", slow)
    assert [each.part for each in made(a="1", b="1", c="1").table(90)] == ["b", "c", "a"]
    assert [each.part for each in made(a="1", b="1", c="1").table(90)] == ["b", "c", "a"]
    assert page.read_text().count(" --table` |") == 3 and "Not reached" not in page.read_text()
    assert [each.part for each in made(a="1", b="1", c="1").table(69)] == ["b", "c"]
    assert "Not reached in 69 minutes of the last `--table`: a." in page.read_text()


def test_a_part_that_cannot_be_measured_is_a_row_with_its_reason_and_the_others_go_on(campaign_of, monkeypatch):
    import benchmarks.reliability.__main__ as command

    made, counted, page = campaign_of
    whole = command.run_part

    def fail(part, folder, **more):
        if part.name == "a":
            raise RuntimeError("no such program")
        return whole(part, folder, **more)

    monkeypatch.setattr(command, "run_part", fail)
    done = made(a="1", b="1").nightly(15)
    assert [each.figures[0].passed for each in done] == [False, True]
    assert "could not be measured: RuntimeError: no such program | **no**" in page.read_text()


def test_a_row_says_at_which_commit_its_last_portion_was_measured(tmp_path):
    runs, kept = tmp_path / "runs", tmp_path / "kept"
    runs.mkdir()
    [figure] = run_part(part_of(runs), kept)
    assert figure.commit == campaign.commit() and re.fullmatch(r"[0-9a-f]{8}\+?", figure.commit)
    for name, at in (("a", 1.0), ("b", 2.0)):
        path = kept / "touch" / f"{name}.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "commit": f"0000000{name}", "at": at}))
    found = kept_figures(part_of(runs), kept)
    assert found is not None and found[0].commit == "0000000b"


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


LOADED = """
import json, sys
from pathlib import Path
from taylor.base.console import run_command
from importlib import import_module

def root_of(module):
    file = getattr(module, "__file__", None)
    return file and str(Path(file).resolve())

code = run_command(lambda: import_module(f"taylor.command_lines.{sys.argv[1]}").run(sys.argv[2:]))
print(json.dumps([code, sorted(filter(None, map(root_of, sys.modules.values())))]), file=open("loaded.json", "w"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["pipeline_parallel", "-yaml", "{config}/pretrain_llama2_7b.yaml", "-evaluate", "y", "-dryrun", "n"],
        ["pipeline_parallel", "-hf", "{config}/qwen3_8b.json", "--device", "h100-80g", "--world_size", "8", "--seq",
         "2048", "--gbs", "8", "-o", "run.sh", "-t", "5"],
        ["parallel_tool", "--yaml_path", "{config}/pretrain_llama2_7b.yaml", "--profile_num", "2", "--rank_num", "8"],
    ],
    ids=["evaluated", "solved", "searched"],
)  # fmt: skip
def test_what_a_command_loads_is_among_the_files_that_its_figures_rest_on(tmp_path: Path, words: list[str]):
    words = [word.format(config=ROOT / "config") for word in words]
    run = subprocess.run([sys.executable, "-c", LOADED, *words], cwd=tmp_path, capture_output=True, text=True)
    code, loaded = json.loads((tmp_path / "loaded.json").read_text())
    assert code == 0, run.stderr
    own = {Path(file) for file in loaded if Path(file).is_relative_to(ROOT) and ".venv" not in file}
    assert len(own) > 100 and not own - campaign.files_of(campaign.TOOLS)


def test_every_part_of_the_campaign_that_a_night_measures_has_a_size_of_its_own():
    parts = {name: importlib.import_module(f"benchmarks.reliability.{name}").PART for name in PARTS}
    assert {name for name, part in parts.items() if not part.nightly} == {"mutation", "coverage"}
    for name, part in parts.items():
        assert part.name == name and part.portions(part.nightly or 1.0) and 0 <= part.nightly < 1
        assert not {RECORD, PAGE} & campaign.files_of(part.sources), "a measurement would make itself out of date"


def test_the_samples_of_all_parts_take_90_minutes_together():
    parts = [importlib.import_module(f"benchmarks.reliability.{name}").PART for name in PARTS]
    assert all(0 < part.table.share <= 1 and part.table.minutes > 0 for part in parts)
    assert sum(part.table.minutes for part in parts) <= MINUTES[TABLE]
    assert all(part.portions(part.table.share) for part in parts)


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
    # On a busy machine an early press ends Python itself, before it begins any program.
    presses = (load.watch(tmp_path, seconds) for seconds in (0.15, 0.3, 0.6, 1.2))
    seen = next(seen for seen in presses if "init_import_site" not in seen.text)
    assert seen.code in (130, -signal.SIGINT) and "Traceback" not in seen.text


@pytest.mark.parametrize(("read", "passed"), [(3, True), (2, False)])
def test_a_sample_of_the_readings_holds_where_all_of_it_was_read(read, passed):
    part = {"asked": 3, "read": read, "fields": 9, "refused": 0, "faults": []}
    rows = reading.figures({f"{kind}-{name}-0": part for kind in ("mutants", "plans") for name in reading.LAUNCHERS})
    assert [row.passed for row in rows] == [passed, passed]
