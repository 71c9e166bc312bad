"""Good plans fast: a dynamic programme over the stages, and annealing on stage configurations."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.chunk_types import placed_kinds
from taylor.pipeline_solver.columns import ColumnSet
from taylor.pipeline_solver.compiled import compiled
from taylor.pipeline_solver.durations import schedule_of
from taylor.pipeline_solver.event_graph import EventGraph, longest_path
from taylor.pipeline_solver.master import CutPool

SCREENING_CUTS = 300
NEW_CUTS = 300
"""Path cuts that annealing starts with, and those that it may find on the way."""

MAX_TABLE = 20_000_000
"""States times stages beyond which the DP is left out."""


class StagePrograms:
    """Cheapest choice of one column a stage under any weights, exact in layer totals and order of kinds.

    ``exact`` is false when the table would be too large; then `best` never finds anything.

    The border between kind j and the next one lies in one row of chunks (an interleave). For each way
    to choose those rows, columns fall into classes by (layers by kind, what they hold before and after
    each border), and a DP over the stages with the layers used so far and the borders passed is exact.
    """

    def __init__(self, columns: ColumnSet) -> None:
        self.columns = columns
        problem = columns.problem
        schedule = schedule_of(problem)
        kinds = placed_kinds(problem)
        self.counts = np.array([kind.count for kind in kinds], dtype=np.int64)
        K, V = len(kinds), problem.interleaves
        self.states = int(np.prod(self.counts + 1)) * 2 ** (K - 1)
        self.cases: list[tuple[NDArray[np.int64], ...]] = []
        self.exact = self.states * problem.stages <= MAX_TABLE
        if not self.exact:
            return
        stage = columns.stage
        for rows in combinations_with_replacement(range(V), K - 1):
            fits = np.ones(len(columns), dtype=bool)
            needs = np.zeros(len(columns), dtype=np.int64)
            passes = np.zeros(len(columns), dtype=np.int64)
            for j, row in enumerate(rows):
                early, late = columns.least_kind <= j, columns.greatest_kind > j
                fits &= ~late[:, :row].any(axis=1) & ~early[:, row + 1 :].any(axis=1)
                first, second = early[:, row], late[:, row]
                if schedule.v_shape and row % 2:
                    first, second = second, first
                needs |= first.astype(np.int64) << j
                passes |= second.astype(np.int64) << j
            members = np.nonzero(fits)[0]
            if len(np.unique(stage[members])) < problem.stages:
                continue
            keys = np.column_stack([stage, columns.totals, needs, passes])[members]
            unique, label = np.unique(keys, axis=0, return_inverse=True)
            start = np.searchsorted(unique[:, 0], np.arange(problem.stages + 1))
            self.cases.append(
                (
                    members,
                    label.reshape(-1),
                    start,
                    unique[:, 1 : 1 + K].copy(),
                    unique[:, 1 + K].copy(),
                    unique[:, 2 + K].copy(),
                )
            )

    def best(self, weights: NDArray[np.float64]) -> NDArray[np.int64] | None:
        """One column a stage, int64 [S], of least total weight; None when no choice is consistent."""
        answer, least = None, np.inf
        for members, label, start, totals, needs, passes in self.cases:
            cost, winner = cheapest_members(members, label, len(totals), weights)
            value, chosen = stage_program(start, totals, needs, passes, cost, self.counts)
            if value < least:
                answer, least = winner[chosen], value
        return answer


@compiled
def cheapest_members(members, label, classes, weights):  # type: ignore[no-untyped-def]
    """Least weight of each class, and the column that has it."""
    cost = np.full(classes, np.inf)
    winner = np.full(classes, -1, dtype=np.int64)
    for i in range(len(members)):
        if weights[members[i]] < cost[label[i]]:
            cost[label[i]] = weights[members[i]]
            winner[label[i]] = members[i]
    return cost, winner


@compiled
def stage_program(start, totals, needs, passes, cost, counts):  # type: ignore[no-untyped-def]
    """DP over stages; the state is the layers of each kind used and the borders passed.

    Returns
    -------
    (float, int64 [S])
        Least total cost (inf when nothing fits) and the class chosen on each stage.
    """
    S, K = len(start) - 1, len(counts)
    flags = 2 ** (K - 1)
    stride = np.empty(K, dtype=np.int64)
    size = 1
    for j in range(K):
        stride[j] = size
        size *= counts[j] + 1
    total_states = size * flags
    value = np.full(total_states, np.inf)
    value[0] = 0.0
    choice = np.full((S, total_states), -1, dtype=np.int32)
    origin = np.full((S, total_states), -1, dtype=np.int32)
    for s in range(S):
        after = np.full(total_states, np.inf)
        for state in range(total_states):
            if value[state] == np.inf:
                continue
            passed, code = state // size, state % size
            for c in range(start[s], start[s + 1]):
                if passed & needs[c] or cost[c] == np.inf:
                    continue
                fits = True
                goal = code
                for j in range(K):
                    if (code // stride[j]) % (counts[j] + 1) + totals[c, j] > counts[j]:
                        fits = False
                        break
                    goal += stride[j] * totals[c, j]
                if not fits:
                    continue
                goal += (passed | passes[c]) * size
                if value[state] + cost[c] < after[goal]:
                    after[goal] = value[state] + cost[c]
                    choice[s, goal] = c
                    origin[s, goal] = state
        value = after
    best = -1
    for passed in range(flags):
        state = passed * size + size - 1
        if value[state] < np.inf and (best < 0 or value[state] < value[best]):
            best = state
    chosen = np.full(S, -1, dtype=np.int64)
    if best < 0:
        return np.inf, chosen
    least = value[best]
    for s in range(S - 1, -1, -1):
        chosen[s] = choice[s, best]
        best = origin[s, best]
    return least, chosen


class Annealer:
    """Annealing that moves one to three stages and asks the known path cuts before the event graph."""

    def __init__(self, columns: ColumnSet, graph: EventGraph, tails: NDArray[np.float64]) -> None:
        problem = columns.problem
        schedule = schedule_of(problem)
        self.columns, self.graph, self.tails = columns, graph, tails
        self.chunks = np.array([schedule.chunk_at(k) for k in range(schedule.chunks)], dtype=np.int64)
        S, V, K = problem.stages, problem.interleaves, columns.layers.shape[2]
        # Columns by (stage, totals): same-total exchanges are drawn from a range of `by_total`.
        keys = np.column_stack([columns.stage, columns.totals])
        unique, label = np.unique(keys, axis=0, return_inverse=True)
        self.total_of = label.reshape(-1)
        self.by_total = np.argsort(self.total_of, kind="stable")
        self.total_start = np.searchsorted(self.total_of[self.by_total], np.arange(len(unique) + 1))
        self.totals = unique[:, 1:].copy()
        self.stage_total = np.searchsorted(unique[:, 0], np.arange(S + 1))
        # Groups (layer tuples) renumbered without gaps, and their neighbours by one layer.
        change = np.concatenate([[True], np.diff(columns.group) != 0])
        self.group = np.cumsum(change) - 1
        first = np.nonzero(change)[0]
        self.group_start = np.concatenate([first, [len(columns)]]).astype(np.int64)
        self.more = np.full((len(first), V, K), -1, dtype=np.int64)
        self.less = np.full((len(first), V, K), -1, dtype=np.int64)
        shapes = columns.layers[first]
        stage = columns.stage[first]
        known = {(int(stage[g]), shapes[g].tobytes()): g for g in range(len(first))}
        for g in range(len(first)):
            shape = shapes[g].copy()
            for v in range(V):
                for k in range(K):
                    shape[v, k] += 1
                    other = known.get((int(stage[g]), shape.tobytes()))
                    shape[v, k] -= 1
                    if other is not None:
                        self.more[g, v, k] = other
                        self.less[other, v, k] = g

    def run(
        self, chosen: NDArray[np.int64], pool: CutPool, moves: int, seed: int, hot: float, cold: float
    ) -> tuple[float, NDArray[np.int64], NDArray[np.float64]]:
        """Anneal from a consistent choice of columns.

        Parameters
        ----------
        hot, cold : float
            First and last temperature, in body-layer forward times.

        Returns
        -------
        (float, int64 [S], float64 [n, classes])
            Best step time, its columns, and the class counts of critical paths met on the way.
        """
        columns, graph = self.columns, self.graph
        blocks, S = columns.durations.shape[1], columns.problem.stages
        known = min(pool.size, SCREENING_CUTS)
        cuts = np.zeros((blocks * S, SCREENING_CUTS + NEW_CUTS))
        constant = np.zeros(SCREENING_CUTS + NEW_CUTS)
        cuts[:, :known] = pool.counts[pool.size - known : pool.size].T
        constant[:known] = pool.constant[pool.size - known : pool.size]
        time, best, cuts_after = anneal(
            graph.before,
            graph.needed,
            graph.task_class,
            graph.edge_lag,
            graph.last,
            self.tails,
            columns.durations,
            columns.start,
            columns.least_kind,
            columns.greatest_kind,
            self.chunks,
            self.group,
            self.group_start,
            self.more,
            self.less,
            self.total_of,
            self.total_start,
            self.by_total,
            self.totals,
            self.stage_total,
            chosen,
            moves,
            seed,
            hot,
            cold,
            cuts,
            constant,
            known,
        )
        found = np.hstack([cuts.T[known:cuts_after], constant[known:cuts_after, None]])
        return time, best, found


@compiled
def consistent(chosen, least_kind, greatest_kind, chunks):  # type: ignore[no-untyped-def]
    """Whether kinds follow in order along the model."""
    reached = 0
    for k in range(chunks.shape[0]):
        column = chosen[chunks[k, 1]]
        high = greatest_kind[column, chunks[k, 0]]
        if high >= 0:
            if least_kind[column, chunks[k, 0]] < reached:
                return False
            reached = high
    return True


@compiled
def anneal(  # type: ignore[no-untyped-def]
    before,
    needed,
    task_class,
    edge_lag,
    last,
    tails,
    table,
    start,
    least_kind,
    greatest_kind,
    chunks,
    group,
    group_start,
    more,
    less,
    total_of,
    total_start,
    by_total,
    totals,
    stage_total,
    chosen,
    moves,
    seed,
    hot,
    cold,
    cuts,
    constant,
    known,
):
    """Metropolis walk over consistent choices; `cuts` float64 [classes, capacity] grows with paths met."""
    np.random.seed(seed)
    S, V, K = len(start) - 1, more.shape[1], more.shape[2]
    blocks = table.shape[1]
    classes = blocks * S
    capacity = cuts.shape[1]
    ends = np.zeros(before.shape[0] + 1)
    durations = np.zeros(classes + S)
    durations[classes:] = tails
    now = chosen.copy()
    for s in range(S):
        for b in range(blocks):
            durations[b * S + s] = table[now[s], b]
    time = longest_path(before, needed, task_class, edge_lag, last, durations, ends)
    best_time, best = time, now.copy()
    values = np.zeros(capacity)
    for g in range(known):
        values[g] = constant[g]
        for r in range(classes):
            values[g] += cuts[r, g] * durations[r]
    trial = np.zeros(capacity)
    new = now.copy()
    moved = np.zeros(3, dtype=np.int64)
    counts = np.zeros(classes)
    gap = np.zeros(K, dtype=np.int64)
    for step in range(moves):
        temperature = hot * (cold / hot) ** (step / moves)
        draw = np.random.random()
        n = 0
        if draw < 0.15:
            # The same layers, another recompute choice.
            s = np.random.randint(S)
            g = group[now[s]]
            width = group_start[g + 1] - group_start[g]
            if width < 2:
                continue
            new[s] = group_start[g] + np.random.randint(width)
            moved[0] = s
            n = 1
        elif draw < 0.70:
            # One layer from a chunk to another, inside a stage or between two.
            s = np.random.randint(S)
            t = s if draw < 0.35 else np.random.randint(S)
            v, w, k = np.random.randint(V), np.random.randint(V), np.random.randint(K)
            if draw >= 0.35 and s == t:
                continue
            g = less[group[now[s]], v, k]
            if g < 0:
                continue
            if s == t:
                g = more[g, w, k]
                if g < 0 or v == w:
                    continue
                n = 1
            else:
                h = more[group[now[t]], w, k]
                if h < 0:
                    continue
                new[t] = group_start[h] + np.random.randint(group_start[h + 1] - group_start[h])
                moved[1] = t
                n = 2
            new[s] = group_start[g] + np.random.randint(group_start[g + 1] - group_start[g])
            moved[0] = s
        else:
            # Up to three stages anew, the last one so that the layer totals hold.
            n = min(S, 1 if draw > 0.97 else (2 if draw < 0.85 else 3))
            fine = True
            gap[:] = 0
            for i in range(n):
                s = np.random.randint(S)
                for q in range(i):
                    if moved[q] == s:
                        fine = False
                if not fine:
                    n = i
                    break
                moved[i] = s
                if i < n - 1:
                    c = start[s] + np.random.randint(start[s + 1] - start[s])
                else:
                    label = -1
                    for u in range(stage_total[s], stage_total[s + 1]):
                        same = True
                        for k in range(K):
                            if totals[u, k] != totals[total_of[now[s]], k] - gap[k]:
                                same = False
                                break
                        if same:
                            label = u
                            break
                    if label < 0:
                        fine = False
                        n = i
                        break
                    c = by_total[total_start[label] + np.random.randint(total_start[label + 1] - total_start[label])]
                for k in range(K):
                    gap[k] += totals[total_of[c], k] - totals[total_of[now[s]], k]
                new[s] = c
            if not fine:
                for i in range(n):
                    new[moved[i]] = now[moved[i]]
                continue
        if K > 1 and not consistent(new, least_kind, greatest_kind, chunks):
            for i in range(n):
                new[moved[i]] = now[moved[i]]
            continue
        threshold = time - temperature * np.log(np.random.random() + 1e-300)
        trial[:known] = values[:known]
        for i in range(n):
            s = moved[i]
            for b in range(blocks):
                change = table[new[s], b] - table[now[s], b]
                if change != 0.0:
                    trial[:known] += change * cuts[b * S + s, :known]
        bound = 0.0
        for g in range(known):
            bound = max(bound, trial[g])
        accepted = False
        if bound <= threshold:
            for i in range(n):
                for b in range(blocks):
                    durations[b * S + moved[i]] = table[new[moved[i]], b]
            length = longest_path(before, needed, task_class, edge_lag, last, durations, ends)
            if length > threshold and length > bound * (1 + 1e-7) and known < capacity:
                counts[:] = 0.0
                finish, node = -1.0, 0
                extra = 0.0
                for s in range(S):
                    if ends[last[s]] + tails[s] > finish:
                        finish = ends[last[s]] + tails[s]
                        node = last[s]
                        extra = tails[s]
                while node > 0:
                    counts[task_class[node - 1]] += 1.0
                    x, y = before[node - 1], needed[node - 1]
                    if y > 0 and (x == 0 or ends[y] + edge_lag[node - 1] > ends[x]):
                        extra += edge_lag[node - 1]
                        node = y
                    else:
                        node = x
                values[known], trial[known], constant[known] = extra, extra, extra
                for r in range(classes):
                    cuts[r, known] = counts[r]
                    trial[known] += counts[r] * durations[r]
                for s in range(S):
                    for b in range(blocks):
                        values[known] += counts[b * S + s] * table[now[s], b]
                known += 1
            if length <= threshold:
                accepted = True
                time = length
                values[:known] = trial[:known]
                for i in range(n):
                    now[moved[i]] = new[moved[i]]
                if time < best_time - 1e-9:
                    best_time = time
                    best[:] = now
            else:
                for i in range(n):
                    for b in range(blocks):
                        durations[b * S + moved[i]] = table[now[moved[i]], b]
        if not accepted:
            for i in range(n):
                new[moved[i]] = now[moved[i]]
    return best_time, best, known
