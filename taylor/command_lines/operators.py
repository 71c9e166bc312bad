"""Command line: the base of measured operators, filled from profiles, merged, exported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from taylor.base.console import log, run_command, start_logging, without_controls
from taylor.command_lines.arguments import CommandParser, note_without_effect, path_or_none


def build_parser(program: str = "taylor operators") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Keep how long operators take, by type and shapes, device and software, in one file: fill it from Ascend "
        "profiles taken with shapes, merge another, export it. Warm-up, first launches and stragglers are left out "
        "and counted; for operators that are missing each type has a line over bytes and products, its error stated.",
        "operators.sqlite --fill tune --device ascend-910b --toolkit 8.0.RC3",
    )
    group = parser.add_argument_group("base")
    group.add_argument("base", metavar="FILE", help="SQLite file, made where there is none")
    group.add_argument("--fill", nargs="+", default=[], metavar="DIR", help="folders of profiles to take in")
    group.add_argument("--device", default="", metavar="NAME", help="the card that --fill was measured on")
    group.add_argument("--driver", default="", metavar="TEXT", help="its driver; versions never mix")
    group.add_argument("--toolkit", default="", metavar="TEXT", help="version of CANN or CUDA; versions never mix")
    group.add_argument("--merge", nargs="+", default=[], metavar="FILE", help="other bases to take in")
    group.add_argument("--export", metavar="FILE", help="write it all as CSV")
    return parser


def run(arguments: Sequence[str], program: str = "taylor operators") -> None:
    """Parse, do, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.base.errors import InputError
    from taylor.blackbox.operator_base import OperatorBase, OperatorOrigin
    from taylor.workflows.measuring.operators import fill_base, summaries

    path = Path(args.base)
    if not args.fill:
        note_without_effect(args, {"device", "driver", "toolkit"}, "without --fill")
    elif not args.device:
        raise InputError("is missing", field="--device", cure="name the card that the profiles were taken on")
    if not args.fill and not args.merge and not path.is_file():
        raise InputError("no such file", file=path, cure="fill it from profiles: --fill DIR --device NAME")
    base = OperatorBase(path)
    origin = OperatorOrigin(args.device, args.driver, args.toolkit)
    for one in fill_base(base, [Path(folder) for folder in args.fill], origin):
        if one.left_out:
            log.warning("left out: %s", one.left_out)
            continue
        unread = f", {one.unread} rows without readable shapes" if one.unread else ""
        state = "was in the base" if one.known else f"{one.taken} samples taken, {one.rejected} left out{unread}"
        print(without_controls(f"{one.path}: {state}"))
    for other in args.merge:
        print(f"{other}: {base.merge(Path(other))} profiles merged")
    for each in summaries(base):
        rules = ", ".join(f"{count} {reason}" for reason, count in sorted(each.rejected.items())) or "none"
        card = without_controls(str(each.origin))
        print(f"{card}: {each.operators} operators from {each.samples} samples; left out: {without_controls(rules)}")
        for (group, name), line in sorted(each.lines.items()):
            words = f"{line.operators} shapes, off by {100 * line.error:.0f} % (median of those left out of the fit)"
            print(f"  {'all of ' if group == 'core' else ''}{without_controls(name)}: {words}")
    file = path_or_none(args.export)
    if file is not None:
        print(f"exported: {base.export(file)}")


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
