"""Command line: search the parallel strategies of a model, and on request solve and rank the best."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.console import log, run_command, start_logging
from taylor.base.errors import InputError, InterruptedSolve
from taylor.base.near import did_you_mean
from taylor.base.shipped import own_or_shipped
from taylor.command_lines.arguments import (
    SHELL_HELP,
    CommandParser,
    add_encoder_options,
    add_environment_options,
    add_measured_options,
    add_module_options,
    add_planning_options,
    add_start_options,
    asked_margin,
    chosen_path,
    command_text,
    dryrun_options,
    inputs_of,
    key_values,
    named_device,
    names,
    note_without_effect,
    path_or_none,
    positive_float,
    positive_int,
    refuse_encoder_beside,
    refuse_unknown_solver,
    refuse_without_effect,
    stated_length,
)
from taylor.command_lines.cluster import add_cluster_option, add_store_option, chosen_cluster, chosen_store
from taylor.command_lines.model_start import (
    MODEL_HELP,
    OF_SOFTWARE,
    add_framework_option,
    add_software_options,
    model_path,
    software_of,
)
from taylor.command_lines.ranking import add_ranking_options, print_files, remember_ranking
from taylor.command_lines.source_file import add_file, file_started, place_file
from taylor.schemas.writing import print_document

if TYPE_CHECKING:
    from taylor.workflows.searching.layerwise_refine import Refinement
    from taylor.workflows.searching.search import StrategySearch, StrategySearchOptions

DIMENSIONS = ("dp", "tp", "pp", "ep", "cp", "op", "sp", "vpp", "mbs", "ulysses")

OF_A_RANKING = {
    "solver_name", "workers", "time_limit", "gap", "train_tokens", "samples", "prove", "topn", "store",
    "recompute_modules", "offload", "layerwise",
}  # fmt: skip
"""Flags without effect where nothing is solved."""

DEFAULT_OUTPUT = "./output/nd_output/"

DEFAULT_CONFIGURATION = "./config/pretrain_deepseek3_128p.yaml"


def build_parser(program: str = "parallel_tool.py") -> CommandParser:
    """Every flag of the command, with its default; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Search the parallel strategies of a training configuration, prune them by rules and memory, and emit "
        "configurations to profile; with --full also solve the pipeline of the best and rank them.",
        "config/pretrain_llama3_70b.yaml --full",
    )
    add_file(parser)
    source = parser.add_argument_group("model configuration")
    source.add_argument(
        "--yaml_path", metavar="FILE", help=f"MindFormers, FlagScale or Primus YAML (default: {DEFAULT_CONFIGURATION})"
    )
    source.add_argument("--shell_path", metavar="FILE", help=SHELL_HELP)
    add_start_options(source)
    source.add_argument("--toml_path", metavar="FILE", help="torchtitan TOML")
    source.add_argument("--hf_path", metavar="FILE", help="Hugging Face config.json or its folder; needs --world_size")
    source.add_argument("--model", metavar="NAME|FILE", help=MODEL_HELP)
    source.add_argument(
        "--mindformers_dir",
        metavar="PATH",
        default="./mindformers",
        help="folder or path of run_mindformer.py (default: %(default)s)",
    )
    source.add_argument(
        "--dataset",
        metavar="FILE",
        default="./config/dataset/wiki103-4k.mindrecord",
        help="data set written into profile files (default: %(default)s)",
    )
    space = parser.add_argument_group("search")
    space.add_argument("--gbs", type=positive_int, metavar="N", help="global batch size (default: the file's)")
    space.add_argument(
        "--world_size",
        type=positive_int,
        metavar="N",
        help="ranks to plan for (default: the file's DP x TP x PP x CP)",
    )
    space.add_argument("--seq", type=positive_int, metavar="TOKENS", help="with --model: tokens a sample")
    space.add_argument(
        "--search",
        type=names,
        default=("dp", "tp", "pp", "ep"),
        metavar="DIMS",
        help="dimensions searched, of " + ",".join(DIMENSIONS) + " (default: dp,tp,pp,ep)",
    )
    space.add_argument("--fix", type=key_values, default={}, metavar="tp=8,...", help="pin dimensions")
    add_framework_option(space)
    add_software_options(space)
    for dimension, word in (("data", "DP"), ("tensor", "TP"), ("pipeline", "PP"), ("context", "CP")):
        space.add_argument(
            f"--max_{dimension}_parallel", type=positive_int, metavar="N", help=f"largest {word} searched"
        )
    space.add_argument(
        "--max_expert_parallel",
        type=positive_int,
        default=64,
        metavar="N",
        help="largest EP searched (default: %(default)s)",
    )
    space.add_argument(
        "--recompute",
        choices=("best", "none", "full"),
        default="best",
        help="recompute assumed for peakMem (default: %(default)s: what fits most)",
    )
    space.add_argument(
        "--profile_num",
        type=positive_int,
        default=20,
        metavar="N",
        help="configurations to emit for profiling (default: %(default)s)",
    )
    space.add_argument(
        "--rank_num", type=positive_int, default=64, metavar="N", help="cards free for profiling (default: %(default)s)"
    )
    space.add_argument(
        "--disable_rule", action="append", default=[], metavar="NAME", help="leave a rule out; may be repeated"
    )
    space.add_argument("--list_rules", action="store_true", help="print the rules and stop")
    space.add_argument(
        "--explain", metavar="DPx_TPx_PPx_EPx", help="say what one strategy needs and which rule removes it, and stop"
    )
    measured = parser.add_argument_group("earlier measurements")
    measured.add_argument("--dryrun_data_dir", metavar="DIR", help="use these dry-run logs instead of running any")
    measured.add_argument("--profile_data_dir", metavar="DIR", help="use these profiles: go on to parsing and solving")
    results = parser.add_argument_group("solving and results")
    results.add_argument("--full", action="store_true", help="go on through ratios, solving, ranking and report")
    results.add_argument(
        "--solver",
        "--solver_name",
        dest="solver_name",
        default="HIGHS",
        metavar="NAME",
        help="solver of the pipeline (default: %(default)s)",
    )
    results.add_argument("--workers", type=positive_int, metavar="N", help="solves at once (default: cores)")
    results.add_argument(
        "--time_limit", type=positive_float, metavar="SECONDS", help="limit of one solve (default: none)"
    )
    results.add_argument(
        "--layerwise",
        action="store_true",
        help="refine the best candidates: every layer a strategy of its own, on estimates under Galvatron; "
        "--time_limit applies to each (default: 60 s)",
    )
    add_ranking_options(results)
    add_module_options(results)
    add_encoder_options(results)
    add_measured_options(parser.add_argument_group("memory seen in a run of the file"))
    results.add_argument(
        "--output_path",
        metavar="DIR",
        default=DEFAULT_OUTPUT,
        help="where the CSV goes; YAML folders are its siblings; of another than the default, a folder "
        "pipeline_output in it takes the ranking (default: %(default)s)",
    )
    add_planning_options(parser)
    add_environment_options(parser)
    add_cluster_option(parser)
    add_store_option(parser)
    return parser


def run(arguments: Sequence[str], program: str = "parallel_tool.py") -> None:
    """Parse, search, print."""
    args = build_parser(program).parse(arguments)
    place_file(args, "_path")
    with file_started(args, "shell_path"):
        return _run(args, arguments, program)


def _run(args: argparse.Namespace, arguments: Sequence[str], program: str) -> None:
    """Search, print."""
    start_logging(verbose=args.verbose, quiet=args.quiet)
    _refuse_misfits(args)
    from taylor.workflows.searching.explain import describe_rules
    from taylor.workflows.searching.search import search_strategies

    options = _search_options(args)
    if args.list_rules:
        print(describe_rules(options))
        return
    if args.explain:
        _print_explanation(options, args.explain, as_document=args.json)
        return
    store = chosen_store(args, options.ranking.output) if options.full else None
    with chosen_cluster(args) as executor:
        done = search_strategies(options, executor)
    if done.ranking is not None:
        remember_ranking(store, program, arguments, done.ranking)
    if args.json:
        _print_json(args, done, options, command_text(program, arguments))
        return
    for role, file in done.files.items():
        print(f"{role:>12}: {file}")
    if done.ranking is None:
        return
    from taylor.report.terminal import print_ranking, print_ranking_verdict

    print_ranking(done.ranking.table, limit=args.topn, details=args.verbose)
    print_files(done.ranking)
    print_ranking_verdict(done.ranking.table)
    if args.layerwise:
        refinement = _refine(done, args.time_limit)
        _print_refined(refinement)
        _refuse_interrupted(refinement)


def _print_json(args: argparse.Namespace, done: StrategySearch, options: StrategySearchOptions, command: str) -> None:
    """Print the search as a document, after its refinement where one is wanted."""
    from taylor.workflows.searching.search_data import search_data
    from taylor.workflows.statement.options import Origin

    refinement = _refine(done, args.time_limit) if args.layerwise and done.ranking is not None else None
    print_document("taylor.search/1", search_data(done, options, Origin(command), refinement))
    if refinement is not None:
        _refuse_interrupted(refinement)


def _refuse_interrupted(refinement: Refinement) -> None:
    """Refuse a refinement that Ctrl-C has ended, once what it found is printed.

    Raises
    ------
    InterruptedSolve
    """
    if refinement.interrupted:
        raise InterruptedSolve("interrupted: the candidates that were refined until then are printed")


def _sources(args: argparse.Namespace) -> list[str]:
    return [path for path in (args.yaml_path, args.shell_path, args.toml_path, args.hf_path, args.model) if path]


def _refuse_misfits(args: argparse.Namespace) -> None:
    """Refuse flags that do not go together, and log those that have no effect.

    Raises
    ------
    InputError
        With the flag and the cure.
    """
    if len(sources := _sources(args)) > 1:
        raise InputError(
            "only one configuration can be searched",
            field="FILE, --yaml_path, --shell_path, --toml_path, --hf_path, --model",
            value=sources,
        )
    if not (args.hf_path or args.model):
        refuse_without_effect(
            args, {"seq", "framework", *OF_SOFTWARE}, "without --model or --hf_path: the file says it itself"
        )
    else:
        refuse_without_effect(args, {"measured_peak", "out_of_memory"}, "without a file that ran")
    refuse_encoder_beside(args, next(iter(sources), DEFAULT_CONFIGURATION))
    if not args.measured_peak:
        refuse_without_effect(args, {"peak_of"}, "without --measured_peak")
    if args.full or args.profile_data_dir:
        refuse_unknown_solver(args.solver_name)
    else:
        note_without_effect(args, OF_A_RANKING, "without --full: nothing is solved")
    unknown = [name for name in args.search if name not in DIMENSIONS]
    if unknown:
        raise InputError(
            "is no dimension", field="--search", value=unknown[0], cure=did_you_mean(unknown[0], DIMENSIONS)
        )


def _search_options(args: argparse.Namespace) -> StrategySearchOptions:
    """Settings of the search as the flags state them."""
    from taylor.nd_search.options import SearchOptions
    from taylor.pipeline_solver.model.options import SolveOptions
    from taylor.workflows.ranking.rank import RankOptions
    from taylor.workflows.searching.search import StrategySearchOptions
    from taylor.workflows.statement.measured_run import MeasuredRun
    from taylor.workflows.statement.options import AskedModules

    sources = _sources(args)
    path = Path(sources[0]) if sources else own_or_shipped(DEFAULT_CONFIGURATION)
    if args.hf_path or args.model:
        path = _stated(args)
    if not sources:
        log.info("configuration: %s, as none was given", path)
    maxima = {
        name: getattr(args, f"max_{word}_parallel")
        for name, word in (("dp", "data"), ("tp", "tensor"), ("pp", "pipeline"), ("cp", "context"))
    }
    return StrategySearchOptions(
        path=path,
        space=SearchOptions(
            gbs=args.gbs,
            world_size=args.world_size,
            search=args.search,
            fix=args.fix,
            bounds={name: (1, value) for name, value in maxima.items() if value},
            max_expert_parallel=args.max_expert_parallel,
            recompute=args.recompute,
            profile_num=args.profile_num,
            disabled_rules=(*args.disable_rule, *args.allow_illegal),
        ),
        dryruns=dryrun_options(args, args.mindformers_dir),
        dryrun_data=path_or_none(args.dryrun_data_dir),
        device=named_device(args),
        register_path=chosen_path(args.register_path),
        rules_path=chosen_path(args.register_path),
        output=Path(args.output_path),
        datasets={"dryrun": args.small_dataset, "profile": args.dataset},
        rank_num=args.rank_num,
        profile_data=path_or_none(args.profile_data_dir),
        full=args.full or bool(args.profile_data_dir),
        ranking=RankOptions(
            SolveOptions(args.solver_name, args.time_limit, args.gap),
            **({"workers": args.workers} if args.workers else {}),
            output=_ranking_folder(Path(args.output_path)),
            prove=args.prove,
            length=stated_length(args),
            made_for_model=bool(args.hf_path or args.model),
        ),
        margin=asked_margin(args),
        modules=AskedModules(args.recompute_modules, args.offload),
        measured=MeasuredRun(args.measured_peak, args.out_of_memory, args.peak_of),
        stage_limits=args.stage_limit,
        images=inputs_of(args),
    )


def _print_explanation(options: StrategySearchOptions, strategy: str, *, as_document: bool) -> None:
    """Print why a strategy is or is not a candidate, with its memory by stage."""
    from taylor.report.breakdown import breakdown_table, comparison_table
    from taylor.report.terminal import print_table
    from taylor.workflows.searching.explain import explain_strategy

    explanation = explain_strategy(options, strategy)
    if as_document:
        print_document("taylor.explanation/1", explanation.to_dict())
        return
    print("\n".join(explanation.reasons))
    if explanation.stages:
        print_table(breakdown_table(explanation.stages, explanation.limit_mib))
    if explanation.measured:
        print_table(comparison_table(explanation.measured, explanation.stages, explanation.limit_mib))


def _refine(done: StrategySearch, time_limit: float | None) -> Refinement:
    """Refine the best candidates layer by layer, and log those that are left out."""
    from taylor.workflows.searching.layerwise_refine import refine_best

    refinement = refine_best(done, time_limit)
    for one in refinement.left_out:
        log.warning("not refined layer by layer: %s: %s", one.name, one.reason)
    return refinement


def _print_refined(refinement: Refinement) -> None:
    from taylor.report.layerwise import refined_table
    from taylor.report.terminal import print_pairs, print_table

    if refinement.refined:
        print_table(refined_table([one.row() for one in refinement.refined]))
    for note in refinement.notes:
        print(note)
    print_pairs(refinement.files)


def _ranking_folder(output: Path) -> Path:
    """Folder of the ranking: that of pipeline_tool, or the folder that the user named for the search."""
    return Path("pipeline_output") if output == Path(DEFAULT_OUTPUT) else output / "pipeline_output"


def _stated(args: argparse.Namespace) -> Path:
    """Configuration of a model with the sequence and the batch of the job."""
    from taylor.parsers.read import config_of
    from taylor.workflows.searching.model_job import ModelJob, state_model

    if args.world_size is None:
        named = "--model" if args.model else "--hf_path"
        raise InputError(f"is needed with {named}", field="--world_size", cure="name the ranks to plan for")
    path = model_path(args, Path(args.output_path)) if args.model else Path(args.hf_path)
    job = ModelJob(
        config_of(path), args.world_size, args.seq, args.gbs, device=named_device(args),
        register_path=chosen_path(args.register_path), framework=args.framework,
        software=software_of(args),
    )  # fmt: skip
    return state_model(job, Path(args.output_path))


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
