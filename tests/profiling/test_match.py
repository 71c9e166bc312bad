"""Attention kernels against the schedule, and the fit of what lies between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from taylor.parsers.profiles.kernels import BACKWARD_MARKER, FORWARD_MARKER, RankProfile
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.profiling.fit import LinearFit, centre
from taylor.profiling.match import ProfileMisfit, match
from taylor.profiling.pattern import stage_pattern

PLAN = PipelinePlan({"dense": ((1, 0),), "moe": ((1, 2),)}, {FULL: ((1, 0),)})


def profile(markers: list[int], steps: list[int] | None = None) -> RankProfile:
    """A profile of attention kernels alone, 10 ns each."""
    n = len(markers)
    zeros = np.zeros(n, dtype=np.int8)
    return RankProfile(
        Path("p"),
        0,
        np.arange(n, dtype=np.int64) * 10,
        np.full(n, 10, dtype=np.int64),
        zeros,
        np.array(markers, dtype=np.int8),
        np.zeros(n, dtype=np.int32),
        np.array(steps or [-1] * n, dtype=np.int32),
        ("attention",),
    )


def test_the_sequence_of_two_stages_is_the_one_written_by_hand() -> None:
    """1F1B, two stages, two micro-batches; on stage 0 the dense layer is recomputed, backward comes second."""
    schedule = build_schedule(ScheduleSpec(), 2, 1, 2)
    f, b = FORWARD_MARKER, BACKWARD_MARKER
    first, last = (stage_pattern(schedule, PLAN, stage) for stage in range(2))
    assert first.markers.tolist() == [f, f, f, f, b, f, b, b, f, b]
    assert last.markers.tolist() == [f, f, b, b, f, f, b, b]
    turn = dict(last.windows[last.window[1]].pieces)
    assert turn == {("after", "moe"): 1.0, ("head", ""): 1.0, ("back head", ""): 1.0, ("back before", "moe"): 1.0}
    assert last.windows[last.window[1]].borders == 1
    again = dict(first.windows[first.window[4]].pieces)
    assert again == {("back after", ""): 1.0, ("again before", ""): 1.0}


def test_whole_steps_match_and_a_ring_counts_its_first_kernel() -> None:
    pattern = stage_pattern(build_schedule(ScheduleSpec(), 2, 1, 2), PLAN, 1)
    wanted = pattern.markers.tolist()
    assert match(profile(wanted * 3), pattern, 2).tolist() == np.arange(24).reshape(3, 8).tolist()
    doubled = [marker for marker in wanted for _ in range(2)]
    assert match(profile(doubled), pattern, 2, ring=2).tolist() == [list(range(0, 16, 2))]
    with pytest.raises(ProfileMisfit):
        match(profile(doubled), pattern, 2)


@pytest.mark.parametrize(
    "cut, word",
    [
        (slice(0, 13), "1 whole steps and then ends inside a step: the profile was cut"),
        (slice(3, 16), "the profiler was started inside a step"),
    ],
)
def test_a_profile_that_does_not_hold_whole_steps_says_which_end_is_lost(cut: slice, word: str) -> None:
    pattern = stage_pattern(build_schedule(ScheduleSpec(), 2, 1, 2), PLAN, 1)
    with pytest.raises(ProfileMisfit, match=word):
        match(profile((pattern.markers.tolist() * 2)[cut]), pattern, 2)


def test_another_schedule_of_the_same_counts_is_told_by_its_order() -> None:
    pattern = stage_pattern(build_schedule(ScheduleSpec(), 2, 1, 2), PLAN, 1)
    other = stage_pattern(build_schedule(ScheduleSpec("gpipe"), 2, 1, 2), PLAN, 1)
    with pytest.raises(ProfileMisfit, match="kernel 3 is of the other direction: another schedule"):
        match(profile(other.markers.tolist()), pattern, 2)


def test_step_numbers_that_change_inside_a_step_are_refused() -> None:
    pattern = stage_pattern(build_schedule(ScheduleSpec(), 2, 1, 2), PLAN, 1)
    with pytest.raises(ProfileMisfit, match="rows of two steps are mixed"):
        match(profile(pattern.markers.tolist() * 2, [5] * 7 + [6] * 9), pattern, 2)


def test_the_centre_leaves_outliers_out() -> None:
    found = centre(np.array([10.0, 10.1, 9.9, 10.0, 30.0]))
    assert found.value == pytest.approx(10.0)
    assert found.count == 4


def test_a_sum_is_known_only_where_the_rows_span_it() -> None:
    """x + y = 5 and y + z = 7 settle x + y and x - z, but neither x nor y."""
    fit = LinearFit()
    x, y, z = ("x", ""), ("y", ""), ("z", "")
    for row, value in (({x: 1.0, y: 1.0}, 5.0), ({y: 1.0, z: 1.0}, 7.0)):
        fit.add(row, centre(np.array([value] * 3)), 1e-3)
    solved = fit.solve()
    assert solved.sum_of([x]) is None and solved.sum_of([("w", "")]) is None
    known = solved.sum_of([x, y])
    assert known is not None and known.value == pytest.approx(5.0)
    assert solved.worst_residual() < 1e-9
