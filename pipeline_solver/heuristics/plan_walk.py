"""Annealing on plans: borders between chunks and recomputed layers, for any number of virtual stages.

Where a stage has too many columns to list, or before they are listed, a plan is a row of positions in the layer
sequence and the recomputed layers of each chunk. Prefix sums over the sequence give the cost of a chunk, so a move
costs little more than the longest path after it, and known path cuts reject most moves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.plan import NONE, PipelinePlan
from taylor.pipeline.schedule import Schedule
from taylor.pipeline_solver.columns.chunk_types import chunk_bounds
from taylor.pipeline_solver.columns.positions import State, plan_of_state
from taylor.pipeline_solver.columns.stage_tuples import FEW_KINDS, fixed_parts
from taylor.pipeline_solver.heuristics.annealing import Tasks
from taylor.pipeline_solver.heuristics.walk_kernels import FAR, STAGE, fit_all, task_durations, walk
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, HeuristicsParams
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.durations import has_weight_gradient, pinned_times, schedule_of, times_of
from taylor.pipeline_solver.timing.event_graph import EventGraph, partner_table


class Stack(NamedTuple):
    """Costs of runs of layers: sums over the layers before each position 0 ... L.

    Parameters
    ----------
    forward : float64 [cards, L + 1]
        Forward time by card (`Line.card`).
    states : float64 [L + 1]
        MiB of weights, gradients and optimizer.
    kept : float64 [modes + 1, L + 1]
        Activations of a micro-batch, MiB; without recompute first, then by searched mode.
    extra : float64 [cards, modes, L + 1]
        Recompute time by card; for other choices the time that they add to all tasks together.
    exposed : float64 [2, L + 1]
        Under a pairing: additional time of a forward, and of a backward, for unpaired layers.
    """

    forward: NDArray[np.float64]
    states: NDArray[np.float64]
    kept: NDArray[np.float64]
    extra: NDArray[np.float64]
    exposed: NDArray[np.float64]


class Line(NamedTuple):
    """The chunks in model order, and the stages that they lie on.

    Parameters
    ----------
    stage, interleave : int64 [C]
    place : int64 [V, S]
        Number of each chunk in model order.
    lower, upper : int64 [C]
        Bounds on the layers of a chunk.
    fixed : int64 [modes, C]
        Given recomputed layers; -1 leaves them free.
    uniform : int64 [2]
        Mode and count of the one recompute choice for all chunks; mode -1 where there is none.
    besides : float64 [C]
        Forward time apart from the layers.
    alive : float64 [S, P, V]
        Alive micro-batches by virtual stage; padded with rows of zeros.
    free : float64 [S, P]
        MiB available for layers.
    card : int64 [S]
        Card of each stage, where cards differ in time ratios.
    shares : float64 [cards, 3]
        Times of a piece of the sequence as fractions of a chunk's forward time: forward, input gradient, weight
        gradient.
    splits : float
        Pieces of a sequence.
    pace : float64 [S]
        Factor on the times of a stage's tasks.
    until : float64 [7]
        A random number below it, and not below the one before, selects a move of this kind; `walk_kernels` names them.
    beside : int64 [V, P]
        Under a pairing: `event_graph.partner_table`.
    positions : int
        `Pairing.positions`; -1 where it is None.
    pinned_times : float64 [2, C]
        Times of pinned kinds in a chunk's forward and backward (`pinned_times`).
    strays : float64 [L + 1]
        `PipelineProblem.border_strays`, which count as MiB over a stage's limit.
    unit : int
        Layers that most moves shift: more than 1 where chunks may not begin with any layer.
    """

    stage: NDArray[np.int64]
    interleave: NDArray[np.int64]
    place: NDArray[np.int64]
    lower: NDArray[np.int64]
    upper: NDArray[np.int64]
    fixed: NDArray[np.int64]
    uniform: NDArray[np.int64]
    besides: NDArray[np.float64]
    alive: NDArray[np.float64]
    free: NDArray[np.float64]
    card: NDArray[np.int64]
    shares: NDArray[np.float64]
    splits: float
    pace: NDArray[np.float64]
    until: NDArray[np.float64]
    beside: NDArray[np.int64]
    positions: int
    pinned_times: NDArray[np.float64]
    strays: NDArray[np.float64]
    unit: int


class Cuts(NamedTuple):
    """Path cuts found.

    Parameters
    ----------
    counts : float64 [classes, capacity]
        Tails left out.
    constant : float64 [capacity]
    refused : int64 [capacity]
        Number of the last move that a cut rejected.
    known : int64 [2]
        Number of cuts, and of moves so far.
    """

    counts: NDArray[np.float64]
    constant: NDArray[np.float64]
    refused: NDArray[np.int64]
    known: NDArray[np.int64]


def alternates(problem: PipelineProblem, params: HeuristicsParams) -> bool:
    """Return whether the model has many short runs of layers of a kind."""
    runs = len(problem.placed_kinds)
    return runs > FEW_KINDS and problem.layers < params.short_run * runs


class PlanWalk:
    """A problem's plans as borders and recomputed layers, and the local search over them."""

    def __init__(
        self, problem: PipelineProblem, graph: EventGraph, params: HeuristicsParams = DEFAULT_PARAMS.heuristics
    ) -> None:
        self.problem, self.graph = problem, graph
        tails = np.array(problem.tail or [0.0] * problem.stages, dtype=np.float64)
        self.tasks = Tasks(graph.before, graph.needed, graph.task_class, graph.edge_lag, graph.last, tails)
        self.stack, self.line = _stack(problem), _line(problem, params)
        classes, most = graph.classes - problem.stages, params.local_cuts
        whole = np.int64
        self.cuts = Cuts(np.zeros((classes, most)), np.zeros(most), np.zeros(most, whole), np.zeros(2, whole))

    def state_of(self, plan: PipelinePlan) -> State:
        """A plan as numbers."""
        problem, line = self.problem, self.line
        placed = problem.placed_kinds
        layers = sum((np.array(plan.layers[kind.name]) for kind in placed), start=np.zeros(line.place.shape, dtype=int))
        sizes = layers[line.interleave, line.stage]
        taken = [
            np.array(plan.recompute[mode])[line.interleave, line.stage] if mode in plan.recompute else 0 * sizes
            for mode in problem.searched_modes
        ]
        begin = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return State(begin, np.array(taken, dtype=np.int64).reshape(len(taken), len(sizes)))

    def plan_of(self, state: State) -> PipelinePlan:
        """The plan of a state."""
        return plan_of_state(self.problem, state)

    def even(self, by_work: bool) -> State | None:
        """Chunks of even work (or of even layer counts) without recompute; None where the bounds contradict."""
        line, L = self.line, self.problem.layers
        C = len(line.stage)
        weight = self.stack.forward[0] if by_work else np.arange(L + 1, dtype=float)
        besides = line.besides if by_work else np.zeros(C)
        speed = 1.0 / line.pace[line.stage] if by_work else np.ones(C)
        targets = (weight[-1] + besides.sum()) * np.cumsum(speed) / speed.sum()
        rest_low = np.concatenate([np.cumsum(line.lower[::-1])[::-1], [0]])
        rest_high = np.concatenate([np.cumsum(line.upper[::-1])[::-1], [0]])
        begin = np.zeros(C + 1, dtype=np.int64)
        before = 0.0
        for k in range(C):
            before += besides[k]
            wanted = targets[k] - before
            at = int(np.searchsorted(weight, wanted))
            if at > 0 and (at > L or weight[at] - wanted > wanted - weight[at - 1]):
                at -= 1
            low = max(begin[k] + line.lower[k], L - rest_high[k + 1])
            high = min(begin[k] + line.upper[k], L - rest_low[k + 1])
            if low > high:
                return None
            begin[k + 1] = self.near_border(min(max(at, low), high), low, high)
        if line.strays[begin].any():
            return None
        return State(begin, np.zeros((self.line.fixed.shape[0], C), dtype=np.int64))

    def near_border(self, place: int, low: int, high: int) -> int:
        """The position nearest to one, from `low` to `high`, at which a chunk may begin; that one where none may."""
        if not self.line.strays[place]:
            return place
        allowed = low + np.flatnonzero(self.line.strays[low : high + 1] == 0)
        return int(allowed[np.abs(allowed - place).argmin()]) if len(allowed) else place

    def fitted(self, state: State) -> tuple[float, float, State]:
        """The state with the least recompute that fits: MiB over the limits, step time, state."""
        fitted = state.copy()
        over = fit_all(self.stack, self.line, fitted.begin, fitted.taken)
        return float(over), self.time_of(fitted), fitted

    def time_of(self, state: State) -> float:
        """Step time of a state."""
        durations = task_durations(self.stack, self.line, self.tasks.tails, state.begin, state.taken)
        return self.graph.longest_path(durations)

    def run(self, state: State, steps: int, seed: int, hot: float, cold: float) -> tuple[float, float, State, State]:
        """Search from a state whose recompute fits as far as possible.

        Parameters
        ----------
        hot, cold : float
            First and last temperature, in body-layer forward times.

        Returns
        -------
        (float, float, State, State)
            MiB over the limits and step time of the best state (the former first), that state, and the last one.
        """
        best, last = state.copy(), state.copy()
        over, time = walk(self.tasks, self.stack, self.line, self.cuts, best, last, steps, seed, hot, cold)
        return float(over), float(time), best, last


def _stack(problem: PipelineProblem) -> Stack:
    kinds, modes = problem.placed_kinds, problem.searched_modes

    def sums(values: list[float]) -> NDArray[np.float64]:
        return np.concatenate([[0.0], np.cumsum(np.repeat(values, [kind.count for kind in kinds]))])

    kept = [sums([kind.activation_mib[mode] for kind in kinds]) for mode in (NONE, *modes)]
    cards = [problem.on_stage(first) for first in sorted(set(problem.first_alike))]
    extra = [
        [sums([float(times_of(one.choice_of(kind, mode)).sum()) for kind in one.placed_kinds]) for mode in modes]
        for one in cards
    ]
    return Stack(
        np.array([sums([kind.forward for kind in one.placed_kinds]) for one in cards]),
        sums([kind.layer_mib for kind in kinds]),
        np.array(kept),
        np.array(extra).reshape(len(cards), len(modes), problem.layers + 1),
        np.zeros((2, problem.layers + 1))
        if problem.pairing is None
        else np.array([sums([kind.exposed[direction] for kind in kinds]) for direction in (0, 1)]),
    )


def _line(problem: PipelineProblem, params: HeuristicsParams) -> Line:
    schedule = schedule_of(problem)
    S, V, modes = problem.stages, problem.interleaves, problem.searched_modes
    chunks = [schedule.chunk_at(k) for k in range(schedule.chunks)]
    interleave, stage = (np.array(side, dtype=np.int64) for side in zip(*chunks, strict=True))
    place = np.zeros((V, S), dtype=np.int64)
    place[interleave, stage] = np.arange(len(chunks))
    lower, upper = (bound[interleave, stage] for bound in chunk_bounds(problem, schedule))
    vectors = alive_vectors(schedule)
    most = max(map(len, vectors))
    alive, free = np.zeros((S, most, V)), np.full((S, most), np.inf)
    besides = np.zeros(len(chunks))
    for s in range(S):
        stage_free, forward = fixed_parts(problem, schedule, s, vectors[s])
        alive[s, : len(vectors[s])] = vectors[s]
        free[s, : len(vectors[s])] = stage_free
        besides[place[:, s]] = forward
    fixed = np.full((len(modes), len(chunks)), -1, dtype=np.int64)
    for (mode, v, s), count in problem.fixed_recompute.items():
        if mode in modes:
            fixed[modes.index(mode), place[v, s]] = count
    # A chunk has at least its given recomputed layers.
    lower = np.maximum(lower, np.maximum(fixed, 0).sum(axis=0))
    uniform = (-1, 0)
    if problem.uniform_recompute:
        ((mode, count),) = problem.uniform_recompute  # the choices are solved one by one
        uniform = (modes.index(mode), count)
    share = problem.weight_gradient_share if has_weight_gradient(problem) else 0.0
    splits = problem.schedule.seq_splits
    cards = sorted(set(problem.first_alike))
    ratios = [problem.on_stage(first).backward_ratio for first in cards]
    shares = np.array([[1.0, ratio * (1.0 - share), ratio * share] for ratio in ratios]) / splits
    return Line(
        stage,
        interleave,
        place,
        lower,
        upper,
        fixed,
        np.array(uniform, dtype=np.int64),
        besides,
        alive,
        free,
        np.array([cards.index(first) for first in problem.first_alike], dtype=np.int64),
        shares,
        float(splits),
        np.array(problem.pace, dtype=np.float64),
        _until(problem, params),
        *_pairs(problem, schedule, place),
        problem.border_strays.astype(np.float64),
        _unit(problem),
    )


def _unit(problem: PipelineProblem) -> int:
    """The most frequent number of layers between positions at which chunks may begin."""
    if not any(kind.joined for kind in problem.placed_kinds):
        return 1
    steps = np.diff(np.flatnonzero(problem.border_strays == 0))
    return int(np.bincount(steps).argmax())


def _pairs(
    problem: PipelineProblem, schedule: Schedule, place: NDArray[np.int64]
) -> tuple[NDArray[np.int64], int, NDArray[np.float64]]:
    """`Line.beside`, `Line.positions` and `Line.pinned_times`; the former two are empty without a pairing."""
    pairing, pinned = problem.pairing, np.zeros((2, place.size))
    for s in range(problem.stages) if pairing is not None or problem.adds_pinned else ():
        pinned[:, place[:, s]] = pinned_times(problem, s, 2)
    if pairing is None:
        return np.zeros((problem.interleaves, 0), dtype=np.int64), -1, pinned
    return partner_table(schedule), -1 if pairing.positions is None else pairing.positions, pinned


def _until(problem: PipelineProblem, params: HeuristicsParams) -> NDArray[np.float64]:
    if alternates(problem, params):
        return np.array(params.alternating_moves)
    until = np.array(params.moves)
    if problem.interleaves == 1:
        until[STAGE:] = until[FAR]  # a stage has one chunk only
    return until
