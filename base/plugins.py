"""Plug-ins: objects that installed distributions name in the entry-point groups of `Group`.

Only the folders into which Python installs packages are looked at, so that nothing in a working folder is imported. A
plug-in that does not load is logged by name, and the command goes on without it.
"""

from __future__ import annotations

import logging
import site
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from taylor.base.errors import shortened

MAX_ENTRY_POINTS_BYTES = 2**20
"""Size of a distribution's ``entry_points.txt``, at most."""

log = logging.getLogger("taylor")  # the one of `base.console`, which asks here who is at fault

T = TypeVar("T")


class Group(str, Enum):
    """Entry-point groups, and so the kinds of plug-in."""

    LAUNCHERS = "taylor.launchers"
    DEVICES = "taylor.devices"
    MODELS = "taylor.models"
    RULES = "taylor.rules"
    SCHEDULES = "taylor.schedules"


@dataclass(frozen=True)
class PlugIn:
    """One entry point.

    Parameters
    ----------
    name, value : str
        Both sides of its line: ``name = "module:object"``.
    distribution, version : str
        What installs it.
    load : callable
        Imports the module and returns the object.
    """

    group: Group
    name: str
    value: str
    distribution: str
    version: str
    load: Callable[[], Any]

    @property
    def package(self) -> str:
        """The package at the top of its module's name."""
        return self.value.partition(":")[0].partition(".")[0].strip()

    def __str__(self) -> str:
        return f"plug-in {self.distribution} {self.version} ({self.group.value}: {self.name} = {self.value})"


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """Outcome of loading a plug-in.

    Parameters
    ----------
    value : object or None
        What it adds; None where it failed.
    problem : str
        Reason of a failure; empty where there is none.
    """

    plugin: PlugIn
    value: T | None = None
    problem: str = ""


def load_all(group: Group, accept: Callable[[PlugIn, Any], T]) -> tuple[Loaded[T], ...]:
    """Every plug-in of a group, loaded and checked; one that fails is logged as a warning.

    Parameters
    ----------
    accept : callable
        Returns what the plug-in adds, from the plug-in and its object; raises where the object is wrong.
    """
    return tuple(_loaded(plugin, accept) for plugin in installed(group))


def _loaded(plugin: PlugIn, accept: Callable[[PlugIn, Any], T]) -> Loaded[T]:
    try:
        return Loaded(plugin, accept(plugin, plugin.load()))
    except (Exception, SystemExit) as error:  # its code may raise anything; the command does not depend on it
        problem = failure(error)
        log.warning("%s is left out: %s; correct it, or `pip uninstall %s`", plugin, problem, plugin.distribution)
        return Loaded(plugin, problem=problem)


def failure(error: BaseException) -> str:
    """An error of a plug-in's code in one line."""
    return shortened(f"{type(error).__name__}: {' '.join(str(error).split())}", 300)


def refuse_known(name: str, known: Sequence[str], what: str) -> None:
    """Refuse a name that Taylor itself has.

    Raises
    ------
    ValueError
        When it is one of `known`.
    """
    if name in known:
        raise ValueError(f"{what} {name!r} comes with Taylor, and no plug-in replaces it; give it another name")


@cache
def installed(group: Group) -> tuple[PlugIn, ...]:
    """The plug-ins of a group, by distribution and name; imports none of them."""
    return tuple(plugin for plugin in _all_installed(tuple(map(str, package_folders()))) if plugin.group is group)


def package_folders() -> list[Path]:
    """Folders into which this Python installs packages, in the order in which it imports from them."""
    places = {*site.getsitepackages(), site.getusersitepackages()}
    return [Path(entry) for entry in dict.fromkeys(sys.path) if entry in places]


@cache
def _all_installed(folders: tuple[str, ...]) -> tuple[PlugIn, ...]:
    found: dict[str, list[PlugIn]] = {}
    for folder in folders:
        for info in sorted(Path(folder).glob("*.dist-info")):
            # importlib.metadata takes longer to import than all of this; few installations have a plug-in.
            if _names_a_group(info / "entry_points.txt"):
                name, plugins = _entry_points(info)
                found.setdefault(name, plugins)  # a distribution further on is not the one that Python imports
    return tuple(plugin for name in sorted(found) for plugin in found[name])


def _names_a_group(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            text = stream.read(MAX_ENTRY_POINTS_BYTES)
    except OSError:
        return False
    return any(b"[" + group.value.encode() + b"]" in text for group in Group)


def _entry_points(info: Path) -> tuple[str, list[PlugIn]]:
    from importlib.metadata import Distribution

    distribution = Distribution.at(info)
    name, version = distribution.metadata["Name"], distribution.version
    groups = {group.value: group for group in Group}
    entries = [entry for entry in distribution.entry_points if entry.group in groups]
    entries.sort(key=lambda entry: (entry.group, entry.name))
    return name, [PlugIn(groups[entry.group], entry.name, entry.value, name, version, entry.load) for entry in entries]


def at_fault(error: BaseException) -> PlugIn | None:
    """The plug-in in whose code an error was raised or passed on; None where it is none's."""
    known = {plugin.package: plugin for group in Group for plugin in installed(group)}
    frame = error.__traceback__ if known else None
    found = None
    while frame is not None:
        found = known.get(str(frame.tb_frame.f_globals.get("__name__")).partition(".")[0], found)
        frame = frame.tb_next
    return found
