"""Command line: the JSON Schemas of requests, results and errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from taylor.base.console import run_command, start_logging
from taylor.command_lines.arguments import CommandParser
from taylor.schemas.writing import print_document


def build_parser(program: str = "taylor schema") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "List the JSON documents that commands read and print, or print the JSON Schema of one.",
        "result",
    )
    group = parser.add_argument_group("schema")
    group.add_argument("name", nargs="?", metavar="NAME", help="result, request, error, …: or with version, result/1")
    return parser


def run(arguments: Sequence[str], program: str = "taylor schema") -> None:
    """Parse, look up, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.schemas.registry import names, schema_text

    if args.name is not None:
        text = schema_text(args.name)
        if args.json:
            print_document("taylor.schema/1", {"json_schema": json.loads(text)})
        else:
            print(text, end="")
    elif args.json:
        print_document("taylor.schemas/1", {"schemas": names()})
    else:
        print("\n".join(names()))


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
