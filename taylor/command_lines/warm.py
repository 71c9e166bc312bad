"""Command line: the solver's kernels compiled once, for every later solve of this installation."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from taylor.base.console import log, run_command, start_logging
from taylor.command_lines.arguments import CommandParser


def build_parser(program: str = "taylor warm") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    return CommandParser(
        program,
        "Compile the solver's kernels, half a minute to a minute once after an installation. Later solves load them "
        "from the disk.",
        "",
    )


def run(arguments: Sequence[str], program: str = "taylor warm") -> None:
    """Parse, compile, log."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.pipeline_solver.solving.warming import warm

    log.info("the solver's kernels are compiled: %.0f s", warm())


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
