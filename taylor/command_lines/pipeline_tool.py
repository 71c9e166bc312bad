"""Command line: solve the pipeline of every candidate in a folder and rank them by step time."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.console import log, run_command, start_logging
from taylor.base.errors import InputError
from taylor.command_lines.arguments import (
    CommandParser,
    Default,
    add_encoder_options,
    add_environment_options,
    add_measured_options,
    add_module_options,
    add_planning_options,
    add_start_options,
    asked_margin,
    chosen_or_there,
    chosen_path,
    command_text,
    dryrun_options,
    inputs_of,
    key_values,
    named_device,
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
    model_job,
    model_path,
)
from taylor.command_lines.ranking import ALL, add_ranking_options, add_shard_option, print_files, remember_ranking
from taylor.command_lines.source_file import files_started
from taylor.schemas.writing import print_document

if TYPE_CHECKING:
    from taylor.workflows.ranking.shard import Shard

_WHERE_AND_HOW = "folders shard workers topn report output_path yaml_path verbose quiet json cluster store"
DECIDES_NO_SOLVE = frozenset(_WHERE_AND_HOW.split())
"""Flags by destination that may differ between the shards of one ranking."""


def build_parser(program: str = "pipeline_tool.py") -> CommandParser:
    """Every flag of the command, with its default; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Solve the pipeline of every candidate configuration and rank them by step time.",
        "--parser_result ./config/profiling_result.csv",
    )
    add_options(parser)
    add_shard_option(parser)
    return parser


def add_options(parser: CommandParser) -> None:
    """Add all flags of a ranking but ``--shard``."""
    source = parser.add_argument_group("candidates")
    source.add_argument(
        "--yaml_path",
        metavar="DIR",
        default="./output/dryrun_yaml/",
        help="folder of candidate files (default: %(default)s)",
    )
    source.add_argument(
        "--mindformers_dir",
        metavar="PATH",
        default="./mindformers/run_mindformer.py",
        help="run_mindformer.py, for dry-runs (default: %(default)s)",
    )
    source.add_argument(
        "--nd_path",
        metavar="FILE",
        default=Default("./config/nd_result.csv"),
        help="candidates' CSV with their peak memory (default: %(default)s)",
    )
    source.add_argument(
        "--gbs",
        type=positive_int,
        metavar="N",
        help="global batch size (default: the files' own)",
    )
    add_start_options(source)
    model = parser.add_argument_group("candidates of a model", "In place of a folder: its quickest strategies.")
    model.add_argument("--model", metavar="NAME|FILE", help=MODEL_HELP)
    model.add_argument("--world_size", type=positive_int, metavar="N", help="ranks to plan for")
    model.add_argument("--seq", type=positive_int, metavar="TOKENS", help="tokens a sample (default: 4096 at most)")
    model.add_argument("--fix", type=key_values, default={}, metavar="tp=8,...", help="degrees that are given")
    add_framework_option(model)
    add_software_options(model)
    times = parser.add_argument_group("time ratios")
    times.add_argument(
        "--ratios",
        "--parser_result",
        dest="parser_result",
        metavar="FILE",
        help="CSV dp,tp,pp,ep,dmratio,bfratio,re_grow_ration,hratio,moe_bw; others are estimated",
    )
    times.add_argument(
        "--profile_data_dir",
        metavar="DIR",
        default=Default("./profile_data/"),
        help="profiles to parse when there is no CSV (default: %(default)s)",
    )
    solving = parser.add_argument_group("solving and results")
    solving.add_argument(
        "--solver", "--solver_name", dest="solver_name", default="HIGHS", metavar="NAME",
        help="solver (default: %(default)s)",
    )  # fmt: skip
    solving.add_argument(
        "--workers", type=positive_int, default=os.cpu_count() or 1, metavar="N", help="processes (default: cores)"
    )
    solving.add_argument(
        "--time_limit", type=positive_float, metavar="SECONDS", help="limit of one solve (default: none)"
    )
    add_ranking_options(solving)
    add_module_options(solving)
    add_encoder_options(solving)
    add_measured_options(parser.add_argument_group("memory seen in a run of the file that was searched"))
    solving.add_argument(
        "--output",
        "--output_path",
        dest="output_path",
        metavar="DIR",
        default="./pipeline_output/",
        help="folder of the table, the page and the run's files (default: %(default)s)",
    )
    solving.add_argument(
        "--report",
        metavar="FILE|on|off",
        default="on",
        help="HTML report: on (beside the CSV), off, or a file (default: %(default)s)",
    )
    add_planning_options(parser)
    add_environment_options(parser)
    add_cluster_option(parser)
    add_store_option(parser)


def run(arguments: Sequence[str], program: str = "pipeline_tool.py") -> None:
    """Parse, solve, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    rank_candidates(args, arguments, program)


def deciding_flags(args: argparse.Namespace) -> dict[str, str]:
    """Inputs of a ranking's plans apart from its candidates: flags that differ from their defaults, as text."""
    given = {name: vars(args)[name] for name in sorted(args.given) if name not in DECIDES_NO_SOLVE}
    return {name: ALL if value is None else str(value) for name, value in given.items()}


def rank_candidates(args: argparse.Namespace, arguments: Sequence[str], program: str) -> None:
    """Solve, print and store, from parsed flags; every candidate is read as it is started."""
    if args.model:
        refuse_without_effect(args, {"env", "model_as"}, "with --model: no file is started")
    with files_started(args):
        _rank_candidates(args, arguments, program)


def _rank_candidates(args: argparse.Namespace, arguments: Sequence[str], program: str) -> None:
    refuse_unknown_solver(args.solver_name)
    if args.model:
        named = {"yaml_path", "measured_peak", "out_of_memory"}
        refuse_without_effect(args, named, "with --model, whose strategies are searched")
    else:
        refuse_without_effect(
            args,
            {"world_size", "seq", "fix", "framework", *OF_SOFTWARE},
            "without --model: the files say it themselves",
        )
    if not args.measured_peak:
        refuse_without_effect(args, {"peak_of"}, "without --measured_peak")
    from taylor.pipeline_solver.model.options import SolveOptions
    from taylor.report.terminal import print_ranking, print_ranking_verdict
    from taylor.workflows.ranking.candidates import rank_folder
    from taylor.workflows.ranking.rank import RankOptions
    from taylor.workflows.showing.planned_outputs import refuse_unwritten
    from taylor.workflows.statement.measured_run import MeasuredRun
    from taylor.workflows.statement.options import AskedModules

    refuse_encoder_beside(args, args.model or args.yaml_path)
    shard = _shard(args)
    store = chosen_store(args, Path(args.output_path))
    switch = args.report.strip().lower()
    report: Path | bool = {"on": True, "y": True, "off": False, "n": False}.get(switch, Path(args.report))
    with chosen_cluster(args) as executor:
        ranking = rank_folder(
            _strategies(args) if args.model else Path(args.yaml_path),
            RankOptions(
                SolveOptions(args.solver_name, args.time_limit, args.gap),
                workers=args.workers,
                report=report,
                output=Path(args.output_path),
                prove=args.prove,
                length=stated_length(args),
                made_for_model=bool(args.model),
            ),
            device=named_device(args),
            register_path=chosen_path(args.register_path),
            dryruns=dryrun_options(args, args.mindformers_dir),
            parser_result=path_or_none(args.parser_result),
            profile_data=chosen_or_there(args.profile_data_dir),
            gbs=None if args.model else args.gbs,
            nd_path=chosen_or_there(args.nd_path),
            margin=asked_margin(args),
            modules=AskedModules(args.recompute_modules, args.offload),
            allow_illegal=args.allow_illegal,
            measured=MeasuredRun(args.measured_peak, args.out_of_memory, args.peak_of),
            stage_limits=args.stage_limit,
            images=inputs_of(args),
            executor=executor,
            shard=shard,
        )
    if shard is not None:
        from taylor.workflows.ranking.shards import record_shard

        record = record_shard(shard, Path(args.yaml_path), deciding_flags(args), Path(args.output_path))
        log.info("shard %d of %d is done: taylor merge joins them; %s", shard.number, shard.of, record)
    remember_ranking(store, program, arguments, ranking)
    if args.json:
        from taylor.workflows.ranking.ranking_data import ranking_data
        from taylor.workflows.statement.options import Origin

        origin, register = Origin(command_text(program, arguments)), chosen_path(args.register_path)
        print_document("taylor.ranking/1", ranking_data(ranking, asked_margin(args), origin, register))
    else:
        print_ranking(ranking.table, limit=args.topn, details=args.verbose)
        print_files(ranking)
        print_ranking_verdict(ranking.table)
    refuse_unwritten(ranking.unwritten)


def _shard(args: argparse.Namespace) -> Shard | None:
    """Requested shard of the candidates."""
    if getattr(args, "shard", None) is None:
        return None
    if args.model:
        refuse_without_effect(args, {"shard"}, "with --model", "write its candidates with taylor search first")
    from taylor.workflows.ranking.shard import Shard

    return Shard(*args.shard)


def _strategies(args: argparse.Namespace) -> Path:
    """Folder of a model's fastest strategies, searched and written."""
    from taylor.workflows.searching.model_job import RANKED_STRATEGIES, write_strategies

    if args.world_size is None:
        raise InputError("is needed with --model", field="--world_size", cure="name the ranks to plan for")
    output = Path(args.output_path)
    job = model_job(args, model_path(args, output))
    return write_strategies(job, output, RANKED_STRATEGIES)[0].parent


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
