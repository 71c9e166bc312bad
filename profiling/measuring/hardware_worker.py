"""One rank of a hardware profile: ``python -m taylor.profiling.measuring.hardware_worker FOLDER``, under torchrun too.

Reads ``plan.json`` there; rank 0 saves the measurements in ``measured.json``. All ranks go through the measurements in
the same order; rank 0 says which of them are still to be done.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from taylor.profiling.measuring.plan import (
    ALL_REDUCE,
    ALL_TO_ALL,
    ALONE,
    MIB,
    OVERLAP,
    PRODUCTS,
    TIMED_REDUCE,
    TRANSFER,
    HardwareJob,
    HardwarePlan,
    group_of,
    hardware_jobs,
)
from taylor.profiling.measuring.samples import Kept, settle
from taylor.profiling.measuring.torch_device import TorchDevice

PLAN, MEASURED = "plan.json", "measured.json"
PATIENCE = timedelta(minutes=5)
SHORTEST_S = 2e-3
"""A sample repeats its operation until it takes about so long."""


class Rank:
    """This process among the others."""

    def __init__(self, plan: HardwarePlan) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.plan = torch, dist, plan
        self.on = TorchDevice.here(int(os.environ.get("LOCAL_RANK", "0")))
        self.several = plan.world > 1
        if self.several:
            dist.init_process_group(self.on.backend, timeout=PATIENCE)
        self.rank = dist.get_rank() if self.several else 0
        self.groups: dict[tuple[int, ...], Any] = {}

    def open_groups(self, jobs: list[HardwareJob]) -> None:
        """Every group, on all ranks in the same order, as torch asks for it."""
        for job in jobs:
            if job.kind in ALONE:
                continue
            for rank in range(self.plan.world):
                ranks = group_of(rank, job, self.plan.world)
                if ranks not in self.groups and job.kind != TRANSFER:
                    self.groups[ranks] = self.dist.new_group(list(ranks))

    def agreed(self, value: Any) -> Any:
        """The value of rank 0."""
        if not self.several:
            return value
        shared = [value]
        self.dist.broadcast_object_list(shared, src=0, device=self.on.device)
        return shared[0]

    def slowest(self, seconds: float) -> float:
        """The largest of all ranks' times."""
        if not self.several:
            return seconds
        shared = self.torch.tensor([seconds], dtype=self.torch.float64, device=self.on.device)
        self.dist.all_reduce(shared, op=self.dist.ReduceOp.MAX)
        return float(shared.item())

    def timed(self, operation: Callable[[], object]) -> Callable[[], float]:
        """Seconds of one operation, the slowest rank's; each sample repeats a short one."""
        self._once(operation)
        times = max(1, min(1000, int(SHORTEST_S / max(self._once(operation), 1e-7))))
        return lambda: self._once(lambda: [operation() for _ in range(times)]) / times

    def _once(self, operation: Callable[[], object]) -> float:
        if self.several:
            self.dist.barrier()
        self.on.wait()
        began = time.perf_counter()
        operation()
        self.on.wait()
        return self.slowest(time.perf_counter() - began)

    def sampler(self, job: HardwareJob) -> Callable[[], float] | None:
        """Callable that gives a sample of a measurement; None where this machine has nothing to measure.

        Seconds, but of `OVERLAP` the slow-down, and of `ALONE` what a second does: FLOP or bytes.
        """
        torch, dist, on = self.torch, self.dist, self.on
        if job.kind in (ALL_REDUCE, TIMED_REDUCE, ALL_TO_ALL):
            group = self.groups[group_of(self.rank, job, self.plan.world)]
            sent = torch.zeros(job.mib * MIB // 2, dtype=on.half, device=on.device)
            if job.kind != ALL_TO_ALL:
                return self.timed(lambda: dist.all_reduce(sent, group=group))
            sent = sent[: len(sent) // job.ranks * job.ranks]
            got = torch.empty_like(sent)
            return self.timed(lambda: dist.all_to_all_single(got, sent, group=group))
        if job.kind == TRANSFER:
            distance = self.plan.world // job.ranks
            sent = torch.zeros(job.mib * MIB // 2, dtype=on.half, device=on.device)

            def send() -> None:
                if self.rank < distance:
                    dist.send(sent, self.rank + distance)
                elif self.rank < 2 * distance:
                    dist.recv(sent, self.rank - distance)

            return self.timed(send)
        if job.kind == OVERLAP:
            return self._overlap()
        done, operation = on.work(job.kind, self.plan.width)
        if operation is None:
            return None
        seconds = self.timed(operation)
        return lambda: done / seconds()

    def _overlap(self) -> Callable[[], float]:
        """Ratio of the time of computing and communicating together to the longer of the two alone."""
        torch, dist, on = self.torch, self.dist, self.on
        _, product = on.work(PRODUCTS, self.plan.width)
        assert product is not None
        sent = torch.zeros(16 * MIB // 2, dtype=on.half, device=on.device)
        alone = self.timed(product)()
        reducing = self.timed(lambda: dist.all_reduce(sent))()
        # As many GEMMs as take as long as the reductions, which are `overlap_multiply` of them.
        times = self.plan.overlap_multiply
        products = max(1, round(times * reducing / alone))

        def both() -> None:
            waiting = [dist.all_reduce(sent, async_op=True) for _ in range(times)]
            for _ in range(products):
                product()
            for one in waiting:
                one.wait()

        def sample() -> float:
            compute = self._once(lambda: [product() for _ in range(products)])
            communicate = self._once(lambda: [dist.all_reduce(sent) for _ in range(times)])
            return max(1.0, self._once(both) / max(compute, communicate))

        return sample


def main(folder: Path) -> None:
    """Run the measurements that are missing."""
    plan = HardwarePlan(**_plan(folder))
    me = Rank(plan)
    jobs = list(hardware_jobs(plan))
    me.open_groups(jobs)
    kept = Kept(folder / MEASURED, {**me.on.facts, "nodes": plan.nodes, "per_node": plan.per_node, "width": plan.width})
    for job in jobs:
        if me.agreed(kept.settled(job.key)):
            continue
        once = me.sampler(job)
        if once is None:
            continue
        # Whether a round is repeated must be agreed on: every rank sees the same samples, the slowest rank's.
        sample = settle(once, plan.repeats, plan.attempts, me.agreed(me.on.memory_free()), warm=1)
        if me.rank == 0:
            kept.keep(job.key, sample)
            mark = f" DISTURBED: {sample.disturbed}" if sample.disturbed else ""
            print(f"{job.key}: {sample.value:.6g}, spread {100 * sample.spread:.1f} %{mark}", flush=True)
    if me.several:
        me.dist.barrier()
        me.dist.destroy_process_group()


def _plan(folder: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    return {**data, "kinds": tuple(data["kinds"])}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
