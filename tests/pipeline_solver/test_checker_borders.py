"""Every complaint of the checker at its border: a plan just within is held for right, one just beyond is named."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.check import checker
from taylor.pipeline_solver.check.checker import check, exact_host_memory, exact_peak_memory, exact_step_time
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem
from tests.solver_cases import plan_of, small_problem

EVEN = plan_of({"body": [[2, 2]]})
BYTE = Fraction(1, 10**6)
LESS = Fraction(1, 10**9)


def kind(name: str, count: int, **more: Any) -> LayerKind:
    """A layer of time 1 and 10 MiB that keeps 4 MiB, 1 when recomputed and 2 when partly."""
    return LayerKind(name, count, 1.0, 10.0, {NONE: 4.0, FULL: 1.0, SELECT: 2.0, "off": 1.0, "far": 0.5}, **more)


def four_stages(*kinds: LayerKind, **changes: Any) -> PipelineProblem:
    return small_problem(
        stages=4, micro_batches=1, kinds=kinds, static_mib=(0.0,) * 4, limit_mib=(500.0,) * 4, **changes
    )


OFF = LayerChoice(0.25, 0.5, 0.125, -3.0, 2.0, 3.0)


def with_choice(**changes: Any) -> PipelineProblem:
    return small_problem(kinds=(kind("body", 4, choices={"off": OFF}),), choices=("off",), **changes)


SOME_OFF = plan_of({"body": [[2, 2]]}, {"off": [[1, 2]]})


def test_a_peak_one_byte_above_its_limit_passes_and_a_hair_more_does_not() -> None:
    """The first stage needs 5 + 20 + 2·8 = 41 MiB, the last 7 + 20 + 8 = 35."""
    within: Any = (41 - BYTE, 35 - BYTE)
    assert check(small_problem(limit_mib=within), EVEN) == []
    first: Any = (41 - BYTE - LESS, 35 - BYTE)
    assert check(small_problem(limit_mib=first), EVEN) == [
        "Stage 0 needs 41.000000 MiB at its worst moment, 0.000001 MiB above its limit of 40.999999 MiB."
    ]
    assert check(small_problem(limit_mib=(40.0, 33.0)), EVEN) == [
        "Stage 0 needs 41.000000 MiB at its worst moment, 1.000000 MiB above its limit of 40.000000 MiB.",
        "Stage 1 needs 35.000000 MiB at its worst moment, 2.000000 MiB above its limit of 33.000000 MiB.",
    ]


def test_states_that_a_choice_moves_leave_the_device_and_lie_on_the_host() -> None:
    problem = with_choice()
    # 5 + 20 - 3 + two micro-batches of 1 + 4; 7 + 20 - 6 + one of 1 + 1.
    assert exact_peak_memory(problem, SOME_OFF) == [32, 23]
    # 3 + two of 2; 6 + one of 2 + 2.
    assert exact_host_memory(problem, SOME_OFF) == [7, 10]
    assert exact_host_memory(small_problem(), EVEN) == [0, 0]


def test_a_host_one_byte_above_its_limit_passes_and_a_hair_more_does_not() -> None:
    assert check(with_choice(), SOME_OFF) == []
    within: Any = (7 - BYTE, 10 - BYTE)
    assert check(with_choice(host_limit_mib=within), SOME_OFF) == []
    last: Any = (7 - BYTE, 10 - BYTE - LESS)
    assert check(with_choice(host_limit_mib=last), SOME_OFF) == [
        "Stage 1 keeps 10.000000 MiB on its host at its worst moment, 0.000001 MiB above its limit of 9.999999 MiB."
    ]
    assert check(with_choice(host_limit_mib=(5.0, 10.0)), SOME_OFF) == [
        "Stage 0 keeps 7.000000 MiB on its host at its worst moment, 2.000000 MiB above its limit of 5.000000 MiB."
    ]
    assert check(small_problem(host_limit_mib=(0.0, 0.0)), EVEN) == []


@pytest.mark.parametrize("sign", [1, -1])
def test_a_claim_a_millionth_off_passes_and_a_hair_more_does_not(sign: int) -> None:
    claim: Any = 30 + sign * 30 * BYTE
    assert check(small_problem(), EVEN, claim) == []
    assert len(check(small_problem(), EVEN, claim + sign * LESS)) == 1
    assert check(small_problem(), EVEN, 30 + sign) == [
        f"The step takes 30.000000000, not {30 + sign}.000000000 as claimed."
    ]


def test_of_a_step_that_takes_no_time_a_millionth_of_a_millionth_may_be_claimed() -> None:
    problem = small_problem(kinds=(LayerKind("body", 4, 0.0, 10.0, {NONE: 4.0, FULL: 1.0}),))
    claim: Any = BYTE * BYTE
    assert check(problem, EVEN, claim) == []
    assert len(check(problem, EVEN, 2 * claim)) == 1


def test_as_many_tasks_as_are_few_are_played_and_one_more_enclosed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stages run 8 tasks each. Only where both bounds agree with the claim nothing is played."""
    asked: list[Any] = []
    ends = (Fraction(30), Fraction(30))

    def enclosed(*given: Any) -> tuple[Fraction, Fraction]:
        asked.append(given)
        return ends

    monkeypatch.setattr(checker, "enclosed_step_time", enclosed)
    monkeypatch.setattr(checker, "FEW_TASKS", 16)
    assert check(small_problem(), EVEN, 30.0) == [] and not asked
    monkeypatch.setattr(checker, "FEW_TASKS", 15)
    assert check(small_problem(), EVEN, 30.0) == [] and len(asked) == 1
    ends = (Fraction(30), Fraction(31))
    assert len(check(small_problem(), EVEN, 31.0)) == 1
    ends = (Fraction(29), Fraction(30))
    assert len(check(small_problem(), EVEN, 29.0)) == 1
    assert check(small_problem(), EVEN, 30.0) == []
    ends = (Fraction(30), Fraction(30))

    def none(*given: Any) -> Fraction:
        raise AssertionError("played, though both bounds agree")

    monkeypatch.setattr(checker, "exact_step_time", none)
    assert check(small_problem(), EVEN, 30.0) == []


def test_what_a_choice_adds_to_every_direction_is_played() -> None:
    """One micro-batch: forwards 2.25 and 2.5, backwards 4 + 0.5 + 0.125 and 4 + 1 + 0.25."""
    assert exact_step_time(with_choice(micro_batches=1), SOME_OFF) == Fraction(9, 4) + Fraction(5, 2) + Fraction(
        37, 8
    ) + Fraction(21, 4)
    # Weight gradients apart, a quarter of the backward: input gradients 3 + 1 and 3 + 0.5, then 1 + 0.125 at the end.
    split = with_choice(micro_batches=1, schedule=ScheduleSpec("zb-h1"), weight_gradient_share=0.25)
    assert exact_step_time(split, SOME_OFF) == Fraction(9, 4) + Fraction(5, 2) + 4 + Fraction(7, 2) + Fraction(9, 8)


def test_recompute_stays_with_the_input_gradient_where_weight_gradients_are_tasks() -> None:
    problem = small_problem(micro_batches=1, schedule=ScheduleSpec("zb-h1"), weight_gradient_share=0.25)
    plan = plan_of({"body": [[2, 2]]}, {FULL: [[1, 2]]})
    # Forwards 2 + 2; input gradients 3 + 2 and 3 + 1; the first stage's weight gradient of 1.
    assert exact_step_time(problem, plan) == 4 + 5 + 4 + 1


def test_a_slow_stage_takes_its_multiple_and_transfers_do_not() -> None:
    problem = small_problem(micro_batches=1, slowness=(1.0, 3.0), lag=0.5)
    assert exact_step_time(problem, EVEN) == 2 + Fraction(1, 2) + 6 + 12 + Fraction(1, 2) + 4


def chained(*places: int) -> PipelineProblem:
    """Four chunks in a row on two stages, boundaries of 1, 2 and 4, two MTP layers that hand over half as much more."""
    return small_problem(
        interleaves=2,
        micro_batches=1,
        kinds=(kind("body", 4), kind("mtp", 2, pinned_last=True, places=places, hand_over=0.5)),
        schedule=ScheduleSpec("interleaved"),
        lags=(1.0, 2.0, 4.0),
        min_layers=0,
    )


def test_what_a_pinned_kind_hands_over_passes_every_boundary_behind_it() -> None:
    """Forwards 6 and backwards 12 in all cases; each boundary is crossed twice."""
    at_one = plan_of({"body": [[2, 2], [0, 0]], "mtp": [[0, 2], [0, 0]]})
    at_two = plan_of({"body": [[2, 2], [0, 0]], "mtp": [[0, 0], [2, 0]]})
    at_three = plan_of({"body": [[2, 2], [0, 0]], "mtp": [[0, 0], [0, 2]]})
    assert exact_step_time(chained(1), at_one) == 18 + 2 * (1 + 3 + 6)
    assert exact_step_time(chained(2), at_two) == 18 + 2 * (1 + 2 + 6)
    assert exact_step_time(chained(3), at_three) == 18 + 2 * (1 + 2 + 4)


def test_layers_take_the_modes_in_their_order() -> None:
    """Of a dense and four moe layers the first is fully recomputed, the next partly, two more by choice."""
    choices = {"off": LayerChoice(backward=0.25), "far": LayerChoice(backward=0.125)}
    kinds = (
        LayerKind("dense", 1, 0.5, 3.0, {NONE: 100.0, FULL: 1.0, SELECT: 200.0, "off": 300.0, "far": 400.0},
                  choices={name: LayerChoice(backward=50.0) for name in choices}),
        LayerKind("moe", 4, 1.0, 10.0, {NONE: 16.0, FULL: 500.0, SELECT: 2.0, "off": 4.0, "far": 8.0}, choices=choices),
    )  # fmt: skip
    problem = small_problem(
        stages=1,
        micro_batches=1,
        kinds=kinds,
        static_mib=(0.0,),
        limit_mib=(1000.0,),
        recompute_ratio={FULL: 0.5, SELECT: 0.75},
        choices=("off", "far"),
    )
    once = [[1]]
    plan = plan_of({"dense": [[1]], "moe": [[4]]}, {"off": once, "far": once, SELECT: once, FULL: once})
    assert check(problem, plan) == []
    assert exact_peak_memory(problem, plan) == [43 + 1 + 2 + 4 + 8 + 16]
    forward = Fraction(9, 2)
    again = Fraction(1, 4) + Fraction(3, 4) + Fraction(1, 4) + Fraction(1, 8)
    assert exact_step_time(problem, plan) == 3 * forward + again


def test_a_plan_of_another_shape_gets_no_complaint_but_that() -> None:
    wide = plan_of({"body": [[9, 0, 0]]})
    assert check(small_problem(), wide) == ["The plan has 1 virtual stages on 3 stages, the problem 1 on 2."]
    assert check(small_problem(), plan_of({"body": [[9, 0], [0, 0]]})) == [
        "The plan has 2 virtual stages on 2 stages, the problem 1 on 2."
    ]


def test_a_plan_whose_layers_are_wrong_is_not_asked_for_its_memory_and_time() -> None:
    assert check(small_problem(limit_mib=(1.0, 1.0)), plan_of({"body": [[2, 3]]}), 1.0) == [
        "The plan places 5 layers of kind body, the model has 4."
    ]


def test_kinds_and_choices_stand_in_the_order_of_the_problem() -> None:
    choices = {"off": LayerChoice(), "far": LayerChoice()}
    problem = small_problem(
        kinds=(kind("a", 2, choices=choices), kind("b", 2, choices=choices), kind("none", 0, choices=choices)),
        choices=("off", "far"),
        recompute_ratio={FULL: 1.0},
    )
    layers = {"a": [[2, 0]], "b": [[0, 2]]}
    # A kind of which there are no layers may be left out.
    assert check(problem, plan_of(layers, {"off": [[1, 0]], "far": [[1, 0]]})) == []
    assert check(problem, plan_of({"b": [[0, 2]], "a": [[2, 0]]})) == [
        "The plan's kinds stand in another order than the model's: a, b, none."
    ]
    assert check(problem, plan_of(layers, {"far": [[1, 0]], "off": [[1, 0]]})) == [
        "The plan's choices stand in another order than the problem's: off, far."
    ]
    assert check(problem, plan_of(layers, {"far": [[1, 0]]})) == []
    assert check(problem, plan_of({"a": [[2, 2]]})) == [
        "The plan places 4 layers of kind a, the model has 2.",
        "The plan places 0 layers of kind b, the model has 2.",
    ]
    assert check(problem, plan_of({**layers, "c": [[0, 1]], "d": [[0, 0]]})) == [
        "The plan has layers of kind c, d, which the problem does not have."
    ]


def test_a_mode_that_is_not_searched_may_be_named_but_not_taken() -> None:
    problem = small_problem(
        kinds=(kind("body", 4),), recompute_ratio={FULL: 1.0, SELECT: 0.5}, unsearched=(SELECT,)
    )  # fmt: skip
    assert check(problem, plan_of({"body": [[2, 2]]}, {FULL: [[1, 1]], SELECT: [[0, 0]], "x": [[0, 0]]})) == []
    assert check(problem, plan_of({"body": [[2, 2]]}, {SELECT: [[0, 1]]})) == [
        "The plan recomputes layers in mode select, which the problem does not allow."
    ]


def test_every_kind_that_comes_back_is_named_with_the_latest_begun() -> None:
    problem = four_stages(kind("a", 1), kind("b", 1), kind("c", 2))
    assert check(problem, plan_of({"a": [[1, 0, 0, 0]], "b": [[0, 1, 0, 0]], "c": [[0, 0, 1, 1]]})) == []
    back = plan_of({"a": [[0, 1, 0, 0]], "b": [[0, 0, 1, 0]], "c": [[1, 0, 0, 1]]})
    assert check(problem, back) == [
        "Chunk [0][1] has a layers after c layers have begun.",
        "Chunk [0][2] has b layers after c layers have begun.",
    ]


def test_chunks_are_walked_in_the_order_of_the_model_on_a_v() -> None:
    """The second interleave runs backwards: [1][1] is the third chunk, [1][0] the last."""
    problem = small_problem(
        interleaves=2, kinds=(kind("a", 2), kind("b", 2)), schedule=ScheduleSpec("zbv"), limit_mib=(500.0, 500.0)
    )
    assert check(problem, plan_of({"a": [[1, 1], [0, 0]], "b": [[0, 0], [1, 1]]})) == []
    assert check(problem, plan_of({"a": [[1, 0], [0, 1]], "b": [[0, 1], [1, 0]]})) == [
        "Chunk [1][1] has a layers after b layers have begun."
    ]


def pinned(places: tuple[int, ...] = (), count: int = 1) -> PipelineProblem:
    return four_stages(kind("body", 4), kind("mtp", count, pinned_last=True, places=places), min_layers=0)


def test_a_pinned_kind_lies_on_one_of_its_places_or_on_the_last_chunk() -> None:
    body = [[2, 2, 0, 0]]
    for place in (1, 2):
        assert check(pinned((1, 2)), plan_of({"body": body, "mtp": [[int(s == place) for s in range(4)]]})) == []
    assert check(pinned((1, 2)), plan_of({"body": body, "mtp": [[0, 0, 0, 1]]})) == [
        "Chunk [0][3] has mtp layers, which belong on one of the chunks [1, 2] in model order."
    ]
    assert check(pinned(), plan_of({"body": body, "mtp": [[0, 0, 0, 1]]})) == []
    assert check(pinned(), plan_of({"body": body, "mtp": [[0, 0, 1, 0]]})) == [
        "Chunk [0][2] has mtp layers, which belong on the last chunk."
    ]


def test_a_pinned_kind_lies_together_and_before_it_all_free_layers() -> None:
    assert check(pinned((1, 2), 2), plan_of({"body": [[3, 1, 0, 0]], "mtp": [[0, 2, 0, 0]]})) == []
    assert check(pinned((1, 2), 2), plan_of({"body": [[3, 1, 0, 0]], "mtp": [[0, 1, 1, 0]]})) == [
        "Chunk [0][1] has 1 of 2 mtp layers, which must share a chunk.",
        "Chunk [0][2] has 1 of 2 mtp layers, which must share a chunk.",
    ]
    assert check(pinned((1, 2)), plan_of({"body": [[3, 0, 1, 0]], "mtp": [[0, 1, 0, 0]]})) == [
        "Chunk [0][2] has body layers after mtp layers have begun."
    ]


def test_a_kind_that_is_named_first_and_pinned_last_has_not_begun_before_the_free_ones() -> None:
    early = four_stages(kind("mtp", 1, pinned_last=True), kind("body", 4))
    assert check(early, plan_of({"mtp": [[0, 0, 0, 1]], "body": [[1, 1, 1, 1]]})) == []


@pytest.mark.parametrize("least", [1, 2])
def test_every_chunk_holds_its_least_layers(least: int) -> None:
    problem = four_stages(kind("body", 4 * least), min_layers=least)
    assert check(problem, plan_of({"body": [[least] * 4]})) == []
    assert check(problem, plan_of({"body": [[least + 1, least, least, least - 1]]})) == [
        f"Chunk [0][3] has {least - 1} layers, at least {least} are required."
    ]


def test_embedding_head_and_pinned_layers_may_stand_alone_where_that_is_allowed() -> None:
    free = four_stages(kind("body", 4), entries_alone=True)
    assert check(free, plan_of({"body": [[0, 2, 2, 0]]})) == []
    assert check(free, plan_of({"body": [[1, 1, 1, 1]]})) == []
    assert check(free, plan_of({"body": [[0, 4, 0, 0]]})) == ["Chunk [0][2] has 0 layers, at least 1 are required."]
    assert check(free.replace(entries_alone=False), plan_of({"body": [[0, 2, 2, 0]]})) == [
        "Chunk [0][0] has 0 layers, at least 1 are required.",
        "Chunk [0][3] has 0 layers, at least 1 are required.",
    ]
    mtp = four_stages(kind("body", 4), kind("mtp", 1, pinned_last=True, places=(1, 2)), entries_alone=True)
    assert check(mtp, plan_of({"body": [[2, 2, 0, 0]], "mtp": [[0, 0, 1, 0]]})) == []
    assert check(mtp, plan_of({"body": [[4, 0, 0, 0]], "mtp": [[0, 0, 1, 0]]})) == [
        "Chunk [0][1] has 0 layers, at least 1 are required."
    ]


def test_a_chunk_holds_what_is_given_and_no_more_than_the_most() -> None:
    given = small_problem(fixed_layers={(0, 0): 2})
    assert check(given, EVEN) == []
    for first in (1, 3):
        assert check(given, plan_of({"body": [[first, 4 - first]]})) == [
            f"Chunk [0][0] has {first} layers, 2 are given."
        ]
    bounded = small_problem(max_layers={(0, 1): 2})
    assert check(bounded, EVEN) == check(bounded, plan_of({"body": [[3, 1]]})) == []
    assert check(bounded, plan_of({"body": [[1, 3]]})) == ["Chunk [0][1] has 3 layers, at most 2 are allowed."]


def test_a_chunk_recomputes_what_is_given_in_each_mode() -> None:
    problem = small_problem(
        kinds=(kind("body", 4),),
        recompute_ratio={FULL: 1.0, SELECT: 0.5},
        fixed_recompute={(FULL, 0, 0): 1, (SELECT, 0, 1): 0},
    )
    assert check(problem, plan_of({"body": [[2, 2]]}, {FULL: [[1, 2]]})) == []
    assert check(problem, plan_of({"body": [[2, 2]]}, {FULL: [[2, 0]], SELECT: [[0, 1]]})) == [
        "Chunk [0][0] recomputes 2 layers in mode full, 1 are given.",
        "Chunk [0][1] recomputes 1 layers in mode select, 0 are given.",
    ]
    assert check(problem, EVEN) == ["Chunk [0][0] recomputes 0 layers in mode full, 1 are given."]


def test_a_pinned_layer_is_not_recomputed_once_its_chunk_has_no_other() -> None:
    problem = pinned()
    body: dict[str, Any] = {"body": [[1, 1, 1, 1]], "mtp": [[0, 0, 0, 1]]}
    assert check(problem, plan_of(body, {FULL: [[0, 0, 0, 1]]})) == []
    assert check(problem, plan_of(body, {FULL: [[0, 0, 0, 2]]})) == [
        "Chunk [0][3] recomputes a layer that is never recomputed."
    ]


ALIKE = "The plan does not recompute the first layers of every chunk alike, as one of the choices asks."


@pytest.mark.parametrize(
    ("recompute", "alike"),
    [
        ({FULL: [[1, 1], [1, 1]]}, True),
        ({FULL: [[1, 3], [1, 2]]}, True),
        ({FULL: [[1, 2], [1, 2]]}, False),
        ({FULL: [[1, 3], [1, 1]]}, False),
        ({FULL: [[0, 1], [1, 1]]}, False),
        ({SELECT: [[1, 2], [1, 2]]}, True),
        ({SELECT: [[1, 1], [1, 1]]}, False),
        ({FULL: [[1, 1], [1, 1]], SELECT: [[0, 1], [0, 0]]}, False),
        ({FULL: [[1, 0], [1, 0]], SELECT: [[0, 2], [0, 2]]}, False),
        ({}, False),
    ],
)
def test_one_choice_holds_for_all_chunks_alike(recompute: dict[str, list[list[int]]], alike: bool) -> None:
    """Chunks of 1, 3, 1 and 2 layers; the choices are the first 1 or 4 of each fully, or 2 partly."""
    problem = small_problem(
        interleaves=2,
        kinds=(kind("body", 7),),
        schedule=ScheduleSpec("interleaved"),
        limit_mib=(500.0, 500.0),
        recompute_ratio={FULL: 1.0, SELECT: 0.5},
        uniform_recompute=((FULL, 1), (FULL, 4), (SELECT, 2)),
    )
    found = check(problem, plan_of({"body": [[1, 3], [1, 2]]}, recompute))
    assert found == ([] if alike else [ALIKE])


def test_no_recompute_is_a_choice_for_all_chunks_and_pinned_layers_do_not_count() -> None:
    problem = pinned().replace(uniform_recompute=((FULL, 0),))
    layers = {"body": [[1, 1, 2, 0]], "mtp": [[0, 0, 0, 1]]}
    assert check(problem, plan_of(layers)) == []
    assert check(problem, plan_of(layers, {FULL: [[1, 1, 1, 0]]})) == [ALIKE]
    assert check(problem.replace(uniform_recompute=((FULL, 2),)), plan_of(layers, {FULL: [[1, 1, 2, 0]]})) == []


def test_an_order_of_tasks_that_is_given_counts() -> None:
    """The memory of the order that is given, not of the problem's own: GPipe keeps all four."""
    order = build_schedule(ScheduleSpec("gpipe"), 2, 1, 4)
    assert exact_peak_memory(small_problem(), EVEN, order) == [57, 59]
    assert exact_host_memory(with_choice(), SOME_OFF, order) == [3 + 4 * 2, 6 + 4 * 4]
    assert exact_step_time(small_problem(), EVEN, order) == 30
