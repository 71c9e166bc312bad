"""What the torch dry-run's tests share: the stand-in stage model's orders and journal, and a LLaMA3-70B script."""

from __future__ import annotations

import json
from pathlib import Path

STAND_IN = "tests.standin_torch_stage"

LLAMA3_70B = """\
#!/bin/bash
# LLaMA3-70B on 32 GPUs.
GPUS_PER_NODE=8
NNODES=4
TP=8
PP=4

MODEL_ARGS=(
    --num-layers 80
    --hidden-size 8192
    --ffn-hidden-size 28672
    --num-attention-heads 64
    --group-query-attention
    --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --position-embedding-type rope
    --vocab-size 128256
    --use-flash-attn
)
PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size ${PP}
    --sequence-parallel
    --use-distributed-optimizer
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 32
    --bf16
    --attention-dropout 0.0
    --hidden-dropout 0.0
)

torchrun --nproc_per_node ${GPUS_PER_NODE} --nnodes ${NNODES} pretrain_gpt.py \\
    ${MODEL_ARGS[@]} ${PARALLEL_ARGS[@]} ${TRAINING_ARGS[@]}
"""


class StandIn:
    """What the stand-in stage model is told, and what it was asked."""

    def __init__(self, folder: Path, monkeypatch=None, **told: object) -> None:
        self.journal, self.path = folder / "journal.txt", folder / "standin.json"
        self.tell(**told)
        if monkeypatch is not None:
            monkeypatch.setenv("STANDIN_STAGE", str(self.path))

    def tell(self, **told: object) -> None:
        self.path.write_text(json.dumps({"journal": str(self.journal), **told}))

    def starts(self) -> list[tuple[str, int]]:
        """(strategy, stage) of every process that was started."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return [(name, int(stage)) for name, stage, _ in map(str.split, lines)]

    def alive(self) -> list[int]:
        """Processes, begun for this stand-in, that still run."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words, state = (entry / "environ").read_bytes(), (entry / "stat").read_text()
                except OSError:
                    continue
                if str(self.path).encode() in words and state.rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(entry.name))
        return found
