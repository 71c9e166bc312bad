"""Command line: worker logs or profiles drawn as one timeline, a row for each device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from base.console import run_command, start_logging
from base.errors import InputError
from workflows.arguments import CommandParser, device_numbers


def build_parser() -> CommandParser:
    """Every flag of the command, with its default."""
    parser = CommandParser(
        "timeline_tool.py",
        "Draw the jobs of every device of a pipeline from its worker logs.",
        "python timeline_tool.py --log_dir ./log --devices 0,1 --trace timeline.json",
    )
    source = parser.add_argument_group("sources")
    source.add_argument("--log_dir", metavar="DIR", help="folder of workerlog.N files")
    source.add_argument("--devices", type=device_numbers, metavar="0,1,...", help="devices drawn (default: all)")
    source.add_argument("--multi_machine", action="store_true", help="logs lie in machine*/workerlog.N")
    results = parser.add_argument_group("results")
    results.add_argument(
        "--trace", metavar="FILE", default="pipeline_profile.json", help="Chrome trace (default: %(default)s)"
    )
    results.add_argument("--html", metavar="FILE", help="page")
    results.add_argument("--png", metavar="FILE", help="picture (.png or .svg)")
    return parser


def run(arguments: Sequence[str]) -> None:
    """Parse, read, draw."""
    args = build_parser().parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    if not args.log_dir:
        raise InputError("is needed", field="--log_dir", cure="name the folder of the workerlog.N files")
    from workflows.timeline import draw_worker_logs

    written = draw_worker_logs(
        Path(args.log_dir),
        devices=args.devices,
        multi_machine=args.multi_machine,
        trace=Path(args.trace),
        html=Path(args.html) if args.html else None,
        picture=Path(args.png) if args.png else None,
    )
    for role, path in written.items():
        print(f"{role:>12}: {path}")


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
