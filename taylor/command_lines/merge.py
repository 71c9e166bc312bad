"""Command line: the shards of a ranking, joined to the one ranking of all candidates."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from taylor.base.console import log, run_command, start_logging
from taylor.command_lines.arguments import CommandParser
from taylor.command_lines.pipeline_tool import add_options, deciding_flags, rank_candidates


def build_parser(program: str = "taylor merge") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Join the results of taylor rank --shard I/N: the table, page and files that one ranking of all candidates "
        "would have written. Takes the flags that the shards were given.",
        "shards/1 shards/2 --yaml_path candidates --output_path ranked",
    )
    parser.add_argument("folders", nargs="+", metavar="FOLDER", type=Path, help="folders of the shards' results")
    add_options(parser)
    return parser


def run(arguments: Sequence[str], program: str = "taylor merge") -> None:
    """Parse, join, rank, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.workflows.ranking.shards import join_shards

    of = join_shards(args.folders, Path(args.yaml_path), deciding_flags(args), Path(args.output_path))
    log.info("%d shards are joined; what they have not solved to its end is solved now", of)
    rank_candidates(args, arguments, program)


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
