"""Plain-Python twin of the event graph: slow, short, and written from the definition."""

from __future__ import annotations

from typing import Sequence

from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule

Task = tuple[int, int, int, int, int]
"""(stage, direction, interleave, micro-batch, split)."""


def play(
    schedule: Schedule, lags: Sequence[float], durations: Sequence[float]
) -> tuple[float, dict[Task, tuple[float, float]]]:
    """Step time, and (start, end) of every task.

    Parameters
    ----------
    lags : float [chunks - 1]
        Of what passes between the chunks at positions k and k + 1.
    durations : float [R]
        By duration class, as `event_graph` numbers them, the tails last.

    Raises
    ------
    ValueError
        When the schedule deadlocks.
    """
    S, V = schedule.stages, schedule.interleaves
    queues = [[(s, *(int(value) for value in row)) for row in schedule.order[s]] for s in range(S)]
    times: dict[Task, tuple[float, float]] = {}
    free = [0.0] * S
    at = [0] * S
    while any(at[s] < len(queues[s]) for s in range(S)):
        moved = False
        for s in range(S):
            while at[s] < len(queues[s]):
                task: Task = queues[s][at[s]]  # type: ignore[assignment]
                needed = depends_on(schedule, task)
                if needed is not None and needed not in times:
                    break
                ready = 0.0
                if needed is not None:
                    before, _ = sorted((schedule.position(needed[2], needed[0]), schedule.position(task[2], s)))
                    ready = times[needed][1] + (lags[before] if needed[0] != s else 0.0)
                start = max(free[s], ready)
                free[s] = start + durations[(task[1] * V + task[2]) * S + s]
                times[task] = (start, free[s])
                at[s] += 1
                moved = True
        if not moved:
            raise ValueError("the schedule deadlocks")
    tails = len(durations) - S
    return max(free[s] + durations[tails + s] for s in range(S)), times


def depends_on(schedule: Schedule, task: Task) -> Task | None:
    """The task whose output this one needs; None for the first chunk's forwards."""
    s, direction, v, i, q = task
    if direction == WEIGHT_GRADIENT:
        return (s, BACKWARD, v, i, q)
    k = schedule.position(v, s)
    if direction == FORWARD:
        if k == 0:
            return None
        v2, s2 = schedule.chunk_at(k - 1)
        return (s2, FORWARD, v2, i, q)
    if k == schedule.chunks - 1:
        return (s, FORWARD, v, i, q)
    v2, s2 = schedule.chunk_at(k + 1)
    # What a whole backward gives comes at its end.
    whole = [] if schedule.whole is None else schedule.order[s2][schedule.whole[s2]].tolist()
    late = s2 != s and [BACKWARD, v2, i, q] in whole
    return (s2, WEIGHT_GRADIENT if late else BACKWARD, v2, i, q)
