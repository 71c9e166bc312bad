"""Command line: the peak memory of the plan in a file, explained."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.console import run_command, start_logging
from taylor.command_lines.arguments import (
    CommandParser,
    Default,
    add_images_option,
    add_measured_options,
    add_output_folder,
    chosen_folder,
    chosen_path,
    inputs_of,
    non_negative_int,
    positive_int,
    refuse_without_effect,
)
from taylor.command_lines.source_file import add_training_file, file_started
from taylor.schemas.writing import print_document

if TYPE_CHECKING:
    from taylor.workflows.solving.why_memory import MemoryReasons


def build_parser(program: str = "taylor why-memory") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Explain the peak memory of the plan in a training file: when each stage reaches it, what is in memory then, "
        "and the changes that lower it most, each priced by the analytical model of the changed job.",
        "config/pretrain_llama3_70b.sh --device h100-80g",
    )
    add_training_file(parser)
    parser.add_argument("--stage", type=non_negative_int, metavar="N", help="stage to explain (default: the fullest)")
    parser.add_argument("--device", metavar="NAME", help="registered device, or its file (.yaml)")
    parser.add_argument(
        "--register_path", metavar="DIR", default=Default("./register/"),
        help="folder of your own registrations (default: %(default)s of the tool)",
    )  # fmt: skip
    parser.add_argument("--world_size", type=positive_int, metavar="N", help="ranks, where the file leaves them open")
    add_images_option(parser)
    add_measured_options(parser.add_argument_group("memory"))
    add_output_folder(parser)
    return parser


def run(arguments: Sequence[str], program: str = "taylor why-memory") -> None:
    """Parse, explain, print."""
    args = build_parser(program).parse(arguments)
    with file_started(args):
        _run(args)


def _run(args: argparse.Namespace) -> None:
    """Explain, print."""
    start_logging(verbose=args.verbose, quiet=args.quiet)
    if not args.measured_peak:
        refuse_without_effect(args, {"peak_of"}, "without --measured_peak")
    from taylor.parsers.read import config_of
    from taylor.workflows.solving.why_memory import why_memory
    from taylor.workflows.statement.measured_run import MeasuredRun
    from taylor.workflows.statement.options import FileJob

    job = FileJob(
        config_of(Path(args.file)),
        device=args.device,
        register_path=chosen_path(args.register_path),
        world_size=args.world_size,
        measured=MeasuredRun(args.measured_peak, args.out_of_memory, args.peak_of),
        stage_limits=args.stage_limit,
        images=inputs_of(args),
    )
    with chosen_folder(args) as folder:
        found = why_memory(job, args.stage, folder.path)
    if args.json:
        print_document("taylor.reasons/1", found.to_dict())
    else:
        _print(found)


def _print(found: MemoryReasons) -> None:
    """Print the table, the moments, what the fullest stage keeps, and the levers."""
    from taylor.report.memory_reasons import MOST_STAGES, parts_table
    from taylor.report.terminal import print_pairs, print_table
    from taylor.workflows.solving.why_memory import MOST_LEVERS

    limits = [one.limit_mib for one in found.stages]
    print_table(parts_table([one.parts for one in found.stages], limits, found.fullest))
    chosen = found.stages[found.fullest]
    moments = found.stages if len(found.stages) <= MOST_STAGES else (chosen,)
    pairs = [(f"stage {one.stage}", f"peak at the {one.moment.sentence}") for one in moments]
    for kept in chosen.kept:
        parts = ", ".join(f"{name} {mib:,.0f}" for name, mib in kept.parts.items())
        keeps = "keep all" if kept.mode == "all" else f"under {kept.mode}"
        text = f"{kept.layers} {kept.kind} layers of stage {chosen.stage} {keeps}: {kept.mib:,.0f} MiB"
        pairs.append(("kept", f"{text}, {kept.each_mib:,.1f} a micro-batch and layer" + (parts and f" ({parts})")))
    for lever in found.levers[:MOST_LEVERS]:
        answer = "every stage fits then" if lever.fits else f"the largest peak is {lever.largest_mib:,.0f} MiB then"
        pairs.append(("lever", f"{lever.name}: {lever.saved_mib:,.0f} MiB less; {answer}"))
    if not found.levers:
        pairs.append(("lever", "no single change that the framework starts lowers this peak"))
    print_pairs(pairs)


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
