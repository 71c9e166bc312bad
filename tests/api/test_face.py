"""`import taylor`: quick, complete, and as its page says."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import taylor
import taylor.face
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "api.md"
CONFIG = ROOT / "config" / "pretrain_llama2_7b.yaml"


def problem(**changes: object) -> taylor.PipelineProblem:
    kind = taylor.LayerKind("layer", 8, 1.0, 100.0, {"none": 40.0, "full": 5.0})
    return taylor.PipelineProblem(2, 1, 4, (kind,), (50.0, 50.0), (1000.0, 1000.0)).replace(**changes)


@pytest.mark.slow
def test_the_examples_of_the_page_give_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testfile(str(PAGE), module_relative=False, optionflags=flags)
    assert (result.failed, result.attempted > 20) == (0, True)


@pytest.mark.slow
def test_the_script_of_the_page_has_ten_lines_and_runs(tmp_path: Path) -> None:
    [script] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in script.splitlines() if line]) <= 10
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "optimal (proven)" in done.stdout and "% faster" in done.stdout and "2 of 2 candidates" in done.stdout
    assert (tmp_path / "solved.yaml").is_file()


def test_the_import_alone_loads_nothing_heavy() -> None:
    code = "import sys, taylor; print([name for name in ('numpy', 'pandas', 'yaml', 'highspy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_name_that_is_listed_is_there() -> None:
    assert all(getattr(taylor, name) is getattr(taylor.face, name) for name in taylor.__all__)
    assert set(dir(taylor)) == {*taylor.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        taylor.absent  # noqa: B018


def test_a_configuration_is_taken_by_its_path_and_as_it_was_read() -> None:
    by_path, read = taylor.solve(str(CONFIG)), taylor.solve(taylor.read(CONFIG))
    assert by_path.plan == read.plan and by_path.step_ms == read.step_ms is not None
    assert by_path.to_dict()["memory_source"] == "estimate"


def test_a_plan_of_ones_own_is_evaluated_in_place_of_the_files() -> None:
    given = taylor.PipelinePlan({"dense": ((20, 12),)}, {})
    own, other = taylor.evaluate(CONFIG), taylor.evaluate(CONFIG, given)
    assert other.plan.layers["dense"] == ((20, 12),)
    assert other.step_ms is not None and own.step_ms is not None and other.step_ms > own.step_ms


def test_a_risk_leaves_memory_free_and_none_lets_the_peaks_reach_the_limit() -> None:
    bold, usual, careful = (taylor.evaluate(CONFIG, risk=risk).solution.memory_limit_mib for risk in (0.0, None, 0.01))
    assert bold[0] == taylor.read(CONFIG).device_limit_mib and bold[0] > usual[0] > careful[0]
    with pytest.raises(taylor.TaylorError, match="risk: is no risk"):
        taylor.evaluate(CONFIG, risk=0.7)
    with pytest.raises(taylor.TaylorError, match="is settled by the problem itself"):
        taylor.solve(problem(), risk=0.1)


@pytest.mark.slow
def test_interleaves_and_schedules_may_be_left_to_the_tool() -> None:
    done = taylor.solve(CONFIG, vpp="auto", time_limit=3)
    assert len(done.result.alternatives) >= 2
    assert done.config is not None and done.config.schedule == done.problem.schedule


def test_a_problem_of_ones_own_takes_no_argument_that_it_settles_itself() -> None:
    assert taylor.solve(problem()).solution.status.value == "optimal"
    with pytest.raises(taylor.InputError, match="vpp: is settled by the problem"):
        taylor.solve(problem(), vpp=2)
    with pytest.raises(taylor.InputError, match="no plan of its own"):
        taylor.evaluate(problem())
    with pytest.raises(taylor.InfeasibleError, match="stage"):
        taylor.solve(problem(limit_mib=(300.0, 300.0)))


@pytest.mark.parametrize("name", ["r.json", "r.html", "r.png", "r.mps", "r.sol"])
def test_the_suffix_says_what_is_written_of_a_plan(name: str, tmp_path: Path) -> None:
    planned = taylor.solve(problem())
    assert taylor.write(planned, tmp_path / name) == [tmp_path / name]
    assert (tmp_path / name).stat().st_size > 100


def test_the_plan_of_a_script_goes_into_a_script_whatever_starts_it(tmp_path: Path) -> None:
    planned = taylor.evaluate(ROOT / "config" / "pretrain_llama3_70b.sh")
    assert taylor.write(planned, tmp_path / "train.SBATCH") == [tmp_path / "train.SBATCH"]


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    planned = taylor.solve(problem())
    with pytest.raises(taylor.InputError, match="path: is needed"):
        taylor.write(planned)
    with pytest.raises(taylor.InputError, match="is no kind of file"):
        taylor.write(planned, tmp_path / "r.yaml")
    with pytest.raises(taylor.InputError, match="is no kind of file"):
        taylor.write(taylor.evaluate(CONFIG), tmp_path / "r.toml")
    assert list(tmp_path.iterdir()) == []


def test_results_show_tables_in_a_notebook_and_escape_what_files_are_called(tmp_path: Path) -> None:
    file = tmp_path / "<b>.yaml"
    file.write_bytes(CONFIG.read_bytes())
    found = taylor.search(file, world_size=8, profile_num=2)
    ranking = taylor.rank(found, output=tmp_path / "ranked", workers=1)
    for shown in (taylor.evaluate(file), found, ranking):
        page = shown._repr_html_()
        assert "<table" in page and "<b>" not in page
    assert "2 of 2 candidates solved" in repr(ranking) and "2 chosen" in repr(found)


def test_ranking_takes_a_folder_or_files_and_says_what_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_bytes(CONFIG.read_bytes())
    (tmp_path / "bad.yaml").write_text("no: model")
    by_folder = taylor.rank(tmp_path, output=tmp_path / "out", workers=1)
    assert list(by_folder.table["status"]) == ["optimal", "feasible", "failed"]
    assert list(by_folder.table["own"]) == [0, 1, 0]  # what the file held before is a row to compare with
    by_files = taylor.rank([tmp_path / "good.yaml"], output=tmp_path / "out", workers=1)
    assert list(by_files.table["status"]) == ["optimal", "feasible"] and by_files.table["gain"][0] >= 0
