"""Command line: two results side by side, their differences and why one is faster."""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from taylor.base.console import log, run_command, start_logging
from taylor.base.documents import RESULT
from taylor.command_lines.arguments import CommandParser, path_or_none
from taylor.command_lines.cluster import STORE_VARIABLE, store_to_read
from taylor.schemas.writing import print_document, write_document


def build_parser(program: str = "taylor compare") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Lay two results of solves beside each other: what differs between them, and which parts of the step make one "
        "faster.",
        "before.json after.json --html compared.html",
    )
    group = parser.add_argument_group("results")
    group.add_argument("first", metavar="A", help="a result: what --result_json wrote, or a run of taylor history")
    group.add_argument("second", metavar="B", help="another one")
    group.add_argument("--store", metavar="URL", default=os.environ.get(STORE_VARIABLE, ""), help="of those runs")
    group.add_argument("--html", metavar="FILE", help="page with both pipelines under each other")
    return parser


def run(arguments: Sequence[str], program: str = "taylor compare") -> None:
    """Parse, compare, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.base.files import refuse_unwritable
    from taylor.report.page_tables import terminal_table
    from taylor.report.terminal import print_table
    from taylor.workflows.showing.compare import compare_results, write_comparison_page

    page = path_or_none(args.html)
    if page is not None:
        refuse_unwritable(page, "--html")
    with tempfile.TemporaryDirectory(prefix="taylor-") as folder:
        first, second = (_result_file(args, text, Path(folder)) for text in (args.first, args.second))
        compared = compare_results(first, second)
        if page is not None:
            write_comparison_page(page, first, second)
    if args.json:
        print_document("taylor.comparison/1", compared.to_dict())
        return
    for warning in compared.warnings:
        log.warning("%s", warning)
    print_table(terminal_table(compared.changed_table))
    print_table(terminal_table(compared.parts_table))
    if page is not None:
        print(f"html: {page}")
    print(compared.verdict)


def _result_file(args: argparse.Namespace, text: str, folder: Path) -> Path:
    """Named result: a file, or a run of the store, written into a folder under its own name."""
    path = Path(text)
    if path.exists() or not re.fullmatch(r"[0-9a-f]{1,8}", text):
        return path
    return write_document(folder / f"{text}.json", RESULT, store_to_read(args).result(text).to_dict())


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
