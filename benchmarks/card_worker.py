"""One rank of a torchtitan job on one card: ``card_worker.py ANSWER``, then torchtitan's own arguments.

Ranks that are not there are pretended: they route their tokens as this one does, and send a pipeline stage what it asks
for. The data are random tokens. Runs with torchtitan v0.2.2 on the path and knows nothing of Taylor.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torchtitan.distributed.expert_parallel as experts
import torchtitan.distributed.utils as dist_utils
import torchtitan.protocols.train_spec as specs
import torchtitan.train as train
from torchtitan.config import ConfigManager

MIB = 2**20
EXCHANGE, SPEC = experts.all_to_all_single, specs.get_train_spec


class Tokens:
    """The same random tokens every step."""

    def __init__(self, job: Any, vocabulary: int) -> None:
        drawn = torch.randint(
            0, vocabulary, (job.training.local_batch_size, job.training.seq_len + 1),
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        self.pair = {"input": drawn[:, :-1].contiguous()}, drawn[:, 1:].contiguous()

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.pair

    def state_dict(self) -> dict[str, Any]:
        """Nothing to keep."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take."""


class Measured(train.Trainer):  # type: ignore[misc]
    """A trainer that asks the allocator after every step."""

    def __init__(self, job: Any) -> None:
        self.steps: list[dict[str, float]] = []
        super().__init__(job)

    def train_step(self, data: Iterator[Any]) -> None:
        """One step, and what it took."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        super().train_step(data)
        torch.cuda.synchronize()
        seconds, memory = time.perf_counter() - began, torch.cuda.memory_stats()
        self.steps.append(
            {
                "active_mib": round(memory["active_bytes.all.peak"] / MIB),
                "reserved_mib": round(memory["reserved_bytes.all.peak"] / MIB),
                "step_ms": round(1e3 * seconds, 1),
            }
        )


def pretend(job: Any) -> None:
    """Put what stands for the other ranks in the place of what would ask them."""
    rank = int(os.environ["RANK"])

    def start(world_size: int, comm_mode: str = "fake_backend") -> None:
        dist.init_process_group("fake", rank=rank, world_size=world_size)

    def exchanged(sent: Any, received: Any, given: Any, group: Any) -> Any:
        # Counts of tokens, before the tokens themselves: as many come as go.
        return sent.clone() if received is None else EXCHANGE(sent, received, given, group)

    def shape_of_input(objects: list[Any], *args: Any, **kwargs: Any) -> None:
        width, degrees = SPEC(job.model.name).model_args[job.model.flavor].dim, job.parallelism
        length = job.training.seq_len // degrees.context_parallel_degree // degrees.tensor_parallel_degree
        size = (degrees.pipeline_parallel_microbatch_size, length, width)
        objects[0] = (torch.empty(size, dtype=torch.bfloat16, device="meta"),)

    def with_random_tokens(name: str) -> Any:
        spec = SPEC(name)
        vocabulary = spec.model_args[job.model.flavor].vocab_size
        return dataclasses.replace(
            spec,
            build_tokenizer_fn=lambda job: types.SimpleNamespace(eos_id=0),
            build_dataloader_fn=lambda job_config, **others: Tokens(job_config, vocabulary),
        )

    dist_utils.init_fake_mode = start
    experts.all_to_all_single = exchanged
    dist.recv_object_list = shape_of_input  # type: ignore[assignment]
    specs.get_train_spec = with_random_tokens


def main() -> None:
    """Train, and write the last step's figures."""
    answer = Path(sys.argv.pop(1))
    job = ConfigManager().parse_args()
    pretend(job)
    trainer = Measured(job)
    trainer.train()
    answer.write_text(json.dumps(trainer.steps[-1]), encoding="utf-8")


if __name__ == "__main__":
    main()
