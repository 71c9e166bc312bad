"""The user's own training script of a hidden network, and the flags that its training command is given."""

from __future__ import annotations

from benchmarks.standin_cluster import Cluster
from taylor.parsers.small_run import RunSetting


def flags_of(words: list[str]) -> dict[str, str]:
    """Flags and the last word behind each."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            value = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else ""
            found[word[2:].replace("_", "-")] = value
    return found


def setting_of(flags: dict[str, str]) -> RunSetting:
    """Settings of a run by MindSpeed's flags."""

    def number(name: str) -> int:
        return int(flags.get(name, 1))

    tp, cp, pp = (number(f"{name}-parallel-size") for name in ("tensor-model", "context", "pipeline-model"))
    ranks = number("nproc-per-node") * number("nnodes")
    return RunSetting(
        tp, cp, number("expert-model-parallel-size"), number("micro-batch-size"), number("seq-length"),
        number("num-experts"), number("num-layers"), pp, ranks // (tp * cp * pp),
        dense=int(flags.get("first-k-dense-replace", 0)),
    )  # fmt: skip


SCRIPT = """\
#!/bin/bash
# My own network.
NNODES={nodes}
TP={job.tp}
LOAD="my checkpoint"
{command} \\
    --nproc_per_node 8 --nnodes $NNODES pretrain_mine.py \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size {job.pp} \\
    --num-layers {job.layers} --hidden-size {width} --num-attention-heads {heads} \\
    --group-query-attention --num-query-groups {groups} {experts} \\
    --my-own-module 3 --seq-length {job.seq} --max-position-embeddings {job.seq} \\
    --micro-batch-size {job.mbs} --global-batch-size {batch} --train-iters 5000 \\
    --load $LOAD --save $LOAD --bf16 --use-fused-rmsnorm {sizes} {reduction}
"""


def script_text(cluster: Cluster, command: str, stated: bool = False) -> str:
    """The user's own training script, which starts `command` with MindSpeed's flags.

    Parameters
    ----------
    stated : bool
        Its flags state all sizes of the model, which its program knows else.
    """
    job, facts = cluster.job, cluster.facts
    sizes = f"--vocab-size {facts['vocabulary']} --swiglu --disable-bias-linear --untie-embeddings-and-output-weights "
    sizes += "--use-flash-attn --position-embedding-type rope "
    if job.experts == 1:
        sizes += f"--ffn-hidden-size {facts['inner']}"
    else:
        sizes += f"--ffn-hidden-size {4 * facts['inner']} --moe-ffn-hidden-size {facts['inner']} "
        sizes += f"--moe-shared-expert-intermediate-size {facts['shared']}"
    experts = ""
    if job.experts > 1:
        experts = f"--num-experts {job.experts} --moe-router-topk {facts['top_k']} --moe-grouped-gemm "
        experts += f"--expert-model-parallel-size {job.ep}"
        experts += f" --first-k-dense-replace {job.dense} --moe-layer-freq 1" if job.dense else ""
    return SCRIPT.format(
        nodes=job.ranks // 8, job=job, command=command, width=facts["width"], heads=facts["heads"],
        groups=facts["groups"] if stated else max(8, facts["groups"]), experts=experts, batch=cluster.batch,
        sizes=sizes if stated else "", reduction="--overlap-grad-reduce" if cluster.hidden_reduction else "",
    )  # fmt: skip
