"""Commands on machines that lack something: each does its work, or says in words what it lacks."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import ROOT

GIB = 2**30
OUTSIDE_LACKS = (0, 2, 5)
"""Exit codes where an output cannot be written, or a process not be started: done but for views, and refused."""

COMMANDS = {
    "evaluate": ("pipeline_parallel", "-yaml", "{config}/pretrain_llama2_7b.yaml", "-evaluate", "y"),
    "solve": (
        "pipeline_parallel", "-yaml", "{config}/pretrain_llama2_7b.yaml", "-layer_ratio", "0.4", "-b_ratio", "1.84",
        "-head_loss", "1.5", "-ra_ratio", "1", "-o", "solved.yaml", "--result_json", "result.json", "-check", "n",
        "-dryrun", "n", "--html", "report.html", "--png", "plan.png",
    ),
    "search": ("parallel_tool", "--yaml_path", "{config}/pretrain_llama2_7b.yaml", "--profile_num", "2"),
    "rank": ("pipeline_tool", "--yaml_path", "{files}", "--time_limit", "5", "--topn", "1", "--workers", "2"),
    "timeline": ("timeline_tool", "--log_dir", "{root}/log", "--trace", "timeline.json"),
    "cluster": ("pipeline_tool", "--yaml_path", "{files}", "--time_limit", "5", "--topn", "1", "--cluster", "local:1"),
    "layerwise": ("taylor", "layerwise", "--costs", "estimate", "--model", "llama2-7b", "--device", "h100-80g",
                  "--world_size", "8", "--seq", "4096", "--gbs", "16", "--micro_batches", "4"),
    "lengths": ("taylor", "lengths", "{config}/finetune_llama3_70b_lora.sh", "--lengths",
                "{config}/sample_lengths.csv", "--scenarios", "2"),
    "calibrate": ("taylor", "calibrate", "{config}/measured_runs.csv", "--device", "h100-80g", "-o", "mine.yaml"),
    "tune": ("taylor", "tune", "--shell_path", "{config}/pretrain_llama3_70b.sh", "--dry"),
    "devices": ("taylor", "devices"),
    "doctor": ("taylor", "doctor"),
}  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """A machine that is not as usual.

    Parameters
    ----------
    environment : dict
        Variables, in which ``{place}`` stands for the folder of the test.
    prepare : callable
        Done in the process of the command, before it.
    codes : tuple of int
        Exit codes that are right.
    disk : str
        Of the working folder: ``full``, ``ro`` (read-only), or as usual.
    """

    environment: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] | None = None
    codes: tuple[int, ...] = (0,)
    disk: str = ""


def _limit(name: int, most: int) -> None:
    resource.setrlimit(name, (most, most))


def _closed(*numbers: int) -> None:
    for number in numbers:
        os.close(number)


def _onto(path: str, number: int) -> None:
    os.dup2(os.open(path, os.O_WRONLY), number)


def _locale(name: str) -> dict[str, str]:
    return {"LC_ALL": name, "LANG": name, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


MACHINES = {
    "no home": Machine({"HOME": "/dev/null/nowhere"}),
    "a home that is a file": Machine({"HOME": "{place}/file", "XDG_CACHE_HOME": "{place}/file"}),
    "the C locale": Machine(_locale("C")),
    "a locale that there is not": Machine(_locale("xx_XX.utf-99")),
    "a terminal of one column": Machine({"COLUMNS": "1", "LINES": "1", "TERM": "nonsense"}),
    "a GiB of memory": Machine(prepare=partial(_limit, resource.RLIMIT_AS, GIB), codes=OUTSIDE_LACKS),
    "few open files": Machine(prepare=partial(_limit, resource.RLIMIT_NOFILE, 40), codes=OUTSIDE_LACKS),
    "no space for any file": Machine(prepare=partial(_limit, resource.RLIMIT_FSIZE, 0), codes=OUTSIDE_LACKS),
    "a full disk": Machine(disk="full", codes=OUTSIDE_LACKS),
    "a disk that is read only": Machine(disk="ro", codes=OUTSIDE_LACKS),
    "no folder for temporary files": Machine({"TMPDIR": "/dev/null/nowhere"}),
    "no input": Machine(prepare=partial(_closed, 0)),
    "no output": Machine(prepare=partial(_closed, 1)),
    "an output on a full disk": Machine(prepare=partial(_onto, "/dev/full", 1), codes=OUTSIDE_LACKS),
}


PAIRS = [
    (lacking, name)
    for at, lacking in enumerate(MACHINES)
    for number, name in enumerate(COMMANDS)
    if (at + number) % 4 == 0 or "TAYLOR_ALL_MACHINES" in os.environ
]
"""Each machine with some commands, unless all are asked for: minutes."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a working folder, candidates and a file."""
    for name in ("work", "files"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "config" / "pretrain_llama2_7b.yaml", tmp_path / "files")
    (tmp_path / "file").write_text("no folder")
    return tmp_path


@contextmanager
def mounted(disk: str, folder: Path) -> Iterator[None]:
    """A folder on a small file system of its own, full or read-only, where one may be mounted."""
    if not disk:
        yield
        return
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        with suppress(OSError), open(folder / "fill", "wb", buffering=0) as stream:
            while True:
                stream.write(b"x" * 512)
        if disk == "ro":
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def run(machine: Machine, name: str, place: Path) -> subprocess.CompletedProcess[str]:
    script, *rest = (word.format(config=ROOT / "config", root=ROOT, files=place / "files") for word in COMMANDS[name])
    program = ROOT / "taylor" / "__main__.py" if script == "taylor" else ROOT / f"{script}.py"
    own = {key: value.format(place=place) for key, value in machine.environment.items()}
    with mounted(machine.disk, place / "work"):
        return subprocess.run(
            [sys.executable, str(program), *rest], cwd=place / "work",
            env={**os.environ, "PYTHONPATH": str(ROOT), **own}, capture_output=True, text=True, timeout=600,
            preexec_fn=machine.prepare, errors="replace",
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("lacking", "name"), PAIRS)
def test_a_command_does_its_work_or_says_what_is_lacking(place: Path, lacking: str, name: str) -> None:
    machine = MACHINES[lacking]
    done = run(machine, name, place)
    assert done.returncode in machine.codes, done.stderr[-2000:]
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    assert done.returncode == 0 or "ERROR" in done.stderr
