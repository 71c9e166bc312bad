"""The step times by which a search chooses, beside what a quick solve gives.

``python -m benchmarks.estimated_steps`` prints for shipped jobs how far the formula and the figure of the search are
from the solved step, as quantiles of solved / stated.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taylor.nd_search.options import SearchOptions
from taylor.nd_search.search import search
from taylor.parsers.read import read_config
from taylor.workflows.searching.quick_solves import QuickSolves
from taylor.workflows.statement.devices import choose_device

CONFIG = Path(__file__).resolve().parents[1] / "config"
JOBS = (
    "pretrain_qwen3_30b_a3b.yaml",
    "pretrain_deepseek3_128p.yaml",
    "pretrain_deepseek3_671b_1024p.yaml",
    "pretrain_llama3_70b.sh",
)
MOST = 40
"""Strategies of a job that are solved at most, those that the formula calls quickest."""


def ratios_of(name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Solved over stated step times of one job: stated by the formula, and by a search that solves first."""
    config = read_config(CONFIG / name)
    device = choose_device(config)
    solves = QuickSolves(config, device)
    plain = search(config, device.spec, SearchOptions(profile_num=MOST, spread=False))
    rows = plain.chosen.tolist()
    solved = solves([plain.candidates.row(index) for index in rows], plain.device_limit_mib)
    formula = [one.ms / plain.estimated_ms[index] for index, one in zip(rows, solved, strict=True) if one.ms]
    known = {plain.candidates.row(index): one.ms for index, one in zip(rows, solved, strict=True)}
    found = search(config, device.spec, SearchOptions(), quick_solve=solves)
    chosen = [(known.get(found.candidates.row(int(index))), found.estimated_ms[index]) for index in found.chosen]
    return np.array(formula), np.array([ms / stated for ms, stated in chosen if ms])


def main() -> None:
    """Print a line a job."""
    for name in JOBS:
        for what, ratios in zip(("formula", "search"), ratios_of(name), strict=True):
            low, middle, high, most = np.quantile(ratios, [0.0, 0.5, 0.9, 1.0])
            figures = f"least {low:.2f} median {middle:.2f} 90 % {high:.2f} most {most:.2f}"
            print(f"{name:40} {what:8} {len(ratios):4} {figures}")


if __name__ == "__main__":
    main()
