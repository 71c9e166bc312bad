"""Samples of a depth-first enumeration of choices: estimates of its length, and choices from its depth.

A sample goes down the enumeration level by level. Of all partial choices of a level that are not pruned it keeps one
for each group of places, drawn at random, which from then on represents as many as it was drawn from (P.-C. Chen,
"Heuristic sampling", SIAM Journal on Computing 21, 1992). So it visits a few hundred columns and estimates, without
bias, how many the enumeration must visit. The enumeration would spend its time near the deepest partial choices. One of
them is completed: its longest path is a row that prunes its neighbours before the enumeration reaches them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.base.compiled import compiled, kernel_part, overwrite
from taylor.pipeline_solver.tree.choice_kernels import in_order, prunes
from taylor.pipeline_solver.tree.choice_walk import ChoiceWalk

GROUPS = 64
"""Groups of places of a level; a partial choice of each is kept."""

FREE = np.iinfo(np.int64).max
"""Place of the first chunk of a kind that no chosen column has so far."""


class Sample(NamedTuple):
    """The estimate of a sample.

    Parameters
    ----------
    steps : float
        Estimated number of columns that the whole enumeration visits.
    looked : int
        Columns that the sample visited.
    choice : int64 [S] or None
        A column for each stage; None where its kinds could not be kept in order.
    """

    steps: float
    looked: int
    choice: NDArray[np.int64] | None


def sample(walk: ChoiceWalk, cutoff: float, seed: int) -> Sample:
    """Sample an enumeration of one part that has not begun."""
    walk.catch_up()
    rows, order = walk.rows, walk.order
    chosen = np.full(len(order), -1, dtype=np.int64)
    steps, looked = sample_steps(walk.tables(), walk.known, cutoff, walk.rank, walk.partial[0], seed, chosen)
    if (chosen < 0).any():
        return Sample(steps, looked, None)
    choice = np.empty(len(order), dtype=np.int64)
    choice[order] = rows.members[chosen]
    return Sample(steps, looked, choice)


class Drawn(NamedTuple):
    """What is drawn of a level, by group of places.

    Parameters
    ----------
    found : float64 [groups]
        Choices that the drawn one represents, 0 where none is drawn.
    parent, column, place : int64 [groups]
        Number of the partial choice before it, its column, and its place.
    """

    found: NDArray[np.float64]
    parent: NDArray[np.int64]
    column: NDArray[np.int64]
    place: NDArray[np.int64]


@compiled
def sample_steps(tables, rows, cutoff, rank, start, seed, chosen):  # type: ignore[no-untyped-def]
    """Draw one sample; return the columns that the enumeration would visit, and those visited.

    `start` float64 [capacity] is the constant of each row; the others are those of `walk_choices`. A choice is
    written to `chosen` int64 [S]; where none is found, some entries stay -1.
    """
    costs, late, early = tables.costs, tables.late, tables.early
    np.random.seed(seed)
    S, K = len(chosen), late.shape[1]
    steps, looked = 0.0, 0
    # Kept of the level: place, number of represented choices, sums, first late and last early chunks, columns.
    place, stands = np.zeros(1, dtype=np.int64), np.ones(1)
    sums = np.empty((1, rows))
    overwrite(sums[0], start, rows)
    from_late, to_early = np.full((1, K), FREE), np.full((1, K), -1)
    columns = np.full((1, S), -1)
    for k in range(S):
        drawn = Drawn(
            np.zeros(GROUPS), np.empty(GROUPS, np.int64), np.empty(GROUPS, np.int64), np.empty(GROUPS, np.int64)
        )  # fmt: skip
        for x in range(len(place)):
            seen = draw_behind(
                tables, rows, cutoff, rank, place[x], stands[x], sums[x], from_late[x], to_early[x], x, drawn
            )  # fmt: skip
            looked += seen
            steps += seen * stands[x]
        groups = np.flatnonzero(drawn.found)
        n = len(groups)
        if n == 0:
            break
        new_sums, new_columns = np.empty((n, rows)), np.empty((n, S), np.int64)
        new_late, new_early = np.empty((n, K), np.int64), np.empty((n, K), np.int64)
        place, stands = drawn.place[groups], drawn.found[groups]
        for y in range(n):
            x, i = drawn.parent[groups[y]], drawn.column[groups[y]]
            for p in range(rows):
                new_sums[y, p] = sums[x, p] + costs[i, p]
            for j in range(K):
                new_late[y, j] = min(from_late[x, j], late[i, j])
                new_early[y, j] = max(to_early[x, j], early[i, j])
            overwrite(new_columns[y], columns[x], S)
            new_columns[y, k] = i
        sums, columns, from_late, to_early = new_sums, new_columns, new_late, new_early
    until = np.random.random() * stands.sum()
    x = 0
    while x + 1 < len(stands) and until > stands[x]:
        until -= stands[x]
        x += 1
    overwrite(chosen, columns[x], S)
    _complete(tables, rows, place[x], sums[x], from_late[x], to_early[x], chosen)
    return steps, looked


@kernel_part
def draw_behind(  # type: ignore[no-untyped-def]
    tables, rows, cutoff, rank, place, stands, sums, from_late, to_early, x, drawn
):  # fmt: skip
    """Draw columns behind partial choice x of a level, into `drawn`; return the columns visited."""
    costs, listed, begin, crowd, least, rest, first, of, behind, late, early = tables
    found, parent, column, there_at = drawn
    looked = 0
    for move in range(first[place], first[place + 1]):
        c, there = of[move], behind[move]
        looked += 1
        if crowd[c] >= 0 and prunes(sums, least[crowd[c]], rest[there], rows, cutoff, rank):
            continue
        for q in range(begin[c], begin[c + 1]):
            i = listed[q]
            looked += q > begin[c]
            if not in_order(from_late, late[i], to_early, early[i]):
                continue
            if prunes(sums, costs[i], rest[there], rows, cutoff, rank):
                continue
            group = there % len(found)
            found[group] += stands
            if np.random.random() * found[group] < stands:
                parent[group], column[group], there_at[group] = x, i, there
    return looked


@kernel_part
def _complete(tables, rows, place, sums, from_late, to_early, chosen):  # type: ignore[no-untyped-def]
    """Choose the remaining stages, each time the column that minimizes the highest row.

    `sums`, `from_late` and `to_early`, of the choice so far, are overwritten.
    """
    costs, listed, begin, rest = tables.costs, tables.listed, tables.begin, tables.rest
    first, of, behind, late, early = tables.first, tables.of, tables.behind, tables.late, tables.early
    for k in range(len(chosen)):
        if chosen[k] >= 0:
            continue
        best, after = np.inf, -1
        for move in range(first[place], first[place + 1]):
            c, there = of[move], behind[move]
            for q in range(begin[c], begin[c + 1]):
                i = listed[q]
                if not in_order(from_late, late[i], to_early, early[i]):
                    continue
                highest, p = -np.inf, rows - 1
                while p >= 0 and highest < best:  # from the newest row on, which is the likeliest to prune
                    highest = max(highest, sums[p] + costs[i, p] + rest[there, p])
                    p -= 1
                if highest < best:
                    best, after, chosen[k] = highest, there, i
        if after < 0:
            return
        i = chosen[k]
        for p in range(rows):
            sums[p] += costs[i, p]
        for j in range(len(from_late)):
            from_late[j] = min(from_late[j], late[i, j])
            to_early[j] = max(to_early[j], early[i, j])
        place = after
