"""Start of a training file for a dry-run: program, interpreter and environment."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.base.isolated import NO_WORKING_FOLDER
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.launcher import Launcher, Program, Tools

INTERPRETER = "TAYLOR_DRYRUN_PYTHON"
"""Environment variable (or entry of the environment's JSON): the Python that has MindSpore, where it is
not the one that runs the tool."""

SIMULATION = {
    "MS_SIMULATION_LEVEL": "1",
    "MS_MEMORY_STATISTIC": "1",
    "GLOG_v": "3",
    "ENABLE_LAZY_INLINE_NO_PIPELINE": "1",
    "MS_ALLOC_CONF": "memory_tracker:True",
}
"""Variables that make MindSpore compile and count instead of run; the environment's JSON goes before them."""

CHOOSES_PROGRAM = re.compile(
    rf"{INTERPRETER}|PATH|PYTHON\w*|LD_\w+|DYLD_\w+|BASH_ENV|ENV|IFS|SHELLOPTS|BASHOPTS|GCONV_PATH", re.IGNORECASE
)
"""Variables that name a program to start or put code into one."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROBE = (
    "import importlib.util as u, importlib.metadata as m, sys\n"
    "spec = u.find_spec('mindspore')\n"
    "if spec is None: sys.exit(3)\n"
    "try: print(m.version('mindspore'))\n"
    "except m.PackageNotFoundError: print('unpackaged')\n"
)
_PROBE_S = 60.0


@dataclass(frozen=True)
class Starter:
    """Starts dry-runs of one launcher's training files.

    Parameters
    ----------
    launcher : Launcher
        Whose files are started.
    tools : Tools
        Python of the children; the launcher's program, where it was found.
    environment : mapping
        The environment's JSON.
    """

    launcher: Launcher
    tools: Tools = Tools(sys.executable)
    environment: Mapping[str, str] | None = None

    @classmethod
    def find(
        cls,
        launcher: Launcher,
        program: Path | None,
        env_json: Path | None,
        register_path: Path | None,
        *,
        env_named: bool = True,
    ) -> Starter:
        """Settle what can be started.

        Parameters
        ----------
        program : Path or None
            The launcher's program or the folder that holds it.
        env_named : bool
            The user named `env_json`; one that merely lies in the working folder sets no program.

        Raises
        ------
        InputError
            When the environment's JSON is bad.
        """
        environment = read_environment(env_json)
        if not env_named:
            idle = [name for name in environment if CHOOSES_PROGRAM.fullmatch(name)]
            if idle:
                log.warning(
                    "%s: %s not taken: this file was not named, so it sets no program; name it with --env_json",
                    env_json,
                    ", ".join(idle),
                )
            environment = {name: value for name, value in environment.items() if name not in idle}
        interpreter = environment.get(INTERPRETER) or os.environ.get(INTERPRETER) or sys.executable
        if interpreter != sys.executable:
            source = env_json if INTERPRETER in environment else "the environment"
            log.info("dry-runs: Python is %s, as %s of %s says", interpreter, INTERPRETER, source)
        tools = Tools(
            interpreter,
            find_program(launcher.program, program),
            register_path.resolve() if register_path is not None and register_path.is_dir() else None,
        )
        return cls(launcher, tools, environment)

    def settings(self, strategy: Strategy, stage: int) -> dict[str, str]:
        """The variables that a dry-run of one stage is given: simulation, the user's, and its first rank.

        Ranks are numbered stage by stage, so stage s begins at rank s · world / pp.
        """
        world = strategy.world_size
        return {
            **SIMULATION,
            **(self.environment or {}),
            "RANK_SIZE": str(world),
            "RANK_ID": str(stage * (world // strategy.pp)),
        }

    def full_environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        """This process's environment with the settings over it; the program's folder can be imported from."""
        environment = {**os.environ, **settings}
        if self.tools.program is not None:
            earlier = environment.get("PYTHONPATH")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(self.tools.program.parent), earlier)))
        return environment

    def mindspore_version(self) -> str | None:
        """The version of MindSpore that the children would import; None when there is none."""
        environment = self.full_environment(self.environment or {})
        return _mindspore_version(
            self.tools.interpreter, environment.get("PYTHONPATH", ""), environment.get("PATH", "")
        )

    def fingerprint(self) -> str:
        """Dependences of a result other than file and environment: interpreter, MindSpore, the program's sources."""
        digest = hashlib.sha256()
        for part in (self.tools.interpreter, self.mindspore_version() or "", str(self.tools.register_path)):
            digest.update(part.encode() + b"\0")
        if self.tools.program is not None and self.launcher.program is not None:
            digest.update(_sources(self.tools.program, self.launcher.program.package).encode())
        return digest.hexdigest()


def find_program(program: Program | None, path: Path | None) -> Path | None:
    """A launcher's program at a path or in it; None when there is none."""
    if program is None or path is None:
        return None
    for candidate in (path, path / program.file):
        if candidate.is_file() and candidate.suffix == ".py":
            return candidate.resolve()
    return None


def read_environment(path: Path | None) -> dict[str, str]:
    """The variables of a JSON file; none when the file is missing.

    Raises
    ------
    InputError
        When it is not an object of names and plain values.
    """
    if path is None or not path.exists():
        return {}
    try:
        data = json.loads(read_text(path, limit_bytes=2**20))
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON: {error}", file=path) from None
    if not isinstance(data, dict):
        raise InputError("must be a JSON object of variables", file=path, value=data)
    for name, value in data.items():
        if not _NAME.fullmatch(name):
            raise InputError("is not the name of an environment variable", file=path, field=name)
        if not isinstance(value, (str, int, float)) or isinstance(value, bool) or "\0" in str(value):
            raise InputError("must be a text or a number", file=path, field=name, value=value)
    return {name: str(value) for name, value in data.items()}


@lru_cache(maxsize=16)
def _mindspore_version(interpreter: str, python_path: str, path: str) -> str | None:
    environment = {**os.environ, "PYTHONPATH": python_path, "PATH": path}
    try:
        done = subprocess.run(
            [interpreter, "-c", NO_WORKING_FOLDER + _PROBE],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_PROBE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _sources(program: Path, package_name: str) -> str:
    """Sizes and times of the Python files in the program's package, and its own text."""
    digest = hashlib.sha256(program.read_bytes())
    package = program.parent / package_name
    for source in sorted(package.rglob("*.py")) if package.is_dir() else []:
        state = source.stat()
        digest.update(f"{source.relative_to(package)} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()
