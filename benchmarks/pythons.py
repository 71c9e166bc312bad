"""Every supported Python that this machine has, the oldest and the newest first: ``python -m benchmarks.pythons``.

Each gets an environment of its own in ``build/pythons`` with what `pip install -e .` brings. There all modules are
imported and the commands of the README run, from a folder of files named like every module that Taylor imports. Ends
with 1 where something fails, and says which supported Python is not here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.packaging import hostile

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ("3.10", "3.11", "3.12", "3.13")
"""As pyproject.toml declares them."""

OPTIONAL = ("torch", "distributed", "dask", "psycopg", "starlette", "uvicorn", "mcp", "anyio")
"""Packages that an installation without extras lacks."""

IMPORTS = """
import importlib, sys
bad = 0
for name in sys.argv[2:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        if not isinstance(error, ImportError) or (error.name or "").partition(".")[0] not in sys.argv[1].split(","):
            bad += 1
            print(f"{name}: {type(error).__name__}: {error}")
sys.exit(bad > 0)
"""


def modules() -> list[str]:
    """Every module of the package, as it is imported."""
    names = []
    for package in hostile.own_names(ROOT) - {"tests", "benchmarks"}:
        for file in (ROOT / package).rglob("*.py"):
            inside = file.relative_to(ROOT / "taylor" if package == "taylor" else ROOT).with_suffix("")
            if file.name != "__main__.py":
                names.append(".".join(("taylor", *inside.parts)).removesuffix(".__init__"))
    return sorted(names)


def interpreter(version: str) -> Path | None:
    """A Python of this version: on the PATH, or one that pyenv has installed."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [*map(str, sorted(kept.glob(f"{version}.*/bin/python"))), shutil.which(f"python{version}")]
    for path in filter(None, found):
        if subprocess.run([path, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0:
            return Path(path)
    return None


def failures(python: Path, version: str, folder: Path, seconds: float) -> list[str]:
    """Failures under a Python; empty without any."""
    place = folder / version
    program = place / "bin" / "python"
    if not program.exists():
        subprocess.run([python, "-m", "venv", place], check=True)
    pip = [str(program), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "-e", str(ROOT)]
    subprocess.run(pip, check=True)
    work = place / "work"
    shutil.rmtree(work, ignore_errors=True)
    mark = hostile.fill(work, ROOT)
    yaml = str(ROOT / "config" / "pretrain_llama2_7b.yaml")
    check = place / "import_all.py"
    check.write_text(IMPORTS)
    commands = [
        [str(check), ",".join(OPTIONAL), *modules()],
        [str(ROOT / "pipeline_parallel.py"), "-yaml", yaml, "-evaluate", "y"],
        [str(ROOT / "pipeline_parallel.py"), "-yaml", yaml, "-dryrun", "n", "-check", "n", "-o", "solved.yaml",
         "--html", "page.html", "--png", "plan.png", "-t", "20"],
        [str(ROOT / "pipeline_parallel.py"), "--model", "llama2-7b", "--device", "h100-80g", "--world_size", "8",
         "--fix", "tp=2,pp=2", "-t", "5"],
        [str(ROOT / "parallel_tool.py"), "--yaml_path", yaml],
        [str(ROOT / "timeline_tool.py"), "--log_dir", str(ROOT / "log"), "--trace", "timeline.json"],
        *([str(place / "bin" / "taylor"), *words] for words in (["models"], ["devices"], ["rules"], ["--help"])),
    ]  # fmt: skip
    broken = []
    for command in commands:
        try:
            words = [str(program), *command]
            done = subprocess.run(words, cwd=work, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            broken.append(f"{' '.join(command[:4])}: did not end within {seconds:g} s")
            continue
        if done.returncode or "Traceback" in done.stderr:
            broken.append(f"{' '.join(command[:4])}: {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
    return [*broken, *([f"executed from the folder: {mark.read_text()}"] if mark.exists() else [])]


def main() -> int:
    """Try the oldest and the newest Python that are here, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", help="such as 3.12 (default: the oldest and the newest that are here)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "pythons")
    parser.add_argument("--seconds", type=float, default=600.0, help="limit of a command (default: %(default)s)")
    args = parser.parse_args()
    here = {version: path for version in SUPPORTED if (path := interpreter(version)) is not None}
    missing = [version for version in args.versions or SUPPORTED if version not in here]
    if missing:
        print(f"not on this machine, so not tried: Python {', '.join(missing)}")
    count = 0
    chosen = [version for version in args.versions if version in here] or ([] if args.versions else [*here][:1])
    if not args.versions and len(here) > 1:
        chosen.append([*here][-1])
    for version in chosen:
        found = failures(here[version], version, args.folder.resolve(), args.seconds)
        count += len(found)
        print(f"Python {version} ({here[version]}): {'all runs' if not found else ''}", *found, sep="\n  ", flush=True)
    return 1 if count or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
