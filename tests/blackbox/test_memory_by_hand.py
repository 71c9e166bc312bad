"""Lives of tensors, ways of sharding and peaks of stages that are written down by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from taylor.base.errors import InputError
from taylor.blackbox import memory_fit
from taylor.blackbox.block_memory import TURN, BlockLife, BlockMemory, BlockTrace, LifeEnd, LifeSpan, TensorLaw
from taylor.blackbox.blocks import Condition
from taylor.blackbox.laws import Law, SizeFit
from taylor.blackbox.memory_fit import _births, _common_end, _ends, _is_kin, _lives, _shardings, _Shown, _tensors
from taylor.blackbox.memory_laws import LEAST_MARGIN, MemoryLaws, MemorySharding, RunMemory
from taylor.blackbox.module_runs import Module
from taylor.parsers.small_run import RunSetting

ALWAYS, CP, TP = Condition(), Condition((("cp", True),)), Condition((("tp", True),))
PLAIN = RunSetting()
UP, DOWN = (0, 0, 0, 0, 0, 0), (0, 0, -1, 0, 0, 0)


def law(size: int, powers: tuple[int, ...] = UP) -> Law:
    return Law(Fraction(size), powers)


def tensor(name: str, size: int, condition: Condition | None = ALWAYS, **more: Any) -> TensorLaw:
    return TensorLaw(name, SizeFit((law(size),)), condition, **more)


def block(lives: list[tuple[str, int, Any, int, LifeEnd | tuple[LifeEnd, ...]]], turn: int = 3) -> BlockMemory:
    """A block of tensors: name, size, condition, birth, ends."""
    tensors = {name: tensor(name, size, condition) for name, size, condition, _, _ in lives}
    spans = tuple(
        LifeSpan(name, born, ends if isinstance(ends, tuple) else (ends,)) for name, _, _, born, ends in lives
    )
    return BlockMemory((), MappingProxyType(tensors), spans, turn, "input")


def until(place: int, after: str = "", late: int = 0, condition: Condition = ALWAYS) -> LifeEnd:
    return LifeEnd(condition, place, after, late)


def test_a_blocks_bytes_are_those_alive_in_each_pass():
    one = block([
        ("input", 5, ALWAYS, 0, until(9)), ("a", 100, ALWAYS, 1, until(2)), ("kept", 30, ALWAYS, 2, until(6)),
        ("carried 1", 7, ALWAYS, 4, until(6)), ("carried 2", 11, ALWAYS, 5, until(6)), ("b", 50, ALWAYS, 6, until(8)),
        ("c", 60, TP, 7, until(9)),
    ])  # fmt: skip
    # Before the first allocation of its own in the backward pass, at 6, the given ones that end there are gone.
    assert one.life(PLAIN) == BlockLife(input=5, kept=35, forward=105, backward=55, carried=0)
    assert one.life(RunSetting(tp=2)) == BlockLife(5, 35, 105, 115, 0)
    longer = replace(one, lives=(*one.lives[:4], LifeSpan("carried 2", 5, (until(7),)), *one.lives[5:]))
    assert longer.life(PLAIN).carried == 11 and longer.life(PLAIN).backward == 66
    assert one.bytes_at_turn("kept", PLAIN, True) == 30 and one.bytes_at_turn("kept", PLAIN, False) == 0
    assert one.bytes_at_turn("a", PLAIN, True) == 0 and one.bytes_at_turn("a", PLAIN, False) == 100
    assert one.bytes_at_turn("b", PLAIN, False) == 50 and one.bytes_at_turn("c", PLAIN, False) == 0
    assert [block([("t", 1, ALWAYS, *span)]).bytes_at_turn("t", PLAIN, True)
            for span in ((3, until(4)), (3, until(3)), (2, until(3)), (4, until(5)))] == [1, 0, 0, 0]  # fmt: skip


def test_a_tensor_whose_consumer_is_missing_lives_as_long_as_that_would():
    one = block([
        ("input", 1, ALWAYS, 0, until(9)), ("a", 10, ALWAYS, 1, until(5, after="sum")),
        ("sum", 20, TP, 4, until(7, after="more")), ("more", 40, TP, 6, until(8)),
    ])  # fmt: skip
    life = one.lives[1]
    assert one._end(life, RunSetting(tp=2)) == 5 and one._end(life, PLAIN) == 8
    assert one._end(replace(life, ends=(until(5, after="gone"),)), PLAIN) == 5
    assert one._end(replace(life, ends=(until(9, after="sum"),)), PLAIN) == 9


def test_an_end_comes_so_many_of_its_own_allocations_later():
    born = [("t0", ALWAYS), ("t1", CP), ("t2", ALWAYS), (TURN, None), ("t4", ALWAYS), ("t5", CP), ("t6", ALWAYS)]
    lives = [(name, 1, condition, at, until(9)) for at, (name, condition) in enumerate(born) if name != TURN]
    one = block(lives)
    with_cp = RunSetting(cp=2)
    assert [one._later(1, late, with_cp) for late in (0, 1, 2, 5)] == [1, 2, 3, 3]  # None beyond the turn.
    assert [one._later(1, late, PLAIN) for late in (0, 1, 2)] == [1, 3, 3]
    # Behind the turn the turn itself is no allocation.
    assert [one._later(4, late, with_cp) for late in (1, 2, 3, 9)] == [5, 6, 7, 7]
    assert [one._later(4, late, PLAIN) for late in (1, 2)] == [5, 7]
    assert [one._later(5, late, with_cp) for late in (1, 2)] == [6, 7] and one._later(7, 3, with_cp) == 7
    late = (until(2, late=1, condition=CP), until(3))
    assert one._end(LifeSpan("t0", 0, late), with_cp) == 3 and one._end(LifeSpan("t0", 0, late), PLAIN) == 3
    assert LifeSpan("t0", 0, (late[0], until(1, condition=TP))).end(PLAIN).place == 1  # None is met: the last.


def test_experts_are_what_every_law_splits_over_ep():
    split, both = SizeFit((law(64, DOWN),)), SizeFit((law(64, DOWN), law(8)))
    parameters = (
        TensorLaw("w", split, ALWAYS),
        TensorLaw("v", both, ALWAYS),
        tensor("u", 100, TP),
        tensor("n", 7, None),
    )
    one = BlockMemory(parameters, MappingProxyType({"t": tensor("t", 3, CP)}), (), 0, "input")
    assert one.elements(RunSetting(ep=4)) == (16, 16) and one.elements(RunSetting(ep=16, tp=2)) == (108, 4)
    assert one.unsure() == ["n"] and one.largest() is one and one.asked == ()
    empty = TensorLaw("e", SizeFit(()), ALWAYS)
    assert empty.unsure and empty.size(PLAIN) == 0
    wide = replace(one, tensors=MappingProxyType({"t": replace(tensor("t", 3), likely=law(2)), "e": empty}))
    assert wide.tensors["t"].size(PLAIN) == 2 and wide.largest().tensors["t"].size(PLAIN) == 3
    assert wide.unsure() == ["n", "e"]
    ends = LifeSpan(
        "t", 0, (until(1, condition=Condition((("pp", True),))), until(2, condition=Condition((("dp", False),))))
    )
    assert replace(one, lives=(ends,)).asked == ("dp", "pp")
    assert TensorLaw("s", SizeFit((law(100),), 0.25), ALWAYS).size(PLAIN) == 125


def test_allocations_of_all_runs_are_in_the_order_of_the_longest():
    assert _births([("+a", "-a", "+b", "turn", "+c"), ("+a", "+x", "turn", "+y", "-y")]) == (
        "a",
        "x",
        "b",
        "turn",
        "y",
        "c",
    )
    assert _births([("+z", "+a"), ("+a", "+b", "+c")]) == ("z", "a", "b", "c")
    assert _births([("+b", "+a"), ("+a", "+b")]) == ("b", "a")


def shown(*orders: tuple[str, ...], settings: Any = None) -> tuple[LifeSpan, ...]:
    runs = settings or [PLAIN] * len(orders)
    return _lives(orders, _births(orders), runs)


def ends(spans: tuple[LifeSpan, ...]) -> dict[str, Any]:
    return {one.name: [(end.place, end.after, end.late) for end in one.ends] for one in spans}


def test_a_life_ends_where_all_runs_show_it_to():
    found = shown(("+a", "+b", "-a", TURN, "-b", "+c", "-c"))
    assert ends(found) == {"a": [(2, "b", 0)], "b": [(3, "", 0)], "c": [(4, "c", 0)]}
    assert [one.born for one in found] == [0, 1, 3]
    # One that is never freed stays to the end; one that is freed at once is there for its own allocation.
    assert ends(shown(("+a", "+b", TURN))) == {"a": [(3, "", 0)], "b": [(3, "", 0)]}
    # Two runs that contradict each other: where CP is above one it ends with b, else with c.
    orders = ("+a", "+b", "-a", "+c", TURN), ("+a", "+b", "+c", "-a", TURN)
    by_cp = shown(*orders, settings=[RunSetting(cp=2), PLAIN])
    assert [(end.place, end.after, str(end.condition)) for end in by_cp[0].ends] == [
        (2, "b", "cp > 1"),
        (3, "c", "cp = 1"),
    ]
    # Alike runs differ by an allocation: the earliest counts, and one more.
    assert ends(shown(*orders))["a"] == [(2, "", 1)]


def test_ends_on_both_sides_of_the_turn_are_no_late_ones():
    order = ("a", "b", TURN, "c", "d", "e", "f", "g")
    runs = [PLAIN, PLAIN]
    born = [[0, 1, 3, 4, 5, 6, 7]] * 2
    here = _Shown(order, runs, born)
    assert _common_end({0: (1, 2), 1: (1, 2)}, here, 0) == LifeEnd(ALWAYS, 2, "b")
    assert _common_end({0: (1, 5), 1: (3, 4)}, here, 0) == LifeEnd(ALWAYS, 4)
    assert _common_end({0: (2, 4), 1: (2, 5)}, here, 0) == LifeEnd(ALWAYS, 4)  # Nothing was allocated at the turn.
    assert (
        _common_end({0: (3, 4), 1: (4, 5)}, here, 0) is None and _common_end({0: (3, 4), 1: (4, 5)}, here, 1).late == 1
    )
    assert _common_end({0: (2, 3), 1: (3, 4)}, here, 1) == LifeEnd(ALWAYS, 3, late=1)
    assert _common_end({0: (3, 4), 1: (6, 7)}, here, 3) == LifeEnd(ALWAYS, 4, late=3)
    assert _common_end({0: (3, 4), 1: (7, 8)}, here, 3) is None
    assert _common_end({0: (1, 2), 1: (3, 4)}, here, 3) is None
    assert (
        _common_end({0: (0, 1), 1: (1, 2)}, here, 3).late == 1 and _common_end({0: (1, 2), 1: (2, 3)}, here, 3) is None
    )
    assert here.allocations(0, 1, 4) == 2 and here.allocations(0, 0, 0) == 0 and here.turn == 2
    # What nothing explains is taken to live as long as in any run; what no run frees stays.
    assert _ends({0: (0, 1), 1: (7, 8)}, here) == (LifeEnd(ALWAYS, 8),) and _ends({}, here) == (LifeEnd(ALWAYS, 8),)


def test_ends_follow_at_most_three_degrees():
    order = ("a", "b", "c", "d", "e", "f", "g", "h", "i", TURN)
    settings = [RunSetting(cp=cp, ep=ep, tp=tp, experts=8) for cp in (1, 2) for ep in (1, 2) for tp in (1, 2)]
    here = _Shown(order, settings, [list(range(9))] * 8)
    by_two = {
        at: (3 * (run.cp > 1) * (run.ep > 1) + 1, 3 * (run.cp > 1) * (run.ep > 1) + 2)
        for at, run in enumerate(settings)
    }
    found = {str(one.condition): one.place for one in _ends(by_two, here)}
    assert found == {"cp > 1 and ep > 1": 5, "cp > 1 and ep = 1": 2, "cp = 1": 2}
    # Between CPs above one the later turns decide.
    turns = [RunSetting(cp=cp) for cp in (2, 4, 8)]
    loop = _ends({0: (1, 2), 1: (6, 7), 2: (6, 7)}, _Shown(order, turns, [list(range(9))] * 3))
    assert [(one.condition.turns, one.place) for one in loop] == [(2, 7), (0, 2)]


def test_few_conditions_explain_ends_before_late_ones_do_and_those_before_three_conditions(monkeypatch):
    tried = list[tuple[int, int]]()
    monkeypatch.setattr(memory_fit, "_explained", lambda seen, shown, most, slack: tried.append((most, slack)) or ())
    _ends({0: (0, 1)}, _Shown(("a", TURN), [PLAIN], [[0]]))
    assert tried == [(0, 0), (1, 0), (2, 0), (0, 3), (1, 3), (3, 0), (2, 3), (3, 3)]


def test_a_tensor_in_other_runs_elsewhere_is_the_same_one():
    more, less = Condition((("tp", True),)), Condition((("tp", False),))
    later, first = Condition((), 1, 2), Condition()
    assert _is_kin(more, less, {0: 1}, {1: 1}) and not _is_kin(more, None, {0: 1}, {1: 1})
    assert not _is_kin(None, less, {0: 1}, {1: 1}) and not _is_kin(more, more, {0: 1}, {1: 1})
    assert _is_kin(later, first, {0: 5}, {0: 5, 1: 3}) and not _is_kin(later, first, {0: 5}, {0: 6, 1: 3})
    assert not _is_kin(later, first, {0: 5, 2: 5}, {0: 5, 1: 3}) and not _is_kin(first, later, {0: 5}, {0: 5})
    assert not _is_kin(later, later, {0: 5}, {0: 5}) and _is_kin(later, first, {0: 5}, {0: 5})
    degrees = (
        (1, 1, 1, 64),
        (2, 1, 1, 64),
        (4, 1, 1, 64),
        (1, 1, 1, 128),
        (2, 1, 1, 128),
        (1, 2, 1, 64),
        (1, 1, 2, 64),
    )
    runs = [RunSetting(tp=tp, cp=cp, mbs=mbs, seq=seq) for tp, cp, mbs, seq in degrees]
    sizes = [{("x" if run.tp > 1 else "y"): run.seq // run.tp} for run in runs]
    found = _tensors(sizes, runs)
    assert found["x"].fit.settled and found["y"].fit.settled and found["y"].size(RunSetting(seq=999)) == 999
    # A lone one has the law of a neighbour as large in the likely peak.
    sizes = [{"whole": run.seq // run.tp, **({"lone": run.seq // run.tp} if run.cp > 1 else {})} for run in runs]
    lone = _tensors(sizes, runs, ("whole", "lone"))["lone"]
    assert len(lone.fit.laws) > 1 and str(lone.likely) == "1 · tp^-1 · seq"


def test_states_are_sharded_in_each_way_that_meets_all_runs():
    runs = [RunSetting(dp=dp, cp=cp, tp=tp, ep=ep, experts=8) for dp, cp, tp, ep in
            ((4, 1, 1, 1), (4, 2, 1, 1), (8, 1, 2, 2), (2, 2, 2, 2), (8, 2, 1, 4))]  # fmt: skip
    totals = [(1e6 / run.tp, 4e6 / run.ep) for run in runs]

    def ways(states: MemorySharding) -> set[tuple[str, str]]:
        sizes = [round(states.base + states.of(*total, run)) for total, run in zip(totals, runs, strict=True)]
        return {(way.dense, way.expert) for way in _shardings(sizes, totals, runs)}

    assert ways(MemorySharding(5e5, 6.0, 12.0, "over shards", "over shards by EP")) == {
        ("over shards", "over shards by EP")
    }
    assert ways(MemorySharding(0.0, 6.0, 12.0, "over DP", "over DP and CP")) == {("over DP", "over DP and CP")}
    assert ways(MemorySharding(0.0, 6.0, 12.0, "whole", "over TP, DP and CP by EP")) == {
        ("whole", "over TP, DP and CP by EP")
    }
    assert len(ways(MemorySharding(7e5, 6.0, 0.0, "whole", "whole"))) == 15
    # Ways that tie deviate by half a thousandth, or twice as much as the best: not each that is near.
    little = [MemorySharding(5e5, 6.0, share, "over shards", "over shards by EP") for share in (0.03, 0.1, 0.2)]
    assert [len(ways(each)) for each in little] == [15, 4, 2]
    (found,) = _shardings([0, 0], totals[:2], runs[:2])
    assert found == MemorySharding(0.0, 0.0, 0.0, "whole", "whole")
    run, half = RunSetting(dp=8, cp=2, tp=4, ep=2, experts=8), RunSetting(dp=1, ep=4, experts=8)
    unit = MemorySharding(9.0, 2.0, 1.0, "over shards", "over TP, DP and CP by EP")
    assert unit.of(160.0, 320.0, run) == 2 * 480 + 160 / 16 + 320 / 32 and unit.of(1.0, 8.0, half) == 18 + 1 + 8


WAYS = (MemorySharding(1000.0, 2.0, 0.0, "whole", "whole"), MemorySharding(4000.0, 1.0, 0.0, "whole", "whole"))


def laws(peaks: tuple[float, ...] = (), **more: Any) -> MemoryLaws:
    """A layer of 10 elements that keeps 35 bytes and takes 105, or 5 and 105 where it runs again."""
    layer = block([
        ("input", 5, ALWAYS, 0, until(6)), ("a", 100, ALWAYS, 1, until(2)), ("kept", 30, ALWAYS, 2, until(6)),
        ("carried 1", 7, ALWAYS, 4, until(6)), ("b", 50, ALWAYS, 5, until(6)),
    ])  # fmt: skip
    layer = replace(layer, parameters=(tensor("w", 10),))
    runs = tuple(RunMemory(PLAIN, (("layer", False),), 1, {}, 0, 0, {}, peak) for peak in peaks)
    step = (MemorySharding(0.0, 20.0, 0.0, "whole", "whole"),)
    return MemoryLaws(MappingProxyType({"layer": layer}), WAYS, step, runs, **more)


def test_the_peak_of_a_stage_is_its_states_with_micro_batches_or_the_step():
    kept, again = ("layer", False), ("layer", True)
    known = laws((4115.0, 4115.0))
    assert known.micro_batch(PLAIN, kept) == (35, 105) and known.micro_batch(PLAIN, again) == (5, 112)
    # The largest base and the largest way count; the optimizer's step takes 200 bytes a layer.
    assert known.stage(PLAIN, [kept], 1).peak == 4000 + 20 + 200 and known.stage(PLAIN, [kept], 1).static == 4020
    assert known.stage(PLAIN, [kept], 9).peak == 4020 + 8 * 35 + 105
    assert known.stage(PLAIN, [kept, again], 3).peak == 4040 + 2 * 40 + max(105, 35 + 112, 400 - 80)
    assert known.step_bytes(PLAIN, [kept] * 3) == 600 and known.elements(PLAIN, ["layer"] * 3) == (30, 0)
    assert known.run_peak(known.runs[0]) == 4220 and not known.stage(PLAIN, [kept], 1).unsure
    bare = replace(known, states=())
    assert bare.stage(PLAIN, [kept], 1).unsure == ("states",) and bare.stage(PLAIN, [], 1).static == 0
    order = np.array([[0, 0], [0, 1], [0, 0], [1, 1], [1, 0], [1, 0]], dtype=np.int32)
    # Chunks of one and of two layers: what a task takes beside all that others keep.
    chunks = known.chunks(PLAIN, [[kept], [kept, again]], order)
    beside = [105, 35 + 35 + 112, 35 + 40 + 105, 2 * 35 + 35 + 112, 35 + 105, 105]
    assert chunks.peak == 4060 + max(*beside, 600) and chunks.static == 4060
    assert replace(known, step=()).chunks(PLAIN, [[kept], [kept, again]], order).peak == 4060 + max(beside) == 4277


def test_a_layer_of_which_a_module_runs_again_keeps_what_that_leaves():
    module = Module("m", frozenset((1,)), frozenset(("kept",)), frozenset(("a",)))
    known = laws(modules={"layer": {"m": module}})
    assert known.saved_bytes(PLAIN, "layer", [module]) == (30, 100)
    assert known.micro_batch(PLAIN, ("layer", "m")) == (35 - 30 + 100, 105)
    assert known.micro_batch(PLAIN, ("layer", "other")) == (35, 105)
    all_of_it = replace(module, freed=frozenset(("kept", "input")), added=frozenset())
    assert laws(modules={"layer": {"m": all_of_it}}).micro_batch(PLAIN, ("layer", "m")) == (0, 105)


@pytest.mark.parametrize(
    ("peaks", "margin"),
    [((4220.0,), LEAST_MARGIN), ((4220.0 * 1.02,), 0.04), ((4220.0 * 1.004,), LEAST_MARGIN), ((4220.0, 4220.0), 0.01)],
)
def test_one_run_alone_has_twice_its_own_error_for_a_margin(peaks, margin):
    assert laws(peaks).margin == pytest.approx(margin)


def test_two_runs_have_the_margin_of_a_third_by_students_distribution():
    # Errors of 1 % and 3 %: mean 2 %, deviation sqrt(2) %; t is 1 for one degree of freedom and a risk of a quarter.
    known = laws((4220 * 1.01, 4220 * 1.03), risk=0.25)
    assert known.margin == pytest.approx(0.02 + 2**0.5 / 100 * 1.5**0.5)
    assert known.stage(PLAIN, [("layer", False)], 1).upper == pytest.approx(4220 * (1 + known.margin))


def test_blocks_that_no_run_had_and_runs_without_traces_are_refused():
    with pytest.raises(InputError, match="was in no small run"):
        laws((1.0,)).stage(PLAIN, [("head", False)], 1)
    assert BlockTrace({}, (), "input").kept_input == "input"
