"""Stages of a model's chunks: a loop, a V, or any other assignment with as many chunks on each stage."""

from __future__ import annotations

import pytest

from taylor.pipeline.chunks import FREE, Placement, chunk_at, position_of
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import deal_kinds, deal_on, grid_in_order, values_in_order
from taylor.pipeline.schedule import SEARCHED, SEARCHED_FREE, ScheduleSpec

ANY = (0, 2, 2, 1, 0, 1)


@pytest.mark.parametrize("v_shape", [False, True])
@pytest.mark.parametrize(("stages", "interleaves"), [(1, 1), (4, 1), (3, 2), (2, 5)])
def test_the_fixed_shapes_are_placements(stages, interleaves, v_shape):
    placement = Placement.shaped(stages, interleaves, v_shape=v_shape)
    assert (placement.stages, placement.interleaves) == (stages, interleaves)
    for position, chunk in enumerate(placement.chunks):
        assert chunk == chunk_at(position, stages, v_shape)
        assert placement.positions[chunk] == position == position_of(*chunk, stages, v_shape)
    values = list(range(stages * interleaves))
    assert placement.grid(values) == grid_in_order(values, stages, v_shape)
    assert placement.values(placement.grid(values)) == values_in_order(placement.grid(values), v_shape) == values
    counts, sizes = {"dense": 2, "moe": len(values) - 1}, [1] * (len(values) - 1) + [2]
    assert deal_on(placement, counts, sizes) == deal_kinds(counts, sizes, stages, v_shape)


def test_virtual_stages_count_the_chunks_of_a_stage_in_model_order():
    placement = Placement(ANY)
    assert placement.chunks == ((0, 0), (0, 2), (1, 2), (0, 1), (1, 0), (1, 1))
    assert placement.grid([10, 11, 12, 13, 14, 15]) == ((10, 13, 11), (14, 15, 12))
    assert [Placement.shaped(3, 2, v_shape=shape).name for shape in (False, True)] == ["loop", "V"]
    assert placement.name == FREE


@pytest.mark.parametrize("stage_of", [(), (0, 0, 1), (0, 2), (1, 1)])
def test_stages_that_hold_unlike_numbers_of_chunks_are_refused(stage_of):
    with pytest.raises(ValueError, match="every stage must have as many chunks"):
        Placement(stage_of)


def test_chunks_on_any_stages_run_one_micro_batch_after_another():
    schedule = build_schedule(ScheduleSpec(SEARCHED_FREE, stage_of=ANY), 3, 2, 2)
    assert schedule.placement == Placement(ANY)
    # Stage 2 has the second and the third chunk, one behind the other in both directions.
    assert [tuple(task[:3]) for task in schedule.order[2].tolist()][:6] == [
        (0, 0, 0), (0, 1, 0), (1, 1, 0), (2, 1, 0), (1, 0, 0), (2, 0, 0)
    ]  # fmt: skip
    assert schedule.spec.head_stage(3) == 1


@pytest.mark.parametrize(
    ("spec", "interleaves"),
    [
        (ScheduleSpec(SEARCHED, stage_of=ANY), 2),
        (ScheduleSpec(SEARCHED_FREE, stage_of=(0, 1, 1, 0)), 2),
    ],
)
def test_a_placement_of_other_numbers_or_another_schedule_is_refused(spec, interleaves):
    with pytest.raises(ValueError, match="cannot have its chunks on the stages"):
        build_schedule(spec, 3, interleaves, 2)


def test_one_chunk_a_stage_leaves_no_placement_to_choose():
    with pytest.raises(ValueError, match="two chunks or more a stage, found one virtual stage; -vpp 2"):
        build_schedule(ScheduleSpec(SEARCHED_FREE), 3, 1, 2)
