"""The commands that the READMEs and the task pages print, typed as they stand, in both languages."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.reliability.campaign import ROOT, TOOLS, Figure, Part, Portion, Result, Sized, chosen, faults_of, total

PAGES = {"README.md": "README.zh-CN.md"} | {
    f"docs/tasks/{page.name}": f"docs/zh/{page.name}" for page in sorted((ROOT / "docs" / "tasks").glob("*.md"))
}
"""Every English page and its Chinese twin, in the order in which they are typed."""

ELSEWHERE = ("make", "pip", "source")
"""Commands that install, and those that print where; a test cannot run the test suite."""

SECONDS = 1800.0

SHIPPED_SCRIPT = "config/pretrain_llama3_70b.sh"
"""Substitute for a script that a slow command would write, where it is not typed."""

_BLOCK = re.compile(r"^```(?:sh|bash|shell)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def portions(share: float = 1.0) -> list[Portion]:
    """One portion: the commands build on each other's files. A small share leaves the rankings out."""
    return [Portion("typed", typed, {"most_seconds": SECONDS, "quick": share < 1})]


def commands_of(page: str) -> list[list[str]]:
    """Every command of a page's shell blocks as words, comments and continuations taken out."""
    lines = [line for block in _BLOCK.findall(page) for line in block.replace("\\\n", " ").splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [line for line in words if line]


def is_slow(words: Sequence[str]) -> bool:
    """Return whether a command solves many candidates, or runs stages on fake tensors."""
    return not {"pipeline_tool.py", "rank", "--full", "--model", "torch"}.isdisjoint(words)


def is_at_hand(words: Sequence[str]) -> bool:
    """Return whether what a command needs is installed: the dry-run on fake tensors is an extra."""
    return "torch" not in words or importlib.util.find_spec("torch") is not None


def prepare(folder: Path, compiled: bool = False) -> None:
    """A fresh clone: the files that the repository holds, as they stand now, and nothing else.

    Parameters
    ----------
    compiled : bool
        With the kernels that numba has compiled here, which a clone else compiles once.
    """
    if not (ROOT / ".git").exists():  # an archive of the sources
        made = shutil.ignore_patterns(".*", "build", "pipeline_output", "__pycache__")
        shutil.copytree(ROOT, folder, ignore=made, dirs_exist_ok=True)
        return
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        target = folder / name
        if (ROOT / name).is_file():  # one that was removed and not yet committed is listed too
            target.parent.mkdir(parents=True, exist_ok=True)
            # Numba takes a kernel that it kept where the source has its time and size.
            shutil.copy2(ROOT / name, target)
            if compiled and name.endswith(".py"):
                for kept in (ROOT / name).parent.glob(f"__pycache__/{target.stem}.*.nb[ci]"):
                    (target.parent / "__pycache__").mkdir(exist_ok=True)
                    shutil.copy2(kept, target.parent / "__pycache__" / kept.name)


def type_command(words: Sequence[str], folder: Path, most_seconds: float) -> tuple[int, str]:
    """Run one command of a README in a fresh clone; its exit code and what it said."""
    # `python` and `taylor` as behind `source .venv/bin/activate`, on the clone's code.
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": programs, "PYTHONPATH": str(folder)}
    command = [shutil.which(words[0], path=programs) or words[0], *words[1:]]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=most_seconds)
    return done.returncode, done.stdout + done.stderr


def typed(most_seconds: float = SECONDS, quick: bool = False) -> Result:
    """Type every command of the English pages, in their order; the Chinese ones must print the same commands."""
    english: list[list[str]] = []
    found: list[str] = []
    for page, twin in PAGES.items():
        own, other = (commands_of((ROOT / name).read_text(encoding="utf-8")) for name in (page, twin))
        english += own
        found += [] if own == other else [f"{page} and {twin} print other commands: {own} and {other}"]
    run, seconds = 0, []
    with tempfile.TemporaryDirectory(prefix="readme-") as clone:
        folder = Path(clone)
        prepare(folder, compiled=quick)
        for words in english:
            if words[0] in ELSEWHERE or not is_at_hand(words) or (quick and is_slow(words)):
                for flag, name in zip(words, words[1:], strict=False):
                    if flag == "-o" and name.endswith(".sh"):
                        shutil.copy(folder / SHIPPED_SCRIPT, folder / name)
                continue
            began = time.monotonic()
            code, text = type_command(words, folder, most_seconds)
            seconds.append(round(time.monotonic() - began, 1))
            run += 1
            if code or "Traceback" in text:
                found.append(f"{' '.join(words)}: exit code {code}: {text[-500:]}")
    return {"commands": run, "seconds": seconds, "faults": found}


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table."""
    part = chosen(results, "typed")
    wrong = len(faults_of(part))
    return [
        Figure(
            "surface: commands of the pages", "executed, English and Chinese",
            f"{total(part, 'commands')} commands, the same in both languages, {wrong} faults",
            not wrong,
            "typed in their order in a fresh clone; `make`, `pip` and `source` apart",
        )
    ]  # fmt: skip


PART = Part(
    "commands", portions, figures, at_once=1, nightly=0.5, table=Sized(1.0, minutes=3),
    sources=(*TOOLS, "taylor/command_lines", "benchmarks/reliability/commands.py", *PAGES, *PAGES.values()),
)  # fmt: skip
