"""Command line: worker logs, profiles and plans drawn as one timeline, a row for each device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from taylor.base.console import run_command, start_logging
from taylor.workflows.arguments import CommandParser, device_numbers, time_window


def build_parser() -> CommandParser:
    """Every flag of the command, with its default."""
    parser = CommandParser(
        "timeline_tool.py",
        "Draw the jobs of every device from worker logs or profiles, and lay a plan beside them.",
        "python timeline_tool.py --log_dir ./log --devices 0,1 --trace timeline.json",
    )
    source = parser.add_argument_group("sources")
    source.add_argument("--log_dir", metavar="DIR", help="folder of workerlog.N files")
    source.add_argument("--multi_machine", action="store_true", help="logs lie in machine*/workerlog.N")
    source.add_argument("--profile_dir", metavar="DIR", help="folder of Ascend or Kineto profiles")
    source.add_argument("--solution", metavar="FILE", help="a plan: the --result_json of pipeline_parallel.py")
    source.add_argument("--devices", type=device_numbers, metavar="0,1,...", help="devices drawn (default: all)")
    source.add_argument("--window", type=time_window, metavar="A,B", help="only this time, ms from the first job on")
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
    from taylor.workflows.timeline import TimelineOptions, draw_timeline

    def path(text: str | None) -> Path | None:
        return Path(text) if text else None

    written = draw_timeline(
        TimelineOptions(
            log_dir=path(args.log_dir),
            profile_dir=path(args.profile_dir),
            solution=path(args.solution),
            devices=args.devices,
            multi_machine=args.multi_machine,
            window_ms=args.window,
            trace=path(args.trace),
            html=path(args.html),
            picture=path(args.png),
        )
    )
    for role, name in written.items():
        print(f"{role:>12}: {name}")


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
