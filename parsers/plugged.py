"""Launchers of plug-ins; see `taylor.base.plugins`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from taylor.base.console import log
from taylor.base.plugins import Group, Loaded, PlugIn, at_fault, failure, load_all, refuse_known
from taylor.parsers.launcher import Launcher

FIELDS = {"title": str, "suffixes": tuple, "telltale": re.Pattern, "plan_keys": frozenset}
"""Fields that every launcher states, with their types."""


@cache
def loaded_launchers(names: tuple[str, ...], forms: tuple[str, ...]) -> tuple[Loaded[Launcher], ...]:
    """Every plug-in of launchers; its entry point's name is the launcher's.

    Parameters
    ----------
    names, forms : tuple of str
        Names of Taylor's own launchers and of their export forms.
    """
    return load_all(Group.LAUNCHERS, lambda plugin, found: _accepted(plugin, found, names, forms))


def recognises(launcher: Launcher, path: Path, text: str) -> bool:
    """Return whether a launcher recognises a file; a plug-in's that fails at it, does not."""
    try:
        return launcher.recognises(path, text)
    except Exception as error:
        plugin = at_fault(error)
        if plugin is None:
            raise
        log.warning("%s is not asked for %s: %s", plugin, path, failure(error))
        return False


def _accepted(plugin: PlugIn, found: Any, names: Sequence[str], forms: Sequence[str]) -> Launcher:
    if not (isinstance(found, type) and issubclass(found, Launcher)):
        raise TypeError("must be a subclass of taylor.parsers.launcher.Launcher")
    launcher = found()
    if getattr(launcher, "name", None) != plugin.name:
        raise ValueError(f"the entry point is named {plugin.name!r}, its launcher {getattr(launcher, 'name', None)!r}")
    for name, kind in FIELDS.items():
        if not isinstance(getattr(launcher, name, None), kind):
            raise TypeError(f"{name} must be a {kind.__name__}")
    if not launcher.suffixes or not all(re.fullmatch(r"\.[a-z0-9]+", suffix) for suffix in launcher.suffixes):
        raise ValueError(f"suffixes must be in small letters with their dot, found {launcher.suffixes!r}")
    refuse_known(launcher.name, names, "launcher")
    for form in launcher.export_forms:
        refuse_known(form, forms, "export form")
    return launcher
