"""Command line: number of layers, and of recomputed ones, on each pipeline stage of one configuration."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.budget import TimeBudget
from taylor.base.console import log, run_command, start_logging
from taylor.base.documents import RESULT
from taylor.base.errors import InputError
from taylor.base.near import did_you_mean
from taylor.command_lines.arguments import (
    SHELL_HELP,
    CommandParser,
    add_encoder_options,
    add_environment_options,
    add_measured_options,
    add_module_options,
    add_output_folder,
    add_planning_options,
    add_start_options,
    asked_margin,
    chosen_folder,
    chosen_path,
    command_text,
    dryrun_options,
    inputs_of,
    key_values,
    named_device,
    non_negative_float,
    note_without_effect,
    path_or_none,
    positive_float,
    positive_int,
    refuse_unknown_solver,
    refuse_without_effect,
    stated_length,
    time_ratio,
    yes_no,
)
from taylor.command_lines.cluster import add_cluster_option, add_store_option, chosen_cluster, chosen_store
from taylor.command_lines.model_start import (
    MODEL_HELP,
    OF_SOFTWARE,
    add_framework_option,
    add_software_options,
    model_job,
    model_path,
)
from taylor.command_lines.source_file import add_file, file_started, place_file
from taylor.cost_model.profile import TimeRatios
from taylor.parsers.export import export_names
from taylor.parsers.read import config_of
from taylor.parsers.stage_comment import rows_of
from taylor.pipeline.plan import FULL, SELECT
from taylor.pipeline.schedule import AUTO, SEARCHED_NAMES, schedule_names
from taylor.schemas.writing import print_document

if TYPE_CHECKING:
    from taylor.workflows.running.run_folder import ResultsFolder
    from taylor.workflows.searching.model_job import ChosenStrategy
    from taylor.workflows.showing.planned_file import PlannedFile
    from taylor.workflows.statement.options import Export, FileJob, Outputs


SOURCES = {"yaml", "shell", "toml", "hf", "model"}
WITH_EXTRACT = {"config", "verbose", "quiet", "json", "extract", "solution", "export", *SOURCES}
"""Flags with an effect where a saved solution is printed."""

OF_A_SOLVE = {"o", "encoder", "stage_order", "t", "what_if", "what_next", "gap", "mps_form", "solver_name", "workers"}
"""Flags without effect where nothing is solved."""

OF_A_MODEL = {"seq", "fix", "cluster", "framework", *OF_SOFTWARE}
"""Flags for values that only a model's configuration leaves open."""

OF_A_RUN = {"measured_peak", "out_of_memory"}
"""Flags for what a run of the plan in the file showed."""

FIXED = TimeRatios()
"""Time ratios of the older tool."""


def count_or_auto(text: str) -> int | str:
    """Type of a count that the tool may choose."""
    return AUTO if text.strip().lower() == AUTO else positive_int(text)


def stage_devices(text: str) -> tuple[tuple[str, int], ...]:
    """Type of ``NAME:N,NAME:N``; an omitted number is 1."""
    try:
        return rows_of(text)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None


def export_form(text: str) -> Export:
    """Type of ``FORM`` or ``FORM=FILE``."""
    from taylor.workflows.statement.options import Export

    form, _, file = text.partition("=")
    if form not in export_names():
        raise argparse.ArgumentTypeError(f"{form!r} is no form of export; {did_you_mean(form, export_names())}")
    return Export(form, path_or_none(file))


def build_parser(program: str = "pipeline_parallel.py") -> CommandParser:
    """Every flag of the command, with its default; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Solve one training configuration: layers and recompute of every pipeline stage, proven optimal.",
        "config/pretrain_llama3_70b.yaml -evaluate y",
    )
    add_file(parser)
    source = parser.add_argument_group("configuration (one is required)")
    source.add_argument("-yaml", metavar="FILE", help="MindFormers, FlagScale or Primus YAML")
    source.add_argument("-shell", metavar="FILE", help=SHELL_HELP)
    add_start_options(source)
    source.add_argument("-toml", metavar="FILE", help="torchtitan TOML")
    source.add_argument(
        "-hf", metavar="FILE", help="Hugging Face config.json or its folder; with --world_size its strategy is searched"
    )
    source.add_argument("--model", metavar="NAME|FILE", help=MODEL_HELP)
    source.add_argument("-mindformers", metavar="PATH", help="run_mindformer.py or its folder, for dry-runs")
    model = parser.add_argument_group(
        "the job", "What a model alone (--model, -hf) does not say, or a file is to say otherwise."
    )
    model.add_argument(
        "--world_size",
        type=positive_int,
        metavar="N",
        help="ranks to plan for: of a model, its strategy is searched; of a file, its data parallelism follows, "
        "and its batch where the file states that of each rank",
    )
    model.add_argument(
        "--seq", type=positive_int, metavar="TOKENS", help="of a model: tokens a sample (default: 4096 at most)"
    )
    model.add_argument(
        "--gbs", type=positive_int, metavar="SAMPLES", help="samples a step (default: the file's, else 1024)"
    )
    model.add_argument(
        "--fix", type=key_values, default={}, metavar="tp=8,...", help="of a model: degrees that are given"
    )
    add_framework_option(model)
    add_software_options(model)
    times = parser.add_argument_group("time ratios", "What is not given is estimated for the job on its device.")
    times.add_argument(
        "-ratios",
        choices=("estimated", "fixed"),
        default="estimated",
        metavar="fixed",
        help="what is not given: the older tool's fixed values (default: estimated)",
    )
    for flag, what, fixed in (
        ("-layer_ratio", "dense over MoE forward", FIXED.dense_forward),
        ("-b_ratio", "backward over forward", FIXED.backward),
        ("-head_loss", "head and loss over forward", FIXED.head),
        ("-ra_ratio", "full recompute over forward", FIXED.recompute[FULL]),
        ("-sr_ratio", "selective recompute over forward", FIXED.recompute[SELECT]),
    ):
        times.add_argument(flag, type=time_ratio, metavar="R", help=f"{what} (fixed: {fixed:g})")
    solving = parser.add_argument_group("solving")
    solving.add_argument(
        "--solver",
        "-solver_name",
        dest="solver_name",
        default="HIGHS",
        metavar="NAME",
        help="HIGHS, HIGHS-MILP, CBC, or any solver Pyomo finds (default: %(default)s)",
    )
    solving.add_argument(
        "--time_limit",
        "-t",
        dest="t",
        type=positive_float,
        metavar="SECONDS",
        help="limit of the whole command (default: none)",
    )
    solving.add_argument(
        "-select",
        type=yes_no,
        default=False,
        metavar="y/n",
        help="search selective recompute too (default: n, but for a file that itself recomputes so)",
    )
    add_module_options(solving)
    solving.add_argument(
        "--lend",
        default="",
        metavar="mirror|STAGE:LENDER,...",
        help="choose layers whose saved activations lie on another stage: 0:7,1:7 lets stages 0 and 1 keep them on "
        "stage 7, mirror pairs the first half with the second; such a plan is not written (default: none)",
    )
    solving.add_argument(
        "--tensors",
        type=yes_no,
        default=False,
        metavar="y/n",
        help="choose for every saved tensor of a layer whether it is kept, made again or moved to the host; such a "
        "plan is not written (default: n)",
    )
    add_encoder_options(solving)
    solving.add_argument(
        "--offload_optimizer",
        type=yes_no,
        default=False,
        metavar="y/n",
        help="choose whether the optimizer's states lie on the host, of all stages or of none (default: n)",
    )
    solving.add_argument(
        "-vpp",
        type=count_or_auto,
        metavar="N|auto",
        help="virtual stages; auto tries what can run (default: from the file)",
    )
    solving.add_argument(
        "-schedule",
        choices=(*schedule_names(), *SEARCHED_NAMES, AUTO),
        metavar="NAME",
        help="one of " + ", ".join((*schedule_names(), *SEARCHED_NAMES, AUTO)),
    )
    solving.add_argument(
        "--stage_devices",
        type=stage_devices,
        default=(),
        metavar="NAME:N,...",
        help="stages on several kinds of devices, the number in a row on each, in this order; kept in the written file "
        "(default: as the file says, else all on --device)",
    )
    solving.add_argument(
        "--stage_order",
        choices=("listed", "groups", "any"),
        default="listed",
        help="their orders to try: as listed, the rows of stages in any order, or any order (default: %(default)s)",
    )
    solving.add_argument(
        "-low_mem", type=yes_no, metavar="y/n", help="low-memory interleaving (default: from the file)"
    )
    solving.add_argument(
        "-evaluate",
        type=yes_no,
        default=False,
        metavar="y/n",
        help="report the plan in the file, solve nothing (default: n)",
    )
    solving.add_argument(
        "-workers", type=positive_int, default=os.cpu_count() or 1, metavar="N", help="processes (default: cores)"
    )
    add_planning_options(parser)
    memory = parser.add_argument_group("memory")
    memory.add_argument("-memory", metavar="FILE", help="memory profile (JSON) instead of a dry-run")
    memory.add_argument(
        "-dryrun_data_dir",
        metavar="DIR",
        help="logs of earlier dry-runs of the plan in the file instead of running any",
    )
    memory.add_argument("-dryrun", type=yes_no, default=True, metavar="y/n", help="get memory by dry-run (default: y)")
    memory.add_argument("-check", type=yes_no, default=True, metavar="y/n", help="dry-run the result too (default: y)")
    add_measured_options(memory)
    results = parser.add_argument_group("results")
    results.add_argument("-o", metavar="FILE", help="write the solved configuration here (default: in place)")
    results.add_argument(
        "-write", type=yes_no, default=True, metavar="y/n", help="write the configuration (default: y)"
    )
    results.add_argument(
        "-extract", type=yes_no, default=False, metavar="y/n", help="print a saved solution (default: n)"
    )
    results.add_argument("-solution", metavar="FILE", help="the saved solution: a .sol or a result JSON")
    results.add_argument(
        "-mps_form",
        choices=("compact", "full"),
        default="compact",
        help="model file: compact with path cuts, or one variable a task (default: %(default)s)",
    )
    results.add_argument(
        "--export",
        type=export_form,
        action="append",
        default=[],
        metavar="FORM[=FILE]",
        help="the plan for another launcher, printed or in a file: " + ", ".join(export_names()) + "; may be repeated, "
        "and goes with -extract y and a result JSON too",
    )
    results.add_argument("--result_json", metavar="FILE", help="the result as JSON")
    add_output_folder(results)
    results.add_argument("--trace", metavar="FILE", help="Chrome trace of the step")
    results.add_argument("--html", metavar="FILE", help="report page")
    results.add_argument(
        "--what_if",
        action="store_true",
        help="solve again with 2 GiB more, 2 GiB less and one micro-batch more, and say what changes",
    )
    results.add_argument(
        "--what_next",
        type=non_negative_float,
        default=3.0,
        metavar="SECONDS",
        help="longest time of the solves that say which changes would gain most; 0 for none (default: %(default)g)",
    )
    results.add_argument("--png", metavar="FILE", help="picture of the pipeline (.png or .svg)")
    add_environment_options(parser)
    add_cluster_option(parser)
    add_store_option(parser)
    return parser


def run(arguments: Sequence[str], program: str = "pipeline_parallel.py") -> None:
    """Parse, solve, print."""
    args = build_parser(program).parse(arguments)
    place_file(args)
    with file_started(args, "shell"):
        _run(args, arguments, program)


def _run(args: argparse.Namespace, arguments: Sequence[str], program: str) -> None:
    """Solve, print."""
    budget = TimeBudget.of(args.t)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    if args.extract:
        _print_saved(args)
        return
    source = _source(args)
    with chosen_folder(args) as folder:
        _plan(args, source, _outputs(args, folder, command_text(program, arguments)), budget, arguments, program)


def _plan(
    args: argparse.Namespace,
    source: str,
    outputs: Outputs,
    budget: TimeBudget,
    arguments: Sequence[str],
    program: str,
) -> None:
    """Plan, print, and refuse at the end what was requested and could not be written."""
    from taylor.workflows.showing.planned_outputs import refuse_outputs, refuse_unwritten

    refuse_outputs(outputs)
    # An evaluation takes less time than its result as data: it is stored only in a named store.
    store = None
    if args.store or (outputs.work is None and not args.evaluate):
        store = chosen_store(args, outputs.folder)
    of_a_model = bool(args.hf or args.model) and not _names_a_run(args)
    path = model_path(args, outputs.work_folder) if args.model and of_a_model else config_of(Path(source))
    if args.world_size is not None and of_a_model:
        from taylor.workflows.searching.model_job import SECONDS_CHOSEN

        chosen = _searched(args, path, budget, outputs.work_folder)
        path = chosen.path
        outputs = replace(outputs, origin=replace(outputs.origin, software=chosen.software, runner_up=chosen.runner_up))
        if args.t is None:
            args.t, budget = SECONDS_CHOSEN, TimeBudget.of(SECONDS_CHOSEN)
            log.info("the proof of its plan may take %g s; -t gives it another limit", SECONDS_CHOSEN)
    job = _file_job(args, path)
    if not (args.hf or args.model) and (args.world_size is not None or args.gbs is not None):
        from taylor.workflows.statement.restated_file import on_asked

        job = on_asked(job, args.world_size, args.gbs, outputs.work_folder)
    if outputs.work in job.path.parents and outputs.write and outputs.write_to is None:
        log.warning("no file keeps the plan: -o names one")
        outputs = replace(outputs, write=False)
    solved = _solved(args, job, outputs, budget)
    if store is not None:
        from taylor.workflows.measuring.history import remember_solve

        remembered = remember_solve(store, program, arguments, solved)
        if remembered is not None:
            log.info("remembered as %s: taylor history %s", remembered, remembered)
    if args.json:
        print_document(RESULT, solved.result().to_dict())
    else:
        _print(solved, verbose=args.verbose)
    refuse_unwritten(solved.unwritten)


def _print_saved(args: argparse.Namespace) -> None:
    """Print a saved solution, and its exports."""
    from taylor.workflows.showing.extract import describe_saved_solution
    from taylor.workflows.statement.export import export_saved, print_exports, store_exports

    note_without_effect(args, args.given.keys() - WITH_EXTRACT, "with -extract y, which prints a saved solution")
    if not args.solution:
        raise InputError("is needed with -extract y", field="-solution", cure="name a .sol or a result JSON")
    for flag in (spelling for name, spelling in args.given.items() if name in SOURCES):
        log.info("%s: not read, the saved solution says it all", flag)
    if args.json and Path(args.solution).suffix == ".json":
        from taylor.pipeline_solver.solving.result import read_result

        print_document(RESULT, read_result(Path(args.solution)).to_dict())
        return
    description = describe_saved_solution(Path(args.solution))
    texts = export_saved(args.export, Path(args.solution)) if args.export else []
    print(description)
    print_exports(texts)
    for role, name in store_exports(texts).items():
        print(f"{role}: {name}")


def _source(args: argparse.Namespace) -> str:
    """Configuration to plan, once the flags are known to go together.

    Raises
    ------
    InputError
        With the flag and the cure.
    """
    refuse_without_effect(args, {"solution"}, "without -extract y", "add -extract y to print it")
    if args.evaluate:
        note_without_effect(args, OF_A_SOLVE, "with -evaluate y, which solves and writes no plan")
    else:
        refuse_unknown_solver(args.solver_name)
    sources = [path for path in (args.yaml, args.shell, args.toml, args.hf, args.model) if path]
    if len(sources) != 1:
        field = "FILE, -yaml, -shell, -toml, -hf, --model"
        raise InputError("exactly one configuration is needed", field=field, value=sources)
    if not (args.hf or args.model):
        refuse_without_effect(args, OF_A_MODEL, "without --model or -hf: the file says it itself")
    elif args.world_size is None:
        refuse_without_effect(args, {*OF_A_MODEL, "gbs"}, "without --world_size", "name the ranks to plan for")
    if not args.measured_peak:
        refuse_without_effect(args, {"peak_of"}, "without --measured_peak")
    if args.memory:
        refuse_without_effect(args, {"dryrun_data_dir"}, "with -memory, which states the memory")
    return _file_that_ran(args) if _names_a_run(args) and (args.hf or args.model) else str(sources[0])


def _names_a_run(args: argparse.Namespace) -> bool:
    """Return whether flags state what a run of the plan in the file showed."""
    return bool(args.measured_peak or args.out_of_memory)


def _file_that_ran(args: argparse.Namespace) -> str:
    """File that an earlier command wrote for a model, whose run is measured: its strategy stays.

    Raises
    ------
    InputError
        When there is none.
    """
    flags = " and ".join(spelling for name, spelling in args.given.items() if name in OF_A_RUN)
    if not args.o or not Path(args.o).is_file():
        raise InputError(
            "is of a run, and -o names no file that can have run", field=flags,
            cure="name the file that ran with -shell, -yaml or -toml, or with -o as when it was written",
        )  # fmt: skip
    log.info("%s: of the run of %s, whose strategy stays", flags, args.o)
    return str(args.o)


def _outputs(args: argparse.Namespace, folder: ResultsFolder, command: str) -> Outputs:
    """Paths of the results of a command line."""
    from taylor.workflows.statement.options import Origin, Outputs

    return Outputs(
        folder=folder.path,
        work=None if folder.work == folder.path else folder.work,
        write=args.write,
        write_to=path_or_none(args.o),
        result_json=path_or_none(args.result_json),
        trace=path_or_none(args.trace),
        html=path_or_none(args.html),
        picture=path_or_none(args.png),
        exports=args.export,
        what_if=args.what_if,
        next_seconds=0.0 if args.evaluate else args.what_next,
        mps_form=args.mps_form,
        origin=Origin(command),
    )


def _file_job(args: argparse.Namespace, path: Path) -> FileJob:
    """Job of a configuration as the flags state it."""
    from taylor.workflows.statement.measured_run import MeasuredRun
    from taylor.workflows.statement.options import AskedModules, FileJob, RatioChoice

    return FileJob(
        path=path,
        ratios=RatioChoice(
            dense_forward=args.layer_ratio,
            backward=args.b_ratio,
            head=args.head_loss,
            recompute=args.ra_ratio,
            select=args.sr_ratio,
            fixed=args.ratios == "fixed",
        ),
        memory_file=path_or_none(args.memory),
        dryrun=args.dryrun,
        check=args.check,
        dryruns=dryrun_options(args, args.mindformers),
        device=named_device(args),
        register_path=chosen_path(args.register_path),
        search_select=args.select if "select" in args.given else None,
        modules=AskedModules(args.recompute_modules, args.offload),
        lend=args.lend,
        tensors=args.tensors,
        images=inputs_of(args),
        encoder=args.encoder,
        offload_optimizer=args.offload_optimizer,
        vpp=args.vpp,
        schedule=args.schedule,
        low_memory=args.low_mem,
        dryrun_data=path_or_none(args.dryrun_data_dir),
        margin=asked_margin(args),
        length=stated_length(args),
        stage_devices=args.stage_devices,
        stage_order=args.stage_order,
        allow_illegal=args.allow_illegal,
        made_for_model=bool((args.hf or args.model) and args.world_size) and not _names_a_run(args),
        measured=MeasuredRun(args.measured_peak, args.out_of_memory, args.peak_of),
        stage_limits=args.stage_limit,
    )


def _solved(args: argparse.Namespace, job: FileJob, outputs: Outputs, budget: TimeBudget) -> PlannedFile:
    """Configuration with its plan, evaluated or solved."""
    if args.evaluate:
        from taylor.workflows.solving.evaluate_file import evaluate_file

        return evaluate_file(job, outputs)
    from taylor.pipeline_solver.model.options import SolveOptions
    from taylor.report.terminal import live_line
    from taylor.workflows.solving.solve_file import solve_file

    how = SolveOptions(solver=args.solver_name, time_limit=args.t, gap=args.gap, workers=args.workers)
    with live_line("solving") as on_progress:
        return solve_file(job, how, outputs, on_progress, budget)


def _print(solved: PlannedFile, *, verbose: bool) -> None:
    """Print a planned file: its plan, its figures, the files written, and the verdict last."""
    from taylor.report.breakdown import comparison_table
    from taylor.report.terminal import print_pairs, print_pipeline, print_plan, print_table, print_verdict
    from taylor.workflows.showing.dryrun_result import closed_forms, stage_memories
    from taylor.workflows.showing.fit import UNKNOWN_FIT, Fit
    from taylor.workflows.showing.verdict import (
        alternative_lines,
        order_lines,
        over_text,
        split_lines,
        summary,
        units_line,
        verdict,
    )
    from taylor.workflows.statement.export import print_exports

    known = {Fit.DOES_NOT_FIT: "the plan does not fit:", Fit.AT_RISK: "the plan exceeds the risk:"}
    answer = known.get(solved.fit.fit, f"{UNKNOWN_FIT}: by the prediction it is")
    if over := over_text(solved.solution, answer):
        print(over)
    if verbose:
        print_pipeline(solved.problem, solved.solution)
    print_plan(solved.problem, solved.solution)
    print_pairs(summary(solved))
    if verbose:
        print_pairs([("solver", solved.solution.solver), ("units", units_line(solved))])
    if measured := stage_memories(solved.dryrun):
        assert solved.dryrun is not None
        print_table(comparison_table(measured, closed_forms(solved.dryrun.run), solved.memory.device_limit_mib))
    print_pairs(alternative_lines(solved))
    print_pairs(split_lines(solved))
    print_pairs(order_lines(solved))
    print_exports(solved.exports)
    print_pairs(solved.files.items())
    print_verdict(verdict(solved))
    print_pairs(("next", one.sentence) for one in solved.following)


def _searched(args: argparse.Namespace, path: Path, budget: TimeBudget, folder: Path) -> ChosenStrategy:
    """Configuration that the search of a model's strategy writes, and what it was chosen before."""
    from taylor.pipeline_solver.model.options import SolveOptions
    from taylor.workflows.searching.model_job import chosen_strategy

    how = SolveOptions(solver=args.solver_name, time_limit=budget.left, gap=args.gap)
    with chosen_cluster(args) as executor:
        return chosen_strategy(model_job(args, path), how, args.workers, folder, executor)


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
