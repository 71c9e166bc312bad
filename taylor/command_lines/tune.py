"""Command line: small runs of your own training script, and what they tell of its network."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.console import run_command, start_logging
from taylor.command_lines.arguments import (
    CommandParser,
    path_or_none,
    positive_float,
    positive_int,
    refuse_without_effect,
)

if TYPE_CHECKING:
    from taylor.parsers.small_run import Setting
    from taylor.workflows.tune import Covered, Tuned, Written


def build_parser(program: str = "taylor tune") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Cut your own training script down to a few small runs on the cards at hand, start them one after another "
        "with the profiler on, and tell how every operator's shapes follow TP, CP, EP, the micro-batch, the sequence "
        "and the experts: no network has to be known. A killed run goes on where it was; your file is not touched.",
        "--shell_path pretrain.sh --nnodes 2 --nproc-per-node 8 --dry",
    )
    group = parser.add_argument_group("job")
    group.add_argument("--shell_path", metavar="FILE", required=True, help="Megatron or MindSpeed script")
    group.add_argument(
        "--search", default="tp,cp,ep,pp,mbs", metavar="D,...", help="degrees that small runs vary (default: all)"
    )
    group.add_argument("--tokens", type=positive_int, metavar="N", help="tokens of a sample in small runs")
    machines = parser.add_argument_group("machines of the small runs (as torchrun takes them)")
    machines.add_argument("--nnodes", type=positive_int, metavar="N", help="nodes (default: the script's)")
    machines.add_argument("--nproc_per_node", type=positive_int, metavar="N", help="cards a node (the script's)")
    machines.add_argument("--master_addr", metavar="HOST", help="address of the first node (the script's)")
    machines.add_argument("--master_port", type=positive_int, metavar="N", help="its port (the script's)")
    machines.add_argument("--node_rank", type=int, metavar="N", help="this node, from 0 (the script's)")
    runs = parser.add_argument_group("runs")
    runs.add_argument("--work_dir", default="./tune", metavar="DIR", help="of files and logs (default: %(default)s)")
    runs.add_argument("--dry", action="store_true", help="write the small runs for a scheduler, start none")
    runs.add_argument(
        "--timeout", type=positive_float, default=1800.0, metavar="S", help="seconds a run (default: %(default)g)"
    )
    runs.add_argument("--retry", action="store_true", help="start those again that failed")
    kept = parser.add_argument_group("operator base (see taylor operators)")
    kept.add_argument("--base", metavar="FILE", help="fill it from the runs, and look the job's operators up in it")
    kept.add_argument("--device", default="", metavar="NAME", help="the card of the runs, needed with --base")
    kept.add_argument("--driver", default="", metavar="TEXT", help="its driver; versions never mix")
    kept.add_argument("--toolkit", default="", metavar="TEXT", help="version of CANN or CUDA; versions never mix")
    return parser


def run(arguments: Sequence[str], program: str = "taylor tune") -> None:
    """Parse, tune, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.base.errors import InputError
    from taylor.blackbox.operator_base import Origin
    from taylor.blackbox.small_runs import SEARCHABLE
    from taylor.workflows.tune import TuneOptions, tune

    searched = [word.strip() for word in args.search.split(",") if word.strip()]
    unknown = [word for word in searched if word not in SEARCHABLE]
    if unknown or not searched:
        cure = f"known are {', '.join(SEARCHABLE)}"
        raise InputError("names no degree", field="--search", value=", ".join(unknown), cure=cure)
    if args.node_rank is not None and args.node_rank < 0:
        raise InputError("must be at least 0", field="--node_rank", value=args.node_rank)
    if args.base is None:
        refuse_without_effect(args, {"device", "driver", "toolkit"}, "without --base")
    elif not args.device:
        raise InputError("is missing", field="--device", cure="name the card that the small runs are measured on")
    origin = Origin(args.device, args.driver, args.toolkit) if args.base else None
    done = tune(
        TuneOptions(
            Path(args.shell_path), Path(args.work_dir), args.nnodes, args.nproc_per_node, args.master_addr,
            args.master_port, args.node_rank, searched, args.tokens, args.timeout, args.dry, args.retry,
            path_or_none(args.base), origin,
        )
    )  # fmt: skip
    _print(done)


def _print(done: Tuned) -> None:
    own, machines = done.sizes.own, done.machines
    experts = f", {own.experts} experts" if own.experts > 1 else ""
    print(f"job: {own.layers} layers{experts}, {own.seq:,} tokens a sample")
    print(f"small runs: {len(done.runs)} on {machines.nodes} x {machines.per_node} cards, one profile each")
    for one in done.runs:
        degrees = one.run.setting
        words = [f"dp {degrees.dp}", f"tp {degrees.tp}", f"cp {degrees.cp}", f"pp {degrees.pp}", f"mbs {degrees.mbs}"]
        if own.experts > 1:
            words += [f"ep {degrees.ep}", f"experts {degrees.experts}"]
        words += [f"layers {degrees.layers}", f"seq {degrees.seq}"]
        print(f"  {one.run.name:<12} {', '.join(words)}: {one.run.why}; {_state(one)}")
    for reason in done.left_out:
        print(f"  left out: {reason}")
    print(f"files: {done.runs[0].folder.parent}")
    if done.told is None:
        return
    told = done.told
    print(
        f"operators: {told.operators}; {told.settled} with exact laws, {told.ambiguous} with several, "
        f"{told.scattered} that scatter, {told.lawless} without"
    )
    print("they run: " + ", ".join(f"{text} ({count})" for text, count in told.conditions))
    base = done.runs[0].run.setting
    for further in told.deciding:
        change = base.differences(further.setting)
        print(f"undecided: a run with {change} tells the laws of {len(further.fits)} sizes apart")
    print(f"laws: {done.laws}")
    if done.covered is not None:
        _print_covered(done.covered, base)


def _print_covered(covered: Covered, base: Setting) -> None:
    held = covered.coverage
    print(
        f"job at its own degrees: {covered.operators} operators foretold, {covered.unsure} not settled; the base holds "
        f"{100 * held.by_count:.0f} % of those that compute, {100 * held.by_time:.0f} % of their time"
    )
    if covered.further is not None:
        change = base.differences(covered.further.setting)
        shown, missing = covered.further.shown, len(held.unknown)
        print(f"further run: with {change} it shows {shown} of the {missing} that are missing")


def _state(one: Written) -> str:
    if one.ended is None:
        return "written"
    return f"failed ({one.ended})" if one.ended else f"ran in {one.seconds:.0f} s"


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]))
