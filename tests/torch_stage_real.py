"""Runs one stage on real tensors and prints what the CPU allocator had live, as torch's profiler saw it.

Arguments: the pickled run and the stage. A process of its own, so that nothing else's memory is in the figures.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path

import torch

from taylor.dryrun.torch_stage.counter import LiveCounter
from taylor.dryrun.torch_stage.kernels import GradientQueue
from taylor.dryrun.torch_stage.run import stage_chunks
from taylor.dryrun.torch_stage.site import Site
from taylor.dryrun.torch_stage.step import StageStep
from taylor.pipeline.generators import build_schedule


def allocator_peak(events: list[int]) -> int:
    """Most bytes live at once, from the allocations (+) and releases (−) in their order."""
    live = peak = 0
    for size in events:
        live += size
        peak = max(peak, live)
    return peak


def main() -> None:
    run, stage = pickle.loads(Path(sys.argv[1]).read_bytes()), int(sys.argv[2])
    torch.set_num_threads(1)
    strategy = run.strategy
    spec = run.config.schedule_for(strategy.vpp)
    schedule = build_schedule(spec, strategy.pp, strategy.vpp, strategy.micro_batches)
    site = Site(run.config.model, strategy, run.config.rules, pieces=spec.seq_splits)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        queue = GradientQueue()
        # The step charges categories; nothing is dispatched through this counter, so it sees nothing.
        chunks = stage_chunks(site, queue, schedule, run.plan, stage)
        step = StageStep(site, Bystander(), queue, chunks, strategy.micro_batches)
        for task in schedule.order[stage].tolist():
            step.run(tuple(task))
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    print(json.dumps({"peak": allocator_peak([event.nbytes() for event in events]), "events": len(events)}))


class Bystander(LiveCounter):
    """A counter that counts nothing."""

    def move(self, tensor: torch.Tensor, name: str) -> None:
        """Nothing to charge."""


if __name__ == "__main__":
    main()
