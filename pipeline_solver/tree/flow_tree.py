"""Branch and cut over the phase-flow LP: caps on the chunks of a virtual stage first, then phases at borders.

The LP mixes long and short chunks, so that each looks average. Plans cannot: either no chunk of a virtual stage is
longer than a cap, or the last one that is longer lies on some stage. Both sides prove far more than their average. With
the caps decided, what remains mixed are the phases at borders, and at last the recompute in a chunk.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Callable, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.columns.positions import State
from taylor.pipeline_solver.model.params import BoundsParams
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.tree.phase_flow import PhaseFlow

WHOLE = 1e-6
"""Distance from 0 or 1 within which a choice of the LP is decided."""

SAME_WORK = 1e-6
"""Difference of forward times that counts as none."""

Mask = NDArray[np.bool_]


class Node(NamedTuple):
    """Choices that remain at a node, bool [n], and a lower bound of its plans."""

    bound: float
    number: int
    allowed: Mask


class Branching(NamedTuple):
    """A disjunction: every plan of the node lies in one of its children.

    Parameters
    ----------
    children : list of bool [n]
    tried : list of int
        Children that are likely to have the least bound.
    late : bool
        Tried only where earlier ones close little.
    """

    children: list[Mask]
    tried: list[int]
    late: bool = False


class FlowTree:
    """The tree of one phase-flow LP.

    Parameters
    ----------
    flow : PhaseFlow
        The LP, with its first cuts.
    closing_gap : float
        Relative gap at which a node is closed.
    offer : callable
        Called with the step time and the state of each plan that an LP finds; returns the best known step time.
    """

    def __init__(
        self, flow: PhaseFlow, params: BoundsParams, closing_gap: float, offer: Callable[[State | None], float]
    ) -> None:
        self.flow, self.own, self.closing_gap, self.offer = flow, params, closing_gap, offer
        self.numbers = itertools.count()
        self.open: list[Node] = []
        self.nodes = 0
        self.began = False
        line, choices = flow.line, flow.choices
        self.virtual, self.stage = line.interleave[choices.chunk], line.stage[choices.chunk]
        self.level = np.round(choices.forward / SAME_WORK).astype(np.int64)

    @property
    def cutoff(self) -> float:
        """Lower bound at which a node is closed."""
        return min(self.flow.cutoff, self.offer(None)) * (1.0 - self.closing_gap)

    def lower_bound(self) -> float:
        """Step time below which there is no plan, as far as the tree has come."""
        if not self.began:
            return 0.0
        return min(self.open[0].bound, self.cutoff) if self.open else self.cutoff

    def search(self, stopper: Stopper, nodes: int, until: Callable[[], bool], note: Callable[[], None]) -> None:
        """Search `nodes` nodes, the least bound first, as long as `until` is false."""
        if not self.began:
            bound, point, _, _ = self._bounded(
                stopper, np.ones(self.flow.count, dtype=np.bool_), self.own.flow_root_lps
            )
            self.began = True
            if bound < self.cutoff:
                heapq.heappush(self.open, Node(bound, next(self.numbers), self._not_excluded(bound)))
            note()
        for _ in range(nodes):
            if not self.open or self.open[0].bound >= self.cutoff or until():
                break
            stopper.check()
            self._branch(stopper, self.open[0])
            note()

    def _bounded(
        self, stopper: Stopper, allowed: Mask, rounds: int, stall: float = 1e-4
    ) -> tuple[float, NDArray[np.float64] | None, NDArray[np.float64], float]:
        self.flow.allow(allowed)
        self._reduced = np.zeros(self.flow.count)
        found = self.flow.bound(stopper, rounds, stall, self.cutoff)
        self._reduced = found[2]
        self._allowed = allowed
        return found

    def _not_excluded(self, bound: float) -> Mask:
        """The last LP's choices without those that its reduced costs exclude."""
        excluded = bound + self._reduced > self.cutoff + 1e-9 * abs(bound)
        allowed: Mask = self._allowed & ~excluded
        return allowed

    def _branch(self, stopper: Stopper, node: Node) -> None:
        """Replace the node by its children; the node stays open when time runs out meanwhile."""
        self.nodes += 1
        bound, point, _, length = self._bounded(stopper, node.allowed, self.own.flow_node_lps)
        bound = max(bound, node.bound)
        children: list[Node] = []
        if point is not None and bound < self.cutoff:
            allowed = self._not_excluded(bound)
            weights = point[: self.flow.count]
            if ((weights < WHOLE) | (weights > 1 - WHOLE)).all():
                bound = self._whole(stopper, allowed, weights, bound)
            branching = None if bound >= self.cutoff else self._chosen(stopper, allowed, weights, bound)
            if branching is not None:
                for mask in branching.children:
                    value, _, _, _ = self._bounded(stopper, mask, self.own.flow_child_lps)
                    value = max(value, bound)
                    if value < self.cutoff:
                        children.append(Node(value, next(self.numbers), self._not_excluded(value)))
            elif bound < self.cutoff:
                # Nothing remains to split: the plan found is the best one here, up to the LP's accuracy.
                children.append(Node(self.cutoff, next(self.numbers), allowed))
        heapq.heappop(self.open)
        for child in children:
            heapq.heappush(self.open, child)

    def _whole(self, stopper: Stopper, allowed: Mask, weights: NDArray[np.float64], bound: float) -> float:
        """Offer the plan of whole weights; the bound of the LP cut to its end."""
        chosen = np.nonzero(weights > 0.5)[0]
        choices = self.flow.choices
        chosen = chosen[np.argsort(choices.chunk[chosen])]
        begin = np.concatenate([[0], np.cumsum(choices.length[chosen])]).astype(np.int64)
        taken = choices.taken[chosen][None, :].copy()
        self.offer(State(begin, taken[: len(self.flow.problem.searched_modes)]))
        exact, _, _, _ = self._bounded(stopper, allowed, self.own.flow_root_lps, 1e-9)
        return max(bound, exact)

    def _chosen(self, stopper: Stopper, allowed: Mask, weights: NDArray[np.float64], bound: float) -> Branching | None:
        """The disjunction whose worst tried child has the greatest bound; None where nothing can be split."""
        best, best_score = None, -np.inf
        for branching in self._candidates(allowed, weights):
            if branching.late and best_score > bound + self.own.flow_gain * (self.cutoff - bound):
                break
            score = np.inf
            for number in branching.tried:
                value, _, _, _ = self._bounded(stopper, branching.children[number], self.own.flow_tried_lps)
                score = min(score, max(value, bound))
                if score <= best_score:
                    break
            if score > best_score:
                best, best_score = branching, score
            if best_score >= self.cutoff:
                break
        return best

    def _candidates(self, allowed: Mask, weights: NDArray[np.float64]) -> list[Branching]:
        """Caps of each virtual stage, phases of the most mixed chunks, and where neither remains any split at all."""
        found = [one for v in range(self.flow.line.place.shape[0]) for one in self._caps(v, allowed, weights)]
        return [*found, *self._phases(allowed, weights)] or self._any_split(allowed, weights)

    def _caps(self, v: int, allowed: Mask, weights: NDArray[np.float64]) -> list[Branching]:
        """No chunk of virtual stage v above a cap, or the last one above it on each stage."""
        members = np.nonzero(allowed & (self.virtual == v))[0]
        levels = np.unique(self.level[members])
        if len(levels) < 2:
            return []
        stages = self.flow.problem.stages
        average = np.bincount(self.stage[members], weights[members] * self.level[members], minlength=stages).max()
        at = int(np.searchsorted(levels, average - 1))
        found = []
        for cap in {max(0, min(at + shift, len(levels) - 2)) for shift in (-1, 0)}:
            above = allowed & (self.virtual == v) & (self.level > levels[cap])
            within = allowed & (self.virtual == v) & (self.level <= levels[cap])
            children = [allowed & ~above]
            mass = []
            for s in range(stages - 1, -1, -1):
                here = self.stage == s
                if not (above & here).any():
                    continue
                children.append(allowed & ~(within & here) & ~(above & (self.stage > s)))
                mass.append(weights[above & here].sum())
            if any((child == allowed).all() for child in children):
                continue  # decided already
            heaviest = 1 + int(np.argmax(mass))
            found.append(Branching(children, [heaviest, 0]))
        return found

    def _phases(self, allowed: Mask, weights: NDArray[np.float64]) -> list[Branching]:
        """The phases in which a chunk may begin, of the most mixed chunks first."""
        choices, period = self.flow.choices, self.flow.period
        if period > 16:
            return []
        table = np.zeros((self.flow.cells, period))
        np.add.at(table, (choices.chunk, choices.phase), weights)
        mixed = (1.0 - table.max(axis=1)) * (np.bincount(choices.chunk[allowed], minlength=len(table)) > 0)
        found = []
        for k in np.argsort(-mixed, kind="stable")[: self.own.flow_phases]:
            if mixed[k] < WHOLE:
                break
            here = choices.chunk == k
            children = [
                allowed & ~(here & (choices.phase != q))
                for q in range(period)
                if (allowed & here & (choices.phase == q)).any()
            ]
            order = np.argsort([-weights[here & child].sum() for child in children], kind="stable")
            found.append(Branching(children, [int(order[0]), int(order[1])], late=True))
        return found

    def _any_split(self, allowed: Mask, weights: NDArray[np.float64]) -> list[Branching]:
        """The choices of the most mixed chunk, in two halves by length and recompute."""
        choices = self.flow.choices
        most = np.zeros(self.flow.cells)
        np.maximum.at(most, choices.chunk, weights)
        k = int(np.argmin(most))
        mine = np.nonzero(allowed & (choices.chunk == k))[0]
        if len(mine) < 2:
            several = np.bincount(choices.chunk[allowed], minlength=self.flow.cells)
            k = int(np.argmax(several))
            mine = np.nonzero(allowed & (choices.chunk == k))[0]
            if len(mine) < 2:
                return []
        mine = mine[np.lexsort((choices.taken[mine], choices.length[mine]))]
        share = np.cumsum(weights[mine])
        half = min(len(mine) - 1, max(1, int(np.searchsorted(share, 0.5)) + 1))
        children = [allowed.copy(), allowed.copy()]
        children[0][mine[half:]] = False
        children[1][mine[:half]] = False
        return [Branching(children, [0, 1])]
