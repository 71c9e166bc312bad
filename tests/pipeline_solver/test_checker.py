"""The checker: figures worked out by hand, and every way in which a plan can be wrong."""

from __future__ import annotations

import ast
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from benchmarks.brute_force import comparable_problem, with_unlike_lags
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.check import checker, enclosed_time
from taylor.pipeline_solver.check.checker import _exact_times as exact_times
from taylor.pipeline_solver.check.checker import check, exact_peak_memory, exact_step_time
from taylor.pipeline_solver.model.problem import LayerKind
from taylor.pipeline_solver.timing.durations import schedule_of
from tests.solver_cases import plan_of, reference_problem, small_problem

EVEN = plan_of({"body": [[2, 2]]})


def test_an_even_plan_takes_the_textbook_1f1b_time():
    """(m + S − 1)(f + b) = 5 · (2 + 4)."""
    assert exact_step_time(small_problem(), EVEN) == 30
    assert check(small_problem(), EVEN, 30.0) == []


def test_gpipe_takes_the_same_time_and_keeps_every_micro_batch():
    """All four micro-batches are alive on both stages: 5 + 2·10 + 4·2·4 and 7 + 20 + 32."""
    problem = small_problem(schedule=ScheduleSpec("gpipe"))
    assert exact_step_time(problem, EVEN) == 30
    assert exact_peak_memory(problem, EVEN) == [57, 59]


def test_1f1b_keeps_as_many_micro_batches_as_stages_lie_ahead():
    """Two alive on the first stage, one on the last."""
    assert exact_peak_memory(small_problem(), EVEN) == [5 + 20 + 2 * 8, 7 + 20 + 8]


def test_recompute_is_paid_in_the_backward_and_saves_activations():
    plan = plan_of({"body": [[2, 2]]}, {FULL: [[1, 2]]})
    problem = small_problem(recompute_ratio={FULL: 0.5})
    # f = 2, b = 4.5 and 5: the last stage works without a gap between fill and drain.
    assert exact_step_time(problem, plan) == 2 + 4 * (2 + 5) + Fraction(9, 2)
    assert exact_peak_memory(problem, plan) == [5 + 20 + 2 * (1 + 4), 7 + 20 + 2]


def test_head_embedding_lag_and_tail_each_add_what_they_cost():
    """With one micro-batch the step is the whole chain; the slower tail decides."""
    problem = small_problem(micro_batches=1, head_forward=1.0, embedding_forward=0.5, lag=0.25, tail=(3.0, 10.0))
    chain_to_last = Fraction(5, 2) + Fraction(1, 4) + 3 + 6
    assert exact_step_time(problem, EVEN) == max(chain_to_last + 10, chain_to_last + Fraction(1, 4) + 5 + 3)


def test_a_turn_within_a_stage_pays_no_transfer():
    """In the V shape both ends of the model are on stage 0, so a 2-stage chain crosses 2 + 2 times, not 3 + 3."""
    problem = small_problem(
        interleaves=2, micro_batches=1, lag=1.0, schedule=ScheduleSpec("zbv"), weight_gradient_share=0.5
    )
    plan = plan_of({"body": [[1, 1], [1, 1]]})
    # Forwards 4 + 2 lags; input gradients 4 · 1 + 2 lags, stage 1 with a weight gradient between its two
    # (it runs each chunk's right after the input gradient); then the first chunk's own weight gradient.
    assert exact_step_time(problem, plan) == 4 + 2 + (4 + 2 + 1) + 1


def test_activations_stay_until_the_weight_gradient_where_it_is_a_task():
    """One micro-batch: both chunks of stage 0 are alive when the last forward ends."""
    problem = small_problem(interleaves=2, micro_batches=1, schedule=ScheduleSpec("zbv"))
    assert exact_peak_memory(problem, plan_of({"body": [[1, 1], [1, 1]]})) == [5 + 20 + 8, 7 + 20 + 8]


def test_a_sequence_piece_takes_and_keeps_its_share():
    problem = small_problem(micro_batches=1, schedule=ScheduleSpec("seqpipe", seq_splits=2))
    # Pieces of f = 1 and b = 2: stage 1 runs 1..3 forward, 3..7 backward, stage 0 ends 2 later.
    assert exact_step_time(problem, EVEN) == 1 + 2 + 4 + 2
    assert exact_peak_memory(problem, EVEN) == [5 + 20 + 8, 7 + 20 + 8]


@pytest.mark.parametrize(
    ("plan", "changes", "said"),
    [
        (plan_of({"body": [[2, 1]]}), {}, "places 3 layers of kind body, the model has 4"),
        (plan_of({"body": [[4, 0]]}), {}, "has 0 layers, at least 1"),
        (plan_of({"body": [[1, 1], [1, 1]]}), {}, "2 virtual stages on 2 stages"),
        (plan_of({"other": [[2, 2]]}), {}, "kind other"),
        (plan_of({"body": [[2, 2]]}, {SELECT: [[1, 0]]}), {}, "mode select, which the problem does not allow"),
        (EVEN, {"fixed_layers": {(0, 1): 3}}, "3 are given"),
        (EVEN, {"max_layers": {(0, 0): 1}}, "at most 1"),
        (EVEN, {"fixed_recompute": {(FULL, 0, 1): 1}}, "recomputes 0 layers in mode full, 1 are given"),
        (EVEN, {"limit_mib": (41.0, 34.5)}, "Stage 1 needs 35.000000 MiB"),
        (EVEN, {"lag": 0.125}, "The step takes"),
    ],
)
def test_every_broken_rule_is_named(plan, changes, said):
    found = check(small_problem(**changes), plan, 30.0)
    assert any(said in sentence for sentence in found), found


def test_a_kind_may_not_come_back_once_a_later_one_has_begun():
    kinds = (
        LayerKind("dense", 2, 1.0, 1.0, {NONE: 1.0, FULL: 0.0}),
        LayerKind("moe", 2, 1.0, 1.0, {NONE: 1.0, FULL: 0.0}),
    )
    problem = small_problem(kinds=kinds)
    assert check(problem, plan_of({"dense": [[2, 0]], "moe": [[0, 2]]})) == []
    assert check(problem, plan_of({"dense": [[1, 1]], "moe": [[0, 2]]})) == []
    faults = check(problem, plan_of({"dense": [[1, 1]], "moe": [[1, 1]]}))
    assert faults == ["Chunk [0][1] has dense layers after moe layers have begun."]


def test_a_pinned_kind_belongs_to_the_last_chunk_and_is_never_recomputed():
    kinds = (
        LayerKind("body", 2, 1.0, 1.0, {NONE: 1.0, FULL: 0.0}),
        LayerKind("mtp", 1, 1.0, 1.0, {NONE: 1.0, FULL: 0.0}, pinned_last=True),
    )
    problem = small_problem(kinds=kinds)
    assert check(problem, plan_of({"body": [[1, 1]], "mtp": [[0, 1]]}, {FULL: [[0, 1]]})) == []
    assert check(problem, plan_of({"body": [[1, 1]], "mtp": [[1, 0]]}))
    assert check(problem, plan_of({"body": [[1, 1]], "mtp": [[0, 1]]}, {FULL: [[0, 2]]}))
    # The least number of layers counts the placed kinds alone.
    assert check(problem, plan_of({"body": [[2, 0]], "mtp": [[0, 1]]}))


def test_one_byte_above_the_limit_is_allowed_and_two_are_not():
    """A profile's decimals are not exact in binary: 0.1 + 0.2 > 0.3 must not refuse a plan."""
    kinds = (LayerKind("body", 2, 1.0, 0.1, {NONE: 0.2}),)
    problem = small_problem(kinds=kinds, micro_batches=1, static_mib=(0.0, 0.0), recompute_ratio={})
    plan = plan_of({"body": [[1, 1]]})
    assert 0.1 + 0.2 > 0.3
    assert check(problem.replace(limit_mib=(0.3, 0.3)), plan) == []
    assert check(problem.replace(limit_mib=(0.299998, 0.3)), plan) != []


def test_the_claimed_time_is_held_to_a_millionth():
    assert check(small_problem(), EVEN, 30.0 + 2.9e-5) == []
    assert check(small_problem(), EVEN, 30.0 + 3.1e-5) != []


@pytest.mark.parametrize(
    ("module", "known"),
    [(checker, {"check.enclosed_time", "model.problem"}), (enclosed_time, set())],
)
def test_the_checker_imports_no_solver_module(module, known):
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    solver = {name for name in modules if name and name.startswith("taylor.pipeline_solver")}
    assert solver == {f"taylor.pipeline_solver.{name}" for name in known}
    assert "taylor.pipeline.alive" not in modules


@pytest.mark.slow
def test_the_bounds_of_a_large_schedule_hold_the_step_time_that_the_exact_play_gives(monkeypatch):
    """Every schedule, with lags and tails: and the claim is judged by them as by the play."""
    rng = np.random.default_rng(31)
    monkeypatch.setattr(enclosed_time, "_compiled_play", lambda: enclosed_time.play)
    seen = set()
    while len(seen) < 6:
        problem, truth = comparable_problem(rng, 5_000)
        if truth.plan is None:
            continue
        if len(seen) % 2:
            problem = with_unlike_lags(problem, rng)
        seen.add(problem.schedule.name)
        schedule, played = schedule_of(problem), exact_step_time(problem, truth.plan)
        lower, upper = enclosed_time.enclosed_step_time(schedule, *exact_times(problem, truth.plan, schedule))
        assert lower <= played <= upper and upper - lower <= played / 10**12, problem
        with monkeypatch.context() as patch:
            patch.setattr(checker, "FEW_TASKS", 0)
            assert check(problem, truth.plan, float(played)) == []
            assert "as claimed" in check(problem, truth.plan, float(played) * (1 + 3e-6) + 1e-9)[0]


def test_the_compiled_play_is_the_plain_one():
    problem = reference_problem(interleaves=2)
    schedule = schedule_of(problem)
    plan = plan_of({"dense": [[2, 1, *[0] * 14], [0] * 16], "moe": [[0, 1, *[2] * 14], [2] * 14 + [1, 1]]})
    times = exact_times(problem, plan, schedule)
    lower, upper = enclosed_time.enclosed_step_time(schedule, *times)
    assert lower <= exact_step_time(problem, plan) <= upper
    waits = enclosed_time._waits(schedule)
    takes, late = np.arange(len(waits.needed)) % 7, np.where(waits.boundary >= 0, 3, 0)
    arguments = waits.needed, takes, late, *schedule.order.shape[:2]
    assert (enclosed_time._compiled_play()(*arguments) == enclosed_time.play(*arguments)).all()


def test_a_play_that_starts_a_task_too_early_is_not_believed(monkeypatch):
    """Whatever the compiled play gives, no step time below the true one passes."""
    problem = small_problem()
    times = exact_times(problem, EVEN, schedule_of(problem))
    for task in range(16):

        def hasty(*arguments, task=task):
            ends = enclosed_time.play(*arguments)
            ends[task] -= 1
            return ends

        monkeypatch.setattr(enclosed_time, "_compiled_play", lambda: hasty)
        with pytest.raises(AssertionError, match="before what it waits for"):
            enclosed_time.enclosed_step_time(schedule_of(problem), *times)


def test_tasks_that_wait_for_each_other_are_told_of_by_both_plays():
    schedule = schedule_of(small_problem())
    order = schedule.order.copy()
    order[0, [0, 2]] = order[0, [2, 0]]  # the first backward before its forward
    crossed = replace(schedule, order=order)
    with pytest.raises(ValueError, match="wait"):
        exact_step_time(small_problem(), EVEN, crossed)
    with pytest.raises(ValueError, match="before one that it needs"):
        enclosed_time.enclosed_step_time(crossed, *exact_times(small_problem(), EVEN, crossed))
