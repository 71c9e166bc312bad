"""Networks of the second hidden cluster (`benchmarks.second_cluster`): best plans from small runs, checked.

    python -m benchmarks.second_campaign FOLDER [--networks 100] [--seed 1] [--laws]

As `benchmarks.tune_campaign`, with another author's program: ring attention, collectives that give tensors of their
own, memory given back late, two streams whose order changes, dense layers before those with experts, small runs that
wait for their host, a slow second node. Of each network's runs one hangs and one crashes, both always: further runs
take their places. With ``--laws`` operators and memory are checked, and no plan is searched. Results are stored in
FOLDER, a file each: started again, it continues.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, cast

from benchmarks.second_cluster.cluster import SecondCluster, second_cluster
from benchmarks.second_cluster.files import log_text, write_profile
from benchmarks.tune_campaign import CARDS, Network, campaign_parser, judged_plans, shapes_and_memory, summary
from taylor.base.errors import TaylorError
from taylor.blackbox.small_runs import SEARCHABLE, SmallRun, plan_small_runs, start_runs
from taylor.workflows.tuning.tune_search import ShownRun, TunedLaws

SCRIPT = """\
#!/bin/bash
export HCCL_CONNECT_TIMEOUT=1200
GPUS_PER_NODE=8
NNODES={nodes}
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank 0 --master_addr 10.0.0.1"
PARALLEL="
    --tensor-model-parallel-size {job.tp} \\
    --pipeline-model-parallel-size {job.pp} \\
    --context-parallel-size 1 --context-parallel-algo {algorithm} \\
"
MODEL="
    --num-layers {job.layers} --hidden-size {width} --num-attention-heads {heads} \\
    --group-query-attention --num-query-groups {groups} {experts} --use-my-gate \\
    --seq-length {job.seq} --max-position-embeddings {job.seq} --use-flash-attn --use-fused-swiglu --bf16
"
{command} $DISTRIBUTED_ARGS pretrain_own.py $PARALLEL $MODEL \\
    --micro-batch-size {job.mbs} --global-batch-size {batch} --train-iters 2000 {reduction} \\
    --load ./ckpt --save ./ckpt | tee train.log
"""


def second_script(cluster: SecondCluster, command: str = "torchrun") -> str:
    """The user's own training script, which starts `command` with Megatron's and MindSpeed's flags."""
    job, design = cluster.job, cluster.design
    experts = ""
    if design.experts > 1:
        experts = f"--num-experts {design.experts} --moe-router-topk {design.top_k} --moe-grouped-gemm "
        experts += f"--expert-model-parallel-size {job.ep} --moe-token-dispatcher-type alltoall"
        experts += f" --first-k-dense-replace {job.dense} --moe-layer-freq 1" if job.dense else ""
    return SCRIPT.format(
        command=command, nodes=job.ranks // 8, job=job, width=design.width, heads=design.heads, groups=design.groups,
        experts=experts, batch=cluster.batch, reduction="--overlap-grad-reduce" * cluster.hidden_reduction,
        algorithm="megatron_cp_algo" if design.ring else "ulysses_cp_algo",
    )  # fmt: skip


class SecondNetwork(Network):
    """One network of the second cluster with its script and small runs."""

    def text(self) -> str:
        """See `Network.text`."""
        return second_script(cast(SecondCluster, self.cluster))

    def write(self, run: SmallRun, place: Path) -> None:
        """See `Network.write`."""
        cluster = cast(SecondCluster, self.cluster)
        again: bool | str = True if run.again is None else "+".join(run.again) or False
        took = write_profile(cluster, run.setting, place / "profile", range(8, 8 + run.steps), self.starts, again)
        (place / "run.log").write_text(log_text(cluster, run.setting, 8 + run.steps, took, again))

    def small_runs(self) -> list[ShownRun]:
        """The runs that ended well: one hangs and one crashes, and others are started for them."""
        planned = plan_small_runs(self.sizes, CARDS, SEARCHABLE).runs
        failing = random.Random(f"failing {self.cluster.seed}").sample(planned[1:], 2)

        def start(run: SmallRun) -> ShownRun | None:
            if run in failing:
                self.starts += 1
                return None
            return ShownRun(run.name, run.setting, self.start(run))

        started = start_runs(planned, start, lambda one: one is None, self.sizes, CARDS.ranks)
        return [one for one in started if one is not None]


def judged(seed: int, top: Path, plans: bool = True) -> dict[str, Any]:
    """One network's figures, from the folder where they are stored already."""
    stored = top / (f"{seed}.json" if plans else f"{seed}_laws.json")
    if stored.is_file():
        return cast(dict[str, Any], json.loads(stored.read_text()))
    folder = top / stored.stem
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    cluster = second_cluster(seed)
    network = SecondNetwork(cast(Any, cluster), folder)
    found: dict[str, Any] = {"seed": seed, "variant": "", "experts": cluster.design.experts}
    found |= {"ring": cluster.design.ring, "dense": cluster.design.dense, "slow_node": cluster.slow_node}
    try:
        runs = network.small_runs()
        laws = TunedLaws(runs, network.launcher, network.sizes, network.options(True))
        found |= shapes_and_memory(cast(Any, cluster), laws, seed)
        found |= judged_plans(network, laws) if plans else {}
    except TaylorError as error:
        found["failed"] = str(error)
    found["starts"] = network.starts
    stored.write_text(json.dumps(found))
    shutil.rmtree(folder)
    return found


def report(found: Sequence[dict[str, Any]]) -> bool:
    """Print what the networks came to; whether shapes and memory hold."""
    done = [one for one in found if "failed" not in one]
    for one in found:
        if "failed" in one:
            print(f"  network {one['seed']} has no plan: {one['failed']}")
    if not done:
        return False
    print(f"with experts {sum(one['experts'] > 1 for one in done)}, ring attention {sum(one['ring'] for one in done)}, "
          f"dense layers in front {sum(one['dense'] > 0 for one in done)}, "
          f"a slow node {sum(one['slow_node'] > 0 for one in done)}")  # fmt: skip
    medians = [one["memory_median"] for one in done]
    print(f"  peaks: median of networks' medians {median(medians):.2%}")
    return summary(list(done)) and len(done) == len(found)


def main() -> int:
    """Run, print, judge."""
    parser = campaign_parser(__doc__, networks=100, seed=1)
    parser.add_argument("--laws", action="store_true", help="check operators and memory, search no plan")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    found = []
    for seed in range(args.seed, args.seed + args.networks):
        found.append(judged(seed, args.folder, not args.laws))
        print(json.dumps(found[-1]), flush=True)
    return int(not report(found))


if __name__ == "__main__":
    sys.exit(main())
