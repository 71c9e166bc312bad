"""Branch and bound and local search over the orders of a pipeline's tasks, compiled (see `order_search`).

Tasks of one block (direction · V + virtual stage) on a stage run their micro-batches in order, so an order is a word of
blocks for each stage. A partial order is the number of tasks of each block that each stage has begun, their ends, and
the time when the stage is free.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.base.compiled import compiled, kernel_part, overwrite
from taylor.pipeline_solver.orders.order_moves import begin_of

FULL, BOUND, STOPPED = 0, 1, 2
"""End of a branch and bound: every order was examined; the bound was met; the node limit was reached."""

WEIGHT = 2
"""The block of weight gradients without virtual stages; only then is `gap` above 0."""

EPSILON = 1e-9
"""Times that differ by less than this fraction are equal."""


class Partial(NamedTuple):
    """A partial order.

    Parameters
    ----------
    counts : int64 [K, S]
        Tasks begun of each block.
    ends : float64 [K, m, S]
        Their ends.
    clock, load : float64 [S]
        Time when a stage is free, and its memory.
    waiting : bool [K, S]
        Blocks that are not next: «not yet» was the branch.
    word : int16 [S, tasks], done : int64 [S]
        The order, and its length.
    heads : float64 [K, m, S]
        Work array: lower bounds on the begin of tasks.
    """

    counts: NDArray[np.int64]
    ends: NDArray[np.float64]
    clock: NDArray[np.float64]
    load: NDArray[np.float64]
    waiting: NDArray[np.bool_]
    word: NDArray[np.int16]
    done: NDArray[np.int64]
    heads: NDArray[np.float64]


class Branches(NamedTuple):
    """Branches of every depth, and the state to restore.

    Parameters
    ----------
    stage, number, next : int64 [depths]
        The stage that branches, the number of its branches, and the next of them.
    block : int64 [depths, K + 1]
        Block of each branch; -1 - block for «not yet».
    bound : float64 [depths, K + 1]
    taken : int64 [depths]
        Block of the branch taken, -1 for «not yet».
    clock : float64 [depths], waiting : bool [depths, K]
        The stage's before the branch.
    """

    stage: NDArray[np.int64]
    number: NDArray[np.int64]
    next: NDArray[np.int64]
    block: NDArray[np.int64]
    bound: NDArray[np.float64]
    taken: NDArray[np.int64]
    clock: NDArray[np.float64]
    waiting: NDArray[np.bool_]


class Seen(NamedTuple):
    """Partial orders with which others are compared: `key` uint64, `size` int64 [slots], `state` float64 [slots, …].

    `now` float64 is a work array for the state of one.
    """

    key: NDArray[np.uint64]
    size: NDArray[np.int64]
    state: NDArray[np.float64]
    now: NDArray[np.float64]


@kernel_part
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


@kernel_part
def tails_of(tasks, order):  # type: ignore[no-untyped-def]
    """Least time from the end of every task to the end of the step, float64 [blocks, m, S]."""
    K, S = tasks.durations.shape
    m = tasks.micro_batches
    tails = np.zeros((K, m, S))
    for n in range(m - 1, -1, -1):
        for c in range(order.chain.shape[0] - 1, -1, -1):
            k, s = order.chain[c, 0], order.chain[c, 1]
            along = tail_along_inputs(tasks, order, tails, k, n, s)
            tails[k, n, s] = max(along, tail_by_work(tasks, order, tails, k, n, s))
    return tails


@kernel_part
def tail_along_inputs(tasks, order, tails, k, n, s):  # type: ignore[no-untyped-def]
    """Least time behind a task by the tasks that directly wait for it."""
    dur, gap, m = tasks.durations, order.gap, tasks.micro_batches
    best = tasks.tail[s]
    for c in range(order.chain.shape[0]):
        j, u = order.chain[c, 0], order.chain[c, 1]
        if tasks.feeder_stage[u, j] == s and tasks.feeder_block[u, j] == k:
            best = max(best, tasks.lag[j, u] + dur[j, u] + tails[j, n, u])
    if n + 1 < m:
        best = max(best, dur[k, s] + tails[k, n + 1, s])
    if gap[s] > 0 and k == WEIGHT and n + gap[s] < m:
        best = max(best, dur[0, s] + tails[0, n + gap[s], s])
    return best


@kernel_part
def tail_by_work(tasks, order, tails, k, n, s):  # type: ignore[no-untyped-def]
    """Least time behind a task by its stage's work: all tasks after it, or those of them before a block's last."""
    dur, before, gap, m = tasks.durations, order.before, order.gap, tasks.micro_batches
    K = dur.shape[0]
    whole = (m - 1 - n) * dur[k, s]
    for j in range(K):
        if before[k, j, s]:
            whole += (m - n) * dur[j, s]
    if gap[s] > 0 and k > 0 and n + gap[s] < m:
        whole += (m - n - gap[s]) * (dur[0, s] + (dur[1, s] if k == WEIGHT else 0.0))
    best = whole + tasks.tail[s]
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
    return best


@kernel_part
def bound_of(tasks, order, tails, partial):  # type: ignore[no-untyped-def]
    """Lower bound on the step time of every order that begins with the partial one."""
    dur, m, counts, clock = tasks.durations, tasks.micro_batches, partial.counts, partial.clock
    K, S = dur.shape
    bound = 0.0
    for s in range(S):
        bound = max(bound, clock[s] + tasks.tail[s])
    first = np.full(S, np.inf)
    bound = max(bound, bound_of_heads(tasks, order, tails, partial, first))
    for s in range(S):
        if first[s] == np.inf:
            continue
        left = 0.0
        for k in range(K):
            left += (m - counts[k, s]) * dur[k, s]
        bound = max(bound, first[s] + left + tasks.tail[s])
        for k in range(K):
            if counts[k, s] < m:
                work = work_between(s, k, m - 1, counts, order.before, dur, order.gap) + dur[k, s]
                bound = max(bound, first[s] + work + tails[k, m - 1, s])
    return bound


@kernel_part
def bound_of_heads(tasks, order, tails, partial, first):  # type: ignore[no-untyped-def]
    """Bound by the head of each task, the least time from the start of the step to its begin, and its tail.

    Written to `first` float64 [S]: the least head of each stage's tasks that have not begun.
    """
    dur, lag, gap, m = tasks.durations, tasks.lag, order.gap, tasks.micro_batches
    counts, clock, ends, heads = partial.counts, partial.clock, partial.ends, partial.heads
    chain, before, feeder_stage, feeder_block = order.chain, order.before, tasks.feeder_stage, tasks.feeder_block
    bound = 0.0
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
    return bound


@kernel_part
def frontier(tasks, partial, out):  # type: ignore[no-untyped-def]
    """Write the state that matters to the rest, the times when stages are free and inputs ready; return its length."""
    counts, ends, clock = partial.counts, partial.ends, partial.clock
    K, S = counts.shape
    size = 0
    for s in range(S):
        out[size] = clock[s]
        size += 1
    for s in range(S):
        for k in range(K):
            u = tasks.feeder_stage[s, k]
            if u < 0 or u == s:
                continue
            j = tasks.feeder_block[s, k]
            for n in range(counts[k, s], counts[j, u]):
                out[size] = max(clock[s], ends[j, n, u] + tasks.lag[k, s])
                size += 1
    return size


@kernel_part
def is_dominated(tasks, partial, salts, seen, slack):  # type: ignore[no-untyped-def]
    """Return whether another partial order of these tasks was ready as early everywhere; if not, keep this one."""
    K, S = partial.counts.shape
    key = np.uint64(0)
    for s in range(S):
        for k in range(K):
            if partial.waiting[k, s]:
                return False
            key ^= salts[k, partial.counts[k, s], s]
    now = seen.now
    size = frontier(tasks, partial, now)
    slot = np.int64(key % np.uint64(len(seen.key)))
    if seen.key[slot] == key and seen.size[slot] == size:
        worse = True
        for i in range(size):
            if seen.state[slot, i] > now[i] + slack:
                worse = False
                break
        if worse:
            return True
    seen.key[slot] = key
    seen.size[slot] = size
    overwrite(seen.state[slot], now, size)
    return False


@kernel_part
def ready_at(tasks, partial, s, k):  # type: ignore[no-untyped-def]
    """Time from which the next task of block k can begin on stage s; infinite where it cannot be next."""
    if (
        partial.counts[k, s] == tasks.micro_batches
        or partial.waiting[k, s]
        or partial.load[s] + tasks.change[k, s] > tasks.free[s]
    ):
        return np.inf
    stage, block = tasks.feeder_stage, tasks.feeder_block
    return begin_of(s, k, partial.counts, partial.ends, partial.clock, stage, block, tasks.lag)


@kernel_part
def bound_with(tasks, order, tails, partial, s, k, begin):  # type: ignore[no-untyped-def]
    """`bound_of` with one more task of block k on stage s."""
    was = partial.clock[s]
    partial.clock[s] = begin + tasks.durations[k, s]
    partial.ends[k, partial.counts[k, s], s] = partial.clock[s]
    partial.counts[k, s] += 1
    bound = bound_of(tasks, order, tails, partial)
    partial.counts[k, s] -= 1
    partial.clock[s] = was
    return bound


@kernel_part
def list_branches(tasks, order, tails, partial, branches, depth, best, root, slack):  # type: ignore[no-untyped-def]
    """List the branches of a partial order by rising bound, those that are no better than `best` left out."""
    K, S = tasks.durations.shape
    # The task that would end first.
    first_end, at, which = np.inf, -1, -1
    for s in range(S):
        for k in range(K):
            end = ready_at(tasks, partial, s, k) + tasks.durations[k, s]
            if end < first_end - slack:
                first_end, at, which = end, s, k
    if at < 0:
        return
    branches.stage[depth] = at
    branches.waiting[depth] = partial.waiting[:, at]
    blocks, bounds, count = branches.block[depth], branches.bound[depth], 0
    for k in range(K):
        begin = ready_at(tasks, partial, at, k)
        if k != which and begin >= first_end - slack:
            continue
        reach = bound_with(tasks, order, tails, partial, at, k, begin)
        if reach < best - slack:
            i = count
            while i > 0 and bounds[i - 1] > reach + slack:
                bounds[i], blocks[i] = bounds[i - 1], blocks[i - 1]
                i -= 1
            bounds[i], blocks[i] = reach, k
            count += 1
    if order.gap[at] == 0 and tasks.change[which, at] > 0:
        bounds[count], blocks[count] = root, -1 - which
        count += 1
    branches.number[depth] = count


@kernel_part
def next_branch(branches, depth, below):  # type: ignore[no-untyped-def]
    """Number of the next branch with a bound below `below`, -1 where there is none."""
    while branches.next[depth] < branches.number[depth]:
        i = branches.next[depth]
        branches.next[depth] += 1
        if branches.bound[depth, i] < below:
            return i
    return -1


@kernel_part
def take_branch(tasks, partial, branches, depth, k):  # type: ignore[no-untyped-def]
    """Take a branch; return the number of tasks that begin, 0 for «not yet»."""
    s = branches.stage[depth]
    if k < 0:
        partial.waiting[-1 - k, s] = True
        branches.taken[depth] = -1
        return 0
    branches.clock[depth] = partial.clock[s]
    stage, block = tasks.feeder_stage, tasks.feeder_block
    begin = begin_of(s, k, partial.counts, partial.ends, partial.clock, stage, block, tasks.lag)
    partial.clock[s] = begin + tasks.durations[k, s]
    partial.ends[k, partial.counts[k, s], s] = partial.clock[s]
    partial.counts[k, s] += 1
    partial.load[s] += tasks.change[k, s]
    partial.word[s, partial.done[s]] = k
    partial.done[s] += 1
    partial.waiting[:, s] = False
    branches.taken[depth] = k
    return 1


@kernel_part
def undo_branch(tasks, partial, branches, depth):  # type: ignore[no-untyped-def]
    """Undo the branch taken at a depth; return the number of its tasks."""
    s, k = branches.stage[depth], branches.taken[depth]
    partial.waiting[:, s] = branches.waiting[depth]
    if k < 0:
        return 0
    partial.counts[k, s] -= 1
    partial.clock[s] = branches.clock[depth]
    partial.load[s] -= tasks.change[k, s]
    partial.done[s] -= 1
    return 1


@compiled
def branch_and_bound(tasks, order, salts, to_beat, most_nodes, slots):  # type: ignore[no-untyped-def]
    """The best order that takes less than `to_beat`, by branching on the next task of the stage that is ready first.

    Giffler and Thompson's scheme (1960): of all tasks that can begin, one would end first; the next task of its stage
    is one of those that can begin before then. Where several virtual stages use the same memory a forward may have to
    wait for others: then «not yet» is a branch, too. A partial order is abandoned when its bound is no better than the
    best order, or when another one with the same tasks was ready as early everywhere.

    Parameters
    ----------
    tasks : TaskArrays
    order : Precedence
    salts : uint64 [blocks, m + 1, S]
        Random numbers to hash partial orders; `slots` is the number of those kept.

    Returns
    -------
    tuple
        Step time (`to_beat` when none is better), the words int16 [S, tasks], end, nodes, bound of the root.
    """
    K, S = tasks.durations.shape
    m = tasks.micro_batches
    total = K * m * S
    tails = tails_of(tasks, order)
    partial = Partial(
        np.zeros((K, S), dtype=np.int64), np.zeros((K, m, S)), np.zeros(S), np.zeros(S),
        np.zeros((K, S), dtype=np.bool_), np.zeros((S, K * m), dtype=np.int16), np.zeros(S, dtype=np.int64),
        np.zeros((K, m, S)),
    )  # fmt: skip
    deep = 2 * total + 4
    branches = Branches(
        np.zeros(deep, dtype=np.int64), np.zeros(deep, dtype=np.int64), np.zeros(deep, dtype=np.int64),
        np.zeros((deep, K + 1), dtype=np.int64), np.zeros((deep, K + 1)), np.zeros(deep, dtype=np.int64),
        np.zeros(deep), np.zeros((deep, K), dtype=np.bool_),
    )  # fmt: skip
    seen = Seen(
        np.zeros(slots, dtype=np.uint64), np.zeros(slots, dtype=np.int64), np.zeros((slots, S + total)),
        np.zeros(S + total),
    )  # fmt: skip
    best, best_word = to_beat, partial.word.copy()
    slack = EPSILON * max(1.0, to_beat)
    root = bound_of(tasks, order, tails, partial)
    nodes, depth, scheduled = 0, 0, 0
    fresh = True
    while depth >= 0:
        if not fresh:
            scheduled -= undo_branch(tasks, partial, branches, depth)
        else:
            branches.number[depth] = 0
            branches.next[depth] = 0
            nodes += 1
            if nodes > most_nodes:
                return best, best_word, STOPPED, nodes, root
            if scheduled == total:
                finish = (partial.clock + tasks.tail).max()
                if finish < best - slack:
                    best = finish
                    for s in range(S):
                        overwrite(best_word[s], partial.word[s], K * m)
                    if best <= root + slack:
                        return best, best_word, BOUND, nodes, root
            elif not is_dominated(tasks, partial, salts, seen, slack):
                list_branches(tasks, order, tails, partial, branches, depth, best, root, slack)
        i = next_branch(branches, depth, best - slack)
        fresh = i >= 0
        if fresh:
            scheduled += take_branch(tasks, partial, branches, depth, branches.block[depth, i])
            depth += 1
        else:
            depth -= 1
    return best, best_word, FULL, nodes, root
