"""Memory and time of a plan, stated apart from the product: orders of tasks as published, memory and time by hand.

The exact checker takes the order of tasks from the product's generators, so it cannot see one wrong. Here nothing but
the problem's and the plan's figures is read: orders come from `published_orders`, where a chunk lies from the words of
the papers, and both peak and step time from the tasks one by one.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

from benchmarks.reliability.published_orders import (
    BACKWARD,
    FORWARD,
    WEIGHT_GRADIENT,
    Order,
    megatron_interleaving,
    mindspore_interleaving,
    mindspore_seqpipe,
    torch_order,
)
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem, StageTimes

TOLERANCE = 1e-6


def own_faults(problem: PipelineProblem, plan: PipelinePlan, objective: float) -> list[str]:
    """Stages over their limit, and a step time other than the one claimed."""
    orders = [order_of(problem, s) for s in range(problem.stages)]
    chunks = {
        (v, s): _layers_of(problem, plan, v, s) for v in range(problem.interleaves) for s in range(problem.stages)
    }
    found = []
    for s, order in enumerate(orders):
        peak = _peak(problem, order, [chunks[v, s] for v in range(problem.interleaves)], s)
        if peak > problem.limit_mib[s] + 1e-5:
            found.append(f"stage {s} needs {peak:.6f} MiB of {problem.limit_mib[s]} by the published order")
    taken = _step_time(problem, orders, chunks)
    if abs(taken - objective) > TOLERANCE * max(1e-6, taken):
        found.append(f"the step takes {taken:.9f} by the published order, not {objective:.9f}")
    return found


def order_of(problem: PipelineProblem, s: int) -> Order:
    """The order of a stage."""
    S, V, m, spec = problem.stages, problem.interleaves, problem.micro_batches, problem.schedule
    if spec.name == "gpipe":
        return [(way, 0, i, 0) for way in (FORWARD, BACKWARD) for i in range(m)]
    if spec.name in ("seqpipe", "seqvpp", "seqsmartvpp"):
        return mindspore_seqpipe(S, V, m, spec.seq_splits, s, spec.name)
    if spec.name == "zbv":
        return torch_order("ScheduleZBVZeroBubble", S, V, m)(s)
    if V > 1 and spec.name == "megatron-interleaved":
        return megatron_interleaving(S, V, m, spec.group_size or S, s)
    if V > 1 and spec.name == "interleaved" and m >= S:
        return mindspore_interleaving(S, V, m, spec.low_memory, s)
    # 1F1B, and interleaving of fewer micro-batches than stages, which is one round of all of them.
    forwards = [(v, i) for v in range(V) for i in range(m)]
    backwards = [(v, i) for v in reversed(range(V)) for i in range(m)]
    step = 1 if V == 1 or spec.low_memory else 2
    ahead = min((V - 1) * m + step * (S - 1 - s), V * m)
    order: Order = [(FORWARD, v, i, 0) for v, i in forwards[:ahead]]
    for k, (v, i) in enumerate(backwards):
        order += [(FORWARD, *task, 0) for task in forwards[ahead + k : ahead + k + 1]] + [(BACKWARD, v, i, 0)]
    return order


def _layers_of(problem: PipelineProblem, plan: PipelinePlan, v: int, s: int) -> list[tuple[LayerKind, str]]:
    """Layers of a chunk in model order, each with how it is recomputed: full ones first, then selective, others."""
    kinds = [
        kind for kind in problem.kinds for _ in range(plan.layers[kind.name][v][s] if kind.name in plan.layers else 0)
    ]
    modes = [mode for mode in ("full", "select", *problem.choices) if mode in plan.recompute]
    taken = [mode for mode in modes for _ in range(plan.recompute[mode][v][s])]
    return list(zip(kinds, taken + ["none"] * (len(kinds) - len(taken)), strict=True))


def _peak(problem: PipelineProblem, order: Order, chunks: list[list[tuple[LayerKind, str]]], s: int) -> float:
    kept = [sum(kind.activation_mib[mode] for kind, mode in layers) for layers in chunks]
    fixed = problem.static_mib[s] + sum(kind.layer_mib for layers in chunks for kind, _ in layers)
    fixed += sum(kind.choices[mode].states_mib for layers in chunks for kind, mode in layers if mode in problem.choices)
    splits = 1 + max(task[3] for task in order)
    last = WEIGHT_GRADIENT if any(task[0] == WEIGHT_GRADIENT for task in order) else BACKWARD
    alive = most = 0.0
    for direction, v, _, _ in order:
        alive += kept[v] / splits * ((direction == FORWARD) - (direction == last))
        most = max(most, alive)
    return fixed + most


def _step_time(
    problem: PipelineProblem, orders: list[Order], chunks: dict[tuple[int, int], list[tuple[LayerKind, str]]]
) -> float:
    S, V = problem.stages, problem.interleaves
    way = [(v, S - 1 - s if problem.schedule.name == "zbv" and v % 2 else s) for v in range(V) for s in range(S)]
    splits = 1 + max(task[3] for order in orders for task in order)
    apart = any(task[0] == WEIGHT_GRADIENT for order in orders for task in order)
    times = {}
    for chunk, layers in chunks.items():
        ratios = problem.stage_times[chunk[1]] if problem.stage_times else StageTimes.of(problem)
        forward = sum(ratios.forward[kind.name] for kind, _ in layers)
        forward += problem.embedding_forward * (chunk == way[0]) + problem.head_forward * (chunk == way[-1])
        backward, weight = ratios.backward_ratio * forward, 0.0
        if apart:
            weight = problem.weight_gradient_share * backward
            backward -= weight
        for kind, mode in layers:
            backward += ratios.recompute_ratio.get(mode, 0.0) * ratios.forward[kind.name]
            if mode in problem.choices:
                choice = ratios.choices[kind.name][mode]
                forward, backward = forward + choice.forward, backward + choice.backward
                weight, backward = (
                    (weight + choice.weight_gradient, backward)
                    if apart
                    else (weight, backward + choice.weight_gradient)
                )
        slow = problem.slowness[chunk[1]] if problem.slowness else 1.0
        times[chunk] = [each * slow / splits for each in (forward, backward, weight)]
    lags = list(problem.lags) or [problem.lag] * (len(way) - 1)
    between = {(a, b): lag * (a[1] != b[1]) for (a, b), lag in zip(pairwise(way), lags, strict=True)}
    ended: dict[tuple[int, tuple[int, int], int, int], float] = {}
    clock, left = [0.0] * S, [deque(order) for order in orders]
    while any(left):
        before = sum(map(len, left))
        for s, tasks in enumerate(left):
            while tasks:
                direction, v, i, q = tasks[0]
                here, place = (v, s), way.index((v, s))
                needed: list[tuple[int, tuple[int, int], float]] = []
                if direction == FORWARD and place:
                    needed = [(FORWARD, way[place - 1], between[way[place - 1], here])]
                elif direction == BACKWARD:
                    needed = [(FORWARD, here, 0.0)]
                    if place + 1 < len(way):
                        needed.append((BACKWARD, way[place + 1], between[here, way[place + 1]]))
                elif direction == WEIGHT_GRADIENT:
                    needed = [(BACKWARD, here, 0.0)]
                if any((kind, chunk, i, q) not in ended for kind, chunk, _ in needed):
                    break
                ready = [ended[kind, chunk, i, q] + lag for kind, chunk, lag in needed]
                clock[s] = max([clock[s], *ready]) + times[here][direction]
                ended[direction, here, i, q] = clock[s]
                tasks.popleft()
        if sum(map(len, left)) == before:
            return float("inf")  # It stands still.
    return max(end + wait for end, wait in zip(clock, problem.tail or [0.0] * S, strict=True))
