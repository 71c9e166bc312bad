"""Which layers the chunks of a stage may hold together, against plain enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.columns import stage_tuples as tuples_module
from taylor.pipeline_solver.columns.stage_tuples import TooManyColumns, fixed_parts, stage_tuples
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.durations import schedule_of
from tests.pipeline_solver.column_cases import kind, three_kinds, two_kinds
from tests.solver_cases import small_problem


def test_what_is_besides_the_placed_layers_is_the_chunks_own() -> None:
    """The embedding is on the first chunk, the head and the pinned kind (6 MiB, and 4 kept) are on the last one."""
    problem = two_kinds()
    schedule = schedule_of(problem)
    alive = np.array([[2.0, 1.0], [0.0, 3.0]])
    room, forward = fixed_parts(problem, schedule, 0, alive)
    assert room.tolist() == [67.0, 67.0] and forward.tolist() == [0.125, 0.0]
    room, forward = fixed_parts(problem, schedule, 1, alive)
    assert room.tolist() == [78.0 - 7.0 - 6.0 - 4.0, 78.0 - 7.0 - 6.0 - 12.0] and forward.tolist() == [0.0, 1.0]
    twice = problem.replace(kinds=(kind("a", 7), kind("mtp", 2, 0.25, 6.0, pinned_last=True, places=(2,))))
    room, forward = fixed_parts(twice, schedule, 0, alive)
    assert room.tolist() == [67.0 - 2 * (6.0 + 4.0), 67.0 - 2 * (6.0 + 12.0)] and forward.tolist() == [0.125, 0.5]


def tuples_by_enumeration(problem: PipelineProblem) -> list[set[tuple[tuple[int, ...], ...]]]:
    """Of every stage the layers by kind of its chunks, in some division of the model's line that it has memory for."""
    schedule = schedule_of(problem)
    line = [j for j, each in enumerate(problem.placed_kinds) for _ in range(each.count)]
    K = len(problem.placed_kinds)
    found: list[set[tuple[tuple[int, ...], ...]]] = [set() for _ in range(problem.stages)]
    for cuts in itertools.combinations_with_replacement(range(len(line) + 1), schedule.chunks - 1):
        ends = [0, *cuts, len(line)]
        sizes = {schedule.chunk_at(k): ends[k + 1] - ends[k] for k in range(schedule.chunks)}
        if any(size < problem.min_layers or size > problem.max_layers.get(c, size) for c, size in sizes.items()):
            continue
        for s in range(problem.stages):
            chunks = []
            for v in range(problem.interleaves):
                at = schedule.position(v, s)
                run = line[ends[at] : ends[at + 1]]
                chunks.append(tuple(run.count(j) for j in range(K)))
            room, _ = fixed_parts(problem, schedule, s, alive_vectors(schedule)[s])
            for vector, left in zip(alive_vectors(schedule)[s], room.tolist(), strict=True):
                need = sum(
                    n * (each.layer_mib + float(vector[v]) * min(each.activation_mib[m] for m in (NONE, FULL)))
                    for v, held in enumerate(chunks)
                    for n, each in zip(held, problem.placed_kinds, strict=True)
                )
                if need > left + 1e-6:
                    break
            else:
                found[s].add(tuple(chunks))
    totals = [{sum(map(sum, held)) for held in of} for of in found]
    layers = len(line)
    for s, of in enumerate(found):
        low = layers - sum(max(each) for t, each in enumerate(totals) if t != s)
        high = layers - sum(min(each) for t, each in enumerate(totals) if t != s)
        found[s] = {held for held in of if low <= sum(map(sum, held)) <= high}
    return found


@pytest.mark.parametrize("block", [1, 3, 20_000])
@pytest.mark.parametrize(
    "problem",
    [
        two_kinds(),
        two_kinds(min_layers=0),
        two_kinds(limit_mib=(500.0, 500.0), max_layers={(0, 1): 2, (1, 0): 3}),
        two_kinds(limit_mib=(48.0, 500.0)),
        three_kinds(),
        small_problem(limit_mib=(41.0, 29.0)),
        two_kinds(schedule=ScheduleSpec("zbv"), micro_batches=4, limit_mib=(66.0, 62.0)),
    ],
)
def test_tuples_are_those_of_some_division_of_the_layers(
    problem: PipelineProblem, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuples_module, "BLOCK", block)
    schedule = schedule_of(problem)
    expected = tuples_by_enumeration(problem)
    for s, part in enumerate(stage_tuples(problem, 10_000)):
        room, besides = fixed_parts(problem, schedule, s, alive_vectors(schedule)[s])
        found = []
        for row, members in enumerate(part.members.tolist()):
            held = [part.types[v][t].layers for v, t in enumerate(members)]
            found.append(tuple(held))
            totals = np.array(held).sum(axis=0)
            assert part.totals[row].tolist() == totals.tolist()
            weight = sum(n * each.layer_mib for n, each in zip(totals.tolist(), problem.placed_kinds, strict=True))
            assert part.free_mib[row].tolist() == pytest.approx((room - weight).tolist())
            phi = [each.forward for each in problem.placed_kinds]
            assert part.forward[row].tolist() == pytest.approx((np.array(held) @ phi + besides).tolist())
        assert len(found) == len(set(found)) and set(found) == expected[s] and found


def test_more_tuples_than_asked_for_are_too_many_and_no_tuple_on_one_stage_is_none_on_any() -> None:
    problem = small_problem(limit_mib=(500.0, 500.0))
    assert [len(part.members) for part in stage_tuples(problem, 3)] == [3, 3]
    with pytest.raises(TooManyColumns, match="stage 0 has more than 2 layer tuples"):
        stage_tuples(problem, 2)
    none = stage_tuples(problem.replace(limit_mib=(500.0, 8.0)), 3)
    assert [len(part.members) for part in none] == [0, 0]
    assert [part.totals.shape for part in none] == [(0, 1), (0, 1)]
    # A byte is let pass: one layer of 10 MiB recomputed on the last stage, with 1 MiB kept, beside 7.
    for limit, number in ((18.0, 1), (18.0 - 0.9e-6, 1), (18.0 - 1.1e-6, 0)):
        tight = stage_tuples(problem.replace(limit_mib=(500.0, limit)), 3)
        assert len(tight[1].members) == number
