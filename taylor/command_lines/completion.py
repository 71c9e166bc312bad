"""Command line: completion of commands, flags and their values for a shell."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from taylor.base.console import run_command, start_logging
from taylor.command_lines.arguments import CommandParser
from taylor.command_lines.main import SUBCOMMANDS
from taylor.command_lines.main import build_parser as taylor_parser

SHELLS = ("bash", "zsh", "tcsh")

SCRIPTS = {
    "parallel-tool": "parallel_tool",
    "pipeline-tool": "pipeline_tool",
    "pipeline-parallel": "pipeline_parallel",
    "timeline-tool": "timeline_tool",
}
"""Module of each console command beside `taylor`."""


def build_parser(program: str = "taylor completion") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Print what makes a shell complete commands, flags and their values with the Tab key. For bash: "
        'eval "$(taylor completion bash)", typed or in ~/.bashrc. For zsh: write it to a file _taylor in a folder of '
        "$fpath.",
        "bash > ~/.local/share/bash-completion/completions/taylor",
    )
    group = parser.add_argument_group("completion")
    group.add_argument("shell", choices=SHELLS, help="the shell")
    group.add_argument(
        "command",
        nargs="?",
        choices=("taylor", *SCRIPTS),
        default="taylor",
        help="the command that is completed (default: %(default)s)",
    )
    return parser


def command_parser(command: str) -> argparse.ArgumentParser:
    """Parser of a console command, `taylor` with all its subcommands."""
    if command != "taylor":
        script = importlib.import_module(f"taylor.command_lines.{SCRIPTS[command]}")
        return _with_names(script.build_parser(command))
    whole = taylor_parser()
    subparsers = whole.add_subparsers()
    second: dict[str, argparse._SubParsersAction[argparse.ArgumentParser]] = {}
    for name, subcommand in SUBCOMMANDS.items():
        tool = importlib.import_module(f"taylor.command_lines.{subcommand.module}")
        parent = _with_names(tool.build_parser(f"taylor {name}"), of=name)
        first, _, word = name.partition(" ")
        if word and first not in second:
            second[first] = subparsers.add_parser(first, help=f"{first} …", add_help=False).add_subparsers()
        places = second[first] if word else subparsers
        places.add_parser(word or name, help=subcommand.purpose, parents=[parent], add_help=False)
    return whole


def _with_names(parser: CommandParser, of: str = "") -> CommandParser:
    """Parser with the registered names for values, which the command itself looks up by its own rules."""
    from taylor.nd_search.rules import built_in_rules
    from taylor.register.registry import Registry

    registry = Registry.load()
    known = {
        "model": registry.model_names(),
        "device": registry.device_names(),
        "disable_rule": [rule.name for rule in built_in_rules()],
    }
    listed = {"models": "model", "devices": "device", "rules": "disable_rule"}.get(of)
    # argparse has no public way to ask a parser for its arguments.
    for action in parser._actions:
        if names := known.get(listed if listed and action.dest == "name" else action.dest):
            action.choices = names
    return parser


def run(arguments: Sequence[str], program: str = "taylor completion") -> None:
    """Parse, print."""
    args = build_parser(program).parse(arguments)
    import shtab

    print(shtab.complete(command_parser(args.command), shell=args.shell))


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
