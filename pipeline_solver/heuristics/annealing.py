"""Annealing on columns: good plans fast, from a known plan."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.base.compiled import compiled, kernel_part, overwrite
from taylor.pipeline_solver.bounds.cut_pool import CutPool
from taylor.pipeline_solver.columns.columns import ColumnSet
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, HeuristicsParams
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.pipeline_solver.timing.event_kernels import longest_path


class Tasks(NamedTuple):
    """The event graph's arrays for the kernel; see `EventGraph`."""

    before: NDArray[np.int32]
    needed: NDArray[np.int32]
    task_class: NDArray[np.int32]
    edge_lag: NDArray[np.float64]
    last: NDArray[np.int32]
    tails: NDArray[np.float64]


class Moves(NamedTuple):
    """The columns, and the moves between them.

    Parameters
    ----------
    durations : float64 [n, D·V]
    start : int64 [S + 1]
        First column of each stage.
    least_kind, greatest_kind : int64 [n, V]
        First and last kind of each chunk.
    chunks : int64 [S·V, 2]
        (interleave, stage) in model order.
    group : int64 [n]
        Number of the layer tuple of each column, without gaps.
    group_start : int64 [groups + 1]
        First column of each group.
    more, less : int64 [groups, V, K]
        The group with one layer of a kind more, or less, in a chunk; -1 where there is none.
    label : int64 [n]
        Number of the (stage, layers by kind) of a column.
    by_label : int64 [n]
        Columns sorted by label.
    label_start : int64 [labels + 1]
        First entry of each label in `by_label`.
    totals : int64 [labels, K]
        Layers by kind of each label.
    stage_label : int64 [S + 1]
        First label of each stage.
    """

    durations: NDArray[np.float64]
    start: NDArray[np.int64]
    least_kind: NDArray[np.int64]
    greatest_kind: NDArray[np.int64]
    chunks: NDArray[np.int64]
    group: NDArray[np.int64]
    group_start: NDArray[np.int64]
    more: NDArray[np.int64]
    less: NDArray[np.int64]
    label: NDArray[np.int64]
    by_label: NDArray[np.int64]
    label_start: NDArray[np.int64]
    totals: NDArray[np.int64]
    stage_label: NDArray[np.int64]


class Cooling(NamedTuple):
    """Length and temperatures of annealing: `hot` and `cold` are in body-layer forward times."""

    steps: int
    seed: int
    hot: float
    cold: float


class Annealer:
    """Annealing that moves one to three stages and tests the known path cuts before the event graph."""

    def __init__(
        self,
        columns: ColumnSet,
        graph: EventGraph,
        tails: NDArray[np.float64],
        params: HeuristicsParams = DEFAULT_PARAMS.heuristics,
    ) -> None:
        self.columns, self.params = columns, params
        self.tasks = Tasks(graph.before, graph.needed, graph.task_class, graph.edge_lag, graph.last, tails)
        self.moves = _moves(columns)

    def run(
        self, chosen: NDArray[np.int64], pool: CutPool, cooling: Cooling
    ) -> tuple[float, NDArray[np.int64], NDArray[np.float64]]:
        """Anneal from a consistent choice of columns.

        Returns
        -------
        (float, int64 [S], float64 [n, classes + 1])
            Best step time, its columns, and the critical paths found: class counts, then the constant.
        """
        classes = self.columns.durations.shape[1] * self.columns.problem.stages
        known = min(pool.size, self.params.screening_cuts)
        cuts = np.zeros((classes, self.params.screening_cuts + self.params.new_cuts))
        constant = np.zeros(self.params.screening_cuts + self.params.new_cuts)
        cuts[:, :known] = pool.counts[pool.size - known : pool.size].T
        constant[:known] = pool.constant[pool.size - known : pool.size]
        time, best, cuts_after = anneal(self.tasks, self.moves, cooling, chosen, cuts, constant, known)
        found = np.hstack([cuts.T[known:cuts_after], constant[known:cuts_after, None]])
        return time, best, found


def _moves(columns: ColumnSet) -> Moves:
    """The neighbour tables; they take a while for many columns."""
    problem = columns.problem
    schedule = schedule_of(problem)
    S, V, K = problem.stages, problem.interleaves, columns.layers.shape[2]
    # Columns by (stage, totals): exchanges of equal totals are drawn from a range of `by_label`.
    keys = np.column_stack([columns.stage, columns.totals])
    unique, label = np.unique(keys, axis=0, return_inverse=True)
    label = label.reshape(-1)
    by_label = np.argsort(label, kind="stable")
    # Groups (layer tuples) renumbered without gaps, and their neighbours by one layer.
    change = np.concatenate([[True], np.diff(columns.group) != 0])
    first = np.nonzero(change)[0]
    more, less = _neighbours(columns.layers[first].reshape(len(first), V * K), columns.stage[first])
    return Moves(
        durations=columns.durations,
        start=columns.start,
        least_kind=columns.least_kind,
        greatest_kind=columns.greatest_kind,
        chunks=np.array([schedule.chunk_at(k) for k in range(schedule.chunks)], dtype=np.int64),
        group=np.cumsum(change) - 1,
        group_start=np.concatenate([first, [len(columns)]]).astype(np.int64),
        more=more.reshape(-1, V, K),
        less=less.reshape(-1, V, K),
        label=label,
        by_label=by_label,
        label_start=np.searchsorted(label[by_label], np.arange(len(unique) + 1)),
        totals=unique[:, 1:].copy(),
        stage_label=np.searchsorted(unique[:, 0], np.arange(S + 1)),
    )


def _neighbours(shapes: NDArray[np.int16], stage: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each layer tuple [n, cells], the one of its stage with a layer more in a cell, and with one less; or -1.

    Tuples are found by a random sum over their cells, in which one more layer is one more term.
    """
    n, cells = shapes.shape
    terms = np.random.default_rng(0).integers(2**64, size=cells + 1, dtype=np.uint64)
    key = shapes.astype(np.uint64) @ terms[:cells] + stage.astype(np.uint64) * terms[cells]
    order = np.argsort(key, kind="stable")
    ordered = key[order]
    more = np.full((n, cells), -1, dtype=np.int64)
    less = np.full((n, cells), -1, dtype=np.int64)
    for cell in range(cells):
        place = np.minimum(np.searchsorted(ordered, key + terms[cell]), n - 1)
        one = np.nonzero(ordered[place] == key + terms[cell])[0]
        other = order[place[one]]
        step = shapes[other] - shapes[one]
        step[:, cell] -= 1
        same = (stage[one] == stage[other]) & ~step.any(axis=1)  # equal sums may be chance
        more[one[same], cell] = other[same]
        less[other[same], cell] = one[same]
    return more, less


@kernel_part
def consistent(chosen, moves):  # type: ignore[no-untyped-def]
    """Return whether kinds are in order along the model."""
    reached = 0
    for k in range(moves.chunks.shape[0]):
        v, column = moves.chunks[k, 0], chosen[moves.chunks[k, 1]]
        high = moves.greatest_kind[column, v]
        if high >= 0:
            if moves.least_kind[column, v] < reached:
                return False
            reached = high
    return True


@kernel_part
def draw_move(moves, now, new, moved, gap):  # type: ignore[no-untyped-def]
    """Propose other columns for up to three stages; return the number of stages `moved`, 0 after a failed draw.

    `new` int64 [S] receives the columns, `moved` int64 [3] the stages; `gap` int64 [K] is a work array. After a failed
    draw `new` equals `now`.
    """
    S = len(moves.start) - 1
    draw = np.random.random()
    if draw < 0.15:
        return draw_choice(moves, now, new, moved, np.random.randint(S))
    if draw < 0.70:
        s = np.random.randint(S)
        return draw_layer(moves, now, new, moved, s, s if draw < 0.35 else np.random.randint(S), draw < 0.35)
    return redraw(moves, now, new, moved, gap, min(S, 1 if draw > 0.97 else (2 if draw < 0.85 else 3)))


@kernel_part
def member_of(moves, group):  # type: ignore[no-untyped-def]
    """A random column of a group."""
    start = moves.group_start[group]
    return start + np.random.randint(moves.group_start[group + 1] - start)


@kernel_part
def draw_choice(moves, now, new, moved, s):  # type: ignore[no-untyped-def]
    """The same layers, another recompute choice; see `draw_move`."""
    g = moves.group[now[s]]
    if moves.group_start[g + 1] - moves.group_start[g] < 2:
        return 0
    new[s] = member_of(moves, g)
    moved[0] = s
    return 1


@kernel_part
def draw_layer(moves, now, new, moved, s, t, inside):  # type: ignore[no-untyped-def]
    """One layer from a chunk of stage s to one of stage t, `inside` a stage or between two; see `draw_move`."""
    V, K = moves.more.shape[1], moves.more.shape[2]
    v, w, k = np.random.randint(V), np.random.randint(V), np.random.randint(K)
    g = moves.less[moves.group[now[s]], v, k]
    if g < 0 or (s == t and not inside):
        return 0
    if inside:
        g = moves.more[g, w, k]
        if g < 0 or v == w:
            return 0
    else:
        h = moves.more[moves.group[now[t]], w, k]
        if h < 0:
            return 0
        new[t] = member_of(moves, h)
        moved[1] = t
    new[s] = member_of(moves, g)
    moved[0] = s
    return 1 if inside else 2


@kernel_part
def redraw(moves, now, new, moved, gap, n):  # type: ignore[no-untyped-def]
    """Other columns of n stages, the last one so that the layer totals are met; see `draw_move`."""
    K = moves.more.shape[2]
    gap[:] = 0
    for i in range(n):
        s = np.random.randint(len(moves.start) - 1)
        fits = True
        for q in range(i):
            if moved[q] == s:
                fits = False
        c = -1
        if fits:
            moved[i] = s
            if i < n - 1:
                c = moves.start[s] + np.random.randint(moves.start[s + 1] - moves.start[s])
            else:
                c = column_with(moves, s, moves.totals[moves.label[now[s]]], gap)
        if c < 0:
            for q in range(i):
                new[moved[q]] = now[moved[q]]
            return 0
        for k in range(K):
            gap[k] += moves.totals[moves.label[c], k] - moves.totals[moves.label[now[s]], k]
        new[s] = c
    return n


@kernel_part
def column_with(moves, s, totals, gap):  # type: ignore[no-untyped-def]
    """A random column of stage s whose layers by kind are `totals` less `gap`; -1 where there is none."""
    for u in range(moves.stage_label[s], moves.stage_label[s + 1]):
        same = True
        for k in range(len(gap)):
            if moves.totals[u, k] != totals[k] - gap[k]:
                same = False
                break
        if same:
            first = moves.label_start[u]
            return moves.by_label[first + np.random.randint(moves.label_start[u + 1] - first)]
    return -1


@kernel_part
def trace_path(tasks, ends, counts):  # type: ignore[no-untyped-def]
    """Class counts of a critical path, float64 [classes], from the ends of all tasks; its constant (lags, tail)."""
    counts[:] = 0.0
    finish, node, constant = -1.0, 0, 0.0
    for s in range(len(tasks.last)):
        if ends[tasks.last[s]] + tasks.tails[s] > finish:
            finish = ends[tasks.last[s]] + tasks.tails[s]
            node = tasks.last[s]
            constant = tasks.tails[s]
    while node > 0:
        counts[tasks.task_class[node - 1]] += 1.0
        x, y = tasks.before[node - 1], tasks.needed[node - 1]
        if y > 0 and (x == 0 or ends[y] + tasks.edge_lag[node - 1] > ends[x]):
            constant += tasks.edge_lag[node - 1]
            node = y
        else:
            node = x
    return constant


@compiled
def anneal(tasks, moves, cooling, chosen, cuts, constant, known):  # type: ignore[no-untyped-def]
    """Metropolis search over consistent choices.

    Parameters
    ----------
    tasks : Tasks
    moves : Moves
    cooling : Cooling
    chosen : int64 [S]
        Initial choice.
    cuts : float64 [classes, capacity]
        Path cuts, `known` of them at first; paths found are added.
    constant : float64 [capacity]

    Returns
    -------
    (float, int64 [S], int)
        Best step time, its columns, and the number of cuts now.
    """
    np.random.seed(cooling.seed)
    table = moves.durations
    S, K = len(moves.start) - 1, moves.more.shape[2]
    classes = table.shape[1] * S
    capacity = cuts.shape[1]
    ends = np.zeros(tasks.before.shape[0] + 1)
    durations = np.zeros(classes + S)
    overwrite(durations[classes:], tasks.tails, S)
    now = chosen.copy()
    every = np.arange(S)
    take_durations(durations, table, now, every, S)
    time = longest_path(tasks.before, tasks.needed, tasks.task_class, tasks.edge_lag, tasks.last, durations, ends)
    best_time, best = time, now.copy()
    values = cut_lengths(cuts, constant, known, durations, classes)
    trial = np.zeros(capacity)
    new = now.copy()
    moved = np.zeros(3, dtype=np.int64)
    counts = np.zeros(classes)
    gap = np.zeros(K, dtype=np.int64)
    for step in range(cooling.steps):
        temperature = cooling.hot * (cooling.cold / cooling.hot) ** (step / cooling.steps)
        n = draw_move(moves, now, new, moved, gap)
        if n == 0:
            continue
        if K > 1 and not consistent(new, moves):
            take_columns(new, now, moved, n)
            continue
        threshold = time - temperature * np.log(np.random.random() + 1e-300)
        overwrite(trial, values, known)
        bound = change_lengths(trial, cuts, known, table, now, new, moved, n)
        if bound > threshold:
            take_columns(new, now, moved, n)
            continue
        take_durations(durations, table, new, moved, n)
        length = longest_path(tasks.before, tasks.needed, tasks.task_class, tasks.edge_lag, tasks.last, durations, ends)
        if length > threshold and length > bound * (1 + 1e-7) and known < capacity:
            # A path of no known cut: the next moves like this one need no event graph.
            constant[known] = trace_path(tasks, ends, counts)
            for r in range(classes):
                cuts[r, known] = counts[r]
            trial[known] = path_length(counts, constant[known], durations)
            values[known] = chosen_length(counts, constant[known], table, now)
            known += 1
        if length > threshold:
            take_durations(durations, table, now, moved, n)
            take_columns(new, now, moved, n)
            continue
        time = length
        overwrite(values, trial, known)
        take_columns(now, new, moved, n)
        if time < best_time - 1e-9:
            best_time = time
            overwrite(best, now, S)
    return best_time, best, known


@kernel_part
def take_columns(columns, others, stages, n):  # type: ignore[no-untyped-def]
    """Overwrite the columns of the first n of `stages`."""
    for i in range(n):
        columns[stages[i]] = others[stages[i]]


@kernel_part
def take_durations(durations, table, columns, stages, n):  # type: ignore[no-untyped-def]
    """Overwrite the durations of the first n of `stages` by those of their columns."""
    S, blocks = len(columns), table.shape[1]
    for i in range(n):
        for b in range(blocks):
            durations[b * S + stages[i]] = table[columns[stages[i]], b]


@kernel_part
def cut_lengths(cuts, constant, known, durations, classes):  # type: ignore[no-untyped-def]
    """Lengths of the known paths, float64 [capacity]."""
    values = np.zeros(cuts.shape[1])
    for g in range(known):
        values[g] = constant[g]
        for r in range(classes):
            values[g] += cuts[r, g] * durations[r]
    return values


@kernel_part
def change_lengths(lengths, cuts, known, table, now, new, moved, n):  # type: ignore[no-untyped-def]
    """Add to the known paths' lengths what the moved stages change; return the longest."""
    S, blocks = len(now), table.shape[1]
    for i in range(n):
        s = moved[i]
        for b in range(blocks):
            change = table[new[s], b] - table[now[s], b]
            if change != 0.0:
                for g in range(known):
                    lengths[g] += change * cuts[b * S + s, g]
    longest = 0.0
    for g in range(known):
        longest = max(longest, lengths[g])
    return longest


@kernel_part
def path_length(counts, constant, durations):  # type: ignore[no-untyped-def]
    """Length of a path at durations."""
    length = constant
    for r in range(len(counts)):
        length += counts[r] * durations[r]
    return length


@kernel_part
def chosen_length(counts, constant, table, columns):  # type: ignore[no-untyped-def]
    """Length of a path at the durations of chosen columns, summed stage by stage."""
    S, length = len(columns), constant
    for s in range(S):
        for b in range(table.shape[1]):
            length += counts[b * S + s] * table[columns[s], b]
    return length
