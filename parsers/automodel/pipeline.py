"""Stages, schedule and micro-batches of a recipe whose layers torch's pipelining splits.

Sources are lines of NVIDIA-NeMo/Automodel 36044ad3 nemo_automodel/components/distributed/pipelining/functional.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from taylor.parsers.text.fields import MAX_LAYERS, Fields
from taylor.parsers.torchtitan.read import SCHEDULES as OF_TORCH
from taylor.parsers.torchtitan.read import default_split
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.trainers import AUTOMODEL

SCHEDULES = {name: called for name, called in OF_TORCH.items() if name in AUTOMODEL.schedules}
"""Names of schedules as torch knows them, by ours."""
PARTS, PER_STAGE, ROUNDED = "module_fqns_per_model_part", "layers_per_stage", "round_virtual_stages_to_pp_multiple"
SCHEDULE, SIZE = "pp_schedule", "pp_microbatch_size"
SINGLE = ("1f1b", "gpipe")
"""Schedules of one chunk a rank (torch 2.13 torch/distributed/pipelining/schedules.py, ``PipelineScheduleSingle``)."""
_LAYER = re.compile(r"(?:[A-Za-z_]{1,40}\.){1,4}(\d{1,6})$")


@dataclass(frozen=True)
class Stages:
    """The split of a model.

    Parameters
    ----------
    schedule : ScheduleSpec
    sizes : tuple of int
        Layers of every chunk in model order.
    mbs : int
        Samples of a micro-batch.
    """

    schedule: ScheduleSpec
    sizes: tuple[int, ...]
    mbs: int


def stages_of(section: Fields, layers: int, pp: int, local: int) -> Stages:
    """The split of a model's layers.

    Parameters
    ----------
    section : Fields
        ``distributed``.
    local : int
        Samples of a data-parallel rank at once.

    Raises
    ------
    InputError
        When the program does not know the schedule, or cannot split the layers so.
    """
    if pp == 1:
        return Stages(ScheduleSpec(), (layers,), local)
    pipeline = section.section("pipeline")
    schedule = _schedule(pipeline)
    mbs = int(pipeline.integer(SIZE, default=1))
    if local % mbs:
        cure = "write a divisor of step_scheduler.local_batch_size"
        raise pipeline.error(SIZE, f"must divide the local batch size {local}", mbs, cure)
    parts = pipeline.raw(PARTS)
    if parts is not None:
        return Stages(schedule, _stated(pipeline, parts, layers, pp), mbs)
    chunks = _chunks(pipeline, schedule, layers, pp)
    return Stages(schedule, tuple(default_split(layers, chunks, 0, 0)), mbs)


def _schedule(pipeline: Fields) -> ScheduleSpec:
    """By torch's names, in any case (schedules.py, ``get_schedule_class``)."""
    if pipeline.has("pp_schedule_csv"):
        cure = "state pp_schedule alone"
        raise pipeline.error("pp_schedule_csv", "is an order of tasks that is not read", cure=cure)
    written = str(pipeline.raw(SCHEDULE) or "1f1b")
    name = next((name for name, called in SCHEDULES.items() if called.lower() == written.lower()), None)
    if name is None:
        cure = f"use {', '.join(SCHEDULES.values())}"
        raise pipeline.error(SCHEDULE, "is not a schedule known here", written[:60], cure)
    return ScheduleSpec(name)


def _chunks(pipeline: Fields, schedule: ScheduleSpec, layers: int, pp: int) -> int:
    """Number of chunks (functional.py:165-245, ``calculate_virtual_stages``; 136)."""
    per_stage = pipeline.integer(PER_STAGE, default=None, high=MAX_LAYERS)
    single = schedule.name in SINGLE
    if per_stage is None:
        chunks = pp if single else 2 * pp
    else:
        chunks = -(-layers // int(per_stage))
        if chunks % pp:
            rounded = pipeline.raw(ROUNDED)
            if rounded not in ("up", "down"):
                problem = f"makes {chunks} chunks of {layers} layers, no multiple of PP = {pp}"
                raise pipeline.error(PER_STAGE, problem, per_stage, f"write {ROUNDED}: up or down")
            chunks += (pp if rounded == "up" else 0) - chunks % pp
        if single and chunks != pp:
            problem = f"makes {chunks // pp} chunks a rank, and {schedule.name} has one"
            cure = f"write {-(-layers // pp)}, or pp_schedule: interleaved1f1b"
            raise pipeline.error(PER_STAGE, problem, per_stage, cure)
        if not single and chunks < 2 * pp:
            problem = f"makes {chunks // pp} chunks a rank, and {schedule.name} has two or more"
            raise pipeline.error(PER_STAGE, problem, per_stage, f"write at most {layers // (2 * pp)}")
    if chunks > layers:
        raise pipeline.error(PER_STAGE, f"makes {chunks} chunks, and the model has {layers} layers", per_stage)
    if not schedule.traits.offered_with(chunks // pp):
        raise pipeline.error(SCHEDULE, f"does not run {chunks // pp} chunks a rank", pipeline.raw(SCHEDULE))
    return chunks


def _stated(pipeline: Fields, parts: object, layers: int, pp: int) -> tuple[int, ...]:
    """Layers of parts that a file names module by module."""
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        raise pipeline.error(PARTS, "must be a list of lists of modules")
    places = [[int(found[1]) for name in part if (found := _LAYER.match(str(name)))] for part in parts]
    if [place for part in places for place in part] != list(range(layers)):
        raise pipeline.error(PARTS, f"does not name layers 0 to {layers - 1} in order")
    if len(parts) % pp:
        raise pipeline.error(PARTS, f"has {len(parts)} parts, no multiple of PP = {pp}")
    return tuple(len(part) for part in places)
