"""Modules of a layer that run again in the backward pass: the Pareto-optimal subsets, exactly.

A module that runs again keeps its input alone and costs its forward pass once more; what lies in it is then settled,
so a subset names no module inside another: a knapsack of several choices over the tree. Where a model has layers of
several kinds a subset holds for all of them, and every figure is one a kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import le

from taylor.base.errors import InputError

MOST_SUBSETS = 200_000
"""Subsets that may be unbeaten at once before a tree is refused; trees of one layer have some hundreds."""
Figures = tuple[int, ...]
"""A figure for each kind of layer."""


@dataclass(frozen=True)
class CandidateModule:
    """A module of a layer, as a profile shows it; a kind of layer that lacks it has zeros.

    Parameters
    ----------
    input_bytes : tuple of int
        Of the tensors that it is given.
    own_bytes : tuple of int
        Memory that it keeps for the backward pass, without that of its children.
    own_ns : tuple of int
        Forward time of itself, its children's left out.
    """

    name: str
    input_bytes: Figures
    own_bytes: Figures
    own_ns: Figures
    children: tuple[CandidateModule, ...] = ()

    @property
    def kept_bytes(self) -> Figures:
        """Memory that it and all in it keep for the backward pass."""
        return _sum(self.own_bytes, *(child.kept_bytes for child in self.children))

    @property
    def forward_ns(self) -> Figures:
        """Forward time of it and all in it."""
        return _sum(self.own_ns, *(child.forward_ns for child in self.children))


@dataclass(frozen=True, order=True)
class Subset:
    """Modules that run again, and what that means for a layer and micro-batch.

    Parameters
    ----------
    kept_bytes : tuple of int
        Memory kept between forward and backward.
    extra_ns : tuple of int
        Forward time that is run once more.
    rerun_bytes : tuple of int
        Most that one module's second run brings back at once, beyond its input.
    modules : tuple of str
        Their names, each with those above it: ``layer.mlp.act``.
    """

    kept_bytes: Figures
    extra_ns: Figures
    rerun_bytes: Figures
    modules: tuple[str, ...]

    @property
    def figures(self) -> Figures:
        """All of them, one after another."""
        return (*self.kept_bytes, *self.extra_ns, *self.rerun_bytes)


def unbeaten_subsets(layer: CandidateModule) -> tuple[Subset, ...]:
    """Pareto-optimal subsets of a layer's modules, by the memory that they keep.

    Of subsets with equal figures one is returned. The layer itself is one of the modules: full recompute.

    Raises
    ------
    InputError
        When a figure is negative, or the tree has more unbeaten subsets than `MOST_SUBSETS`.
    """
    return tuple(_subsets(layer, ""))


def _subsets(module: CandidateModule, above: str) -> list[Subset]:
    name = f"{above}{module.name}"
    given = (*module.input_bytes, *module.own_bytes, *module.own_ns)
    if min(given) < 0:
        raise InputError("must be at least 0", field=name, value=given)
    none = (0,) * len(module.own_bytes)
    found = [Subset(module.own_bytes, none, none, ())]
    for child in module.children:
        mine = _subsets(child, f"{name}.")
        if len(found) * len(mine) > 50 * MOST_SUBSETS:
            raise InputError(f"has more than {MOST_SUBSETS} unbeaten subsets of modules", field=name)
        found = _unbeaten(_both(left, right) for left in found for right in mine)
        if len(found) > MOST_SUBSETS:
            raise InputError(f"has more than {MOST_SUBSETS} unbeaten subsets of modules", field=name)
    whole = Subset(module.input_bytes, module.forward_ns, module.kept_bytes, (name,))
    return _unbeaten([*found, whole])


def _sum(*each: Figures) -> Figures:
    return tuple(map(sum, zip(*each, strict=True)))


def _both(left: Subset, right: Subset) -> Subset:
    return Subset(
        _sum(left.kept_bytes, right.kept_bytes),
        _sum(left.extra_ns, right.extra_ns),
        tuple(map(max, left.rerun_bytes, right.rerun_bytes)),
        left.modules + right.modules,
    )


def unbeaten(rows: Sequence[Sequence[float]]) -> list[int]:
    """Places of the rows that no other row is at most as large as in every figure; of equal ones the first."""
    found: list[int] = []
    for at in sorted(range(len(rows)), key=lambda one: tuple(rows[one])):
        # None that stands behind in this order is at most as large.
        if not any(all(map(le, rows[other], rows[at])) for other in found):
            found.append(at)
    return found


def _unbeaten(subsets: Iterable[Subset]) -> list[Subset]:
    every = sorted(subsets)
    return [every[at] for at in unbeaten([one.figures for one in every])]
