"""Command line: what can be evaluated, solved and written of a model, a device, a launcher, a precision, features."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from taylor.base.console import run_command, start_logging
from taylor.command_lines.arguments import CommandParser, path_or_none
from taylor.schemas.writing import print_document


def build_parser(program: str = "taylor support") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Say of every launcher, or of one, whether a combination can be evaluated, solved and written, and why not.",
        "--model qwen3-30b-a3b --device h100-80g --launcher megatron --precision fp8 --feature cp",
    )
    group = parser.add_argument_group("combination")
    group.add_argument("--model", metavar="NAME|FILE", help="registered model, or a config.json or its folder")
    group.add_argument("--device", metavar="NAME", help="registered device, or its file (.yaml)")
    group.add_argument("--launcher", metavar="NAME", help="one launcher (default: all)")
    group.add_argument("--precision", metavar="NAME", help="precision of the GEMMs: bf16, fp16, fp8, fp4, tf32, fp32")
    group.add_argument(
        "--feature", action="append", default=[], metavar="NAME",
        help="degree (tp, cp, …), schedule, software (cuda-graphs, …) or option of a launcher; may be repeated",
    )  # fmt: skip
    group.add_argument("--register_path", metavar="DIR", help="folder of your own registrations")
    return parser


def run(arguments: Sequence[str], program: str = "taylor support") -> None:
    """Parse, answer, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.report.support import support_table
    from taylor.report.terminal import print_pairs, print_table
    from taylor.workflows.showing.support import Question, support

    answers = support(
        Question(
            args.model,
            args.device,
            args.launcher,
            args.precision,
            tuple(args.feature),
            path_or_none(args.register_path),
        )
    )
    if args.json:
        print_document("taylor.support/1", {"launchers": [answer.to_dict() for answer in answers]})
        return
    print_table(support_table([answer.to_dict() for answer in answers]), whole=True)
    print_pairs((answer.launcher, reason) for answer in answers for reason in answer.reasons)


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
