"""Gaps of repeating patterns: instances drawn with a seed, each solved for the same number of seconds.

    python -m benchmarks.pattern_instances [--seconds 60] [--workers 2] [--first 0] [--instances 24] [--cpu_clock]

Every layer after a run of 3, 5, 7 or 8 is of another kind (as in Qwen3-Next, Gemma 3, Jamba and Nemotron-H), on 4 to 16
stages with 2 to 8 virtual stages each; memory binds little, moderately or tightly. The table has each instance's step
time, lower bound and gap, then the median and the largest gap. With ``--cpu_clock`` the time limit counts the CPU time
of this process instead of wall-clock time, so that figures of a busy machine compare; it solves in one process.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.solving.solve import solve

INSTANCES = 24
RUNS = (3, 5, 7, 8)
LIMIT_MIB = 60_000.0
DEMAND = {"little": 0.45, "moderate": 1.5, "tight": 3.0}
"""Activations of an even plan without recompute, as a multiple of the memory that is free for them."""


def instance(number: int) -> tuple[str, PipelineProblem]:
    """The name and the problem of a number, the same on every machine; runs and memory take turns."""
    rng = np.random.default_rng([63, number])
    run, memory = RUNS[number % len(RUNS)], list(DEMAND)[(number // len(RUNS)) % len(DEMAND)]
    while True:
        stages, interleaves = int(rng.choice([4, 8, 12, 16])), int(rng.integers(2, 9))
        layers = int(rng.integers(32, 97))
        if 1.25 * stages * interleaves <= layers:
            break
    micro_batches = stages * int(rng.integers(2, 9))
    share = float(rng.choice([0.25, 0.4, 0.5]))
    layer_mib = round(LIMIT_MIB * share * stages / layers)
    alive = stages * (1 + (interleaves - 1) / interleaves)
    activation = round(DEMAND[memory] * (LIMIT_MIB * (1 - share) - 8000) * stages / (layers * alive))
    kept = float(rng.choice([0.04, 0.08, 0.15]))
    rare, rare_mib, rare_kept = float(rng.choice([0.4, 0.7, 1.4, 1.9])), rng.uniform(0.3, 1.0), rng.uniform(0.7, 1.5)
    counts = [run, 1] * (layers // (run + 1)) + [layers % (run + 1)]
    kinds = []
    for k, count in enumerate(counts):
        forward, mib, mib_kept = (rare, rare_mib, rare_kept) if k % 2 else (1.0, 1.0, 1.0)
        none = float(round(activation * mib_kept))
        if count:
            kinds.append(
                LayerKind(
                    f"run{k}", count, forward, float(round(layer_mib * mib)), {NONE: none, FULL: round(none * kept, 1)}
                )
            )
    problem = PipelineProblem(
        stages,
        interleaves,
        micro_batches,
        tuple(kinds),
        (3500.0, *[2500.0] * (stages - 2), 7000.0),
        (LIMIT_MIB,) * stages,
        ScheduleSpec("interleaved", low_memory=True),
        backward_ratio=float(rng.choice([1.6, 1.84, 2.0])),
        recompute_ratio={FULL: float(rng.choice([0.7, 1.0]))},
        head_forward=float(rng.choice([0.8, 1.5, 2.5])),
    )
    return f"S{stages} V{interleaves} m{micro_batches} L{layers} {run}:1 {memory}", problem


def main(arguments: list[str] | None = None) -> int:
    """Solve the instances and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of a solve")
    parser.add_argument("--workers", type=int, default=2, help="processes of a solve")
    parser.add_argument("--first", type=int, default=0, help="number of the first instance")
    parser.add_argument("--instances", type=int, default=INSTANCES, help="how many")
    parser.add_argument("--cpu_clock", action="store_true", help="count the CPU time of this process, in one process")
    chosen = parser.parse_args(arguments)
    solve(instance(0)[1], SolveOptions(time_limit=5.0, workers=1))  # loads or compiles the kernels
    if chosen.cpu_clock:
        time.monotonic = time.process_time
    console, table, gaps = Console(width=120), Table(), []
    for heading in ("no.", "instance", "step time", "bound", "gap %", "seconds", "CPU s"):
        table.add_column(heading, justify="left" if heading == "instance" else "right")
    for number in range(chosen.first, chosen.first + chosen.instances):
        name, problem = instance(number)
        began = time.process_time()
        workers = 1 if chosen.cpu_clock else chosen.workers
        found = solve(problem, SolveOptions(time_limit=chosen.seconds, workers=workers))
        row = [str(number), name, "none", "-", "-", f"{found.seconds:.1f}", f"{time.process_time() - began:.1f}"]
        if found.objective is not None and found.bound is not None:
            gaps.append(100.0 * (1.0 - found.bound / found.objective))
            row[2:5] = f"{found.objective:.3f}", f"{found.bound:.3f}", f"{gaps[-1]:.2f}"
        table.add_row(*row)
        console.print(*row, highlight=False)
    console.print(table)
    if gaps:
        console.print(f"{len(gaps)} gaps: median {statistics.median(gaps):.2f} %, largest {max(gaps):.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
