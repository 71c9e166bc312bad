"""Each refusal of a pipeline problem at its border, and what a problem says of itself, worked out by hand."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem, span
from tests.solver_cases import small_problem

KEPT = {NONE: 4.0, FULL: 1.0, SELECT: 2.0, "off": 1.0, "far": 0.5}


def kind(name: str = "body", count: int = 4, forward: float = 1.0, layer_mib: float = 10.0, **more: Any) -> LayerKind:
    return LayerKind(name, count, forward, layer_mib, more.pop("kept", KEPT), **more)


def choosing(*names: str, **one: float) -> dict[str, Any]:
    return {"choices": names, "kinds": (kind(choices={name: LayerChoice(**one) for name in names}),)}


def with_mtp(places: tuple[int, ...], *, later: tuple[int, ...] | None = None, **more: Any) -> dict[str, Any]:
    """A free kind, and one or two pinned kinds on some of the chunks 0 to 3."""
    kinds = [kind(), kind("mtp", 1, pinned_last=True, places=places, **more)]
    if later is not None:
        kinds.append(kind("last", 1, pinned_last=True, places=later))
    return {"kinds": tuple(kinds), "stages": 4, "static_mib": (0.0,) * 4, "limit_mib": (100.0,) * 4}


@pytest.mark.parametrize(
    ("good", "bad", "words"),
    [
        ({"interleaves": 1}, {"interleaves": 0}, "interleaves must be >= 1, found 0"),
        ({"micro_batches": 1}, {"micro_batches": 0}, "micro_batches must be >= 1, found 0"),
        ({"backward_ratio": 0.0}, {"backward_ratio": -0.1}, "backward_ratio must be >= 0, found -0.1"),
        ({"head_forward": 0.0}, {"head_forward": -0.1}, "head_forward must be >= 0"),
        ({"embedding_forward": 0.0}, {"embedding_forward": -0.1}, "embedding_forward must be >= 0"),
        ({"lag": 0.0}, {"lag": -0.1}, "lag must be >= 0"),
        ({"min_layers": 0}, {"min_layers": -1}, "min_layers must be >= 0"),
        ({"weight_gradient_share": 0}, {"weight_gradient_share": -0.1}, "lie in 0 to 1, found -0.1"),
        ({"weight_gradient_share": 1}, {"weight_gradient_share": 1.1}, "lie in 0 to 1, found 1.1"),
        ({"static_mib": (1.0, 2.0)}, {"static_mib": (1.0, 2.0, 3.0)}, "static_mib and limit_mib must have one"),
        ({"tail": (0.0, 1.0)}, {"tail": (0.0, -0.1)}, "tail must be >= 0 on every stage"),
        ({"tail": ()}, {"tail": (0.0,) * 3}, "tail must be empty or have one"),
        ({"lags": (0.0,)}, {"lags": (-0.1,)}, "lags must be >= 0 at every boundary"),
        ({"lags": (1e300,)}, {"lags": (inf,)}, "lags must be >= 0 at every boundary"),
        ({"lags": (1.0, 2.0, 3.0), "interleaves": 2}, {"lags": (1.0, 2.0)}, "one entry a boundary"),
        ({"slowness": (0.1, 1.0)}, {"slowness": (0.0, 1.0)}, "slowness must be > 0 on every stage"),
        ({"slowness": (1e300, 1.0)}, {"slowness": (1.0, inf)}, "slowness must be > 0 on every stage"),
        ({"slowness": ()}, {"slowness": (1.0,)}, "slowness must be empty or have one"),
        ({"recompute_ratio": {FULL: 0.0}}, {"recompute_ratio": {FULL: -0.1}}, "recompute_ratio of full must be >= 0"),
        ({"recompute_ratio": {}}, {"recompute_ratio": {NONE: 1.0}}, "full and select, found 'none'"),
        ({"unsearched": (FULL,)}, {"unsearched": (FULL, SELECT)}, "unsearched must name modes of recompute_ratio"),
        ({"uniform_recompute": ((FULL, 0),)}, {"uniform_recompute": ((FULL, -1),)}, "uniform_recompute must name"),
        # To recompute no layer at all needs no mode.
        ({"uniform_recompute": ((SELECT, 0),)}, {"uniform_recompute": ((SELECT, 1),)}, "uniform_recompute must name"),
        ({"uniform_recompute": ((FULL, 1),)}, {"uniform_recompute": ((FULL, 1), (FULL, -1))}, "uniform_recompute"),
        ({"host_limit_mib": (0.0, 0.0)}, {"host_limit_mib": (0.0, -0.1)}, "host_limit_mib must be >= 0"),
        ({"host_limit_mib": ()}, {"host_limit_mib": (1.0,)}, "host_limit_mib must be empty or have one"),
        ({"fixed_layers": {(0, 1): 1}}, {"fixed_layers": {(0, -1): 1}}, r"fixed_layers .* found \(0, -1\)"),
        ({"fixed_layers": {(0, 0): 1}}, {"fixed_layers": {(-1, 0): 1}}, r"fixed_layers .* found \(-1, 0\)"),
        ({"max_layers": {(0, 1): 1}}, {"max_layers": {(0, 2): 1}}, r"max_layers .* found \(0, 2\)"),
        ({"fixed_recompute": {(FULL, 0, 1): 1}}, {"fixed_recompute": {(FULL, 1, 0): 1}}, r"found \(1, 0\)"),
        (choosing("off", "far"), choosing("off", "off"), "choices must be named once"),
        (choosing("off"), choosing(FULL), "choices must be named once"),
        (choosing("off"), choosing(NONE), "choices must be named once"),
        (choosing("off"), choosing("1off"), "choices must begin with a letter"),
        (choosing("off"), choosing(""), "choices must begin with a letter"),
        (choosing("off"), choosing("a-b", "a+b"), "choices must begin with a letter"),
        (choosing("off", forward=0.0), choosing("off", forward=-0.1), "choice off must have times and memory"),
        (choosing("off", backward=0.0), choosing("off", backward=-0.1), "choice off must have times and memory"),
        (choosing("off"), choosing("off", weight_gradient=-0.1), "choice off must have times and memory"),
        (choosing("off"), choosing("off", link_time=inf), "choice off must have times and memory"),
        (choosing("off"), choosing("off", host_mib=-0.1), "choice off must have times and memory"),
        (choosing("off"), choosing("off", host_states_mib=nan), "choice off must have times and memory"),
        # All of a layer's 10 MiB may leave the device, and no more.
        (choosing("off", states_mib=-10.0), choosing("off", states_mib=-10.1), "choice off must have times"),
        (choosing("off"), {"choices": ("off",), "kinds": (kind(),)}, "choices lacks off"),
        ({"kinds": (kind(),)}, {"kinds": (kind(kept={FULL: 1.0}),)}, "activation_mib lacks none"),
        ({"kinds": (kind(count=0),)}, {"kinds": (kind(count=-1),)}, "count, forward and layer_mib must be >= 0"),
        ({"kinds": (kind(forward=0.0),)}, {"kinds": (kind(forward=-0.1),)}, "count, forward and layer_mib"),
        ({"kinds": (kind(layer_mib=0.0),)}, {"kinds": (kind(layer_mib=-0.1),)}, "count, forward and layer_mib"),
        ({"kinds": (kind(),)}, {"kinds": (kind("mtp", pinned_last=True),)}, "at least one layer kind must be free"),
        (with_mtp((3,), hand_over=0.0), with_mtp((3,), hand_over=-0.1), "hand_over must be >= 0, found -0.1"),
        (with_mtp((0, 3)), with_mtp((0, 4)), "rising positions of 0 to 3"),
        (with_mtp((0,)), with_mtp((-1, 0)), "rising positions of 0 to 3"),
        (with_mtp((1, 2)), with_mtp((2, 1)), "rising positions of 0 to 3"),
        (with_mtp((1, 2)), with_mtp((1, 1)), "rising positions of 0 to 3"),
        (with_mtp((2,), later=(2,)), with_mtp((2,), later=(1,)), "kind last: its places lie before"),
        # The earlier kind may take the first of its places, the later one the first from there on.
        (with_mtp((1, 3), later=(0, 1)), with_mtp((2, 3), later=(0, 1)), "kind last: its places lie before"),
    ],
)  # fmt: skip
def test_what_is_just_right_passes_and_what_is_just_wrong_is_refused_by_name(
    good: dict[str, Any], bad: dict[str, Any], words: str
) -> None:
    small_problem(**good)
    with pytest.raises(ValueError, match=words):
        small_problem(**bad)


def test_a_choice_of_the_first_name_does_not_answer_for_the_second() -> None:
    one = {"off": LayerChoice()}
    with pytest.raises(ValueError, match="choices lacks far"):
        small_problem(choices=("off", "far"), kinds=(kind(choices=one),))
    with pytest.raises(ValueError, match="activation_mib lacks x, y"):
        small_problem(choices=("x", "y"), kinds=(kind(choices={"x": LayerChoice(), "y": LayerChoice()}),))


def test_places_belong_to_pinned_kinds_behind_all_free_ones() -> None:
    with pytest.raises(ValueError, match="kind body: places must be rising positions of 0 to 1, of a pinned kind"):
        small_problem(kinds=(kind(places=(1,)),))
    mtp = kind("mtp", 1, pinned_last=True, places=(1,))
    with pytest.raises(ValueError, match="kind mtp: a kind with places must come behind all kinds"):
        small_problem(kinds=(mtp, kind()))
    # Without places a pinned kind may be named before the free ones.
    small_problem(kinds=(kind("mtp", 1, pinned_last=True), kind()))
    # A kind of no layers stands in nobody's way.
    small_problem(**with_mtp((2,), later=(2,)))
    problem = small_problem(**with_mtp((3,)))
    nobody = kind("nobody", 0, pinned_last=True, places=(0,))
    assert problem.replace(kinds=(*problem.kinds, nobody)).pinned_kinds == [problem.kinds[1]]


def test_the_least_states_of_a_layer_are_those_under_the_choice_that_leaves_least() -> None:
    choices = {"off": LayerChoice(states_mib=-3.0), "far": LayerChoice(states_mib=2.0)}
    assert kind(choices=choices).least_mib == 7.0
    assert kind(choices={"far": LayerChoice(states_mib=2.0)}).least_mib == 10.0
    assert kind().least_mib == 10.0


def problem_of_four(**changes: Any) -> PipelineProblem:
    return small_problem(**{**with_mtp((1, 2)), **changes})


def test_pinned_kinds_are_told_by_their_places() -> None:
    problem = problem_of_four()
    mtp = problem.kinds[1]
    assert problem.places_of(mtp) == (1, 2)
    assert [problem.pinned_at(place) for place in range(4)] == [[], [], [], []]
    assert [problem.is_beyond(place) for place in range(4)] == [False, False, False, True]
    settled = small_problem(**with_mtp((1,)))
    assert [len(settled.pinned_at(place)) for place in range(4)] == [0, 1, 0, 0]
    assert [settled.is_beyond(place) for place in range(4)] == [False, False, True, True]
    last = small_problem(**with_mtp(()))
    assert last.places_of(last.kinds[1]) == (3,)
    assert [len(last.pinned_at(place)) for place in range(4)] == [0, 0, 0, 1]
    assert not any(last.is_beyond(place) for place in range(4))
    folded = small_problem(interleaves=3, kinds=(kind(), kind("mtp", 1, pinned_last=True)))
    assert folded.places_of(folded.kinds[1]) == (5,)


def test_every_chunk_has_its_least_layers_but_those_that_may_stand_alone() -> None:
    assert problem_of_four(min_layers=2).least_layers == (2, 2, 2, 2)
    assert problem_of_four(min_layers=2, entries_alone=True).least_layers == (0, 0, 0, 0)
    assert small_problem(**with_mtp((1,)), entries_alone=True).least_layers == (0, 0, 1, 0)
    assert small_problem(interleaves=2, entries_alone=True).least_layers == (0, 1, 1, 0)


def test_boundaries_behind_the_last_place_of_a_kind_carry_what_it_hands_over() -> None:
    assert small_problem(lag=0.5, interleaves=2).boundary_lags == (0.5, 0.5, 0.5)
    lags = (1.0, 2.0, 4.0)
    assert problem_of_four(lags=lags).boundary_lags == lags
    assert small_problem(**with_mtp((0, 1), hand_over=0.5), lags=lags).boundary_lags == (1.0, 3.0, 6.0)
    assert small_problem(**with_mtp((0,), hand_over=0.5), lag=2.0).boundary_lags == (3.0, 3.0, 3.0)


def test_the_host_counts_where_it_is_limited_and_a_choice_takes_some_of_it() -> None:
    limit = {"host_limit_mib": (1.0, 1.0)}
    assert not small_problem(**choosing("off", host_mib=1.0)).bounds_host
    assert small_problem(**choosing("off", host_mib=1.0), **limit).bounds_host
    assert small_problem(**choosing("off", host_states_mib=1.0), **limit).bounds_host
    assert not small_problem(**choosing("off", states_mib=1.0), **limit).bounds_host
    both = {"off": LayerChoice(), "far": LayerChoice(host_mib=1.0)}
    assert small_problem(choices=("off", "far"), kinds=(kind(choices=both),), **limit).bounds_host
    assert not small_problem(choices=("off",), kinds=(kind(choices=both),), **limit).bounds_host


def test_modes_are_searched_in_order_and_priced() -> None:
    problem = small_problem(
        recompute_ratio={SELECT: 0.25, FULL: 0.5},
        choices=("far", "off"),
        kinds=(kind(forward=2.0, choices={"off": LayerChoice(forward=3.0), "far": LayerChoice()}),),
    )
    assert problem.searched_modes == (FULL, SELECT, "far", "off")
    assert problem.replace(unsearched=(FULL,)).searched_modes == (SELECT, "far", "off")
    body = problem.kinds[0]
    assert problem.choice_of(body, FULL) == LayerChoice(backward=1.0)
    assert problem.choice_of(body, SELECT) == LayerChoice(backward=0.5)
    assert problem.choice_of(body, "off") == LayerChoice(forward=3.0)
    assert small_problem().pace == (1.0, 1.0)
    assert small_problem(slowness=(1.0, 2.0)).pace == (1.0, 2.0)


def test_free_kinds_with_layers_are_placed() -> None:
    kinds = (kind("a", 2), kind("none", 0), kind("b", 3), kind("mtp", 5, pinned_last=True))
    problem = small_problem(kinds=kinds)
    assert problem.free_kinds == kinds[:3]
    assert problem.placed_kinds == [kinds[0], kinds[2]]
    assert problem.pinned_kinds == [kinds[3]]
    assert problem.layers == 5


def test_two_kinds_cost_the_same_whatever_their_names_and_the_order_of_their_choices() -> None:
    off, far = LayerChoice(backward=1.0), LayerChoice(backward=2.0)
    assert kind("a", 1, choices={"off": off, "far": far}).costs == kind("b", 2, choices={"far": far, "off": off}).costs
    assert kind(choices={"off": off}).costs != kind(choices={"off": far}).costs


def test_a_problem_with_everything_reads_in_a_few_lines() -> None:
    problem = problem_of_four(
        kinds=(
            kind(choices={"off": LayerChoice()}),
            kind("mtp", 1, pinned_last=True, places=(1, 2), choices={"off": LayerChoice()}),
        ),
        recompute_ratio={FULL: 1.0, SELECT: 0.25},
        unsearched=(SELECT,),
        choices=("off",),
        lags=(0.5, 0.25, 0.125),
        slowness=(1.0, 1.0, 1.5, 2.0),
        limit_mib=(1000.0, 2000.0, 1000.0, 1000.0),
        fixed_layers={(0, 0): 1},
        max_layers={(0, 1): 2, (0, 2): 2},
        fixed_recompute={(FULL, 0, 0): 1, (FULL, 0, 1): 0, (FULL, 0, 2): 0},
    )
    assert problem.summary().splitlines() == [
        "4 stages x 1 virtual stages, 4 micro-batches, 1f1b",
        "4 body layers: forward 1, 10 MiB each; a micro-batch keeps none 4, full 1, select 2, far 0.5 MiB by recompute",
        "1 mtp layers on chunk 1 or 2: forward 1, 10 MiB each; "
        "a micro-batch keeps none 4, full 1, select 2, far 0.5 MiB by recompute",
        "limit 1,000 to 2,000 MiB a stage, of which 0 MiB without layers",
        "backward 2, full recompute 1, select recompute 0.25 (not searched), head 0, embedding 0, "
        "transfer 0.125 to 0.5",
        "choice off: a micro-batch keeps body 1 MiB",
        "stages take 1, 1, 1.5, 2 times as long",
        "given or bounded by chunk: 6 counts of layers or recompute",
    ]
    plain = small_problem(recompute_ratio={}, kinds=(kind(), kind("mtp", 1, pinned_last=True)), unit_ms=0.5)
    lines = plain.summary().splitlines()
    assert lines[2].startswith("1 mtp layers on the last chunk: forward 1")
    assert lines[3:] == [
        "limit 100 MiB a stage, of which 5 to 7 MiB without layers",
        "backward 2, head 0, embedding 0, transfer 0; unit 0.5 ms",
    ]


def test_a_span_is_one_figure_where_all_are_alike() -> None:
    assert (span((2.0, 2.0)), span((3.0, 1.25, 2.0))) == ("2", "1.25 to 3")


def test_what_nobody_states_is_usual() -> None:
    """A backward of twice the forward, half of it the weight gradient; recompute runs the whole forward again."""
    problem = PipelineProblem(2, 1, 4, (kind(),), (5.0, 7.0), (100.0, 100.0))
    assert problem.schedule.name == "1f1b"
    assert (problem.backward_ratio, problem.recompute_ratio, problem.weight_gradient_share) == (2.0, {FULL: 1.0}, 0.5)
    assert (problem.head_forward, problem.embedding_forward, problem.lag) == (0.0, 0.0, 0.0)
    assert (problem.min_layers, problem.entries_alone) == (1, False)
    assert LayerKind("body", 4, 1.0, 10.0, KEPT) == LayerKind("body", 4, 1.0, 10.0, KEPT, False, (), 0.0, {})
    assert LayerChoice() == LayerChoice(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
