"""Check an encoder's micro-batches in a pipeline's bubbles against the checker's own simulation of the plan.

Every run is laid beside the exact times of the language model's tasks, all of them later by the delay, and beside the
other runs of its stage. Nothing of the search for insertions is used.
"""

from __future__ import annotations

from fractions import Fraction

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT
from taylor.pipeline_solver.check.checker import (
    EXACT_TOLERANCE_MIB,
    TIME_TOLERANCE,
    exact_peak_memory,
    exact_task_times,
)
from taylor.pipeline_solver.model.insertion import FIRST, EncoderRun, EncoderWork, Insertion
from taylor.pipeline_solver.model.problem import PipelineProblem

Interval = tuple[Fraction, Fraction, str]
"""Start, end and name of what a stage does."""


def check_insertion(problem: PipelineProblem, plan: PipelinePlan, work: EncoderWork, insertion: Insertion) -> list[str]:
    """List the violations of an insertion into a plan.

    Returns
    -------
    list of str
        One sentence a violation; empty for a valid insertion.
    """
    faults = _count_faults(problem, work, insertion)
    if faults:
        return faults
    delay, tasks = Fraction(insertion.delay), exact_task_times(problem, plan)
    tails = [Fraction(tail) for tail in problem.tail] or [Fraction(0)] * problem.stages
    needed, there = _first_chunk(problem, tasks[FIRST])
    unit = max(Fraction(insertion.step), Fraction(1))
    step = Fraction(0)
    for s, order in enumerate(tasks):
        runs = [run for run in insertion.runs if run.stage == s]
        busy: list[Interval] = [(start + delay, end + delay, f"task {task}") for task, start, end in order]
        own: list[Interval] = [(*_span(run, work), f"the encoder's {_name(run)}") for run in runs]
        faults += _overlaps(s, busy, own, TIME_TOLERANCE * unit)
        step = max([step, *(end + tails[s] for _, end, _ in (*busy, *own))])
        lag = Fraction(work.lag_of(s))
        for run in runs:
            start, end = _span(run, work)
            j = run.micro_batch
            if run.direction == FORWARD and end + lag > needed[j] + delay + TIME_TOLERANCE * unit:
                faults.append(f"Stage {s} ends the encoder's {_name(run)} after the first stage needs it.")
            if run.direction == BACKWARD and start < there[j] + lag + delay - TIME_TOLERANCE * unit:
                faults.append(f"Stage {s} begins the encoder's {_name(run)} before its gradient is there.")
    faults += _memory_faults(problem, plan, work, insertion)
    if abs(step - Fraction(insertion.step)) > TIME_TOLERANCE * unit:
        faults.append(f"The step takes {float(step):.9f}, not {insertion.step:.9f} as claimed.")
    return faults


def _count_faults(problem: PipelineProblem, work: EncoderWork, insertion: Insertion) -> list[str]:
    """Micro-batches whose pieces are not all there, or not all on one stage."""
    faults = []
    if insertion.delay < 0 or any(run.start < 0 or run.pieces < 1 for run in insertion.runs):
        faults.append("The insertion has a time below 0 or a run without a piece.")
    asked = {FORWARD: work.pieces, BACKWARD: work.pieces if work.backward else 0}
    for j in range(problem.micro_batches):
        runs = [run for run in insertion.runs if run.micro_batch == j]
        for direction, pieces in asked.items():
            found = sum(run.pieces for run in runs if run.direction == direction)
            if found != pieces:
                faults.append(f"Micro-batch {j} has {found} of {pieces} pieces of direction {direction}.")
        if len({run.stage for run in runs}) != 1 or not 0 <= runs[0].stage < problem.stages:
            faults.append(f"Micro-batch {j} does not lie on one stage of the pipeline.")
    if any(not 0 <= run.micro_batch < problem.micro_batches for run in insertion.runs):
        faults.append("The insertion has a micro-batch that the step does not have.")
    return faults


def _first_chunk(
    problem: PipelineProblem, order: list[tuple[tuple[int, int, int, int], Fraction, Fraction]]
) -> tuple[dict[int, Fraction], dict[int, Fraction]]:
    """Start of each micro-batch in the model's first chunk, and end of its backward there."""
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    needed: dict[int, Fraction] = {}
    there: dict[int, Fraction] = {}
    for t, ((direction, v, micro_batch, _), start, end) in enumerate(order):
        if v != schedule.chunk_at(0)[0] or direction == WEIGHT_GRADIENT:
            continue
        if direction == FORWARD:
            needed[micro_batch] = min(needed.get(micro_batch, start), start)
            continue
        if schedule.whole is not None and schedule.whole[FIRST, t]:
            end = order[t + 1][2]
        there[micro_batch] = max(there.get(micro_batch, end), end)
    return needed, there


def _overlaps(s: int, busy: list[Interval], own: list[Interval], tolerance: Fraction) -> list[str]:
    """Runs that begin before what comes before them on their stage has ended, or the other way round."""
    faults = []
    # A chunk without layers takes no time.
    line = sorted(one for one in (*busy, *own) if one[1] > one[0])
    latest = line[0] if line else busy[0]
    for one in line[1:]:
        if one[0] < latest[1] - tolerance and (one in own or latest in own):
            faults.append(f"Stage {s} runs {latest[2]} and {one[2]} at once.")
        latest = max(latest, one, key=lambda each: each[1])
    return faults


def _memory_faults(problem: PipelineProblem, plan: PipelinePlan, work: EncoderWork, insertion: Insertion) -> list[str]:
    """Stages whose peak and what the encoder keeps at once are above their limit."""
    faults = []
    for s, peak in enumerate(exact_peak_memory(problem, plan)):
        runs = [run for run in insertion.runs if run.stage == s]
        if not runs:
            continue
        alive = _most_alive(runs, work) if work.backward else 0
        total, limit = peak + alive * Fraction(work.kept_mib), Fraction(problem.limit_mib[s])
        if total > limit + EXACT_TOLERANCE_MIB:
            faults.append(
                f"Stage {s} needs {float(total):.6f} MiB with {alive} micro-batches of the encoder, "
                f"{float(total - limit):.6f} MiB above its limit of {float(limit):.6f} MiB."
            )
    return faults


def _most_alive(runs: list[EncoderRun], work: EncoderWork) -> int:
    """Most micro-batches between the start of their first forward piece and the end of their last backward piece."""
    changes = []
    for j in {run.micro_batch for run in runs}:
        own = [run for run in runs if run.micro_batch == j]
        changes.append((min(_span(run, work)[0] for run in own), 1))
        changes.append((max(_span(run, work)[1] for run in own), -1))
    alive = most = 0
    for _, change in sorted(changes):
        alive += change
        most = max(most, alive)
    return most


def _span(run: EncoderRun, work: EncoderWork) -> tuple[Fraction, Fraction]:
    """Exact start and end of a run."""
    each = Fraction(work.forward if run.direction == FORWARD else work.backward)
    return Fraction(run.start), Fraction(run.start) + run.pieces * each


def _name(run: EncoderRun) -> str:
    return f"{'forward' if run.direction == FORWARD else 'backward'} of micro-batch {run.micro_batch}"
