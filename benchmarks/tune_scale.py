"""A large operator base and a large cluster: time of look-ups and of the search of degrees.

    python -m benchmarks.tune_scale FOLDER [--samples 1000000] [--ranks 16384] [--seed 3]

The base gets operators of random shapes beside those of a hidden network's small runs. Printed are wall and CPU
seconds of reading the base, of looking up one candidate's operators, and of the search.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.standin_build import hidden_cluster
from benchmarks.tune_campaign import CARDS, Network
from taylor.blackbox.degree_search import search
from taylor.blackbox.operator_base import OperatorOrigin
from taylor.blackbox.rejection import Cleaned
from taylor.blackbox.small_runs import SEARCHABLE, plan_small_runs
from taylor.parsers.profiles.operators import Operator
from taylor.workflows.tuning.tune_search import ShownRun, TunedLaws

SAMPLES_EACH = 50
LOOKUPS = 200


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print what a block took."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    print(f"{what}: {time.perf_counter() - wall:.2f} s, CPU {time.process_time() - cpu:.2f} s", flush=True)


def operators(count: int, draw: random.Random) -> dict[Operator, tuple[int, ...]]:
    """GEMMs of random shapes with their samples, ns."""
    found: dict[Operator, tuple[int, ...]] = {}
    while len(found) < count:
        rows, inner, outer = (64 * draw.randint(1, 512) for _ in range(3))
        one = Operator("MatMulV3", "AI_CORE", ("DT_BF16",) * 2, ((rows, inner), (inner, outer)), ((rows, outer),))
        middle = 5000 + rows * inner * outer / 2e5
        found[one] = tuple(max(1, round(middle * draw.gauss(1, 0.03))) for _ in range(SAMPLES_EACH))
    return found


def main() -> int:
    """Fill, look up, search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=16384)
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    network = Network(hidden_cluster(args.seed), args.folder)
    runs = [
        ShownRun(one.name, one.setting, network.start(one))
        for one in plan_small_runs(network.sizes, CARDS, SEARCHABLE).runs
    ]
    options = network.options(False)
    laws = TunedLaws(runs, network.launcher, network.sizes, options)
    with timed(f"{args.samples:,} samples taken in"):
        many = operators(args.samples // SAMPLES_EACH, random.Random(args.seed))
        laws.base.fill(OperatorOrigin("stand-in"), Cleaned(many, {}), digest="many", when="2026-01-01")
    with timed("base read, lines fitted"):
        laws.refresh()
    steps = laws.steps
    wanted = steps.operators_of(network.cluster.job)
    with timed(f"{LOOKUPS} look-ups of a candidate's {len(wanted)} operators"):
        for _ in range(LOOKUPS):
            for one in wanted:
                steps.speeds.estimate(one)
    batch = network.cluster.batch * max(1, args.ranks // network.cluster.job.ranks)
    with timed(f"search of {args.ranks:,} ranks"):
        found = search(replace(network.job(), ranks=args.ranks, batch=batch), steps)
    print(f"{found.legal} choices, {found.fitting} with an even plan, {found.solved} solved: {found.best[0].run}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
