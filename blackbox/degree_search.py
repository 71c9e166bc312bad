"""The search of degrees for a black-box network: layer costs to the exact solver, the best few reported.

Every choice of TP, CP, EP, stages, chunks and micro-batch has a most even division, whose time is known fast. In its
order they go to the exact solver, which divides layers and chooses recompute, until no other one can be among the best.
"""

from __future__ import annotations

import bisect
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from taylor.base.errors import InputError
from taylor.blackbox.memory_laws import PredictedPeak
from taylor.blackbox.quick_steps import quick_step
from taylor.blackbox.small_runs import legal
from taylor.blackbox.stage_problem import MIB, schedule_of, stage_blocks, stage_peaks, stage_problem
from taylor.blackbox.step_laws import StepLaws
from taylor.parsers.small_run import JobSizes, RunSetting
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution, Status
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import peak_memory_mib, step_time

MOST_MBS, MOST_CP, MOST_STAGES, MOST_CHUNKS = 8, 16, 64, 8
AHEAD = 0.97
"""An exact plan is seldom faster than this fraction of the quick time: choices beyond are not solved. In 64 solves of
three networks of the second cluster it took 0.981 of it at least."""
MOST_SOLVED, MOST_NEAR = 16, 3
HALF_WIDTH = 1.645
"""Standard deviations in half of an interval that holds nine of ten."""
MOST_TRIES = 4
"""Solves of a choice whose plans take more memory by the laws than the problem counts."""
SOLVE_GAP, SOLVE_SECONDS, AGAIN_SECONDS = 1e-3, 5.0, 1.0
"""Relative gap and time limit of a solve; the limit where it begins from the best plan of laws a little different."""
MOST_WAIT = 10.0
"""Longest solve on a shared processor, as a multiple of that on a free one."""


@dataclass(frozen=True)
class Choice:
    """Degrees with their most even division.

    Parameters
    ----------
    quick_ms : float
        As `quick_steps.quick_step` estimates it; infinite where no division fits. Of a choice that is not among the
        fastest `MOST_SOLVED` any time that is longer than theirs.
    quick_plan : PipelinePlan or None
    first_least : int
        Layers that the first chunk has to hold.
    """

    run: RunSetting
    micro_batches: int
    problem: PipelineProblem
    quick_ms: float
    quick_plan: PipelinePlan | None
    first_least: int


@dataclass(frozen=True)
class Ranked:
    """Degrees with the solver's plan.

    Parameters
    ----------
    step_ms : float
    error : float
        One standard deviation of it, as a fraction.
    peaks : tuple of PredictedPeak
        A stage each, in bytes.
    problem : PipelineProblem
        What the plan solves, with the time after the last micro-batch of its own stages.
    """

    run: RunSetting
    micro_batches: int
    plan: PipelinePlan
    step_ms: float
    error: float
    peaks: tuple[PredictedPeak, ...]
    problem: PipelineProblem

    @property
    def modules(self) -> tuple[str, ...]:
        """Choices by module that layers of the plan are under."""
        return tuple(name for name in self.problem.choices if self.plan.uses(name))


@dataclass(frozen=True)
class FoundPlans:
    """The best, in order, and the number of choices examined.

    Parameters
    ----------
    near : tuple of Ranked
        Further ones that tie with the last of the best until both are verified.
    legal, fitting, solved : int
        Numbers of choices that can start, that have a division which fits, and that the exact solver solved.
    """

    best: tuple[Ranked, ...]
    near: tuple[Ranked, ...]
    legal: int
    fitting: int
    solved: int


@dataclass(frozen=True)
class Job:
    """Space of the search.

    Parameters
    ----------
    ranks, batch : int
        Of the whole job: ranks, and samples of a step.
    limit : float
        Bytes of a device.
    searched : collection of str
        Degrees that vary; the others are those of the file.
    uniform : tuple of (str, int)
        As `PipelineProblem.uniform_recompute`.
    """

    sizes: JobSizes
    ranks: int
    batch: int
    limit: float
    searched: Collection[str]
    uniform: tuple[tuple[str, int], ...] = ()


def choices(job: Job) -> Iterator[tuple[RunSetting, int]]:
    """Every legal choice of degrees, with its micro-batches."""
    own = job.sizes.own

    def degrees(name: str, most: int) -> list[int]:
        return [1 << at for at in range(most.bit_length())] if name in job.searched else [getattr(own, name)]

    for tp, cp, pp, ep, mbs in itertools.product(
        degrees("tp", job.sizes.tp_ways),
        degrees("cp", MOST_CP),
        degrees("pp", min(MOST_STAGES, own.layers)),
        degrees("ep", own.experts) if own.experts > 1 else [1],
        degrees("mbs", MOST_MBS),
    ):
        dp, rest = divmod(job.ranks, tp * cp * pp)
        if rest or not dp or job.batch % (dp * mbs) or own.experts % ep:
            continue
        for replicas in _copies(dp, job):
            run = RunSetting(tp, cp, ep, mbs, own.seq, own.experts, own.layers, pp, dp, dense=own.dense)
            run = run.replace(replicas=replicas)
            # Layers need not split evenly.
            if legal(run.replace(layers=pp), job.sizes) is None:
                micro = job.batch // (dp * mbs)
                yield from ((run.replace(vpp=vpp), micro) for vpp in _chunks(run, micro, job))


def _copies(dp: int, job: Job) -> list[int]:
    """Numbers of copies of sharded weights over the data parallel ranks; one of weights that are not sharded."""
    if job.sizes.weights is None:
        return [1]
    if "replicas" not in job.searched:
        return [min(dp, job.sizes.own.replicas)]
    return [1 << at for at in range(dp.bit_length())]


def _chunks(run: RunSetting, micro_batches: int, job: Job) -> Iterator[int]:
    """Numbers of chunks a stage: one, and those that even chunks or a power of two give.

    Interleaved stages need two of them at least, and whole rounds of micro-batches: `ScheduleSpec.fits_rounds`.
    """
    if "vpp" not in job.searched or not job.sizes.interleaves:
        yield 1
        return
    for vpp in range(1, min(MOST_CHUNKS, run.layers // run.pp) + 1):
        even = run.layers % (run.pp * vpp) == 0 or vpp & (vpp - 1) == 0
        if vpp == 1 or (even and run.pp > 1 and schedule_of(vpp).fits_rounds(run.pp, micro_batches)):
            yield vpp


def within_reach(
    job: Job, steps: StepLaws, beat_ms: float, fraction: Callable[[RunSetting], float], known: Collection[RunSetting]
) -> list[Choice]:
    """Choices that could be faster than `beat_ms` if their layers took less time, those that could be fastest first.

    Parameters
    ----------
    fraction : callable
        Least fraction of their time that a choice's layers take.
    known : collection of RunSetting
        Choices that are left out.
    """
    found = list[tuple[float, Choice]]()
    for run, micro in choices(job):
        if run in known or _least_ms(run, micro, steps) * (least := fraction(run)) >= beat_ms:
            continue
        choice = _choice(run, micro, job, steps)
        could_be = choice.quick_ms * AHEAD * least
        if could_be < beat_ms:
            found.append((could_be, choice))
    return [choice for _, choice in sorted(found, key=lambda each: (each[0], each[1].run))]


def search(job: Job, steps: StepLaws, count: int = 3) -> FoundPlans:
    """The best choices of degrees, each with its exact plan.

    Raises
    ------
    InputError
        When none is legal or fits, or tensors have no law.
    """
    all_choices = list(choices(job))
    stated = []
    bounds = sorted((_least_ms(run, micro, steps), run, micro) for run, micro in all_choices)
    leading: list[float] = []
    for least, run, micro in bounds:
        if len(leading) >= MOST_SOLVED and least > leading[MOST_SOLVED - 1] / AHEAD:
            break
        # No more are solved than lead: how much slower another one is does not matter.
        beat = leading[MOST_SOLVED - 1] if len(leading) >= MOST_SOLVED else math.inf
        choice = _choice(run, micro, job, steps, beat)
        if math.isfinite(choice.quick_ms):
            stated.append(choice)
            bisect.insort(leading, choice.quick_ms)
    stated.sort(key=lambda one: (one.quick_ms, one.run))
    ranked: list[Ranked] = []
    solved, share = 0, _ProcessorShare()
    for one in stated:
        beat = _near(ranked[count - 1]) if len(ranked) >= count else math.inf
        if (solved >= MOST_SOLVED and ranked) or one.quick_ms * AHEAD > beat:
            break
        found = solved_choice(one, job, steps, beat, seconds=share.seconds(SOLVE_SECONDS))
        # The solver proves one without a quick plan infeasible at once: such a solve does not count.
        solved += found is not None or one.quick_plan is not None
        if found is not None:
            ranked = sorted([*ranked, found], key=lambda each: each.step_ms)
    if not ranked:
        cure = "name more ranks, or search more degrees"
        raise InputError(
            "have no plan of this job that surely fits in memory", field="ranks", value=job.ranks, cure=cure
        )
    near = [one for one in ranked[count:] if one.step_ms <= _near(ranked[count - 1])]
    return FoundPlans(tuple(ranked[:count]), tuple(near[:MOST_NEAR]), len(all_choices), len(stated), solved)


class _ProcessorShare:
    """Fraction of a processor that this process gets, so that others do not change what a solve finds in its limit."""

    def __init__(self) -> None:
        self.began = time.monotonic(), time.process_time()

    def seconds(self, own: float) -> float:
        """Wall-clock seconds for `own` seconds of processor time."""
        passed, used = time.monotonic() - self.began[0], time.process_time() - self.began[1]
        return own * min(MOST_WAIT, max(1.0, passed / used)) if used > 0.1 else own


def _near(last: Ranked) -> float:
    """Step up to which a choice ties with the last of the best, by the error of small runs, ms."""
    return last.step_ms * (1 + HALF_WIDTH * last.error)


def again(ranked: Sequence[Ranked], job: Job, steps: StepLaws) -> tuple[Ranked, ...]:
    """The same choices by other laws, the best first."""
    each = [(_choice(one.run, one.micro_batches, job, steps), one.plan) for one in ranked]
    share = _ProcessorShare()
    found = [
        solved_choice(choice, job, steps, known=plan, seconds=share.seconds(AGAIN_SECONDS)) for choice, plan in each
    ]
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.step_ms))


def solved_choice(
    choice: Choice,
    job: Job,
    steps: StepLaws,
    beat_ms: float = math.inf,
    known: PipelinePlan | None = None,
    seconds: float = SOLVE_SECONDS,
) -> Ranked | None:
    """Its exact plan; None where the solver finds none that fits, or proves that none is faster than `beat_ms`.

    Parameters
    ----------
    known : PipelinePlan or None
        A plan to begin from instead of the quick one.
    seconds : float
        Limit of a solve.
    """
    problem, full = choice.problem, frozenset[int]()
    for _ in range(MOST_TRIES):
        solution = _solved(problem, choice, beat_ms, known or choice.quick_plan, seconds)
        if solution.plan is None or solution.objective is None:
            return None
        peaks = stage_peaks(steps.memory, choice.run, solution.plan, choice.micro_batches)
        over = frozenset(stage for stage, peak in enumerate(peaks) if not peak.fits(job.limit))
        if not over:
            own = _with_own_tails(problem, choice.run, solution.plan, steps)
            step = step_time(own, solution.plan) * (own.unit_ms or 1.0)
            error = steps.relative_error(choice.run)
            return Ranked(choice.run, choice.micro_batches, solution.plan, step, error, peaks, own)
        if solution.status is Status.CUT_OFF or any(peaks[stage].unsure for stage in over):
            return None  # Less memory makes no plan faster.
        if over <= full:
            problem = _tightened(problem, solution.plan, peaks, over, steps.memory.margin)
        else:
            full |= over
            problem = _problem(choice.run, choice.micro_batches, job, steps, full)
    return None


def _tightened(
    problem: PipelineProblem, plan: PipelinePlan, peaks: Sequence[PredictedPeak], over: Collection[int], margin: float
) -> PipelineProblem:
    """A problem whose limits leave out what a plan's stages take beyond the sum of their blocks."""
    counted = peak_memory_mib(problem, plan)
    limits = list(problem.limit_mib)
    for stage in over:
        limits[stage] -= max(0.0, peaks[stage].upper / (1 + margin) / MIB - counted[stage])
    return problem.replace(limit_mib=tuple(limits))


def _with_own_tails(problem: PipelineProblem, run: RunSetting, plan: PipelinePlan, steps: StepLaws) -> PipelineProblem:
    """A problem with the time after the last micro-batch of a plan's own stages, not of even ones."""
    stages = [[block for chunk in chunks for block in chunk] for chunks in stage_blocks(plan)]
    unit = problem.unit_ms or 1.0
    return problem.replace(tail=tuple(each / unit for each in steps.tails_ms(run, stages)))


def _solved(
    problem: PipelineProblem, choice: Choice, beat_ms: float, known: PipelinePlan | None, seconds: float
) -> Solution:
    unit = problem.unit_ms or 1.0
    cutoff = (lambda: beat_ms / unit) if math.isfinite(beat_ms) else None
    options = SolveOptions(time_limit=seconds, gap=SOLVE_GAP, cutoff=cutoff)
    solution = solve(problem, options, warm_start=known)
    if solution.plan is not None and solution.plan.total_layers()[0][0] < choice.first_least:
        # Of the plans with at least this many there, those with exactly this many are the nearest to the best.
        solution = solve(problem.replace(fixed_layers={(0, 0): choice.first_least}), options)
    return solution


def _least_ms(run: RunSetting, micro: int, steps: StepLaws) -> float:
    """A lower bound of a choice's plans: no recompute, all stages equally long."""
    times = steps.block_times(run)
    work = (run.layers - run.dense) * (times.layer + times.backward) + run.dense * sum(times.dense)
    work += (times.embedding + times.head) * (1 + times.ratio)
    # Chunks of unlike length may fill and drain the pipeline in as little as nothing.
    fill = work * (run.pp - 1) / run.pp if run.vpp == 1 else 0.0
    return work * micro / run.pp + fill


def _choice(run: RunSetting, micro: int, job: Job, steps: StepLaws, beat_ms: float = math.inf) -> Choice:
    problem = _problem(run, micro, job, steps)
    together = run.dense if job.sizes.dense_together else 0
    quick = quick_step(problem, beat_ms)
    return Choice(run, micro, problem, quick.ms, quick.plan, together)


def _problem(
    run: RunSetting, micro: int, job: Job, steps: StepLaws, all_again: Collection[int] = ()
) -> PipelineProblem:
    return stage_problem(steps.memory, run, steps.block_times(run), micro, job.limit, job.uniform, all_again)
