"""This installation: versions, compiled kernels, solvers, extras and plug-ins, for a person or a report of a fault."""

from __future__ import annotations

import io
import platform
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from taylor.base.compiled import are_kept
from taylor.base.isolated import PACKAGE, isolate_programs
from taylor.base.plugins import Loaded
from taylor.nd_search.user_rules import loaded_rules
from taylor.parsers.registry import plugged_launchers
from taylor.pipeline.plugged import loaded_schedules
from taylor.pipeline_solver.milp.cbc import cbc_path
from taylor.register.registry import loaded_registrations

SCHEMA = "taylor.doctor/1"
DISTRIBUTION = "taylor-parallel"
EXTRAS = {
    "cluster": "rankings on the machines of a Dask cluster, or below Slurm, PBS and LSF",
    "docs": "the documentation site, built without a network (`make docs`)",
    "kubernetes": "rankings on the pods of a Kubernetes cluster",
    "mcp": "`taylor mcp`: the server by which agents ask for plans",
    "mindspore": "dry-runs of MindFormers files by MindSpore itself",
    "postgres": "the history of runs in a PostgreSQL database that people share",
    "serve": "`taylor serve`: the local page",
    "test": "the tests, and the tools that check the sources",
    "torch": "dry-runs of Megatron and Hugging Face jobs by torch, on fake tensors",
}
"""What each extra of the distribution adds, by its name in pyproject.toml."""

FOUND, MISSING = "found", "missing"
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[([a-z,]+)\])?")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")

Plugged = Callable[[], Sequence[Loaded[Any]]]
PLUGGED: tuple[Plugged, ...] = (
    plugged_launchers,
    partial(loaded_registrations, "devices"),
    partial(loaded_registrations, "models"),
    loaded_rules,
    loaded_schedules,
)
"""What loads the plug-ins of each group."""


@dataclass(frozen=True)
class Package:
    """A distribution that Taylor can use; `version` is None where it is not installed."""

    name: str
    version: str | None


@dataclass(frozen=True)
class Extra:
    """Optional dependencies.

    Parameters
    ----------
    adds : str
        What an installation with them can do more.
    missing : tuple of str
        Distributions of it that are not installed; empty where all are.
    """

    name: str
    adds: str
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Solver:
    """A MILP solver: `found` with its version or program, or `missing` with the cure."""

    name: str
    state: str
    detail: str


@dataclass(frozen=True)
class PlugInState:
    """A plug-in, and why it is left out; `problem` is empty where it works."""

    group: str
    name: str
    value: str
    distribution: str
    version: str
    problem: str


@dataclass(frozen=True)
class Diagnosis:
    """State of this installation.

    Parameters
    ----------
    kernels : bool or None
        The solver's kernels are on the disk; None where none are kept.
    kernel_folder : str or None
        Folder of those of the search tree.
    extras : tuple of Extra
        Empty where `installed` is False: then the extras are not known.
    installed : bool
        The distribution is installed, and not only found in a checkout.
    """

    version: str
    python: str
    platform: str
    location: str
    installed: bool
    packages: tuple[Package, ...]
    kernels: bool | None
    kernel_folder: str | None
    solvers: tuple[Solver, ...]
    extras: tuple[Extra, ...]
    plugins: tuple[PlugInState, ...]

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as JSON data, its schema first."""
        return {"schema": SCHEMA, **asdict(self)}


def diagnose(version: str) -> Diagnosis:
    """Look at this installation; sends nothing anywhere.

    Parameters
    ----------
    version : str
        Taylor's own.
    """
    from taylor.pipeline_solver.tree.branch_and_cut import KERNELS_OF_LIMITED

    needed, extras = _requirements()
    folder = getattr(getattr(KERNELS_OF_LIMITED[0], "stats", None), "cache_path", None)
    return Diagnosis(
        version=version,
        python=f"{platform.python_version()} ({sys.executable})",
        platform=platform.platform(),
        location=str(PACKAGE),
        installed=_version(DISTRIBUTION) is not None,
        packages=tuple(Package(name, _version(name)) for name in needed),
        kernels=are_kept(KERNELS_OF_LIMITED),
        kernel_folder=None if folder is None else str(folder),
        solvers=_solvers(),
        extras=tuple(
            Extra(name, EXTRAS.get(name, ""), tuple(each for each in wanted if _version(each) is None))
            for name, wanted in sorted(extras.items())
        ),
        plugins=tuple(_state(each) for load in PLUGGED for each in load()),
    )


def _requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Names of the distributions that Taylor needs, and those of each extra, as installed."""
    needed: list[str] = []
    extras: dict[str, list[str]] = {}
    try:
        stated = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return needed, extras
    inner: dict[str, list[str]] = {}
    for line in stated:
        requirement, extra = _REQUIREMENT.match(line), _EXTRA.search(line)
        if requirement is None:
            continue
        name, further = requirement[1], requirement[2]
        if extra is None:
            needed += [name] if _applies(line) else []
        elif name == DISTRIBUTION:
            inner.setdefault(extra[1], []).extend((further or "").split(","))
        else:
            extras.setdefault(extra[1], []).append(name)
    for name, others in inner.items():
        extras[name] = [*(each for other in others for each in extras.get(other, [])), *extras.get(name, [])]
    return sorted(needed), extras


def _applies(line: str) -> bool:
    """Return whether a requirement is one of this Python's: the only other marker is the Python version."""
    marker = re.search(r"python_version\s*<\s*['\"](\d+)\.(\d+)['\"]", line)
    return marker is None or sys.version_info < (int(marker[1]), int(marker[2]))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _solvers() -> tuple[Solver, ...]:
    highs, cbc = _version("highspy"), cbc_path()
    found = [
        Solver("HiGHS", FOUND if highs else MISSING, f"highspy {highs}" if highs else "pip install highspy"),
        Solver("CBC", FOUND if cbc else MISSING, cbc or "pip install 'pulp[cbc]'"),
    ]
    try:
        from taylor.pipeline_solver.milp.pyomo_solver import KNOWN_SOLVERS
    except ImportError as error:
        return (*found, Solver("Pyomo", MISSING, f"{error}; pip install pyomo"))
    isolate_programs()
    return (*found, *map(_by_pyomo, KNOWN_SOLVERS))


def _by_pyomo(name: str) -> Solver:
    import pyomo.environ as pyo
    from pyomo.common.log import LoggingIntercept

    try:
        with LoggingIntercept(io.StringIO(), "pyomo"):  # Pyomo logs each one that is not there
            usable = bool(pyo.SolverFactory(name).available(exception_flag=False))
    except Exception:  # noqa: BLE001  (an interface that fails on this call cannot be used)
        usable = False
    return Solver(name, FOUND, f"by Pyomo: -solver_name {name}") if usable else Solver(name, MISSING, "not installed")


def _state(each: Loaded[Any]) -> PlugInState:
    plugin = each.plugin
    return PlugInState(plugin.group.value, plugin.name, plugin.value, plugin.distribution, plugin.version, each.problem)


def doctor_lines(found: Diagnosis) -> list[tuple[str, str]]:
    """The diagnosis as lines of a name and a text."""
    lines = [
        ("taylor", f"{found.version}, in {found.location}{'' if found.installed else ', not installed'}"),
        ("python", f"{found.python}, {found.platform}"),
        ("packages", ", ".join(f"{each.name} {each.version or 'is missing'}" for each in found.packages)),
        ("kernels", _kernel_text(found)),
        *(("solver", f"{each.name}: {each.detail}") for each in found.solvers if each.state == FOUND),
        ("no solver", ", ".join(each.name for each in found.solvers if each.state == MISSING)),
    ]
    for extra in found.extras:
        state = f"`pip install '{DISTRIBUTION}[{extra.name}]'` adds" if extra.missing else "installed:"
        lines.append(("extra", f"{extra.name}: {state} {extra.adds}"))
    if not found.installed:
        lines.append(("extra", "not known in a checkout that is not installed: `pip install -e .`"))
    for plugin in found.plugins:
        state = f"left out: {plugin.problem}" if plugin.problem else "works"
        where = f"{plugin.group}: {plugin.name} = {plugin.value}"
        lines.append(("plug-in", f"{plugin.distribution} {plugin.version} ({where}): {state}"))
    if not found.plugins:
        lines.append(("plug-in", "none installed"))
    return lines


def _kernel_text(found: Diagnosis) -> str:
    if found.kernels is None:
        return "compiled in every process: no folder to keep them in (NUMBA_CACHE_DIR names one), or NUMBA_DISABLE_JIT"
    folder = Path(found.kernel_folder or "")
    where = f"in {folder}" if found.kernel_folder else ""
    return f"compiled, {where}" if found.kernels else f"not compiled yet; `taylor warm` compiles them, {where}"
