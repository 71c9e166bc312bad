"""Time of the strategy search, and the strategies that each step leaves, from 1,024 to 131,072 ranks.

Run from the repository's root: ``python -m benchmarks.nd_search``. Every size runs in a process of
its own, so that its peak memory is its own; times are of that process's first search.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from taylor.cost_model.job.strategy import Strategy, TrainingRules  # noqa: E402
from taylor.nd_search.options import SearchContext, SearchOptions  # noqa: E402
from taylor.nd_search.prune import apply_rules, keep_what_fits  # noqa: E402
from taylor.nd_search.rules import select_rules  # noqa: E402
from taylor.nd_search.search import search  # noqa: E402
from taylor.nd_search.space import build_space  # noqa: E402
from taylor.parsers.training_config import TrainingConfig  # noqa: E402
from taylor.pipeline.schedule import ScheduleSpec  # noqa: E402
from taylor.register.registry import Registry  # noqa: E402

DIMENSIONS = ("dp", "tp", "pp", "ep", "cp", "op", "vpp", "mbs")
GOAL_SECONDS = {1024: 1.0, 4096: 2.0, 16384: 4.0, 131072: 15.0}
GOAL_MB = 500


def deepseek_v3(device_limit_mib: float) -> TrainingConfig:
    """The job that is searched: DeepSeek-V3 under MindFormers' rules, as its 1024-card file has it."""
    return TrainingConfig(
        path=Path("deepseek-v3.yaml"),
        launcher="mindformers",
        model=Registry.load(None).model("deepseek-v3-671b"),
        strategy=Strategy(dp=16, tp=4, pp=16, ep=8, op=16, micro_batches=64),
        rules=TrainingRules(),
        schedule=ScheduleSpec("1f1b"),
        plan=None,
        device_limit_mib=device_limit_mib,
    )


def measure(world_size: int, gbs: int, device_name: str, limit_mib: float) -> dict[str, float]:
    """Seconds and counts of one search of all dimensions, and the process's peak memory, MB."""
    config = deepseek_v3(limit_mib)
    device = Registry.load(None).device(device_name)
    options = SearchOptions(world_size=world_size, gbs=gbs, search=DIMENSIONS)
    context = SearchContext.settle(config, device, options)
    start = time.perf_counter()
    space = build_space(context, options)
    ruled = apply_rules(space, select_rules(context), context)
    after_rules = time.perf_counter()
    fitting = keep_what_fits(ruled.table, context, options.recompute)
    after_memory = time.perf_counter()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    result = search(config, device, options)
    return {
        "built": ruled.built,
        "legal": ruled.legal,
        "sensible": len(ruled.table),
        "fitting": len(fitting.table),
        "chosen": result.counts["chosen"],
        "rules_s": after_rules - start,
        "memory_s": after_memory - after_rules,
        "pruned_s": after_memory - start,
        "search_s": time.perf_counter() - after_memory,
        "peak_mb": peak_mb,
    }


def main() -> int:
    """Print one row a size; the exit code is 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world_size", type=int, nargs="*", default=list(GOAL_SECONDS))
    parser.add_argument("--gbs", type=int, help="samples a step (default: one a rank)")
    parser.add_argument("--device", default="ascend-910b")
    parser.add_argument("--limit_mib", type=float, default=55296.0)
    args = parser.parse_args()
    print("DeepSeek-V3, " + ",".join(DIMENSIONS) + f" searched, {args.device}, {args.limit_mib:.0f} MiB a card")
    columns = ("built", "legal", "sensible", "fitting", "chosen")
    timed = ("rules s", "memory s", "both s", "goal s", "whole search s", "peak MB")
    print(f"{'ranks':>8}" + "".join(f"{name:>10}" for name in columns) + "".join(f"{name:>15}" for name in timed))
    missed = False
    for world_size in args.world_size:
        with get_context("spawn").Pool(1) as pool:
            row = pool.apply(measure, (world_size, args.gbs or world_size, args.device, args.limit_mib))
        goal = GOAL_SECONDS.get(world_size, float("inf"))
        missed |= row["pruned_s"] > goal or row["peak_mb"] > GOAL_MB
        print(
            f"{world_size:>8}"
            + "".join(f"{row[name]:>10.0f}" for name in columns)
            + "".join(f"{row[name]:>15.2f}" for name in ("rules_s", "memory_s", "pruned_s"))
            + f"{goal:>15.1f}{row['search_s']:>15.2f}{row['peak_mb']:>15.0f}"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
