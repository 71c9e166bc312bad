"""Modules of layers whose operators, tensors and figures are written down by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from taylor.base.errors import InputError
from taylor.blackbox.blocks import Condition, LawfulOperator
from taylor.blackbox.laws import Fitter, SizeFit
from taylor.blackbox.module_runs import (
    KindModules,
    Module,
    apart,
    choices,
    freed_tensors,
    kept_tensors,
    repeated_operators,
    saved_bytes,
)
from taylor.blackbox.module_subsets import CandidateModule, unbeaten_subsets
from taylor.parsers.profiles.allocations import Allocation
from taylor.parsers.profiles.operators import Operator
from taylor.parsers.small_run import RunSetting

ALWAYS = Condition()
TP, NO_TP = Condition((("tp", True),)), Condition((("tp", False),))


def lawful(kind: str, condition: Condition | None, places: dict[int, int], *elements: int) -> LawfulOperator:
    size = Fitter([RunSetting()]).fit([4]) if not elements else Fitter([RunSetting()]).fit([elements[0]])
    fixed = SizeFit(size.laws[:1])
    return LawfulOperator(Operator(kind, "AI_CORE"), condition, places, (), ((fixed,),) if elements else ())


def recorded(*kinds: str) -> Any:
    operators = tuple(Operator(kind, "AI_CORE") for kind in kinds)
    return SimpleNamespace(operators=lambda: SimpleNamespace(operators=operators))


def again(operators: list[LawfulOperator], kinds: dict[str, list[int]], base: str, run: str) -> dict[str, set[int]]:
    """Operators that a run repeats, each a letter."""
    found = repeated_operators(operators, kinds, 0, recorded(*base), recorded(*run))
    return {kind: set(each) for kind, each in found.items()}


def test_what_stands_under_other_degrees_alone_belongs_to_a_module_between_two_of_its_operators():
    # In the base run are a, b, c and d, twice each; x stands between b and c, y before a, z behind d elsewhere.
    own = [lawful(kind, ALWAYS, {0: at}) for at, kind in enumerate("abcd")]
    x, y, z = (lawful(kind, TP, {1: 0}) for kind in "xyz")
    operators = [y, own[0], own[1], x, own[2], own[3], z]
    layer = {"layer": list(range(7))}
    assert again(operators, layer, "abcdabcd", "abcdbc") == {"layer": {2, 3, 4}}
    assert again(operators, layer, "abcdabcd", "abcdb") == {"layer": {2}}
    assert again(operators, layer, "abcdabcd", "abcdabcd") == {"layer": {1, 2, 3, 4, 5}}


@pytest.mark.parametrize(("under", "kind", "inside"), [(TP, "c", True), (TP, "x", False), (ALWAYS, "c", False)])
def test_an_operator_in_anothers_place_belongs_to_that_ones_module(under, kind, inside):
    own = [lawful(one, NO_TP if one == "c" else ALWAYS, {0: at}) for at, one in enumerate("abcd")]
    operators = [*own[:3], lawful(kind, under, {1: 0}), own[3]]
    found = again(operators, {"layer": list(range(5))}, "abcdabcd", "abcdbc")
    assert found == {"layer": {1, 2, 3} if inside else {1, 2}}
    # Before the module too.
    operators = [own[0], lawful("b", TP, {1: 0}), lawful("b", NO_TP, {0: 1}), *own[2:]]
    assert again(operators, {"layer": list(range(5))}, "abcdabcd", "abcdbc") == {"layer": {1, 2, 3}}


def test_of_alike_operators_those_amid_the_others_run_again_and_of_two_next_to_them_the_later():
    def found(base: str, run: str) -> set[int]:
        operators = [lawful(kind, ALWAYS, {0: at}) for at, kind in enumerate(base)]
        return again(operators, {"layer": list(range(len(base)))}, base * 2, run)["layer"]

    assert found("sasbsccs", "sasbsccs" + "asb") == {1, 2, 3}
    assert found("sabs", "sabs" + "abs") == {1, 2, 3}
    assert found("ssabss", "ssabss" + "abss") == {1, 2, 3, 4}
    assert found("ssabs", "ssabs" + "sabs") == {1, 2, 3, 4}
    assert found("scss", "scss" + "ss") == {0, 2}  # Where no other one runs again, those in front.
    assert found("ssc", "ssc" + "s") == {0}
    with pytest.raises(InputError, match="repeats what no forward pass has"):
        found("ab", "ab" + "bb")


def test_a_module_in_one_kind_of_layer_takes_alike_operators_of_that_kind():
    kinds = {"dense": [0, 1, 2], "layer": [3, 4, 5]}
    operators = [lawful(kind, ALWAYS, {0: at}) for at, kind in enumerate("sasbss")]
    assert again(operators, kinds, "sasbss" * 2, "sasbss" + "bs") == {"dense": set(), "layer": {3, 4}}
    assert again(operators, kinds, "sasbss" * 2, "sasbss" + "sa") == {"dense": {1, 2}, "layer": set()}


def module(name: str, operators: tuple[int, ...], freed: str = "", added: str = "", **more: Any) -> Module:
    return Module(name, frozenset(operators), frozenset(freed), frozenset(added), **more)


def test_a_tensor_is_kept_that_lives_beyond_the_fourth_allocation_behind_the_forward_pass():
    def kept(end: int | None, behind: int = 9) -> bool:
        base = [Allocation(f"op{at}", 512, 10 * at, 35, 0) for at in range(3)]
        later = [Allocation("backward", 1024, 10 * at, None, 0) for at in range(3, 3 + behind)]
        run = [Allocation("op0", 512, 0, end, 0), *base[1:], *later]
        shown = [cast(Any, SimpleNamespace(allocations=tuple(each))) for each in ([*base, *later], run)]
        return "0" in kept_tensors([(at, str(at)) for at in range(3)], *shown)

    # The last forward allocation is the third, at 20: the fourth behind it is at 60.
    assert [kept(end) for end in (60, 61, None)] == [False, True, True]
    # Of a run with fewer allocations the last counts.
    assert [kept(end, behind=2) for end in (40, 41)] == [False, True]


def test_tensors_of_other_degrees_are_freed_between_two_that_are():
    names = ("0", "1", "2", "3", "4", "5", "6", "carried 2")
    assert freed_tensors("135", "5", names) == {"1", "2", "3"}
    assert freed_tensors("135", "1", names) == {"3", "4", "5"}
    assert freed_tensors("135", "", names) == {"1", "2", "3", "4", "5"}
    assert freed_tensors("135", "12", names) == {"3", "4", "5"}
    assert freed_tensors("135", "4", names) == {"1", "2", "3", "5"}


def test_a_module_whose_last_operator_is_missing_passes_its_input_on():
    order = (lawful("a", ALWAYS, {}, 700), lawful("send", TP, {}, 900))
    one = module("m", (0, 1), "vw", order=order, last=1)
    assert one.passes_on(RunSetting(tp=2)) is None and one.passes_on(RunSetting()) == 700
    assert module("m", (0,), order=order[1:], last=0).passes_on(RunSetting()) is None  # Nothing of it is there.
    assert module("m", (0,), order=(lawful("a", ALWAYS, {}), order[1]), last=1).passes_on(RunSetting()) == math.inf
    unplaced = (lawful("a", None, {}, 5), order[1])
    assert module("m", (0,), order=unplaced, last=1).passes_on(RunSetting()) == 5


def test_a_module_keeps_what_it_passes_on():
    order = (lawful("a", ALWAYS, {}, 1000), lawful("send", TP, {}, 900))
    sizes = {("u", True): 1511.0, ("v", True): 2048.0, ("w", True): 4512.0, ("x", True): 3000.0, ("y", False): 70.0}

    def saved(freed: str, elements: int, run: RunSetting, added: str = "", *more: Module) -> tuple[float, float]:
        here = (lawful("a", ALWAYS, {}, elements), order[1])
        one = module("m", (0, 1), freed, added, order=here, last=1)
        return saved_bytes([one, *more], lambda name, kept: sizes.get((name, kept), 0.0), run)

    plain, tp = RunSetting(), RunSetting(tp=2)
    assert saved("uvw", 1000, tp, "y") == (1511 + 2048 + 4512, 70)
    # Of one, two or four bytes an element and less than a page more, the largest.
    assert saved("u", 1000, plain) == (0, 0) and saved("u", 999, plain) == (1511, 0)
    assert saved("uv", 1000, plain) == (1511, 0) and saved("v", 1024, plain) == (0, 0)
    assert saved("v", 1025, plain) == (2048, 0) and saved("w", 1001, plain) == (0, 0)
    assert saved("uw", 1001, plain) == (1511 + 4512 - 4512, 0)
    assert saved("w", 1000, plain) == (4512, 0) and saved("x", 2000, plain) == (3000, 0)
    # Two modules free a tensor once, and keep none in addition that the other frees.
    both = module("n", (5,), "vx", "u")
    assert saved("uv", 1000, tp, "y", both) == (1511 + 2048 + 3000, 70)


def test_sets_of_modules_add_up_and_count_what_lies_in_another_once():
    saved = {"mlp": (100.4, 10.0), "act": (40.0, 4.0), "core": (60.0, 3.0)}
    took = {1: 5.0, 2: 7.0, 3: 11.0}
    modules = [module("mlp", (1, 2), "v"), module("act", (2,), "w"), module("core", (3,), "x")]

    def ns(operators: frozenset[int]) -> float:
        return sum(took[one] for one in operators)

    kind = KindModules(modules, 500.0, lambda one: saved[one.name], ns)
    assert choices([kind]) == (
        ("act", (7.0,)), ("core", (11.0,)), ("mlp", (12.0,)), ("act+core", (18.0,)), ("mlp+core", (23.0,)),
    )  # fmt: skip
    assert kind.named("act") is modules[1] and kind.named("no") is None
    # Another kind of layer lacks the first one, and has what lies in it.
    other = KindModules(modules[1:], 400.0, lambda one: saved[one.name], lambda each: 2 * ns(each))
    found = dict(choices([kind, other]))
    assert found["act"] == (7.0, 14.0) and found["mlp"] == (12.0, 14.0)
    assert found["core"] == (11.0, 22.0) and found["mlp+core"] == (23.0, 36.0)
    # A module that costs more and keeps as much is not among them.
    saved["core"] = (0.0, 0.0)
    assert [name for name, _ in choices([kind])] == ["act", "mlp"]


def test_a_layer_is_no_module_of_its_own_where_its_modules_seem_to_save_more_than_it_keeps():
    modules = [module("a", (1,), "x"), module("b", (2,), "y")]
    kind = KindModules(modules, 500.0, lambda one: (300.0, 280.0), lambda operators: 5.0 * len(operators))
    assert choices([kind]) == (("a", (5.0,)), ("a+b", (10.0,)))


def test_a_kind_of_layer_that_lacks_a_module_saves_and_adds_nothing_by_it():
    def found(saved: float, *names: str) -> tuple[tuple[str, tuple[float, ...]], ...]:
        modules = [module(name, (at,), "x") for at, name in enumerate(names)]
        kind = KindModules(modules, 500.0, lambda one: (saved, 0.0), lambda operators: saved * len(operators))
        # The other kind has the last one alone, which saves it nothing.
        other = KindModules(modules[1:], 500.0, lambda one: (0.0, 0.0), lambda operators: 0.0)
        return choices([kind, other])

    assert found(0.0, "m") == () and found(10.0, "m") == (("m", (10.0, 0.0)),)
    # Of equal ones the first counts.
    assert found(10.0, "m", "n") == (("m", (10.0, 0.0)), ("m+n", (20.0, 0.0)))


def test_unbeaten_subsets_have_the_figures_of_their_modules():
    inner = CandidateModule("act", (1,), (7,), (2,))
    mlp = CandidateModule("mlp", (3,), (5,), (4,), (inner,))
    found = {one.modules: one.figures for one in unbeaten_subsets(CandidateModule("l", (9,), (20,), (1,), (mlp,)))}
    # Kept, run again, and brought back at once: of the layer nothing but its input is kept.
    assert found == {
        (): (32, 0, 0), ("l.mlp.act",): (26, 2, 7), ("l.mlp",): (23, 6, 12), ("l",): (9, 7, 32),
    }  # fmt: skip


def test_two_modules_of_the_same_operators_are_one():
    one, same, part = module("one", (1, 2), "a"), module("same", (1, 2), "a"), module("part", (1,), "a")
    names, why = apart({each.name: (each,) for each in (one, same, part)})
    assert names == ("one", "part") and why == ("same: shares operators with one",)
    # What runs again without freeing anything, or frees what no operator makes again, is there.
    assert apart({"free": (module("free", (), "a"),), "runs": (module("runs", (7,)),)}) == (("free", "runs"), ())
