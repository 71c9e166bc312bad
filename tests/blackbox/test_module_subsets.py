"""Recompute by modules against all subsets of the tree."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import combinations

import pytest

from taylor.base.errors import InputError
from taylor.blackbox.module_subsets import CandidateModule, unbeaten_subsets

TREES = 500


def random_tree(draw: random.Random, modules: int, kinds: int, name: str = "layer") -> CandidateModule:
    """A tree of so many modules, some of which keep nothing, or are given more than they keep, or a kind lacks."""
    left, children = modules - 1, []
    while left:
        size = draw.randint(1, left)
        children.append(random_tree(draw, size, kinds, f"m{len(children)}"))
        left -= size
    each = [
        (draw.choice((0, draw.randint(0, 9))), draw.choice((0, draw.randint(0, 12))), draw.randint(0, 9))
        for _ in range(kinds)
    ]
    lacking = (0, 0, 0) if kinds > 1 and draw.random() < 0.3 else each[-1]
    given, own, ns = zip(*each[:-1], lacking, strict=True)
    return CandidateModule(name, given, own, ns, tuple(children))


def sums(each: Iterable[tuple[int, ...]], kinds: int) -> tuple[int, ...]:
    """Figures added up, a kind each."""
    return tuple(map(sum, zip((0,) * kinds, *each, strict=True)))


def listed(module: CandidateModule, path: str = "") -> dict[str, CandidateModule]:
    """Every module by its whole name."""
    name = f"{path}{module.name}"
    return {name: module} | {key: one for child in module.children for key, one in listed(child, f"{name}.").items()}


def brute_force(layer: CandidateModule) -> set[tuple[int, ...]]:
    """Kept, extra, second run of every subset that is not beaten, by enumeration."""
    modules, kinds = listed(layer), len(layer.own_ns)
    inside = {name: [one for one in modules if one == name or one.startswith(f"{name}.")] for name in modules}
    points = set()
    for count in range(len(modules) + 1):
        for chosen in combinations(modules, count):
            if any(other != one and other in inside[one] for one in chosen for other in chosen):
                continue
            gone = {name for one in chosen for name in inside[one]}
            kept = [module.own_bytes for name, module in modules.items() if name not in gone]
            kept += [modules[one].input_bytes for one in chosen]
            extra = [modules[name].own_ns for name in gone]
            runs = [sums((modules[name].own_bytes for name in inside[one]), kinds) for one in chosen]
            again = tuple(max((one[kind] for one in runs), default=0) for kind in range(kinds))
            points.add((*sums(kept, kinds), *sums(extra, kinds), *again))
    return {
        one for one in points
        if not any(other != one and all(a <= b for a, b in zip(other, one, strict=True)) for other in points)
    }  # fmt: skip


@pytest.mark.parametrize("kinds", [1, 2])
def test_the_unbeaten_subsets_of_five_hundred_trees_are_those_of_brute_force(kinds):
    draw = random.Random(20)
    for _ in range(TREES):
        layer = random_tree(draw, draw.randint(1, 8 if kinds == 1 else 6), kinds)
        figures = [one.figures for one in unbeaten_subsets(layer)]
        assert len(set(figures)) == len(figures) and set(figures) == brute_force(layer)


def test_the_modules_of_a_subset_have_its_figures():
    draw = random.Random(21)
    for _ in range(50):
        layer = random_tree(draw, draw.randint(2, 9), kinds=2)
        modules = listed(layer)
        for one in unbeaten_subsets(layer):
            chosen = [modules[name] for name in one.modules]
            assert sums([one.kept_bytes, *(each.kept_bytes for each in chosen)], 2) == sums(
                [layer.kept_bytes, *(each.input_bytes for each in chosen)], 2
            )
            assert one.extra_ns == sums((each.forward_ns for each in chosen), 2)
            assert one.rerun_bytes == tuple(max((each.kept_bytes[at] for each in chosen), default=0) for at in (0, 1))


def test_a_module_that_saves_nothing_never_runs_again():
    norm = CandidateModule("norm", input_bytes=(8,), own_bytes=(8,), own_ns=(3,))
    act = CandidateModule("act", input_bytes=(16,), own_bytes=(64,), own_ns=(2,))
    layer = CandidateModule("layer", (8,), (0,), (0,), (norm, act))
    assert {name for one in unbeaten_subsets(layer) for name in one.modules} == {"layer.act", "layer"}


def test_a_module_that_one_kind_of_layer_lacks_runs_again_for_the_other():
    mlp = CandidateModule("mlp", input_bytes=(0, 4), own_bytes=(0, 32), own_ns=(0, 5))
    layer = CandidateModule("layer", (8, 8), (40, 0), (9, 0), (mlp,))
    found = {one.modules: (one.kept_bytes, one.extra_ns) for one in unbeaten_subsets(layer)}
    assert found["layer.mlp",] == ((40, 4), (0, 5))


def test_a_negative_figure_is_refused_with_the_module_named():
    act = CandidateModule("act", (1,), (-1,), (1,))
    with pytest.raises(InputError, match=r"layer\.act"):
        unbeaten_subsets(CandidateModule("layer", (1,), (1,), (1,), (act,)))
