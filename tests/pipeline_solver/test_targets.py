"""Which step time is proven next."""

import pytest

from taylor.pipeline_solver.targets import LEAST_STEP, Targets
from taylor.pipeline_solver.tree_memory import TreeMemory
from taylor.pipeline_solver.tree_run import TreeEnd


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
        assert trees < 3.0 / LEAST_STEP


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
