"""A folder of files named like every module that Taylor imports, each of which says that it was executed."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

EXECUTED = "EXECUTED"

STARTS = ("sitecustomize", "usercustomize")
"""Modules that Python imports as it starts."""

DEPENDENCIES = (
    "dask", "dask_jobqueue", "dateutil", "distributed", "highspy", "httpx", "kiwisolver", "llvmlite", "matplotlib",
    "mindspore", "msgpack", "networkx", "numba", "numpy", "packaging", "pandas", "ply", "psutil", "psycopg", "pulp",
    "pydantic", "pydantic_core", "pyomo", "rich", "ruamel", "scipy", "setuptools", "shtab", "starlette", "tomli",
    "torch", "tornado", "typing_extensions", "uvicorn", "yaml",
)  # fmt: skip

_FILE = """\
with open({mark!r}, "a") as stream:
    stream.write(__name__ + "\\n")
raise SystemExit("a file of the user's folder was imported as " + __name__)
"""


PROGRAMS = ("cbc", "cplex", "glpsol", "gurobi_cl", "gurobi.sh", "highs", "latex", "qsub", "sbatch", "scip", "xpress")
"""Programs that a command may start, of solvers and of batch systems."""

SETTINGS = {".numba_config.yaml": "cache_dir: {folder}/cache\ndisable_jit: 1\n", "matplotlibrc": "text.usetex: True\n"}
"""Files that libraries read from the working folder."""


def surroundings(pictures: bool = False) -> dict[str, str]:
    """Environment of a machine on which nothing is as usual: search path, home, locale, terminal.

    Without a home matplotlib lists the machine's fonts at each start, which `pictures` avoid.
    """
    nowhere = "/dev/null/nowhere"
    home = {} if pictures else {"HOME": nowhere, "XDG_CACHE_HOME": nowhere, "XDG_CONFIG_HOME": nowhere}
    locale = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    return {"PATH": f":.:none:{os.environ['PATH']}:", "TERM": "dumb", "COLUMNS": "20", **home, **locale}


def own_names(root: Path) -> set[str]:
    """The checkout's own packages, `taylor` among them."""
    return {file.parent.name for file in root.glob("*/__init__.py")}


def imported_names(root: Path) -> set[str]:
    """The first words of what the sources import, wherever they do."""
    pattern = re.compile(r"^\s*(?:import|from)\s+(\w+)", re.MULTILINE)
    sources = (file for name in own_names(root) - {"tests"} for file in (root / name).rglob("*.py"))
    return {name for file in sources for name in pattern.findall(file.read_text(encoding="utf-8"))}


def fill(folder: Path, root: Path) -> Path:
    """Lay the files into a folder; returns the file that they write."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder.resolve() / EXECUTED
    names = {*sys.stdlib_module_names, *STARTS, *DEPENDENCIES, *own_names(root), *imported_names(root)}
    for name in names:
        (folder / f"{name}.py").write_text(_FILE.format(mark=str(mark)))
    (folder / "own.pth").write_text(f"import os; open({str(mark)!r}, 'a').write('own.pth')\n")
    for name in PROGRAMS:
        (folder / name).write_text(f"#!/bin/sh\necho {name} >> {mark}\n")
        (folder / name).chmod(0o755)
    for name, text in SETTINGS.items():
        (folder / name).write_text(text.format(folder=folder.resolve()))
    return mark
