"""User rules, loaded from Python files in the folder given by `--register_path`, and those of plug-ins."""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from taylor.base.errors import InputError
from taylor.base.plugins import Group, Loaded, PlugIn, load_all, refuse_known
from taylor.nd_search.rule import Rule
from taylor.nd_search.rules import built_in_rules

_FORMER_NAMES = frozenset(
    {
        "base",
        "cost_model",
        "dryrun",
        "nd_search",
        "parsers",
        "pipeline",
        "pipeline_solver",
        "profiling",
        "register",
        "report",
        "workflows",
    }
)
"""Packages that users' files could import by these names before they were parts of `taylor`."""


def load_user_rules(register_path: Path | None) -> tuple[Rule, ...]:
    """Rules of plug-ins, and of a user: `RULES` of every Python file in the folder and in its `rules/` sub-folder.

    Runs the files, so it is only called for a path that the user gave on the command line. In such a file
    `from nd_search.rules import Rule` means the same as `from taylor.nd_search.rules import Rule`.

    Raises
    ------
    InputError
        When the path is missing, or a file fails to load or contains something else than rules.
    """
    plugged = tuple(rule for each in loaded_rules() for rule in each.value or ())
    if register_path is None:
        return plugged
    if not register_path.is_dir():
        raise InputError("no such folder", file=register_path, field="--register_path")
    files = sorted(register_path.glob("*.py")) + sorted((register_path / "rules").glob("*.py"))
    own = [rule for file in files if file.name != "__init__.py" for rule in _rules_of(file)]
    names = {rule.name for rule in own}
    return (*(rule for rule in plugged if rule.name not in names), *own)


@cache
def loaded_rules() -> tuple[Loaded[tuple[Rule, ...]], ...]:
    """Every plug-in of rules."""
    return load_all(Group.RULES, _accepted)


def _accepted(plugin: PlugIn, found: Any) -> tuple[Rule, ...]:
    if not isinstance(found, (list, tuple)) or not found or not all(isinstance(rule, Rule) for rule in found):
        raise TypeError("must be a list of taylor.nd_search.rules.Rule")
    for rule in found:
        refuse_known(rule.name, [each.name for each in built_in_rules()], "rule")
    return tuple(found)


def _rules_of(file: Path) -> tuple[Rule, ...]:
    name = f"_user_rules_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # The built-ins of this module only, so that no other code's imports change.
    vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import_with_former_names}
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file may raise anything; the user gets the file and the reason
        raise InputError(
            f"does not load: {type(error).__name__}: {error}", file=file, cure="correct the file"
        ) from error
    finally:
        del sys.modules[name]
    rules = getattr(module, "RULES", None)
    if rules is None:
        return ()  # a register folder may hold Python files of other purpose
    if not isinstance(rules, (list, tuple)) or not all(isinstance(rule, Rule) for rule in rules):
        raise InputError("must be a list of taylor.nd_search.rules.Rule", file=file, field="RULES", value=rules)
    return tuple(rules)


def _import_with_former_names(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType | Any:
    """Import for a user's file: `__import__`, with the former names understood.

    A name that `taylor` does not have, such as a module of the user's own package `report`, is imported as usual.
    """
    top = name.partition(".")[0]
    if level or top not in _FORMER_NAMES or not _exists(f"taylor.{name}"):
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    module = importlib.import_module(f"taylor.{name}")
    if not fromlist:
        return sys.modules[f"taylor.{top}"]  # `import a.b` binds a
    return builtins.__import__(module.__name__, globals, locals, fromlist, 0)


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a parent that does not exist, or is no package
        return False
