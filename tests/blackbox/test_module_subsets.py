"""Recompute by modules against all subsets of the tree."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from taylor.base.errors import InputError
from taylor.blackbox.module_subsets import CandidateModule, unbeaten_subsets

TREES = 500


def random_tree(draw: random.Random, modules: int, name: str = "layer") -> CandidateModule:
    """A tree of so many modules, some of which keep nothing, or are given more than they keep."""
    left, children = modules - 1, []
    while left:
        size = draw.randint(1, left)
        children.append(random_tree(draw, size, f"m{len(children)}"))
        left -= size
    figures = (draw.choice((0, draw.randint(0, 9))), draw.choice((0, draw.randint(0, 12))), draw.randint(0, 9))
    return CandidateModule(name, *figures, tuple(children))


def listed(module: CandidateModule, path: str = "") -> dict[str, CandidateModule]:
    """Every module by its whole name."""
    name = f"{path}{module.name}"
    return {name: module} | {key: one for child in module.children for key, one in listed(child, f"{name}.").items()}


def brute_force(layer: CandidateModule) -> set[tuple[int, int, int]]:
    """(kept, extra, second run) of every subset that is not beaten, by enumeration."""
    modules = listed(layer)
    inside = {name: [one for one in modules if one == name or one.startswith(f"{name}.")] for name in modules}
    points = set()
    for count in range(len(modules) + 1):
        for chosen in combinations(modules, count):
            if any(other != one and other in inside[one] for one in chosen for other in chosen):
                continue
            gone = {name for one in chosen for name in inside[one]}
            kept = sum(module.own_bytes for name, module in modules.items() if name not in gone)
            kept += sum(modules[one].input_bytes for one in chosen)
            extra = sum(modules[name].own_ns for name in gone)
            again = max((sum(modules[name].own_bytes for name in inside[one]) for one in chosen), default=0)
            points.add((kept, extra, again))
    return {
        one for one in points
        if not any(other != one and all(a <= b for a, b in zip(other, one, strict=True)) for other in points)
    }  # fmt: skip


def test_the_unbeaten_subsets_of_five_hundred_trees_are_those_of_brute_force():
    draw = random.Random(20)
    for _ in range(TREES):
        layer = random_tree(draw, draw.randint(1, 8))
        found = unbeaten_subsets(layer)
        figures = [(one.kept_bytes, one.extra_ns, one.rerun_bytes) for one in found]
        assert len(set(figures)) == len(figures) and set(figures) == brute_force(layer)


def test_the_modules_told_have_the_figures_told():
    draw = random.Random(21)
    for _ in range(50):
        layer = random_tree(draw, draw.randint(2, 12))
        modules = listed(layer)
        for one in unbeaten_subsets(layer):
            chosen = [modules[name] for name in one.modules]
            saved = sum(each.kept_bytes - each.input_bytes for each in chosen)
            assert one.kept_bytes == layer.kept_bytes - saved
            assert one.extra_ns == sum(each.forward_ns for each in chosen)
            assert one.rerun_bytes == max((each.kept_bytes for each in chosen), default=0)


def test_a_module_that_saves_nothing_never_runs_again():
    norm = CandidateModule("norm", input_bytes=8, own_bytes=8, own_ns=3)
    act = CandidateModule("act", input_bytes=16, own_bytes=64, own_ns=2)
    layer = CandidateModule("layer", 8, 0, 0, (norm, act))
    assert {name for one in unbeaten_subsets(layer) for name in one.modules} == {"layer.act", "layer"}


def test_a_negative_figure_is_refused_with_the_module_named():
    with pytest.raises(InputError, match=r"layer\.act"):
        unbeaten_subsets(CandidateModule("layer", 1, 1, 1, (CandidateModule("act", 1, -1, 1),)))
