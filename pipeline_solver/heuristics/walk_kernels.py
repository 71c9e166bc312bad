"""The compiled kernels of `plan_walk`: costs of chunks, the least recompute that fits, moves, and the local search.

`stack`, `line`, `cuts` and the states are the tuples described in `plan_walk`.
"""

from __future__ import annotations

import numpy as np

from taylor.base.compiled import compiled, kernel_part, overwrite
from taylor.pipeline_solver.heuristics.annealing import cut_lengths, trace_path
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB
from taylor.pipeline_solver.timing.event_kernels import longest_path

NEAR_CHUNKS = 3
"""Most chunks, in model order, that a layer passes in a near move."""

SWAP_CHUNKS, SIZE_CHUNKS = 16, 8
"""Most chunks between two that swap sizes, and most that a size moves."""

RECOMPUTE, NEAR, FAR, STAGE, RANGE, SWAP, SIZE = range(7)
"""Kinds of moves, in the order of `Line.until`; the remaining moves are of two layers."""


@kernel_part
def kept_mib(stack, begin, taken, k):  # type: ignore[no-untyped-def]
    """Activations of a micro-batch in chunk k, MiB: its first layers take the modes in order."""
    at, end = begin[k], begin[k + 1]
    total = 0.0
    for j in range(taken.shape[0]):
        until = at + taken[j, k]
        total += stack.kept[j + 1, until] - stack.kept[j + 1, at]
        at = until
    return total + stack.kept[0, end] - stack.kept[0, at]


@kernel_part
def recompute_time(stack, line, begin, taken, k):  # type: ignore[no-untyped-def]
    """Recompute time of chunk k."""
    at, card = begin[k], line.card[line.stage[k]]
    total = 0.0
    for j in range(taken.shape[0]):
        until = at + taken[j, k]
        total += stack.extra[card, j, until] - stack.extra[card, j, at]
        at = until
    return total


@kernel_part
def stage_over(stack, line, begin, taken, s, row):  # type: ignore[no-untyped-def]
    """MiB of stage s over its limit at the worst of its alive vectors, whose number is written to `row` [1]."""
    V = line.place.shape[0]
    states = 0.0
    kept = np.empty(V)
    for v in range(V):
        k = line.place[v, s]
        states += stack.states[begin[k + 1]] - stack.states[begin[k]]
        kept[v] = kept_mib(stack, begin, taken, k)
    worst = -np.inf
    for p in range(line.free.shape[1]):
        need = states - line.free[s, p]
        if need == -np.inf:
            continue
        for v in range(V):
            need += line.alive[s, p, v] * kept[v]
        if need > worst:
            worst = need
            row[0] = p
    return worst


@kernel_part
def set_given(line, begin, taken, k):  # type: ignore[no-untyped-def]
    """Set chunk k's given recompute, at most its layers; return whether that is possible."""
    size = begin[k + 1] - begin[k]
    left = size
    for j in range(taken.shape[0]):
        if line.uniform[0] >= 0:
            taken[j, k] = min(line.uniform[1], size) if line.uniform[0] == j else 0
        elif line.fixed[j, k] >= 0:
            if line.fixed[j, k] > left:
                return False
            taken[j, k] = line.fixed[j, k]
        else:
            taken[j, k] = min(taken[j, k], left)
        left -= taken[j, k]
    return left >= 0


@kernel_part
def step_of(line, begin, taken, k, option, sign):  # type: ignore[no-untyped-def]
    """Recompute one more layer (sign 1) or one less (-1) in chunk k; return whether that is possible.

    Options below the number of modes M change mode `option`; those from M on exchange a layer of the first mode
    with one of mode `option` - M + 1.
    """
    M = taken.shape[0]
    if line.uniform[0] >= 0:
        return False
    j = option if option < M else 0
    other = -1 if option < M else option - M + 1
    if line.fixed[j, k] >= 0 or taken[j, k] + sign < 0:
        return False
    if other >= 0 and (line.fixed[other, k] >= 0 or taken[other, k] - sign < 0):
        return False
    if other < 0 and sign > 0:
        total = 0
        for i in range(M):
            total += taken[i, k]
        if total >= begin[k + 1] - begin[k]:
            return False
    taken[j, k] += sign
    if other >= 0:
        taken[other, k] -= sign
    return True


@kernel_part
def stray_of(line, begin, s):  # type: ignore[no-untyped-def]
    """Layers that stage s has between its chunks' borders and the nearest allowed ones."""
    total = 0.0
    for v in range(line.place.shape[0]):
        total += line.strays[begin[line.place[v, s]]]
    return total


@kernel_part
def few_layers(line):  # type: ignore[no-untyped-def]
    """Layers of a move: one, or most often as many as lie between allowed borders."""
    if line.unit == 1:
        return 1
    return line.unit if np.random.random() < 0.7 else 1


@kernel_part
def fit_stage(stack, line, begin, taken, s, locked):  # type: ignore[no-untyped-def]
    """Adjust the recompute of stage s to the least that its memory needs; return the MiB still over.

    Add layers where a MiB costs the least time, then remove some where that saves the most; chunk `locked` (-1: none)
    stays unchanged.
    """
    V, M = line.place.shape[0], taken.shape[0]
    row = np.zeros(1, dtype=np.int64)
    for v in range(V):
        if not set_given(line, begin, taken, line.place[v, s]):
            return np.inf
    options = 2 * M - 1 if M else 0
    over = stage_over(stack, line, begin, taken, s, row)
    while over > MEMORY_TOLERANCE_MIB:
        k, option = cheapest_step(stack, line, begin, taken, s, locked, options, row[0])
        if option == options:
            if locked < 0:
                return over
            locked = -1  # the other chunks alone cannot free enough memory
            continue
        step_of(line, begin, taken, k, option, 1)
        over = stage_over(stack, line, begin, taken, s, row)
    while True:
        k, option = best_saving(stack, line, begin, taken, s, locked, options, row)
        if option == options:
            return 0.0
        step_of(line, begin, taken, k, option, -1)


@kernel_part
def cheapest_step(stack, line, begin, taken, s, locked, options, p):  # type: ignore[no-untyped-def]
    """Chunk and option of one more recomputed layer of stage s that frees memory for the least time a MiB.

    `options`, the number of options, stands for none; `p` is the alive vector that counts.
    """
    # None yet; -1 would have another type, for which `step_of` would be compiled again.
    best, best_k, best_option = np.inf, line.place[0, s], options
    for v in range(line.place.shape[0]):
        k = line.place[v, s]
        alive = line.alive[s, p, v]
        if k == locked or alive == 0.0:
            continue
        kept, extra = kept_mib(stack, begin, taken, k), recompute_time(stack, line, begin, taken, k)
        for option in range(options):
            if not step_of(line, begin, taken, k, option, 1):
                continue
            freed = alive * (kept - kept_mib(stack, begin, taken, k))
            price = recompute_time(stack, line, begin, taken, k) - extra
            step_of(line, begin, taken, k, option, -1)
            if freed > 0.0 and price / freed < best:
                best, best_k, best_option = price / freed, k, option
    return best_k, best_option


@kernel_part
def best_saving(stack, line, begin, taken, s, locked, options, row):  # type: ignore[no-untyped-def]
    """Chunk and option of one recomputed layer less of stage s that saves most time and fits; as in `cheapest_step`."""
    best, best_k, best_option = 0.0, line.place[0, s], options
    for v in range(line.place.shape[0]):
        k = line.place[v, s]
        if k == locked:
            continue
        extra = recompute_time(stack, line, begin, taken, k)
        for option in range(options):
            if not step_of(line, begin, taken, k, option, -1):
                continue
            saved = extra - recompute_time(stack, line, begin, taken, k)
            if saved > best and stage_over(stack, line, begin, taken, s, row) <= MEMORY_TOLERANCE_MIB:
                best, best_k, best_option = saved, k, option
            step_of(line, begin, taken, k, option, 1)
    return best_k, best_option


@compiled
def fit_all(stack, line, begin, taken):  # type: ignore[no-untyped-def]
    """`fit_stage` on all stages; total MiB over."""
    total = 0.0
    for s in range(line.place.shape[1]):
        total += fit_stage(stack, line, begin, taken, s, -1) + stray_of(line, begin, s)
    return total


@kernel_part
def block_count(line):  # type: ignore[no-untyped-def]
    """Directions of the duration classes, those of combined passes included."""
    directions = 3 if line.shares[0, 2] > 0.0 else 2
    return directions + 2 * line.beside.shape[1]


@kernel_part
def chunk_blocks(stack, line, begin, taken, k, blocks, values):  # type: ignore[no-untyped-def]
    """Durations of chunk k's tasks by direction, into `values` [blocks]."""
    stage, v, low, high = line.stage[k], line.interleave[k], begin[k], begin[k + 1]
    card, directions = line.card[stage], blocks - 2 * line.beside.shape[1]
    forward = stack.forward[card, high] - stack.forward[card, low] + line.besides[k]
    for b in range(directions):
        values[b] = line.shares[card, b] * forward
    values[1] += recompute_time(stack, line, begin, taken, k) / line.splits
    # Combined passes: the unpaired layers expose their communication.
    for j in range(line.beside.shape[1]):
        for d in range(2):
            at, exposed = directions + 2 * j + d, line.pinned_times[d, k]
            if line.beside[v, j] >= 0:
                other = line.place[line.beside[v, j], stage]
                own, theirs = high - low, begin[other + 1] - begin[other]
                pairs = min(own, theirs)
                if line.positions >= 0:
                    pairs = min(pairs, max(0, own + theirs - line.positions))
                first_ones = line.positions < 0 and d == 0
                first = low + pairs if first_ones else low
                last = high if first_ones else high - pairs
                exposed += stack.exposed[d, last] - stack.exposed[d, first]
            values[at] = values[d] + exposed / line.splits
    for d in range(2):
        values[d] += (stack.exposed[d, high] - stack.exposed[d, low] + line.pinned_times[d, k]) / line.splits
    for b in range(blocks):
        values[b] *= line.pace[stage]


@compiled
def task_durations(stack, line, tails, begin, taken):  # type: ignore[no-untyped-def]
    """Duration of every class of the event graph, float64 [R]."""
    V, S = line.place.shape
    blocks = block_count(line)
    durations = np.zeros(blocks * V * S + S)
    values = np.zeros(blocks)
    for k in range(len(line.stage)):
        chunk_blocks(stack, line, begin, taken, k, blocks, values)
        for b in range(blocks):
            durations[(b * V + line.interleave[k]) * S + line.stage[k]] = values[b]
    for s in range(S):
        durations[blocks * V * S + s] = tails[s]
    return durations


@kernel_part
def move_layers(line, begin, source, target, count):  # type: ignore[no-untyped-def]
    """Move `count` layers of one chunk to another, shifting those between; return whether both stay within bounds."""
    if source == target:
        return False
    if begin[source + 1] - begin[source] - count < line.lower[source]:
        return False
    if begin[target + 1] - begin[target] + count > line.upper[target]:
        return False
    if source < target:
        for k in range(source + 1, target + 1):
            begin[k] -= count
    else:
        for k in range(target + 1, source + 1):
            begin[k] += count
    return True


@kernel_part
def swap_sizes(line, begin, one, other):  # type: ignore[no-untyped-def]
    """Swap the sizes of two chunks, shifting those between; return whether they differ and stay within bounds."""
    low, high = min(one, other), max(one, other)
    more = (begin[high + 1] - begin[high]) - (begin[low + 1] - begin[low])
    source, target = (high, low) if more > 0 else (low, high)
    return more != 0 and move_layers(line, begin, source, target, abs(more))


@kernel_part
def move_size(line, begin, source, target):  # type: ignore[no-untyped-def]
    """Move the size of `source` to `target`, each between taking its neighbour's; return whether all stay in bounds."""
    size = begin[source + 1] - begin[source]
    for k in range(source, target):
        begin[k + 1] = begin[k] + begin[k + 2] - begin[k + 1]
    for k in range(source, target, -1):
        begin[k] = begin[k - 1] + size
    for k in range(min(source, target), max(source, target) + 1):
        if not line.lower[k] <= begin[k + 1] - begin[k] <= line.upper[k]:
            return False
    return source != target


@kernel_part
def propose(line, begin, taken, locked):  # type: ignore[no-untyped-def]
    """Change `begin` and `taken` at random; return whether that succeeded.

    `locked` [1] receives the chunk whose recompute must stay, or -1.
    """
    V, S = line.place.shape
    C, M = len(line.stage), taken.shape[0]
    until = line.until
    locked[0] = -1
    draw = np.random.random()
    if M and line.uniform[0] < 0 and draw < until[RECOMPUTE]:
        # Another recompute choice of one chunk; the stage's other chunks compensate.
        k = np.random.randint(C)
        sign = 1 if np.random.random() < 0.5 else -1
        locked[0] = k
        return step_of(line, begin, taken, k, np.random.randint(2 * M - 1), sign)
    if draw < until[NEAR]:
        source = np.random.randint(C)
        target = source + np.random.randint(-NEAR_CHUNKS, NEAR_CHUNKS + 1)
        return 0 <= target < C and move_layers(line, begin, source, target, few_layers(line))
    if draw < until[FAR]:
        return move_layers(line, begin, np.random.randint(C), np.random.randint(C), few_layers(line))
    if draw < until[STAGE]:
        # Between two chunks of one stage.
        s = np.random.randint(S)
        source, target = line.place[np.random.randint(V), s], line.place[np.random.randint(V), s]
        return move_layers(line, begin, source, target, few_layers(line))
    if draw < until[RANGE]:
        # Between two virtual stages on a range of stages.
        v, w = np.random.randint(V), np.random.randint(V)
        low, high = np.random.randint(S), np.random.randint(S)
        moved = False
        for s in range(min(low, high), max(low, high) + 1):
            moved = move_layers(line, begin, line.place[v, s], line.place[w, s], few_layers(line)) or moved
        return moved
    if draw < until[SWAP]:
        one = np.random.randint(C)
        other = one + np.random.randint(1, SWAP_CHUNKS + 1)
        return other < C and swap_sizes(line, begin, one, other)
    if draw < until[SIZE]:
        source = np.random.randint(C)
        target = source + np.random.randint(-SIZE_CHUNKS, SIZE_CHUNKS + 1)
        return 0 <= target < C and move_size(line, begin, source, target)
    # Two layers at once: an exchange, or one chunk gives two.
    source, target = np.random.randint(C), np.random.randint(C)
    moved = move_layers(line, begin, source, target, few_layers(line))
    if np.random.random() < 0.5:
        source = np.random.randint(C)
    else:
        target = np.random.randint(C)
    return move_layers(line, begin, source, target, few_layers(line)) or moved


@kernel_part
def assign(begin, taken, new_begin, new_taken):  # type: ignore[no-untyped-def]
    """Overwrite a state."""
    overwrite(begin, new_begin, len(begin))
    for j in range(taken.shape[0]):
        for k in range(taken.shape[1]):
            taken[j, k] = new_taken[j, k]


@compiled
def walk(tasks, stack, line, cuts, best, now, steps, seed, hot, cold):  # type: ignore[no-untyped-def]
    """Metropolis search from state `now`; `best` receives the best state. Returns its MiB over the limits and step
    time.

    While a state is over the limits, only the MiB over count.
    """
    np.random.seed(seed)
    V, S = line.place.shape
    blocks = block_count(line)
    classes = blocks * V * S
    constant, known = cuts.constant, cuts.known
    ends = np.zeros(tasks.before.shape[0] + 1)
    durations = task_durations(stack, line, tasks.tails, now.begin, now.taken)
    time = longest_path(tasks.before, tasks.needed, tasks.task_class, tasks.edge_lag, tasks.last, durations, ends)
    row = np.zeros(1, dtype=np.int64)
    over_of = np.zeros(S)
    for s in range(S):
        excess = stage_over(stack, line, now.begin, now.taken, s, row)
        over_of[s] = (excess if excess > MEMORY_TOLERANCE_MIB else 0.0) + stray_of(line, now.begin, s)
    over = over_of.sum()
    best_over, best_time = over, time
    values, trial = cut_lengths(cuts.counts, constant, known[0], durations, classes), np.zeros(len(constant))
    begin, taken = now.begin.copy(), now.taken.copy()
    new_over = over_of.copy()
    touched = np.zeros(S, dtype=np.bool_)
    changed = np.zeros(classes, dtype=np.int64)
    before = np.zeros(classes)
    path = np.zeros(classes)
    piece = np.zeros(blocks)
    locked = np.zeros(1, dtype=np.int64)
    for step in range(steps):
        if not propose(line, begin, taken, locked):
            assign(begin, taken, now.begin, now.taken)
            continue
        mark_touched(line, now, begin, taken, touched)
        overwrite(new_over, over_of, S)
        fits = fit_touched(stack, line, begin, taken, touched, locked[0], new_over, over > 0.0)
        total = new_over.sum()
        if not fits or total > over:
            assign(begin, taken, now.begin, now.taken)
            continue
        n = change_durations(stack, line, begin, taken, touched, piece, durations, changed, before)
        temperature = hot * (cold / hot) ** (step / steps)
        threshold = time - temperature * np.log(np.random.random() + 1e-300)
        if total < over:
            threshold = np.inf
        overwrite(trial, values, known[0])
        bound, strictest = longest_changed(trial, cuts.counts, known[0], durations, changed, before, n)
        known[1] += 1
        length = np.inf
        if bound > threshold:
            cuts.refused[strictest] = known[1]
        else:
            length = longest_path(
                tasks.before, tasks.needed, tasks.task_class, tasks.edge_lag, tasks.last, durations, ends
            )
            if length > threshold and length > bound * (1 + 1e-7):
                g = place_of_cut(cuts)
                constant[g] = trace_path(tasks, ends, path)
                values[g] = add_path(cuts.counts, g, path, constant[g], durations, changed, before, n)
        if bound > threshold or length > threshold:
            restore(durations, changed, before, n)
            assign(begin, taken, now.begin, now.taken)
            continue
        time, over = length, total
        overwrite(over_of, new_over, S)
        overwrite(values, trial, known[0])
        assign(now.begin, now.taken, begin, taken)
        if over < best_over or (over <= best_over and time < best_time - 1e-9):
            best_over, best_time = over, time
            assign(best.begin, best.taken, begin, taken)
    return best_over, best_time


@kernel_part
def mark_touched(line, now, begin, taken, touched):  # type: ignore[no-untyped-def]
    """Mark the stages with a chunk that has other layers, or other recomputed ones, than in state `now`."""
    for s in range(len(touched)):
        touched[s] = False
    # A chunk with other layers of the same kinds keeps its cost.
    for k in range(len(line.stage)):
        moved = begin[k] != now.begin[k] or begin[k + 1] != now.begin[k + 1]
        for j in range(taken.shape[0]):
            moved = moved or taken[j, k] != now.taken[j, k]
        touched[line.stage[k]] |= moved


@kernel_part
def fit_touched(stack, line, begin, taken, touched, locked, over, may_exceed):  # type: ignore[no-untyped-def]
    """`fit_stage` on the marked stages, until one is over its limit and must not be; return whether none was."""
    for s in range(len(touched)):
        if touched[s]:
            over[s] = fit_stage(stack, line, begin, taken, s, locked) + stray_of(line, begin, s)
            if over[s] > MEMORY_TOLERANCE_MIB and not may_exceed:
                return False
    return True


@kernel_part
def change_durations(stack, line, begin, taken, touched, piece, durations, changed, before):  # type: ignore[no-untyped-def]
    """Overwrite the durations of the marked stages; return how many differ.

    Written to `changed` and `before`: their classes, and what they were.
    """
    V, S = line.place.shape
    n = 0
    for k in range(len(line.stage)):
        if touched[line.stage[k]]:
            chunk_blocks(stack, line, begin, taken, k, len(piece), piece)
            for b in range(len(piece)):
                r = (b * V + line.interleave[k]) * S + line.stage[k]
                if piece[b] != durations[r]:
                    changed[n], before[n] = r, durations[r]
                    durations[r] = piece[b]
                    n += 1
    return n


@kernel_part
def longest_changed(lengths, counts, known, durations, changed, before, n):  # type: ignore[no-untyped-def]
    """Add to the known paths' lengths what n durations change; return the longest and its path, -1 for none."""
    for i in range(n):
        change = durations[changed[i]] - before[i]
        for g in range(known):
            lengths[g] += change * counts[changed[i], g]
    longest, strictest = 0.0, -1
    for g in range(known):
        if lengths[g] > longest:
            longest, strictest = lengths[g], g
    return longest, strictest


@kernel_part
def place_of_cut(cuts):  # type: ignore[no-untyped-def]
    """Place for a new path: a free one, or that of the path which rejected no move for longest."""
    g = cuts.known[0]
    if g == len(cuts.constant):
        g = cuts.refused.argmin()
    else:
        cuts.known[0] += 1
    cuts.refused[g] = cuts.known[1]
    return g


@kernel_part
def add_path(counts, g, path, constant, durations, changed, before, n):  # type: ignore[no-untyped-def]
    """Write a path to place g; return its length at the durations before the change of n of them."""
    length = constant
    for r in range(len(path)):
        counts[r, g] = path[r]
        length += path[r] * durations[r]
    for i in range(n):
        length += path[changed[i]] * (before[i] - durations[changed[i]])
    return length


@kernel_part
def restore(durations, changed, before, n):  # type: ignore[no-untyped-def]
    """Undo the change of n durations."""
    for i in range(n):
        durations[changed[i]] = before[i]
