"""Hidden networks by the hundred: their operators in large runs as predicted from the small ones, one by one.

    python -m benchmarks.standin_laws [--networks 300] [--seed 1000]

Each network has its own operators in and around its layers, some only under TP, CP or EP, with laws that
`benchmarks.standin_network` states by itself. The small runs are those that `taylor tune` plans for two nodes. Twelve
large runs of each are compared, operator for operator in their order and dimension for dimension. A padded size may be
off by its unit: where its padding begins, no small TP tells. The exit code is 1 when anything else differs.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter

from benchmarks.standin_network import CARDS, JOB, LARGE, HiddenOperator, hidden_network
from taylor.blackbox.blocks import LawfulOperator, lawful_operators
from taylor.blackbox.small_runs import plan_small_runs
from taylor.parsers.small_run import RunSetting

LARGE_RUNS = 12


def compared(mine: LawfulOperator, hidden: HiddenOperator, run: RunSetting) -> str:
    """Quality of the prediction of one operator of a large run."""
    true = [size for shape in hidden.shapes_of(run) for size in shape]
    units = [size.unit for shape in hidden.shapes for size in shape]
    sizes = [fit.at(run) for fit in mine.fits]
    if mine.like.type != hidden.type or len(sizes) != len(true):
        return "another operator"
    if sizes == true:
        return "exact"
    near = all(
        size is None or size == real or (unit > 1 and abs(size - real) <= unit)
        for size, real, unit in zip(sizes, true, units, strict=True)
    )
    return "wrong" if not near else "not settled" if None in sizes else "within a padding unit"


def campaign(networks: int, seed: int) -> Counter[str]:
    """Number of operators of large runs by quality of prediction; sequences of another length count once each."""
    small = [run.setting for run in plan_small_runs(JOB, CARDS).runs]
    counts: Counter[str] = Counter()
    for each in range(seed, seed + networks):
        network = hidden_network(each)
        found = lawful_operators([network.step(run) for run in small])
        for run in random.Random(each).sample(LARGE, LARGE_RUNS):
            hidden = network.order(run)
            mine = [one for one in found if one.condition is not None and one.condition.is_met(run)]
            if len(mine) != len(hidden):
                counts["another number of operators"] += 1
                continue
            counts.update(compared(left, right, run) for left, right in zip(mine, hidden, strict=True))
    return counts


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1000)
    args = parser.parse_args()
    counts = campaign(args.networks, args.seed)
    runs = len(plan_small_runs(JOB, CARDS).runs)
    print(f"{args.networks} networks, {runs} small runs each: {sum(counts.values()):,} operators of large runs")
    for text, count in counts.most_common():
        print(f"  {text}: {count:,}")
    return int(bool(set(counts) - {"exact", "within a padding unit"}))


if __name__ == "__main__":
    sys.exit(main())
