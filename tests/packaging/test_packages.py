"""Wheel, sdist, lock file and image: what they hold, how large they are, and that they hold nothing else."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from benchmarks.packages import built
from tests.conftest import ROOT

WHEEL_KIB, SDIST_KIB = 3_300, 3_000
"""Limits of the sizes; at the end of November 2026 they were 3,050 and 2,420 (2,610 and 2,120 weeks before)."""

PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
LOCK = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
DOCKERFILE = ROOT / "Dockerfile"
INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "ENTRYPOINT", "CMD"}

needs_history = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the list of tracked files")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheel and sdist of this checkout."""
    return built(tmp_path_factory.mktemp("packages"))


@needs_history
@pytest.mark.slow
def test_the_wheel_of_the_sdist_is_the_wheel_of_the_checkout(packages: dict[str, Path], tmp_path: Path) -> None:
    with tarfile.open(packages["sdist"]) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path / "wheels"), str(source)], check=True, capture_output=True)
    [again] = (tmp_path / "wheels").iterdir()

    def held(wheel: Path) -> dict[str, int]:
        with zipfile.ZipFile(wheel) as archive:
            return {entry.filename: entry.CRC for entry in archive.infolist() if not entry.filename.endswith("RECORD")}

    assert held(again) == held(packages["wheel"])


@needs_history
@pytest.mark.slow
def test_wheel_and_sdist_stay_small_and_hold_no_test_and_no_other_text(packages: dict[str, Path]) -> None:
    assert packages["wheel"].stat().st_size < WHEEL_KIB * 1024
    assert packages["sdist"].stat().st_size < SDIST_KIB * 1024
    with tarfile.open(packages["sdist"]) as archive:
        tops = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    assert not tops & {"tests", "benchmarks", "docs", "examples", ".github", "build", "output"}
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py", "config", "taylor", "parsers"} <= tops


def test_importing_taylor_loads_python_alone() -> None:
    """What it offers is imported when it is used: the number of modules bounds the time, on any machine."""
    text = "import sys; before = set(sys.modules); import taylor; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if not name.startswith(("taylor", "importlib"))] == []
    assert len(done.stdout.split()) < 10


def test_every_requirement_of_the_work_is_locked_with_hashes_and_no_host_is_named() -> None:
    entries = re.split(r"\n(?=\S)", "\n" + LOCK)
    locked = set()
    for entry in entries:
        if found := re.match(r"\n?([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?==([^\s;\\]+)", entry):
            assert "--hash=sha256:" in entry, found[0]
            locked.add(plain(found[1]))
    wanted = [section(name) for name in ("test", "docs")]
    core = re.findall(r'^    "([^"]+)"', PROJECT.split("\ndependencies = [")[1].split("\n]")[0], re.MULTILINE)
    names = [plain(re.match(r"[A-Za-z0-9._-]+", each)[0]) for each in [*core, *sum(wanted, [])]]
    assert len(names) > 30 and not {name for name in names if name not in locked}
    assert re.search(r"://|--(extra-)?index-url|--find-links|--trusted-host", LOCK) is None


def plain(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def section(extra: str) -> list[str]:
    """Requirements of an extra."""
    text = PROJECT.split("[project.optional-dependencies]")[1]
    return re.findall(r'"([^"]+)"', re.search(rf"^{extra} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)[1])


def instructions() -> list[tuple[str, str]]:
    """The image's file as (instruction, rest), continued lines joined."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line.strip() and not line.startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in text.splitlines()]


def test_the_image_is_slim_runs_as_nobody_special_and_starts_taylor() -> None:
    steps = instructions()
    assert {name for name, _ in steps} <= INSTRUCTIONS
    images = [rest for name, rest in steps if name == "FROM"]
    assert all(re.fullmatch(r"python:3\.\d+-slim( AS \w+)?", image) for image in images)
    newest = re.findall(r"Python :: (3\.\d+)", PROJECT)[-1]
    assert all(image.startswith(f"python:{newest}-") for image in images)
    last = steps[max(at for at, (name, _) in enumerate(steps) if name == "FROM") :]
    users = [rest for name, rest in last if name == "USER"]
    assert users and int(users[-1]) >= 1000
    assert json.loads(dict(last)["ENTRYPOINT"]) == ["taylor"]


def test_the_image_holds_no_secret_and_only_the_sources_reach_it() -> None:
    text = DOCKERFILE.read_text()
    assert re.search(r"(?i)password|token|secret|api_?key|credential|://", text.split("\n", 1)[1]) is None
    ignored = (ROOT / ".dockerignore").read_text().split()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    folders = {file.parent.name for file in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert ignored[0] == "**"
    assert allowed == folders | {"config", "pyproject.toml", "setup.py", "README.md"}


@pytest.mark.slow
def test_the_steps_of_the_image_run_in_a_folder_that_stands_for_it(tmp_path: Path) -> None:
    """Each step under a shell, its folders moved below this one; pip installs without a network, `useradd` is noted."""
    root = tmp_path / "image"
    for name in ("src", "wheels", "work", "home", "programs"):
        (root / name).mkdir(parents=True)
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    for name in allowed:
        place = root / "context" / name
        place.parent.mkdir(exist_ok=True)
        skip = shutil.ignore_patterns("__pycache__", "dataset")
        shutil.copytree(ROOT / name, place, ignore=skip) if (ROOT / name).is_dir() else shutil.copy(ROOT / name, place)
    venv.create(root / "env", with_pip=False, symlinks=True)
    [site] = (root / "env" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text("\n".join(p for p in sys.path if Path(p).name == "site-packages"))
    pip = f"{shlex.quote(sys.executable)} -m pip --python {root}/env/bin/python"
    noted = root / "noted"
    programs = {
        "pip": f'case "$1" in wheel) {pip} wheel --no-build-isolation --no-index "${{@:2}}";; '
        f'install) {pip} install --no-deps --no-index "${{@:2}}";; *) exit 9;; esac',
        "useradd": f'echo "useradd $*" >> {noted}',
    }
    for name, body in programs.items():
        (root / "programs" / name).write_text(f"#!/bin/bash\nset -e\n{body}\n")
        (root / "programs" / name).chmod(0o755)
    variables = {**os.environ, "PATH": f"{root}/programs:{root}/env/bin:{os.environ['PATH']}", "NUMBA_DISABLE_JIT": "1"}
    folder = root
    for name, rest in instructions():
        moved = re.sub(r"(?<![\w.])/(src|wheels|work|home)\b", rf"{root}/\1", rest)
        if name == "WORKDIR":
            folder = Path(moved)
        elif name == "COPY" and rest == ". .":
            shutil.copytree(root / "context", folder, dirs_exist_ok=True)
        elif name == "ENV":
            variables.update([moved.split("=", 1)])
        elif name == "RUN":
            # Kernels compile for a minute: the command is known, that it compiles is tested elsewhere.
            moved = moved.replace("taylor warm", "taylor warm --help")
            done = subprocess.run(["bash", "-ec", moved], cwd=folder, env=variables, capture_output=True, text=True)
            assert done.returncode == 0, (moved, done.stdout, done.stderr)
    assert "useradd --create-home --uid 10001 taylor" in noted.read_text()
    started = [root / "env" / "bin" / json.loads(dict(instructions())["ENTRYPOINT"])[0]]
    done = subprocess.run([*started, *json.loads(dict(instructions())["CMD"])], capture_output=True, text=True)
    assert done.returncode == 0 and "taylor COMMAND" in done.stdout
