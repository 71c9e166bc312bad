"""From small runs to the best few plans of a large job: laws, search, scripts, and runs that verify them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.base.files import read_text, write_atomic
from taylor.blackbox.blocks import ONCE
from taylor.blackbox.degree_search import HALF_WIDTH, FoundPlans, Job, Ranked, again, search
from taylor.blackbox.foretold import showing_run
from taylor.blackbox.memory_fit import memory_laws
from taylor.blackbox.memory_laws import RISK, MemoryLaws
from taylor.blackbox.operator_base import OperatorBase, OperatorOrigin
from taylor.blackbox.operator_speed import OperatorSpeeds
from taylor.blackbox.recorded import RecordedRun
from taylor.blackbox.rejection import ROBUST
from taylor.blackbox.small_runs import MOST_RUNS, SmallRun
from taylor.blackbox.step_laws import StepLaws
from taylor.blackbox.tensor_traces import recorded_memory
from taylor.parsers.launcher import Launcher
from taylor.parsers.profiles.operators import Operator
from taylor.parsers.small_run import JobSizes, Machines, PlannedJob, RunLog, RunSetting
from taylor.pipeline.plan import FULL, RECOMPUTE_MODES
from taylor.workflows.measuring.operators import fill_base
from taylor.workflows.tuning.tune_modules import read_modules
from taylor.workflows.tuning.tune_record import MOST_LOG, read_neighbour, read_run
from taylor.workflows.tuning.tune_switches import Compared, Comparison, SwitchedPlan

BEST, BEST_FOLDER = "best.json", "best"
VERIFYING_STEPS = 16
"""Steps profiled where plans are verified. The best plans often differ by less than the noise of the two steps from
which laws are fitted; sixteen reduce it to a third.
"""
FULL_STEPS = 10
"""Steps of a plan that is run itself; the later half is reported."""
GIB = float(1 << 30)


@dataclass(frozen=True)
class ShownRun:
    """A small run that ended well: its folder has a profile and `run.log`.

    Parameters
    ----------
    again : tuple of str or None
        As of `SmallRun`.
    """

    name: str
    setting: RunSetting
    folder: Path
    again: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Verified:
    """Small run of a plan's operators: both passes of its micro-batch as predicted before and as measured, ms."""

    run: str
    predicted_ms: float
    measured_ms: float


@dataclass(frozen=True)
class FullSize:
    """A plan itself, run for a few steps: a step's time, ms, and the peak in its log, bytes; None where it failed."""

    run: str
    step_ms: float | None
    peak: int | None


@dataclass(frozen=True)
class OwnRun:
    """A small run by the laws and as measured: both passes of its micro-batch, ms, and its peak, bytes."""

    name: str
    predicted_ms: float
    measured_ms: float
    predicted_peak: float
    measured_peak: float

    @property
    def error(self) -> float:
        """Of the predicted passes, as a fraction."""
        return abs(self.predicted_ms / self.measured_ms - 1)


@dataclass(frozen=True)
class BestPlan:
    """One of the best plans.

    Parameters
    ----------
    low_ms, high_ms : float
        Interval that contains nine of ten.
    before_ms : float or None
        Prediction before verification.
    verified : Verified or None
    script : Path or None
        The user's file with the plan in it; None where its flags cannot state it.
    switches : tuple of Compared
        Comparisons by small runs with and without each switch; `ranked` is predicted with those that pay.
    full_size : FullSize or None
    """

    ranked: Ranked
    low_ms: float
    high_ms: float
    script: Path | None
    before_ms: float | None = None
    verified: Verified | None = None
    switches: tuple[Compared, ...] = ()
    full_size: FullSize | None = None

    @property
    def states(self) -> dict[str, bool]:
        """State of each compared switch: whether the plan has it."""
        return {one.switch.name: one.on for one in self.switches}

    @property
    def recomputed(self) -> str:
        """Layers of each chunk that run again whole, and the modules that run again in every layer."""
        whole = "; ".join(",".join(map(str, row)) for row in self.ranked.plan.recomputed(FULL))
        return ", ".join((whole, *(f"{name} of every layer" for name in self.ranked.modules)))

    @property
    def peak(self) -> float:
        """Bytes of the fullest stage."""
        return max(one.peak for one in self.ranked.peaks)

    @property
    def upper(self) -> float:
        """Bytes of the fullest stage at most, with the uncertainty of the small runs."""
        return max(one.upper for one in self.ranked.peaks)


@dataclass(frozen=True)
class Searched:
    """Best plans, their basis, and the path of their JSON.

    Parameters
    ----------
    own : tuple of OwnRun
        The small runs that the laws are fitted to, by these laws.
    """

    best: tuple[BestPlan, ...]
    found: FoundPlans
    own: tuple[OwnRun, ...]
    assumed: tuple[str, ...]
    file: Path

    @property
    def own_error(self) -> float:
        """Median error of the predicted passes of the small runs themselves."""
        return median(one.error for one in self.own)

    @property
    def own_worst(self) -> float:
        """The largest."""
        return max(one.error for one in self.own)


@dataclass(frozen=True)
class SearchOptions:
    """Settings of the search, and where its results go.

    Parameters
    ----------
    ranks, batch : int
    limit : float
        Bytes of a device.
    origin : OperatorOrigin
        Hardware and software that the runs were measured on.
    verify : callable or None
        Starts a small run, and returns its folder, or None where it failed; None to verify nothing.
    risk : float
        As in `MemoryLaws`.
    switches : collection of str
        Names of `Launcher.switches` that small runs compare for each of the best plans, where those are verified.
    whole : callable or None
        Starts a plan itself for a few steps, and returns its log, or None where it failed; None to start none.
    """

    script: Path
    work_dir: Path
    ranks: int
    batch: int
    limit: float
    searched: Collection[str]
    base: Path
    origin: OperatorOrigin
    verify: Callable[[SmallRun], Path | None] | None = None
    risk: float = RISK
    switches: Collection[str] = ()
    whole: Callable[[SmallRun], Path | None] | None = None


class TunedLaws:
    """Laws of the measurements read so far."""

    def __init__(self, runs: Sequence[ShownRun], launcher: Launcher, sizes: JobSizes, options: SearchOptions) -> None:
        self.options, self.sizes, self.launcher = options, sizes, launcher
        self.base = OperatorBase(options.base)
        self.runs = {run.name: self._read(run) for run in runs if run.again is None}
        single = [run for run in self.runs.values() if run.setting.pp == 1]
        least = sizes.least_dense
        self.single = [run for run in single if run.setting.dense == least]
        self.dense = next((run for run in single if run.setting.dense > least), None)
        self.memory: MemoryLaws = memory_laws(recorded_memory(self.single, self.dense), options.risk, sizes.weights)
        self.several = [run for run in self.runs.values() if run.setting.pp > 1]
        self.steps = self._steps()
        self._compare_modules([run for run in runs if run.again is not None])

    def _compare_modules(self, runs: Sequence[ShownRun]) -> None:
        """Add the modules that small runs show to the laws."""
        found, left_out = read_modules({run.again or (): self._read(run) for run in runs}, self.single, self.steps)
        for reason in left_out:
            log.warning("recompute of a module is not searched: %s", reason)
        if found is not None:
            self.memory = found
            self.steps = self.steps.with_modules(found)

    def _read(self, run: ShownRun) -> RecordedRun:
        fill_base(self.base, [run.folder], self.options.origin)
        if run.setting.pp > 1:
            return read_neighbour(run.folder, run.setting)
        return read_run(run.folder, run.folder / self.options.script.name, run.setting, self.launcher)

    def _steps(self) -> StepLaws:
        speeds = OperatorSpeeds(self.base.times(self.options.origin))
        per_node = self.sizes.per_node or 8
        hidden = self.sizes.hidden_reduction
        return StepLaws(
            self.single, self.several, self.memory, speeds, per_node, hidden_reduction=hidden, dense=self.dense,
            weights=self.sizes.weights,
        )  # fmt: skip

    def add(self, run: ShownRun) -> RecordedRun:
        """Add the operators of another run to the base."""
        recorded = self._read(run)
        self.refresh()
        return recorded

    def refresh(self) -> None:
        """Read the base again."""
        self.steps = self.steps.with_speeds(OperatorSpeeds(self.base.times(self.options.origin)))

    def own_runs(self) -> tuple[OwnRun, ...]:
        """Each small run by its own laws."""
        names = {id(run): name for name, run in self.runs.items()}
        found = []
        for run, shown in zip(self.single, self.memory.runs[: len(self.single)], strict=True):
            peak = self.memory.run_peak(shown)
            passes = self.steps.passes_ns(run.setting) / 1e6, self.steps.measured_passes_ns(run) / 1e6
            found.append(OwnRun(names[id(run)], *passes, peak, shown.peak))
        return tuple(found)


def search_plans(
    runs: Sequence[ShownRun], launcher: Launcher, sizes: JobSizes, machines: Machines, options: SearchOptions
) -> Searched:
    """Best plans of a job, verified where requested.

    Raises
    ------
    InputError
        When the runs do not suffice, or no plan fits.
    """
    return plans_of(TunedLaws(runs, launcher, sizes, options), machines)


def plans_of(laws: TunedLaws, machines: Machines) -> Searched:
    """The same by laws that are known.

    Raises
    ------
    InputError
        When no plan fits.
    """
    launcher, sizes, options = laws.launcher, laws.sizes, laws.options
    uniform = launcher.uniform_recompute(sizes.own.layers, (FULL,))
    job = Job(sizes, options.ranks, options.batch, options.limit, options.searched, uniform)
    log.info("searching degrees of %d ranks", options.ranks)
    found = search(job, laws.steps)
    verified: dict[RunSetting, Verified] = {}
    best = found.best
    if options.verify is not None:
        pool, left = list[Ranked](), max(len(found.best), MOST_RUNS - len(laws.runs))
        for number, ranked in enumerate((*found.best, *found.near), 1):
            one = None
            if len(verified) < left:
                one = _verified(ranked, number, laws, machines, options.verify)
            if one is not None:
                verified[ranked.run] = one
            # A plan near the best gets a place among them only by measurement.
            if one is not None or len(pool) < len(found.best) or not _missing(laws.steps, ranked):
                pool.append(ranked)
        best = again(pool, job, laws.steps)[: len(found.best)]
    chosen = _switched(best, job, laws, machines, options)
    own = laws.own_runs()
    own_error = ROBUST * median(one.error for one in own)
    before = {one.run: one.step_ms for one in (*found.best, *found.near)}
    plans = list[BestPlan]()
    for switched in chosen:
        ranked = switched.ranked
        width = HALF_WIDTH * (ranked.error**2 + own_error**2) ** 0.5
        plan = BestPlan(ranked, ranked.step_ms * (1 - width), ranked.step_ms * (1 + width), None)
        before_ms = before.get(ranked.run) if options.verify is not None else None
        plan = replace(plan, before_ms=before_ms, verified=verified.get(ranked.run))
        plans.append(replace(plan, switches=switched.compared))
    if options.whole is not None:
        plans = _by_full_size([replace(one, full_size=_full_size(one, laws, options)) for one in plans])
    plans = [replace(one, script=_script(one, place, launcher, options)) for place, one in enumerate(plans, 1)]
    assumed = _assumed(laws, options)
    done = Searched(tuple(plans), found, own, assumed, options.work_dir / BEST)
    write_atomic(done.file, json.dumps(as_data(done, options), indent=1) + "\n")
    return done


def _switched(
    best: Sequence[Ranked], job: Job, laws: TunedLaws, machines: Machines, options: SearchOptions
) -> tuple[SwitchedPlan, ...]:
    """Best plans with the switches that pay, in the order that these give."""
    wanted = [one for one in laws.launcher.switches(options.script) if one.name in options.switches]
    if options.verify is None or not wanted:
        return tuple(SwitchedPlan(one, ()) for one in best)
    compare = Comparison(wanted, laws.launcher, laws.sizes, machines, options.verify, _name, options.limit)
    return compare.best_of(best, job, laws.steps, VERIFYING_STEPS)


def _verified(
    ranked: Ranked, number: int, laws: TunedLaws, machines: Machines, verify: Callable[[SmallRun], Path | None]
) -> Verified | None:
    """Run a plan's operators on the available cards, and add them to the base."""
    steps = laws.steps
    missing = _missing(steps, ranked)
    if not missing:
        return None
    shown = showing_run(steps.operators, missing, ranked.run, laws.sizes, machines.ranks)
    if shown is None:
        return None
    predicted, name = steps.passes_ns(shown.setting), _name(shown.setting)
    why = f"shows {shown.shown} operators of plan {number}"
    folder = verify(SmallRun(name, shown.setting, why, VERIFYING_STEPS))
    if folder is None:
        return None
    recorded = laws.add(ShownRun(name, shown.setting, folder))
    return Verified(name, predicted / 1e6, steps.measured_passes_ns(recorded) / 1e6)


def _name(run: RunSetting) -> str:
    """Same name for the same run, whatever place its plan has: an earlier start may have found another order."""
    experts = f"_ep{run.ep}_of{run.experts}" if run.experts > 1 else ""
    return f"verify_tp{run.tp}_cp{run.cp}{experts}_mbs{run.mbs}_seq{run.seq}"


def _missing(steps: StepLaws, ranked: Ranked) -> list[Operator]:
    """Operators of a plan that no run has measured."""
    return [one for one in steps.operators_of(ranked.run) if not _exact(steps, one)]


def _exact(steps: StepLaws, operator: Operator) -> bool:
    estimate = steps.speeds.estimate(operator)
    return estimate is not None and estimate.exact


def _full_size(one: BestPlan, laws: TunedLaws, options: SearchOptions) -> FullSize | None:
    """Plan itself on all the cards; None where the file cannot state it."""
    assert options.whole is not None
    run = one.ranked.run
    degrees = "_".join(f"{name}{getattr(run, name)}" for name in ("dp", "tp", "pp", "vpp", "cp", "ep", "mbs"))
    degrees += f"_replicas{run.replicas}" if run.replicas > 1 else ""
    name, why = f"verify_whole_{degrees}", "runs the plan itself"
    try:
        file = options.whole(SmallRun(name, run, why, FULL_STEPS, whole=_job(one, options)))
    except InputError as error:
        log.warning("a plan is not run: %s", error)
        return None
    run_log = RunLog({}, None, None) if file is None else laws.launcher.run_log(read_text(file, limit_bytes=MOST_LOG))
    return FullSize(name, run_log.step_ms, run_log.peak or run_log.reserved)


def _job(one: BestPlan, options: SearchOptions) -> PlannedJob:
    return PlannedJob(one.ranked.plan, tuple(one.states.items()), options.batch)


def _by_full_size(plans: Sequence[BestPlan]) -> list[BestPlan]:
    """Plans that ran by their own time, then those that could not be run, then those that failed."""

    def key(one: BestPlan) -> tuple[int, float]:
        if one.full_size is None:
            return 1, one.ranked.step_ms
        return (2, one.ranked.step_ms) if one.full_size.step_ms is None else (0, one.full_size.step_ms)

    return sorted(plans, key=key)


def _script(one: BestPlan, place: int, launcher: Launcher, options: SearchOptions) -> Path | None:
    """The user's file with a plan in it, in a folder of its own."""
    ranked = one.ranked
    try:
        text = launcher.planned_job(options.script, ranked.run, _job(one, options))
    except InputError as error:
        log.warning("plan %d is not written: %s", place, error)
        return None
    suffix = options.script.suffix
    return write_atomic(options.work_dir / BEST_FOLDER / f"{options.script.stem}_{place}{suffix}", text)


def _assumed(laws: TunedLaws, options: SearchOptions) -> tuple[str, ...]:
    steps, hidden = laws.steps, "beside" if laws.sizes.hidden_reduction else "after"
    chunks = "interleaved where a stage has several chunks" if laws.sizes.interleaves else "one chunk a stage"
    said = [
        f"1F1B, {chunks}; the optimizer is sharded over data parallel ranks",
        f"gradients are reduced {hidden} the backward pass, as the file's flags say",
    ]
    if laws.sizes.weights is not None:
        said = [
            f"1F1B, {chunks}; weights and optimizer are sharded (FSDP) over dp / replicas times cp",
            "without stages weights are gathered beside the operators in each pass, with stages once a step, and "
            "gradients are reduced beside the backward pass, or with stages after it",
        ]
    compared = options.switches if options.verify is not None else ()
    kept = [one for one in laws.launcher.switches(options.script) if one.stays and one.name not in compared]
    said += [f"{one.flag} of the file is not in the times: compare it by --switches {one.name}" for one in kept]
    if steps.unsure:
        said.append(f"left out, for no group of ranks gives them a law: {', '.join(sorted(set(steps.unsure)))}")
    guessed = [one for one in steps.operators if not one.is_counted and not one.further and not one.repeats]
    open_counts = sorted({f"{one.like.type} {one.count or ONCE}" for one in guessed})
    if open_counts:
        said.append(f"runs at too few CPs leave open how often these run in a pass: {', '.join(open_counts)} times")
    return tuple(said)


def as_data(done: Searched, options: SearchOptions) -> dict[str, Any]:
    """Results as JSON data: ms, bytes."""
    return {
        "ranks": options.ranks,
        "batch": options.batch,
        "memory_limit": options.limit,
        "legal": done.found.legal,
        "fitting": done.found.fitting,
        "solved": done.found.solved,
        "small_run_error": {"median": done.own_error, "largest": done.own_worst},
        "small_runs": [asdict(one) for one in done.own],
        "assumed": list(done.assumed),
        "best": [_plan_data(one) for one in done.best],
    }


def _plan_data(one: BestPlan) -> dict[str, Any]:
    run, plan = one.ranked.run, one.ranked.plan
    return {
        "strategy": {name: getattr(run, name) for name in ("dp", "tp", "pp", "vpp", "cp", "ep", "mbs")},
        **({"replicas": run.replicas} if run.replicas > 1 else {}),
        "micro_batches": one.ranked.micro_batches,
        "layers": [list(row) for row in plan.total_layers()],
        "recompute": {
            mode: [list(row) for row in grid]
            for mode, grid in plan.recompute.items()
            if mode in RECOMPUTE_MODES or plan.uses(mode)
        },
        "step_ms": one.ranked.step_ms,
        "interval_ms": [one.low_ms, one.high_ms],
        "peak_memory": [stage.peak for stage in one.ranked.peaks],
        "peak_upper": one.upper,
        "predicted_before_verification_ms": one.before_ms,
        "verified": None
        if one.verified is None
        else {
            "run": one.verified.run,
            "predicted_ms": one.verified.predicted_ms,
            "measured_ms": one.verified.measured_ms,
        },
        "switches": [_compared_data(each) for each in one.switches],
        "full_size": None if one.full_size is None else asdict(one.full_size),
        "script": None if one.script is None else str(one.script),
    }


def _compared_data(one: Compared) -> dict[str, Any]:
    after = one.after_ms if math.isfinite(one.after_ms) else None
    row = {"switch": one.switch.name, "flag": one.switch.flag, "on": one.on, "before_ms": one.before_ms}
    return row | {"switched_ms": after, "switched_memory": one.memory, "fits": one.fits}
