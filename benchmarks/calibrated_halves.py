"""The gain of a calibration: fitted on half of every set of measured runs, judged on the other half.

    python -m benchmarks.calibrated_halves [FOLDER] [--sets NAME,...] [--rows] [--single]

FOLDER (``../shared/data/measured_runs``) is as in `benchmarks.measured_runs`. Rows of a set go to the halves
alternately, in the order of the table, and each half is judged by the fit to the other; no row of the judged half is
used. ``--single`` fits every run by itself and judges it on all others of its set: how often that is nearer than the
register.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pandas as pd

from benchmarks.measured_runs import MEASURED
from taylor.parsers.read import read_config
from taylor.profiling.calibration.fit import Measured, calibrate
from taylor.register.device import DeviceSpec
from taylor.register.registry import Registry
from taylor.workflows.measuring.calibrate import read_runs, step_measured

SETS = ("nemo-dense", "nemo-moe", "papers-megatron-lm", "papers-zero", "torchtitan", "mindspeed-dense")


@dataclass(frozen=True)
class MeasuredSet:
    """The runs of one set, all on one device and one stack."""

    name: str
    device: DeviceSpec
    runs: tuple[Measured, ...]


@dataclass(frozen=True)
class Half:
    """Relative errors of the runs of one half by the register and by the fit to the other half, and what was fitted."""

    name: str
    before: Mapping[str, float]
    after: Mapping[str, float]
    moved: str

    @property
    def median_before(self) -> float:
        """By the register."""
        return median(map(abs, self.before.values()))

    @property
    def median_after(self) -> float:
        """By the fit."""
        return median(map(abs, self.after.values()))


def measured_sets(folder: Path = MEASURED, names: Sequence[str] = SETS) -> list[MeasuredSet]:
    """The sets of a folder, with the runs that have a step time."""
    register, rows = Registry.load(), read_runs(folder)
    found = []
    for name in names:
        mine = [row for row in rows if row.group == name and row.step_ms is not None]
        runs = tuple(step_measured(row.file.name, read_config(row.file), row.step_ms or 0.0) for row in mine)
        found.append(MeasuredSet(name, register.device(mine[0].device or ""), runs))
    return found


def judge(one: MeasuredSet, first: int) -> Half:
    """Fit the rows ``first``, ``first + 2``, … and judge the others."""
    fit = calibrate(one.runs[first::2], one.device)
    judged = one.runs[1 - first :: 2]
    before, after = (_errors(judged, device) for device in (one.device, fit.device))
    return Half(f"{one.name}, rows {2 - first}, {4 - first}, …", before, after, fit.moved)


def singles(one: MeasuredSet) -> list[tuple[str, float, float]]:
    """Name of every run, and the median error of all other jobs by the register and by the fit to it alone."""
    result = []
    for run in one.runs:
        others = [other for other in one.runs if other.job != run.job]
        device = calibrate([run], one.device).device
        errors = [median(map(abs, _errors(others, card).values())) for card in (one.device, device)]
        result.append((run.name, errors[0], errors[1]))
    return result


def _errors(runs: Sequence[Measured], device: DeviceSpec) -> dict[str, float]:
    return {run.name: run.predict(device) / run.ms - 1 for run in runs}


def main() -> int:
    """Print the halves, every judged row when asked to, and the single runs."""
    parser = argparse.ArgumentParser(description="calibrations judged on the other half")
    parser.add_argument("folder", type=Path, nargs="?", default=MEASURED)
    parser.add_argument("--sets", default=",".join(SETS), help="sets, with commas (default: %(default)s)")
    parser.add_argument("--rows", action="store_true", help="print every judged run too")
    parser.add_argument("--single", action="store_true", help="fit single runs")
    options = parser.parse_args()
    sets = measured_sets(options.folder, options.sets.split(","))
    lines = []
    for one in sets:
        for first in (0, 1):
            half = judge(one, first)
            for name, error in half.after.items() if options.rows else ():
                print(f"{name:90s} {100 * half.before[name]:+6.1f} % {100 * error:+6.1f} %")
            largest = max(map(abs, half.after.values()))
            lines.append({
                "judged": half.name, "runs": len(half.after), "register: median %": 100 * half.median_before,
                "fitted: median %": 100 * half.median_after, "largest %": 100 * largest, "moved": half.moved,
            })  # fmt: skip
    print(pd.DataFrame(lines).to_string(index=False, float_format=lambda value: f"{value:.1f}"))
    for one in sets if options.single else ():
        compared = singles(one)
        better = sum(after < before for _, before, after in compared)
        before, after = median(errors[1] for errors in compared), median(errors[2] for errors in compared)
        print(
            f"{one.name}: one run alone is better than none for {better} of {len(compared)} runs; median error of the "
            f"others {100 * before:.1f} % by the register, {100 * after:.1f} % by it"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
