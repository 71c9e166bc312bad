"""Command line: a plan for samples of unlike lengths."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.console import run_command, start_logging
from taylor.base.errors import InputError
from taylor.command_lines.arguments import (
    CommandParser,
    Default,
    add_output_folder,
    chosen_folder,
    chosen_path,
    command_text,
    positive_int,
)
from taylor.command_lines.source_file import add_training_file, file_started
from taylor.schemas.writing import print_document

if TYPE_CHECKING:
    from taylor.workflows.solving.unlike_lengths import LengthPlan

PACKINGS, ORDERS = ("padded", "packed", "balanced"), ("drawn", "largest")


def build_parser(program: str = "taylor lengths") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Plan a training whose samples differ in length: layers and recompute of every stage with the least mean step "
        "over sampled steps, with a proven lower bound, beside the plan for equal lengths.",
        "config/finetune_llama3_70b_lora.sh --lengths config/sample_lengths.csv --packing balanced",
    )
    add_training_file(parser)
    parser.add_argument(
        "--lengths", metavar="FILE", required=True, help="CSV of length,count: tokens and samples of that length"
    )
    parser.add_argument(
        "--packing", choices=PACKINGS, default="padded",
        help="padded: a micro-batch is as long as its longest sample; packed: filled to the sequence length in the "
        "order drawn; balanced: a step's samples dealt so that its micro-batches cost as much (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--order", choices=ORDERS, default="drawn", help="of a step's micro-batches (default: %(default)s)"
    )
    parser.add_argument("--scenarios", type=positive_int, default=32, metavar="N", help="steps to sample (default: 32)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the samples (default: 0)")
    parser.add_argument("-gap", type=float, default=0.01, metavar="G", help="relative gap to prove (default: 0.01)")
    parser.add_argument(
        "--time_limit", "-t", dest="t", type=positive_int, default=60, metavar="SECONDS",
        help="time limit (default: 60)",
    )  # fmt: skip
    parser.add_argument("--device", metavar="NAME", help="registered device, or its file (.yaml)")
    parser.add_argument(
        "--register_path", metavar="DIR", default=Default("./register/"),
        help="folder of your own registrations (default: %(default)s of the tool)",
    )  # fmt: skip
    parser.add_argument("--world_size", type=positive_int, metavar="N", help="ranks, where the file leaves them open")
    parser.add_argument("-o", metavar="FILE", help="write the plan to a copy of the configuration")
    add_output_folder(parser)
    return parser


def run(arguments: Sequence[str], program: str = "taylor lengths") -> None:
    """Parse, plan, print."""
    args = build_parser(program).parse(arguments)
    with file_started(args):
        _run(args, arguments, program)


def _run(args: argparse.Namespace, arguments: Sequence[str], program: str) -> None:
    """Plan, print."""
    start_logging(verbose=args.verbose, quiet=args.quiet)
    if not 0 <= args.gap < 1:
        raise InputError("must lie in 0 to 1", field="-gap", value=args.gap, cure="as in -gap 0.01")
    from taylor.parsers.read import config_of
    from taylor.parsers.tables.lengths import read_lengths
    from taylor.workflows.solving.unlike_lengths import LengthChoice, plan_lengths
    from taylor.workflows.statement.options import FileJob, Origin

    choice = LengthChoice(read_lengths(Path(args.lengths)), args.packing, args.order, args.scenarios, args.seed)
    job = FileJob(
        config_of(Path(args.file)),
        device=args.device,
        register_path=chosen_path(args.register_path),
        world_size=args.world_size,
    )
    output = None if args.o is None else Path(args.o)
    with chosen_folder(args) as folder:
        found = plan_lengths(job, choice, folder.path, gap=args.gap, time_limit=args.t, output=output)
    if args.json:
        print_document("taylor.lengths/1", found.to_dict(Origin(command_text(program, arguments))))
    else:
        _print(found)


def _print(found: LengthPlan) -> None:
    """Print the plan by stage, and the figures."""
    from taylor.report.terminal import print_pairs

    plan, expected, unit = found.found.plan, found.found, found.unit_ms
    assert plan is not None
    pairs = [(kind, " / ".join(" ".join(map(str, row)) for row in grid)) for kind, grid in plan.layers.items()]
    pairs += [
        (mode, " / ".join(" ".join(map(str, row)) for row in grid))
        for mode, grid in plan.recompute.items()
        if plan.uses(mode)
    ]
    bound = f"no plan takes less than {expected.bound * unit:,.0f} ms (gap {expected.gap:.2%})"
    steps = len(expected.step_times)
    pairs.append(("step", f"{expected.mean * unit:,.0f} ms in the mean of {steps} sampled steps, {bound}"))
    fresh = f"{found.fresh_ms:,.0f} ms in the mean, {found.slow_ms:,.0f} ms in nine of ten"
    pairs.append(("fresh samples", fresh))
    if found.usual_ms is not None:
        change = found.fresh_ms / found.usual_ms - 1
        pairs.append(("equal lengths", f"the plan for them takes {found.usual_ms:,.0f} ms on the same: {change:+.1%}"))
    other = "drawn" if found.choice.order == "largest" else "largest first"
    pairs.append(
        ("other order", f"{other}: {found.other_order_ms:,.0f} ms ({found.other_order_ms / found.fresh_ms - 1:+.1%})")
    )
    speed = f"{found.tokens_a_second:,.0f} tokens/s, {found.samples_a_second:,.1f} samples/s"
    pairs.append(("speed", f"{speed}; {found.padding:.0%} padding; an epoch takes {found.hours:,.1f} h"))
    if found.cut:
        pairs.append(("cut", f"{found.cut:,} samples are longer than the sequence length, and counted as long as it"))
    if found.written is not None:
        pairs.append(("config", str(found.written)))
    print_pairs(pairs)


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
