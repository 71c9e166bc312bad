"""Command line: a device fitted to measured runs or profiles."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from taylor.base.console import log, run_command, start_logging
from taylor.command_lines.arguments import CommandParser, path_or_none
from taylor.schemas.writing import print_document


def build_parser(program: str = "taylor calibrate") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Fit a device to your own runs: a table of configurations with measured step times, or a folder of profiles, "
        "becomes a device file for that card and that software, which --device takes everywhere.",
        "my_runs --device h100-80g -o my-h100.yaml",
    )
    group = parser.add_argument_group("what was measured")
    group.add_argument(
        "source", metavar="FOLDER",
        help="folder with measured.csv (columns file, step_ms; also peak_mib, device, set), such a table itself, a "
        "folder of profiles, or a store of results (taylor history --measured)",
    )  # fmt: skip
    group.add_argument("--configs", metavar="DIR", help="of profiles: folder of the configurations that were profiled")
    group.add_argument(
        "--peaks", metavar="FILE",
        help="table of measured peaks (columns file, stage, peak_mib: torch's allocated memory), which correct the "
        "memory part (default: peaks.csv of the folder, if there is one)",
    )  # fmt: skip
    group.add_argument("--set", dest="group", metavar="NAME", help="only the runs whose column `set` says so")
    group.add_argument("--device", metavar="NAME|FILE", help="where the fit starts (default: the table's)")
    group.add_argument(
        "--register_path", metavar="DIR", help="folder of your own registrations, in addition to the built-in"
    )
    results = parser.add_argument_group("results")
    results.add_argument("-o", dest="output", metavar="FILE", help="the device file to write (.yaml)")
    results.add_argument("--name", default="", help="what the device is called (default: DEVICE-calibrated)")
    results.add_argument(
        "--stack", default="", metavar="TEXT", help="the software of the runs, to be named in the file"
    )
    return parser


def run(arguments: Sequence[str], program: str = "taylor calibrate") -> None:
    """Parse, fit, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.base.errors import InputError
    from taylor.base.files import refuse_unwritable
    from taylor.report.calibration import errors_table, figures_table, verdict
    from taylor.report.terminal import print_table
    from taylor.workflows.measuring.calibrate import CalibrateOptions, memory_sentence
    from taylor.workflows.measuring.calibrate_store import calibrate_from

    output = path_or_none(args.output)
    if output is not None:
        if output.suffix not in (".yaml", ".yml"):
            raise InputError("must end in .yaml, as --device knows files by it", field="-o", value=str(output))
        refuse_unwritable(output, "-o")
    done = calibrate_from(
        args.source,
        CalibrateOptions(
            source=Path(args.source),
            configs=path_or_none(args.configs),
            device=args.device,
            group=args.group,
            stack=args.stack,
            name=args.name,
            output=output,
            register_path=path_or_none(args.register_path),
            peaks=path_or_none(args.peaks),
        ),
    )
    for note in done.fit.notes:
        log.warning("%s", note)
    if done.memory_errors:
        log.info("%s", memory_sentence(done.memory_errors))
    if done.memory is not None:
        log.info("memory: %s", done.memory.sentence)
    if args.json:
        print_document("taylor.calibration/1", {**asdict(done.fit), "file": str(done.file) if done.file else None})
        return
    print_table(errors_table(done.fit))
    print_table(figures_table(done.fit))
    print(verdict(done.fit))
    if done.file is not None:
        print(f"device: {done.file}")


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
