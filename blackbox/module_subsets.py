"""Modules of a layer that run again in the backward pass: the Pareto-optimal subsets, exactly.

A module that runs again keeps its input alone and costs its forward pass once more; what lies in it is then settled,
so a subset names no module inside another: a knapsack of several choices over the tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from taylor.base.errors import InputError

MOST_SUBSETS = 200_000
"""Subsets that may be unbeaten at once before a tree is refused; trees of one layer have some hundreds."""


@dataclass(frozen=True)
class CandidateModule:
    """A module of a layer, as a profile shows it.

    Parameters
    ----------
    input_bytes : int
        Of the tensors that it is given.
    own_bytes : int
        Memory that it keeps for the backward pass, without that of its children.
    own_ns : int
        Forward time of itself, its children's left out.
    """

    name: str
    input_bytes: int
    own_bytes: int
    own_ns: int
    children: tuple[CandidateModule, ...] = ()

    @property
    def kept_bytes(self) -> int:
        """Memory that it and all in it keep for the backward pass."""
        return self.own_bytes + sum(child.kept_bytes for child in self.children)

    @property
    def forward_ns(self) -> int:
        """Forward time of it and all in it."""
        return self.own_ns + sum(child.forward_ns for child in self.children)


@dataclass(frozen=True, order=True)
class Subset:
    """Modules that run again, and what that means for a layer and micro-batch.

    Parameters
    ----------
    kept_bytes : int
        Memory kept between forward and backward.
    extra_ns : int
        Forward time that is run once more.
    rerun_bytes : int
        Most that one module's second run brings back at once, beyond its input.
    modules : tuple of str
        Their names, each with those above it: ``layer.mlp.act``.
    """

    kept_bytes: int
    extra_ns: int
    rerun_bytes: int
    modules: tuple[str, ...]

    def beats(self, other: Subset) -> bool:
        """Return whether it is no worse in any of its figures (equal ones beat each other)."""
        return (
            self.kept_bytes <= other.kept_bytes
            and self.extra_ns <= other.extra_ns
            and self.rerun_bytes <= other.rerun_bytes
        )


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
    if min(module.input_bytes, module.own_bytes, module.own_ns) < 0:
        raise InputError("must be at least 0", field=name, value=(module.input_bytes, module.own_bytes, module.own_ns))
    found = [Subset(module.own_bytes, 0, 0, ())]
    for child in module.children:
        mine = _subsets(child, f"{name}.")
        if len(found) * len(mine) > 50 * MOST_SUBSETS:
            raise InputError(f"has more than {MOST_SUBSETS} unbeaten subsets of modules", field=name)
        found = _unbeaten(_both(left, right) for left in found for right in mine)
        if len(found) > MOST_SUBSETS:
            raise InputError(f"has more than {MOST_SUBSETS} unbeaten subsets of modules", field=name)
    whole = Subset(module.input_bytes, module.forward_ns, module.kept_bytes, (name,))
    return _unbeaten([*found, whole])


def _both(left: Subset, right: Subset) -> Subset:
    return Subset(
        left.kept_bytes + right.kept_bytes,
        left.extra_ns + right.extra_ns,
        max(left.rerun_bytes, right.rerun_bytes),
        left.modules + right.modules,
    )


def _unbeaten(subsets: Iterable[Subset]) -> list[Subset]:
    """Those that no other one beats: in the order of what they keep, a stair of time and of the second run."""
    found: list[Subset] = []
    stair: list[Subset] = []
    for one in sorted(subsets):
        if any(other.beats(one) for other in stair):
            continue
        # All later ones keep at least as much: of the earlier only time and second run still matter.
        stair = [other for other in stair if other.extra_ns < one.extra_ns or other.rerun_bytes < one.rerun_bytes]
        stair.append(one)
        found.append(one)
    return found
