"""Spread of the ranks' speed in published traces of training jobs: the constants of `cost_model.time.rank_spread`.

    python -m benchmarks.rank_spread FOLDER

FOLDER is `data/` of ByteDance-Seed/StragglerAnalysis (8efcd7f3): traces of three jobs, with the times of every stage's
forward and backward on every data-parallel rank in some forty steps. Two are taken: AR (64 cards: DP 4, TP 4, PP 4),
without the one rank that was slowed down on purpose, and ST (8 cards: DP 2, PP 4). In the third one sequences have
different lengths, so that its spread is that of the data. A rank of the trace is a group of TP.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pandas as pd

SLOWED: Mapping[str, tuple[int, int] | None] = {"AR": (0, 0), "ST": None}
"""Traces, and the (data-parallel rank, stage) that the source slowed down (arXiv:2505.05713 appendix A.2)."""
_COMPUTE = ("forward-compute", "backward-compute")


@dataclass(frozen=True)
class Spread:
    """Standard deviations of one trace, fractions of the mean: `operation`, of a forward or a backward within a step of
    a rank; `step`, of a rank's step around its usual one, beyond what its operations explain; `rank`, of the ranks of a
    stage, beyond what their steps explain; and the number of measured operations."""

    operation: float
    step: float
    rank: float
    operations: int


def spread(operations: pd.DataFrame) -> Spread:
    """Spread of one trace.

    Parameters
    ----------
    operations : DataFrame
        One line an operation: step, stage, dp, chunk, name, duration.
    """
    alike = ["stage", "dp", "chunk", "name", "step"]
    relative = operations["duration"] / operations.groupby(alike)["duration"].transform("mean")
    sizes = operations.groupby(alike)["duration"].transform("size")
    operation = math.sqrt(((relative - 1) ** 2 * sizes / (sizes - 1)).mean())
    steps = operations.groupby(["step", "stage", "dp"])["duration"].sum().unstack(["stage", "dp"])
    steps = steps / steps.mean()
    # What slows all ranks down in a step is no spread among them.
    apart = steps.sub(steps.mean(axis=1), axis=0)
    each = operations.groupby(["step", "stage", "dp"]).size().median()
    of_step = apart.var().mean() * len(steps.columns) / (len(steps.columns) - 1)
    usual = operations.groupby(["stage", "dp"])["duration"].sum()
    usual = usual / usual.groupby(level="stage").transform("mean")
    free = len(usual) - usual.index.get_level_values("stage").nunique()
    of_rank = ((usual - 1) ** 2).sum() / free
    return Spread(
        operation,
        math.sqrt(max(of_step - operation**2 / each, 0.0)),
        math.sqrt(max(of_rank - of_step / len(steps), 0.0)),
        len(operations),
    )


def read_trace(file: Path) -> pd.DataFrame:
    """Read forwards and backwards of a timeline in Chrome's trace format, gzipped."""
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        events = json.load(stream)
    stages = {
        (event["pid"], event["tid"]): int(event["args"]["name"].split(",")[0].removeprefix("PP rank "))
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name" and event["args"]["name"].startswith("PP rank ")
    }
    return pd.DataFrame(
        {
            "step": event["args"]["step"], "stage": stages[event["pid"], event["tid"]], "dp": event["pid"],
            "chunk": event["args"]["model_chunk"], "name": event["name"], "duration": event["dur"],
        }
        for event in events
        if event["ph"] == "X" and event["name"] in _COMPUTE
    )  # fmt: skip


def spreads(folder: Path) -> dict[str, Spread]:
    """Spread of every trace of `SLOWED`."""
    found = {}
    for name, slowed in SLOWED.items():
        trace = read_trace(folder / f"timeline-{name}.json.gz")
        if slowed is not None:
            trace = trace[(trace["dp"] != slowed[0]) | (trace["stage"] != slowed[1])]
        found[name] = spread(trace)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the spread of each trace, and their means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    found = spreads(parser.parse_args(arguments).folder)
    for name, one in found.items():
        print(f"{name}: operation {one.operation:.2%}, step {one.step:.2%}, rank {one.rank:.2%} ({one.operations:,})")
    parts: dict[str, Callable[[Spread], float]] = {
        "operation": lambda one: one.operation, "step": lambda one: one.step, "rank": lambda one: one.rank,
    }  # fmt: skip
    print("mean: " + ", ".join(f"{name} {fmean(map(part, found.values())):.4f}" for name, part in parts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
