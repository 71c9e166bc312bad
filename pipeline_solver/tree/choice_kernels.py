"""The compiled kernels of `choice_walk` and `choice_samples`: places and moves, costs, and the enumeration itself.

`tables` and `depths` are the tuples described in `choice_walk`.
"""

from __future__ import annotations

import numpy as np

from taylor.base.compiled import compiled, kernel_part

SOONEST, BLOCK = 24, 64
"""Rows that are tested first, those that pruned last, and size of the blocks in which all are then tested."""

CLOSED, SPENT, CHOICE = range(3)


@compiled
def number_places(coming, layers, leave, order, start, goals, where):  # type: ignore[no-untyped-def]
    """Number the places that choices from border `start` to one of `goals` can pass; return how many, and their moves.

    `coming` int64 [S * borders + 1], `layers` and `leave` int64 [classes] are those of `ByClass`, `order` int64 [S];
    written to `where` int32 [S + 1, goal + 1, borders], by the stages chosen, the remaining layers and the border: -1
    for no place.
    """
    S, goal, borders = len(order), where.shape[1] - 1, where.shape[2]
    where[:] = -1
    where[0, goal, start] = 0
    for k in range(S):
        mark_behind(coming, layers, leave, order[k], where[k], where[k + 1])
    ends = np.zeros(where.shape, dtype=np.bool_)
    for g in goals:
        ends[S, 0, g] = where[S, 0, g] >= 0
    moves = 0
    for k in range(S - 1, -1, -1):
        moves += mark_ending(coming, layers, leave, order[k], where[k], ends[k], ends[k + 1])
    places = 0
    for k in range(S + 1):
        for left in range(goal + 1):
            for border in range(borders):
                where[k, left, border] = places if ends[k, left, border] else -1
                places += ends[k, left, border]
    return places, moves


@kernel_part
def mark_behind(coming, layers, leave, stage, where, behind):  # type: ignore[no-untyped-def]
    """Mark the places that a column of a stage leads to, in `behind` int32 [goal + 1, borders], with 0."""
    borders = where.shape[1]
    for left in range(where.shape[0]):
        for border in range(borders):
            if where[left, border] < 0:
                continue
            c, end = coming[stage * borders + border], coming[stage * borders + border + 1]
            while c < end and layers[c] <= left:  # they are sorted by their layers
                behind[left - layers[c], leave[c]] = 0
                c += 1


@kernel_part
def mark_ending(coming, layers, leave, stage, where, ends, behind):  # type: ignore[no-untyped-def]
    """Mark in `ends` bool [goal + 1, borders] the places with a move to one of `behind`; return the number of moves."""
    borders, moves = where.shape[1], 0
    for left in range(where.shape[0]):
        for border in range(borders):
            if where[left, border] < 0:
                continue
            c, end = coming[stage * borders + border], coming[stage * borders + border + 1]
            while c < end and layers[c] <= left:
                if behind[left - layers[c], leave[c]]:
                    ends[left, border] = True
                    moves += 1
                c += 1
    return moves


@compiled
def list_moves(coming, layers, leave, order, where, begin, of, behind):  # type: ignore[no-untyped-def]
    """List the moves between the places that `number_places` has numbered, by place and then by class.

    Written to `begin`, `of` and `behind`, those of `Moves`.
    """
    borders, passed, listed = where.shape[2], 0, 0
    for k in range(len(order)):
        for left in range(where.shape[1]):
            for border in range(borders):
                if where[k, left, border] < 0:
                    continue
                begin[passed] = listed
                passed += 1
                c, end = coming[order[k] * borders + border], coming[order[k] * borders + border + 1]
                while c < end and layers[c] <= left:
                    there = where[k + 1, left - layers[c], leave[c]]
                    if there >= 0:
                        of[listed], behind[listed] = c, there
                        listed += 1
                    c += 1
    begin[passed:] = listed  # behind the last stage


@compiled
def least_of_classes(costs, listed, begin, crowd, low, high, least):  # type: ignore[no-untyped-def]
    """Least term of each numbered class's columns in rows low ... high - 1, to `least` float64 [crowds, capacity].

    `costs` float64 [members, capacity] are the columns' under each row; `listed`, `begin` and `crowd` as in `ByClass`.
    """
    for c in range(len(begin) - 1):
        if crowd[c] < 0:
            continue
        own, column = least[crowd[c]], costs[listed[begin[c]]]
        for p in range(low, high):
            own[p] = column[p]
        for q in range(begin[c] + 1, begin[c + 1]):
            column = costs[listed[q]]
            for p in range(low, high):  # written so that a processor compares several at a time
                own[p] = column[p] if column[p] < own[p] else own[p]


@compiled
def least_of_row(costs, listed, begin, crowd, row, least):  # type: ignore[no-untyped-def]
    """`least_of_classes` of one row, whose `costs` are float64 [members]."""
    for c in range(len(begin) - 1):
        if crowd[c] < 0:
            continue
        lowest = np.inf
        for q in range(begin[c], begin[c + 1]):
            lowest = min(lowest, costs[listed[q]])
        least[crowd[c], row] = lowest


@compiled
def fill_costs(prices, durations, first, counts, costs):  # type: ignore[no-untyped-def]
    """Terms of columns in dual-value rows, then in paths, to the first rows of `costs` float64 [members, capacity].

    `prices` float64 [prices, members] are the former, `durations` and `first` as in `path_costs`, `counts` float64 [S,
    blocks, paths] the passes of each path through each of a stage's blocks. Column by column: a GEMM of whole matrices
    takes as much memory again, and its threads slow other processes.
    """
    low = len(prices)
    for s in range(len(counts)):
        for i in range(first[s], first[s + 1]):
            own = costs[i]
            for p in range(low):
                own[p] = prices[p, i]
            for p in range(counts.shape[2]):
                own[low + p] = 0.0
            for b in range(counts.shape[1]):
                duration, passes = durations[i, b], counts[s, b]
                for p in range(len(passes)):
                    own[low + p] += duration * passes[p]


@compiled
def path_costs(durations, first, counts):  # type: ignore[no-untyped-def]
    """Terms of columns in a path, float64 [members].

    `durations` float64 [members, blocks] are theirs, `first` int64 [S + 1] is the first column of each stage, `counts`
    float64 [S, blocks] the passes of the path through each block.
    """
    costs = np.empty(len(durations))
    for s in range(len(counts)):
        for i in range(first[s], first[s + 1]):
            total = 0.0
            for b in range(counts.shape[1]):
                total += durations[i, b] * counts[s, b]
            costs[i] = total
    return costs


@compiled
def tabulate(  # type: ignore[no-untyped-def]
    costs, listed, begin, crowd, least, low, high, first, of, behind, rest
):  # fmt: skip
    """Tabulate the least sum of the stages behind each place in rows low ... high - 1.

    `costs` float64 [members, capacity] are the columns' under each row, `listed`, `begin`, `crowd` and `least` those of
    `ByClass`, `first`, `of` and `behind` those of `Moves`; written to `rest` float64 [places, capacity].
    """
    for here in range(len(first) - 2, -1, -1):  # the places behind a place have higher numbers
        last = first[here] == first[here + 1]
        for p in range(low, high):
            rest[here, p] = 0.0 if last else np.inf
        for move in range(first[here], first[here + 1]):
            c, there = of[move], behind[move]
            own = costs[listed[begin[c]]] if crowd[c] < 0 else least[crowd[c]]
            for p in range(low, high):
                rest[here, p] = min(rest[here, p], own[p] + rest[there, p])


@kernel_part
def prunes(partial, costs, rest, rows, cutoff, rank):  # type: ignore[no-untyped-def]
    """Return whether a row of three sums, float64 [capacity] each, reaches `cutoff`; the first `rows` rows count.

    `rank` int64 [rows] is the order in which rows are tested: those that have pruned come sooner.
    """
    for q in range(min(SOONEST, rows)):
        p = rank[q]
        if partial[p] + costs[p] + rest[p] >= cutoff:
            rank[q], rank[q // 2] = rank[q // 2], p
            return True
    # Then all in memory order, block by block, so that a processor adds several at a time.
    for first in range(0, rows, BLOCK):
        end = min(first + BLOCK, rows)
        above = 0
        for p in range(first, end):
            above += partial[p] + costs[p] + rest[p] >= cutoff
        if above > 0:
            p = first
            while partial[p] + costs[p] + rest[p] < cutoff:
                p += 1
            q = SOONEST
            while rank[q] != p:
                q += 1
            sooner = min(q // 2, SOONEST - 1)
            rank[q], rank[sooner] = rank[sooner], p
            return True
    return False


@kernel_part
def in_order(from_late, late, to_early, early):  # type: ignore[no-untyped-def]
    """Return whether a column keeps the kinds in order after those chosen; all int64 [kinds - 1], as in
    `walk_choices`."""
    ordered = True
    for j in range(len(late)):
        ordered &= min(from_late[j], late[j]) >= max(to_early[j], early[j])
    return ordered


@compiled
def walk_choices(tables, rows, cutoff, most_steps, depths, rank, chosen, state):  # type: ignore[no-untyped-def]
    """Resume a depth-first enumeration: 0 at its end, 1 after `most_steps`, 2 with a complete choice in `chosen`.

    The first `rows` rows of the `Tables` count. `depths` are `Depths`, `rank` int64 [rows] is the order in which rows
    are tested, `state` int64 [2] the depth, -1 at the end, and the classes and members visited.
    """
    costs, listed, begin, crowd, least, rest, first, of, behind, late, early = tables
    partial, place, at, inner, from_late, to_early = depths
    S, K = len(chosen), late.shape[1]
    k, steps = state
    while k >= 0:
        if at[k] >= first[place[k] + 1]:
            k -= 1
            continue
        if steps >= most_steps:
            state[0], state[1] = k, steps
            return 1
        steps += 1
        c, there = of[at[k]], behind[at[k]]
        if inner[k] < 0:
            if crowd[c] >= 0 and prunes(partial[k], least[crowd[c]], rest[there], rows, cutoff, rank):
                at[k] += 1
                continue
            inner[k] = begin[c]
        i = listed[inner[k]]
        inner[k] += 1
        if inner[k] == begin[c + 1]:
            at[k] += 1
            inner[k] = -1
        if not in_order(from_late[k], late[i], to_early[k], early[i]):
            continue
        if prunes(partial[k], costs[i], rest[there], rows, cutoff, rank):
            continue
        chosen[k] = i
        if k == S - 1:
            state[0], state[1] = k, steps
            return 2
        for p in range(rows):
            partial[k + 1, p] = partial[k, p] + costs[i, p]
        for j in range(K):
            from_late[k + 1, j] = min(from_late[k, j], late[i, j])
            to_early[k + 1, j] = max(to_early[k, j], early[i, j])
        k += 1
        place[k], at[k], inner[k] = there, first[there], -1
    state[0], state[1] = k, steps
    return 0
