"""Command line: the stored runs, their measurements, and their plans again as files."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from taylor.base.console import log, run_command, start_logging, without_controls
from taylor.base.documents import RESULT
from taylor.command_lines.arguments import (
    CommandParser,
    path_or_none,
    positive_float,
    positive_int,
    refuse_without_effect,
)
from taylor.command_lines.cluster import STORE_VARIABLE, store_to_read
from taylor.schemas.writing import print_document, write_document

if TYPE_CHECKING:
    from taylor.workflows.measuring.history import Plan, Run

OF_A_RUN = {"plan", "measured", "peak", "source", "result_json", "o"}


def build_parser(program: str = "taylor history") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "List the runs that are remembered, or show one; store what was measured of a plan, which taylor calibrate "
        "fits a device to; write a plan or its result again as a file.",
        "1f3a9c2e --measured 15230 --source 'job 4711, steps 20-40'",
    )
    group = parser.add_argument_group("runs")
    group.add_argument("run", nargs="?", metavar="ID", help="a run, by its name or the beginning of it (default: all)")
    group.add_argument(
        "--store",
        metavar="URL",
        default=os.environ.get(STORE_VARIABLE, ""),
        help=f"SQLite file or postgresql://... (default: {STORE_VARIABLE} of the environment, else "
        "pipeline_output/history.sqlite)",
    )
    group.add_argument("--model", default="", metavar="TEXT", help="only runs of models with this in their name")
    group.add_argument("--device", default="", metavar="TEXT", help="only runs on devices with this in their name")
    group.add_argument("--topn", type=positive_int, default=20, metavar="N", help="rows (default: %(default)s)")
    one = parser.add_argument_group("one plan of a run")
    one.add_argument("--plan", type=positive_int, default=1, metavar="N", help="which one (default: the best)")
    one.add_argument("--measured", type=positive_float, metavar="MS", help="store that a step of it took so long")
    one.add_argument("--peak", type=positive_float, metavar="MIB", help="store its measured peak memory")
    one.add_argument("--source", default="", metavar="TEXT", help="where that was measured")
    one.add_argument("--result_json", metavar="FILE", help="write its result")
    one.add_argument("-o", metavar="FILE", help="write its configuration")
    return parser


def run(arguments: Sequence[str], program: str = "taylor history") -> None:
    """Parse, do, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.report.facts import PageTable
    from taylor.report.page_tables import terminal_table
    from taylor.report.terminal import print_table

    if not args.run:
        refuse_without_effect(args, OF_A_RUN, "without ID", "name a run")
        found = store_to_read(args).runs(model=args.model, device=args.device, most=args.topn)
        if args.json:
            print_document("taylor.runs/1", {"runs": [asdict(one) for one in found]})
            return
        columns = ("run", "when (UTC)", "model", "device", "ranks", "plans", *PLAN_COLUMNS)
        rows = [_run_cells(one) for one in found]
        print_table(terminal_table(PageTable("Runs, the latest first", columns, rows, "")))
        return
    refuse_without_effect(args, {"model", "device"}, "with ID, which names one run")
    _of_one(args)
    one = store_to_read(args).run(args.run, args.topn)
    if args.json:
        print_document("taylor.run/1", asdict(one))
        return
    print(without_controls(f"{one.id}: {one.command}, {one.at} UTC, taylor {one.version}"))
    print(without_controls(f"{one.model} on {one.ranks:,} ranks of {one.device}; {one.file}"))
    rows = [[str(plan.number), *_plan_cells(plan)] for plan in one.plans]
    more = f"{one.count - len(rows)} more: --topn" if one.count > len(rows) else ""
    print_table(terminal_table(PageTable("Plans", ("plan", *PLAN_COLUMNS), rows, more)))


PLAN_COLUMNS = ("strategy", "status", "step ms", "measured ms", "off by")


def _of_one(args: argparse.Namespace) -> None:
    """Store and write the requested facts of one plan."""
    from taylor.base.files import write_atomic

    store = store_to_read(args)
    if args.measured is not None or args.peak is not None:
        store.measure(args.run, args.plan, step_ms=args.measured, peak_mib=args.peak, source=args.source)
        log.info("stored; taylor calibrate %s fits a device to all that was measured", args.store or "STORE")
    result, configuration = path_or_none(args.result_json), path_or_none(args.o)
    if result is not None:
        print(f"result: {write_document(result, RESULT, store.result(args.run, args.plan).to_dict())}")
    if configuration is not None:
        print(f"config: {write_atomic(configuration, store.configuration(args.run, args.plan)[1])}")


def _run_cells(one: Run) -> list[str]:
    best = _plan_cells(one.plans[0]) if one.plans else [""] * len(PLAN_COLUMNS)
    cells = [one.id, one.at[:16].replace("T", " "), one.model, one.device, f"{one.ranks:,}", f"{one.count:,}", *best]
    return [without_controls(cell) for cell in cells]


def _plan_cells(plan: Plan) -> list[str]:
    degrees = json.loads(plan.strategy)
    strategy = " ".join(
        f"{name.upper()}{degrees[name]}"
        for name in ("dp", "tp", "pp", "ep", "cp", "vpp", "mbs")
        if degrees.get(name, 1) > 1
    )
    off = "" if not (plan.step_ms and plan.measured_ms) else f"{100 * (plan.step_ms / plan.measured_ms - 1):+.1f} %"
    return [strategy, without_controls(plan.status), _ms(plan.step_ms), _ms(plan.measured_ms), off]


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
