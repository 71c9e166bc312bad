"""Pricing: the columns of least reduced cost, found without listing the others.

A column has one option a chunk: a run of layers with a recompute choice. Its reduced cost is the sum of its options'
costs; the stage's memory, its work and the order of the model's layers couple the options. A search over the chunks,
pruned by the least cost of the chunks to come in the remaining memory and work, finds the cheapest columns, or all
below a cost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.base.compiled import compiled, kernel_part, overwrite
from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.schedule import Schedule
from taylor.pipeline_solver.bounds.path_lp import Prices
from taylor.pipeline_solver.columns.chunk_types import ChunkType, RecomputeOptions, chunk_bounds, chunk_types
from taylor.pipeline_solver.columns.columns import EXTRA, ColumnSet, columns_exposed
from taylor.pipeline_solver.columns.phases import Phases
from taylor.pipeline_solver.columns.stage_tuples import TooManyColumns, fixed_parts
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, BoundsParams
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, LayerKind, PipelineProblem
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import duration_blocks, pinned_times, schedule_of

RIVALS = 4
"""Quicker choices, those of the least additional memory, with which a choice is compared where choices have no
order."""


class StageOptions(NamedTuple):
    """The options of a stage's chunks, chunk after chunk in model order.

    Parameters
    ----------
    types : list by virtual stage of list of ChunkType
    start : int64 [V + 1]
        First option of each chunk.
    type, choice : int64 [n]
        Number in ``types[v]``, and of its recompute choice.
    layers : int64 [n, K]
        Layers by kind.
    forward : float64 [n]
        Forward time with the chunk's work other than layers, and without the work of its choice.
    extra : float64 [3, n]
        Time that recompute and other choices add to forward, backward and weight gradient.
    work : float64 [n]
        Time of one micro-batch, forward and backward.
    need : float64 [n, R]
        MiB of each resource at each alive vector: the device's memory and, where they are bounded, the host's and the
        lender's.
    beyond : float64 [n, rivals, R]
        Additional MiB of each for a quicker choice of the same layers; inf where there is no further one.
    window : int64 [n, 3]
        Least and greatest position of the first layer, and the number of layers.
    between : int64 [V, 2]
        Least and greatest number of layers between the stage's previous chunk and this one.
    free : float64 [R]
        MiB available for layers.
    period : int
        Of the phases that distinguish options, 1 where there are none.
    phase : int8 [n]
        Of the first layer.
    """

    types: list[list[ChunkType]]
    start: NDArray[np.int64]
    type: NDArray[np.int64]
    choice: NDArray[np.int64]
    layers: NDArray[np.int64]
    forward: NDArray[np.float64]
    extra: NDArray[np.float64]
    work: NDArray[np.float64]
    need: NDArray[np.float64]
    beyond: NDArray[np.float64]
    window: NDArray[np.int64]
    between: NDArray[np.int64]
    free: NDArray[np.float64]
    period: int
    phase: NDArray[np.int8]

    @property
    def chunk(self) -> NDArray[np.int64]:
        """Virtual stage of each option, int64 [n]."""
        return np.repeat(np.arange(len(self.start) - 1), np.diff(self.start))

    @property
    def end_phase(self) -> NDArray[np.int8]:
        """Phase of the layer that follows the last one, int8 [n]."""
        return ((self.phase + self.window[:, 2]) % self.period).astype(np.int8)


def alike(problem: PipelineProblem) -> PipelineProblem:
    """The problem with kinds of equal cost merged, of the pinned ones those of one place; for columns without order."""
    merged: dict[object, LayerKind] = {}
    for kind in problem.kinds:
        key = (_costs(problem, kind.name), kind.pinned_first, kind.pinned_last, kind.places)
        known = merged.get(key)
        merged[key] = replace(known or kind, joined=False, count=kind.count + (known.count if known else 0))
    return problem.replace(kinds=tuple(merged.values()))


def _costs(problem: PipelineProblem, name: str) -> tuple[object, ...]:
    """All that distinguishes a layer of a kind, on every card, from one of another kind."""
    cards = [problem.on_stage(first) for first in sorted(set(problem.first_alike))]
    return tuple(kind.costs for one in cards for kind in one.kinds if kind.name == name)


def stage_options(
    problem: PipelineProblem,
    work_limits: NDArray[np.float64],
    merged: PipelineProblem | None = None,
    period: int = 1,
    stopper: Stopper | None = None,
) -> list[StageOptions]:
    """The options of every stage whose chunks keep within its work limit, float64 [S].

    With `merged`, the problem with kinds merged by `alike`, only those kinds and the phase in which they begin
    (`phases`) distinguish chunks. `stopper` is checked meanwhile.

    Raises
    ------
    OutOfTime
        If the stopper's deadline passes first.
    """
    schedule = schedule_of(problem)
    lower, upper = chunk_bounds(problem, schedule)
    of = [problem.on_stage(s) for s in range(problem.stages)]
    lightest = np.array([min(kind.forward for kind in one.placed_kinds) * (1.0 + one.backward_ratio) for one in of])
    if (lightest > 0).all():
        least = lower.sum(axis=0) - lower
        work_left = (work_limits * (1 + 1e-9) / (lightest * np.array(problem.pace))).astype(np.int64)
        upper = np.minimum(upper, np.maximum(work_left - least, 0))
    known = RecomputeOptions(stopper=stopper or Stopper(None))
    return [
        _options_of(problem, schedule, s, lower, upper, float(work_limits[s]), known, merged, period)
        for s in range(problem.stages)
    ]


def _options_of(
    problem: PipelineProblem,
    schedule: Schedule,
    s: int,
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    work_limit: float,
    known: RecomputeOptions,
    merged: PipelineProblem | None,
    period: int,
) -> StageOptions:
    chunks = [schedule.chunk_at(k) for k in range(schedule.chunks)]
    low = np.concatenate([[0], np.cumsum([lower[c] for c in chunks])])
    high = np.concatenate([[0], np.cumsum([upper[c] for c in chunks])])
    alive = alive_vectors(schedule)[s]
    free, fixed_forward = fixed_parts(problem, schedule, s, alive)
    here = (problem if merged is None else merged).on_stage(s)
    placed = here.placed_kinds
    K, V = len(placed), problem.interleaves
    limits = np.repeat(problem.limits_elsewhere(s), len(alive))
    layer_mib = np.array([kind.layer_mib for kind in placed])
    types, between, rows, needs, rivals, chunk = [], [], [], [], [], []
    last_place = -1
    for v in range(V):
        place = schedule.position(v, s)
        found = chunk_types(problem, v, s, place, low, high, lower, upper, known)
        if merged is not None:
            found = _distinguished(problem, merged, found, period)
        types.append(found)
        between.append((low[place] - low[last_place + 1], high[place] - high[last_place + 1]))
        last_place = place
        for t, kind in enumerate(found):
            n = len(kind.choices)
            numbers = np.array([t, kind.first, kind.last, sum(kind.layers), *kind.layers], dtype=float)
            rows.append(np.column_stack([np.tile(numbers, (n, 1)), np.arange(n), kind.choices.extra.T]))
            need = kind.choices.need(alive[:, v]) + np.array(kind.layers) @ layer_mib
            need = np.vstack([need, kind.choices.needs_elsewhere(problem, alive[:, v]).reshape(len(limits), n)])
            needs.append(need.T)
            rivals.append(_more(problem, kind, need.T, alive[:, v]))
            chunk += [v] * n
    R = len(alive) + len(limits)
    table = np.vstack(rows) if rows else np.zeros((0, 4 + K + 4))
    need = np.vstack(needs) if needs else np.zeros((0, R))
    more = np.concatenate(rivals) if rivals else np.zeros((0, 1, R))
    of = np.array(chunk, dtype=np.int64)
    layers = table[:, 4 : 4 + K].astype(np.int64)
    choice, extra = table[:, 4 + K], np.ascontiguousarray(table[:, 5 + K :].T)
    forward = layers @ np.array([kind.forward for kind in placed]) + fixed_forward[of]
    work = ((1.0 + here.backward_ratio) * forward + extra.sum(axis=0)) * problem.pace[s]
    least = np.array([work[of == v].min() if (of == v).any() else 0.0 for v in range(V)])
    within = work - least[of] + least.sum() <= work_limit * (1 + 1e-9)
    return StageOptions(
        types,
        np.concatenate([[0], np.cumsum(np.bincount(of[within], minlength=V))]).astype(np.int64),
        table[within, 0].astype(np.int64),
        choice[within].astype(np.int64),
        layers[within],
        forward[within],
        extra[:, within],
        work[within],
        need[within],
        more[within],
        table[within, 1:4].astype(np.int64),
        np.array(between, dtype=np.int64),
        np.append(free, limits),
        period,
        (table[within, 1] % period).astype(np.int8),
    )


def _more(
    problem: PipelineProblem, kind: ChunkType, need: NDArray[np.float64], alive: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Additional need of each resource for quicker choices of a chunk, float64 [n, rivals, R]."""
    n, resources = need.shape
    if not problem.choices:  # the next quicker one needs the least more
        steps = -np.diff(kind.choices.activation)[:, None] * alive
        return np.vstack([np.full((1, resources), np.inf), steps])[:, None, :]
    extra = kind.choices.extra
    more = np.full((n, RIVALS, resources), np.inf)
    for i in range(n):
        quicker = np.flatnonzero((extra <= extra[:, i : i + 1]).all(axis=0) & (extra < extra[:, i : i + 1]).any(axis=0))
        steps = need[quicker] - need[i]
        few = np.argsort(steps.max(axis=1, initial=-np.inf), kind="stable")[:RIVALS]
        more[i, : len(few)] = steps[few]
    return more


def _distinguished(
    problem: PipelineProblem, merged: PipelineProblem, found: list[ChunkType], period: int
) -> list[ChunkType]:
    """Chunk types with their layers by the kinds of `merged`; of those of equal cost, one for each phase."""
    names = [kind.name for kind in merged.placed_kinds]
    of = np.zeros((len(problem.placed_kinds), len(names)), dtype=np.int64)
    for j, kind in enumerate(problem.placed_kinds):
        of_kind = _costs(problem, kind.name)
        name = next(other.name for other in merged.placed_kinds if _costs(merged, other.name) == of_kind)
        of[j, names.index(name)] = 1
    result: dict[object, ChunkType] = {}
    for one in found:
        layers = tuple(int(count) for count in np.array(one.layers) @ of)
        costs = one.choices.vectors.tobytes()
        for begin in range(one.first, min(one.last, one.first + period - 1) + 1):
            key = (layers, costs, begin % period)
            known = result.get(key)
            first, last = begin, one.last - (one.last - begin) % period
            if known is not None:
                first, last = min(first, known.first), max(last, known.last)
            result[key] = ChunkType(layers, first, last, one.choices)
    return list(result.values())


def reduced_costs(problem: PipelineProblem, stage: StageOptions, s: int, prices: Prices) -> NDArray[np.float64]:
    """Term of each option of stage `s` in a column's reduced cost, float64 [n].

    A lower bound under a pairing: a chunk does not determine which of its layers are paired, and all are here.
    """
    chunk = stage.chunk
    cost = stage.layers @ prices.layer
    exposed = pinned_times(problem, s, 2)[:, chunk] if problem.adds_pinned else None
    if problem.pairing is not None:
        rows = 2 + len(prices.duration) - schedule_of(problem).directions
        exposed = pinned_times(problem, s, rows)[:, chunk]
        exposed[:2] += (stage.layers @ np.array([kind.exposed for kind in problem.placed_kinds])).T
    blocks = duration_blocks(problem, stage.forward, stage.extra, s, exposed)
    for block, price in zip(blocks, prices.duration, strict=True):
        cost = cost + price[chunk, s] * block
    if len(prices.begin):
        cost = cost + prices.begin[stage.phase, chunk, s] + prices.end[stage.end_phase, chunk, s]
    if not (prices.late.any() or prices.early.any()):
        return cost
    K = stage.layers.shape[1]
    present = stage.layers > 0
    least = np.where(present.any(axis=1), present.argmax(axis=1), K)
    greatest = np.where(present.any(axis=1), K - 1 - present[:, ::-1].argmax(axis=1), -1)
    for j in range(K - 1):
        cost = cost + prices.late[j, chunk, s] * (greatest > j) + prices.early[j, chunk, s] * (least <= j)
    return cost


def columns_of(
    problem: PipelineProblem, options: list[StageOptions], chosen: list[NDArray[np.int64]], ordered: bool = True
) -> tuple[ColumnSet, NDArray[np.int64]]:
    """The columns of some choices of one option a chunk.

    Parameters
    ----------
    chosen : list by stage of int64 [n, V]

    Returns
    -------
    ColumnSet
    int64 [columns]
        Number of each column's choice among all of `chosen`, stage after stage.
    """
    V, M = problem.interleaves, len(problem.searched_modes)
    parts, groups, before = [], 0, 0
    for stage, rows in zip(options, chosen, strict=True):
        _, group = np.unique(stage.type[rows], axis=0, return_inverse=True)
        group = group.reshape(-1)
        order = np.lexsort((stage.extra[:, rows].sum(axis=(0, 2)), group))
        rows = rows[order]
        recompute = np.zeros((len(rows), V, M), dtype=np.int16)
        for v, types in enumerate(stage.types):
            choices = [kind.choices.recompute for kind in types]
            first = np.cumsum([0, *map(len, choices)])
            at = first[stage.type[rows[:, v]]] + stage.choice[rows[:, v]]
            recompute[:, v] = np.concatenate([np.zeros((0, M), dtype=np.int64), *choices])[at]
        parts.append(
            (
                stage.layers[rows].astype(np.int16),
                recompute,
                stage.forward[rows],
                stage.extra[:, rows],
                group[order] + groups,
                order + before,
                stage.phase[rows],
                stage.end_phase[rows],
            )
        )
        groups += int(group.max(initial=-1)) + 1
        before += len(rows)
    start = np.concatenate([[0], np.cumsum([len(part[0]) for part in parts])]).astype(np.int64)
    layers, recompute, forward, extra, group, number, begin, end = (
        np.concatenate([part[i] for part in parts], axis=1 if i == EXTRA else 0) for i in range(8)
    )
    on = np.repeat(np.arange(problem.stages, dtype=np.int64), np.diff(start))[:, None]
    exposed = columns_exposed(problem, start, layers, ordered)
    durations = np.ascontiguousarray(np.hstack(duration_blocks(problem, forward, extra, on, exposed)))
    period = options[0].period
    phases = Phases(period, begin, end) if period > 1 else None
    return ColumnSet(problem, start, layers, recompute, durations, group, ordered, phases), number


def cheapest(
    stage: StageOptions,
    cost: NDArray[np.float64],
    work_limit: float,
    below: float,
    most: int,
    params: BoundsParams = DEFAULT_PARAMS.bounds,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The cheapest columns, `most` of those whose options cost less than `below` in total.

    Returns
    -------
    int64 [found, V], float64 [found]
        One option a chunk, and the cost.

    Raises
    ------
    TooManyColumns
        When the search takes too long to find them.
    """
    found, price, complete = _found(stage, cost, work_limit, below, most, True, params)
    if not complete:
        raise TooManyColumns("pricing a stage's configurations takes too long")
    return found, price


def all_below(
    stage: StageOptions,
    cost: NDArray[np.float64],
    work_limit: float,
    below: float,
    most: int,
    params: BoundsParams = DEFAULT_PARAMS.bounds,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """All columns whose options cost less than `below`, as `cheapest` gives them.

    Raises
    ------
    TooManyColumns
        When they are more than `most`, or take too long to find.
    """
    found, price, complete = _found(stage, cost, work_limit, below, most, False, params)
    if not complete:
        raise TooManyColumns(f"a stage has more than {most} configurations within the gap")
    return found, price


def _found(
    stage: StageOptions,
    cost: NDArray[np.float64],
    work_limit: float,
    below: float,
    most: int,
    keep: bool,
    params: BoundsParams,
) -> tuple[NDArray[np.int64], NDArray[np.float64], bool]:
    V = len(stage.start) - 1
    nothing = np.zeros((0, V), dtype=np.int64), np.zeros(0), True
    if (np.diff(stage.start) == 0).any():
        return nothing
    chunk = stage.chunk
    least_cost = np.minimum.reduceat(cost, stage.start[:-1])
    least_work = np.minimum.reduceat(stage.work, stage.start[:-1])
    # Without options excluded by the other chunks' least cost or work.
    within = cost - least_cost[chunk] + least_cost.sum() < below
    within &= stage.work - least_work[chunk] + least_work.sum() <= work_limit
    order = np.lexsort((cost, chunk))
    order = order[within[order]]
    chunk = chunk[order]
    start = np.concatenate([[0], np.cumsum(np.bincount(chunk, minlength=V))]).astype(np.int64)
    if (np.diff(start) == 0).any():
        return nothing
    need = np.column_stack([stage.need[order], stage.work[order]])
    free = np.append(stage.free + MEMORY_TOLERANCE_MIB, work_limit)
    if (free < 0).any():
        return nothing
    found, price, count, complete = _search(
        start,
        cost[order],
        np.ascontiguousarray(need),
        free,
        np.ascontiguousarray(stage.beyond[order]),
        stage.window[order],
        stage.between,
        below,
        most,
        keep,
        params.pricing_buckets,
        params.pricing_steps,
    )
    return order[found[:count]], price[:count], complete


@compiled
def _search(  # type: ignore[no-untyped-def]
    start, cost, need, free, beyond, window, between, below, most, keep, buckets, max_steps
):
    """Depth first over the chunks, options by rising cost; the last resource is the work, the others are memory.

    `start`, `beyond`, `window` and `between` are those of `StageOptions`, `cost` float64 [n] the options' costs; `need`
    float64 [n, P] and `free` float64 [P] are theirs with the work as last entry, in units of time. The search finds
    columns of a cost less than `below`: the `most` cheapest with `keep`, else all. One more than `most` ends it, as do
    `max_steps` options visited or skipped. Each resource is tabulated in `buckets` intervals.

    Returns
    -------
    int64 [count or more, V], float64 [count or more], int, bool
        Options and cost of each column, their number, and whether these are all.
    """
    V = len(start) - 1
    P = len(free)
    size = np.maximum(free, 1e-9) / buckets
    rest, table = least_behind(start, cost, need, size, buckets)
    found = np.zeros((min(most, 1024), V), dtype=np.int64)
    price = np.zeros(min(most, 1024))
    count, steps, complete = 0, 0, True
    at = np.zeros(V + 1, dtype=np.int64)
    used = np.zeros((V + 1, P))
    work, least_work = need[:, P - 1].copy(), rest[1:, P - 1] - 1e-9 * free[P - 1]
    spent = np.zeros(V + 1)
    begin = np.zeros(V + 1, dtype=np.int64)
    until = np.zeros(V + 1, dtype=np.int64)
    v = 0
    while v >= 0:
        i = at[v]
        # Most options are too much work, and skipped immediately.
        while (
            i < start[v + 1]
            and free[P - 1] - (used[v, P - 1] + work[i]) < least_work[v]
            and spent[v] + cost[i] + table[0, v + 1, buckets] < below
        ):
            i += 1
        steps += i - at[v]
        if i >= start[v + 1]:
            v -= 1
            continue
        at[v] = i + 1
        steps += 1
        total = spent[v] + cost[i]
        if steps > max_steps:
            complete = False
            break
        # No later option needs less.
        if total + table[0, v + 1, buckets] >= below:
            v -= 1
            continue
        first = max(begin[v] + between[v, 0], window[i, 0])
        last = min(until[v] + between[v, 1], window[i, 1])
        if first > last or not leaves_enough(v, need[i], total, free, size, used, rest, table, below):
            continue
        spent[v + 1] = total
        begin[v + 1] = first + window[i, 2]
        until[v + 1] = last + window[i, 2]
        if v < V - 1:
            v += 1
            at[v] = start[v]
            continue
        if takes_quicker(at, used[V], beyond, free):
            continue
        if count == most and not keep:
            complete = False
            break
        if count == len(price) < most:
            found, price = grown(found, price, min(most, 2 * count))
        slot = count if count < most else int(np.argmax(price))
        count = max(count, slot + 1)
        price[slot] = total
        below = kept_below(found[slot], at, price, below, keep and count == most)
    return found, price, count, complete


@kernel_part
def least_behind(start, cost, need, size, buckets):  # type: ignore[no-untyped-def]
    """Least need of the chunks from v on of every resource, and their least cost by the remaining resource.

    Returns
    -------
    float64 [V + 1, P], float64 [P, V + 1, buckets + 1]
    """
    V, P = len(start) - 1, len(size)
    rest = np.zeros((V + 1, P))
    table = np.full((P, V + 1, buckets + 1), np.inf)
    for p in range(P):
        for b in range(buckets + 1):
            table[p, V, b] = 0.0
    for v in range(V - 1, -1, -1):
        for p in range(P):
            least = np.inf
            # Options are in order of cost: one that needs no less than a cheaper one is never the best.
            least_take = buckets + 1
            for i in range(start[v], start[v + 1]):
                least = min(least, need[i, p])
                take = int(need[i, p] / size[p])
                if take >= least_take:
                    continue
                least_take = take
                for b in range(take, buckets + 1):
                    table[p, v, b] = min(table[p, v, b], cost[i] + table[p, v + 1, b - take])
            rest[v, p] = rest[v + 1, p] + least
    return rest, table


@kernel_part
def leaves_enough(v, need, total, free, size, used, rest, table, below):  # type: ignore[no-untyped-def]
    """Add the needs of chunk v to `used`; return whether the chunks behind it may fit, at a cost less than `below`."""
    last, buckets = table.shape[1] - 2, table.shape[2] - 1
    for p in range(len(free)):
        used[v + 1, p] = used[v, p] + need[p]
        left = free[p] - used[v + 1, p]
        if left < rest[v + 1, p] - 1e-9 * free[p]:
            return False
        # Behind the last chunk only the cost counts.
        if v < last and total + table[p, v + 1, min(buckets, max(0, int(left / size[p])))] >= below:
            return False
    return True


@kernel_part
def takes_quicker(at, used, beyond, free):  # type: ignore[no-untyped-def]
    """Return whether some chunk may take a quicker choice and the stage still fits: then the column is dominated."""
    for w in range(len(at) - 2, -1, -1):  # the last chunk is the likeliest to decide
        j = at[w] - 1
        for k in range(beyond.shape[1]):
            if beyond[j, k, 0] == np.inf:
                break
            over = False
            for p in range(len(free) - 1):
                if used[p] + beyond[j, k, p] > free[p]:
                    over = True
                    break
            if not over:
                return True
    return False


@kernel_part
def grown(found, price, longer):  # type: ignore[no-untyped-def]
    """Copies of the columns found and of their costs, with space for `longer`."""
    more, more_price = np.zeros((longer, found.shape[1]), dtype=np.int64), np.zeros(longer)
    for i in range(len(price)):
        overwrite(more[i], found[i], found.shape[1])
    overwrite(more_price, price, len(price))
    return more, more_price


@kernel_part
def kept_below(column, at, price, below, full):  # type: ignore[no-untyped-def]
    """Write a column; return the cost that further ones must be below, lower once `full`."""
    for w in range(len(column)):
        column[w] = at[w] - 1
    return price.max() if full else below
