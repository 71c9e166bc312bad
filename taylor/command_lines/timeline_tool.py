"""Command line: worker logs, profiles and plans drawn as one timeline, a row for each device."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from taylor.base.console import run_command, start_logging
from taylor.command_lines.arguments import (
    CommandParser,
    device_numbers,
    non_negative_int,
    path_or_none,
    positive_float,
    step_range,
    time_window,
)


def build_parser(program: str = "timeline_tool.py") -> CommandParser:
    """Every flag of the command, with its default; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Draw the jobs of every device from worker logs or profiles, and lay a plan beside them.",
        "--log_dir ./log --devices 0,1 --trace timeline.json",
    )
    source = parser.add_argument_group("sources")
    source.add_argument("--log_dir", metavar="DIR", help="folder of workerlog.N files")
    source.add_argument("--multi_machine", action="store_true", help="logs lie in machine*/workerlog.N")
    source.add_argument("--profile_dir", metavar="DIR", help="folder of Ascend or Kineto profiles")
    source.add_argument("--solution", metavar="FILE", help="a plan: the --result_json of pipeline_parallel.py")
    source.add_argument(
        "--unit_ms",
        type=positive_float,
        metavar="MS",
        help="what one body layer's forward takes in the plan (default: as in the result)",
    )
    source.add_argument("--devices", type=device_numbers, metavar="0,1,...", help="devices drawn (default: all)")
    which = source.add_mutually_exclusive_group()
    which.add_argument("--step", type=non_negative_int, metavar="N", help="only this step of a measurement, from 0 on")
    which.add_argument("--steps", type=step_range, metavar="A,B", help="only the steps from A to B, B too")
    source.add_argument("--window", type=time_window, metavar="A,B", help="only this time, ms from the first job on")
    results = parser.add_argument_group("results")
    results.add_argument(
        "--trace", metavar="FILE", default="pipeline_profile.json", help="Chrome trace (default: %(default)s)"
    )
    results.add_argument("--html", metavar="FILE", help="page")
    results.add_argument("--png", metavar="FILE", help="picture (.png or .svg)")
    return parser


def run(arguments: Sequence[str], program: str = "timeline_tool.py") -> None:
    """Parse, read, draw."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.report.share_tables import shares_table
    from taylor.report.terminal import print_table
    from taylor.workflows.showing.planned_outputs import refuse_unwritten
    from taylor.workflows.showing.timeline import TimelineOptions, draw_timeline

    drawn = draw_timeline(
        TimelineOptions(
            log_dir=path_or_none(args.log_dir),
            profile_dir=path_or_none(args.profile_dir),
            solution=path_or_none(args.solution),
            unit_ms=args.unit_ms,
            devices=args.devices,
            multi_machine=args.multi_machine,
            steps=args.steps if args.step is None else (args.step, args.step),
            window_ms=args.window,
            trace=path_or_none(args.trace),
            html=path_or_none(args.html),
            picture=path_or_none(args.png),
            trace_named="trace" in args.given,
        )
    )
    print_table(shares_table(drawn.shares))
    for role, name in drawn.files.items():
        print(f"{role:>12}: {name}")
    refuse_unwritten(drawn.unwritten)


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
