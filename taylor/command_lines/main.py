"""The command `taylor`: one name for all of Taylor's commands."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import taylor
from taylor.base.console import run_command, start_logging
from taylor.base.errors import EXIT_BAD_INPUT, InputError, shortened
from taylor.base.near import did_you_mean


@dataclass(frozen=True)
class Subcommand:
    """A subcommand of `taylor`.

    Parameters
    ----------
    module : str
        Module of `taylor.command_lines` whose ``run(arguments, program)`` does the work.
    purpose : str
        Its purpose, in one line of the help.
    """

    module: str
    purpose: str


SUBCOMMANDS = {
    "solve": Subcommand("pipeline_parallel", "layers and recompute of every pipeline stage of one configuration"),
    "search": Subcommand("parallel_tool", "the parallel strategies of a model, pruned by rules and memory"),
    "rank": Subcommand("pipeline_tool", "a folder of candidates, each solved and ranked by step time"),
    "size": Subcommand("size", "the devices that a training takes, its time, energy and price"),
    "merge": Subcommand("merge", "the shards of a ranking, joined to one"),
    "why-memory": Subcommand("why_memory", "the peak memory of a file's plan, its parts, and what lowers it"),
    "lengths": Subcommand("lengths", "one plan for samples of unlike lengths, least in the mean step"),
    "rl": Subcommand("rl", "an iteration of reinforcement learning by phase, its cards split"),
    "timeline": Subcommand("timeline_tool", "worker logs, profiles and plans drawn as one timeline"),
    "history": Subcommand("history", "runs remembered, what was measured of them, plans found again"),
    "mcp": Subcommand("mcp", "an MCP server on standard input, by which agents ask for plans"),
    "serve": Subcommand("serve", "a local page: what if, the proven plan, ranking, history"),
    "compare": Subcommand("compare", "two results side by side, and why one is faster"),
    "galvatron": Subcommand("galvatron", "Galvatron's profiles and strategies: read, costed, written"),
    "layerwise": Subcommand("layerwise", "the best strategy of every layer, division and micro-batches"),
    "check": Subcommand("check", "a layer-wise strategy file, priced and checked against its memory"),
    "profile hardware": Subcommand("profile_hardware", "a cluster's collectives and kernels measured, as tables"),
    "profile model": Subcommand("profile_model", "time and memory of a model's layers measured, as tables"),
    "calibrate": Subcommand("calibrate", "a device fitted to measured runs or profiles of your own"),
    "tune": Subcommand("tune", "small runs of your own script, and the laws of its operators"),
    "operators": Subcommand("operators", "a base of measured operators: filled, merged, exported"),
    "models": Subcommand("models", "the registered models, with layers in order and parameters by part"),
    "devices": Subcommand("devices", "the registered devices, each figure with its source"),
    "support": Subcommand("support", "whether a model, device, launcher and precision are supported"),
    "rules": Subcommand("rules", "the rules that prune a search, each with its sources"),
    "schema": Subcommand("schema", "the JSON Schemas of requests, results and errors"),
    "warm": Subcommand("warm", "the solver's kernels compiled once, after an installation"),
    "doctor": Subcommand("doctor", "this installation: versions, kernels, solvers, extras, plug-ins"),
    "completion": Subcommand("completion", "lets the Tab key complete commands, flags and values"),
}

OTHERWISE = {
    "evaluate": "taylor solve FILE -evaluate y prices the plan in the file",
    "plan": "taylor solve FILE plans one",
}
"""Words that people try as a command, and what does it."""

FLAGS = ("-h", "--help", "--version")
"""Words allowed in a subcommand's place; both end the run."""


def build_parser() -> argparse.ArgumentParser:
    """Parser of `taylor` itself; each subcommand has its own."""
    width = max(len(name) for name in SUBCOMMANDS if " " not in name)
    listed = "\n".join(f"  {name:<{width}}  {command.purpose}" for name, command in SUBCOMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="taylor",
        usage=f"taylor COMMAND [--help], or --version; example: taylor solve config.yaml\n{listed}",
        allow_abbrev=False,
        add_help=False,
    )
    # The usage names all: an epilogue, and lines of --help and --version, would leave the screen commands short.
    parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"taylor {taylor.__version__}", help=argparse.SUPPRESS)
    return parser


def run(arguments: Sequence[str]) -> int | None:
    """Run the subcommand that comes first, with the arguments behind it.

    Raises
    ------
    InputError
        When there is no such subcommand.
    """
    parser = build_parser()
    if not arguments:
        parser.print_help(sys.stderr)
        return EXIT_BAD_INPUT
    # Some commands have a second word.
    words = 2 if any(name.startswith(f"{arguments[0]} ") for name in SUBCOMMANDS) else 1
    name = " ".join(arguments[:words])
    if name in FLAGS:
        parser.parse_args([name])
    if name not in SUBCOMMANDS:
        near = OTHERWISE.get(name) or did_you_mean(name, (*SUBCOMMANDS, *FLAGS))
        cure = f"{near}{'' if near.endswith('?') else ';'} taylor --help explains the commands"
        raise InputError("is no command of taylor", field=shortened(name), cure=cure)
    tool = importlib.import_module(f"taylor.command_lines.{SUBCOMMANDS[name].module}")
    code: int | None = tool.run(arguments[words:], f"taylor {name}")
    return code


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
