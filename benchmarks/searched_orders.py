"""Orders of tasks chosen here against a MILP over all orders, on many small cases.

    python -m benchmarks.searched_orders [--cases 200] [--interleaves 1|2] [--micro-batches 8] [--seed 0]

The MILP states whole-number times by the moment: one binary for every block of tasks, stage and start, and as many
begun as the limits of order and memory let; HiGHS solves it. It shares no code with the search but the problem.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import highspy
import numpy as np

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.orders.order_problem import OrderProblem
from taylor.pipeline_solver.orders.order_search import search_order
from taylor.pipeline_solver.timing.event_graph import edge_lags


def random_case(rng: np.random.Generator, interleaves: int, most: int, stages: int = 4) -> OrderProblem:
    """Tasks of 1 to 4 moments on up to `stages` stages, alike on all of them in two of five cases, in little memory."""
    S, m = int(rng.integers(2, stages + 1)), int(rng.integers(1, most + 1))
    V = interleaves
    name = "searched" if V == 1 or rng.random() < 0.5 else "searched-v"
    times = rng.integers(1, 5, size=(3 * V, S))
    if rng.random() < 0.4:
        times = np.repeat(rng.integers(1, 4, size=(3, 1)).repeat(V, axis=0), S, axis=1)
    kept = rng.integers(1, 4, size=(V, S)).astype(np.float64)
    lags, tail = rng.integers(0, 2, size=S * V - 1), rng.integers(0, 2, size=S).astype(np.float64)
    limits = kept.sum(axis=0) * rng.integers(1, 2 * S + 1, size=S)
    schedule = build_schedule(ScheduleSpec(name), S, V, m)
    arrival = np.ascontiguousarray(edge_lags(schedule, lags.tolist()).T)
    return OrderProblem(schedule, times.astype(np.float64), arrival, tail, kept, limits + 1e-6)


def least_step(tasks: OrderProblem, horizon: int, seconds: float = 120.0) -> tuple[float, float]:
    """Step time of the best order with whole-number times, and the bound on it, by HiGHS.

    Parameters
    ----------
    horizon : int
        A step time that some order reaches.
    """
    m = tasks.schedule.micro_batches
    K, S = tasks.durations.shape
    V = K // 3
    times, lag = tasks.durations.astype(int), tasks.lag.astype(int)
    stage, block = tasks.waits
    model = highspy.Highs()
    model.silent()
    model.setOptionValue("time_limit", seconds)
    model.setOptionValue("threads", 1)
    begins: dict[tuple[int, int], list[Any]] = {}
    for s in range(S):
        for k in range(K):
            begins[k, s] = [model.addBinary() for _ in range(horizon - times[k, s] + 1)]
            model.addConstr(sum(begins[k, s]) == m)

    def begun(k: int, s: int, until: int) -> Any:
        """Number of tasks of a block that began at a moment `until` or earlier."""
        return sum(begins[k, s][: max(0, until + 1)], start=0.0 * step)

    step = model.addVariable(lb=0, ub=horizon)
    for s in range(S):
        for t in range(horizon):
            busy = [one for k in range(K) for one in begins[k, s][max(0, t - times[k, s] + 1) : t + 1]]
            if busy:
                model.addConstr(sum(busy) <= 1)
            kept = sum(float(tasks.kept_mib[v, s]) * begun(v, s, t) for v in range(V))
            freed = sum(float(tasks.kept_mib[v, s]) * begun(2 * V + v, s, t - times[2 * V + v, s]) for v in range(V))
            model.addConstr(kept - freed <= float(tasks.free_mib[s]))
        for k in range(K):
            u, j = stage[s, k], block[s, k]
            for t, one in enumerate(begins[k, s]):
                model.addConstr(step >= (t + times[k, s] + int(tasks.tail[s])) * one)
                if u >= 0:
                    ended = t - times[j, u] - lag[k, s]
                    model.addConstr(begun(k, s, t) <= begun(j, u, ended))
    model.minimize(step)
    info = model.getInfo()
    return float(info.objective_function_value), float(info.mip_dual_bound)


def main() -> int:
    """Compare; 1 where a proven order is not the MILP's best."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--interleaves", type=int, default=1)
    parser.add_argument("--micro-batches", type=int, default=8, help="at the most (default: 8)")
    parser.add_argument("--stages", type=int, default=4, help="at the most (default: 4)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    solved = equal = proven = shorter = 0
    largest = 0
    seconds = [0.0, 0.0]
    for number in range(args.cases):
        tasks = random_case(rng, args.interleaves, args.micro_batches, args.stages)
        began = time.monotonic()
        found = search_order(tasks, [tasks.schedule])
        between = time.monotonic()
        step, bound = least_step(tasks, round(found.step))
        seconds[0] += between - began
        seconds[1] += time.monotonic() - between
        proven += found.proven
        shorter += found.step < found.started_from
        if step - bound > 0.5:
            continue
        solved += 1
        same = abs(step - found.step) < 0.5
        equal += same
        largest = max(largest, tasks.durations.size * tasks.schedule.micro_batches)
        if not same or found.bound > step + 0.5:
            shape = (tasks.schedule.stages, args.interleaves, tasks.schedule.micro_batches)
            print(f"case {number}, [S, V, m] {shape}: {found.step:g} with bound {found.bound:g}, the MILP {step:g}")
    print(
        f"{args.cases} cases of up to {largest} tasks: the MILP solved {solved}, {equal} with the same step; "
        f"{proven} proven here; {shorter} shorter than the known order; "
        f"search {seconds[0]:.1f} s, MILP {seconds[1]:.1f} s"
    )
    return int(equal < solved)


if __name__ == "__main__":
    sys.exit(main())
