"""Speed of the analytical model and of explanations: tables of strategies against single ones, and why nothing fits.

Run from the repository's root: ``python -m benchmarks.closed_forms``. Memory and step time of 100,000
strategies are timed beside the same call on single rows in the same run; explaining an infeasible pipeline is
timed beside the solve of the feasible one. The exit code is 1 when a ratio misses its goal.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.solver import deepseek
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.best_case import best_case_peak_mib
from taylor.cost_model.time.step import quick_step_ms
from taylor.pipeline_solver.milp.least_memory import explain_infeasible
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.tree.branch_and_cut import branch_and_cut
from taylor.register.registry import Registry

ONE_BY_ONE = 200
GOAL_TIMES_FASTER = 100.0
"""A row in a table against a row alone."""
GOAL_SHARE_OF_SOLVE = 0.5
"""Explaining an infeasible problem against solving the feasible one."""


def _one_by_one(work: Callable[[StrategyTable], object], rows: list[StrategyTable]) -> list[object]:
    return [work(row) for row in rows]


def random_table(rows: int) -> StrategyTable:
    """Strategies of every dimension, drawn with a fixed seed."""
    generator = np.random.default_rng(0)

    def pick(*values: int) -> np.ndarray:
        return generator.choice(np.array(values), rows)

    return StrategyTable(
        dp=pick(1, 2, 4, 8, 16, 32, 64),
        tp=pick(1, 2, 4, 8),
        pp=pick(1, 2, 4, 8, 16, 32),
        ep=pick(1, 2, 4, 8, 16, 32),
        cp=pick(1, 2, 4),
        op=pick(1, 2, 4, 8, 16, 64),
        sp=pick(0, 1).astype(bool),
        vpp=pick(1, 2),
        mbs=pick(1, 2),
        micro_batches=pick(8, 16, 32, 64, 128),
    )


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> int:
    """Print one line a figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    rows = parser.parse_args().rows
    registry, rules = Registry.load(None), TrainingRules()
    model, device = registry.model("deepseek-v3-671b"), registry.device("ascend-910b")
    many = random_table(rows)
    single = [many.select(slice(i, i + 1)) for i in range(0, rows, max(1, rows // ONE_BY_ONE))]
    missed = False
    works: dict[str, Callable[[StrategyTable], object]] = {
        "memory": lambda table: best_case_peak_mib(model, rules, table),
        "step time": lambda table: quick_step_ms(model, rules, table, device),
    }
    for name, work in works.items():
        work(single[0])  # imports and caches are filled outside the clock
        at_once = seconds(partial(work, many)) / rows
        alone = seconds(partial(_one_by_one, work, single)) / len(single)
        missed |= alone / at_once < GOAL_TIMES_FASTER
        print(
            f"{name}: {rows} strategies in {at_once * rows:.2f} CPU s, {alone / at_once:.0f} times as fast as one by "
            f"one (goal {GOAL_TIMES_FASTER:.0f})"
        )
    for interleaves, low_memory in ((1, True), (2, True), (2, False), (3, True)):
        problem = deepseek(16, interleaves, 64, 62, low_memory)
        small = problem.replace(limit_mib=(46000.0,) * problem.stages)
        explain_infeasible(small)
        explained = seconds(partial(explain_infeasible, small))
        solved = seconds(partial(branch_and_cut, problem, SolveOptions(time_limit=60.0)))
        missed |= explained > GOAL_SHARE_OF_SOLVE * solved
        print(
            f"infeasible V={interleaves}{'' if low_memory else ' low memory off'}: explained in {explained:.2f} CPU s, "
            f"{explained / solved:.2f} of the feasible solve's {solved:.1f} (goal {GOAL_SHARE_OF_SOLVE})"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
