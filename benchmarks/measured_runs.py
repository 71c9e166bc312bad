"""Memory told for published runs, beside what was measured and the fact that they ran.

    python -m benchmarks.measured_runs [FOLDER] [--rows]

FOLDER (``../shared/data/measured_runs``) holds configuration files and ``measured.csv``, one run a row: set, file,
device, step_ms, peak_mib (empty where it was not published), source. The figures are what torch allocated, so they
stand beside a stage without runtime and communication buffers (`StaticRules.overhead_mib`): the last stage where the
source says «last rank», else the heaviest. Whether a run fits is asked of its heaviest stage with those buffers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pandas as pd

from taylor.base.errors import TaylorError
from taylor.cost_model.memory import stage_breakdown
from taylor.cost_model.workspaces import allocated_mib
from taylor.parsers.read import read_config
from taylor.register.registry import Registry

MEASURED = Path(__file__).resolve().parents[2] / "shared" / "data" / "measured_runs"


@dataclass(frozen=True)
class MeasuredRun:
    """One published run, all of it MiB: the heaviest stage with every buffer, the device's limit, what torch would
    have allocated on the stage that reports, and what was measured."""

    group: str
    file: str
    peak_mib: float
    limit_mib: float
    allocated_mib: float
    measured_mib: float | None

    @property
    def falsely_over(self) -> bool:
        """It ran, and is said not to fit."""
        return self.peak_mib > self.limit_mib

    @property
    def falsely_fits(self) -> bool:
        """It is said to fit, and needed more than the device offers."""
        return not self.falsely_over and self.measured_mib is not None and self.measured_mib > self.limit_mib

    @property
    def error(self) -> float | None:
        """Relative error of what torch allocates."""
        return None if self.measured_mib is None else self.allocated_mib / self.measured_mib - 1


def measured_runs(folder: Path) -> tuple[list[MeasuredRun], list[str]]:
    """Evaluate every run of a folder on its device; beside them the refusals, one sentence each."""
    registry, runs, refused = Registry.load(), [], []
    for row in pd.read_csv(folder / "measured.csv").to_dict("records"):
        try:
            config = read_config(folder / row["file"])
        except TaylorError as error:
            refused.append(str(error))
            continue
        device = registry.device(row["device"])
        plan = config.plan or config.even_plan(config.strategy)
        stages = stage_breakdown(config.model, config.strategy, config.rules, plan, config.schedule)
        heaviest = max(stages, key=lambda stage: stage.total)
        reporting = stages[-1] if "last rank" in row["source"] else heaviest
        runs.append(
            MeasuredRun(
                row["set"],
                row["file"],
                heaviest.total,
                config.memory_limit_mib(device),
                allocated_mib(reporting, config.model, config.rules, device),
                None if pd.isna(row["peak_mib"]) else float(row["peak_mib"]),
            )
        )
    return runs, refused


def summary(runs: Iterable[MeasuredRun]) -> pd.DataFrame:
    """One line a set and one for all: rows, memory errors in %, false verdicts."""
    every = list(runs)
    lines = []
    for name in [*dict.fromkeys(run.group for run in every), "all"]:
        mine = [run for run in every if name in (run.group, "all")]
        errors = [100 * abs(run.error) for run in mine if run.error is not None]
        lines.append({
            "set": name, "rows": len(mine), "measured": len(errors),
            "median error %": median(errors) if errors else float("nan"),
            "largest error %": max(errors, default=float("nan")),
            "false «does not fit»": sum(run.falsely_over for run in mine),
            "false «fits»": sum(run.falsely_fits for run in mine),
        })  # fmt: skip
    return pd.DataFrame(lines)


def main() -> int:
    """Print the summary, and every row when asked to; 1 where a file is refused."""
    parser = argparse.ArgumentParser(description="memory told beside published runs")
    parser.add_argument("folder", type=Path, nargs="?", default=MEASURED)
    parser.add_argument("--rows", action="store_true", help="print every run too")
    options = parser.parse_args()
    runs, refused = measured_runs(options.folder)
    for run in runs if options.rows else ():
        error = "" if run.error is None else f"{run.measured_mib:9,.0f} {100 * run.error:+6.1f} %"
        verdict = "does not fit" if run.falsely_over else ""
        print(f"{run.file:90s} {run.peak_mib:9,.0f} {run.limit_mib:9,.0f} {run.allocated_mib:9,.0f} {error} {verdict}")
    print(summary(runs).to_string(index=False, float_format=lambda value: f"{value:.1f}"))
    for sentence in refused:
        print(f"refused: {sentence}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
