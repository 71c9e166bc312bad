"""Chunks one by one: their possible runs of layers, and their undominated recompute choices."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.plan import NONE
from taylor.pipeline.schedule import Schedule
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, LayerChoice, LayerKind, PipelineProblem
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import times_of

ROUNDING = 1e-13
"""Relative difference that sums of the same memory figures may have."""
COSTS = 8
"""Costs of a choice, `ChunkChoices.vectors`."""
BLOCK = 64
"""Rows of costs a block of comparisons with the undominated ones and with each other."""


@dataclass(frozen=True)
class ChunkChoices:
    """The undominated recompute and other choices of a chunk's layers.

    With recompute alone the time rises from one to the next and the memory falls. Other choices have no such order:
    none is as good as another in every time and memory.

    Parameters
    ----------
    extra : float64 [3, n]
        Time that each adds to forward, backward and weight gradient.
    activation : float64 [n]
        Activation memory a micro-batch.
    recompute : int [n, modes]
    states, host, host_states, lent : float64 [n]
        States on the device beyond those of the layers; host memory of a micro-batch, and of states; memory of a
        micro-batch on the lender.
    """

    extra: NDArray[np.float64]
    activation: NDArray[np.float64]
    recompute: NDArray[np.int64]
    states: NDArray[np.float64]
    host: NDArray[np.float64]
    host_states: NDArray[np.float64]
    lent: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.activation)

    def take(self, rows: NDArray[np.int64]) -> ChunkChoices:
        """Some of them."""
        return ChunkChoices(
            self.extra[:, rows],
            self.activation[rows],
            self.recompute[rows],
            self.states[rows],
            self.host[rows],
            self.host_states[rows],
            self.lent[rows],
        )

    def need(self, alive: NDArray[np.float64]) -> NDArray[np.float64]:
        """MiB on the device in addition to the layers' states with `alive` micro-batches, float64 [P, n]."""
        need: NDArray[np.float64] = alive[:, None] * self.activation + self.states
        return need

    def needs_elsewhere(self, problem: PipelineProblem, alive: NDArray[np.float64]) -> NDArray[np.float64]:
        """MiB with `alive` micro-batches of each of `PipelineProblem.limits_elsewhere`, float64 [limits, P, n]."""
        needs = []
        if problem.bounds_host:
            needs.append(alive[:, None] * self.host + self.host_states)
        if problem.bounds_lent:
            needs.append(alive[:, None] * self.lent)
        return np.array(needs).reshape(len(needs), len(alive), len(self))

    @property
    def vectors(self) -> NDArray[np.float64]:
        """All costs to minimise, float64 [8, n]."""
        return np.vstack([self.extra, self.activation, self.states, self.host, self.host_states, self.lent])


Starts = list[tuple[NDArray[np.float64], NDArray[np.int64]]]
"""By the mode of a chunk's last layer: costs of undominated choices, [n, 8], and their counts by mode, [n, modes]."""


@dataclass
class RecomputeOptions:
    """Cache of the choices of chunks of one problem.

    Parameters
    ----------
    found : dict
        By (card of the stage, layers of a chunk by kind, recompute given): the undominated choices.
    grown : dict
        By card, then by layers of a chunk by kind: the choices to extend by its next layer.
    stopper : Stopper
        Checked while choices are listed.
    """

    found: dict[tuple[int, tuple[int, ...], tuple[int, ...]], ChunkChoices] = field(default_factory=dict)
    grown: dict[int, dict[tuple[int, ...], Starts]] = field(default_factory=dict)
    stopper: Stopper = field(default_factory=lambda: Stopper(None))


@dataclass(frozen=True)
class ChunkType:
    """One way to fill a chunk: a contiguous run of layers, and the choices of them.

    Parameters
    ----------
    layers : tuple of int [K]
    first, last : int
        Least and greatest index in the model of the layer that the chunk starts with.
    choices : ChunkChoices
    """

    layers: tuple[int, ...]
    first: int
    last: int
    choices: ChunkChoices


def chunk_bounds(problem: PipelineProblem, schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Least and greatest layers of each chunk, int64 [V, S]; an empty range where they contradict."""
    shape = (problem.interleaves, problem.stages)
    lower, upper = np.zeros(shape, dtype=np.int64), np.full(shape, problem.layers, dtype=np.int64)
    for place, least in enumerate(problem.least_layers):
        lower[schedule.chunk_at(place)] = least
        if problem.is_beyond(place):
            upper[schedule.chunk_at(place)] = 0
    for (v, s), value in problem.max_layers.items():
        upper[v, s] = min(upper[v, s], value)
    for (v, s), value in problem.fixed_layers.items():
        lower[v, s], upper[v, s] = max(lower[v, s], value), min(upper[v, s], value)
    upper = np.minimum(upper, problem.layers - lower.sum() + lower)
    return lower, upper


def chunk_types(
    problem: PipelineProblem,
    v: int,
    s: int,
    place: int,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    options: RecomputeOptions,
) -> list[ChunkType]:
    """Every contiguous run of layers that a chunk may have, given the bounds of the chunks around it."""
    layers = problem.layers
    borders = [0, *itertools.accumulate(kind.count for kind in problem.placed_kinds)]
    fixed = tuple(problem.fixed_recompute.get((mode, v, s), -1) for mode in problem.searched_modes)
    found: dict[tuple[int, ...], list[int]] = {}
    after_low, after_high = int(low[-1] - low[place + 1]), int(high[-1] - high[place + 1])
    # The lightest layers first: least memory of `count` layers.
    light = np.cumsum(
        [0.0] + [mib for mib, n in sorted((k.least_mib, k.count) for k in problem.placed_kinds) for _ in range(n)]
    )
    for count in range(int(lower[v, s]), int(upper[v, s]) + 1):
        if problem.static_mib[s] + light[count] > problem.limit_mib[s] + MEMORY_TOLERANCE_MIB:
            break
        begin = max(int(low[place]), layers - count - after_high)
        until = min(int(high[place]), layers - count - after_low)
        for start in _distinct_starts(count, begin, until, borders):
            window = found.setdefault(_layers_between(start, start + count, borders), [start, start])
            window[1] = start
    result = []
    joined = any(kind.joined for kind in problem.placed_kinds)
    for counts, (first, last) in found.items():
        if joined and not problem.keeps_joined(counts):
            continue
        card = problem.first_alike[s]
        key = (card, counts, fixed)
        if key not in options.found:
            grown = options.grown.setdefault(card, {})
            options.found[key] = _recompute_options(problem.on_stage(s), counts, fixed, grown, options.stopper)
        if len(options.found[key]):
            result.append(ChunkType(counts, first, last, options.found[key]))
    return result


def _layers_between(start: int, end: int, borders: list[int]) -> tuple[int, ...]:
    """Layers by kind of the model's layers `start` ... `end` − 1."""
    layers = [0] * (len(borders) - 1)
    kind = bisect.bisect_right(borders, start) - 1
    while start < end:
        border = min(end, borders[kind + 1])
        layers[kind] = border - start
        start, kind = border, kind + 1
    return tuple(layers)


def _distinct_starts(count: int, begin: int, until: int, bounds: list[int]) -> list[int]:
    """Rising starts in [begin, until] that include every kind vector at its least and greatest start."""
    starts = {begin, until}
    for bound in bounds:
        starts.update(range(max(begin, bound - count), min(until, bound) + 1))
    return sorted(start for start in starts if begin <= start <= until)


def prefix_cost(
    problem: PipelineProblem,
    kinds: list[LayerKind],
    modes: Sequence[str],
    counts: Sequence[int] | NDArray[np.int16],
    taken: list[int],
) -> tuple[NDArray[np.float64], float]:
    """Times [3] that the modes of a chunk's first layers, in order, add, and the chunk's activation memory."""
    extra, memory = np.zeros(3), 0.0
    left = dict(zip(modes, taken, strict=True))
    for kind, count in zip(kinds, counts, strict=True):
        if not count:
            continue
        rest = int(count)
        for mode in modes:
            n = min(rest, left[mode])
            left[mode] -= n
            rest -= n
            extra += times_of(problem.choice_of(kind, mode)) * n
            memory += kind.activation_mib[mode] * n
        memory += kind.activation_mib[NONE] * rest
    return extra, memory


def _costs(problem: PipelineProblem, kinds: list[tuple[LayerKind, int]], taken: NDArray[np.int64]) -> ChunkChoices:
    """Costs of n choices: `taken` int64 [n, modes], the kinds with their layers."""
    counts = np.array([count for _, count in kinds], dtype=np.int64)
    ends = np.cumsum(taken, axis=1)
    starts = ends - taken

    def upto(costs: list[float]) -> NDArray[np.float64]:
        """Total cost of the first layers, for every number of them."""
        return np.concatenate([[0.0], np.cumsum(np.repeat(costs, counts))])

    def total(of: Callable[[LayerKind, str], float]) -> NDArray[np.float64]:
        """A cost summed over the layers by mode, float64 [n]."""
        result = np.zeros(len(taken))
        for index, mode in enumerate(problem.searched_modes):
            sums = upto([of(kind, mode) for kind, _ in kinds])
            result += sums[ends[:, index]] - sums[starts[:, index]]
        return result

    def of_choices(name: str) -> NDArray[np.float64]:
        """A cost of choices other than recompute."""
        if not problem.choices:
            return np.zeros(len(taken))
        return total(lambda kind, mode: getattr(problem.choice_of(kind, mode), name))

    rest = upto([kind.activation_mib[NONE] for kind, _ in kinds])
    memory = total(lambda kind, mode: kind.activation_mib[mode])
    memory += rest[-1] - (rest[ends[:, -1]] if taken.shape[1] else 0.0)
    backward = total(lambda kind, mode: problem.choice_of(kind, mode).backward)
    return ChunkChoices(
        np.array([of_choices("forward"), backward, of_choices("weight_gradient")]),
        memory,
        taken,
        of_choices("states_mib"),
        of_choices("host_mib"),
        of_choices("host_states_mib"),
        of_choices("lent_mib"),
    )


def _recompute_options(
    problem: PipelineProblem,
    layers: tuple[int, ...],
    fixed: tuple[int, ...],
    grown: dict[tuple[int, ...], Starts],
    stopper: Stopper,
) -> ChunkChoices:
    """The undominated choices of a chunk, by rising recompute time."""
    kinds = [(kind, count) for kind, count in zip(problem.placed_kinds, layers, strict=True) if count]
    modes = problem.searched_modes
    total = sum(layers)
    if problem.choices and not problem.uniform_recompute and max(fixed) < 0:
        return _undominated(problem, _costs(problem, kinds, _grown(problem, layers, grown, stopper)))
    choices: list[list[int]] = [[]]
    if problem.uniform_recompute:
        ((mode, most),) = problem.uniform_recompute  # the choices are solved one by one
        only = [min(most, total) * (of == mode) for of in modes]
        lent = [index for index, of in enumerate(modes) if of in problem.lending_choices]
        choices = [only]
        for index in lent:
            choices = [
                [*taken[:index], n, *taken[index + 1 :]] for taken in choices for n in range(total - sum(taken) + 1)
            ]
        choices = [one for one in choices if all(given in (-1, n) for given, n in zip(fixed, one, strict=True))]
    else:
        for given in fixed:
            counts = range(total + 1) if given < 0 else [given]
            choices = [[*taken, n] for taken in choices for n in counts if sum(taken) + n <= total]
    found = _costs(problem, kinds, np.array(choices, dtype=np.int64).reshape(len(choices), len(modes)))
    if problem.choices:
        return _undominated(problem, found)
    scored = sorted(zip(found.extra[1].tolist(), found.activation.tolist(), choices, range(len(choices)), strict=True))
    kept: list[int] = []
    last = 0.0
    for _, least, _, row in scored:
        if not kept or least < last * (1 - ROUNDING):
            kept.append(row)
            last = least
    return found.take(np.array(kept, dtype=np.int64))


def _grown(
    problem: PipelineProblem, layers: tuple[int, ...], known: dict[tuple[int, ...], Starts], stopper: Stopper
) -> NDArray[np.int64]:
    """Counts by mode, int64 [n, modes], that include every undominated choice of a chunk: grown layer by layer.

    The state is the cost of the layers so far and the mode of the last one, because modes come in order: a start is
    dropped where another one, in that mode or one before it, costs no more in anything. A chunk grows from its longest
    `known` prefix, and each layer can take seconds.
    """
    modes = problem.searched_modes
    M = len(modes)
    order = [kind for kind, count in enumerate(layers) for _ in range(count)]
    starts: Starts = [(np.zeros((1, COSTS)), np.zeros((1, M), dtype=np.int64))] + [
        (np.zeros((0, COSTS)), np.zeros((0, M), dtype=np.int64)) for _ in modes
    ]
    begun = [0] * len(layers)
    for kind in order:
        begun[kind] += 1
        key = tuple(begun)
        if key not in known:
            stopper.check()
            steps = [_vector(problem, problem.placed_kinds[kind], mode) for mode in (*modes, NONE)]
            known[key] = _with_layer(starts, steps, M)
        starts = known[key]
    return np.vstack([counts for _, counts in starts])


def _with_layer(starts: Starts, steps: list[NDArray[np.float64]], modes: int) -> Starts:
    """The choices with one more layer, which costs `steps` by its mode, float64 [8] each; the last is none."""
    grown: Starts = []
    known = np.zeros((0, COSTS))
    for index, step in enumerate(steps):
        costs = np.vstack([part[0] for part in starts[: index + 1]]) + step
        counts = np.vstack([part[1] for part in starts[: index + 1]])
        if index < modes:
            counts[:, index] += 1
        rows = undominated(np.vstack([known, costs]), len(known))
        grown.append((costs[rows], counts[rows]))
        known = np.vstack([known, costs[rows]])
    return grown


def _vector(problem: PipelineProblem, kind: LayerKind, mode: str) -> NDArray[np.float64]:
    """Costs of a layer under a mode: times, activation, states, memory elsewhere where it is bounded, float64 [8]."""
    one = LayerChoice() if mode == NONE else problem.choice_of(kind, mode)
    host = (one.host_mib, one.host_states_mib) if problem.bounds_host else (0.0, 0.0)
    lent = one.lent_mib if problem.bounds_lent else 0.0
    return np.array([*times_of(one), kind.activation_mib[mode], one.states_mib, *host, lent])


def _undominated(problem: PipelineProblem, found: ChunkChoices) -> ChunkChoices:
    """The undominated choices, by rising time of all their tasks."""
    limited = [*range(5), *([5, 6] if problem.bounds_host else []), *([7] if problem.bounds_lent else [])]
    rows = undominated(found.vectors[limited].T, 0)
    return found.take(rows[np.argsort(found.extra[:, rows].sum(axis=0), kind="stable")])


def undominated(vectors: NDArray[np.float64], known: int) -> NDArray[np.int64]:
    """Undominated rows after the first `known` ones, counted from there: no other row is as good in every column.

    One of rows equal up to rounding stays. The known ones always stay.
    """
    if not len(vectors):
        return np.zeros(0, dtype=np.int64)
    # Figures that differ by rounding alone become equal: else a row may come before one that dominates it.
    step = 10 * ROUNDING * np.abs(vectors).max(axis=0)
    costs = np.rint(vectors / np.where(step > 0, step, 1.0))
    kept = np.arange(known)
    order = known + np.lexsort(costs[known:].T[::-1])  # none dominates one before it, unless they are equal
    for start in range(0, len(order), BLOCK):
        rows = order[start : start + BLOCK]
        rows = rows[~_as_good(costs[kept], costs[rows]).any(axis=0)]
        rows = rows[~np.triu(_as_good(costs[rows], costs[rows]), 1).any(axis=0)]
        kept = np.concatenate([kept, rows])
    return np.sort(kept[known:]) - known


def _as_good(ones: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether each of some rows is at most each of others in every column, bool [ones, others]."""
    return np.asarray((ones[:, None] <= others[None]).all(axis=2))
