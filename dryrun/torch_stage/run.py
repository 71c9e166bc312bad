"""The dry-run of one pipeline stage on fake tensors; `dryrun`'s torch backend calls it once a stage."""

from __future__ import annotations

import resource
import time
from dataclasses import replace
from pathlib import Path

from torch._subclasses.fake_tensor import FakeTensorMode

from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.memory.statics import MIB, overhead_mib
from taylor.dryrun.interface import DryRun
from taylor.dryrun.stage_memory import Moment, StageMemory
from taylor.dryrun.torch_stage.chunk import LOGITS, StageChunk, activations_of, layers_and_modes
from taylor.dryrun.torch_stage.counter import TRANSIENT, LiveCounter
from taylor.dryrun.torch_stage.kernels import GradientQueue
from taylor.dryrun.torch_stage.site import Site
from taylor.dryrun.torch_stage.step import StageStep, tasks_worth_running
from taylor.dryrun.torch_stage.weights import BUFFERS, GRADIENTS, OPTIMIZER, WEIGHTS
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.orders import Task
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import WEIGHT_GRADIENT, Schedule, ScheduleSpec
from taylor.register.model import kind_of

OVERHEAD, CACHED = "overhead", "cached"


def run_stage(run: DryRun, stage: int, *, whole_step: bool = False, see_kernels: bool = False) -> StageMemory:
    """Run one stage's step on fake tensors and measure its peak.

    Parameters
    ----------
    run : DryRun
        Its plan, or without one an even split in the file's recompute mode.
    whole_step : bool
        Run every task. Otherwise the step ends where no later task can change the peak; the peak is
        the same, and the moments end there.
    see_kernels : bool
        Count what kernels make inside too: what real tensors on a CPU need (`LiveCounter`).

    Raises
    ------
    ValueError
        When the schedule cannot run with these numbers, or the plan has another shape.
    """
    began = time.monotonic()
    strategy = run.strategy
    plan = settled_plan(run)
    if (plan.stages, plan.interleaves) != (strategy.pp, strategy.vpp):
        raise ValueError(
            f"the plan is for {plan.stages} stages x {plan.interleaves} virtual stages, "
            f"the strategy for {strategy.pp} x {strategy.vpp}"
        )
    spec = run.config.schedule_for(strategy.vpp)
    schedule = build_schedule(spec, strategy.pp, strategy.vpp, strategy.micro_batches)
    site = Site(run.config.model, strategy, run.config.rules, pieces=spec.seq_splits)
    counter = LiveCounter(see_kernels)
    with FakeTensorMode(), counter:
        moments = _run(site, counter, schedule, plan, stage, whole_step)
    overhead, cached = overhead_mib(run.config.rules), _cached_mib(site, plan, spec, stage)
    beyond = overhead + sum(cached.values())
    at_peak = counter.at_peak
    names = [
        WEIGHTS,
        GRADIENTS,
        OPTIMIZER,
        *map(activations_of, dict.fromkeys(map(kind_of, plan.layers))),
        LOGITS,
        BUFFERS,
        TRANSIENT,
    ]
    categories = {name: at_peak.pop(name, 0) / MIB for name in names}
    assert not at_peak, f"memory of no known category: {at_peak}"
    return StageMemory(
        stage=stage,
        peak_mib=counter.peak / MIB + beyond,
        categories={**categories, OVERHEAD: overhead, **cached},
        moments=tuple(
            replace(moment, live_mib=moment.live_mib + beyond, peak_mib=moment.peak_mib + beyond) for moment in moments
        ),
        seconds=time.monotonic() - began,
        max_rss_mib=_most_memory_mib(),
    )


def _cached_mib(site: Site, plan: PipelinePlan, spec: ScheduleSpec, stage: int) -> dict[str, float]:
    """What torch's allocator reserves beside the tensors (`cost_model.memory.reserved`), MiB: fake tensors do not
    show it.
    """
    if not site.rules.separate_pools:
        return {}
    return {CACHED: stage_breakdown(site.model, site.strategy, site.rules, plan, spec)[stage].cached}


def _most_memory_mib() -> float:
    """Largest host memory of this process, MiB.

    `getrusage` would also count the process that it was forked from.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def settled_plan(run: DryRun) -> PipelinePlan:
    """The run's plan; without one the even plan in the file's recompute mode."""
    return run.plan or run.config.even_plan(run.strategy)


def stage_chunks(
    site: Site, queue: GradientQueue, schedule: Schedule, plan: PipelinePlan, stage: int
) -> list[StageChunk]:
    """The chunks of a stage, by virtual stage; on one stage a tied head uses the first chunk's table."""
    chunks: list[StageChunk] = []
    embedding = None
    for v in range(schedule.interleaves):
        place = schedule.position(v, stage)
        first, last = place == 0, place == schedule.chunks - 1
        tied = last and site.model.tied_embedding and (first or embedding is not None)
        chunks.append(
            StageChunk(
                site, queue, layers_and_modes(plan, v, stage), first=first, last=last, embedding=embedding, tied=tied
            )
        )
        if first:
            embedding = chunks[-1].embedding
    return chunks


def _run(
    site: Site, counter: LiveCounter, schedule: Schedule, plan: PipelinePlan, stage: int, whole_step: bool
) -> list[Moment]:
    order: list[Task] = [(int(d), int(v), int(i), int(q)) for d, v, i, q in schedule.order[stage]]
    postponed = any(direction == WEIGHT_GRADIENT for direction, *_ in order)
    queue = GradientQueue(postpone=postponed)
    step = StageStep(site, counter, queue, stage_chunks(site, queue, schedule, plan, stage), schedule.micro_batches)
    wanted = len(order) if whole_step else tasks_worth_running(order, postponed)
    return [step.run(task) for task in order[:wanted]]
