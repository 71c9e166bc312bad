"""Runs are remembered, found again, measured, compared and fitted to; in a SQLite file and on a PostgreSQL server."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from taylor.base.console import run_command
from taylor.base.database import BusyError
from taylor.base.errors import EXIT_BAD_INPUT, EXIT_DONE, InputError, TaylorError
from taylor.command_lines import main
from taylor.workflows.measuring.history import Store
from tests.conftest import ROOT

CONFIG = ROOT / "config" / "pretrain_llama2_7b.yaml"


@pytest.mark.slow
def test_a_plan_is_found_again_measured_compared_and_fitted_to(run_tool, tmp_path: Path):
    """What a user does: solve, run the job, store how long its steps took, fit the device to that."""
    solved = run_tool("pipeline_parallel.py", "-yaml", CONFIG, "-o", "planned.yaml", "--result_json", "planned.json")
    assert solved.returncode == 0, solved.stderr
    name = solved.stderr.split("remembered as ")[1][:8]
    words = ("--measured", "21000", "--source", "job 4711", "-o", "again.yaml", "--result_json", "again.json")
    shown = run_tool("taylor/__main__.py", "history", name[:5], *words)
    assert shown.returncode == 0 and "21,000.0" in shown.stdout, shown.stderr
    assert (tmp_path / "again.yaml").read_text() == (tmp_path / "planned.yaml").read_text()
    again, planned = (json.loads((tmp_path / f"{which}.json").read_text()) for which in ("again", "planned"))
    assert again["offset"] == planned["offset"] and again["problem"] == planned["problem"]
    beside = run_tool("taylor/__main__.py", "compare", name, "planned.json")
    assert beside.returncode == 0 and "equally fast" in beside.stdout, beside.stderr
    fitted = run_tool("taylor/__main__.py", "calibrate", "pipeline_output/history.sqlite", "-o", "mine.yaml")
    assert fitted.returncode == 0 and (tmp_path / "mine.yaml").is_file(), fitted.stderr


RUN = {"command": "solve", "file": "a.yaml", "model": "llama", "device": "h100", "ranks": 64, "inputs": "{}"}
PLAN = {"strategy": "{}", "status": "optimal", "step_ms": 10.5, "gap": 0.0, "mfu": 0.4, "peak_mib": 7.0,
        "name": "a.yaml", "config": "text: '%s ?'", "result": "{}"}  # fmt: skip


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory):
    """The address of a server of our own, which ends with the module's tests."""
    pytest.importorskip("psycopg")
    programs = Path("/usr/lib/postgresql")
    found = shutil.which("pg_ctl") or next(map(str, sorted(programs.glob("*/bin/pg_ctl"), reverse=True)), None)
    if found is None:
        pytest.skip("no PostgreSQL server (Debian's package postgresql)")
    bin_folder = Path(os.path.realpath(found)).parent
    user = {"user": "postgres"} if os.geteuid() == 0 else {}
    folder = tmp_path_factory.mktemp("pg", numbered=True)
    try:
        if user:  # the server refuses to run as root, and must reach its folder
            shutil.chown(folder, "postgres")
            for parent in (folder, *folder.parents[:3]):
                parent.chmod(parent.stat().st_mode | 0o011)
        quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "cwd": folder, **user}
        subprocess.run([bin_folder / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-N"], **quiet)
        options = f"-c listen_addresses='' -k {folder} -c fsync=off"
        start = [bin_folder / "pg_ctl", "-D", folder / "data", "-w", "-o", options, "-l", folder / "log", "start"]
        subprocess.run(start, **quiet)
    except (OSError, LookupError, subprocess.CalledProcessError) as error:
        pytest.skip(f"PostgreSQL does not start here: {getattr(error, 'stderr', None) or error}")
    yield f"postgresql://postgres@/postgres?host={folder}"
    subprocess.run([bin_folder / "pg_ctl", "-D", folder / "data", "-m", "immediate", "stop"], **quiet)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path: Path) -> Store:
    return Store(str(tmp_path / "h.sqlite") if request.param == "sqlite" else request.getfixturevalue("postgresql"))


def test_what_is_stored_comes_back_in_every_store(store: Store):
    store.ensure()
    first = store.add(RUN, [PLAN, {**PLAN, "step_ms": None, "status": "failed"}])
    second = store.add({**RUN, "model": "Mixtral %", "device": "ascend"}, [PLAN])
    runs = {run.id: run for run in store.runs()}
    assert set(runs) >= {first, second} and runs[first].count == 2 and len(runs[first].plans) == 1
    assert [run.id for run in store.runs(model="mixTRAL", device="ASC")] == [second]
    store.measure(first, 1, step_ms=11.0, source="first try")
    store.measure(first, 1, step_ms=12.0, peak_mib=8.5)
    told = store.run(first).plans
    assert (told[0].measured_ms, told[0].measured_mib) == (12.0, 8.5) and told[1].step_ms is None
    assert store.configuration(first) == ("a.yaml", PLAN["config"])
    with pytest.raises(InputError, match="of a ranking.*taylor history .* --plan 1 -o FILE"):
        store.result(first)


def test_calibration_reads_every_measurement_with_its_configuration(store: Store, tmp_path: Path):
    name = store.add({**RUN, "device": "only-here"}, [{**PLAN, "name": "../../evil.yaml"}])
    store.measure(name, 1, step_ms=3.0)
    folder = tmp_path / "measured"
    assert store.write_measured(folder, device="only-here") == 1
    table, config = sorted(folder.iterdir(), key=lambda path: path.name != "measured.csv")
    assert table.read_text().splitlines()[1] == f"{config.name},3.0,,only-here"
    assert config.read_text() == PLAN["config"] and not (tmp_path / "evil.yaml").exists()


@pytest.mark.parametrize("name", ["zz", "", "%", "_", "'; DROP TABLE taylor_runs; --"])
def test_a_name_of_no_run_is_refused(store: Store, name: str):
    store.add(RUN, [PLAN])
    with pytest.raises(InputError):
        store.run(name)
    assert store.runs()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1e13])
def test_a_measurement_that_is_none_is_refused(tmp_path: Path, value: float):
    store = Store(str(tmp_path / "h.sqlite"))
    name = store.add(RUN, [PLAN])
    with pytest.raises(InputError, match="--measured"):
        store.measure(name, 1, step_ms=value)
    with pytest.raises(InputError, match="no such plan"):
        store.measure(name, 2, step_ms=1.0)


def test_a_file_that_is_no_store_is_refused_and_stays_as_it_is(tmp_path: Path):
    other = tmp_path / "h.sqlite"
    other.write_bytes(b"not a database, but long enough for a header of one" * 100)
    for act in (Store(str(other)).ensure, Store(str(other)).runs):
        with pytest.raises(TaylorError, match="not a database"):
            act()
    assert other.read_bytes().startswith(b"not a database")
    with pytest.raises(InputError, match="no such file"):
        Store(str(tmp_path / "none.sqlite")).runs()


DAMAGED = {
    "taylor_plans": {
        "strategy": [
            "no JSON",
            "[" * 3000,
            "[1]",
            '{"tp": "eight"}',
            f'{{"tp": {"9" * 4000}}}',
            "{" + " " * 10**5,
            b"x",
        ],
        "step_ms": ["soon", b"1", "9" * 10**5],
        "gap": ["soon"],
        "mfu": ["soon"],
        "peak_mib": ["soon", 9e999],
        "status": [b"\xff", "x" * 10**5],
        "name": [b"\xff"],
    },
    "taylor_runs": {
        "ranks": ["many", -1, "9" * 10**5],
        "model": [b"\xff", "x" * 10**5],
        "device": [b"\xff"],
        "at": [b"\xff"],
        "file": [b"\xff"],
    },
    "taylor_measured": {"step_ms": ["soon"], "peak_mib": ["soon"]},
}


@pytest.mark.parametrize(
    ("table", "column", "cell"),
    [(table, column, cell) for table in DAMAGED for column in DAMAGED[table] for cell in DAMAGED[table][column]],
    ids=lambda value: str(value)[:12],
)
def test_a_damaged_cell_is_named_and_hides_no_other_row(tmp_path: Path, capsys, table, column, cell):
    store = Store(str(tmp_path / "h.sqlite"))
    bad, good = store.add(RUN, [PLAN, PLAN]), store.add(RUN, [PLAN])
    store.measure(bad, 1, step_ms=11.0)
    where = "id" if table == "taylor_runs" else "number = 1 AND run"
    with sqlite3.connect(store.url) as database:
        database.execute(f"UPDATE {table} SET {column} = ? WHERE {where} = ?", (cell, bad))
    words = ["history", "--store", store.url]
    assert run_command(lambda: main.run(words)) == EXIT_DONE
    shown = capsys.readouterr()
    assert good in shown.out
    assert any("left out" in line and f"column {column}" in line and len(line) < 700 for line in shown.err.splitlines())
    assert run_command(lambda: main.run([*words, bad])) == (EXIT_BAD_INPUT if table == "taylor_runs" else EXIT_DONE)
    store.write_measured(tmp_path / "out")


@pytest.mark.parametrize("cell", ["", "no JSON", "[" * 10**5, "[1]", "9" * 10**5, '{"problem": 1}', b"\xff", 3])
def test_a_damaged_result_is_refused_by_its_column(tmp_path: Path, cell):
    store = Store(str(tmp_path / "h.sqlite"))
    name = store.add(RUN, [PLAN])
    with sqlite3.connect(store.url) as database:
        database.execute("UPDATE taylor_plans SET result = ?", (cell,))
    with pytest.raises(InputError):
        store.result(name)


def test_what_a_store_holds_moves_no_terminal(tmp_path: Path, capsys):
    store = Store(str(tmp_path / "h.sqlite"))
    evil = "\x1b]0;title\x07\x1b[2J\x9b31m\rllama"
    run = RUN | dict.fromkeys(("command", "file", "model", "device"), evil)
    name = store.add(run, [PLAN | {"status": evil, "name": evil}])
    for words in ([], [name], ["--json"], [name, "--json"], [name, "--result_json", str(tmp_path / "r.json")]):
        run_command(lambda words=words: main.run(["history", "--store", store.url, *words]))
    shown = capsys.readouterr()
    assert not set(shown.out + shown.err) & set("\x1b\x07\x9b\r")
    assert "llama" in shown.out


def test_a_locked_store_delays_no_answer(tmp_path: Path, caplog, monkeypatch):
    store = Store(str(tmp_path / "h.sqlite"))
    store.add(RUN, [PLAN])
    waited = []
    whole = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, timeout: waited.append(timeout) or whole(path, timeout=0.01))
    with closing(whole(store.url)) as other:
        other.execute("BEGIN EXCLUSIVE")
        store.ensure()
        assert "another process has locked it" in caplog.text
        with pytest.raises(BusyError, match="another process has locked it"):
            store.add(RUN, [PLAN])
    assert max(waited) <= 2.0


def test_only_its_owner_reads_a_new_store(tmp_path: Path):
    before = os.umask(0)
    try:
        store = Store(str(tmp_path / "h.sqlite"))
        store.add(RUN, [PLAN])
    finally:
        os.umask(before)
    assert Path(store.url).stat().st_mode & 0o777 == 0o600


def test_a_password_is_in_no_message():
    pytest.importorskip("psycopg")
    with pytest.raises(InputError) as refused:
        Store("postgresql://me:secret@127.0.0.1:9/there").runs()
    assert "secret" not in str(refused.value) and "me:***@" in str(refused.value)
