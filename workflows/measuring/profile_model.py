"""Profiles a model's layers: runs the user's training command, or built-in layers, with two numbers of layers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from taylor.base.console import log
from taylor.base.errors import InputError, OutsideProgramError
from taylor.base.files import write_atomic
from taylor.base.kept import read_kept
from taylor.dryrun.logs import last_lines
from taylor.dryrun.processes import ProgramRun, run_program
from taylor.profiling.measuring.model_plan import (
    ACTIVATION,
    COMPUTATION,
    PEAK,
    STATES,
    ModelPlan,
    ModelRun,
    model_runs,
    model_tables,
)
from taylor.profiling.measuring.samples import MOST_SPREAD, Kept, TimedSample, spread_of
from taylor.workflows.measuring.profile_hardware import require_torch, run_ranks

WORKER = "taylor.profiling.measuring.model_worker"
PLACES = ("layers", "batch", "length", "tp", "recompute")
"""Names in braces in a user's command."""
TIME_PATTERN = r"elapsed time per iteration \(ms\): ([0-9.]+)"
STATES_PATTERN = r"\| allocated: ([0-9.]+)"
PEAK_PATTERN = r"max allocated: ([0-9.]+)"
"""Patterns of Megatron-LM's output (megatron/training/training.py, megatron/training/utils.py `report_memory`)."""
WARM = 2
"""First figures of a log that are discarded."""
MAX_LOG_BYTES = 64 << 20
_SHORT_OF_MEMORY = re.compile(rb"out of memory|OutOfMemory|NPU out of memory", re.IGNORECASE)


@dataclass(frozen=True)
class ModelProfileOptions:
    """A plan, and the command that runs it.

    Parameters
    ----------
    command : tuple of str
        The user's command, word by word, with `PLACES` in braces; empty runs the built-in layers.
    time_pattern, states_pattern, peak_pattern : str
        Patterns of its log for a step's time in ms, memory between steps and peak memory, MiB.
    """

    plan: ModelPlan
    output: Path
    command: tuple[str, ...] = ()
    time_pattern: str = TIME_PATTERN
    states_pattern: str = STATES_PATTERN
    peak_pattern: str = PEAK_PATTERN
    timeout_s: float = 3600.0


@dataclass(frozen=True)
class ModelProfiled:
    """Results, notes on them, and the files."""

    samples: Mapping[str, TimedSample]
    notes: tuple[str, ...]
    files: list[Path] = field(default_factory=list)


class _OutOfMemory(Exception):
    pass


def profile_model(options: ModelProfileOptions) -> ModelProfiled:
    """Run the layers that are still to be measured, and write Galvatron's profile of them.

    Raises
    ------
    InputError
        When torch is missing, or the command does not name the number of layers.
    OutsideProgramError
        When a run fails for another reason than memory.
    """
    plan, folder = options.plan, options.output / "measuring" / options.plan.kind
    patterns = _patterns(options)
    if options.command:
        if not any("{layers}" in word for word in options.command):
            cure = f"write {{layers}} where it takes the number of layers; known are {', '.join(PLACES)}"
            raise InputError("says nothing of layers", field="COMMAND", value=" ".join(options.command), cure=cure)
    else:
        require_torch("profile model")
    settings = {k: v for k, v in asdict(plan).items() if k in ("precision", "hidden", "heads", "ffn", "vocab")}
    kept = Kept(folder / "measured.json", {**settings, "command": list(options.command)})
    notes: list[str] = []
    for length in plan.lengths:
        runs = [run for run in model_runs(plan) if run.length == length]
        notes += _measure(runs, options, kept, folder, patterns)
    tables = model_tables(plan, kept.samples)
    files = [write_atomic(options.output / name, json.dumps(table, indent=4) + "\n") for name, table in tables.items()]
    for key, sample in kept.samples.items():
        if sample.disturbed:
            notes.append(f"{key}: disturbed ({sample.disturbed}); it is measured again when the command is")
    return ModelProfiled(kept.samples, tuple(dict.fromkeys(notes)), files)


def _measure(
    runs: Sequence[ModelRun],
    options: ModelProfileOptions,
    kept: Kept,
    folder: Path,
    patterns: Sequence[re.Pattern[str]],
) -> list[str]:
    """Measure the runs of one length, or all shorter ones where one runs out of memory; returns notes on that."""
    wanted = length = runs[0].length
    while True:
        try:
            asked = (replace(each, length=length) for each in runs)
            left = [run for run in asked if not all(kept.settled(name) for name in _names(run, options.plan))]
            if options.command:
                for run in left:
                    _log_times(run)
                    kept.keep_all(_by_command(run, options, folder, patterns))
            else:
                for tp in sorted({run.tp for run in left}):
                    _built_in([run for run in left if run.tp == tp], options, kept, folder)
            break
        except _OutOfMemory:
            if length < 2:
                raise OutsideProgramError("not even one token fits the memory") from None
            length //= 2
    if length == wanted:
        return []
    return [
        f"{wanted} tokens do not fit the memory: measured with {length}; the search must extrapolate, so use its "
        "sequence modes (--time_mode sequence, --memory_mode sequence), with several lengths measured"
    ]


def _log_times(run: ModelRun) -> None:
    layers, more = "+".join(map(str, run.layers)), ", recomputed" if run.recomputed else ""
    log.info("measuring %s layers, %d samples of %d tokens, TP %d%s", layers, run.batch, run.length, run.tp, more)


def _names(run: ModelRun, plan: ModelPlan) -> list[str]:
    return [run.key] if plan.kind == COMPUTATION else [f"{run.key} {name}" for name in (STATES, ACTIVATION, PEAK)]


def _built_in(runs: Sequence[ModelRun], options: ModelProfileOptions, kept: Kept, folder: Path) -> None:
    """Start the ranks once for all runs of one degree; each is saved as soon as it is measured."""
    place = folder / "run"
    asked = {
        "plan": asdict(options.plan), "runs": [asdict(run) for run in runs], "kept": str(kept.file.resolve()),
        "facts": kept.facts,
    }  # fmt: skip
    write_atomic(place / "run.json", json.dumps(asked))
    (place / "answer.json").unlink(missing_ok=True)
    for run in runs:
        _log_times(run)
    run_ranks(WORKER, [str(place.resolve())], runs[0].tp, place, options.timeout_s)
    kept.read()
    answer: Any = read_kept(place / "answer.json")
    if answer is None:
        raise OutsideProgramError(f"the runs of TP {runs[0].tp} left no answer ({place / 'logs'})")
    if "out_of_memory" in answer:
        raise _OutOfMemory


def _by_command(
    run: ModelRun, options: ModelProfileOptions, folder: Path, patterns: Sequence[re.Pattern[str]]
) -> dict[str, TimedSample]:
    said = {
        "layers": ",".join(map(str, run.layers)), "batch": str(run.batch), "length": str(run.length),
        "tp": str(run.tp), "recompute": str(int(run.recomputed)),
    }  # fmt: skip
    words = tuple(_filled(word, said) for word in options.command)
    name = re.sub(r"\W+", "-", run.key).strip("-")
    place = folder / name
    program = ProgramRun(words, dict(os.environ), place, place / "run.log", options.timeout_s, run_in=Path.cwd())
    outcome = run_program(program)
    with open(program.log, "rb") as stream:
        data = stream.read(MAX_LOG_BYTES)
    if outcome.failure:
        if _SHORT_OF_MEMORY.search(data):
            raise _OutOfMemory
        raise OutsideProgramError(f"{words[0]} {outcome.failure}: {' | '.join(last_lines(program.log))}")
    text = data.decode("utf-8", errors="replace")
    if options.plan.kind == COMPUTATION:
        times = _figures(text, patterns[0], program.log)
        times = times[WARM:] if len(times) > WARM else times
        spread = spread_of(times)
        return {run.key: TimedSample(median(times), spread, 1, f"spread {100 * spread:.0f} %" * (spread > MOST_SPREAD))}
    states, peak = (max(_figures(text, pattern, program.log)) for pattern in patterns[1:])
    if peak < states:
        raise InputError("has a peak below what stays", file=program.log, field="--peak_pattern", value=peak)
    found = {STATES: states, ACTIVATION: peak - states, PEAK: peak - states}
    return {f"{run.key} {figure}": TimedSample(value, 0.0, 1) for figure, value in found.items()}


def _filled(word: str, said: Mapping[str, str]) -> str:
    for name, value in said.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _figures(text: str, pattern: re.Pattern[str], file: Path) -> list[float]:
    found = [float(one.group(1)) for line in text.splitlines() if (one := pattern.search(line[:2000])) is not None]
    if not found:
        cure = "--time_pattern, --states_pattern and --peak_pattern say what the command prints"
        raise InputError(f"no line is like {pattern.pattern!r}", file=file, cure=cure)
    return found


def _patterns(options: ModelProfileOptions) -> tuple[re.Pattern[str], ...]:
    compiled = []
    given = {
        "--time_pattern": options.time_pattern,
        "--states_pattern": options.states_pattern,
        "--peak_pattern": options.peak_pattern,
    }
    for flag, text in given.items():
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise InputError(f"is no regular expression: {error}", field=flag, value=text) from None
        if pattern.groups != 1:
            raise InputError(
                "needs one group, the number", field=flag, value=text, cure=r"put it in ( ): ms: ([0-9.]+)"
            )
        compiled.append(pattern)
    return tuple(compiled)


def lengths_between(least: int | None, most: int | None, step: int | None, fixed: Sequence[int]) -> tuple[int, ...]:
    """Values of a sweep: fixed ones, else from least to most by steps, both included."""
    if fixed:
        return tuple(fixed)
    low, high = least or 1, most or least or 1
    return tuple(dict.fromkeys([*range(low, high + 1, step or 1), high]))
