"""Command line: Galvatron's profiles read, layers costed by strategy; its strategy files printed and rewritten."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.console import log, run_command, start_logging
from taylor.base.errors import InputError
from taylor.base.files import form_of
from taylor.command_lines.arguments import CommandParser, path_or_none
from taylor.schemas.writing import print_document

if TYPE_CHECKING:
    from taylor.workflows.layerwise.measured_costs import CostAnswer, CostRequest


def build_parser(program: str = "taylor galvatron") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Read Galvatron's profiles, of Hetu or Paddle: what they have and lack, and with --world_size what a layer "
        "costs under every strategy. Given a strategy file, show it or write it in the other form.",
        "configs hardware_configs --world_size 8 --layers 32 --hidden 4096 --seq 4096 --gbs 64 --micro_batches 8",
    )
    group = parser.add_argument_group("files")
    explained = (
        "folders with profiles, or one file: a strategy (galvatron_config_*.json, fine_grained_config.json), a job "
        "in GLOBAL mode (train_dist.sh, train_dist.yaml), or a job, arguments or history of Paddle's auto tuner"
    )
    group.add_argument("paths", nargs="*", metavar="PATH", help=explained)
    model = (
        "the model, where a folder has several: bf16_llama2-7b; of --costs estimate a registered one or a config.json"
    )
    group.add_argument("--model", metavar="NAME", help=model)
    group = parser.add_argument_group("costs of a job")
    group.add_argument("--world_size", type=int, metavar="N", help="ranks; of a strategy file that does not say them")
    group.add_argument("--layers", type=int, metavar="N", help="layers of the model")
    group.add_argument("--hidden", type=int, metavar="N", help="width of its hidden states")
    group.add_argument("--seq", type=int, metavar="N", help="tokens a sample")
    group.add_argument("--gbs", type=int, metavar="N", help="samples a step")
    group.add_argument("--micro_batches", type=int, default=1, metavar="N", help="micro-batches a step (default: 1)")
    group.add_argument("--stages", type=int, default=1, metavar="N", help="pipeline stages (default: 1)")
    group.add_argument("--kv_hidden", type=int, metavar="N", help="width of keys, where fewer heads have them")
    group.add_argument(
        "--costs", default="taylor", choices=("taylor", "galvatron", "estimate"),
        help="true rules on the measured tables, Galvatron's own model, or the analytical model, which needs no "
        "profiles: --model and --device (default: taylor)",
    )  # fmt: skip
    group.add_argument("--device", metavar="NAME", help="of --costs estimate: a registered device, or its file")
    group.add_argument("--time_mode", metavar="MODE", help="of Galvatron's model: static, batch or sequence")
    group.add_argument("--memory_mode", metavar="MODE", help="of Galvatron's model: static or sequence")
    group.add_argument(
        "--reduce_every_micro_batch", action="store_true", help="gradients are reduced in every micro-batch"
    )
    group = parser.add_argument_group("strategy files")
    group.add_argument("--to", choices=("hetu", "paddle", "global"), help="form in which the strategy is written")
    group.add_argument(
        "--script", metavar="FILE", help="a PaddleNLP launch script, written so that it trains the strategy"
    )
    group.add_argument("--profile_steps", metavar="A,B", help="steps whose pipeline jobs that script's workers log")
    group.add_argument("-o", metavar="FILE", help="where it is written (default: printed)")
    return parser


def run(arguments: Sequence[str], program: str = "taylor galvatron") -> None:
    """Parse, read, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.workflows.layerwise.measured_costs import is_folder

    paths = [Path(path) for path in args.paths]
    if args.costs == "estimate":
        _estimate(args)
        return
    if args.device is not None:
        log.warning("--device: has no effect on measured costs; --costs estimate prices a device")
    if not paths:
        cure = "name the folders of the profiles, or --costs estimate with --model and --device"
        raise InputError("is missing", field="PATH", cure=cure)
    elif not is_folder(paths):
        if not _tuner(args, paths[0]):
            _strategy(args, paths[0])
    elif args.to is not None:
        raise InputError("takes one strategy file", field="--to", cure="name the file in place of its folder")
    elif args.world_size is None:
        _folder(args, paths)
    else:
        _costs(args, paths)


def _folder(args: argparse.Namespace, paths: list[Path]) -> None:
    from taylor.parsers.galvatron.folder import read_folders
    from taylor.report.measured import folder_pairs, laws_table
    from taylor.report.terminal import print_pairs, print_table
    from taylor.workflows.layerwise.measured_costs import folder_record, known_laws

    folder = read_folders(paths)
    if args.json:
        print_document("taylor.profiles/1", folder_record(folder))
        return
    print_pairs(folder_pairs(folder))
    laws = [law for model in folder.models.values() for law in known_laws(model)]
    if laws:
        print_table(laws_table(laws))


def _costs(args: argparse.Namespace, paths: list[Path]) -> None:
    from taylor.parsers.galvatron.folder import read_folders
    from taylor.workflows.layerwise.measured_costs import answer_costs

    request = _request(args, "galvatron" if args.costs == "galvatron" else "taylor")
    _print_costs(answer_costs(read_folders(paths), request), as_json=args.json)


def _estimate(args: argparse.Namespace) -> None:
    from taylor.workflows.layerwise.estimated_costs import estimate_costs, named_model

    if args.paths:
        cure = "leave the folders out, or --costs taylor reads them"
        raise InputError("takes no profiles", field="--costs", value="estimate", cure=cure)
    for name in ("time_mode", "memory_mode"):
        if getattr(args, name) is not None:
            log.warning("--%s: has no effect: it is of Galvatron's model alone", name)
    for name in ("model", "device", "world_size"):
        if getattr(args, name) is None:
            raise InputError("is missing, and the estimate needs it", field=f"--{name}", cure="give it")
    model = named_model(args.model)
    args.layers = args.layers or sum(model.kind_counts.values())
    args.hidden = args.hidden or model.hidden
    _print_costs(estimate_costs(model, args.device, _request(args, "estimate")), as_json=args.json)


def _request(args: argparse.Namespace, provider: str) -> CostRequest:
    """Job of the requested costs, checked."""
    from taylor.cost_model.measured.cost_table import CostSetting
    from taylor.workflows.layerwise.measured_costs import CostRequest

    for name in ("layers", "hidden", "seq", "gbs"):
        if getattr(args, name) is None:
            raise InputError("is missing, and the costs of a job need it", field=f"--{name}", cure="give it")
    for name in ("world_size", "layers", "hidden", "seq", "gbs", "micro_batches", "stages", "kv_hidden"):
        value = getattr(args, name)
        if value is not None and not 1 <= value <= 2**31:
            raise InputError(f"must be between 1 and {2**31}", field=f"--{name}", value=value, cure="correct it")
    if args.gbs % args.micro_batches:
        raise InputError("does not divide --gbs", field="--micro_batches", value=args.micro_batches, cure="correct one")
    setting = CostSetting(
        args.stages, args.gbs, args.micro_batches, args.seq, args.hidden, kv_hidden=args.kv_hidden,
        reduce_every_micro_batch=args.reduce_every_micro_batch,
    )  # fmt: skip
    return CostRequest(args.world_size, setting, args.layers, args.model, provider, args.time_mode, args.memory_mode)


def _print_costs(answer: CostAnswer, *, as_json: bool) -> None:
    from taylor.report.measured import costs_table, ends_table
    from taylor.report.terminal import print_table

    for warning in answer.warnings:
        log.warning("%s", warning)
    if as_json:
        print_document("taylor.costs/1", answer.to_dict())
        return
    print(answer.title)
    print_table(costs_table(answer.rows))
    print_table(ends_table(answer.ends))
    for reason in answer.left_out:
        print(f"left out: {reason}")


def _tuner(args: argparse.Namespace, path: Path) -> bool:
    """Print a file of Paddle's auto tuner; False where it is none."""
    from dataclasses import asdict

    from taylor.parsers.galvatron.global_mode import SCRIPTS, YAMLS
    from taylor.parsers.paddlenlp.auto_tuner import read_tuner_file
    from taylor.report.measured import tuned_table, tuner_pairs
    from taylor.report.terminal import print_pairs, print_table

    found = None if form_of(path) in (*SCRIPTS, *YAMLS) else read_tuner_file(path)
    if found is None:
        return False
    if args.json:
        rows = {"runs": [asdict(run) for run in found]} if isinstance(found, tuple) else asdict(found)
        print_document("taylor.tuner/1", rows)
    elif isinstance(found, tuple):
        print_table(tuned_table(found))
    else:
        print_pairs(tuner_pairs(found))
    return True


def _strategy(args: argparse.Namespace, path: Path) -> None:
    from taylor.base.files import write_atomic
    from taylor.parsers.galvatron.global_mode import GLOBAL, global_text, read_any_strategy
    from taylor.parsers.galvatron.strategy_file import strategy_text
    from taylor.report.measured import layerwise_table, plan_text
    from taylor.report.terminal import print_table

    found = read_any_strategy(path, args.world_size)
    for note in found.notes:
        log.warning("%s", note)
    target, script = path_or_none(args.o), path_or_none(args.script)
    if script is not None:
        _script(args, path, script, target)
        return
    if args.profile_steps is not None:
        raise InputError("are written into a script", field="--profile_steps", cure="give --script too")
    if target is not None and args.to is None:
        raise InputError("needs the form to write", field="-o", cure="give --to hetu or --to paddle")
    if args.to is None:
        print(plan_text(found.plan))
        print_table(layerwise_table(found.plan))
        return
    text = global_text(found.plan) if args.to == GLOBAL else strategy_text(found.plan, args.to)
    if target is None:
        print(text, end="")
    else:
        print(f"strategy: {write_atomic(target, text)}")


def _script(args: argparse.Namespace, strategy: Path, script: Path, target: Path | None) -> None:
    from taylor.workflows.layerwise.layerwise_script import layerwise_script, profiled_steps, write_layerwise_script

    if args.to is not None:
        log.warning("--to: has no effect beside --script")
    steps = None if args.profile_steps is None else profiled_steps(args.profile_steps)
    if target is None:
        print(layerwise_script(strategy, script, script, steps), end="")
    else:
        print(f"script: {write_layerwise_script(strategy, script, target, steps)}")


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
