"""Processes of Taylor's own that import nothing from the folder in which a command is run.

Python puts the working folder before everything else for ``python -m`` and ``python -c``, so a file named `json.py`
there would be executed. ``-P`` prevents that from Python 3.11 on, ``-I`` from 3.4 on.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent
"""The folder that holds this package's folders: the checkout, or `taylor` in site-packages."""

NO_WORKING_FOLDER = "import sys; sys.path[:] = [entry for entry in sys.path if entry]\n"
"""First line of a program for ``python -c`` under an interpreter of the user's choice, whose PYTHONPATH counts."""

_START = """
import sys
import json
sys.path[:] = json.loads(sys.argv.pop(1))
import importlib.util
spec = importlib.util.spec_from_file_location("taylor", sys.argv.pop(1))
sys.modules["taylor"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["taylor"])
import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def module_command(module: str, *words: str) -> tuple[str, ...]:
    """The command that runs a module of this `taylor` in a new process, isolated from its working folder.

    The process imports from where this one does, less the working folder; the checkout comes last, so that no file
    beside the packages takes the name of one that Python or a library has.
    """
    package = str(sys.modules["taylor"].__file__)
    return (sys.executable, "-I", "-u", "-c", _START, json.dumps(import_path(sys.path)), package, module, *words)


def import_path(entries: Iterable[str]) -> list[str]:
    """Entries of `sys.path`, absolute, without the working folder, the checkout last."""
    here = os.getcwd()
    wanted = [os.path.abspath(entry) for entry in entries if entry]
    kept = [entry for entry in wanted if entry not in (here, str(PACKAGE))]
    return [*kept, *([str(PACKAGE)] if str(PACKAGE) in wanted else [])]


def command_without_folder(interpreter: str) -> str:
    """Words of a shell for an interpreter whose ``-m`` imports nothing from the working folder, from Python 3.11 on."""
    return shlex.quote(interpreter) + (" -P" if sys.version_info >= (3, 11) else "")


def isolate_path() -> None:
    """Leave out of the search path of programs what means the working folder: empty and relative entries.

    A program of that folder named `cbc` or `sbatch` would be run instead of the one that is installed.
    """
    entries = os.environ.get("PATH", "").split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(filter(os.path.isabs, entries)) or os.defpath


@cache
def isolate_processes() -> None:
    """Let processes that `multiprocessing` spawns, and its resource tracker, ignore the working folder.

    They are given this process's `sys.path` before they import anything but Python's own. Forked ones need nothing.
    """
    from multiprocessing import util  # it imports sockets, which most commands need not

    flags = util._args_from_interpreter_flags  # type: ignore[attr-defined]
    util._args_from_interpreter_flags = lambda: [*flags(), "-I"]  # type: ignore[attr-defined]


@cache
def isolate_programs() -> None:
    """Let Pyomo look for the program of a solver on the search path alone.

    Its own finder takes a file of that name in the working folder first and runs it (pyomo/common/fileutils.py,
    ``find_file``, 6.9: ``locations.append(os.getcwd())``).
    """
    try:
        from pyomo.common import fileutils
    except ImportError:
        return
    for kind, find in ((fileutils.Executable, fileutils.find_executable), (fileutils.Library, fileutils.find_library)):
        registry: Any = getattr(kind, "_manager", kind)  # up to Pyomo 6.9 the name is the registry itself
        registry._find = partial(_found_elsewhere, find)
        registry.rehash()


def _found_elsewhere(find: Callable[..., Any], name: str, **rest: Any) -> Any:
    """Find a file outside the working folder; Pyomo joins a whole path to that folder's, which leaves the path."""
    return find(name, cwd=os.path.isabs(name), **rest)


def isolate_solver(name: str) -> None:
    """As `isolate_programs`, where a solver is one that Pyomo runs; HiGHS needs no program."""
    if not name.strip().upper().startswith("HIGHS"):
        isolate_programs()
