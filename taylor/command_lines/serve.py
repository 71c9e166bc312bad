"""Command line: a local page that answers «what if» at once, and solves on request."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from taylor.base.console import log, run_command, start_logging
from taylor.base.errors import EXIT_DONE, InputError
from taylor.command_lines.arguments import CommandParser, positive_int
from taylor.command_lines.cluster import add_store_option, chosen_store

HOST = "127.0.0.1"


def build_parser(program: str = "taylor serve") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Serve a page on this machine: memory by stage, step and MFU of a strategy as sliders move, the proven plan "
        "and the ranking on request, history, comparison, and the written configuration to download.",
        "--folder my_models",
    )
    group = parser.add_argument_group("page")
    group.add_argument("--port", type=positive_int, default=8765, metavar="N", help="port (default: %(default)s)")
    group.add_argument(
        "--folder",
        action="append",
        default=[],
        metavar="DIR",
        help="folder of Hugging Face configurations (.json) that may be asked for beside registered models; may be "
        "repeated, and nothing else is read",
    )
    group.add_argument(
        "--workers", type=positive_int, default=os.cpu_count() or 1, metavar="N", help="solves at once (default: cores)"
    )
    add_store_option(parser)
    return parser


def run(arguments: Sequence[str], program: str = "taylor serve") -> None:
    """Parse, serve until Ctrl-C."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    try:
        from taylor.serve.app import Page, application
        from taylor.serve.connections import server_of
    except ImportError:
        raise InputError("needs Starlette and uvicorn", cure="pip install 'taylor-parallel[serve]'") from None
    from taylor.serve.jobs import Jobs
    from taylor.serve.own_files import OwnFiles
    from taylor.serve.question import Models

    folders = tuple(Path(name).resolve() for name in args.folder)
    for folder in folders:
        if not folder.is_dir():
            raise InputError("no such folder", field="--folder", value=str(folder), cure="check the path")
    if args.port > 65535:
        raise InputError("is no port", field="--port", value=args.port, cure="name one up to 65535")
    store = chosen_store(args, Path("pipeline_output").resolve())
    signal.signal(signal.SIGTERM, _end)  # uvicorn raises it again behind the server, and the folder is still there
    with tempfile.TemporaryDirectory(prefix="taylor-serve-") as work:
        root, token = Path(work), secrets.token_urlsafe(24)
        jobs = Jobs(root / "jobs", args.workers, folders, "" if store is None else store.url)
        app = application(Page(token, Models(root / "models", folders, OwnFiles(jobs.own)), jobs, store))
        server = server_of(app, HOST, args.port)
        log.info("open http://%s:%d/?token=%s (Ctrl-C ends it)", HOST, args.port, token)
        try:
            server.run()
        except SystemExit as ended:
            if ended.code == EXIT_DONE:
                raise
            cure = "name another with --port"
            raise InputError("cannot be had: is it taken?", field="--port", value=args.port, cure=cure) from None


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(EXIT_DONE)


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
