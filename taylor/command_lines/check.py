"""Command line: a layer-wise strategy file evaluated on the exact event graph, and checked against its memory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from taylor.base.console import log, run_command, start_logging
from taylor.base.errors import InfeasibleError
from taylor.command_lines.arguments import CommandParser, command_text, int_list, positive_float, positive_int
from taylor.schemas.writing import print_document


def build_parser(program: str = "taylor check") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Price a layer-wise strategy file, your own or that of another planner: its step is played task by task, its "
        "memory checked stage by stage, on the costs of the profiles. Exits with 3 where the plan fails the check.",
        "galvatron_config_llama.json --profiles configs hardware_configs --hidden 4096 --seq 8192 --memory 36",
    )
    parser.add_argument("file", metavar="FILE", help="galvatron_config_*.json or fine_grained_config.json")
    add_job_options(parser)
    parser.add_argument("--world_size", type=positive_int, metavar="N", help="ranks, where the file does not say them")
    return parser


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Layer-wise job, and the source of its costs."""
    group = parser.add_argument_group("job")
    explained = "folders with Galvatron's profiles"
    group.add_argument("--profiles", nargs="+", required=True, metavar="FOLDER", help=explained)
    group.add_argument("--model", metavar="NAME", help="the model, where a folder has several: bf16_llama2-7b")
    group.add_argument("--hidden", type=positive_int, required=True, metavar="N", help="width of the hidden states")
    group.add_argument("--seq", type=positive_int, required=True, metavar="N", help="tokens a sample")
    group.add_argument("--memory", type=positive_float, required=True, metavar="GB", help="memory of a rank, GB")
    group.add_argument("--layers", type=int_list, default=(), metavar="N,...", help="layers by kind, where several are")
    group.add_argument("--kv_hidden", type=positive_int, metavar="N", help="width of keys, where fewer heads have them")
    group.add_argument(
        "--reduce_every_micro_batch", action="store_true", help="gradients are reduced in every micro-batch"
    )
    group.add_argument(
        "--global_memory_buffer", action="store_true", help="gathered hidden states keep a buffer of their own"
    )
    group = parser.add_argument_group("costs")
    group.add_argument(
        "--costs", default="taylor", choices=("taylor", "galvatron"),
        help="true rules on the measured tables, or Galvatron's own model (default: taylor)",
    )  # fmt: skip
    group.add_argument("--time_mode", metavar="MODE", help="of Galvatron's model: static, batch or sequence")
    group.add_argument("--memory_mode", metavar="MODE", help="of Galvatron's model: static or sequence")
    group.add_argument(
        "--sp_space", choices=("tp", "tp+sp"), default="tp+sp",
        help="of its port to Paddle: tp prices collectives by bandwidth (default: tp+sp)",
    )  # fmt: skip
    group.add_argument(
        "--whole_mib", action="store_true", help="a layer's memory counts in whole MiB, as in Galvatron's search"
    )


def run(arguments: Sequence[str], program: str = "taylor check") -> None:
    """Parse, check, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.report.layerwise import check_pairs, stage_table
    from taylor.report.measured import layerwise_table, plan_text
    from taylor.report.terminal import print_pairs, print_table
    from taylor.workflows.layerwise.layerwise import LayerwiseRequest, check_file
    from taylor.workflows.statement.options import Origin

    request = LayerwiseRequest(
        tuple(Path(each) for each in args.profiles), args.seq, args.hidden, args.memory, args.costs, args.model,
        args.time_mode, args.memory_mode, args.sp_space == "tp", args.kv_hidden, args.reduce_every_micro_batch,
        global_buffer=args.global_memory_buffer, whole_mib=args.whole_mib, by_kind=args.layers,
    )  # fmt: skip
    checked = check_file(Path(args.file), request, args.world_size)
    for note in (*checked.file.notes, *checked.warnings):
        log.warning("%s", note)
    if args.json:
        print_document("taylor.check/1", checked.to_dict(Origin(command_text(program, arguments))))
    else:
        print(plan_text(checked.plan))
        print_table(layerwise_table(checked.plan))
        if checked.found.stages:
            print_table(stage_table(checked.found))
            print_pairs([("costs", request.costs_text()), *check_pairs(checked.found, checked.plan, checked.formula_s)])
    if checked.found.faults:
        raise InfeasibleError(f"{args.file}: fails the check: {' '.join(checked.found.faults)}")


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
