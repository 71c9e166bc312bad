"""Command line: the best strategy of every layer, division and micro-batches at once, from measured costs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from taylor.base.budget import TimeBudget
from taylor.base.console import log, progress, run_command, start_logging
from taylor.base.errors import InfeasibleError, InterruptedSolve, NoSolutionError
from taylor.command_lines.arguments import (
    CommandParser,
    command_text,
    int_list,
    non_negative_float,
    non_negative_int,
    path_or_none,
    positive_float,
    positive_int,
    relative_gap,
    yes_no,
)
from taylor.command_lines.galvatron_names import (
    add_manual_names,
    settle_manual_names,
    unless_minus_one,
    with_script,
)
from taylor.schemas.writing import print_document

if TYPE_CHECKING:
    from taylor.workflows.layerwise.layerwise_search import SearchedJob
    from taylor.workflows.statement.options import Origin


def zero_list(text: str) -> tuple[int, ...]:
    """Type of ``2,3``: ZeRO stages."""
    parts = [part.strip() for part in text.split(",")]
    if not parts or any(part not in ("0", "2", "3") for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} must name ZeRO stages of 0, 2 and 3: 2,3")
    return tuple(sorted({int(part) for part in parts}))


def any_degree(text: str) -> int:
    """Type of a largest degree; -1 is none."""
    return -1 if text.strip() == "-1" else positive_int(text)


def build_parser(program: str = "taylor layerwise") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Find the strategy of every layer, the division over stages and the micro-batches at once, with a proven gap, "
        "from Galvatron's profiles (Hetu's or Paddle's) or from estimates. Takes the options of both of its search "
        "programs, and the YAML of Hetu's. The plan of Galvatron's own search stands beside it.",
        "configs hardware_configs --world_size 8 --layers 32 --hidden 4096 --seq 8192 --memory 36 --gbs 64",
    )
    explained = "folders with profiles, profiles themselves, and the search's search_dist.sh or search_dist.yaml"
    parser.add_argument("paths", nargs="*", metavar="PATH", help=explained)
    group = parser.add_argument_group("job")
    group.add_argument("--model", "--model_size", metavar="NAME", help="the model, where a folder has several")
    group.add_argument("--world_size", type=positive_int, metavar="N", help="ranks")
    group.add_argument("--num_nodes", type=positive_int, metavar="N", help="nodes, where ranks are not given")
    group.add_argument("--num_gpus_per_node", type=positive_int, metavar="N", help="cards of each node")
    group.add_argument("--layers", "--layernum_list", type=int_list, metavar="N,...", help="layers, by kind")
    group.add_argument("--layernum", type=positive_int, metavar="N", help="layers of all kinds together")
    group.add_argument("--num_layertype", type=positive_int, metavar="N", help="kinds of layers")
    group.add_argument("--hidden", "--hidden_size_list", type=int_list, metavar="N", help="width of the hidden states")
    group.add_argument("--seq", "--seqlen_list", "--seq_length", type=int_list, metavar="N", help="tokens a sample")
    group.add_argument("--kv_hidden", type=positive_int, metavar="N", help="width of keys, where fewer heads have them")
    group.add_argument(
        "--memory", "--memory_constraint", "--memory_upper_limit", type=positive_float, metavar="GB",
        help="memory of a rank, GB",
    )  # fmt: skip
    group.add_argument(
        "--mixed_precision",
        "--mixed_precision_type",
        choices=("bf16", "fp16", "fp32"),
        help="precision (default: bf16)",
    )
    group.add_argument("--sequence_parallel", type=yes_no, nargs="?", const=True, metavar="y/n",
        help="of TP layers (default: y)")  # fmt: skip
    group.add_argument(
        "--reduce_every_micro_batch", action="store_true", help="gradients are reduced in every micro-batch"
    )
    group.add_argument("--global_memory_buffer", type=yes_no, nargs="?", const=True, metavar="y/n",
        help="gathered hidden states keep a buffer of their own (default: n)")  # fmt: skip
    group = parser.add_argument_group("batch")
    group.add_argument("--gbs", "--settle_bsz", type=unless_minus_one(positive_int), metavar="N", help="samples a step")
    group.add_argument("--min_bsz", type=positive_int, metavar="N", help="least batch, where it is searched")
    group.add_argument("--max_bsz", type=positive_int, metavar="N", help="largest batch")
    group.add_argument("--bsz_scale", "--bsz_step", type=positive_int, metavar="N", help="step between batches")
    group.add_argument(
        "--micro_batches", "--settle_chunk", type=unless_minus_one(int_list), metavar="N,...",
        help="micro-batches a step (default: every divisor of the batch)",
    )  # fmt: skip
    group = parser.add_argument_group("space")
    group.add_argument("--pp", type=int_list, metavar="N,...", help="numbers of stages (default: all)")
    group.add_argument("--vpp", type=int_list, default=(1,), metavar="N,...", help="virtual stages (default: 1)")
    group.add_argument("--pipeline_type", choices=("gpipe", "pipedream_flush"), help="(default: pipedream_flush)")
    for name, what in (
        ("dp", "data"), ("tp", "tensor"), ("sp", "Ulysses"), ("cp", "context"), ("pp", "pipeline"),
    ):  # fmt: skip
        default = "y" if name == "cp" else "n"
        group.add_argument(
            f"--disable_{name}", type=yes_no, metavar="y/n", help=f"no {what} parallelism (default: {default})"
        )
    group.add_argument("--disable_ckpt", type=yes_no, metavar="y/n", help="no recompute")
    group.add_argument("--disable_fsdp", type=yes_no, metavar="y/n", help="no ZeRO-3")
    group.add_argument("--disable_sdp", type=yes_no, metavar="y/n", help="no ZeRO-3 of embedding and head")
    group.add_argument(
        "--disable_embedding_lmhead_tp", "--disable_vtp", type=yes_no, metavar="y/n",
        help="no tensor parallel embedding and head",
    )  # fmt: skip
    group.add_argument(
        "--disable_embedding_lmhead_sp", type=yes_no, metavar="y/n", help="no Ulysses for embedding and head"
    )
    group.add_argument("--max_tp_deg", "--max_tp_size", type=any_degree, metavar="N", help="largest TP degree")
    group.add_argument("--max_pp_deg", "--max_pp_size", type=any_degree, metavar="N", help="most stages")
    group.add_argument("--max_sp_deg", type=any_degree, metavar="N", help="largest Ulysses degree")
    group.add_argument("--max_cp_deg", type=any_degree, metavar="N", help="largest CP degree")
    group.add_argument("--zeros", type=zero_list, metavar="0,2,3", help="ZeRO stages of replicated layers")
    group.add_argument(
        "--default_dp_type", choices=("ddp", "zero2", "zero3"), help="Hetu's name for the lesser of them"
    )
    group.add_argument("--sp_space", choices=("tp", "tp+sp", "sp"), help="tp is without Ulysses, sp with it alone")
    group.add_argument("--all_degrees", action="store_true", help="degrees that are no powers of two, too")
    group.add_argument("--offload", action="store_true", help="activations may go to the host")
    group.add_argument("--fine_grained_mode", type=int, choices=(0, 1), help="0: one strategy for all layers")
    group.add_argument("--search_granularity", choices=("fine-grained", "coarse-grained"), help="Paddle's name for it")
    group = parser.add_argument_group("costs")
    group.add_argument(
        "--costs", default="taylor", choices=("taylor", "galvatron", "estimate"),
        help="true rules on the measured tables, Galvatron's own model, or the analytical model, which needs no "
        "profiles: --model and --device (default: taylor)",
    )  # fmt: skip
    group.add_argument("--device", metavar="NAME", help="of --costs estimate: a registered device, or its file")
    group.add_argument("--time_mode", "--time_profile_mode", metavar="MODE", help="static, batch or sequence")
    group.add_argument("--memory_mode", "--memory_profile_mode", metavar="MODE", help="static or sequence")
    group.add_argument(
        "--whole_mib", action="store_true", help="a layer's memory counts in whole MiB, as in Galvatron's search"
    )
    group.add_argument("--profile_gpu_num", type=positive_int, metavar="N", help="ranks that were profiled")
    group = parser.add_argument_group("profiles by name, beside or in place of folders")
    for flags, what in (
        (("--time_profile_data_path", "--time_profiling_path"), "computation"),
        (("--memory_profile_data_path", "--memory_profiling_path"), "memory"),
        (("--allreduce_coe_path", "--allreduce_bandwidth_config_path"), "all-reduces"),
        (("--p2p_coe_path", "--p2p_bandwidth_config_path"), "transfers"),
        (("--overlap_coe_path",), "slow-down under overlap"),
        (("--sp_time_path",), "collectives by size"),
    ):
        group.add_argument(*flags, metavar="PATH", help=f"{what}: the file or its folder")
    group = parser.add_argument_group("search")
    group.add_argument(
        "--time_limit", "-t", dest="t", type=non_negative_float, metavar="SECONDS", help="time limit"
    )  # fmt: skip
    group.add_argument("--gap", type=relative_gap, default=1e-3, metavar="G", help="gap to prove (default: 0.001)")
    group.add_argument(
        "--rival", type=yes_no, default=True, metavar="y/n", help="search Galvatron's plan too (default: y)"
    )
    group.add_argument(
        "--parallel_search", type=yes_no, metavar="y/n", help="several processes bound outer choices (default: y)"
    )
    group.add_argument("--worker", type=non_negative_int, metavar="N", help="how many (default, and 0: cores)")
    group.add_argument("--log_dir", metavar="PATH", help="taken, without effect: what was tried is in the results")
    add_manual_names(parser)
    group = parser.add_argument_group("results")
    group.add_argument("-o", "--output_config_path", dest="output_config_path", metavar="PATH",
        help="strategy file, or the folder it goes to (default: ./output/layerwise)")  # fmt: skip
    group.add_argument("--to", choices=("hetu", "paddle"), help="form of the strategy file (default: as the profiles)")
    group.add_argument("--result_json", metavar="FILE", help="write it, too")
    group.add_argument("--html", metavar="FILE", help="write a page")
    group.add_argument("--trace", metavar="FILE", help="write a Chrome trace of the step")
    group.add_argument("--mps", metavar="FILE", help="write the MILP of the plan's batch and stages, for any solver")
    group.add_argument("--png", metavar="FILE", help="draw the step; the suffix gives the form")
    return parser


def run(arguments: Sequence[str], program: str = "taylor layerwise") -> None:
    """Parse, search, write, print."""
    args = build_parser(program).parse(with_script(arguments))
    manual_notes = settle_manual_names(args)
    budget = TimeBudget.of(args.t)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.command_lines.layerwise_options import search_request
    from taylor.workflows.layerwise.layerwise_outputs import Wanted, write_outputs
    from taylor.workflows.layerwise.layerwise_search import search_job
    from taylor.workflows.showing.planned_outputs import refuse_unwritten
    from taylor.workflows.statement.options import Origin

    options, request = search_request(args)
    for note in (*manual_notes, *options.notes):
        log.warning("%s", note)
    wanted = Wanted(
        path_or_none(args.output_config_path or options.get("output_config_path")), args.to,
        path_or_none(args.result_json), path_or_none(args.html), path_or_none(args.trace), path_or_none(args.png),
        options.batch_settled, path_or_none(args.mps),
    )  # fmt: skip
    wanted.refuse_unwritable()
    with progress("layer-wise search", None) as moved:
        searched = search_job(request, report=lambda text: log.info("%s", text), moved=moved, budget=budget)
    written = write_outputs(searched, wanted)
    for note in written.notes:
        log.warning("%s", note)
    _print(args, searched, written.files, Origin(command_text(program, arguments)))
    if searched.result.plan is None:
        _refuse(searched)
    if searched.result.interrupted:
        raise InterruptedSolve("interrupted: the plan is the best so far")
    refuse_unwritten(written.unwritten)


def _print(args: argparse.Namespace, searched: SearchedJob, files: dict[str, str], origin: Origin) -> None:
    if args.json:
        print_document("taylor.layerwise/1", {**searched.to_dict(origin), "files": files})
        return
    from taylor.report.layerwise import stage_table, tried_table
    from taylor.report.measured import layerwise_table, plan_text
    from taylor.report.terminal import print_pairs, print_table
    from taylor.workflows.layerwise.layerwise_outputs import found_pairs

    plan = searched.result.plan
    for line in searched.assumed:
        print(line)
    if plan is not None:
        print(plan_text(plan))
        print_table(layerwise_table(plan))
    if searched.found is not None:
        print_table(stage_table(searched.found))
    print_table(tried_table(searched.result))
    print_pairs([*found_pairs(searched), *(("written", f"{file}") for file in files.values())])


def _refuse(searched: SearchedJob) -> None:
    result = searched.result
    if result.interrupted:
        raise InterruptedSolve("interrupted before any plan was found")
    if result.most_samples_a_s > 0:
        raise NoSolutionError("the time limit ended the search before any plan was found; give it more time, -t")
    why = f"; {len(result.left_out)} strategies had no cost: {result.left_out[0]}" if result.left_out else ""
    raise InfeasibleError(
        f"no strategy of {searched.job.layers} layers fits {searched.job.limit_mib / 1024:g} GB on "
        f"{searched.job.world} ranks; raise --memory, the ranks, or allow more kinds of parallelism{why}"
    )


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
