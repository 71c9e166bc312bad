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


def test_a_tree_that_is_left_halves_the_way_and_one_that_is_done_goes_on_towards_what_was_left():
    targets = Targets(TreeMemory(), 100.0, 80.0)
    targets.searched(TreeEnd.LEFT, 100.0, 80.0)
    assert targets.settle(100.0, 80.0) == 90.0
    targets.searched(TreeEnd.LEFT, 100.0, 80.0)
    assert targets.settle(100.0, 80.0) == 85.0
    targets.searched(TreeEnd.DONE, 100.0, 85.0)
    assert targets.settle(100.0, 85.0) == 87.5
    targets.searched(TreeEnd.DONE, 100.0, 87.5)
    assert targets.settle(100.0, 87.5) > 90.0


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


def test_after_a_tree_that_was_slow_for_the_time_left_the_next_target_is_nearer():
    for slow, target in ((False, 95.0), (True, 92.5)):
        memory = TreeMemory(left=100.0)
        targets = Targets(memory, 100.0, 80.0)
        assert targets.settle(100.0, 80.0) == 90.0
        targets.searched(TreeEnd.DONE, 100.0, 90.0, slow)
        assert targets.target == target
        targets.searched(TreeEnd.LEFT, 100.0, 90.0, slow)  # a tree that was left is followed half-way down, as ever
        assert targets.target == 0.5 * (90.0 + target)
