"""The division of a black-box network over stages, as a problem for the exact solver.

Memory comes from the laws of its tensors (`blackbox.memory_laws`), times from the caller: an operator base, or runs.
Stages run 1F1B, one chunk each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taylor.base.errors import InputError
from taylor.blackbox.memory_laws import MemoryLaws, StagePeak
from taylor.parsers.small_run import Setting
from taylor.pipeline.plan import FULL, NONE, PipelinePlan
from taylor.pipeline_solver.problem import LayerKind, PipelineProblem

EMBEDDING, LAYER, HEAD = "embedding", "layer", "head"
"""The blocks that small runs show, in the order of the model."""
MIB = float(1 << 20)


@dataclass(frozen=True)
class BlockTimes:
    """What one micro-batch takes on one rank, ms.

    Parameters
    ----------
    embedding, layer, head : float
        Forward passes.
    backward : float
        A layer's backward pass, without its forward pass again.
    transfer : float
        From stage to stage, where no computation hides it.
    update : tuple of float [pp] or empty
        After the last micro-batch of each stage: gradients are summed, weights updated.
    """

    embedding: float
    layer: float
    head: float
    backward: float
    transfer: float = 0.0
    update: tuple[float, ...] = ()


def stage_problem(
    laws: MemoryLaws,
    run: Setting,
    times: BlockTimes,
    micro_batches: int,
    limit: float,
    uniform: tuple[tuple[str, int], ...] = (),
) -> PipelineProblem:
    """The problem of dividing `run.layers` layers over `run.pp` stages, each layer recomputed or not.

    What the solver lets through fits by the laws too: the most that any of a stage's blocks takes for a moment is
    counted on every stage that may hold it.

    Parameters
    ----------
    limit : float
        Bytes of a device.
    uniform : tuple of (str, int)
        As `PipelineProblem.uniform_recompute`: what the launcher's files can say.

    Raises
    ------
    InputError
        When tensors have no law, or a layer takes no time.
    """
    if times.layer <= 0:
        raise InputError("must be > 0", field="time of a layer", value=times.layer, cure="measure a small run")
    blocks: list[tuple[str, bool]] = [(EMBEDDING, False), (LAYER, False), (LAYER, True), (HEAD, False)]
    alone = {block: laws.stage(run, [block], 1) for block in blocks}
    unsure = [name for peak in alone.values() for name in peak.unsure]
    if unsure:
        cure = "start the runs that `taylor tune` names"
        raise InputError("have no law: " + ", ".join(dict.fromkeys(unsure)), field="tensors", cure=cure)
    empty = laws.stage(run, [], 1).static
    states = {block: peak.static - empty for block, peak in alone.items()}
    kept = {block: laws.micro_batch(run, block)[0] for block in blocks}
    moment = {block: max(0.0, laws.micro_batch(run, block)[1] - kept[block]) for block in blocks}
    room = limit / (1 + laws.margin)
    static, most_layers = list[float](), dict[tuple[int, int], int]()
    for stage in range(run.pp):
        ends = [blocks[0]] * (stage == 0) + [blocks[-1]] * (stage == run.pp - 1)
        flight = min(micro_batches, run.pp - stage)
        briefly = max(moment[block] for block in (*ends, *blocks[1:3]))
        static.append(empty + briefly + sum(states[block] + flight * kept[block] for block in ends))
        # The optimizer's step comes when no micro-batch is in flight: it limits layers by itself.
        held = empty + sum(states[block] for block in ends) + laws.step_bytes(run, ends)
        each = states[blocks[1]] + laws.step_bytes(run, [blocks[1]])
        most_layers[0, stage] = max(0, min(run.layers, int((room - held) / each))) if each else run.layers
    layer = LayerKind(
        LAYER,
        run.layers,
        1.0,
        states[blocks[1]] / MIB,
        {NONE: kept[blocks[1]] / MIB, FULL: kept[blocks[2]] / MIB},
    )
    return PipelineProblem(
        stages=run.pp,
        interleaves=1,
        micro_batches=micro_batches,
        kinds=(layer,),
        static_mib=tuple(each / MIB for each in static),
        limit_mib=(room / MIB,) * run.pp,
        backward_ratio=times.backward / times.layer,
        head_forward=times.head / times.layer,
        embedding_forward=times.embedding / times.layer,
        lag=times.transfer / times.layer,
        tail=tuple(each / times.layer for each in times.update),
        max_layers=most_layers,
        uniform_recompute=uniform,
        unit_ms=times.layer,
    )


def stage_peaks(laws: MemoryLaws, run: Setting, plan: PipelinePlan, micro_batches: int) -> tuple[StagePeak, ...]:
    """The memory of every stage of a plan, the layers that run again first."""
    return tuple(
        laws.stage(run, blocks, min(micro_batches, run.pp - stage)) for stage, blocks in enumerate(stage_blocks(plan))
    )


def stage_blocks(plan: PipelinePlan) -> tuple[Sequence[tuple[str, bool]], ...]:
    """The blocks of every stage of a plan in their order, each with whether it runs again."""
    counts = plan.total_layers()[0]
    again = plan.recompute[FULL][0] if FULL in plan.recompute else (0,) * plan.stages
    stages = [[(LAYER, at < again[stage]) for at in range(count)] for stage, count in enumerate(counts)]
    stages[0].insert(0, (EMBEDDING, False))
    stages[-1].append((HEAD, False))
    return tuple(stages)
