"""Columns of operators, their conditions, counts and summaries, written down by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from taylor.blackbox.blocks import (
    Column,
    Condition,
    CountLaw,
    LawfulOperator,
    RunOperators,
    _changes,
    _common,
    _count,
    _elsewhere,
    _Match,
    _maybe_turns,
    _twins,
    align,
    condition_of,
    lawful_operators,
)
from taylor.blackbox.foretold import Foretold, _shrunk, foretell, showing_run
from taylor.blackbox.law_summary import law_state, law_summary, laws_as_data
from taylor.blackbox.laws import Law, SizeFit
from taylor.parsers.profiles.operators import Operator
from taylor.parsers.small_run import JobSizes, RunSetting

ALWAYS = Condition()
ZERO = (0, 0, 0, 0, 0, 0)


def law(size: int, *powers: int, unit: int = 1, rows: int = 0) -> Law:
    return Law(Fraction(size), powers or ZERO, unit, Fraction(rows))


def operator(kind: str, *sizes: int) -> Operator:
    return Operator(kind, "AI_CORE", ("DT_BF16",), (sizes,), (sizes[:1],))


def one(kind: str = "Gelu", condition: Condition | None = ALWAYS, *laws: Law, spread: float = 0.0, **more: Any) -> Any:
    fits = (tuple(SizeFit((each,), spread) for each in laws or (law(8),)),)
    return LawfulOperator(Operator(kind, "AI_CORE"), condition, {0: 0}, (), fits, **more)


def test_laws_say_their_powers_units_and_shards():
    size = law(3, -1, 0, 0, 1, 2, 0)
    assert str(size) == "3 · tp^-1 · mbs · seq^2" and size.at(RunSetting(tp=4, mbs=2, seq=6)) == 54
    assert size.at(RunSetting(tp=7, mbs=1, seq=3)) == 4  # 27 / 7, rounded up
    padded = law(1000, -1, 0, 0, 0, 0, 0, unit=64)
    assert str(padded) == "1000 · tp^-1, up to a multiple of 64" and padded.at(RunSetting(tp=3)) == 384
    shard = law(10, -1, 0, 0, 0, 1, 0, rows=2)
    assert str(shard) == "2 · ceil(10 / tp) · seq" and shard.at(RunSetting(tp=4, seq=5)) == 2 * 3 * 5
    assert str(law(7)) == "7" and law(7).at(RunSetting(tp=4)) == 7


def test_of_several_laws_a_size_is_known_where_they_agree():
    both = SizeFit((law(8), law(4, 0, 0, 0, 0, 1, 0)))
    assert both.at(RunSetting(seq=2)) == 8 and both.at(RunSetting(seq=3)) is None and not both.settled
    assert both.with_first(law(9)).laws == (law(9), *both.laws) and both.with_first(None) is both
    assert both.with_first(both.laws[1]).laws == both.laws[::-1]
    alone = SizeFit((law(8),))
    assert alone.settled and alone.with_first(law(9)) is alone and not SizeFit((law(8),), 0.1).settled
    assert SizeFit(()).at(RunSetting()) is None and not SizeFit(()).settled


def test_conditions_are_met_above_one_and_of_layers_above_the_least():
    both = Condition((("tp", True), ("cp", False)))
    assert [both.is_met(RunSetting(tp=tp, cp=cp)) for tp, cp in ((2, 1), (1, 1), (2, 2))] == [True, False, False]
    more = Condition((("layers", True),), 2)
    assert [more.is_met(RunSetting(layers=layers)) for layers in (2, 3)] == [False, True]
    later = Condition((), 1, 2)
    assert [later.is_met(RunSetting(cp=cp)) for cp in (2, 3)] == [False, True]
    assert (str(both), str(more), str(later)) == ("tp > 1 and cp = 1", "layers > 2", "cp > 2")
    assert str(ALWAYS) == "always" and str(Condition((("tp", True),), 1, 2)) == "tp > 1 and cp > 2"
    assert both.opposite_in(Condition((("tp", False), ("cp", False)))) and not both.opposite_in(both)
    assert not both.opposite_in(Condition((("tp", False), ("cp", True)))) and not both.opposite_in(ALWAYS)
    assert not Condition((("tp", True),)).opposite_in(Condition((("tp", False),), 1, 2))
    assert not Condition((("tp", True),)).opposite_in(Condition((("tp", False), ("cp", True))))


def test_the_shortest_condition_that_explains_all_runs_counts():
    degrees = ((2, 2, 2, 1), (1, 2, 2, 1), (2, 1, 2, 1), (2, 4, 2, 1), (2, 2, 1, 1), (1, 4, 2, 1), (2, 2, 2, 2))
    runs = [RunSetting(tp=tp, cp=cp, ep=ep, experts=4, layers=layers) for tp, cp, ep, layers in degrees]

    def found(there: Any) -> str:
        return str(condition_of([there(run) for run in runs], runs))

    assert found(lambda run: True) == "always" and found(lambda run: run.tp == 1) == "tp = 1"
    assert found(lambda run: run.cp > 1) == "cp > 1" and found(lambda run: run.layers > 1) == "layers > 1"
    assert found(lambda run: run.cp > 1 and run.ep > 1) == "cp > 1 and ep > 1"
    assert (
        found(lambda run: run.cp > 2) == "cp > 2"
        and found(lambda run: run.cp > 2 and run.tp > 1) == "tp > 1 and cp > 2"
    )
    assert found(lambda run: run.cp > 2 or run.tp == 1) == "None"


def test_counts_are_lines_over_cp():
    law = CountLaw(Fraction(-1), Fraction(1))
    assert (str(law), law.at(RunSetting(cp=4)), law.at(RunSetting())) == ("cp - 1", 3, 0)
    assert str(CountLaw(Fraction(2), Fraction(1, 2))) == "1/2 · cp + 2" and str(CountLaw()) == "1"
    assert CountLaw(Fraction(2), Fraction(1, 2)).at(RunSetting(cp=3)) == 3
    assert str(CountLaw(Fraction(0), Fraction(1))) == "cp" and CountLaw(Fraction(-5)).at(RunSetting()) == 0

    def count(by_cp: dict[int, int], *also: int) -> CountLaw | None:
        runs = [RunSetting(cp=cp) for cp in (*by_cp, *also)]
        each = {at: operator("Update", 8) for at in range(len(by_cp))}
        further = [{at: each[at] for at, number in enumerate(by_cp.values()) if number > step} for step in range(1, 9)]
        return _count(Column(each, dict.fromkeys(each, 0)), further, runs)

    assert count({2: 1, 4: 3}) == CountLaw(Fraction(-1), Fraction(1)) and count({2: 2, 4: 4}) == CountLaw(
        Fraction(0), 1
    )
    assert count({2: 3, 4: 4}) == CountLaw(Fraction(2), Fraction(1, 2), 4) and count({2: 3}) is None
    assert count({2: 1, 4: 2}) == CountLaw(Fraction(0), Fraction(1, 2), 4)
    assert count({2: 2, 4: 3, 8: 5}) == CountLaw(Fraction(1), Fraction(1, 2)) and count({2: 2, 4: 3, 8: 9}) is None
    assert count({2: 2, 4: 2}) == CountLaw(Fraction(2), Fraction(0), 4)
    with_cp = Condition((("cp", True),))
    assert _maybe_turns(with_cp, [RunSetting(), RunSetting(cp=2)]) and not _maybe_turns(
        with_cp, [RunSetting(cp=2), RunSetting(cp=4)]
    )
    assert not _maybe_turns(ALWAYS, [RunSetting(cp=2)]) and not _maybe_turns(None, [RunSetting(cp=2)])
    assert not _maybe_turns(Condition((("cp", False),)), [RunSetting(), RunSetting(cp=2)])


def test_the_pairs_of_the_greatest_score_rise_in_both():
    scores = np.array([[2.0, 0.0, 0.1], [0.0, 0.2, 2.0], [2.0, 2.0, 0.0]])
    assert _common(scores) == [(0, 0), (1, 2)]
    assert _common(np.array([[0.0, 2.0], [2.0, 0.5]])) == [(0, 1)]  # Of equally good pairs the earlier row.
    assert _common(np.array([[0.1, 0.0], [0.0, 0.1]])) == [(0, 0), (1, 1)] and _common(np.zeros((2, 2))) == []
    assert _common(np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])) == [(0, 0), (1, 2)]
    assert _common(np.array([[0.4, 0.0], [1.0, 0.4]])) == [(1, 0)]


def test_operators_of_two_runs_are_alike_by_the_dimensions_that_one_law_explains():
    base, other = RunSetting(tp=2, seq=64), RunSetting(tp=4, seq=64)
    match = _Match([RunOperators(base, ()), RunOperators(other, ())], 1)

    def score(left: Operator, right: Operator) -> float:
        return float(match.scores([left], [0], [right])[0, 0])

    assert (
        score(operator("G", 8, 6), operator("G", 4, 6)) == 2 and score(operator("G", 8, 6), operator("G", 16, 6)) == 2
    )
    # Of three dimensions two, one or none: a tenth and as much again by their part.
    assert score(operator("G", 8, 6), operator("G", 8, 7)) == pytest.approx(0.1 * (1 + 2 / 3))
    assert score(operator("G", 8, 6), operator("G", 9, 7)) == pytest.approx(0.1)
    assert score(operator("G", 0, 6), operator("G", 0, 6)) == 2 and score(operator("G", 0, 6), operator("G", 1, 6)) < 1
    assert score(operator("G", 8, 6), operator("H", 8, 6)) == 0 and score(operator("G", 8), operator("G", 8, 1)) == 0
    send = Operator("hcom_allGather_", "HCCL", (), (), ((7,),))
    assert score(send, Operator("hcom_allGather_", "HCCL", (), (), ((1001,),))) == 2
    # What has a lawful one somewhere is none of those that no law explains.
    table = match.scores(
        [operator("G", 8, 6), operator("G", 9, 7)], [0, 0], [operator("G", 8, 6), operator("G", 13, 5)]
    )
    assert table.tolist() == [[2, 0], [0, pytest.approx(0.1)]]
    assert (
        _changes(base, other) == 1
        and _changes(base, base.replace(dp=4)) == 0
        and _changes(base, other.replace(cp=2, layers=3)) == 3
    )


def test_columns_have_each_operator_once_in_its_order():
    runs = [RunOperators(RunSetting(cp=cp, layers=layers), tuple(operator(kind, 8) for kind in kinds))
            for cp, layers, kinds in ((2, 1, "abc"), (1, 1, "ac"), (4, 1, "abbc"), (2, 2, "abcabc"))]  # fmt: skip
    columns = align(runs)
    assert [[dict(column.places).get(run) for column in columns if run in column.places] for run in range(4)] == [
        [0, 1, 2], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5],
    ]  # fmt: skip
    shown = [(next(iter(each.operators.values())).type, sorted(each.places)) for each in columns]
    assert ("b", [0, 2, 3]) in shown and ("a", [0, 1, 2, 3]) in shown and shown.count(("b", [2])) == 1
    found = lawful_operators(runs)
    assert {(each.like.type, str(each.condition), each.further) for each in found if each.condition} >= {
        ("a", "always", False), ("b", "cp > 1", False), ("a", "layers > 1", True), ("b", "cp > 1 and layers > 1", True),
    }  # fmt: skip
    turns = [each for each in found if each.repeats]
    assert [(each.like.type, str(each.condition)) for each in turns] == [("b", "cp > 2")]
    assert [str(each.count) for each in found if each.like.type == "b" and not each.repeats and not each.further] == [
        "1/2 · cp"
    ]


def test_a_further_layer_repeats_the_first_one_from_any_place_on():
    def column(kind: str, *runs: int) -> Column:
        return Column({run: operator(kind, 8) for run in runs}, dict.fromkeys(runs, 0))

    more = Condition((("layers", True),))
    columns = [column("a", 0, 1), column("b", 1), column("a", 1), column("b", 0, 1)]
    assert _twins(columns, [ALWAYS, more, more, ALWAYS]) == {1: 3, 2: 0} and _twins(columns, [ALWAYS] * 4) == {}
    assert _twins(columns, [None, more, more, ALWAYS]) == {1: 3} and _twins(columns[1:3], [more, more]) == {}


def test_an_operator_elsewhere_is_within_twelve_columns_under_the_opposite_condition():
    tp, plain = Condition((("tp", True),)), Condition((("tp", False),))

    def column(kind: str, run: int) -> Column:
        return Column({run: operator(kind, 8)}, {run: 0})

    def found(apart: int, kind: str = "a", condition: Condition | None = plain) -> int:
        columns = [column("a", 0), *[column("z", 1)] * (apart - 1), column(kind, 1), column("z", 1)]
        conditions = [tp, *[ALWAYS] * (apart - 1), condition, None]
        return len(_elsewhere(0, columns, conditions)) + len(
            _elsewhere(len(columns) - 2, columns[:-1], conditions[:-1])
        )

    assert (found(1), found(12), found(13)) == (2, 2, 0) and found(1, "b") == found(1, "a", tp) == found(
        1, "a", None
    ) == 0


def test_operators_are_settled_ambiguous_scattered_or_lawless():
    open_count, several = CountLaw(Fraction(0), Fraction(1, 2), 4), SizeFit((law(8), law(4, 0, 0, 0, 0, 1, 0)))
    ambiguous = LawfulOperator(Operator("Add", "AI_CORE"), ALWAYS, {0: 0}, ((several,),), ())
    no_law = LawfulOperator(Operator("Add"), ALWAYS, {}, ((SizeFit(()),),), ())
    cases = {
        "settled": [one(), one("Mul", Condition((("tp", True),)))],
        "ambiguous": [one(count=open_count), one(count=None), ambiguous],
        "scattered": [one(spread=0.1), one(spread=0.1), one(spread=0.2), one(count=None, spread=0.1)],
        "lawless": [one(condition=None), no_law, one(condition=None), no_law, one(condition=None)],
    }  # fmt: skip
    assert {state: {law_state(each) for each in every} for state, every in cases.items()} == {
        name: {name} for name in cases
    }
    further = one(condition=Condition((("layers", True),)))
    every = [*(each for rows in cases.values() for each in rows), further, one(repeats=True)]
    candidates = [RunSetting(cp=cp, seq=seq) for cp, seq in ((2, 64), (3, 64), (4, 64), (5, 2), (8, 2), (1, 3))]
    counted = law_summary(every, candidates, 9)
    assert (counted.operators, counted.settled, counted.ambiguous, counted.scattered, counted.lawless) == (
        14,
        2,
        3,
        4,
        5,
    )
    assert counted.conditions == (("always", 10), ("no condition found", 3), ("tp > 1", 1))
    # Of one CP alone runs show two ranks, of the open count four: five decide. Then what several laws say.
    assert [(each.setting, each.fits) for each in counted.deciding] == [
        (candidates[3], (2, 3, 8)),
        (candidates[0], (0,)),
    ]
    assert law_summary(every, candidates, 1).deciding == counted.deciding[:1]
    assert law_summary([one(count=None)], candidates, 9).deciding[0].setting == candidates[1]
    assert (
        not law_summary([one(count=None)], candidates[:1], 9).deciding
        and not law_summary([one()], candidates, 9).deciding
    )


def test_laws_are_stored_with_all_that_says_how_large_an_operator_is():
    stored = laws_as_data([
        one("Gelu", None, law(8, -1, 0, 0, 0, 1, 0), count=None), one("Add", ALWAYS, law(8, unit=2), spread=0.123456),
        one("Mul", ALWAYS, law(9, -1, 0, 0, 0, 0, 0, rows=3), count=CountLaw(Fraction(1), Fraction(1), 4)),
    ])  # fmt: skip
    assert [each["runs"] for each in stored] == [None, "always", "always"]
    assert [(each["times"], each.get("times_open")) for each in stored] == [(None, True), ("1", None), ("cp + 1", True)]
    assert [each["outputs"][0][0] for each in stored] == [
        {"laws": [{"coefficient": "8", "powers": {"tp": -1, "seq": 1}}]},
        {"laws": [{"coefficient": "8", "powers": {}, "unit": 2}], "spread": 0.1235},
        {"laws": [{"coefficient": "9", "powers": {"tp": -1}, "rows": "3"}]},
    ]


def test_operators_of_a_run_are_those_whose_conditions_it_meets_as_often_as_they_run():
    twice, open_count = CountLaw(Fraction(2)), CountLaw(Fraction(1), Fraction(1), 4)
    several = SizeFit((law(8), law(4, 0, 0, 0, 0, 1, 0)))
    ambiguous = LawfulOperator(Operator("Add", "AI_CORE"), ALWAYS, {0: 0}, ((several,),), ())
    every = [
        one("a"), one("b", Condition((("tp", True),)), count=twice), one("c", Condition((("layers", False),), 2)),
        one("d", None), one("e", count=None), one("f", count=open_count), one("g", repeats=True), ambiguous,
    ]  # fmt: skip
    found = foretell(every, RunSetting(tp=2, seq=3, layers=60))
    assert [each.type for each in found.operators] == ["a", "b", "b", "c"] and found.unsure == 4
    assert len(foretell(every, RunSetting(seq=2)).operators) == 3 and foretell([], RunSetting()) == Foretold((), 0)
    assert (_shrunk(8), _shrunk(6), _shrunk(1)) == ([2, 4, 8], [2, 3, 6], [1])


def test_the_run_with_fewest_tokens_shows_most_of_what_is_missing():
    sizes = JobSizes(RunSetting(tp=2, seq=65536, layers=8, experts=32), tp_ways=4)
    job = RunSetting(tp=2, cp=8, ep=4, seq=65536, experts=32, layers=8, dp=4, pp=4)
    local, rows = law(3, 0, 0, -1, 0, 0, 1), law(1, 0, -1, 0, 0, 1, 0)
    every = [one("experts", ALWAYS, local), one("rows", ALWAYS, rows), one("cp", ALWAYS, law(1, 0, 1, 0, 0, 0, 0))]
    missing = foretell(every, job).operators
    shown = showing_run(every, missing[:2], job, sizes, 16)
    assert shown is not None and shown.shown == 2
    assert shown.setting == RunSetting(tp=2, cp=2, ep=2, seq=16384, experts=16, layers=1, dp=4)
    # That of CP alone needs as many ranks of it as the job.
    whole = showing_run(every, missing, job, sizes, 16)
    assert whole is not None and whole.shown == 3 and whole.setting.cp == 8 and whole.setting.ep == 2
    assert showing_run(every, [operator("other", 1)], job, sizes, 16) is None
