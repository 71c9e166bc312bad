"""The wheel and the sdist, each in new environments of the oldest and the newest Python here: ``make packages``.

They are built into ``build/packages`` from a copy of the sources. Every environment gets one of them with its
dependencies by pip, as a user would have it, and runs the commands from an empty folder. One more on the oldest Python
has the least versions of all dependencies that pyproject.toml allows. Ends with 1 where one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import taylor
from benchmarks.audit import least
from benchmarks.pythons import SUPPORTED, interpreter

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 900
COMMANDS = (
    ("taylor", "--version"),
    ("taylor", "doctor", "--json"),
    ("taylor", "devices", "h100-80g"),
    (
        "taylor",
        "solve",
        "{config}/pretrain_llama2_7b.yaml",
        "-dryrun",
        "n",
        "-check",
        "n",
        "-t",
        "60",
        "-o",
        "out.yaml",
    ),
    ("taylor", "search", "{config}/pretrain_llama2_7b.yaml", "--profile_num", "1"),
    ("parallel-tool", "--help"),
    ("pipeline-tool", "--help"),
    ("pipeline-parallel", "--help"),
    ("timeline-tool", "--help"),
)
"""Run in every environment; ``{config}`` is the installed folder of configurations."""

_BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def built(folder: Path) -> dict[str, Path]:
    """The sdist and the wheel of the sources, by their form."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "source"
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
        for name in filter(None, files.split("\0")):
            if (ROOT / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, source / name)
        found = {}
        for form in ("wheel", "sdist"):
            command = [sys.executable, "-c", _BUILD, f"build_{form}", str(folder.resolve())]
            done = subprocess.run(command, cwd=source, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stdout + done.stderr)
            found[form] = folder / done.stdout.split()[-1]
        return found


def least_versions(project: dict[str, Any]) -> str:
    """Constraints by which pip installs the least versions that a project allows, the extras apart."""
    return "".join(f"{name}=={version}\n" for name, version in least(project, ("",)).items())


def failures(python: Path, package: Path, place: Path, constraints: str = "") -> list[str]:
    """Failures of a package in a new environment, which is removed afterwards; empty without any."""
    shutil.rmtree(place, ignore_errors=True)
    try:
        subprocess.run([python, "-m", "venv", place], check=True)
        (place / "constraints.txt").write_text(constraints)
        pip: list[str | Path] = [
            place / "bin" / "python",
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
            "install",
            "--constraint",
            place / "constraints.txt",
            package,
        ]
        done = subprocess.run(pip, capture_output=True, text=True)
        if done.returncode:
            return [f"pip install: {done.stderr[-2000:]}"]
        return [problem for command in COMMANDS if (problem := _failure(place, command))]
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _failure(place: Path, command: tuple[str, ...]) -> str:
    work = place / "work"
    work.mkdir(exist_ok=True)
    [config] = place.glob("lib/python*/site-packages/taylor/config")
    words = [str(place / "bin" / command[0]), *(word.format(config=config) for word in command[1:])]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=work, env=environment, capture_output=True, text=True, timeout=SECONDS)
    line = " ".join(command)
    if done.returncode or "Traceback" in done.stderr:
        return f"{line}: {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}"
    if command[1:] == ("--version",) and done.stdout.strip() != f"taylor {taylor.__version__}":
        return f"{line}: {done.stdout.strip()}"
    if "--json" in command and not json.loads(done.stdout)["installed"]:
        return f"{line}: says that taylor is not installed"
    return ""


def main() -> int:
    """Build, install, run; print a line an environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", help="such as 3.12 (default: the oldest and the newest that are here)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "packages")
    args = parser.parse_args()
    here = {version: path for version in args.versions or SUPPORTED if (path := interpreter(version)) is not None}
    chosen = list(here) if args.versions else list(dict.fromkeys([*list(here)[:1], *list(here)[-1:]]))
    packages = built(args.folder)
    count = 0 if chosen else 1
    tried = [(version, form, "") for version in chosen for form in packages]
    if not args.versions and chosen:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        tried.append((chosen[0], "wheel", least_versions(project)))
    for version, form, constraints in tried:
        name = f"{form}{' with the least versions' if constraints else ''}"
        found = failures(here[version], packages[form], args.folder / f"{form}-{version}", constraints)
        count += len(found)
        kib = packages[form].stat().st_size / 1024
        print(f"Python {version}, {name} ({kib:,.0f} KiB): {'all runs' if not found else ''}", *found, sep="\n  ")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
