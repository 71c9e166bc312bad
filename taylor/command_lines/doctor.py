"""Command line: this installation, for a person or a report of a fault."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import taylor
from taylor.base.console import run_command, start_logging
from taylor.command_lines.arguments import CommandParser
from taylor.schemas.writing import print_document


def build_parser(program: str = "taylor doctor") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Show this installation: versions, compiled kernels, solvers, what each extra would add, and plug-ins. "
        "Nothing is sent anywhere.",
        "--json",
    )
    return parser


def run(arguments: Sequence[str], program: str = "taylor doctor") -> None:
    """Parse, look, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.report.terminal import print_pairs
    from taylor.workflows.showing.doctor import diagnose, doctor_lines

    found = diagnose(taylor.__version__)
    if args.json:
        print_document("taylor.doctor/1", found.to_dict())
        return
    print_pairs(doctor_lines(found))


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
