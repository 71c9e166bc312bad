"""Command line: how many devices a training takes, for how long, for what energy and price."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.console import log, run_command, start_logging
from taylor.base.files import refuse_unwritable
from taylor.command_lines.arguments import (
    CommandParser,
    Default,
    add_images_option,
    add_legality_option,
    add_margin_options,
    add_output_folder,
    asked_margin,
    chosen_folder,
    chosen_path,
    command_text,
    inputs_of,
    key_values,
    path_or_none,
    positive_float,
    positive_int,
    token_count,
)
from taylor.command_lines.model_start import add_framework_option, add_software_options, software_of
from taylor.schemas.writing import print_document

if TYPE_CHECKING:
    from taylor.workflows.searching.size import Size


def build_parser(program: str = "taylor size") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Say how many devices a training takes: the least that fit, those that meet a deadline, speed and efficiency "
        "from few devices to many, days, device-hours, energy and price, several devices beside each other.",
        "--model llama3-70b --device h100-80g --device b200-180g --tokens 1.5T --days 30",
    )
    job = parser.add_argument_group("training")
    job.add_argument(
        "--model", metavar="NAME|FILE", required=True,
        help="a registered model's name, or a Hugging Face config.json or its folder",
    )  # fmt: skip
    job.add_argument(
        "--device", action="append", metavar="NAME", help="registered device, or its file; may be repeated"
    )
    job.add_argument("--tokens", type=token_count, metavar="TOKENS", help="of the whole training, as 1.5T or 300B")
    job.add_argument("--seq", type=positive_int, metavar="TOKENS", help="tokens a sample (default: 4096 at most)")
    job.add_argument(
        "--gbs", type=positive_int, metavar="N", help="samples a step on every number of devices (default: 1024)"
    )
    add_framework_option(job)
    add_software_options(job)
    add_images_option(job)
    job.add_argument("--fix", type=key_values, default={}, metavar="tp=8,...", help="pin dimensions")
    asked = parser.add_argument_group("question")
    asked.add_argument("--days", type=positive_float, metavar="N", help="deadline of the training; needs --tokens")
    asked.add_argument(
        "--min_devices", type=positive_int, default=8, metavar="N", help="first of the curve (default: %(default)s)"
    )
    asked.add_argument(
        "--max_devices", type=positive_int, default=16384, metavar="N",
        help="last of the curve, which doubles from the first (default: %(default)s)",
    )  # fmt: skip
    asked.add_argument(
        "--prices", metavar="FILE",
        help="CSV of device,watts,price_per_hour (and currency) of your own: energy and price follow from it",
    )  # fmt: skip
    asked.add_argument(
        "--time_limit", "-t", dest="t", type=positive_float, metavar="SECONDS",
        help="time after which no further solve begins",
    )  # fmt: skip
    asked.add_argument("--workers", type=positive_int, metavar="N", help="solves at once (default: cores)")
    asked.add_argument("--picture", metavar="FILE", help="write the curves as a picture (.png, .svg or .pdf)")
    asked.add_argument(
        "--register_path", metavar="DIR", default=Default("./register/"),
        help="folder of your own registrations (default: %(default)s of the tool)",
    )  # fmt: skip
    add_output_folder(asked)
    memory = parser.add_argument_group("legality and margin")
    add_legality_option(memory)
    add_margin_options(memory)
    return parser


def run(arguments: Sequence[str], program: str = "taylor size") -> None:
    """Parse, size, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    picture = path_or_none(args.picture)
    if picture is not None:
        from taylor.report.picture import refuse_format

        refuse_format(picture)
        refuse_unwritable(picture, "--picture")
    with chosen_folder(args) as folder:
        found = _sized(args, folder.work)
    if picture is not None:
        from taylor.report.picture import write_figure

        log.info("written: %s", write_figure(found.plot, picture))
    if args.json:
        from taylor.workflows.statement.options import Origin

        print_document("taylor.size/1", found.to_dict(Origin(command_text(program, arguments))))
    else:
        _print(found)


def _sized(args: argparse.Namespace, output: Path) -> Size:
    """Answer to the question that the flags state."""
    from taylor.parsers.tables.device_prices import read_device_prices
    from taylor.workflows.searching.model_job import ModelJob, model_file
    from taylor.workflows.searching.size import SizeOptions, size

    register = chosen_path(args.register_path)
    options = SizeOptions(
        args.tokens, args.days, args.min_devices, args.max_devices,
        {} if args.prices is None else read_device_prices(Path(args.prices)),
        **({"workers": args.workers} if args.workers else {}), seconds=args.t,
    )  # fmt: skip
    path = model_file(args.model, output, register, args.override)
    jobs = [
        ModelJob(
            path, options.most, args.seq, args.gbs, fix=args.fix, device=device, register_path=register,
            framework=args.framework, software=software_of(args), margin=asked_margin(args),
            allow_illegal=args.allow_illegal, images=inputs_of(args),
        )
        for device in dict.fromkeys(args.device or [None])
    ]  # fmt: skip
    return size(jobs, options, output)


def _print(found: Size) -> None:
    """Print the curves, the answers beside each other, and the answers in words last."""
    from taylor.report.size import answer_lines, beside, question_text, size_table
    from taylor.report.terminal import print_pairs, print_table

    data = found.to_dict()
    for device in data["devices"]:
        print_table(size_table(device))
        print()
    if len(data["devices"]) > 1:
        print_table(beside(data))
        print()
    pairs = [("training", question_text(data))]
    pairs += [(device["device"], line) for device in data["devices"] for line in answer_lines(device, data)]
    print_pairs(pairs)


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
