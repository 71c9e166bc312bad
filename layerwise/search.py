"""The search around the layers: batch, micro-batches, stages, interleaves, schedule, embedding and head, the buffer.

Every outer choice is bounded first; the one of the best bound is solved first, and those whose bound is no better than
the best plan are cut off. What the search proves is that no plan of the whole space has more samples a second than its
bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from taylor.base.errors import InputError
from taylor.cost_model.measured.cost_table import CostProvider
from taylor.cost_model.measured.layer_strategy import LayerwisePlan
from taylor.layerwise.exact.events import LaggedGraph
from taylor.layerwise.exact.fixed import FixedProblem
from taylor.layerwise.exact.relaxation import Relaxed, relax
from taylor.layerwise.exact.solve import FixedSolution, solve_fixed
from taylor.layerwise.job import LayerwiseJob, OuterChoice
from taylor.layerwise.space import SpaceLimits, divisors
from taylor.pipeline.schedule import PLAIN, ScheduleSpec

Tell = Callable[[str], None]


@dataclass(frozen=True)
class OuterSpace:
    """What is decided around the layers.

    Parameters
    ----------
    batches : tuple of int
    micro_batches : tuple of int
        Numbers of micro-batches; empty: every divisor of the batch.
    stages : tuple of int
        Numbers of stages; empty: those of the limits.
    interleaves : tuple of int
    schedule : str
        With one interleave.
    interleaved : str
        With several.
    limits : SpaceLimits
    """

    batches: tuple[int, ...]
    micro_batches: tuple[int, ...] = ()
    stages: tuple[int, ...] = ()
    interleaves: tuple[int, ...] = (1,)
    schedule: str = PLAIN
    interleaved: str = "megatron-interleaved"
    limits: SpaceLimits = field(default_factory=SpaceLimits)

    def choices(self, job: LayerwiseJob) -> Iterator[OuterChoice]:
        """Every outer choice of a job; each stage and each interleave has a layer, each rank a sample."""
        for batch in self.batches:
            for m in self.micro_batches or divisors(batch):
                if batch % m:
                    continue
                for pp in self.stages or self.limits.stage_numbers(job.world, job.layers):
                    if job.world % pp or pp > m:
                        continue
                    ranks = job.world // pp
                    for v in self.interleaves:
                        if v * pp > job.layers or (v > 1 and pp == 1):
                            continue
                        spec = ScheduleSpec(self.schedule if v == 1 else self.interleaved)
                        if not spec.fits_rounds(pp, m):
                            continue
                        for ends in self.limits.ends(ranks):
                            if batch // m % ends.dp == 0:
                                for buffer in _buffers(job, self.limits, ranks, ends.tp):
                                    yield OuterChoice(batch, m, pp, ends, v, spec, buffer)


def _buffers(job: LayerwiseJob, limits: SpaceLimits, ranks: int, end_tp: int) -> list[int | None]:
    """TP degrees that the buffer of gathered hidden states may be kept for."""
    if not job.global_buffer:
        return [None]
    degrees = sorted({each.tp for each in limits.layers(ranks)} | {end_tp})
    return [None if tp == 1 else tp for tp in degrees if tp >= end_tp]


@dataclass(frozen=True)
class Tried:
    """One outer choice and what became of it.

    Parameters
    ----------
    outer : OuterChoice
    bound_s : float
        No plan of it has a shorter step, s; inf where none fits.
    solution : FixedSolution or None
        None: cut off by its bound.
    """

    outer: OuterChoice
    bound_s: float
    solution: FixedSolution | None = None

    @property
    def most_samples_a_s(self) -> float:
        """What its bound allows."""
        return self.outer.global_batch / self.bound_s if np.isfinite(self.bound_s) else 0.0


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Parameters
    ----------
    plan : LayerwisePlan or None
    step_s : float
        inf where there is no plan.
    most_samples_a_s : float
        No plan of the space has more.
    tried : tuple of Tried
        Every outer choice, the most promising first.
    left_out : tuple of str
        Outer choices and strategies without a cost, each with what is missing.
    seconds : float
    """

    plan: LayerwisePlan | None
    step_s: float
    most_samples_a_s: float
    tried: tuple[Tried, ...]
    left_out: tuple[str, ...]
    seconds: float

    @property
    def samples_a_s(self) -> float:
        """Throughput of the plan, 0 without one."""
        return 0.0 if self.plan is None else self.plan.global_batch / self.step_s

    @property
    def gap(self) -> float:
        """How much more the bound allows, relative."""
        return 0.0 if self.plan is None else max(0.0, self.most_samples_a_s / self.samples_a_s - 1)


def search(
    job: LayerwiseJob,
    provider: CostProvider,
    space: OuterSpace,
    *,
    gap: float = 1e-4,
    time_limit: float | None = None,
    tell: Tell | None = None,
) -> SearchResult:
    """Find the plan of most samples a second in a space, with a proven gap.

    Parameters
    ----------
    gap : float
        Relative gap to which it is proven.
    time_limit : float, optional
        Seconds; the best plan so far is returned then, with what is proven.
    tell : callable, optional
        Told of every better plan.
    """
    began = time.monotonic()
    deadline = None if time_limit is None else began + time_limit
    left_out: dict[str, None] = {}
    bounded: list[tuple[float, int, OuterChoice, FixedProblem]] = []
    tried: list[Tried] = []
    for number, outer in enumerate(space.choices(job)):
        problem = _problem(job, provider, space.limits, outer, left_out)
        relaxed: Relaxed | None = None
        if problem is not None and len(problem.strategies):
            relaxed = relax(problem, LaggedGraph.of(problem.schedule))
        if problem is None or relaxed is None:
            tried.append(Tried(outer, np.inf))
            continue
        bounded.append((relaxed.bound / outer.global_batch, number, outer, problem))
    bounded.sort(key=lambda each: each[:2])
    best: FixedSolution | None = None
    slowest = np.inf  # seconds a sample of the best plan
    solved: list[Tried] = []
    for bound, _, outer, problem in bounded:
        if bound >= slowest * (1 - gap) or (deadline is not None and time.monotonic() > deadline):
            solved.append(Tried(outer, bound * outer.global_batch))
            continue
        left = None if deadline is None else max(deadline - time.monotonic(), 0.1)
        found = solve_fixed(
            problem, outer, gap=gap / 2, cutoff_s=slowest * outer.global_batch * (1 - gap / 2), time_limit=left
        )
        solved.append(Tried(outer, max(found.bound_s, bound * outer.global_batch), found))
        if found.plan is not None and found.step_s / outer.global_batch < slowest:
            best, slowest = found, found.step_s / outer.global_batch
            if tell is not None:
                tell(f"{found.step_s:.6g} s, {1 / slowest:.6g} samples/s")
    most = max((each.most_samples_a_s for each in solved), default=0.0)
    if best is not None:
        most = max(most, 1 / slowest)
    solved.sort(key=lambda each: -each.most_samples_a_s)
    return SearchResult(
        None if best is None else best.plan,
        np.inf if best is None else best.step_s,
        most,
        tuple([*solved, *tried]),
        tuple(left_out),
        time.monotonic() - began,
    )


def _problem(
    job: LayerwiseJob, provider: CostProvider, limits: SpaceLimits, outer: OuterChoice, left_out: dict[str, None]
) -> FixedProblem | None:
    """One outer choice priced; None where its ends have no cost, or no layer has one."""
    setting = job.setting(outer)
    strategies = []
    for each in limits.layers(job.ranks(outer)):
        if setting.micro_batch % each.dp:
            continue
        try:
            provider.layer(job.kind, each, setting)
        except InputError as error:
            left_out[f"{each.name} on {outer.stages} stages: {error}"] = None
        else:
            strategies.append(each)
    try:
        return FixedProblem.of(job, outer, provider, strategies)
    except InputError as error:
        left_out[f"ends {outer.ends.name} on {outer.stages} stages: {error}"] = None
        return None


def cut_off(result: SearchResult) -> Sequence[Tried]:
    """The outer choices that a search did not solve, for their bound was no better than the best plan."""
    return [each for each in result.tried if each.solution is None and np.isfinite(each.bound_s)]
