"""Probes: dry-runs of jobs with a job's memory coefficients but another shape.

The memory of a stage outside its layers, of a layer, and of a micro-batch in it depends on the
model's sizes and on how tensors are split (DP, TP, EP, optimizer), not on how many layers or stages the job has. So
where peaks scatter, other jobs determine the same coefficients better: one with 30 dense layers on a stage makes the
dense layer clear, one of 256 stages keeps 256 micro-batches alive on the first and makes a small activation clear.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from taylor.dryrun.fitting.design import Cell
from taylor.dryrun.fitting.linear_memory import LinearMemory
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, as_grid
from taylor.register.model import DENSE, MOE, MTP

STAGES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of stages that probes have."""
LARGEST = 32
"""Layers on the measured stage of a probe at most."""
_TRIES = 25


def probe_cells(memory: LinearMemory, most_stages: int, seed: int = 0) -> Iterator[Cell]:
    """Stages worth measuring, of probes with up to `most_stages` stages.

    The measured chunk lies on the first, the second or the last stage and holds up to `LARGEST` layers
    of one kind or two, recomputed in one mode or two; every other chunk holds one layer.

    Returns
    -------
    iterator of Cell
        None for a job of one stage: a probe has nothing to separate. None for a model of unlike layers in a
        special order too, since a file cannot state any number of each: only the job's plans are measured.
    """
    if memory.stages == 1 or memory.config.model.pattern:
        return
    rng = np.random.default_rng(seed)
    modes = [mode for mode in (FULL, SELECT) if mode in memory.modes]
    for stages in (each for each in STAGES if each * memory.interleaves <= most_stages):
        # With two stages the job has no middle one, and its static memory is not needed.
        places = (0, stages - 1) if min(stages, memory.stages) == 2 else (0, 1, stages - 1)
        for place in places:
            for _ in range(_TRIES):
                size = round(LARGEST ** float(rng.random()))
                mix = int(rng.integers(0, 3))
                dense = 0 if mix == 0 else size if mix == 1 else int(rng.integers(0, size + 1))
                chunk = int(rng.integers(0, memory.interleaves))
                left, again = size, {}
                for mode in modes:
                    again[mode] = int(rng.choice(np.array([0, left, int(rng.integers(0, left + 1))])))
                    left -= again[mode]
                yield Cell(_probe(memory, stages, (chunk, place), size, dense, again), place)


def job_of(memory: LinearMemory, plan: PipelinePlan) -> TrainingConfig:
    """The job that a plan belongs to: the configuration itself, or the probe of the plan's shape."""
    config = memory.config.replace(schedule=memory.schedule.spec)
    counts = {kind: sum(map(sum, grid)) for kind, grid in plan.layers.items()}
    own = plan.stages == memory.stages and {k: n for k, n in counts.items() if n} == config.model.layer_counts()
    if own or config.model.pattern:  # Such a model has no probes.
        return config
    moe = config.model.moe
    dense = counts.get(DENSE, 0)
    return config.replace(
        model=config.model.replace(
            n_layers=dense + counts.get(MOE, 0), moe=None if moe is None else replace(moe, first_dense=dense)
        ),
        strategy=config.strategy.replace(pp=plan.stages, micro_batches=memory.micro_batches_of(plan.stages)),
        plan=plan,
        schedule=memory.schedule_of(plan.stages).spec,
    )


def is_probe(memory: LinearMemory, plan: PipelinePlan) -> bool:
    """Return whether a plan is another job's than the configuration's."""
    return job_of(memory, plan).model != memory.config.model or plan.stages != memory.stages


def _probe(
    memory: LinearMemory, stages: int, measured: tuple[int, int], size: int, dense: int, again: Mapping[str, int]
) -> PipelinePlan:
    """One layer a chunk but for the measured one; dense layers come before MoE layers, MTP layers at the end."""
    shape = (memory.interleaves, stages)
    mtp = memory.config.model.mtp_layers
    layers = {kind: np.zeros(shape, dtype=int) for kind in (*memory.kinds, *([MTP] if mtp else []))}

    def put(kind: str, chunk: tuple[int, int], count: int) -> None:
        layers[kind if kind in memory.kinds else memory.kinds[-1]][chunk] += count

    schedule = memory.schedule_of(stages)
    order = [schedule.chunk_at(position) for position in range(stages * memory.interleaves)]
    before = True
    for chunk in order:
        if chunk == measured:
            put(DENSE, chunk, dense)
            put(MOE, chunk, size - dense)
            before = False
        elif not (mtp and memory.config.mtp_counted and chunk == order[-1]):
            put(DENSE if before and dense else MOE, chunk, 1)
    if mtp:
        layers[MTP][order[-1]] = mtp
    recompute = {mode: np.zeros(shape, dtype=int) for mode in again}
    for mode, count in again.items():
        recompute[mode][measured] = count
    return PipelinePlan(
        {kind: as_grid(grid.tolist()) for kind, grid in layers.items()},
        {mode: as_grid(grid.tolist()) for mode, grid in recompute.items() if mode == FULL or grid.any()},
    )
