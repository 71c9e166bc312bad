"""Command line: an iteration of reinforcement learning by phase, and the best split of its cards."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.console import run_command, start_logging
from taylor.base.errors import InputError
from taylor.base.near import did_you_mean
from taylor.command_lines.arguments import (
    CommandParser,
    Default,
    chosen_path,
    command_text,
    positive_float,
    positive_int,
    refuse_without_effect,
)
from taylor.command_lines.source_file import add_training_file, file_started
from taylor.schemas.writing import print_document

if TYPE_CHECKING:
    from taylor.cost_model.job.length import TrainingLength
    from taylor.parsers.rl_iteration import RlIteration
    from taylor.parsers.tables.generation import GenerationSpeed
    from taylor.workflows.rl.evaluate import RlResult
    from taylor.workflows.rl.split import SplitPlan

_SPEEDS = ("tokens_per_s", "alone")


def build_parser(program: str = "taylor rl") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "Price one iteration of a reinforcement-learning job of verl, slime or NeMo RL: memory and time of roll-outs, "
        "log-probabilities, training and resharding; with --split, how many cards each side gets so that neither "
        "waits. Generation is as you measured it, the rest is estimated.",
        "config/rl_qwen3_8b_verl.sh --generation tokens_per_s=6000,alone=80 --mean_answer 1500 --split",
    )
    add_training_file(parser, "script of verl or slime, YAML of NeMo RL")
    rollouts = parser.add_argument_group("roll-outs")
    speed = rollouts.add_mutually_exclusive_group(required=True)
    speed.add_argument(
        "--generation", metavar="tokens_per_s=N[,alone=N]",
        help="tokens that one engine generates a second with all its samples, and with one alone",
    )  # fmt: skip
    speed.add_argument(
        "--generation_table", metavar="FILE", help="CSV of concurrent,tokens_per_s: the same by the samples at once"
    )
    rollouts.add_argument(
        "--mean_prompt", type=positive_int, metavar="N", help="mean tokens of a prompt (default: the most)"
    )
    rollouts.add_argument(
        "--mean_answer", type=positive_int, metavar="N", help="mean tokens of an answer (default: the most)"
    )
    cards = parser.add_argument_group("split")
    cards.add_argument("--split", action="store_true", help="find the best split into training and roll-out cards")
    cards.add_argument("--cards", type=positive_int, metavar="N", help="cards to split (default: those of the file)")
    cards.add_argument(
        "--time_limit", "-t", dest="t", type=positive_float, metavar="SECONDS",
        help="time limit of --split (default: 120)",
    )  # fmt: skip
    job = parser.add_argument_group("job")
    job.add_argument(
        "--iterations", type=positive_int, metavar="N", help="of the whole job, for its hours (default: the file's)"
    )
    job.add_argument("--samples", type=positive_int, metavar="N", help="prompts of the data set: hours of an epoch")
    job.add_argument("--device", metavar="NAME", help="registered device, or its file (.yaml)")
    job.add_argument(
        "--register_path", metavar="DIR", default=Default("./register/"),
        help="folder of your own registrations (default: %(default)s of the tool)",
    )  # fmt: skip
    job.add_argument("--world_size", type=positive_int, metavar="N", help="training ranks, where the file is open")
    return parser


def run(arguments: Sequence[str], program: str = "taylor rl") -> None:
    """Parse, evaluate, split, print."""
    args = build_parser(program).parse(arguments)
    with file_started(args):
        _run(args, arguments, program)


def _run(args: argparse.Namespace, arguments: Sequence[str], program: str) -> None:
    """Evaluate, split, print."""
    start_logging(verbose=args.verbose, quiet=args.quiet)
    if not args.split:
        refuse_without_effect(args, {"cards", "t"}, "without --split")
    from taylor.parsers.read import config_of
    from taylor.parsers.tables.generation import read_generation
    from taylor.workflows.rl.evaluate import RlChoice, evaluate_iteration
    from taylor.workflows.rl.split import split_cards
    from taylor.workflows.statement.options import FileJob, Origin

    table = args.generation_table
    speed = stated_speed(args.generation) if table is None else read_generation(Path(table))
    choice = RlChoice(speed, args.mean_prompt, args.mean_answer)
    job = FileJob(
        config_of(Path(args.file)),
        device=args.device,
        register_path=chosen_path(args.register_path),
        world_size=args.world_size,
    )
    found = evaluate_iteration(job, choice)
    length = found.iteration.length(args.iterations, args.samples)
    split = None
    if args.split:
        split = split_cards(
            found.config, found.iteration, found.chosen, choice, args.cards or found.cards, float(args.t or 120)
        )
    if args.json:
        data = found.to_dict(Origin(command_text(program, arguments)))
        whole = {**data, **found.hours(length), "split": None if split is None else split.to_dict()}
        print_document("taylor.rl/1", whole)
        return
    _print(found, length)
    if split is not None:
        _print_split(split, found, length)


def stated_speed(text: str) -> GenerationSpeed:
    """Speed of an engine as ``--generation`` states it.

    Raises
    ------
    InputError
        When a word is unknown, or a value no number above 0.
    """
    from taylor.parsers.tables.generation import GenerationSpeed, checked_speed

    given: dict[str, float] = {}
    for part in text.split(","):
        name, sign, value = part.strip().partition("=")
        if not sign or name not in _SPEEDS:
            cure = f"write tokens_per_s=N, and alone=N beside it. {did_you_mean(name, _SPEEDS)}"
            raise InputError("states no speed", field="--generation", value=part.strip(), cure=cure)
        given[name] = checked_speed(value, None, f"--generation {name}")
    if "tokens_per_s" not in given:
        raise InputError("lacks tokens_per_s", field="--generation", value=text, cure="write tokens_per_s=N,alone=N")
    return GenerationSpeed.of(given["tokens_per_s"], given.get("alone"))


def _print(found: RlResult, length: TrainingLength) -> None:
    """Print the phases, and the iteration they make."""
    from taylor.report.rl_tables import PhaseRow, duration, phase_table
    from taylor.report.terminal import print_pairs, print_table

    rows = [
        PhaseRow(one.phase, found.times_ms[one.phase], one.parts, one.usable_mib, one.verdict) for one in found.memory
    ]
    print_table(phase_table(rows))
    iteration, engine = found.iteration, found.iteration.engine
    place = "on the same cards" if iteration.colocated else "on cards of their own"
    pairs = [
        ("cards", f"{found.config.strategy.world_size} train, {iteration.rollout_cards} generate, {place}"),
        (
            "engine",
            f"{engine.name} on {engine.cards} card(s): up to {found.cached:,} samples of the mean length in its cache",
        ),
    ]
    if iteration.critic is not None:
        own = iteration.critic.config
        text = f"{own.model.name} with a value head, {own.strategy.name}, micro-batches of {own.strategy.mbs}, "
        pairs.append(("critic", f"{text}{iteration.critic.iteration.updates} update(s) an iteration"))
    apart = [(name, ms) for name, ms in found.times_ms.items() if name not in iteration.phases and ms]
    pairs += [(name, duration(ms)) for name, ms in apart if ms is not None]
    share = found.known_ms[found.longest] / found.iteration_ms
    pairs.append(("iteration", f"{duration(found.iteration_ms)}; {found.longest} takes {share:.0%}"))
    pairs.append(("memory", _memory_text(found)))
    speed = f"{found.samples_a_second:,.2f} samples/s, {found.samples_a_second * found.tokens.total:,.0f} tokens/s"
    pairs.append(("speed", speed + _hours(found.iteration, found.iteration_ms, length)))
    pairs += [("assumed", sentence) for sentence in found.assumed]
    print_pairs(pairs)


def _memory_text(found: RlResult) -> str:
    from taylor.workflows.rl.evaluate import fullest

    full = found.fullest
    if found.cached < 1:
        return "does not fit: the engine's weights leave no key-value cache; raise its share of memory or its ranks"
    free = full.usable_mib - full.total_mib
    if free < 0:
        text = f"does not fit: {full.phase} needs {-free:,.0f} MiB more than a card has"
        if not found.typical:
            return text
        usual = fullest(found.typical)
        return f"{text}; with samples of the mean length {usual.phase} leaves {usual.usable_mib - usual.total_mib:,.0f}"
    return f"{found.verdict}: the fullest phase is {full.phase}, with {free:,.0f} MiB free"


def _hours(iteration: RlIteration, iteration_ms: float, length: TrainingLength) -> str:
    from taylor.report.compress import hours_text
    from taylor.workflows.rl.evaluate import iteration_hours

    hours, text = iteration_hours(iteration, iteration_ms, length), ""
    if "epoch_hours" in hours:
        text += f"; {hours_text(hours['epoch_hours'])} an epoch of {length.epoch_samples:,} prompts"
    if "hours" in hours:
        text += f"; {hours_text(hours['hours'])} for {length.steps:,} iterations"
    return text


def _print_split(split: SplitPlan, found: RlResult, length: TrainingLength) -> None:
    """Print every split, and the best one."""
    from taylor.report.rl_tables import SplitLine, duration, split_table
    from taylor.report.terminal import print_pairs, print_table

    lines = [
        SplitLine(
            row.training_cards, row.rollout_cards, row.rollout_ms, row.training_ms, row.iteration_ms, row.bound_ms,
            row.strategy.name if row.strategy is not None else row.reason,
        )
        for row in split.rows
    ]  # fmt: skip
    print_table(split_table(lines, split.rows.index(split.best)))
    best = split.best
    assert best.training_ms is not None
    idle = 1 - min(best.rollout_ms, best.training_ms) / split.iteration_ms
    waits = "the training waits" if best.training_ms < best.rollout_ms else "the roll-outs wait"
    pairs = [
        ("split", f"{best.training_cards} cards train, {best.rollout_cards} generate one iteration ahead"),
        ("iteration", f"{duration(split.iteration_ms)}; {waits} {idle:.0%} of it"),
        ("bound", f"no split with any layout takes less than {duration(split.bound_ms)} (gap {split.gap:.2%})"),
        ("speed", f"{split.samples_a_second:,.2f} samples/s{_hours(split.iteration, split.iteration_ms, length)}"),
    ]
    change = found.iteration_ms / split.iteration_ms - 1
    pairs.append(("against the file", f"{change:+.0%} samples/s" if found.cards == split.cards else "on other cards"))
    print_pairs(pairs)


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
