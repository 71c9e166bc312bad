"""Times at which the stages of a plan are idle, and when an encoder's results are needed and its gradients there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, inf

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.pipeline_solver.model.insertion import FIRST, EncoderRun, EncoderWork, Insertion, Pieces
from taylor.pipeline_solver.model.places import settled
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.timing.durations import chunk_durations, graph_of
from taylor.pipeline_solver.timing.evaluate import peak_memory_mib

TOUCHES = 1e-9
"""Overlap of two tasks that is rounding, in body-layer forward times."""


@dataclass(frozen=True)
class IdleWindows:
    """Idle times of every stage of a plan that can take a piece of an encoder.

    Times count from the start of the language model's first task.

    Parameters
    ----------
    windows : tuple of tuple of (start, end) [S]
        The first of a stage begins at -inf, before its first task; its last ends at inf.
    needed, there : tuple of float [m]
        When the first stage begins a micro-batch, and when it has ended its backward.
    tail, busy : tuple of float [S]
        Time after a stage's last task, and of all its tasks.
    step : float
        Step time of the language model alone.
    alive : tuple of int [S]
        Micro-batches of the encoder that a stage can keep at once beside its peak.
    """

    windows: tuple[tuple[tuple[float, float], ...], ...]
    needed: tuple[float, ...]
    there: tuple[float, ...]
    tail: tuple[float, ...]
    busy: tuple[float, ...]
    step: float
    alive: tuple[int, ...]

    @property
    def stages(self) -> int:
        """Number of stages S."""
        return len(self.windows)

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches m."""
        return len(self.needed)

    def most_forward(self, work: EncoderWork, stage: int, window: int, micro_batch: int) -> int:
        """Most forward pieces of a micro-batch that a window can have."""
        start, end = self.windows[stage][window]
        end = min(end, self.needed[micro_batch] - work.lag_of(stage))
        if start == -inf:
            return work.pieces
        return max(0, min(work.pieces, floor((end - start + TOUCHES) / work.forward)))

    def most_backward(self, work: EncoderWork, stage: int, window: int, micro_batch: int) -> int:
        """Most backward pieces of a micro-batch that a window can have."""
        start, end = self.windows[stage][window]
        start = max(start, self.there[micro_batch] + work.lag_of(stage))
        if not work.backward:
            return 0
        return work.pieces if end == inf else max(0, min(work.pieces, floor((end - start + TOUCHES) / work.backward)))

    def least_step(self, work: EncoderWork) -> float:
        """Lower bound on the step with the encoder.

        The first micro-batch's forward precedes everything, the last one's backward follows its gradient; and all work
        of all stages has to be done.
        """
        ends = [self.there[-1] + work.lag_of(s) + work.backward_time + tail for s, tail in enumerate(self.tail)]
        after = max(self.step, min(ends)) if work.backward else self.step
        whole = sum(self.busy) + sum(self.tail) + self.micro_batches * work.time
        return max(work.forward_time + after, whole / self.stages)

    def timed(self, work: EncoderWork, forward: Pieces, backward: Pieces) -> Insertion:
        """The insertion that has these pieces in its windows, with the least delay and the earliest end."""
        delay, last = 0.0, self.step
        before: list[EncoderRun] = []
        beside: list[EncoderRun] = []
        for s, windows in enumerate(self.windows):
            at = 0.0
            for j, pieces in enumerate(forward[s][0]):
                if pieces:
                    before.append(EncoderRun(s, at, j, FORWARD, pieces))
                    at += pieces * work.forward
                    delay = max(delay, at - min(windows[0][1], self.needed[j] - work.lag_of(s)))
            for g, (start, _) in list(enumerate(windows))[1:]:
                at = start
                for j, pieces in enumerate(forward[s][g]):
                    if pieces:
                        beside.append(EncoderRun(s, at, j, FORWARD, pieces))
                        at += pieces * work.forward
                for j, pieces in enumerate(backward[s][g]):
                    if pieces:
                        at = max(at, self.there[j] + work.lag_of(s))
                        beside.append(EncoderRun(s, at, j, BACKWARD, pieces))
                        at += pieces * work.backward
                        last = max(last, at + self.tail[s])
        runs = [*before, *(replace(run, start=run.start + delay) for run in beside)]
        return Insertion(delay, delay + last, tuple(sorted(runs)))


def idle_windows(problem: PipelineProblem, plan: PipelinePlan, work: EncoderWork) -> IdleWindows:
    """The idle times of a plan that can take a piece of an encoder.

    Raises
    ------
    ValueError
        When the schedule does not begin and end micro-batches in rising order on its first stage.
    """
    graph = graph_of(settled(problem, plan))
    durations = chunk_durations(problem, plan)
    starts, times = graph.start_times(durations), durations[graph.class_in_order]
    order, stages, whole = graph.schedule.order, problem.stages, graph.schedule.whole
    least = min(work.forward, work.backward or work.forward)
    needed, there = [inf] * problem.micro_batches, [0.0] * problem.micro_batches
    first_v, first_s = graph.schedule.chunk_at(0)
    assert first_s == FIRST
    windows = []
    for s in range(stages):
        ends = starts[s] + times[s]
        gaps = [(-inf, float(starts[s][0]))]
        gaps += [
            (float(a), float(b)) for a, b in zip(ends[:-1], starts[s][1:], strict=True) if b - a >= least - TOUCHES
        ]
        windows.append((*gaps, (float(ends[-1]), inf)))
        if s != FIRST:
            continue
        for t, (direction, v, micro_batch, _) in enumerate(order[s].tolist()):
            if v == first_v and direction == FORWARD:
                needed[micro_batch] = min(needed[micro_batch], float(starts[s][t]))
            elif v == first_v and direction == BACKWARD:
                end = ends[t + 1] if whole is not None and whole[s, t] else ends[t]
                there[micro_batch] = max(there[micro_batch], float(end))
    if needed != sorted(needed) or there != sorted(there):
        raise ValueError(
            f"{problem.schedule.name} does not begin and end micro-batches in rising order on its first stage"
        )
    tail = tuple(problem.tail) or (0.0,) * stages
    step = graph.longest_path(durations)
    return IdleWindows(
        tuple(windows),
        tuple(needed),
        tuple(there),
        tail,
        tuple(times.sum(axis=1).tolist()),
        step,
        _alive(problem, plan, work),
    )


def _alive(problem: PipelineProblem, plan: PipelinePlan, work: EncoderWork) -> tuple[int, ...]:
    """Micro-batches of the encoder that each stage can keep beside the peak of the language model, int [S]."""
    free = [
        limit + MEMORY_TOLERANCE_MIB - peak
        for limit, peak in zip(problem.limit_mib, peak_memory_mib(problem, plan), strict=True)
    ]
    most = problem.micro_batches
    if not work.kept_mib or not work.backward:
        return tuple(most if mib >= 0 else 0 for mib in free)
    return tuple(max(0, min(most, floor(mib / work.kept_mib))) for mib in free)
