"""The template of a plug-in adds a launcher, a device and a schedule to an installed Taylor."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import yaml

from taylor.pipeline.generators import check_schedule
from taylor.pipeline.schedule import Schedule, ScheduleSpec
from tests.conftest import ROOT

pytestmark = pytest.mark.slow  # an environment, and solves in it

TEMPLATE = ROOT / "examples" / "plugin_launcher"
NO_BUILDS = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with this environment's packages, and the template installed by pip without a network."""
    root = tmp_path_factory.mktemp("template")
    source = shutil.copytree(TEMPLATE, root / "source", ignore=NO_BUILDS)
    venv.create(root / "env", with_pip=False, symlinks=True)
    [site] = (root / "env" / "lib").glob("python*/site-packages")
    dependencies = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site / "dependencies.pth").write_text("\n".join([str(ROOT), *dependencies]))
    program = root / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(program), "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--no-index", str(source)], check=True)
    return program


def taylor(python: Path, folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    start = "import taylor.command_lines.main as main; raise SystemExit(main.main())"
    done = subprocess.run([python, "-c", start, *words], cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done


def test_doctor_lists_the_three_plug_ins_as_working(python: Path, tmp_path: Path) -> None:
    found = json.loads(taylor(python, tmp_path, "doctor", "--json").stdout)["plugins"]
    listed = {(each["group"], each["name"], each["problem"]) for each in found}
    assert listed == {
        ("taylor.launchers", "toytrain", ""), ("taylor.devices", "toy-cards", ""),
        ("taylor.schedules", "eager-1f1b", ""),
    }  # fmt: skip


def test_a_file_of_the_launcher_is_solved_on_the_device_under_the_schedule(python: Path, tmp_path: Path) -> None:
    job = shutil.copy(TEMPLATE / "job.yaml", tmp_path)
    words = ("-yaml", job, "-check", "n", "-t", "120", "-o", "solved.yaml", "--result_json", "result.json")
    done = taylor(python, tmp_path, "solve", *words)
    assert "toytrain YAML" in done.stderr and "no device named: toy-card" in done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["schedule"] == "eager-1f1b" and result["status"] == "optimal"
    before, after = (yaml.safe_load((tmp_path / name).read_text())["toytrain"] for name in ("job.yaml", "solved.yaml"))
    assert {**before, "layers": after["layers"], "recompute": after["recompute"]} == after
    assert sum(after["layers"]) == 32 and after["layers"] != before["layers"]
    taylor(python, tmp_path, "solve", "-yaml", "solved.yaml", "-evaluate", "y")


def test_a_mistake_in_its_file_is_answered_by_the_launcher(python: Path, tmp_path: Path) -> None:
    text = (TEMPLATE / "job.yaml").read_text().replace("eager-1f1b", "eager-1f1")
    (tmp_path / "job.yaml").write_text(text)
    done = taylor(python, tmp_path, "solve", "-yaml", "job.yaml", "-evaluate", "y", code=2)
    assert "schedule: is no known schedule (found 'eager-1f1')" in done.stderr and "eager-1f1b" in done.stderr


@pytest.mark.parametrize("text", ["toytrain: [", "toytrain: {a: &a [*a]}", "toytrain: 1", "toytrain: !!python/none x"])
def test_a_malformed_file_is_refused_in_words(python: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "job.yaml").write_text(f"{text}\n")
    done = taylor(python, tmp_path, "solve", "-yaml", "job.yaml", "-evaluate", "y", code=2)
    assert "job.yaml" in done.stderr


def test_the_device_is_listed_and_without_the_plug_in_it_is_not(python: Path, tmp_path: Path) -> None:
    assert "made up for the template" in taylor(python, tmp_path, "devices", "toy-card").stdout
    here = subprocess.run([sys.executable, "-m", "taylor", "devices", "toy-card"], capture_output=True, text=True)
    assert here.returncode == 2 and "toy-card" in here.stderr


@pytest.mark.parametrize("stages, micro_batches", [(1, 1), (2, 1), (4, 3), (4, 16), (7, 9)])
def test_the_schedule_is_an_order_in_which_each_stage_is_two_forwards_ahead_of_the_next(
    stages: int, micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its alive micro-batches are those of the paper: 2(S - 1 - s) + 1 at most."""
    import numpy as np

    monkeypatch.syspath_prepend(str(TEMPLATE))
    from toytrain.schedule import eager_order

    order = np.array(eager_order(stages, 1, micro_batches), dtype=np.int32)
    check_schedule(Schedule(ScheduleSpec("gpipe"), stages, 1, micro_batches, order))
    alive = np.cumsum(np.where(order[:, :, 0] == 0, 1, -1), axis=1).max(axis=1)
    assert alive.tolist() == [min(2 * (stages - 1 - stage) + 1, micro_batches) for stage in range(stages)]
