"""A step of a division of layers without the exact solver: the order in which choices of degrees come to it."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from taylor.blackbox.stage_problem import alive_chunks
from taylor.pipeline.plan import FULL, NONE, PipelinePlan, deal_kinds
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, LayerKind, PipelineProblem

_ROUNDING = 1e-9
MOST_GROWTH = 3
"""Layers that the last chunk of a stage may have beyond equal ones, and the first one lack."""


@dataclass(frozen=True)
class _Layer:
    """A layer of a kind: time where it runs again, both passes, states, and what it keeps of a micro-batch."""

    again: float
    both: float
    state: float
    kept: float
    thrifty: float

    @classmethod
    def of(cls, kind: LayerKind, problem: PipelineProblem, choice: str) -> _Layer:
        more = 0.0 if choice == NONE else kind.choices[choice].backward
        both = kind.forward * (1 + problem.backward_ratio) + more
        again = kind.forward * problem.recompute_ratio.get(FULL, 1.0)
        return cls(again, both, kind.layer_mib, kind.activation_mib[choice], kind.activation_mib[FULL])


@dataclass(frozen=True)
class _Model:
    """Layers of one kind, behind `count` of another one in front.

    Parameters
    ----------
    anywhere : bool
        Every chunk may hold those in front, as far as memory goes; else they all stand in the first one.
    """

    usual: _Layer
    front: _Layer
    count: int = 0
    anywhere: bool = False

    @classmethod
    def of(cls, problem: PipelineProblem, choice: str) -> _Model:
        front, usual = (_Layer.of(problem.kinds[at], problem, choice) for at in (0, -1))
        return cls(usual, front, problem.kinds[0].count if len(problem.kinds) > 1 else 0)

    @property
    def saves(self) -> bool:
        """No layer keeps more where it runs again."""
        return all(one.thrifty <= one.kept for one in (self.usual, self.front))

    def relaxed(self) -> _Model:
        """The same with those in front in every chunk, where they are lighter."""
        usual, front = self.usual, self.front
        least = {name: min(getattr(usual, name), getattr(front, name)) for name in ("state", "kept", "thrifty")}
        return replace(self, front=replace(front, **least), anywhere=True)

    def total(self, layers: int) -> float:
        """Both passes of all layers."""
        return self.usual.both * (layers - self.count) + self.front.both * self.count


class _Stages:
    """Work and memory of a stage by the layers of its chunks, int [numbers of layers, chunks].

    Parameters
    ----------
    first : bool
        The stage is the first one, whose first chunk has the layers in front.
    """

    def __init__(self, model: _Model, sizes: NDArray[np.int64], *, first: bool) -> None:
        self.model, self.sizes, usual, front = model, sizes, model.usual, model.front
        layers = sizes.sum(axis=1)
        self.work, self.states = layers * usual.both, layers * usual.state
        self.kept = sizes * usual.kept
        # By chunk: layers in front as the work counts them, and (`other`) as the memory does.
        self.front = np.zeros_like(sizes)
        if first:
            self.front[:, 0] = np.minimum(sizes[:, 0], model.count)
        self.other = np.minimum(sizes, model.count) if model.anywhere else self.front
        self.varies = bool(model.count) and (first or model.anywhere)
        if self.varies:
            self.work = self.work + self.front.sum(axis=1) * (front.both - usual.both)
            self.states = self.states + np.minimum(self.other.sum(axis=1), model.count) * (front.state - usual.state)
            self.kept = self.kept + self.other * (front.kept - usual.kept)

    def under(self, number: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Work of a micro-batch [numbers of layers] and what chunks keep [numbers of layers, chunks].

        Parameters
        ----------
        number : int
            The first layers of each chunk that run again whole.
        """
        usual, front = self.model.usual, self.model.front
        again = np.minimum(self.sizes, number)
        work = self.work + again.sum(axis=1) * usual.again
        kept = self.kept - again * (usual.kept - usual.thrifty)
        if self.varies:
            work += np.minimum(self.front, number).sum(axis=1) * (front.again - usual.again)
            kept -= np.minimum(self.other, number) * (front.kept - front.thrifty - usual.kept + usual.thrifty)
        return work, kept


@dataclass(frozen=True)
class QuickStep:
    """The most even division of layers that memory allows.

    Parameters
    ----------
    ms : float
        Its step; infinite where there is none. Where it is longer than the time to beat, any time that is longer too.
    plan : PipelinePlan or None
    """

    ms: float
    plan: PipelinePlan | None = None


def quick_step(problem: PipelineProblem, beat_ms: float = math.inf) -> QuickStep:
    """Divide layers without a solver.

    Stages take layer after layer, the one first whose work stays least, and rerun as few as their memory requires (or
    as many in every chunk as the launcher's files can say, whichever number is best). A step is the longest stage's
    work for all micro-batches and the others' once. The chunks of a stage are equally long or grow evenly from first to
    last, for most micro-batches are alive in the first; they follow each other without a pause. Where layers have
    choices by module, all of them are under one, and none runs again whole.

    Layers of another kind in front are taken to stand in the first chunk. Where nothing fits so, they may stand
    elsewhere: there is a step, without a plan, where all would fit if every chunk held as many of them as there are.

    Parameters
    ----------
    beat_ms : float
        Time to beat. The exact length of a longer step is of no interest.
    """
    ways = [(NONE, _numbers_again(problem)), *((choice, [0]) for choice in problem.choices)]
    models = [(choice, numbers, _Model.of(problem, choice)) for choice, numbers in ways]
    found = min(
        (_quick(problem, model, numbers, choice, beat_ms) for choice, numbers, model in models), key=lambda one: one.ms
    )
    if math.isfinite(found.ms) or len(problem.kinds) < 2:
        return found
    wide = [(choice, numbers, model.relaxed()) for choice, numbers, model in models]
    return QuickStep(min(_quick(problem, model, numbers, choice, beat_ms).ms for choice, numbers, model in wide))


def _quick(
    problem: PipelineProblem, model: _Model, numbers: Sequence[int], choice: str, beat_ms: float = math.inf
) -> QuickStep:
    """As `quick_step`, with layers under a choice but for those that run again whole."""
    stages, chunks = problem.stages, problem.interleaves
    if problem.layers < chunks * problem.min_layers:
        return QuickStep(math.inf)
    space = _Space(problem, model)
    if model.saves and not space.suffices(numbers[-1]):  # What fits under a number fits under all greater ones.
        return QuickStep(math.inf)
    unit, lags = problem.unit_ms or 1.0, 2 * (stages - 1) * problem.lag + max(problem.tail, default=0.0)
    beat = beat_ms / unit - lags
    least = space.least_steps(numbers, beat)
    if model.saves:
        near = bisect.bisect_right(least, beat)
        if near < len(least) and not (near and space.suffices(numbers[near - 1])):
            return QuickStep(float((least[near] + lags) * unit))
        if problem.uniform_recompute:
            first = bisect.bisect_left(numbers[:near], True, key=space.suffices)
            numbers, least = numbers[first:near], least[first:near]
    free = _Tried(space.enough.shape)
    best, found = math.inf, None
    for number, bound in zip(numbers, least, strict=True):
        if bound >= best:
            break
        # Where every stage has a number of its own, it takes the least that does.
        tried = _Tried(space.enough.shape) if problem.uniform_recompute else free
        space.take(tried, number)
        step, taken = _even_step(tried.work, space.further, problem)
        if step < best:
            every = np.arange(stages)
            chosen = np.array([space.shapes[tried.shape[n, s]][n] for s, n in enumerate(taken)])
            best, found = step, (chosen, tried.number[taken, every])
    if found is None:
        return QuickStep(math.inf)
    return QuickStep(float((best + lags) * unit), _plan(problem, *found, choice))


class _Tried:
    """The least work of each number of layers, by stage, and under which shape and number of layers that run again."""

    def __init__(self, of: tuple[int, ...]) -> None:
        self.work = np.full(of, math.inf)
        self.shape, self.number = np.zeros(of, dtype=np.int64), np.zeros(of, dtype=np.int64)

    def take(self, work: NDArray[np.float64], shape: int, number: int) -> None:
        """Take the entries where the work is less, float64 [n]."""
        less = work < self.work
        self.work = np.where(less, work, self.work)
        self.shape, self.number = np.where(less, shape, self.shape), np.where(less, number, self.number)


class _Space:
    """Divisions of a problem's layers: every number of layers of a stage in every shape.

    Attributes
    ----------
    shapes : list of int [numbers of layers, chunks]
    enough : bool [numbers of layers, stages]
        Numbers of layers that a stage may hold by the optimizer's step.
    ends : float [stages]
        Both passes of the embedding and the head.
    further : int
        Layers beyond the least number of each stage.
    """

    def __init__(self, problem: PipelineProblem, model: _Model) -> None:
        self.problem, self.model = problem, model
        stages, chunks = problem.stages, problem.interleaves
        first = chunks * problem.min_layers
        counts = np.arange(first, problem.layers + 1)[:, None]
        self.shapes = _shapes(counts, problem)
        self._sides = [(_Stages(model, one, first=True), _Stages(model, one, first=False)) for one in self.shapes]
        self._alive = alive_chunks(stages, chunks, problem.micro_batches)
        self._free_mib = np.array(problem.limit_mib) - np.array(problem.static_mib) + MEMORY_TOLERANCE_MIB
        most = [sum(problem.max_layers.get((v, s), problem.layers) for v in range(chunks)) for s in range(stages)]
        self.enough = counts <= np.array(most)
        self.ends = np.zeros(stages)
        self.ends[0] += problem.embedding_forward * (1 + problem.backward_ratio)
        self.ends[-1] += problem.head_forward * (1 + problem.backward_ratio)
        self.further = problem.layers - stages * first

    def least_steps(self, numbers: Sequence[int], beat: float) -> list[float]:
        """A lower bound of the steps up to `beat`, for each number of layers of each chunk that run again.

        All stages take as long as each other. No stage has more layers than fill `beat`; of those that it may have, a
        fraction runs again, which is least for some number of layers in some shape. Where every stage has a number of
        its own, one of its chunks runs that many again at least, or a smaller number says the same.
        """
        problem, model = self.problem, self.model
        stages, chunks, micro = problem.stages, problem.interleaves, problem.micro_batches
        again = np.array(numbers, dtype=np.float64)
        if problem.uniform_recompute:
            first = chunks * problem.min_layers
            most = max(first, problem.layers - (stages - 1) * first)
            shortest = min(model.usual.both, model.front.both) * micro
            if math.isfinite(beat) and shortest > 0:
                most = max(first, min(most, int(beat / shortest * (1 + _ROUNDING))))
            counts = np.arange(first, most + 1)
            run_again = np.minimum(np.stack(self.shapes)[:, : len(counts), :, None], numbers).sum(axis=2)
            again = (run_again / np.maximum(counts, 1)[:, None]).min(axis=(0, 1)) * problem.layers
        once = float(self.ends.sum()) + model.total(problem.layers)
        work = once + min(model.usual.again, model.front.again) * again
        steps: list[float] = ((micro - 1 / chunks) * work / stages + work / chunks).tolist()
        return steps

    def take(self, tried: _Tried, number: int) -> None:
        """Take the shapes that fit where the first `number` layers of each chunk run again."""
        alive = np.concatenate(self._alive).T
        begins = np.cumsum([0, *map(len, self._alive[:-1])])
        for at, (front, others) in enumerate(self._sides):
            work, kept = others.under(number)
            needed = np.maximum.reduceat(kept @ alive, begins, axis=1) + others.states[:, None]
            work = work[:, None] + self.ends
            if self.model.count:
                own, kept = front.under(number)
                work[:, 0] = own + self.ends[0]
                needed[:, 0] = (kept @ self._alive[0].T).max(axis=1) + front.states
            fits = self.enough & (needed <= self._free_mib)
            tried.take(np.where(fits, work, math.inf), at, number)

    def suffices(self, number: int) -> bool:
        """Return whether there is a division where the first `number` layers of each chunk run again."""
        tried = _Tried(self.enough.shape)
        self.take(tried, number)
        return math.isfinite(_even_step(tried.work, self.further, self.problem)[0])


def _shapes(counts: NDArray[np.int64], problem: PipelineProblem) -> list[NDArray[np.int64]]:
    """Layers of the chunks of a stage, int [numbers of layers, chunks] each, equal ones first."""
    chunks = problem.interleaves
    equal = counts // chunks + (np.arange(chunks) >= chunks - counts % chunks)
    shapes = [equal]
    for more in range(1, MOST_GROWTH + 1) if chunks > 1 else ():
        # As many layers fewer in the first chunk as more in the last one, in even steps between them.
        slope = np.rint(more * (2 * np.arange(chunks) / (chunks - 1) - 1)).astype(np.int64)
        slope[-1] -= slope.sum()
        grown = equal + slope
        shapes.append(np.where(grown.min(axis=1, keepdims=True) >= problem.min_layers, grown, equal))
    return shapes


def _numbers_again(problem: PipelineProblem) -> list[int]:
    """Possible numbers of layers that run again in every chunk, in order."""
    longest = problem.layers - (problem.interleaves * problem.stages - 1) * problem.min_layers
    if not problem.uniform_recompute:
        return list(range(longest + 1))
    return sorted({min(count, longest) for mode, count in problem.uniform_recompute if mode == FULL} | {0})


def _even_step(work: NDArray[np.float64], further: int, problem: PipelineProblem) -> tuple[float, NDArray[np.int64]]:
    """A step whose stages take `further` layers beyond their least number, and how many each of them takes.

    `work` is float64 [layers, stages] of one micro-batch.
    """
    order = np.argsort(work[1:], axis=None, kind="stable")[:further]
    taken = np.bincount(order % problem.stages, minlength=problem.stages)
    chosen = work[taken, np.arange(problem.stages)]
    if further > work[1:].size or not np.isfinite(chosen).all():
        return math.inf, taken
    longest = float(chosen.max())
    return problem.micro_batches * longest + (float(chosen.sum()) - longest) / problem.interleaves, taken


def _plan(problem: PipelineProblem, sizes: NDArray[np.int64], again: NDArray[np.int64], choice: str) -> PipelinePlan:
    """The plan of `sizes` layers, int [stages, chunks], of which each chunk of a stage runs `again[stage]` again."""
    in_order = [int(each) for each in sizes.T.reshape(-1)]
    dealt = deal_kinds({kind.name: kind.count for kind in problem.kinds}, in_order, problem.stages, v_shape=False)
    grid = tuple(
        tuple(min(int(again[stage]), int(sizes[stage, chunk])) for stage in range(problem.stages))
        for chunk in range(problem.interleaves)
    )
    if choice != NONE:
        return PipelinePlan(dealt, {choice: tuple(tuple(map(int, row)) for row in sizes.T)})
    return PipelinePlan(dealt, {FULL: grid})
