"""Operators of runs in common columns: which run one is laid beside, and whose law stands first."""

from __future__ import annotations

from fractions import Fraction

from taylor.blackbox.blocks import (
    AROUND,
    LIKEST,
    MOST_APART,
    UNLIKE,
    Column,
    Condition,
    LawfulOperator,
    RunOperators,
    _likely,
    _split,
    _turns,
    align,
    lawful_operators,
)
from taylor.blackbox.laws import Law, SizeFit
from taylor.parsers.profiles.operators import Operator
from taylor.parsers.small_run import RunSetting

ALWAYS = Condition()


def operator(kind: str, *sizes: int) -> Operator:
    return Operator(kind, "AI_CORE", (), (sizes,), ())


def test_scores_weigh_lawful_sizes_above_alike_runs_and_those_above_unlike_sizes():
    # Ten pairs that no law explains do not outweigh a lawful one; an alike run outweighs how unlike sizes are.
    assert 10 * 2 * UNLIKE <= 2.0 and UNLIKE < LIKEST < 2.0 - 2 * UNLIKE and AROUND == 3 and MOST_APART == 12


def test_a_further_layer_stands_beside_no_operator_of_other_degrees():
    one, tp, two = RunSetting(tp=2, layers=1), RunSetting(tp=1, layers=1), RunSetting(tp=2, layers=2)
    runs = [RunOperators(one, (operator("a", 8),)), RunOperators(tp, (operator("a", 8), operator("x", 8))),
            RunOperators(two, (operator("a", 8), operator("x", 8)))]  # fmt: skip
    assert [dict(column.places) for column in align(runs)] == [{0: 0, 1: 0, 2: 0}, {1: 1}, {2: 1}]
    # Of a run that differs in a degree too the same operator may be that one.
    other = [*runs[:2], RunOperators(two.replace(tp=1), (operator("a", 8), operator("x", 8)))]
    assert [dict(column.places) for column in align(other)] == [{0: 0, 1: 0, 2: 0}, {1: 1, 2: 1}]


def lawful(kind: str, places: dict[int, int], *laws: Law, condition: Condition | None = ALWAYS) -> LawfulOperator:
    return LawfulOperator(Operator(kind, "AI_CORE"), condition, places, ((SizeFit(laws),),), ())


def test_of_several_laws_the_nearest_neighbours_stands_first():
    constant, long = Law(Fraction(64), (0, 0, 0, 0, 0, 0)), Law(Fraction(1), (0, 0, 0, 0, 1, 0))
    by_tp = Law(Fraction(128), (-1, 0, 0, 0, 0, 0))
    settings = [RunSetting(tp=2, seq=64)]

    def first(*kinds: tuple[str, Law, int], condition: Condition | None = ALWAYS) -> Law:
        mine = lawful("Gelu", {0: 20}, constant, long, by_tp, condition=condition)
        others = [lawful(kind, {0: place}, law) for kind, law, place in kinds]
        every = [mine, *others]
        columns = [Column({0: operator(one.like.type, 64)}, one.places) for one in every]
        return _likely(every, columns, settings, 0).inputs[0][0].laws[0]

    assert (
        first(("Add", long, 21), ("Add", by_tp, 18)) == long and first(("Add", long, 23), ("Add", by_tp, 18)) == by_tp
    )
    assert first(("Add", long, 32)) == long and first(("Add", long, 33)) == constant
    # One of the same type counts wherever it stands.
    assert first(("Gelu", by_tp, 90)) == by_tp and first(("Gelu", by_tp, 90), ("Add", long, 19)) == long
    assert first(("Add", long, 21), condition=None) == constant


def test_a_column_is_two_where_laws_explain_the_runs_with_a_degree_and_those_without():
    runs = [RunSetting(tp=tp, seq=seq) for tp, seq in ((1, 64), (1, 128), (2, 64), (2, 128), (4, 64))]

    def parts(*sizes: int) -> list[list[int]]:
        column = Column(
            {at: operator("Gelu", size) for at, size in enumerate(sizes)}, dict.fromkeys(range(len(sizes)), 0)
        )
        return [sorted(each.operators) for each in _split(column, runs, {})]

    assert parts(64, 128, 64, 128, 64) == [[0, 1, 2, 3, 4]]
    assert parts(1000, 2000, 35, 70, 35) == [[2, 3, 4], [0, 1]]
    assert parts(1000, 1003, 35, 7, 350) == [[0, 1, 2, 3, 4]]


def test_a_further_turn_repeats_the_column_whose_neighbours_are_alike():
    def run(text: str) -> RunOperators:
        return RunOperators(RunSetting(cp=text.count("u")), tuple(operator(kind, 8) for kind in text))

    order = "axu" + "ayu"  # Two turns under CP 2; a third one under CP 3.
    columns = [Column({0: operator("a", 8), 1: operator("a", 8)}, {0: 0, 1: 0}), Column({1: operator("a", 8)}, {1: 5})]
    assert _turns(columns, [ALWAYS, Condition((), 1, 2)]) == {1: 0} and _turns(columns, [ALWAYS, ALWAYS]) == {}
    found = lawful_operators([run(order), run(order + "azu"), run("axu")])
    assert sum(one.repeats for one in found) >= 1 and all(one.condition is not None for one in found if one.repeats)
