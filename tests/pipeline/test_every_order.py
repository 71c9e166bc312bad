"""What a task waits for and which orders can run, said again task by task, over shapes of every schedule."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.dependencies import dependencies, feeders
from taylor.pipeline.generators import build_schedule, check_schedule
from taylor.pipeline.schedule import SCHEDULES, SEARCHED, SEARCHED_NAMES, SEARCHED_V, Schedule, ScheduleSpec

Task = tuple[int, int, int, int]
"""Direction, chunk in model order, micro-batch, piece."""

SHAPES = [(2, 1, 4, 1), (3, 1, 6, 1), (2, 2, 4, 1), (3, 2, 6, 1), (2, 2, 5, 1), (2, 1, 3, 2), (2, 2, 4, 2)]


def schedules() -> list[Schedule]:
    """Every schedule in every shape in which it runs."""
    found = []
    for name in (*SCHEDULES, *SEARCHED_NAMES):
        for stages, interleaves, micro_batches, splits in SHAPES:
            try:
                spec = ScheduleSpec(name, seq_splits=splits)
                found.append(build_schedule(spec, stages, interleaves, micro_batches))
            except ValueError:
                continue
    return found


def tasks(schedule: Schedule) -> list[list[Task]]:
    """Every stage's tasks with their chunks in model order."""
    chunk = {schedule.chunk_at(k): k for k in range(schedule.stages * schedule.interleaves)}
    return [
        [(direction, chunk[v, stage], i, q) for direction, v, i, q in row]
        for stage, row in enumerate(schedule.order.tolist())
    ]


def late(schedule: Schedule) -> set[Task]:
    """The backwards that hand over with their weight gradient to a chunk of another stage."""
    if schedule.whole is None:
        return set()
    marked = {task for row, marks in zip(tasks(schedule), schedule.whole, strict=True)
              for task, mark in zip(row, marks, strict=True) if mark}  # fmt: skip
    stage = [schedule.chunk_at(k)[1] for k in range(schedule.stages * schedule.interleaves)]
    return {task for task in marked if task[1] and stage[task[1]] != stage[task[1] - 1]}


def needed(task: Task, chunks: int, whole: set[Task] = frozenset()) -> Task | None:  # type: ignore[assignment]
    """The task whose result another one takes."""
    direction, chunk, *piece = task
    if direction == 0:
        return None if chunk == 0 else (0, chunk - 1, *piece)
    if direction == 1:
        source = (1, chunk + 1, *piece)
        return (0, chunk, *piece) if chunk == chunks - 1 else (2, *source[1:]) if source in whole else source
    return (1, chunk, *piece)


def runs(schedule: Schedule) -> bool:
    """Whether a schedule can be played to its end, pieces of a sequence in order."""
    rows, chunks = tasks(schedule), schedule.stages * schedule.interleaves
    for row in rows:
        if len(set(row)) != len(row):
            return False
        place = {task: at for at, task in enumerate(row)}
        for direction, chunk, i, q in row:
            other = (direction, chunk, i, q + 1)
            ordered = direction < 2 and other in place
            if ordered and (place[direction, chunk, i, q] < place[other]) != (direction == 0):
                return False
    done: set[Task] = set()
    at = [0] * len(rows)
    while True:
        moved = False
        for stage, row in enumerate(rows):
            while at[stage] < len(row) and needed(row[at[stage]], chunks) in (None, *done):
                done.add(row[at[stage]])
                at[stage] += 1
                moved = True
        if not moved:
            return all(at[stage] == len(row) for stage, row in enumerate(rows))


def test_every_task_waits_for_the_one_whose_result_it_takes() -> None:
    for schedule in schedules():
        rows, chunks = tasks(schedule), schedule.stages * schedule.interleaves
        number = {task: stage * len(row) + at for stage, row in enumerate(rows) for at, task in enumerate(row)}
        ends = late(schedule)
        wanted = [[-1 if (one := needed(task, chunks, ends)) is None else number[one] for task in row] for row in rows]
        assert dependencies(schedule).tolist() == wanted, schedule.spec
        stage, block = feeders(schedule)
        assert (stage == -1).tolist() == (block == -1).tolist() and int((stage == -1).sum()) == 1
        assert not schedule.order.flags.writeable


@pytest.mark.parametrize("seed", range(3))
def test_an_order_is_refused_just_where_it_cannot_run(seed: int) -> None:
    draw, verdicts = random.Random(seed), set()
    for schedule in schedules():
        for _ in range(4):
            order = np.array(schedule.order)
            stage = draw.randrange(schedule.stages)
            one, other = draw.sample(range(order.shape[1]), 2) if draw.random() < 0.5 else _neighbours(draw, order)
            order[stage, [one, other]] = order[stage, [other, one]]
            if draw.random() < 0.1:
                order[stage, one] = order[stage, other]
            changed = replace(schedule, order=order, whole=None)
            able = runs(changed)
            verdicts.add(able)
            if able:
                check_schedule(changed)
            else:
                with pytest.raises(ValueError, match="deadlocks|out of order|twice"):
                    check_schedule(changed)
    assert verdicts == {True, False}


def _neighbours(draw: random.Random, order: np.ndarray) -> tuple[int, int]:
    at = draw.randrange(order.shape[1] - 1)
    return at, at + 1


def test_the_vectors_of_what_is_alive_are_the_largest_of_all_moments() -> None:
    for schedule in schedules():
        splits = schedule.spec.seq_splits
        for stage, row in enumerate(schedule.order.tolist()):
            alive, moments = [0] * schedule.interleaves, set()
            last = 2 if schedule.spec.traits.split_backward else 1
            for direction, v, _, _ in row:
                alive[v] += (direction == 0) - (direction == last)
                moments.add(tuple(alive))
            below = {one for one in moments for other in moments if one != other and all(map(int.__le__, one, other))}
            told = {tuple(round(x * splits) for x in vector) for vector in alive_vectors(schedule)[stage]}
            assert told == moments - below, (schedule.spec, stage)


@pytest.mark.parametrize(("name", "like"), [(SEARCHED, ("zb-h1", "interleaved-zb")), (SEARCHED_V, ("", "zbv"))])
def test_an_order_that_is_still_to_be_searched_is_planned_with_as_a_known_one(name: str, like: tuple[str, str]) -> None:
    for stages, interleaves, micro_batches in ((3, 1, 6), (2, 2, 4), (2, 3, 6)):
        known = like[interleaves > 1]
        if not known or (interleaves > 2 and known == "zbv"):
            continue
        one, other = (build_schedule(ScheduleSpec(each), stages, interleaves, micro_batches) for each in (name, known))
        assert one.order.tolist() == other.order.tolist()
