"""Plans a job whose samples differ in length: one plan, least in the mean step over sampled steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import InputError
from taylor.cost_model.errors.known_error import KnownError
from taylor.cost_model.job.length import SECONDS_AN_HOUR
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.profile import MemorySource
from taylor.cost_model.time.step import layer_time
from taylor.parsers.tables.lengths import SampleLengths
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.pipeline_solver.unlike.scenarios import ScenarioGraph, Scenarios
from taylor.pipeline_solver.unlike.solve import ExpectedStep, solve_expected
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec
from taylor.workflows.showing.verdict_data import Rival, VerdictFacts, figures_fit
from taylor.workflows.solving.measured_peaks import with_measured
from taylor.workflows.statement.options import NO_ORIGIN, FileJob, Origin
from taylor.workflows.statement.stated_file import StatedFile

Array = NDArray[np.float64]

PADDED, NAIVE, BALANCED = "padded", "packed", "balanced"
PACKINGS = (PADDED, NAIVE, BALANCED)
"""Ways in which samples make micro-batches: each as long as its longest sample; filled to the sequence length in the
order drawn; the same, and the samples of a step dealt so that its micro-batches cost as much."""

DRAWN, LARGEST = "drawn", "largest"
ORDERS = (DRAWN, LARGEST)
"""Orders in which a step's micro-batches are sent: as drawn, or the costliest first."""

FRESH = 200
"""Steps, of samples that no plan has seen, on which plans are compared."""
MOST_ROWS = 512
"""Most pipelines of all scenarios; with many replicas fewer steps are sampled, with a note."""
_SHORT = 128
"""Tokens of a micro-batch whose operations take no longer than the host needs to start them."""
_USUAL_SHARE = 0.3
"""Part of the time limit for the plan of equal micro-batches."""


@dataclass(frozen=True)
class LengthChoice:
    """What is known of the lengths, and how samples make micro-batches.

    Parameters
    ----------
    lengths : SampleLengths
    packing : str
        One of `PACKINGS`.
    order : str
        One of `ORDERS`.
    scenarios : int
        Steps to sample.
    seed : int
    """

    lengths: SampleLengths
    packing: str = PADDED
    order: str = DRAWN
    scenarios: int = 32
    seed: int = 0


@dataclass(frozen=True)
class Steps:
    """Sampled steps: cost factors, and the tokens and samples that train in them, each float64 [n]."""

    scenarios: Scenarios
    tokens: Array
    samples: Array
    slots: Array
    """Tokens that are computed, padding included."""


@dataclass(frozen=True)
class LengthPlan:
    """Best plan for unlike lengths beside the plan for equal ones; times in ms.

    Parameters
    ----------
    found : ExpectedStep
        In forward times of a body layer.
    usual : PipelinePlan or None
        The plan for micro-batches of equal cost.
    unit_ms : float
    fresh_ms, usual_ms, other_order_ms : float
        Mean step on the same fresh samples: of the plan found, of the usual one, and of the plan found in the other
        order.
    solution : Solution
        The plan for full micro-batches: its peaks and limits.
    known : KnownError or None
        Of the peaks.
    """

    config: TrainingConfig
    choice: LengthChoice
    found: ExpectedStep
    usual: PipelinePlan | None
    unit_ms: float
    fresh_ms: float
    slow_ms: float
    usual_ms: float | None
    other_order_ms: float
    tokens_a_second: float
    samples_a_second: float
    padding: float
    cut: int
    device: DeviceSpec
    solution: Solution
    known: KnownError | None
    written: Path | None = None

    @property
    def hours(self) -> float:
        """Hours of an epoch over the data set."""
        return self.choice.lengths.samples / self.samples_a_second / SECONDS_AN_HOUR

    def verdict_dict(self, origin: Origin = NO_ORIGIN) -> dict[str, Any]:
        """Verdict on the plan; the baseline is the plan for equal lengths."""
        peaks, limits = self.solution.peak_memory_mib, self.solution.memory_limit_mib
        solution, fit = figures_fit(peaks, limits, self.config, self.known)
        rival = None if self.usual_ms is None else Rival("the plan for equal lengths", self.usual_ms)
        facts = VerdictFacts(
            self.config, self.device, fit, solution, self.known, self.fresh_ms, True, baseline=rival, origin=origin
        )
        return facts.to_dict()

    def to_dict(self, origin: Origin = NO_ORIGIN) -> dict[str, Any]:
        """Plan and figures as plain data."""
        plan, found = self.found.plan, self.found
        return {
            "file": str(self.config.path),
            "verdict": self.verdict_dict(origin),
            "packing": self.choice.packing,
            "order": self.choice.order,
            "scenarios": len(found.step_times),
            "mean_step_ms": None if plan is None else found.mean * self.unit_ms,
            "lower_bound_ms": found.bound * self.unit_ms,
            "gap": found.gap,
            "fresh_mean_step_ms": self.fresh_ms,
            "fresh_90_percent_ms": self.slow_ms,
            "fresh_mean_step_of_equal_lengths_plan_ms": self.usual_ms,
            "fresh_mean_step_in_other_order_ms": self.other_order_ms,
            "tokens_per_second": self.tokens_a_second,
            "samples_per_second": self.samples_a_second,
            "epoch_hours": self.hours,
            "padding": self.padding,
            "samples_cut": self.cut,
            "plan": None if plan is None else {"layers": plan.layers, "recompute": plan.recompute},
            "written": None if self.written is None else str(self.written),
        }


class LengthCosts:
    """Cost of micro-batches by the lengths of their samples, over that of a full one.

    The time of a layer is a part for every micro-batch (weights are read, gradients added up), one that grows
    with the tokens, and one that grows with the square of a sample's length: its attention. The three follow from a
    layer of the full length, one of two halves, and one of a half alone. The host starts no micro-batch faster than a
    short one.

    Attributes
    ----------
    budget : int
        Tokens of a full micro-batch.
    each, tokens, squares : float
        The three parts of a full micro-batch's time in layers, which add up to 1.
    least : float
        Time of a short micro-batch over a full one's.
    """

    def __init__(self, model: ModelSpec, strategy: Strategy, rules: TrainingRules, device: DeviceSpec) -> None:
        self.length = rules.seq_length
        self.budget = rules.seq_length * strategy.mbs

        def layers_ms(samples: int, length: int) -> float:
            return self._layers_ms(model, strategy.replace(mbs=samples), rules.replace(seq_length=length), device)

        half = max(1, rules.seq_length // 2)
        full, halves = layers_ms(strategy.mbs, rules.seq_length), layers_ms(2 * strategy.mbs, half)
        alone = layers_ms(strategy.mbs, half)
        self.squares = float(np.clip(2 * (full - halves) / full, 0.0, 1.0))
        self.each = float(np.clip((2 * alone - halves) / full, 0.0, 1.0 - self.squares))
        self.tokens = 1.0 - self.squares - self.each
        self.least = layers_ms(1, min(rules.seq_length, _SHORT)) / full

    @staticmethod
    def _layers_ms(model: ModelSpec, strategy: Strategy, rules: TrainingRules, device: DeviceSpec) -> float:
        total = 0.0
        for kind, count in model.body_counts.items():
            time = layer_time(model, kind, strategy, rules, device)
            total += count * float(time.forward + time.backward)
        return total

    def factor(self, tokens: float, squares: float) -> float:
        """Time in layers of a micro-batch over a full one's, by its tokens and the sum of its lengths' squares."""
        full_squares = self.budget * self.length
        factor = self.each + self.tokens * tokens / self.budget + self.squares * squares / full_squares
        return max(self.least, factor)


def sample_steps(
    choice: LengthChoice, lengths: SampleLengths, strategy: Strategy, costs: LengthCosts, steps: int, seed: int
) -> Steps:
    """Draw steps, and make their micro-batches.

    Parameters
    ----------
    lengths : SampleLengths
        Cut to the sequence length.
    steps : int
    """
    rng = np.random.default_rng(seed)
    per_step = strategy.micro_batches * strategy.dp
    layers, ends = np.empty((steps, per_step)), np.empty((steps, per_step))
    tokens, samples, slots = np.empty(steps), np.empty(steps), np.empty(steps)
    for step in range(steps):
        if choice.packing == PADDED:
            drawn = lengths.draw(rng, per_step * strategy.mbs).reshape(per_step, strategy.mbs)
            longest = drawn.max(axis=1)
            full = [(strategy.mbs * length, strategy.mbs * length**2) for length in longest.tolist()]
            tokens[step], samples[step], slots[step] = drawn.sum(), drawn.size, strategy.mbs * longest.sum()
        else:
            packs = _packs(lengths, rng, per_step, costs.budget)
            if choice.packing == BALANCED:
                packs = balanced_packs(packs, costs)
            full = [(sum(pack), sum(length**2 for length in pack)) for pack in packs]
            tokens[step], samples[step] = sum(map(sum, packs)), sum(map(len, packs))
            slots[step] = tokens[step]
        layers[step] = [costs.factor(*each) for each in full]
        ends[step] = [each[0] / costs.budget for each in full]
    shape = (steps * strategy.dp, strategy.micro_batches)
    scenarios = Scenarios(layers.reshape(shape), ends.reshape(shape), strategy.dp)
    return Steps(scenarios.largest_first() if choice.order == LARGEST else scenarios, tokens, samples, slots)


def _packs(lengths: SampleLengths, rng: np.random.Generator, number: int, budget: int) -> list[list[int]]:
    """Packs filled in the order drawn: a sample that does not fit begins the next one."""
    packs: list[list[int]] = [[]]
    left = budget
    while True:
        for length in lengths.draw(rng, 4 * number).tolist():
            if length > left:
                if len(packs) == number:
                    return packs
                packs.append([])
                left = budget
            packs[-1].append(length)
            left -= length


def balanced_packs(packs: list[list[int]], costs: LengthCosts) -> list[list[int]]:
    """The samples of some packs dealt again: the costliest first, each to the cheapest pack with tokens left.

    Longest processing time first (Graham 1969, doi:10.1137/0117039). Where a sample then fits nowhere the packs stay as
    they are.
    """
    dealt: list[list[int]] = [[] for _ in packs]
    load, tokens = [0.0] * len(packs), [0] * len(packs)
    for length in sorted((length for pack in packs for length in pack), reverse=True):
        able = [at for at in range(len(packs)) if tokens[at] + length <= costs.budget]
        if not able:
            return packs
        best = min(able, key=lambda at: load[at])
        dealt[best].append(length)
        tokens[best] += length
        load[best] += costs.factor(length, length**2)
    return dealt


def plan_lengths(
    job: FileJob,
    choice: LengthChoice,
    folder: Path,
    *,
    gap: float = 0.01,
    time_limit: float = 60.0,
    output: Path | None = None,
) -> LengthPlan:
    """Plan a file's job for samples of unlike lengths.

    Memory is limited as for full micro-batches, which a step may contain. Times are estimated.

    Raises
    ------
    InputError
        Bad configuration or option; a device without ratios, a schedule whose passes are combined.
    """
    file = StatedFile.read(job)
    with file.open_backend(folder) as backend:
        memory = file.obtain_memory(backend, folder)
    file = with_measured(file, memory, folder)
    problem, config = file.problem(memory), file.running
    if problem.pairing is not None:
        raise InputError(
            "combines passes of micro-batches, whose lengths then differ", file=config.path, field="schedule",
            value=config.schedule.name, cure="plan it with -schedule 1f1b or interleaved",
        )  # fmt: skip
    if problem.unit_ms is None:
        raise InputError(
            "the time of a layer is not known", file=config.path, cure="leave out given ratios, or name a device"
        )
    lengths = choice.lengths.cut_to(config.rules.seq_length)
    costs = LengthCosts(config.model, config.strategy, config.rules, file.device)
    steps = max(1, min(choice.scenarios, MOST_ROWS // config.strategy.dp))
    drawn = sample_steps(choice, lengths, config.strategy, costs, steps, choice.seed)
    ones = np.ones((1, config.strategy.micro_batches))
    alike = Scenarios(ones, ones)
    usual = solve_expected(problem, alike, gap=gap, time_limit=_USUAL_SHARE * time_limit).plan
    found = solve_expected(problem, drawn.scenarios, gap=gap, time_limit=(1 - _USUAL_SHARE) * time_limit, start=usual)
    if found.plan is None:
        reason = "no plan fits in memory" if found.infeasible else "no plan was found in the time"
        raise InputError(
            reason, file=config.path, cure="taylor why-memory names what lowers it; or give more time (-t)"
        )
    fresh_steps = max(1, min(FRESH, 4 * MOST_ROWS // config.strategy.dp))
    fresh = sample_steps(choice, lengths, config.strategy, costs, fresh_steps, choice.seed + 1)
    return _measured_on(fresh, file, problem, choice, found, usual, output, memory.source)


def _measured_on(
    fresh: Steps,
    file: StatedFile,
    problem: PipelineProblem,
    choice: LengthChoice,
    found: ExpectedStep,
    usual: PipelinePlan | None,
    output: Path | None,
    source: MemorySource,
) -> LengthPlan:
    """The plans on fresh samples, and the file that the better one is written to."""
    assert found.plan is not None and problem.unit_ms is not None
    unit, config = problem.unit_ms, file.running
    graph = ScenarioGraph(problem, fresh.scenarios)
    times = unit * graph.step_times(found.plan)
    other = fresh.scenarios.largest_first()
    if choice.order == LARGEST:
        drawn = LengthChoice(choice.lengths, choice.packing, DRAWN, choice.scenarios, choice.seed)
        costs = LengthCosts(config.model, config.strategy, config.rules, file.device)
        lengths = choice.lengths.cut_to(config.rules.seq_length)
        other = sample_steps(drawn, lengths, config.strategy, costs, len(times), choice.seed + 1).scenarios
    written = None if output is None else write_plan(config, found.plan, output=output)
    return LengthPlan(
        config,
        choice,
        found,
        usual,
        unit,
        fresh_ms=float(times.mean()),
        slow_ms=float(np.quantile(times, 0.9)),
        usual_ms=None if usual is None else float(unit * graph.step_times(usual).mean()),
        other_order_ms=float(unit * ScenarioGraph(problem, other).step_times(found.plan).mean()),
        tokens_a_second=float(fresh.tokens.sum() / (1e-3 * times.sum())),
        samples_a_second=float(fresh.samples.sum() / (1e-3 * times.sum())),
        padding=float(1 - fresh.tokens.sum() / fresh.slots.sum()),
        cut=choice.lengths.longer_than(config.rules.seq_length),
        device=file.device,
        solution=evaluate(problem, found.plan),
        known=config.memory_error(source),
        written=written,
    )
