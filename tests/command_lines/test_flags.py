"""Every flag of every command has the default, the type and the values of the recorded table."""

from __future__ import annotations

import argparse
import importlib
import os
from typing import Any

import yaml

from taylor.command_lines.arguments import Default
from taylor.command_lines.main import SUBCOMMANDS
from tests.conftest import ROOT

CORES = 777
TABLE = ROOT / "tests" / "command_lines" / "flags.yaml"


def row(action: argparse.Action) -> str:
    """Default of a flag, and what it takes where that is not any text."""
    default: Any = "CORES" if action.default == CORES else action.default
    words = [f"{type(default).__name__}({default!s})" if isinstance(default, Default) else f"{default!r}"]
    if action.type is not None:
        words.append(getattr(action.type, "__name__", repr(action.type)))
    if action.choices is not None:
        words.append(f"one of {', '.join(map(str, action.choices))}")
    for name in ("nargs", "const", "required"):
        plain = name == "required" and action.required == (not action.option_strings and action.nargs != "?")
        if getattr(action, name) is not None and not plain:
            words.append(f"{name} {getattr(action, name)}")
    return "; ".join(words)


def rows_of(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Rows of the flags that a command does not share with all others."""
    shared = {"help", "config", "version", "verbose", "quiet", "json"}
    return {
        f"{' '.join(action.option_strings) or action.dest}": row(action)
        for action in parser._actions
        if action.dest not in shared
    }


def test_every_flag_has_the_default_and_the_values_of_the_table(monkeypatch):
    for name in ("TAYLOR_CLUSTER", "TAYLOR_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: CORES)
    found = {}
    for name, command in SUBCOMMANDS.items():
        parser = importlib.import_module(f"taylor.command_lines.{command.module}").build_parser(f"taylor {name}")
        found[name] = rows_of(parser)
        args = {action.dest: action for action in parser._actions}
        assert [args[one].default for one in ("config", "verbose", "quiet", "json")] == [None, False, False, False]
    assert found == yaml.safe_load(TABLE.read_text(encoding="utf-8"))


def test_the_environment_names_cluster_and_store(monkeypatch):
    monkeypatch.setenv("TAYLOR_CLUSTER", "local:2")
    monkeypatch.setenv("TAYLOR_STORE", "runs.sqlite")
    for name, flags in (("solve", ("cluster", "store")), ("history", ("store",)), ("compare", ("store",))):
        module = importlib.import_module(f"taylor.command_lines.{SUBCOMMANDS[name].module}")
        parser = module.build_parser()
        assert [parser.get_default(flag) for flag in flags] == ["local:2", "runs.sqlite"][-len(flags) :]


def test_where_the_number_of_cores_is_unknown_one_process_works(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    for name in ("solve", "rank", "serve"):
        module = importlib.import_module(f"taylor.command_lines.{SUBCOMMANDS[name].module}")
        assert module.build_parser().get_default("workers") == 1
