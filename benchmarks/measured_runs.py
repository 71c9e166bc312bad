"""Step time and memory predicted for published runs, beside the measured figures and the fact that they ran.

    python -m benchmarks.measured_runs [FOLDER] [--rows]

FOLDER (``../shared/data/measured_runs``) holds configuration files and ``measured.csv``, one run a row: set, file,
device, step_ms, peak_mib (empty where it was not published), source. The figures are what torch allocated, or reserved
where the column peak_kind says so, so they stand beside a stage without runtime and communication buffers
(`workspaces.allocated_mib`, `workspaces.reserved_mib`): the last stage where the source says «last rank», else the
heaviest. Whether a run fits is asked of its heaviest stage with those buffers. Steps
are those of the baseline on the event graph. ``--source_flags`` adds the flags that a run's source names and
the restated file lacks.

Coverage is the fraction of a set's figures that lie within their intervals, whose widths are those that all OTHER sets
show (`cost_model.errors.known_error`), with what each run's own flags add. No row has a part in its own prediction: the
devices' efficiencies were fitted on other tables (`benchmarks.published_fit`). Neighbours are runs of one model in a
set; the figure is the difference of their predicted steps above which 95 % of pairs are in the measured order.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import kendalltau, spearmanr

from benchmarks.stacks import dated
from taylor.base.errors import TaylorError
from taylor.cost_model.errors.known_error import FLAG_WIDTH, KnownError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.memory.breakdown import StageBreakdown, stage_breakdown
from taylor.cost_model.memory.workspaces import allocated_mib, reserved_mib
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.register.device import DeviceSpec
from taylor.register.registry import Registry
from taylor.workflows.statement.planned_step import planned_step_ms

MEASURED = Path(__file__).resolve().parents[2] / "shared" / "data" / "measured_runs"


STATED_BY_SOURCE: Mapping[str, Mapping[str, bool]] = {
    "Megatron-LM README H100": {"overlap_tensor": True},
    "NVIDIA dgxc-benchmarking": {"overlap_tensor": True},
}
"""Flags that a source names for all of its runs, by how it begins. Megatron-LM f2e5db402c README.md:66: "We perform
fine-grained overlapping of data-parallel (--overlap-grad-reduce --overlap-param-gather), tensor-parallel
(--tp-comm-overlap) and pipeline-parallel communication". NVIDIA/dgxc-benchmarking 35a9aecc nemotron/configure.sh,
grok1/configure.sh and nemo_megatron/gpt3_175b_hydra.yaml: ``ub_tp_comm_overlap``."""

NOT_AS_STATED: Mapping[str, str] = {
    "papers-zero": "the files say flash attention, the peaks are those of kept scores (predicted so, 3 to 9 % high)",
    "papers-megatron-lm/Megatron-LM_README_H100_weak_scaling,_mbs_4_119B": "the source (Megatron-LM f2e5db402c "
    "README.md) names no micro-batch, and the data give its one step to files of 1 and of 4; with 4, what 92 chunks "
    "keep (Korthikanti et al. 2022 §4.2: 32 bytes by s, b and h over t, without dropout) and 6.25 bytes a parameter "
    "are 81,446 MiB of the card's 81,559 before any buffer, workspace or context",
    "mindspeed-dense/llama31__pretrain_llama31_8b_128k": "between it and the same model's row at 8,192 tokens "
    "attention would run at 340 of the card's 376 TFLOP/s; between lengths of the same table's other models "
    "(MindSpeed-LLM 1.0.RC3 README: Qwen2 0.5B, 1.5B and 7B, GLM4, ChatGLM3) it runs at 80 to 130, by which this one's "
    "attention alone takes longer than its whole step",
    "megatron-ci-large/gpt__gpt3_15b_8t_release_sm__h100_128": "step and peak are those of 256 cards (predicted "
    "so, 3 % and 0.3 % high); by the 128 of the file's name a card would reach 760 TFLOP/s of its 989",
    "megatron-ci-large/mixtral__mixtral_8x22b": "EP 8 of experts that TP 2 splits, in PP 8, takes a multiple of 128 "
    "cards (Megatron-LM d98e8a64 megatron/core/parallel_state.py:871-881), the file's name says 64",
    "megatron-ci-large/mixtral__mixtral_8x7b_alltoall": "by the 64 cards of the file's name a card would reach 560 "
    "TFLOP/s of the model's own work; the same tests' other run of the model (mixtral_8x7b_tp1pp4ep8vpp8_release, "
    "golden_values_dev_dgx_h100.json), whose peak is that of 64 cards, takes 3.30 s for a fourth of the batch",
}
"""Runs, by how their files begin, whose files contradict what was measured: shown, and no part of any interval."""

ITS_STEP_ALONE = ("megatron-ci-large/mixtral__mixtral_8x7b_alltoall",)
"""Those of them whose peak agrees with the file."""


@dataclass(frozen=True)
class MeasuredRun:
    """One published run, all of it MiB: the heaviest stage with every buffer, the device's limit, what torch would
    have allocated on the stage that reports, and the measured peak; then the step, predicted and measured, ms; whether
    flags that no figure has leave the peak open below or above, and how many of them cost time; the model; its device
    and its file as read."""

    group: str
    file: str
    peak_mib: float
    limit_mib: float
    allocated_mib: float
    measured_mib: float | None
    predicted_ms: float | None = None
    measured_ms: float | None = None
    open_below: bool = False
    open_above: bool = False
    time_flags: int = 0
    model: str = ""
    device: str = ""
    config: TrainingConfig | None = None

    @property
    def step_as_stated(self) -> bool:
        """Return whether nothing is known to contradict the run's file in what its step takes."""
        return not any(self.file.startswith(name) for name in NOT_AS_STATED)

    @property
    def peak_as_stated(self) -> bool:
        """Return whether nothing is known to contradict it in what its peak is."""
        return self.step_as_stated or self.file.startswith(ITS_STEP_ALONE)

    @property
    def step_error(self) -> float | None:
        """Relative error of the step time."""
        return (
            None if self.measured_ms is None or self.predicted_ms is None else self.predicted_ms / self.measured_ms - 1
        )

    @property
    def falsely_over(self) -> bool:
        """It ran as its file says, and is said not to fit."""
        return self.peak_as_stated and self.peak_mib > self.limit_mib

    @property
    def falsely_fits(self) -> bool:
        """It is said to fit, and needed more than the device offers."""
        return self.peak_mib <= self.limit_mib and self.measured_mib is not None and self.measured_mib > self.limit_mib

    @property
    def error(self) -> float | None:
        """Relative error of what torch allocates."""
        return None if self.measured_mib is None else self.allocated_mib / self.measured_mib - 1

    def peak_covered(self, known: KnownError) -> bool:
        """Return whether the measured peak lies in its predicted interval."""
        ratio = 1 / (1 + (self.error or 0.0))
        return (self.open_below or ratio >= known.lower()) and (self.open_above or ratio <= known.upper())

    def step_covered(self, known: KnownError) -> bool:
        """Return whether the measured step lies in its predicted interval."""
        wider = known.widened(FLAG_WIDTH * math.sqrt(self.time_flags))
        return wider.lower() <= 1 / (1 + (self.step_error or 0.0)) <= wider.upper()


def measured_runs(folder: Path, *, source_flags: bool = False) -> tuple[list[MeasuredRun], list[str]]:
    """Evaluate every run of a folder on its device; beside them the refusals, one sentence each.

    `source_flags`: with the flags of `STATED_BY_SOURCE`, which the files lack.
    """
    registry, runs, refused = Registry.load(), [], []
    for row in pd.read_csv(folder / "measured.csv").to_dict("records"):
        try:
            # The whole card: a plan above the risk alone is not said to misfit.
            config = read_config(folder / row["file"]).replace(margin=MemoryMargin(risk=0.0))
        except TaylorError as error:
            refused.append(str(error))
            continue
        device = dated(registry.device(row["device"]), row["source"])
        for source, flags in STATED_BY_SOURCE.items() if source_flags else ():
            if row["source"].startswith(source):
                config = config.replace(rules=config.rules.replace(**flags))
        timed = not pd.isna(row["step_ms"])
        plan = config.plan or config.even_plan(config.strategy)
        moved = moved_parts(config)
        stages = stage_breakdown(config.model, config.strategy, config.rules, plan, config.schedule, moved=moved)
        heaviest = max(stages, key=lambda stage: stage.total)
        reporting = stages[-1] if "last rank" in row["source"] else heaviest
        if str(row.get("peak_kind")).startswith(FIRST_STEP):
            reported = first_step_mib(config, plan, device, moved)
        else:
            reported = _reported_mib(row, reporting, config, device)
        runs.append(
            MeasuredRun(
                row["set"],
                row["file"],
                heaviest.total,
                config.memory_limit_mib(device),
                reported,
                None if pd.isna(row["peak_mib"]) else float(row["peak_mib"]),
                planned_step_ms(config, device) if timed else None,
                float(row["step_ms"]) if timed else None,
                any(flag.may_lower_memory for flag in config.unmodelled),
                any(flag.may_raise_memory and flag.most is None for flag in config.unmodelled),
                sum(flag.time is not None for flag in config.unmodelled),
                repr(config.model.replace(name="")),
                row["device"],
                config,
            )
        )
    return runs, refused


def moved_parts(config: TrainingConfig) -> tuple[str, ...]:
    """Parts of a layer that a file moves to the host (`cost_model.memory.offload`)."""
    if config.moved is None:
        return ()
    known = launcher_of(config).module_words(config).offload
    return tuple(part for word, part in known.items() if word in config.moved.words)


FIRST_STEP = "max allocated after the first step"
"""Kind of a peak that a trainer prints once, when its first step is over (MindSpeed-LLM 26.0.0
mindspeed_llm/training/training.py, ``training_log``: ``report_memory`` behind iteration 1 alone)."""


def first_step_mib(
    config: TrainingConfig, plan: PipelinePlan, device: DeviceSpec, moved: Collection[str] = ()
) -> float:
    """Most that torch allocates in a job's first step, MiB.

    Its backward finds no moments: the optimizer makes them in its first step, when the activations are gone (MindSpeed
    HEAD 028de58c mindspeed/core/optimizer/adamw.py:160, torch's optimizers alike).
    """
    before = config.rules.replace(optimizer=replace(config.rules.optimizer, moments_bytes=0, other_moments_bytes=0))
    model, strategy, schedule = config.model, config.strategy, config.schedule
    backward = [
        allocated_mib(stage, model, before, device)
        for stage in stage_breakdown(model, strategy, before, plan, schedule, moved=moved)
    ]
    states = [
        stage.weights + stage.gradients + stage.optimizer
        for stage in stage_breakdown(model, strategy, config.rules, plan, schedule, moved=moved)
    ]
    return max(*backward, *states)


def _reported_mib(
    row: Mapping[Any, object], stage: StageBreakdown, config: TrainingConfig, device: DeviceSpec
) -> float:
    """The predicted figure of the kind that a row's source reports; the allocated one where no other is modelled."""
    if row.get("peak_kind") == "max reserved":
        reserved = reserved_mib(stage, config.model, config.rules, device)
        if reserved is not None:
            return reserved
    return allocated_mib(stage, config.model, config.rules, device)


@dataclass(frozen=True)
class Figure:
    """A judged figure: its relative error, whether a measured one lies within an interval of a width, whether it is
    free of flags that no figure has, and whether nothing contradicts the file."""

    error: Callable[[MeasuredRun], float | None]
    covered: Callable[[MeasuredRun, KnownError], bool]
    plain: Callable[[MeasuredRun], bool]
    stated: Callable[[MeasuredRun], bool]


PEAK = Figure(
    lambda run: run.error,
    MeasuredRun.peak_covered,
    lambda run: not (run.open_below or run.open_above),
    lambda run: run.peak_as_stated,
)
STEP = Figure(
    lambda run: run.step_error, MeasuredRun.step_covered, lambda run: not run.time_flags, lambda run: run.step_as_stated
)


def known_error(runs: Iterable[MeasuredRun], figure: Figure) -> KnownError:
    """Error of predicted figures, without runs of `NOT_AS_STATED` or with flags that no figure has."""
    errors = (figure.error(run) for run in runs if figure.stated(run) and figure.plain(run))
    return KnownError.seen(1 / (1 + error) for error in errors if error is not None)


def neighbour_error(runs: Iterable[MeasuredRun]) -> float:
    """95 % upper limit of the relative error of the difference of two predicted steps of one model in a set."""
    every = [run for run in runs if run.step_as_stated and run.step_error is not None]
    apart = [
        abs(math.log1p(one.step_error or 0.0) - math.log1p(other.step_error or 0.0))
        for one, other in combinations(every, 2)
        if (one.group, one.model) == (other.group, other.model)
    ]
    return math.expm1(sorted(apart)[math.ceil(0.95 * (len(apart) + 1)) - 1])


def growth_with_distance(runs: Iterable[MeasuredRun]) -> tuple[float, float]:
    """Growth of step errors with a run's distance from all runs of other sets: rank correlations.

    A run's place is hidden size, sequence, cards, tokens a rank, TP and PP, logarithms over their spread among the
    runs; its distance is that to the nearest run of another set. First the errors as they are, then each over the mean
    of its own set, which removes the effects common to a set: its software and its card.
    """
    every = [run for run in runs if run.step_as_stated and run.step_error is not None and run.config is not None]
    places = np.log([_sizes(run.config) for run in every if run.config is not None])
    places = (places - places.mean(axis=0)) / places.std(axis=0)
    apart = np.array([[run.group != other.group for other in every] for run in every])
    lengths = np.linalg.norm(places[:, None] - places[None], axis=-1)
    nearest = np.where(apart, lengths, np.inf).min(axis=1)
    errors = pd.Series([abs(math.log1p(run.step_error or 0.0)) for run in every])
    usual = errors.groupby([run.group for run in every]).transform("mean")
    plain, within = (float(spearmanr(nearest, each).statistic) for each in (errors, errors / usual))
    return plain, within


def _sizes(config: TrainingConfig) -> list[float]:
    """Coordinates by which `growth_with_distance` distinguishes runs."""
    strategy, length = config.strategy, config.rules.seq_length
    shared = strategy.tp * strategy.cp
    return [config.model.hidden, length, strategy.dp * shared * strategy.pp, length * strategy.mbs / shared,
            strategy.tp, strategy.pp]  # fmt: skip


def summary(runs: Iterable[MeasuredRun], figure: Figure = PEAK) -> pd.DataFrame:
    """One line a set and one for all: rows, errors in %, coverage of the runs as stated, false verdicts."""
    every = list(runs)
    covered: dict[str, list[bool]] = {}
    for run in every:
        if figure.stated(run) and figure.error(run) is not None:
            others = known_error((other for other in every if other.group != run.group), figure)
            covered.setdefault(run.group, []).append(figure.covered(run, others))
    lines = []
    for name in [*dict.fromkeys(run.group for run in every), "all"]:
        mine = [run for run in every if name in (run.group, "all")]
        errors = [100 * found for run in mine if (found := figure.error(run)) is not None]
        within = covered.get(name, []) if name != "all" else [one for part in covered.values() for one in part]
        lines.append({
            "set": name, "rows": len(mine), "measured": len(errors),
            "median error %": median(map(abs, errors)) if errors else math.nan,
            "largest error %": max(map(abs, errors), default=math.nan),
            "bias %": median(errors) if errors else math.nan,
            "covered %": 100 * sum(within) / len(within) if within else math.nan,
            "false «does not fit»": sum(run.falsely_over for run in mine),
            "false «fits»": sum(run.falsely_fits for run in mine),
        })  # fmt: skip
    return pd.DataFrame(lines)


def kendall(runs: Iterable[MeasuredRun]) -> dict[str, tuple[float, float]]:
    """Kendall's tau of each set's predicted and measured steps, and its maximum.

    The maximum is that of the measured steps themselves, averaged over runs with one prediction: two releases of the
    software that one file describes have one predicted step.
    """
    every = [run for run in runs if run.step_error is not None]
    found = {}
    for name in dict.fromkeys(run.group for run in every):
        mine = pd.DataFrame({
            "predicted": [run.predicted_ms for run in every if run.group == name],
            "measured": [run.measured_ms for run in every if run.group == name],
        })  # fmt: skip
        best = mine.groupby("predicted")["measured"].transform("mean")
        tau, most = (float(kendalltau(each, mine["measured"]).statistic) for each in (mine["predicted"], best))
        found[name] = tau, most
    return found


def main() -> int:
    """Print the summary, and every row when asked to; 1 where a file is refused."""
    parser = argparse.ArgumentParser(description="memory predicted beside published runs")
    parser.add_argument("folder", type=Path, nargs="?", default=MEASURED)
    parser.add_argument("--rows", action="store_true", help="print every run too")
    parser.add_argument("--source_flags", action="store_true", help="add the flags that a run's source names")
    options = parser.parse_args()
    runs, refused = measured_runs(options.folder, source_flags=options.source_flags)
    show(runs, refused, rows=options.rows)
    return 1 if refused else 0


def show(runs: Sequence[MeasuredRun], refused: Iterable[str], *, rows: bool) -> None:
    """Print the summaries, and every run when asked to."""
    for run in runs if rows else ():
        error = "" if run.error is None else f"{run.measured_mib:9,.0f} {100 * run.error:+6.1f} %"
        if run.step_error is not None:
            error += f" {run.predicted_ms:10,.1f} {run.measured_ms:10,.1f} ms {100 * run.step_error:+6.1f} %"
        verdict = "does not fit" if run.peak_mib > run.limit_mib else ""
        print(f"{run.file:90s} {run.peak_mib:9,.0f} {run.limit_mib:9,.0f} {run.allocated_mib:9,.0f} {error} {verdict}")
    print("memory, torch's allocated peak")
    print(summary(runs).to_string(index=False, float_format=lambda value: f"{value:.1f}"))
    steps = summary(runs, STEP).iloc[:, :-2]
    orders = kendall(runs)
    for place, column in enumerate(("Kendall", "at most")):
        steps[column] = steps["set"].map({name: order[place] for name, order in orders.items()})
    print("\nstep time")
    print(steps.to_string(index=False, float_format=lambda value: f"{value:.2f}"))
    for what, figure in (("peaks", PEAK), ("steps", STEP)):
        known = known_error(runs, figure)
        print(f"nine of ten {what} lie {-100 * known.below:+.1f} to {100 * known.above:+.1f} % from the predicted one")
    print(f"neighbours: in the right order from {100 * neighbour_error(runs):.1f} % on")
    plain, within = growth_with_distance(runs)
    print(f"errors of steps and distance to the nearest run of another set: {plain:.2f}, within sets {within:.2f}")
    for name, why in NOT_AS_STATED.items():
        print(f"{name}: {why}")
    for sentence in refused:
        print(f"refused: {sentence}")


if __name__ == "__main__":
    sys.exit(main())
