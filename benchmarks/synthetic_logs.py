"""Write worker logs that nobody measured: two steps of a 1F1B pipeline, to try the timeline.

Run from the repository's root: python -m benchmarks.synthetic_logs [--output log]
A forward takes 8 ms and a backward 15, the last stage a fifth more, each moved at random by up to 5 %. Every file says
that it is synthetic. The folder ``log`` of the repository holds what this writes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from taylor.base.console import run_command, start_logging
from taylor.base.files import write_atomic

STAGES, MICRO_BATCHES, STEPS = 4, 8, 2
FORWARD_MS, BACKWARD_MS, OPTIMIZER_MS = 8.0, 15.0, 6.0
LAST_STAGE, NOISE = 1.2, 0.05
BEGIN_MS = 1_700_000_000_000.0

LABEL = "Synthetic log, written by benchmarks/synthetic_logs.py: nothing was measured.\n"
LINE = (
    "Profiler Info: Job ({job}), type = {kind}, micro_batch_id = {m}, "
    "job_start_time = {a:.6f}, job_end_time = {b:.6f}\n"
)

Job = tuple[str, int]
"""Forward or backward, and its micro-batch."""


def one_forward_one_backward(stage: int) -> list[Job]:
    """The order of a stage: warm-up, then alternately a forward and a backward, then the cool-down."""
    warm_up = min(STAGES - 1 - stage, MICRO_BATCHES)
    order: list[Job] = [("forward", m) for m in range(warm_up)]
    for m in range(MICRO_BATCHES - warm_up):
        order += [("forward", warm_up + m), ("backward", m)]
    return order + [("backward", m) for m in range(MICRO_BATCHES - warm_up, MICRO_BATCHES)]


def synthetic_logs(seed: int = 0) -> dict[str, str]:
    """The text of every file by its name."""
    generator = np.random.default_rng(seed)
    lines: list[list[str]] = [[LABEL] for _ in range(STAGES)]
    clock = [BEGIN_MS] * STAGES
    for _ in range(STEPS):
        ends: dict[tuple[int, str, int], float] = {}
        orders = [one_forward_one_backward(stage) for stage in range(STAGES)]
        while any(orders):
            for stage, order in enumerate(orders):
                if order and (ready := _ready(stage, *order[0], ends)) is not None:
                    kind, m = order.pop(0)
                    usual = FORWARD_MS if kind == "forward" else BACKWARD_MS
                    usual *= LAST_STAGE if stage == STAGES - 1 else 1.0
                    begin = max(clock[stage], ready)
                    clock[stage] = begin + usual * float(generator.uniform(1 - NOISE, 1 + NOISE))
                    ends[stage, kind, m] = clock[stage]
                    job = 1 if kind == "forward" else 2
                    lines[stage].append(LINE.format(job=job, kind=kind, m=m, a=begin, b=clock[stage]))
        for stage in range(STAGES):
            begin, clock[stage] = clock[stage], clock[stage] + OPTIMIZER_MS
            lines[stage].append(LINE.format(job=3, kind="optimizer", m=0, a=begin, b=clock[stage]))
        clock = [max(clock)] * STAGES
    return {f"workerlog.{stage}": "".join(text) for stage, text in enumerate(lines)}


def _ready(stage: int, kind: str, m: int, ends: dict[tuple[int, str, int], float]) -> float | None:
    """End time of the job that a job waits for; None where that has not begun."""
    if kind == "forward":
        return BEGIN_MS if stage == 0 else ends.get((stage - 1, kind, m))
    return ends.get((stage, "forward", m)) if stage == STAGES - 1 else ends.get((stage + 1, kind, m))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("log"))
    args = parser.parse_args()
    start_logging()

    def write() -> None:
        for name, text in synthetic_logs().items():
            write_atomic(args.output / name, text)
        print(f"synthetic logs of {STAGES} devices (nothing was measured): {args.output}")

    return run_command(write)


if __name__ == "__main__":
    raise SystemExit(main())
