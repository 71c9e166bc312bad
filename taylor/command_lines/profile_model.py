"""Command line: time and memory of a model's layers, from two numbers of layers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from taylor.base.console import log, run_command, start_logging
from taylor.command_lines.arguments import CommandParser, positive_float, positive_int


def build_parser(program: str = "taylor profile model") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Measure what a layer takes by running a model with two numbers of layers: your own training command behind "
        "--, with {layers}, {batch}, {length}, {tp} and {recompute} where it takes them, or built-in layers. Writes "
        "Galvatron's profile; a killed run goes on where it was.",
        "--profile_type computation --profile_mode batch --profile_max_batch_size 8 -- bash train.sh {layers} {batch}",
    )
    from taylor.profiling.measuring.model_plan import COMPUTATION, MEMORY, MODES, ModelPlan

    usual = ModelPlan()
    group = parser.add_argument_group("profile")
    group.add_argument("--profile_type", choices=(COMPUTATION, MEMORY), default=COMPUTATION, help="what is measured")
    group.add_argument("--profile_mode", choices=MODES, default=MODES[0], help="what varies: nothing, batch, sequence")
    for flag, text in (
        ("--profile_fixed_batch_size", "samples a rank"),
        ("--profile_min_batch_size", "least samples of the mode batch (default: 1)"),
        ("--profile_max_batch_size", "most samples of it"),
        ("--profile_batch_size_step", "their step (default: 1)"),
        ("--profile_min_seq_length", "least tokens of the mode sequence (default: 4096)"),
        ("--profile_max_seq_length", "most tokens of it"),
        ("--profile_seq_length_step", "their step (default: 4096)"),
    ):
        group.add_argument(flag, type=positive_int, metavar="N", help=text)
    group.add_argument("--profile_fixed_seq_length_list", metavar="N,...", default="", help="tokens (default: 4096)")
    group.add_argument(
        "--profile_mixed_precision", choices=("bf16", "fp16", "fp32"), default="bf16", help="computing in"
    )
    for flag, default, text in (
        ("--layernum_min", usual.layers_min, "fewer layers"),
        ("--layernum_max", usual.layers_max, "more layers"),
        ("--num_layertype", usual.layer_types, "kinds of layers; {layers} is then a list"),
        ("--max_tp_deg", usual.max_tp, "largest TP of a memory profile"),
        ("--repeats", usual.repeats, "samples of a built-in run"),
        ("--attempts", usual.attempts, "tries of one whose samples scatter by more than 5 %%"),
        ("--hidden", usual.hidden, "of built-in layers: hidden size"),
        ("--heads", usual.heads, "of built-in layers: heads"),
        ("--ffn", usual.ffn, "of built-in layers: width of the gated MLP"),
        ("--vocab", usual.vocab, "of built-in layers: vocabulary"),
    ):
        group.add_argument(flag, type=positive_int, metavar="N", default=default, help=f"{text} (default: %(default)s)")
    from taylor.workflows.measuring.profile_model import PEAK_PATTERN, STATES_PATTERN, TIME_PATTERN

    command = parser.add_argument_group("your command")
    command.add_argument("--time_pattern", default=TIME_PATTERN, metavar="RE", help="a step's ms in its log")
    command.add_argument("--states_pattern", default=STATES_PATTERN, metavar="RE", help="memory between steps, MiB")
    command.add_argument("--peak_pattern", default=PEAK_PATTERN, metavar="RE", help="memory at most, MiB")
    command.add_argument(
        "--timeout", type=positive_float, metavar="S", default=3600.0, help="seconds a run (default: %(default)g)"
    )
    results = parser.add_argument_group("results")
    results.add_argument("--model_name", default="model", metavar="NAME", help="in the files' names (default: model)")
    results.add_argument("--output_path", metavar="DIR", default="./output/configs", help="(default: %(default)s)")
    return parser


def run(arguments: Sequence[str], program: str = "taylor profile model") -> None:
    """Parse, measure, print."""
    words = list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    args = build_parser(program).parse(words[:cut])
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.base.errors import InputError
    from taylor.profiling.measuring.model_plan import BATCH, SEQUENCE, ModelPlan
    from taylor.workflows.measuring.profile_model import ModelProfileOptions, lengths_between, profile_model

    if args.layernum_max <= args.layernum_min:
        raise InputError("must be above --layernum_min", field="--layernum_max", value=args.layernum_max)
    if not args.model_name.replace("-", "").replace(".", "").isalnum():
        raise InputError("must be of letters, digits, - and .", field="--model_name", value=args.model_name)
    if args.heads % args.max_tp_deg or args.ffn % args.max_tp_deg or args.hidden % args.heads:
        cure = "heads and --ffn are split over TP, --hidden over the heads"
        raise InputError("does not divide the layer", field="--max_tp_deg", value=args.max_tp_deg, cure=cure)
    try:
        fixed = [int(word) for word in args.profile_fixed_seq_length_list.split(",") if word.strip()]
        if any(length < 1 for length in fixed):
            raise ValueError
    except ValueError:
        value = args.profile_fixed_seq_length_list
        raise InputError("must be lengths with commas", field="--profile_fixed_seq_length_list", value=value) from None
    batches: tuple[int, ...] = (args.profile_fixed_batch_size or 1,)
    lengths = tuple(fixed[:1]) or (4096,)
    if args.profile_mode == BATCH:
        batches = lengths_between(
            args.profile_min_batch_size, args.profile_max_batch_size, args.profile_batch_size_step, ()
        )
    if args.profile_mode == SEQUENCE:
        least, step = args.profile_min_seq_length or 4096, args.profile_seq_length_step or 4096
        lengths = lengths_between(least, args.profile_max_seq_length, step, fixed)
    plan = ModelPlan(
        args.profile_type, args.profile_mode, batches, lengths, args.layernum_min, args.layernum_max,
        args.num_layertype, args.max_tp_deg, args.profile_mixed_precision, args.model_name, args.hidden, args.heads,
        args.ffn, args.vocab, args.repeats, args.attempts,
    )  # fmt: skip
    done = profile_model(
        ModelProfileOptions(
            plan,
            Path(args.output_path),
            tuple(words[cut + 1 :]),
            args.time_pattern,
            args.states_pattern,
            args.peak_pattern,
            args.timeout,
        )
    )
    for note in done.notes:
        log.warning("%s", note)
    for path in done.files:
        print(path)


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
