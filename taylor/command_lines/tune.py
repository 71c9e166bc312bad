"""Command line: small runs of your own training script, and the laws of its network."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.console import log, run_command, start_logging
from taylor.command_lines.arguments import (
    CommandParser,
    path_or_none,
    positive_float,
    positive_int,
    risk_share,
)
from taylor.command_lines.source_file import add_file, place_file

if TYPE_CHECKING:
    from taylor.parsers.small_run import RunSetting
    from taylor.workflows.tuning.tune import Covered, Tuned, Written
    from taylor.workflows.tuning.tune_search import FullSize
    from taylor.workflows.tuning.tune_switches import Compared


MANUAL_NAMES = {
    f"{tuner}_{its}": ours
    for tuner in ("auto_tuning", "auto_settings")
    for its, ours in (("work_dir", "work_dir"), ("ranks", "world_size"), ("log_level", "log_level"))
}
"""Options of the manuals of MindSpeed's tuners and the flags that they are here: v2.1.0_core_r0.8.0
docs/features/auto_tuning.md:55-63, 028de58c docs/zh/features/auto_settings.md:70-79."""


def build_parser(program: str = "taylor tune") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Cut your own training script down to a few small runs on the cards available, start them one after another "
        "with the profiler on, find the laws of every operator, collective and tensor, and predict the best plans of "
        "the whole job, each verified by a small run and written as a script: no network has to be known. A killed run "
        "goes on where it was; your file is not touched.",
        "pretrain.sh --nnodes 2 --nproc-per-node 8 --dry",
        MANUAL_NAMES,
    )
    add_file(parser)
    group = parser.add_argument_group("job")
    names = ("--shell_path", "--yaml_path", "--toml_path")
    group.add_argument(
        *names,
        metavar="FILE",
        help="Megatron or MindSpeed script, torchtitan's TOML; with --dry MindFormers' or Primus' YAML",
    )
    group.add_argument(
        "--search",
        default="tp,cp,ep,pp,vpp,mbs,replicas",
        metavar="D,...",
        help="degrees that vary (default: all; replicas: torchtitan's dp_replicate); modules: recompute by module too",
    )
    group.add_argument("--tokens", type=positive_int, metavar="N", help="tokens of a sample in small runs")
    group.add_argument("--world_size", type=positive_int, metavar="N", help="ranks of the job (the script's)")
    group.add_argument("--gbs", type=positive_int, metavar="N", help="samples of a step (the script's)")
    group.add_argument("--memory_gib", type=positive_float, metavar="G", help="memory of a card that a plan may take")
    group.add_argument(
        "--risk", type=risk_share, metavar="P%", help="how often a stage may take more than its upper limit (1%%)"
    )
    group.add_argument(
        "--switches",
        default="",
        metavar="S,...",
        help="compare these by small runs: mc2, token_permute, alltoall_overlap, cp_ring, cp_ulysses",
    )
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
    runs.add_argument("--no_verify", action="store_true", help="start no small run for each of the best plans")
    runs.add_argument(
        "--full_size", action="store_true", help="start each of the best plans itself for a few steps, on all its cards"
    )
    runs.add_argument(
        "--html", metavar="FILE", help="page: runs, laws, best plans, predicted beside measured, what to run next"
    )
    manual = parser.add_argument_group(
        "options of MindSpeed's manual (also --auto-tuning-work-dir, --auto-tuning-ranks, --auto-settings-...)"
    )
    for name in ("--auto_tuning", "--auto_settings"):
        manual.add_argument(name, action="store_true", help="accepted, no effect: its own tuner is not started")
    manual.add_argument(
        "--log_level", choices=("debug", "info", "warning"), default="info", help="debug: --verbose, warning: --quiet"
    )
    manual.add_argument(
        "--auto_settings_type", choices=("black", "white", "mixed"), help="accepted: every network is unknown here"
    )
    manual.add_argument(
        "--target_nnodes", type=positive_int, metavar="N", help="nodes of the job, where --world_size is not given"
    )
    kept = parser.add_argument_group("operator base (see taylor operators)")
    kept.add_argument("--base", metavar="FILE", help="fill it from the runs, and look the job's operators up in it")
    kept.add_argument("--device", default="", metavar="NAME", help="the card of the runs (its memory, if registered)")
    kept.add_argument("--driver", default="", metavar="TEXT", help="its driver; versions never mix")
    kept.add_argument("--toolkit", default="", metavar="TEXT", help="version of CANN or CUDA; versions never mix")
    return parser


def run(arguments: Sequence[str], program: str = "taylor tune") -> int | None:
    """Parse, tune, print."""
    args = build_parser(program).parse(arguments)
    place_file(args, "_path")
    start_logging(verbose=args.verbose or args.log_level == "debug", quiet=args.quiet or args.log_level == "warning")
    from taylor.base.errors import InputError
    from taylor.base.files import refuse_unwritable
    from taylor.blackbox.memory_laws import RISK
    from taylor.blackbox.operator_base import OperatorOrigin
    from taylor.blackbox.small_runs import MODULES, SEARCHABLE
    from taylor.workflows.tuning.tune import TuneOptions, memory_of, tune

    if args.shell_path is None:
        cure = "name the script that starts the training: taylor tune pretrain.sh"
        raise InputError("is missing", field="FILE", cure=cure)
    searched = [word.strip() for word in args.search.split(",") if word.strip()]
    unknown = [word for word in searched if word not in (*SEARCHABLE, MODULES)]
    if unknown or not searched:
        cure = f"known are {', '.join((*SEARCHABLE, MODULES))}"
        raise InputError("names no degree", field="--search", value=", ".join(unknown), cure=cure)
    if args.node_rank is not None and args.node_rank < 0:
        raise InputError("must be at least 0", field="--node_rank", value=args.node_rank)
    if args.base is not None and not args.device:
        raise InputError("is missing", field="--device", cure="name the card that the small runs are measured on")
    page = path_or_none(args.html)
    if page is not None:
        refuse_unwritable(page, "--html")
    origin = OperatorOrigin(args.device or "this cluster", args.driver, args.toolkit)
    limit = args.memory_gib * 2**30 if args.memory_gib else memory_of(args.device)
    done = tune(
        TuneOptions(
            Path(args.shell_path),
            Path(args.work_dir),
            nodes=args.nnodes,
            per_node=args.nproc_per_node,
            master_addr=args.master_addr,
            master_port=args.master_port,
            node_rank=args.node_rank,
            searched=searched,
            tokens=args.tokens,
            timeout_s=args.timeout,
            dry=args.dry,
            retry=args.retry,
            base=path_or_none(args.base),
            origin=origin,
            ranks=args.world_size,
            job_nodes=args.target_nnodes,
            batch=args.gbs,
            limit=limit,
            verify=not args.no_verify,
            risk=args.risk or RISK,
            switches=[word.strip() for word in args.switches.split(",") if word.strip()],
            full_size=args.full_size,
        )
    )
    _print(done)
    _print_plans(done)
    if page is not None:
        from taylor.workflows.tuning.tune_page import write_tune_page

        write_tune_page(page, done, Path(args.shell_path), limit)
        print(f"html: {page}")
    return _exit_code(done, dry=args.dry, first=not args.node_rank)


def _exit_code(done: Tuned, *, dry: bool, first: bool) -> int | None:
    """0 for a plan, or where none was to be found here: by a dry tune, or on another node than the first."""
    from taylor.base.errors import EXIT_NO_SOLUTION, EXIT_OUTSIDE_PROGRAM

    ended = [one.ended for one in done.runs if one.ended is not None]
    if ended and all(ended):
        log.error("all %d small runs failed: %s", len(ended), ended[0])
        return EXIT_OUTSIDE_PROGRAM
    if dry or not first or (done.searched is not None and done.searched.best):
        return None
    log.error("no plan was found: %s", done.not_searched or "too few small runs ended with a profile")
    return EXIT_NO_SOLUTION


def _print(done: Tuned) -> None:
    own, machines = done.sizes.own, done.machines
    experts = f", {own.experts} experts" if own.experts > 1 else ""
    print(f"job: {own.layers} layers{experts}, {own.seq:,} tokens a sample, {done.ranks:,} ranks")
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
    if done.law_summary is None:
        return
    laws = done.law_summary
    print(
        f"operators: {laws.operators}; {laws.settled} with exact laws, {laws.ambiguous} with several, "
        f"{laws.scattered} that scatter, {laws.lawless} without"
    )
    print("they run: " + ", ".join(f"{text} ({count})" for text, count in laws.conditions))
    base = done.runs[0].run.setting
    for further in laws.deciding:
        change = base.differences(further.setting)
        print(f"undecided: a run with {change} distinguishes the laws of {len(further.fits)} sizes")
    print(f"laws: {done.laws}")
    if done.covered is not None:
        _print_covered(done.covered, base)


def _print_covered(covered: Covered, base: RunSetting) -> None:
    coverage = covered.coverage
    print(
        f"job at its own degrees: {covered.operators} operators predicted, {covered.unsure} not settled; the base has "
        f"{100 * coverage.by_count:.0f} % of those that compute, {100 * coverage.by_time:.0f} % of their time"
    )
    if covered.further is not None:
        change = base.differences(covered.further.setting)
        shown, missing = covered.further.shown, len(coverage.unknown)
        print(f"further run: with {change} it shows {shown} of the {missing} that are missing")


def _print_plans(done: Tuned) -> None:
    if done.not_searched:
        print(f"no plan searched: {done.not_searched}")
    if done.searched is None:
        return
    found, sizes = done.searched, done.sizes
    print(
        f"laws on the small runs' own passes: {found.own_error:.1%} off in the middle, {found.own_worst:.1%} at most; "
        f"{found.found.legal} choices of degrees can start, {found.found.solved} were solved exactly"
    )
    for sentence in found.assumed:
        print(f"assumed: {sentence}")
    copies = ("replicas",) if sizes.weights is not None else ()
    rows = [("", "dp", *copies, "tp", "pp", "vpp", "cp", *(("ep",) if sizes.own.experts > 1 else ()), "mbs", "step ms",
             "interval", "GiB", "at most", "verified: predicted, measured ms")]  # fmt: skip
    for place, one in enumerate(found.best, 1):
        run, verified = one.ranked.run, one.verified
        degrees = [
            run.dp,
            *[run.replicas for _ in copies],
            run.tp,
            run.pp,
            run.vpp,
            run.cp,
            *([run.ep] if sizes.own.experts > 1 else []),
            run.mbs,
        ]
        words = "-" if one.before_ms is None else "the base has its operators"
        if verified is not None:
            words = f"{verified.run}: {verified.predicted_ms:.1f}, {verified.measured_ms:.1f}"
        rows.append((str(place), *map(str, degrees), f"{one.ranked.step_ms:,.1f}",
                     f"{one.low_ms:,.0f}-{one.high_ms:,.0f}", f"{one.peak / 2**30:.1f}", f"{one.upper / 2**30:.1f}",
                     words))  # fmt: skip
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for place, one in enumerate(found.best, 1):
        layers = "; ".join(",".join(map(str, row)) for row in one.ranked.plan.total_layers())
        written = one.script or "its flags cannot say it"
        print(f"plan {place}: layers {layers}; recomputed {one.recomputed}; {written}")
        for each in one.switches:
            print(f"  {_switch(each)}")
        if one.full_size is not None:
            print(f"  {_full_size(one.full_size)}")
    print(f"as JSON: {found.file}")


def _full_size(one: FullSize) -> str:
    if one.step_ms is None:
        return f"at full size: failed, see {one.run}"
    peak = "" if one.peak is None else f", at most {one.peak / 2**30:.1f} GiB"
    return f"at full size: {one.step_ms:,.1f} ms{peak}"


def _switch(one: Compared) -> str:
    state, flag = "on" if one.on else "off", one.switch.flag
    if math.isinf(one.after_ms):
        return f"{one.switch.name} ({flag}): its small run failed; {state}"
    lacks = "" if one.fits else f", no memory for {one.memory:.2f} times the tensors"
    return (
        f"{one.switch.name} ({flag}): a layer takes {one.before_ms:.1f} ms, switched {one.after_ms:.1f}{lacks}; {state}"
    )


def _state(one: Written) -> str:
    if one.ended is None:
        return "written"
    return f"failed ({one.ended})" if one.ended else f"ran in {one.seconds:.0f} s"


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
