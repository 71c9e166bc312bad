"""Local search over the orders of a pipeline's tasks, compiled: one task of a stage moves earlier or later."""

from __future__ import annotations

import numpy as np

from taylor.base.compiled import compiled, kernel_part, overwrite

SMALL = 1e-4
"""Weight of the stages' mean end relative to the step time: of equally long orders, the tighter one is kept."""


@kernel_part
def begin_of(s, k, counts, ends, clock, feeder_stage, feeder_block, lag):  # type: ignore[no-untyped-def]
    """Time from which the next task of block k can begin on stage s; infinite before its input is complete."""
    n, u = counts[k, s], feeder_stage[s, k]
    if u < 0:
        return clock[s]
    j = feeder_block[s, k]
    if counts[j, u] <= n:
        return np.inf
    return max(clock[s], ends[j, n, u] + lag[k, s])


@kernel_part
def play(words, tasks, ends, at, counts, clock):  # type: ignore[no-untyped-def]
    """Step time of the orders; infinite where they deadlock. Fills the end of each task of a block, [K, m, S]."""
    S, length = words.shape
    stage, block, lag, durations = tasks.feeder_stage, tasks.feeder_block, tasks.lag, tasks.durations
    at[:] = 0
    counts[:] = 0
    clock[:] = 0.0
    left = S * length
    while left > 0:
        moved = False
        for s in range(S):
            while at[s] < length:
                k = words[s, at[s]]
                n, u = counts[k, s], stage[s, k]
                begin = clock[s]
                if u >= 0:
                    if counts[block[s, k], u] <= n:
                        break
                    begin = max(begin, ends[block[s, k], n, u] + lag[k, s])
                clock[s] = begin + durations[k, s]
                ends[k, n, s] = clock[s]
                counts[k, s] = n + 1
                at[s] += 1
                left -= 1
                moved = True
        if not moved:
            return np.inf
    finish = 0.0
    for s in range(S):
        finish = max(finish, clock[s] + tasks.tail[s])
    return finish


@kernel_part
def fits(word, change, free, s):  # type: ignore[no-untyped-def]
    """Return whether a stage's order fits its memory at all times."""
    load = 0.0
    for k in word:
        load += change[k, s]
        if load > free:
            return False
    return True


@compiled
def finish_of(words, tasks):  # type: ignore[no-untyped-def]
    """Step time of the orders; infinite where they do not fit a stage's memory or they deadlock."""
    K, S = tasks.durations.shape
    for s in range(S):
        if not fits(words[s], tasks.change, tasks.free[s], s):
            return np.inf
    ends = np.zeros((K, tasks.micro_batches, S))
    at, counts, clock = np.zeros(S, dtype=np.int64), np.zeros((K, S), dtype=np.int64), np.zeros(S)
    return play(words, tasks, ends, at, counts, clock)


@compiled
def dispatch(tasks, most_ahead, in_flight, patience):  # type: ignore[no-untyped-def]
    """Orders by rules: the task that can begin first is next; among ties, backwards before forwards before weights.

    Parameters
    ----------
    tasks : TaskArrays
    most_ahead : float64 [S]
        Micro-batches that a stage may keep, over its virtual stages.
    in_flight : int
        Micro-batches that may be between their first forward and their last backward.
    patience : float
        A weight gradient runs only where nothing else can begin within this fraction of its time.
    """
    K, S = tasks.durations.shape
    m, V = tasks.micro_batches, K // 3
    words = np.zeros((S, K * m), dtype=np.int16)
    ends = np.zeros((K, m, S))
    counts, clock, load = np.zeros((K, S), dtype=np.int64), np.zeros(S), np.zeros(S)
    done, alive = np.zeros(S, dtype=np.int64), np.zeros(S)
    for _ in range(S * K * m):
        s, k = first_to_begin(tasks, most_ahead, in_flight, patience, counts, ends, clock, load, alive)
        if s < 0:
            return words, np.inf
        begin = begin_of(s, k, counts, ends, clock, tasks.feeder_stage, tasks.feeder_block, tasks.lag)
        clock[s] = begin + tasks.durations[k, s]
        ends[k, counts[k, s], s] = clock[s]
        counts[k, s] += 1
        load[s] += tasks.change[k, s]
        alive[s] += 1.0 if k < V else (-1.0 if k >= 2 * V else 0.0)
        words[s, done[s]] = k
        done[s] += 1
    return words, (clock + tasks.tail).max()


@kernel_part
def first_to_begin(tasks, most_ahead, in_flight, patience, counts, ends, clock, load, alive):  # type: ignore[no-untyped-def]
    """Stage and block of the next task by the rules of `dispatch`; -1 where none can begin."""
    stage, block, lag, durations = tasks.feeder_stage, tasks.feeder_block, tasks.lag, tasks.durations
    m, change, free = tasks.micro_batches, tasks.change, tasks.free
    K, S = durations.shape
    V = K // 3
    best, at, which = np.inf, -1, -1
    for s in range(S):
        for c in range(K):
            # Backwards of later chunks first, then forwards of later chunks, then weight gradients.
            k = (2 * V - 1 - c) if c < 2 * V else c
            n, u = counts[k, s], stage[s, k]
            if n == m or load[s] + change[k, s] > free[s] or (k < V and alive[s] >= most_ahead[s]):
                continue
            begin = clock[s]
            if u >= 0:
                if counts[block[s, k], u] <= n:
                    continue
                begin = max(begin, ends[block[s, k], n, u] + lag[k, s])
            elif n - counts[V + k, s] >= in_flight:
                continue
            if k >= 2 * V:
                begin += patience * durations[k, s]
            if begin < best - 1e-9:
                best, at, which = begin, s, k
    return at, which


@compiled
def improve(words, tasks, rounds, heat, target, seed):  # type: ignore[no-untyped-def]
    """Simulated annealing from given orders: the best ones found, and their step time.

    A move takes one task of a stage to another place near it. `heat` is the first temperature as a fraction of the step
    time; it falls to 0 over `rounds` moves. Ends early when `target` is reached.
    """
    np.random.seed(seed)
    K, S = tasks.durations.shape
    length = words.shape[1]
    ends = np.zeros((K, tasks.micro_batches, S))
    at, counts, clock = np.zeros(S, dtype=np.int64), np.zeros((K, S), dtype=np.int64), np.zeros(S)
    own = words.copy()
    time = play(own, tasks, ends, at, counts, clock)
    best, best_words = time, own.copy()
    score = time + SMALL * clock.mean()
    old = np.zeros(length, dtype=np.int16)
    for turn in range(rounds):
        if best <= target:
            break
        s = np.random.randint(S)
        i = np.random.randint(length)
        reach = 1 + np.random.randint(1 + min(length - 1, 2 * K))
        j = i + reach if np.random.random() < 0.5 else i - reach
        if j < 0 or j >= length:
            continue
        overwrite(old, own[s], length)
        k = own[s, i]
        step = 1 if j > i else -1
        t = i
        while t != j:
            own[s, t] = own[s, t + step]
            t += step
        own[s, j] = k
        new = np.inf
        if fits(own[s], tasks.change, tasks.free[s], s):
            new = play(own, tasks, ends, at, counts, clock)
        worth = new + SMALL * clock.mean()
        warm = heat * time * (1.0 - turn / rounds)
        if worth <= score or (new < np.inf and warm > 0 and np.random.random() < np.exp((score - worth) / warm)):
            score = worth
            if new < best - 1e-9:
                best = new
                best_words[:] = own
        else:
            overwrite(own[s], old, length)
    return best_words, best
