"""Branch and bound and local search over the orders of a pipeline's tasks, compiled (see `order_search`).

Tasks of one block (direction · V + virtual stage) on a stage run their micro-batches in order, so an order is a word of
blocks for each stage. A partial order is the number of tasks of each block that each stage has begun, their ends, and
the time when the stage is free.
"""

from __future__ import annotations

import numpy as np

from taylor.base.compiled import compiled

FULL, BOUND, STOPPED = 0, 1, 2
"""End of a branch and bound: every order was examined; the bound was met; the node limit was reached."""

WEIGHT = 2
"""The block of weight gradients without virtual stages; only then is `gap` above 0."""

EPSILON = 1e-9
"""Times that differ by less than this fraction are equal."""


@compiled
def work_between(s, k, n, counts, before, dur, gap):  # type: ignore[no-untyped-def]
    """Work of stage s that must come before task n of block k, of the tasks not counted yet."""
    work = (n - counts[k, s]) * dur[k, s]
    for j in range(before.shape[0]):
        if before[j, k, s] and n + 1 > counts[j, s]:
            work += (n + 1 - counts[j, s]) * dur[j, s]
    if gap[s] > 0 and k != WEIGHT:
        # Memory suffices for `gap` micro-batches: before forward n ends weight gradient n - gap.
        if n - gap[s] + 1 > counts[WEIGHT, s]:
            work += (n - gap[s] + 1 - counts[WEIGHT, s]) * dur[WEIGHT, s]
        if k == 0 and n - gap[s] + 1 > counts[1, s]:
            work += (n - gap[s] + 1 - counts[1, s]) * dur[1, s]
    return work


@compiled
def tails_of(chain, micro_batches, dur, feeder_stage, feeder_block, before, gap, lag, tail):  # type: ignore[no-untyped-def]
    """Least time from the end of every task to the end of the step, float64 [blocks, m, S]."""
    K, S = dur.shape
    m = micro_batches
    tails = np.zeros((K, m, S))
    for n in range(m - 1, -1, -1):
        for c in range(chain.shape[0] - 1, -1, -1):
            k, s = chain[c, 0], chain[c, 1]
            best = tail[s]
            for c2 in range(chain.shape[0]):
                j, u = chain[c2, 0], chain[c2, 1]
                if feeder_stage[u, j] == s and feeder_block[u, j] == k:
                    best = max(best, lag[j, u] + dur[j, u] + tails[j, n, u])
            if n + 1 < m:
                best = max(best, dur[k, s] + tails[k, n + 1, s])
            if gap[s] > 0 and k == WEIGHT and n + gap[s] < m:
                best = max(best, dur[0, s] + tails[0, n + gap[s], s])
            # All tasks of the stage after this one, and those of them that must come before the last task of j.
            whole = (m - 1 - n) * dur[k, s]
            for j in range(K):
                if before[k, j, s]:
                    whole += (m - n) * dur[j, s]
            if gap[s] > 0 and k > 0 and n + gap[s] < m:
                whole += (m - n - gap[s]) * (dur[0, s] + (dur[1, s] if k == WEIGHT else 0.0))
            best = max(best, whole + tail[s])
            for j in range(K):
                if not (j == k or before[k, j, s]) or (j == k and n == m - 1):
                    continue
                work = (m - 1 - n) * dur[k, s] if j == k or before[k, j, s] else 0.0
                for i in range(K):
                    if i != k and before[k, i, s] and (i == j or before[i, j, s]):
                        work += (m - n) * dur[i, s]
                if gap[s] > 0 and j != WEIGHT and k != WEIGHT and m - gap[s] > n:
                    work += (m - gap[s] - n) * dur[WEIGHT, s]
                best = max(best, work + tails[j, m - 1, s])
            tails[k, n, s] = best
    return tails


@compiled
def bound_of(chain, m, dur, feeder_stage, feeder_block, before, gap, lag, tail, tails, counts, ends, clock, heads):  # type: ignore[no-untyped-def]
    """Lower bound on the step time of every order that begins with the partial one."""
    K, S = dur.shape
    bound = 0.0
    for s in range(S):
        bound = max(bound, clock[s] + tail[s])
    first = np.full(S, np.inf)
    for n in range(m):
        for c in range(chain.shape[0]):
            k, s = chain[c, 0], chain[c, 1]
            if n < counts[k, s]:
                continue
            head = clock[s] + work_between(s, k, n, counts, before, dur, gap)
            u = feeder_stage[s, k]
            if u >= 0:
                j = feeder_block[s, k]
                came = ends[j, n, u] if n < counts[j, u] else heads[j, n, u] + dur[j, u]
                head = max(head, came + lag[k, s])
            if n > counts[k, s]:
                head = max(head, heads[k, n - 1, s] + dur[k, s])
            if gap[s] > 0 and k == 0 and n >= gap[s] and n - gap[s] >= counts[WEIGHT, s]:
                head = max(head, heads[WEIGHT, n - gap[s], s] + dur[WEIGHT, s])
            heads[k, n, s] = head
            first[s] = min(first[s], head)
            bound = max(bound, head + dur[k, s] + tails[k, n, s])
    for s in range(S):
        if first[s] == np.inf:
            continue
        left = 0.0
        for k in range(K):
            left += (m - counts[k, s]) * dur[k, s]
        bound = max(bound, first[s] + left + tail[s])
        for k in range(K):
            if counts[k, s] < m:
                work = work_between(s, k, m - 1, counts, before, dur, gap) + dur[k, s]
                bound = max(bound, first[s] + work + tails[k, m - 1, s])
    return bound


@compiled
def frontier(m, feeder_stage, feeder_block, lag, counts, ends, clock, out):  # type: ignore[no-untyped-def]
    """Write the state that matters to the rest, the times when stages are free and inputs ready; return its length."""
    K, S = counts.shape
    size = 0
    for s in range(S):
        out[size] = clock[s]
        size += 1
    for s in range(S):
        for k in range(K):
            u = feeder_stage[s, k]
            if u < 0 or u == s:
                continue
            j = feeder_block[s, k]
            for n in range(counts[k, s], counts[j, u]):
                out[size] = max(clock[s], ends[j, n, u] + lag[k, s])
                size += 1
    return size


@compiled
def branch_and_bound(  # type: ignore[no-untyped-def]
    chain, m, dur, feeder_stage, feeder_block, before, gap, lag, tail, kept, room, salts, to_beat, most_nodes, slots
):
    """The best order that takes less than `to_beat`, by branching on the next task of the stage that is ready first.

    Giffler and Thompson's scheme (1960): of all tasks that can begin, one would end first; the next task of its stage
    is one of those that can begin before then. Where several virtual stages use the same memory a forward may have to
    wait for others: then «not yet» is a branch, too. A partial order is abandoned when its bound is no better than the
    best order, or when another one with the same tasks was ready as early everywhere.

    Parameters
    ----------
    kept : float64 [blocks, S]
        Memory that a task takes (forward) or gives back (the last of its micro-batch's tasks: negative).
    salts : uint64 [blocks, m + 1, S]
        Random numbers to hash partial orders; `slots` is the number of those kept.

    Returns
    -------
    tuple
        Step time (`to_beat` when none is better), the words int16 [S, tasks], end, nodes, bound of the root.
    """
    K, S = dur.shape
    per_stage = K * m
    total = per_stage * S
    tails = tails_of(chain, m, dur, feeder_stage, feeder_block, before, gap, lag, tail)
    counts = np.zeros((K, S), dtype=np.int64)
    ends = np.zeros((K, m, S))
    clock = np.zeros(S)
    load = np.zeros(S)
    heads = np.zeros((K, m, S))
    held = np.zeros((K, S), dtype=np.bool_)
    word = np.zeros((S, per_stage), dtype=np.int16)
    done = np.zeros(S, dtype=np.int64)
    best_word = word.copy()
    best = to_beat
    slack = EPSILON * max(1.0, to_beat)
    root = bound_of(
        chain, m, dur, feeder_stage, feeder_block, before, gap, lag, tail, tails, counts, ends, clock, heads
    )
    deep = 2 * total + 4
    # Branches of every depth: stage, block (or -1 - block: not yet), bound; and the state to restore.
    branch_block = np.zeros((deep, K + 1), dtype=np.int64)
    branch_bound = np.zeros((deep, K + 1))
    branch_count = np.zeros(deep, dtype=np.int64)
    branch_next = np.zeros(deep, dtype=np.int64)
    branch_stage = np.zeros(deep, dtype=np.int64)
    taken = np.zeros(deep, dtype=np.int64)
    old_clock = np.zeros(deep)
    old_held = np.zeros((deep, K), dtype=np.bool_)
    wide = S + K * m * S
    seen_key = np.zeros(slots, dtype=np.uint64)
    seen_size = np.zeros(slots, dtype=np.int64)
    seen = np.zeros((slots, wide))
    now = np.zeros(wide)
    nodes = 0
    depth = 0
    fresh = True
    scheduled = 0
    while depth >= 0:
        if fresh:
            fresh = False
            branch_count[depth] = 0
            branch_next[depth] = 0
            nodes += 1
            if nodes > most_nodes:
                return best, best_word, STOPPED, nodes, root
            if scheduled == total:
                finish = 0.0
                for s in range(S):
                    finish = max(finish, clock[s] + tail[s])
                if finish < best - slack:
                    best = finish
                    best_word[:] = word
                    if best <= root + slack:
                        return best, best_word, BOUND, nodes, root
            else:
                worse = False
                key = np.uint64(0)
                waits = False
                for s in range(S):
                    for k in range(K):
                        key ^= salts[k, counts[k, s], s]
                        waits = waits or held[k, s]
                if not waits:
                    size = frontier(m, feeder_stage, feeder_block, lag, counts, ends, clock, now)
                    slot = np.int64(key % np.uint64(slots))
                    if seen_key[slot] == key and seen_size[slot] == size:
                        worse = True
                        for i in range(size):
                            if seen[slot, i] > now[i] + slack:
                                worse = False
                                break
                    if not worse:
                        seen_key[slot] = key
                        seen_size[slot] = size
                        seen[slot, :size] = now[:size]
                if not worse:
                    # The task that would end first.
                    first_end, at, which = np.inf, -1, -1
                    for s in range(S):
                        for k in range(K):
                            n = counts[k, s]
                            if n == m or held[k, s] or load[s] + kept[k, s] > room[s]:
                                continue
                            u = feeder_stage[s, k]
                            begin = clock[s]
                            if u >= 0:
                                j = feeder_block[s, k]
                                if counts[j, u] <= n:
                                    continue
                                begin = max(begin, ends[j, n, u] + lag[k, s])
                            if begin + dur[k, s] < first_end - slack:
                                first_end, at, which = begin + dur[k, s], s, k
                    if at >= 0:
                        s = at
                        branch_stage[depth] = s
                        old_held[depth] = held[:, s]
                        count = 0
                        for k in range(K):
                            n = counts[k, s]
                            if n == m or held[k, s] or load[s] + kept[k, s] > room[s]:
                                continue
                            u = feeder_stage[s, k]
                            begin = clock[s]
                            if u >= 0:
                                j = feeder_block[s, k]
                                if counts[j, u] <= n:
                                    continue
                                begin = max(begin, ends[j, n, u] + lag[k, s])
                            if k != which and begin >= first_end - slack:
                                continue
                            # Bound of this branch.
                            was = clock[s]
                            clock[s] = begin + dur[k, s]
                            ends[k, n, s] = clock[s]
                            counts[k, s] += 1
                            reach = bound_of(
                                chain, m, dur, feeder_stage, feeder_block, before, gap, lag, tail, tails,
                                counts, ends, clock, heads,
                            )  # fmt: skip
                            counts[k, s] -= 1
                            clock[s] = was
                            if reach < best - slack:
                                i = count
                                while i > 0 and branch_bound[depth, i - 1] > reach + slack:
                                    branch_bound[depth, i] = branch_bound[depth, i - 1]
                                    branch_block[depth, i] = branch_block[depth, i - 1]
                                    i -= 1
                                branch_bound[depth, i] = reach
                                branch_block[depth, i] = k
                                count += 1
                        if gap[s] == 0 and kept[which, s] > 0:
                            branch_block[depth, count] = -1 - which
                            branch_bound[depth, count] = root
                            count += 1
                        branch_count[depth] = count
        else:
            # Undo the last move of this depth.
            s = branch_stage[depth]
            k = taken[depth]
            held[:, s] = old_held[depth]
            if k >= 0:
                counts[k, s] -= 1
                clock[s] = old_clock[depth]
                load[s] -= kept[k, s]
                done[s] -= 1
                scheduled -= 1
        went = False
        while branch_next[depth] < branch_count[depth]:
            i = branch_next[depth]
            branch_next[depth] += 1
            if branch_bound[depth, i] >= best - slack:
                continue
            s, k = branch_stage[depth], branch_block[depth, i]
            if k < 0:
                held[-1 - k, s] = True
                taken[depth] = -1
            else:
                n = counts[k, s]
                begin = clock[s]
                u = feeder_stage[s, k]
                if u >= 0:
                    begin = max(begin, ends[feeder_block[s, k], n, u] + lag[k, s])
                old_clock[depth] = clock[s]
                clock[s] = begin + dur[k, s]
                ends[k, n, s] = clock[s]
                counts[k, s] += 1
                load[s] += kept[k, s]
                word[s, done[s]] = k
                done[s] += 1
                scheduled += 1
                held[:, s] = False
                taken[depth] = k
            depth += 1
            fresh = True
            went = True
            break
        if not went:
            depth -= 1
    return best, best_word, FULL, nodes, root
