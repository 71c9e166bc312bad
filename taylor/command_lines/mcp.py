"""Command line: an MCP server, by which agents ask for plans."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from taylor.base.console import log, run_command, start_logging
from taylor.base.errors import InputError
from taylor.command_lines.arguments import CommandParser, path_or_none, positive_float, positive_int

AT_ONCE, EACH_MIB = 2, 420
"""Questions answered at once, and the memory that each may take: with the server, less than 1 GiB."""


def build_parser(program: str = "taylor mcp") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Serve agents over MCP on standard input and output: solve, evaluate, search, size, explain, support, compare, "
        "each bounded in time and memory. Nothing is written but to --output, nothing is read but in --folder, no "
        "program is started and no code of a file is run.",
        "--folder . --output plans",
    )
    group = parser.add_argument_group("server")
    group.add_argument(
        "--folder", action="append", default=[], metavar="DIR",
        help="folder of training files that may be asked for; may be repeated (default: none)",
    )  # fmt: skip
    group.add_argument("--output", metavar="DIR", help="folder that plans may be written to (default: none)")
    group.add_argument(
        "--time_limit", type=positive_float, default=60.0, metavar="SECONDS",
        help="longest solve of a question (default: %(default)g)",
    )  # fmt: skip
    group.add_argument(
        "--workers", type=positive_int, default=AT_ONCE, metavar="N", help="questions at once (default: %(default)s)"
    )
    group.add_argument(
        "--memory_mib", type=positive_int, default=EACH_MIB, metavar="N",
        help="memory that a question may take (default: %(default)s)",
    )  # fmt: skip
    return parser


def run(arguments: Sequence[str], program: str = "taylor mcp") -> None:
    """Parse, serve until standard input ends."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    if args.json:
        raise InputError("has no document: standard output is the agent's", field="--json", cure="leave it out")
    try:
        from taylor.serve.mcp_server import run as serve
    except ImportError:
        raise InputError("needs the package mcp", cure="pip install 'taylor-parallel[mcp]'") from None
    from taylor.serve.agent_paths import AgentPaths, refuse_quoted
    from taylor.serve.agent_questions import AgentQuestions

    folders = tuple(Path(name).resolve() for name in args.folder)
    for folder in folders:
        if not folder.is_dir():
            raise InputError("no such folder", field="--folder", value=str(folder), cure="check the path")
        refuse_quoted(folder, "--folder")
    output = path_or_none(args.output)
    paths = AgentPaths(folders, None if output is None else output.resolve())
    with tempfile.TemporaryDirectory(prefix="taylor-mcp-") as work:
        log.info("serving on standard input; --folder and --output name what may be read and written")
        serve(AgentQuestions(paths, Path(work), args.time_limit, args.memory_mib << 20, args.workers))


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
