"""Which step time is proven next."""

import math

import pytest

from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.tree.targets import Targets
from taylor.pipeline_solver.tree.tree_memory import TreeMemory
from taylor.pipeline_solver.tree.tree_run import TreeEnd


def test_the_best_plan_is_the_first_target_and_a_better_plan_the_next():
    targets = Targets(TreeMemory(), 100.0, 80.0)
    assert targets.settle(100.0, 80.0) == 100.0 and targets.whole
    targets.searched(TreeEnd.LEFT, 96.0, 82.0)
    assert targets.settle(96.0, 82.0) == 96.0 and targets.whole


def test_below_a_tree_that_is_left_comes_one_half_way_down_and_what_was_left_again_once_that_is_done():
    targets = Targets(TreeMemory(), 100.0, 80.0)
    targets.searched(TreeEnd.LEFT, 100.0, 80.0)
    assert targets.settle(100.0, 80.0) == 90.0
    targets.searched(TreeEnd.LEFT, 100.0, 80.0)
    assert targets.settle(100.0, 80.0) == 85.0
    targets.searched(TreeEnd.LEFT, 100.0, 80.0)
    assert targets.settle(100.0, 80.0) == 82.5
    targets.searched(TreeEnd.DONE, 100.0, 82.5)
    assert targets.settle(100.0, 82.5) == 85.0
    targets.searched(TreeEnd.DONE, 100.0, 85.0)
    assert targets.settle(100.0, 85.0) == 90.0
    targets.searched(TreeEnd.DONE, 100.0, 90.0)
    assert targets.settle(100.0, 90.0) == 95.0


def test_a_target_that_is_proven_without_a_tree_is_followed_by_one_half_way_to_the_best_plan():
    targets = Targets(TreeMemory(), 100.0, 80.0)
    targets.searched(TreeEnd.LEFT, 100.0, 80.0)
    targets.proven(90.0)
    assert (targets.bound, targets.target) == (90.0, 95.0)


def test_what_was_left_or_crowded_is_not_tried_again_by_the_next_solve():
    memory = TreeMemory()
    targets = Targets(memory, 100.0, 80.0)
    targets.crowded()
    assert targets.settle(100.0, 80.0) == 90.0
    targets.searched(TreeEnd.LEFT, 100.0, 80.0)
    assert Targets(memory, 100.0, 80.0).settle(100.0, 80.0) == 85.0
    assert Targets(memory, 88.0, 80.0).settle(88.0, 80.0) == 88.0


@pytest.mark.parametrize("ends", [[TreeEnd.DONE], [TreeEnd.LEFT], [TreeEnd.LEFT, TreeEnd.DONE]])
def test_the_targets_end_whatever_the_trees_do(ends):
    """A tree is searched to its end where the step is small, so that its target is proven."""
    targets, bound, trees = Targets(TreeMemory(), 100.0, 80.0), 80.0, 0
    while bound < 100.0:
        target = targets.settle(100.0, bound)
        end = TreeEnd.DONE if targets.patient else ends[trees % len(ends)]
        bound = target if end is TreeEnd.DONE else bound
        targets.searched(end, 100.0, bound)
        trees += 1
        assert trees < 3.0 / DEFAULT_PARAMS.tree.least_step


@pytest.mark.parametrize(("seconds", "left", "target"), [(1.0, None, 95.0), (1.0, 10.0, 95.0), (1.0, 0.5, 90.5)])
def test_the_next_target_goes_less_far_where_little_time_is_left(seconds, left, target):
    targets = Targets(TreeMemory(left=100.0), 100.0, 80.0)
    targets.searched(TreeEnd.DONE, 100.0, 90.0, seconds, left)
    assert targets.target == pytest.approx(target)


def test_the_longer_a_tree_took_the_nearer_is_the_next_target():
    way = []
    for seconds in (0.0, 1.0, 3.0, 5.0, 8.0, 20.0):
        targets = Targets(TreeMemory(left=100.0), 100.0, 80.0)
        targets.searched(TreeEnd.DONE, 100.0, 90.0, seconds, 10.0)
        way.append(targets.target - 90.0)
    assert way == sorted(way, reverse=True) and way[1] == 5.0 and 0.0 < way[-1] < way[2] < 5.0


def test_a_target_that_was_left_is_not_tried_again_in_too_little_time():
    targets = Targets(TreeMemory(left=100.0), 100.0, 80.0)
    targets.searched(TreeEnd.LEFT, 100.0, 80.0)
    targets.searched(TreeEnd.DONE, 100.0, 85.0, 5.0, 5.0)
    assert 85.0 < targets.target < 90.0


@pytest.mark.parametrize(("aim", "target"), [(99.9, 99.9), (100.0, 90.0), (110.0, 90.0)])
def test_a_best_plan_below_all_that_was_left_is_the_target_at_once(aim: float, target: float) -> None:
    assert Targets(TreeMemory(left=100.0), aim, 80.0).target == target


def test_a_target_is_all_there_is_at_the_best_plan_and_near_at_two_of_ten_thousand() -> None:
    targets = Targets(TreeMemory(), 10_000.0, 9_000.0)
    for target, whole, patient in ((9002.0, False, True), (9002.1, False, False), (10_000.0, True, False)):
        targets.target = target
        assert (targets.whole, targets.patient) == (whole, patient)


def test_the_last_step_is_taken_to_the_best_plan_whatever_was_left_or_is_crowded() -> None:
    for bound, target in ((9998.0, 10_000.0), (9997.9, 9_500.0)):
        targets = Targets(TreeMemory(crowded=9_990.0), 10_000.0, 9_000.0)
        targets.target = 9_500.0
        assert targets.settle(10_000.0, bound) == target
        assert (targets.aim, targets.bound) == (10_000.0, bound)


@pytest.mark.parametrize(("crowded", "target"), [(95.0, 87.5), (90.0, 85.0), (96.0, 95.0)])
def test_a_target_below_which_there_are_too_many_is_followed_by_one_half_way_to_the_bound(
    crowded: float, target: float
) -> None:
    targets = Targets(TreeMemory(crowded=crowded), 100.0, 80.0)
    targets.target = 95.0
    assert targets.settle(100.0, 80.0) == target


@pytest.mark.parametrize(
    ("crowded", "bound", "hemmed"),
    [(90.0, 89.0, False), (90.0, 89.99, True), (math.inf, 89.99, False), (100.0, 99.99, False)],
)
def test_just_below_a_crowded_step_time_nothing_more_is_proven(crowded: float, bound: float, hemmed: bool) -> None:
    targets = Targets(TreeMemory(crowded=crowded), 100.0, 80.0)
    targets.settle(100.0, bound)
    assert targets.hemmed_in is hemmed


def test_the_least_crowded_and_the_least_left_target_are_kept() -> None:
    memory = TreeMemory(crowded=90.0, left=91.0)
    targets = Targets(memory, 100.0, 80.0)
    for target, crowded, left in ((95.0, 90.0, 91.0), (85.0, 85.0, 85.0)):
        targets.target = target
        targets.crowded()
        targets.searched(TreeEnd.LEFT, 100.0, 80.0)
        assert (memory.crowded, memory.left) == (crowded, left)


def test_below_a_target_that_a_better_plan_has_passed_half_way_counts_from_that_plan() -> None:
    targets = Targets(TreeMemory(left=85.0), 100.0, 80.0)
    targets.target = 90.0
    targets.searched(TreeEnd.LEFT, 88.0, 80.0)
    assert targets.target == 84.0


@pytest.mark.parametrize(
    ("seconds", "left", "way"),
    [
        (1.0, 20.0 / 9.0, 0.25),  # two such trees: half of what four are given
        (1.0, 40.0 / 9.0, 0.5),
        (2.0, 40.0 / 9.0, 0.25),
        (0.5, 10.0 / 9.0, 0.25),
        (1.0, 10.0 / 9.0, 0.05),
        (0.0, 1.0, 0.5),
        (1.0, 0.0, 0.05),
    ],
)
def test_the_way_to_the_next_target_is_what_its_tree_has_time_for(seconds: float, left: float, way: float) -> None:
    targets = Targets(TreeMemory(left=100.0), 100.0, 80.0)
    targets.searched(TreeEnd.DONE, 100.0, 90.0, seconds, left)
    assert targets.target == pytest.approx(90.0 + way * 10.0)
