"""Command line: the hardware of a cluster, measured with torch's collectives and kernels."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from taylor.base.console import run_command, start_logging
from taylor.command_lines.arguments import CommandParser, path_or_none, positive_float, positive_int


def build_parser(program: str = "taylor profile hardware") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Measure all-reduce, all-to-all and transfers by size and group, overlap, matrix products, attention, memory "
        "and the host's link with torch (nccl, hccl or gloo), and write them as Galvatron's tables and as a device. "
        "Without --run it writes the script that measures; a killed run goes on where it was.",
        "--num_nodes 1 --num_gpus_per_node 8 --run --device h100-80g",
    )
    from taylor.profiling.measuring.plan import KINDS, HardwarePlan

    usual = HardwarePlan()
    group = parser.add_argument_group("cluster")
    for flag, default, text in (
        ("--num_nodes", usual.nodes, "nodes"),
        ("--num_gpus_per_node", usual.per_node, "cards of a node"),
        ("--max_tp_deg", usual.max_tp, "largest group of timed collectives"),
        ("--max_pp_deg", usual.max_pp, "most stages of transfers"),
    ):
        group.add_argument(flag, type=positive_int, metavar="N", default=default, help=f"{text} (default: %(default)s)")
    group.add_argument("--device", metavar="NAME|FILE", help="device whose figures are replaced by measured ones")
    group.add_argument(
        "--register_path", metavar="DIR", help="folder of your own registrations, in addition to the built-in"
    )
    what = parser.add_argument_group("measurements")
    what.add_argument("--run", action="store_true", help="measure here, on one node (default: write the script)")
    what.add_argument("--only", metavar="KIND,...", default=",".join(KINDS), help="which of %(default)s (default: all)")
    for flag, default, text in (
        ("--start_mb", usual.start_mib, "smallest message of timed collectives, MiB"),
        ("--end_mb", usual.end_mib, "largest one, MiB; sizes double"),
        ("--bandwidth_mb", usual.bandwidth_mib, "message of the bandwidths, MiB"),
        ("--overlap_time_multiply", usual.overlap_multiply, "communication over computation while both overlap"),
        ("--width", usual.width, "hidden size of products and attention"),
        ("--repeats", usual.repeats, "samples of a measurement"),
        ("--attempts", usual.attempts, "tries of one whose samples scatter by more than 5 %%"),
    ):
        what.add_argument(flag, type=positive_int, metavar="N", default=default, help=f"{text} (default: %(default)s)")
    what.add_argument(
        "--timeout", type=positive_float, metavar="S", default=4 * 3600.0, help="seconds for all (default: %(default)g)"
    )
    results = parser.add_argument_group("results")
    results.add_argument(
        "--output_path", metavar="DIR", default="./output/hardware_configs", help="tables (default: %(default)s)"
    )
    return parser


def run(arguments: Sequence[str], program: str = "taylor profile hardware") -> None:
    """Parse, measure, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.base.errors import InputError
    from taylor.base.near import did_you_mean
    from taylor.profiling.measuring.plan import KINDS, HardwarePlan
    from taylor.workflows.measuring.profile_hardware import HardwareProfileOptions, profile_hardware, tell

    kinds = tuple(word.strip() for word in args.only.split(",") if word.strip())
    for kind in kinds:
        if kind not in KINDS:
            raise InputError("is no measurement", field="--only", value=kind, cure=did_you_mean(kind, KINDS))
    plan = HardwarePlan(
        nodes=args.num_nodes,
        per_node=args.num_gpus_per_node,
        max_tp=args.max_tp_deg,
        max_pp=args.max_pp_deg,
        start_mib=args.start_mb,
        end_mib=args.end_mb,
        bandwidth_mib=args.bandwidth_mb,
        overlap_multiply=args.overlap_time_multiply,
        width=args.width,
        kinds=kinds,
        repeats=args.repeats,
        attempts=args.attempts,
    )
    done = profile_hardware(
        HardwareProfileOptions(
            plan, Path(args.output_path), args.run, args.device, path_or_none(args.register_path), args.timeout
        )
    )
    tell(done)
    for path in done.files:
        print(path)


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
