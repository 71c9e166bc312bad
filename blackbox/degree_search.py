"""The search of degrees for a black-box network: layer costs to the exact solver, the best few told.

Every choice of TP, CP, EP, stages, chunks and micro-batch has a nearly even plan, whose time is quickly told. In its
order they go to the exact solver, which divides layers and chooses recompute, until no other one can be among the best.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import InputError
from taylor.blackbox.memory_laws import MemoryLaws, StagePeak
from taylor.blackbox.small_runs import legal
from taylor.blackbox.stage_problem import alive_chunks, schedule_of, stage_peaks, stage_problem
from taylor.blackbox.step_laws import StepLaws
from taylor.parsers.small_run import JobSizes, Setting
from taylor.pipeline.plan import FULL, NONE, PipelinePlan, deal_kinds
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.solve import solve

MOST_MBS, MOST_CP, MOST_STAGES, MOST_CHUNKS = 8, 16, 64, 8
AHEAD = 0.92
"""An exact plan is seldom faster than this share of the even one's time: choices beyond are not solved."""
MOST_SOLVED = 16
SOLVE_GAP, SOLVE_SECONDS = 1e-3, 5.0


@dataclass(frozen=True)
class Choice:
    """Degrees with their even plan.

    Parameters
    ----------
    even_ms : float
        A step of the plan that is as even as memory lets it be, with the least recompute; infinite where none fits.
    first_least : int
        Layers that the first chunk has to hold.
    """

    run: Setting
    micro_batches: int
    problem: PipelineProblem
    even_ms: float
    first_least: int = 0


@dataclass(frozen=True)
class Ranked:
    """Degrees with the solver's plan.

    Parameters
    ----------
    step_ms : float
    error : float
        One standard deviation of it, as a share.
    peaks : tuple of StagePeak
        A stage each, in bytes.
    """

    run: Setting
    micro_batches: int
    plan: PipelinePlan
    step_ms: float
    error: float
    peaks: tuple[StagePeak, ...]


@dataclass(frozen=True)
class Found:
    """The best, in order, and how much was looked at.

    Parameters
    ----------
    legal, fitting, solved : int
        Choices that can start, whose even plan fits, and that the exact solver was asked about.
    """

    best: tuple[Ranked, ...]
    legal: int
    fitting: int
    solved: int


@dataclass(frozen=True)
class Job:
    """What is searched.

    Parameters
    ----------
    ranks, batch : int
        Of the whole job: ranks, and samples of a step.
    limit : float
        Bytes of a device.
    searched : collection of str
        Degrees that vary; the others are the file's own.
    uniform : tuple of (str, int)
        As `PipelineProblem.uniform_recompute`.
    """

    sizes: JobSizes
    ranks: int
    batch: int
    limit: float
    searched: Collection[str]
    uniform: tuple[tuple[str, int], ...] = ()


def choices(job: Job) -> Iterator[tuple[Setting, int]]:
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
        run = Setting(tp, cp, ep, mbs, own.seq, own.experts, own.layers, pp, dp, dense=own.dense)
        # Layers need not split evenly.
        if legal(run.replace(layers=pp), job.sizes) is None:
            micro = job.batch // (dp * mbs)
            yield from ((run.replace(vpp=vpp), micro) for vpp in _chunks(run, micro, job))


def _chunks(run: Setting, micro_batches: int, job: Job) -> Iterator[int]:
    """Numbers of chunks a stage: one, and those that even chunks or a power of two give.

    Interleaved stages need two of them at least, and whole rounds of micro-batches: `ScheduleSpec.fits_rounds`.
    """
    if "vpp" not in job.searched:
        yield 1
        return
    for vpp in range(1, min(MOST_CHUNKS, run.layers // run.pp) + 1):
        even = run.layers % (run.pp * vpp) == 0 or vpp & (vpp - 1) == 0
        if vpp == 1 or (even and run.pp > 1 and schedule_of(vpp).fits_rounds(run.pp, micro_batches)):
            yield vpp


def search(job: Job, steps: StepLaws, count: int = 3) -> Found:
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
        choice = _choice(run, micro, job, steps)
        if math.isfinite(choice.even_ms):
            stated.append(choice)
            leading = sorted([*leading, choice.even_ms])
    if not stated:
        cure = "name more ranks, or search more degrees"
        raise InputError("hold no plan of this job that surely fits", field="ranks", value=job.ranks, cure=cure)
    stated.sort(key=lambda one: (one.even_ms, one.run))
    ranked: list[Ranked] = []
    solved = 0
    for one in stated[:MOST_SOLVED]:
        if len(ranked) >= count and one.even_ms * AHEAD > ranked[count - 1].step_ms:
            break
        solved += 1
        found = solved_choice(one, steps, ranked[count - 1].step_ms if len(ranked) >= count else math.inf)
        if found is not None:
            ranked = sorted([*ranked, found], key=lambda each: each.step_ms)
    return Found(tuple(ranked[:count]), len(all_choices), len(stated), solved)


def again(ranked: Sequence[Ranked], job: Job, steps: StepLaws) -> tuple[Ranked, ...]:
    """The same choices by other laws, the best first."""
    found = [solved_choice(_choice(one.run, one.micro_batches, job, steps), steps) for one in ranked]
    return tuple(sorted((one for one in found if one is not None), key=lambda one: one.step_ms))


def solved_choice(choice: Choice, steps: StepLaws, beat_ms: float = math.inf) -> Ranked | None:
    """Its exact plan; None where the solver finds none that fits, or proves that none is faster than `beat_ms`."""
    unit = choice.problem.unit_ms or 1.0
    cutoff = (lambda: beat_ms / unit) if math.isfinite(beat_ms) else None
    options = SolveOptions(time_limit=SOLVE_SECONDS, gap=SOLVE_GAP, cutoff=cutoff)
    solution = solve(choice.problem, options)
    if solution.plan is not None and solution.plan.total_layers()[0][0] < choice.first_least:
        # Of the plans that hold so many there, those with no more are the nearest to the best.
        solution = solve(choice.problem.replace(fixed_layers={(0, 0): choice.first_least}), options)
    if solution.plan is None or solution.objective is None:
        return None
    peaks = stage_peaks(steps.memory, choice.run, solution.plan, choice.micro_batches)
    if not all(peak.fits(_limit(choice, steps.memory)) for peak in peaks):
        return None
    error = steps.relative_error(choice.run)
    return Ranked(choice.run, choice.micro_batches, solution.plan, solution.objective * unit, error, peaks)


def _limit(choice: Choice, memory: MemoryLaws) -> float:
    return choice.problem.limit_mib[0] * (1 << 20) * (1 + memory.margin)


def _least_ms(run: Setting, micro: int, steps: StepLaws) -> float:
    """Less than any plan of a choice takes: no recompute, all stages as long."""
    times = steps.block_times(run)
    work = (run.layers - run.dense) * (times.layer + times.backward) + run.dense * sum(times.dense)
    work += (times.embedding + times.head) * (1 + times.ratio)
    # Chunks of unlike length may fill and drain the pipeline in as little as nothing.
    fill = work * (run.pp - 1) / run.pp if run.vpp == 1 else 0.0
    return work * micro / run.pp + fill


def _choice(run: Setting, micro: int, job: Job, steps: StepLaws) -> Choice:
    problem = stage_problem(steps.memory, run, steps.block_times(run), micro, job.limit, job.uniform)
    together = run.dense if job.sizes.dense_together else 0
    return Choice(run, micro, problem, nearly_even_ms(problem), together)


def nearly_even_ms(problem: PipelineProblem) -> float:
    """A step of the plan that is as even as memory lets it be, with the least recompute, the same in all chunks.

    Of interleaved stages about: chunks follow each other without a pause.
    """
    chunks = problem.stages * problem.interleaves
    each, more = divmod(problem.layers, chunks)
    alive = alive_chunks(problem.stages, problem.interleaves, problem.micro_batches)
    even = _divided_ms(problem, [each + (at < more) for at in range(chunks)], alive)
    counts = _counts_that_fit(problem, alive)
    return even if counts is None else min(even, _divided_ms(problem, counts, alive))


def _counts_that_fit(problem: PipelineProblem, alive: Sequence[NDArray[np.float64]]) -> list[int] | None:
    """Layers of every chunk in model order: stages that are full leave theirs to others, so that few run again."""
    stages, interleaves = problem.stages, problem.interleaves
    state = max(kind.layer_mib for kind in problem.kinds)
    kept, thrifty = (max(kind.activation_mib[mode] for kind in problem.kinds) for mode in (NONE, FULL))
    flights = np.array([each.sum(axis=1).max() / interleaves for each in alive])
    room = np.array(problem.limit_mib) - np.array(problem.static_mib)
    bounds = [sum(problem.max_layers.get((v, s), problem.layers) for v in range(interleaves)) for s in range(stages)]
    most = np.zeros(stages)
    for again_ in range(-(-problem.layers // interleaves) + 1):
        first = again_ * interleaves
        all_again = room / np.maximum(state + flights * thrifty, 1e-9)
        some = (room + flights * first * (kept - thrifty)) / np.maximum(state + flights * kept, 1e-9)
        most = np.minimum(np.floor(np.where(all_again <= first, all_again, some)), bounds)
        if most.min() >= interleaves and most.sum() >= problem.layers:
            break
    else:
        return None
    held = [interleaves] * stages
    for _ in range(problem.layers - sum(held)):
        held[min((stage for stage in range(stages) if held[stage] < most[stage]), key=held.__getitem__)] += 1
    return [held[s] // interleaves + (v < held[s] % interleaves) for v in range(interleaves) for s in range(stages)]


def _divided_ms(problem: PipelineProblem, sizes: Sequence[int], alive: Sequence[NDArray[np.float64]]) -> float:
    """A step with so many layers in every chunk, in model order; infinite where none fits."""
    stages, chunks = range(problem.stages), range(problem.interleaves)
    dealt = deal_kinds({kind.name: kind.count for kind in problem.kinds}, sizes, problem.stages, v_shape=False)
    held = np.array([dealt[kind.name] for kind in problem.kinds])  # int [kinds, chunks, stages]
    total = held.sum(axis=0)
    if any(total[v][s] > problem.max_layers.get((v, s), problem.layers) for s in stages for v in chunks):
        return math.inf
    kept_mib, again_mib = (
        np.array([kind.activation_mib[mode] for kind in problem.kinds])[:, None, None] for mode in (NONE, FULL)
    )
    forward = np.array([kind.forward for kind in problem.kinds])[:, None, None]
    layers_mib = sum(kind.layer_mib * of.sum(axis=0) for kind, of in zip(problem.kinds, held, strict=True))
    before = np.cumsum(held, axis=0) - held
    for again_ in range(int(total.max()) + 1):
        runs_again = np.clip(again_ - before, 0, held)  # the first layers of a chunk, whatever their kind
        kept = (runs_again * again_mib + (held - runs_again) * kept_mib).sum(axis=0)
        fits = all(
            problem.static_mib[stage] + layers_mib[stage] + float((alive[stage] @ kept[:, stage]).max())
            <= problem.limit_mib[stage]
            for stage in stages
        )
        if fits:
            whole = 1 + problem.backward_ratio
            work = ((held * whole + runs_again) * forward).sum(axis=(0, 1))
            work[0] += problem.embedding_forward * whole
            work[-1] += problem.head_forward * whole
            lags = 2 * (problem.stages - 1) * problem.lag
            tail = max(problem.tail, default=0.0)
            most = float(work.max())
            fill = (float(work.sum()) - most) / problem.interleaves
            return (problem.micro_batches * most + fill + lags + tail) * (problem.unit_ms or 1.0)
    return math.inf
