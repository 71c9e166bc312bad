"""The wheel in a fresh environment, in another folder, beside a user's own packages of the same names."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import taylor
from tests.conftest import ROOT

pytestmark = pytest.mark.slow  # its fixtures take ten seconds and more

STAY_HERE = {"taylor", "tests", "benchmarks"}
FOLDERS = sorted({file.parent.name for file in ROOT.glob("*/__init__.py")} - STAY_HERE)
COMMANDS = ("taylor", "parallel-tool", "pipeline-tool", "pipeline-parallel", "timeline-tool")
NO_SOURCES = shutil.ignore_patterns("__pycache__", "*.pyc", "*.orig", "dataset")


@dataclass(frozen=True)
class Installation:
    """The wheel, installed in an environment of its own, and a user's folder to work in.

    Parameters
    ----------
    wheel : Path
    packages : Path
        The environment's ``site-packages``.
    programs : Path
        The environment's folder of programs.
    folder : Path
        Working folder, with the user's own packages `parsers`, `register`, `report` and `base`, which end every
        program that imports them.
    """

    wheel: Path
    packages: Path
    programs: Path
    folder: Path

    def run(self, program: str, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the user's folder, from which Python imports too."""
        done = subprocess.run(
            [str(self.programs / program), *map(str, words)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done


def build(folder: Path) -> Path:
    """The wheel, built from a copy of the sources in which an earlier build has left a module."""
    source = folder / "source"
    source.mkdir()
    for name in (*FOLDERS, "taylor", "config"):
        shutil.copytree(ROOT / name, source / name, ignore=NO_SOURCES)
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, source)
    left = source / "build" / "lib" / "taylor" / "left_over.py"
    left.parent.mkdir(parents=True)
    left.touch()
    pip(sys.executable, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", folder, source)
    [wheel] = folder.glob("*.whl")
    return wheel


def pip(python: str | Path, *words: str | Path) -> None:
    """Run this environment's pip for a Python."""
    command = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def take_kernels(package: Path) -> None:
    """Lay the checkout's compiled kernels, where it has some, beside the same sources: compiling takes half a minute.

    numba takes them for sources of the same name, size and time.
    """
    for name in FOLDERS:
        for kernel in (ROOT / name).rglob("__pycache__/*.nb[ic]"):
            place = package / kernel.relative_to(ROOT)
            place.parent.mkdir(exist_ok=True)
            shutil.copy2(kernel, place)
    for source in (file for name in FOLDERS for file in (ROOT / name).rglob("*.py")):
        stat = source.stat()
        os.utime(package / source.relative_to(ROOT), ns=(stat.st_atime_ns, stat.st_mtime_ns))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel beside this environment's dependencies, but without this environment's `taylor`."""
    root = tmp_path_factory.mktemp("wheel")
    wheel = build(root)
    venv.create(root / "env", with_pip=False, symlinks=True)
    programs = root / "env" / "bin"
    pip(programs / "python", "install", "--no-deps", "--no-index", wheel)
    [packages] = (root / "env" / "lib").glob("python*/site-packages")
    # Folders that a .pth file adds have their own .pth files ignored, that of an editable `taylor` among them.
    dependencies = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "dependencies.pth").write_text("\n".join(dependencies))
    take_kernels(packages / "taylor")
    folder = root / "user"
    for name in ("parsers", "register", "report", "base"):
        (folder / name / "models").mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise SystemExit('the user\\'s own {name} was imported')\n")
        (folder / name / "mine.py").write_text(f"raise SystemExit('the user\\'s own {name} was run')\n")
        (folder / name / "models" / "mine.yaml").write_text("no: registration of ours\n")
    return Installation(wheel, packages, programs, folder)


def test_the_wheel_holds_every_module_and_data_file_of_the_checkout(installed: Installation) -> None:
    def files(folder: Path) -> set[Path]:
        return {path for path in folder.rglob("*.*") if path.is_file() and "__pycache__" not in path.parts}

    expected = {str(path.relative_to(ROOT)) for path in files(ROOT / "taylor")}
    expected |= {f"taylor/{path.relative_to(ROOT)}" for name in FOLDERS for path in files(ROOT / name)}
    expected |= {f"taylor/config/{path.name}" for path in (ROOT / "config").glob("*.*") if path.suffix != ".orig"}
    with zipfile.ZipFile(installed.wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


def test_one_package_and_its_commands_are_installed(installed: Installation) -> None:
    [record] = installed.packages.glob("taylor_parallel-*.dist-info/RECORD")
    with record.open(newline="") as stream:
        places = {Path(row[0]) for row in csv.reader(stream)}
    tops = {place.parts[0] for place in places if place.parts[0] != ".."}
    assert tops == {"taylor", f"taylor_parallel-{taylor.__version__}.dist-info"}
    assert {place.name for place in places if place.parts[0] == ".."} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_its_version_and_its_flags(installed: Installation, command: str) -> None:
    assert installed.run(command, "--version").stdout == f"taylor {taylor.__version__}\n"
    assert "example:" in installed.run(command, "--help").stdout


def test_the_default_configuration_is_the_one_in_the_package_and_that_is_said(installed: Installation) -> None:
    done = installed.run("parallel-tool", "--explain", "DP16_TP4_PP16_EP8")
    assert f"configuration: {installed.packages}/taylor/config/pretrain_deepseek3_128p.yaml" in done.stderr
    assert "the device's limit is 51,855 MiB" in done.stdout


def test_a_plan_is_evaluated_another_solved_drawn_and_ranked(installed: Installation) -> None:
    shipped = installed.packages / "taylor" / "config" / "pretrain_llama2_7b.yaml"
    files = installed.folder / "files"
    files.mkdir()
    shutil.copy(shipped, files)
    file = files / shipped.name
    done = installed.run("pipeline-parallel", "-yaml", file, "-evaluate", "y")
    assert "peak" in done.stdout
    words = ("-yaml", file, "-dryrun", "n", "-check", "n", "-o", "solved.yaml", "--result_json", "result.json")
    installed.run("taylor", "solve", *words)
    assert json.loads((installed.folder / "result.json").read_text())["status"] == "optimal"
    installed.run("taylor", "timeline", "--solution", "result.json", "--html", "page.html")
    assert (installed.folder / "page.html").stat().st_size > 100_000
    installed.run("taylor", "rank", "--yaml_path", "files", "--workers", "1")
    [table] = (installed.folder / "pipeline_output").glob("test_result_*.csv")
    assert "optimal" in table.read_text()


def test_python_imports_the_installed_package_and_none_of_the_users(installed: Installation) -> None:
    text = "import taylor, taylor.parsers.read, sys; print(taylor.__file__); print('parsers' in sys.modules)"
    done = installed.run("python", "-c", text)
    assert done.stdout.split() == [str(installed.packages / "taylor" / "__init__.py"), "False"]


def test_the_ten_lines_of_the_page_run_with_the_import_alone(installed: Installation) -> None:
    [script] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.DOTALL)
    done = installed.run("python", "-c", script)
    assert "optimal (proven)" in done.stdout and "2 of 2 candidates solved" in done.stdout


def test_a_folder_called_register_is_read_when_it_is_named(installed: Installation) -> None:
    done = installed.run("parallel-tool", "--register_path", "./register/", "--list_rules", code=1)
    assert "the user's own register was run" in done.stderr
