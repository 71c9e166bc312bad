"""torchtitan's files with hidden networks behind their flavours: best plans from small runs, checked against the truth.

    python -m benchmarks.titan_campaign FOLDER [--networks 10] [--first 0]

Each network of `standin_titan` is planned from its TOML by what `standin_titan_run` leaves of the small runs that the
search asks for (noise of 3 %, stragglers). Compared are the operators of large runs, the peaks of large stages and
false «fits», the steps of the three plans, and whether the best choice under the true laws is among them: of all that
can start, with even divisions of layers and with fewer layers beside the ends, recomputed or not. Results are kept in
FOLDER.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, cast

from benchmarks.standin_cluster import Stage, layer_names
from benchmarks.standin_titan import TitanCluster, titan_cluster, titan_stage, toml_text
from benchmarks.standin_titan_run import train
from benchmarks.tune_campaign import CARDS, PASSES, Network, campaign_parser
from taylor.blackbox.degree_search import choices
from taylor.blackbox.small_runs import SEARCHABLE, SmallRun, plan_small_runs
from taylor.blackbox.stage_problem import stage_blocks
from taylor.parsers.small_run import ProfiledRun, ProfiledSteps, RunSetting
from taylor.workflows.tuning.tune_search import ShownRun, TunedLaws, plans_of

SHAPE_RUNS, MEMORY_STAGES = 12, 100
MEMORY_WITHIN = 0.03


@dataclass
class TitanNetwork(Network):
    """One network of `standin_titan` with its TOML and small runs."""

    cluster: TitanCluster
    number: int
    name = "job.toml"

    def text(self) -> str:
        """See `Network.text`."""
        return toml_text(self.cluster)

    def write(self, run: SmallRun, place: Path) -> None:
        """What torchtitan leaves of a small run, whose file the launcher writes."""
        place.mkdir(exist_ok=True)
        profile = ProfiledSteps(place / "profile", run.steps)
        small = place / self.name
        small.write_text(self.launcher.small_run(self.script, ProfiledRun(run.setting, CARDS, profile)))
        os.environ["PYTHONPATH"] = "trace_memory"
        words = [str(self.number), "--nnodes", "2", "--nproc-per-node", "8", "--job.config_file", str(small)]
        (place / "run.log").write_text(train(words))


def judged(number: int, top: Path) -> dict[str, Any]:
    """One network's figures, from the folder where they are kept already."""
    kept = top / f"{number}.json"
    if kept.is_file():
        return cast(dict[str, Any], json.loads(kept.read_text()))
    folder = top / f"{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cluster = titan_cluster(number)
    network = TitanNetwork(cluster, folder, number)
    planned = plan_small_runs(network.sizes, CARDS, SEARCHABLE).runs
    runs = [ShownRun(one.name, one.setting, network.start(one)) for one in planned]
    laws = TunedLaws(runs, network.launcher, network.sizes, network.options(True))
    draw = random.Random(number)
    found = {"number": number, "experts": cluster.job.experts, "runs": len(runs)}
    found |= shapes(cluster, laws, draw) | peaks(cluster, laws, draw) | plans(network, laws)
    kept.write_text(json.dumps(found))
    shutil.rmtree(folder)
    return found


def large(cluster: TitanCluster, draw: random.Random) -> RunSetting:
    """Degrees of a large run that torchtitan takes."""
    job = cluster.job
    while True:
        tp, cp, pp = draw.choice((1, 2, 4, 8)), draw.choice((1, 2, 4)), draw.choice((1, 1, 2, 4, 8))
        dp, ep = draw.choice((64, 128, 256, 512)) // (tp * cp * pp), draw.choice((1, 2, 4, 8, 16))
        replicas = draw.choice((1, 1, 2, 4))
        shards = dp * cp // replicas
        if dp % replicas or shards < 2 or job.experts % ep or (ep > 1 and shards % ep):
            continue
        mbs, seq = draw.choice((1, 2, 4)), draw.choice((8192, 16384))
        return RunSetting(tp, cp, ep, mbs, seq, job.experts, job.layers, pp, dp, dense=job.dense, replicas=replicas)


def shapes(cluster: TitanCluster, laws: TunedLaws, draw: random.Random) -> dict[str, int]:
    """Operators of both passes in large runs, and how many are exact in every dimension that a trace shows."""
    exact = total = 0
    for _ in range(SHAPE_RUNS):
        run = large(cluster, draw)
        for parts, passes in PASSES.items():
            true = Counter[tuple[str, tuple[tuple[int, ...], ...]]]()
            for name, backward in passes if run.dense or passes[0][0] != "dense" else ():
                true.update(_shown(kind, sizes) for kind, sizes in cluster.kernels(name, run, backward))
            mine = Counter((one.type, one.inputs) for part in parts for one in laws.steps.operators_in(part, run))
            total += max(true.total(), mine.total())
            exact += (true & mine).total()
    return {"operators": total, "operators_exact": exact}


def _shown(kind: str, sizes: list[tuple[int, ...]]) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """An operator as a trace names it, with the sizes that it is given."""
    *inputs, output = sizes
    given = [*inputs, *([output] if "Loss" in kind else [])]
    counted = [(output[0],)] if kind == "EmbeddingGrad" else []
    return "aten::mm" if kind.startswith("MatMul") else f"aten::{kind}", (*given, *counted)


def peaks(cluster: TitanCluster, laws: TunedLaws, draw: random.Random) -> dict[str, Any]:
    """Errors of the peaks of large stages, and how many are said to fit a limit that they exceed."""
    errors, false = list[float](), 0
    for _ in range(MEMORY_STAGES):
        run = large(cluster, draw)
        at, micro = draw.randrange(run.pp), draw.choice((1, 2, 8))
        layers = cluster.job.layers if run.pp == 1 else draw.randint(1, cluster.job.layers // run.pp + 1)
        names = layer_names(run)[:layers] if at == 0 else ["layer"] * layers
        again = draw.choice((0, layers))
        stage: Stage = (
            *[("embedding", False)] * (at == 0), *((name, place < again) for place, name in enumerate(names)),
            *[("head", False)] * (at == run.pp - 1),
        )  # fmt: skip
        in_flight = min(micro, run.pp - at)
        true = cluster.played_peak(run, stage, in_flight, micro)
        mine = laws.memory.stage(run, stage, in_flight, accumulates=micro > in_flight)
        errors.append(mine.peak / true - 1)
        false += not mine.unsure and mine.upper < true
    found = {"memory_worst": max(errors, key=abs), "memory_median": median(map(abs, errors)), "false_fits": false}
    return found | {"memory_within": sum(abs(one) <= MEMORY_WITHIN for one in errors) / len(errors)}


def plans(network: TitanNetwork, laws: TunedLaws) -> dict[str, Any]:
    """The three plans beside the best under the true laws."""
    cluster = network.cluster
    done = plans_of(laws, CARDS)
    mine, false = list[float](), 0
    for one in done.best:
        stages = [cast(Stage, tuple(chunk)) for (chunk,) in stage_blocks(one.ranked.plan)]
        mine.append(true_ms(cluster, one.ranked.run, stages))
        false += not fits(cluster, one.ranked.run, stages)
    best = true_best(network)
    return {
        "best": best,
        "plans": [str(one.ranked.run) for one in done.best],
        "first_over_best": mine[0] / best - 1,
        "least_over_best": min(mine) / best - 1,
        "step_errors": [one.ranked.step_ms / true - 1 for one, true in zip(done.best, mine, strict=True)],
        "inside": [one.low_ms <= true <= one.high_ms for one, true in zip(done.best, mine, strict=True)],
        "false_plans": false,
        "verified": sum(one.verified is not None for one in done.best),
        "written": sum(one.script is not None for one in done.best),
    }


def true_ms(cluster: TitanCluster, run: RunSetting, stages: list[Stage]) -> float:
    """Step of a plan under the true laws."""
    return cluster.titan_step_ns(run, stages, cluster.batch) / 1e6


def fits(cluster: TitanCluster, run: RunSetting, stages: list[Stage]) -> bool:
    """Return whether every stage has the memory that it takes."""
    micro = cluster.batch // (run.dp * run.mbs)
    return all(
        cluster.played_peak(run, stage, min(micro, run.pp - at), micro) <= cluster.machine.limit
        for at, stage in enumerate(stages)
    )


def true_best(network: TitanNetwork) -> float:
    """The shortest step of all choices that can start and fit under the true laws, ms."""
    cluster, best = network.cluster, math.inf
    for run, micro in choices(network.job()):
        work = sum(cluster.pass_ns(name, run, back) for name, _ in titan_stage(run, False) for back in (False, True))
        if work * micro / run.pp / 1e6 > best:
            continue
        for again in (False, True):
            for stages in _divisions(run, again):
                if fits(cluster, run, stages):
                    best = min(best, true_ms(cluster, run, stages))
    return best


def _divisions(run: RunSetting, again: bool) -> Iterator[list[Stage]]:
    """Layers dealt evenly, the ends given up to three fewer."""
    names = layer_names(run)
    for first in range(4 if run.pp > 1 else 1):
        for last in range(4 if run.pp > 1 else 1):
            # Of equal shares the ends lack some, which the others take.
            even, rest = divmod(run.layers + first + last, run.pp)
            counts = [even + (run.pp - 1 - rest <= at < run.pp - 1 or rest == run.pp) for at in range(run.pp)]
            counts[0], counts[-1] = counts[0] - first, counts[-1] - last
            if run.pp == 1:
                counts = [run.layers]
            if min(counts) < 1 or sum(counts) != run.layers:
                continue
            stages, begin = list[Stage](), 0
            for at, count in enumerate(counts):
                layers = [(name, again) for name in names[begin : begin + count]]
                front, back = [("embedding", False)] * (at == 0), [("head", False)] * (at == run.pp - 1)
                stages.append((*front, *layers, *back))
                begin += count
            yield stages


def summary(found: list[dict[str, Any]]) -> None:
    """Print what the networks came to."""
    operators, exact = sum(one["operators"] for one in found), sum(one["operators_exact"] for one in found)
    steps = [abs(each) for one in found for each in one["step_errors"]]
    inside = [each for one in found for each in one["inside"]]
    print(f"{len(found)} networks, {sum(one['experts'] > 1 for one in found)} with experts")
    print(f"  operators exact: {exact:,} of {operators:,}")
    print(f"  peaks: worst {max((one['memory_worst'] for one in found), key=abs):+.1%}, within 3 %: "
          f"{sum(one['memory_within'] for one in found) / len(found):.1%}; "
          f"false «fits»: {sum(one['false_fits'] for one in found)}")  # fmt: skip
    print(f"  steps: median {median(steps):.2%}, largest {max(steps):.1%}; inside {sum(inside)} of {len(inside)}")
    least, first = ([one[name] for one in found] for name in ("least_over_best", "first_over_best"))
    print(f"  best among three: {sum(one <= 0.0005 for one in least)}, at most {max(least):.2%} over it; first: "
          f"{sum(one <= 0.0005 for one in first)}, at most {max(first):.2%} over it")  # fmt: skip
    print(f"  plans that do not fit: {sum(one['false_plans'] for one in found)}")


def main() -> int:
    """Run, and print."""
    parser = campaign_parser(__doc__, networks=10, first=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number in range(args.first, args.first + args.networks):
        found.append(judged(number, args.folder.resolve()))
        print(json.dumps(found[-1]), flush=True)
    summary(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
