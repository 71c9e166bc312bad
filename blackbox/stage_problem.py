"""The division of a black-box network over stages, as a problem for the exact solver.

Memory comes from the laws of its tensors (`blackbox.memory_laws`), times from the caller: an operator base, or runs.
Stages run 1F1B, with several chunks each in Megatron's interleaved order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import InputError
from taylor.blackbox.memory_laws import MemoryLaws, PredictedPeak
from taylor.blackbox.module_runs import Again
from taylor.parsers.small_run import RunSetting
from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, NONE, RECOMPUTE_MODES, PipelinePlan
from taylor.pipeline.schedule import Schedule, ScheduleSpec
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem

EMBEDDING, DENSE, LAYER, HEAD = "embedding", "dense", "layer", "head"
"""The blocks that small runs show, in the order of the model; `DENSE` where layers without experts stand in front."""
MIB = float(1 << 20)
INTERLEAVED = ScheduleSpec("megatron-interleaved")
"""Schedule of stages with several chunks, whose scripts are Megatron's (`register.frameworks.MEGATRON`)."""
Blocks = Sequence[tuple[str, Again]]
"""Blocks in the order of the model, each with whether it runs again in the backward pass, or which of its modules."""
STEADY_ROUNDS = 4
"""Rounds of as many micro-batches as stages after which an interleaved order repeats: it warms up with less than two,
(2 (S - 1 - s) + (V - 1) S) / V of them (see `pipeline.orders`), and one more shows every task of its cycle."""


@dataclass(frozen=True)
class AgainTimes:
    """A choice by module, and the ms that it adds to the backward pass of a layer of each kind."""

    name: str
    ms: Mapping[str, float]


@dataclass(frozen=True)
class BlockTimes:
    """Times of one micro-batch on one rank, ms.

    Parameters
    ----------
    embedding, layer, head : float
        Forward passes.
    backward : float
        A layer's backward pass, without its forward pass again.
    transfer : float
        From stage to stage, where no computation overlaps it.
    update : tuple of float [pp] or empty
        After the last micro-batch of each stage: gradients are summed, weights updated.
    dense : (float, float)
        Forward and backward pass of a dense layer, where such stand in front of others.
    again : tuple of AgainTimes
        Choices by module.
    whole_again : float
        What a layer's backward pass takes longer where the layer runs again whole, over its forward pass.
    """

    embedding: float
    layer: float
    head: float
    backward: float
    transfer: float = 0.0
    update: tuple[float, ...] = ()
    dense: tuple[float, float] = (0.0, 0.0)
    again: tuple[AgainTimes, ...] = ()
    whole_again: float = 1.0

    @property
    def ratio(self) -> float:
        """Backward over forward of a layer, which holds for the whole problem."""
        return self.backward / self.layer

    @property
    def dense_forward(self) -> float:
        """The forward pass that makes a dense layer's both passes as long as they are, under that ratio."""
        return sum(self.dense) / (1 + self.ratio)


def layer_counts(run: RunSetting) -> dict[str, int]:
    """Layers of each kind in the order of the model."""
    return {DENSE: run.dense, LAYER: run.layers - run.dense} if run.dense else {LAYER: run.layers}


def layer_names(run: RunSetting) -> list[str]:
    """The kind of every layer in order."""
    return [name for name, count in layer_counts(run).items() for _ in range(count)]


def even_stages(run: RunSetting) -> list[Blocks]:
    """The blocks of every stage where layers are dealt evenly, none of them run again."""
    names, stages = layer_names(run), list[Blocks]()
    for stage in range(run.pp):
        layers = run.layers // run.pp + (stage < run.layers % run.pp)
        mine, names = [(name, False) for name in names[:layers]], names[layers:]
        stages.append([(EMBEDDING, False)] * (stage == 0) + mine + [(HEAD, False)] * (stage == run.pp - 1))
    return stages


def stage_problem(
    laws: MemoryLaws,
    run: RunSetting,
    times: BlockTimes,
    micro_batches: int,
    limit: float,
    uniform: tuple[tuple[str, int], ...] = (),
    all_again: Collection[int] | None = None,
) -> PipelineProblem:
    """The problem of dividing `run.layers` layers over `run.pp` stages of `run.vpp` chunks, each recomputed or not.

    The most that any of a stage's blocks takes for a moment is counted on every stage that may hold it. Layers that
    run again stand first in their chunk (`stage_blocks`), so those that do not have freed what they kept by the
    time that the others run again: where a chunk holds one of them, the others' moment is no more than that.

    Parameters
    ----------
    limit : float
        Bytes of a device.
    uniform : tuple of (str, int)
        As `PipelineProblem.uniform_recompute`: what the launcher's files can say.
    all_again : collection of int or None
        Stages that may hold chunks whose layers all run again; what the solver lets through on them fits by the laws
        too. None: all stages.

    Raises
    ------
    InputError
        When tensors have no law, or a layer takes no time.
    """
    if times.layer <= 0:
        raise InputError("must be > 0", field="time of a layer", value=times.layer, cure="measure a small run")
    margin, laws = laws.margin, laws.largest  # What the solver lets through stays below the upper limit.
    counts = layer_counts(run)
    named = tuple(one.name for one in times.again)
    ways: tuple[Again, ...] = (False, True, *named)
    layers = [(name, again) for name in counts for again in ways]
    blocks: list[tuple[str, Again]] = [(EMBEDDING, False), *layers, (HEAD, False)]
    several = micro_batches > 1
    alone = {block: laws.stage(run, [block], 1, accumulates=several) for block in blocks}
    unsure = [name for peak in alone.values() for name in peak.unsure]
    if unsure:
        cure = "start the runs that `taylor tune` names"
        raise InputError("have no law: " + ", ".join(dict.fromkeys(unsure)), field="tensors", cure=cure)
    empty = laws.stage(run, [], 1).static
    states = {block: peak.static - empty for block, peak in alone.items()}
    kept = {block: laws.micro_batch(run, block)[0] for block in blocks}
    moment = {block: max(0.0, laws.micro_batch(run, block)[1] - kept[block]) for block in blocks}
    budget = limit / (1 + margin)
    static, most_layers = list[float](), dict[tuple[int, int], int]()
    chunks_alive = alive_chunks(run.pp, run.vpp, micro_batches)
    for stage in range(run.pp):
        ends = [blocks[0]] * (stage == 0) + [blocks[-1]] * (stage == run.pp - 1)
        alive = chunks_alive[stage].max(axis=0)
        flights = {blocks[0]: alive[0], blocks[-1]: alive[-1]}
        may = layers if all_again is None or stage in all_again else [layer for layer in layers if not layer[1]]
        moments = [moment[block] for block in (*may, *ends) if block[0] != EMBEDDING]
        if stage == 0:
            # While the embedding runs no layer of its chunk keeps anything of that micro-batch.
            moments.append(moment[blocks[0]] - min(kept[layer] for layer in may))
        briefly = max(moments)
        static.append(empty + briefly + sum(states[block] + flights[block] * kept[block] for block in ends))
        if laws.weights is not None and run.pp == 1:
            static[-1] = _whole_model(laws, run, states, kept, several=several)
        # The optimizer's step comes when no micro-batch is in flight: it limits layers by itself.
        used = empty + sum(states[block] for block in ends) + laws.step_bytes(run, ends)
        each = min(states[name, False] + laws.step_bytes(run, [(name, False)]) for name in counts)
        most = max(0, min(run.layers, int((budget - used) / each))) if each else run.layers
        most_layers |= {(chunk, stage): most for chunk in range(run.vpp)}
    modes: list[tuple[str, Again]] = [(NONE, False), (FULL, True), *((one, one) for one in named)]
    kinds = tuple(
        LayerKind(
            name,
            count,
            times.dense_forward / times.layer if name == DENSE else 1.0,
            states[name, False] / MIB,
            {mode: kept[name, again] / MIB for mode, again in modes},
            choices={one.name: LayerChoice(backward=one.ms[name] / times.layer) for one in times.again},
        )
        for name, count in counts.items()
    )
    return PipelineProblem(
        stages=run.pp,
        interleaves=run.vpp,
        micro_batches=micro_batches,
        kinds=kinds,
        static_mib=tuple(each / MIB for each in static),
        limit_mib=(budget / MIB,) * run.pp,
        schedule=schedule_of(run.vpp),
        backward_ratio=times.ratio,
        recompute_ratio={FULL: times.whole_again},
        head_forward=times.head / times.layer,
        embedding_forward=times.embedding / times.layer,
        lag=times.transfer / times.layer,
        tail=tuple(each / times.layer for each in times.update),
        max_layers=most_layers,
        choices=named,
        # What a file can say of modules holds for all layers.
        uniform_recompute=(*uniform, *((name, run.layers) for name in named)) if uniform else (),
        unit_ms=times.layer,
    )


def _whole_model(
    laws: MemoryLaws,
    run: RunSetting,
    states: Mapping[tuple[str, Again], float],
    kept: Mapping[tuple[str, Again], float],
    *,
    several: bool,
) -> float:
    """Bytes beside the layers' own of a stage that holds the whole model, whether its layers run again or not."""
    found = []
    for again in (False, True):
        layers: list[tuple[str, Again]] = [(name, again) for name in layer_names(run)]
        peak = laws.stage(run, [(EMBEDDING, False), *layers, (HEAD, False)], 1, accumulates=several).peak
        found.append(peak - sum(states[layer] + kept[layer] for layer in layers))
    return max(found)


def schedule_of(chunks: int) -> ScheduleSpec:
    """Schedule of stages with `chunks` chunks."""
    return ScheduleSpec() if chunks == 1 else INTERLEAVED


@lru_cache(maxsize=256)
def _steady(stages: int, chunks: int, micro_batches: int) -> Schedule:
    return build_schedule(schedule_of(chunks), stages, chunks, micro_batches)


def _shortened(stages: int, micro_batches: int) -> int:
    """Number of micro-batches that shows the memory of `micro_batches`: a whole number of rounds stays one."""
    return min(micro_batches, STEADY_ROUNDS * stages)


def alive_chunks(stages: int, chunks: int, micro_batches: int) -> Sequence[NDArray[np.float64]]:
    """Micro-batches alive at once, float64 [n, chunks] a stage: `alive_vectors`."""
    return _alive(stages, chunks, _shortened(stages, micro_batches))


@lru_cache(maxsize=256)
def _alive(stages: int, chunks: int, micro_batches: int) -> Sequence[NDArray[np.float64]]:
    if chunks == 1:
        return tuple(np.array([[float(min(micro_batches, stages - stage))]]) for stage in range(stages))
    return alive_vectors(_steady(stages, chunks, micro_batches))


def stage_peaks(laws: MemoryLaws, run: RunSetting, plan: PipelinePlan, micro_batches: int) -> tuple[PredictedPeak, ...]:
    """The memory of every stage of a plan, the layers of a chunk that run again first."""
    stages = stage_blocks(plan)
    if plan.interleaves == 1:
        return tuple(
            laws.stage(run, blocks, min(micro_batches, run.pp - stage), accumulates=micro_batches > run.pp - stage)
            for stage, (blocks,) in enumerate(stages)
        )
    order = _steady(plan.stages, plan.interleaves, _shortened(plan.stages, micro_batches)).order
    return tuple(laws.chunks(run, chunks, order[stage]) for stage, chunks in enumerate(stages))


def stage_blocks(plan: PipelinePlan) -> tuple[tuple[Blocks, ...], ...]:
    """The blocks of every chunk of every stage of a plan in their order."""
    again = plan.recomputed(FULL)
    named = [(mode, grid) for mode, grid in plan.recompute.items() if mode not in RECOMPUTE_MODES]

    def mode(at: int, chunk: int, stage: int) -> Again:
        # Layers that run again whole come first, then those of each choice in its turn.
        below = again[chunk][stage]
        if at < below:
            return True
        for name, grid in named:
            below += grid[chunk][stage]
            if at < below:
                return name
        return False

    stages: list[list[list[tuple[str, Again]]]] = [
        [
            [
                (name, mode(at, chunk, stage))
                for at, name in enumerate(name for name, grid in plan.layers.items() for _ in range(grid[chunk][stage]))
            ]
            for chunk in range(plan.interleaves)
        ]
        for stage in range(plan.stages)
    ]
    stages[0][0].insert(0, (EMBEDDING, False))
    stages[-1][-1].append((HEAD, False))
    return tuple(tuple(map(tuple, chunks)) for chunks in stages)
