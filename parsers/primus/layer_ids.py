"""Recompute of single layers by their numbers (``recompute_layer_ids``), and the plan that it makes.

Source: AMD-AGI/Primus fd1eeabb primus/backends/megatron/patches/recompute_layer_patches.py:59-110: numbers from 0 on
over the decoder's layers, those of MTP modules behind them; ``recompute_granularity`` is full and no method is given.
"""

from __future__ import annotations

import re
from itertools import accumulate

from taylor.base.errors import InputError, shortened
from taylor.parsers.primus.experiment import Experiment
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.parsers.training_config import TrainingConfig, body_layers
from taylor.pipeline.plan import FULL, PipelinePlan, grid_in_order, values_in_order

IDS = "recompute_layer_ids"
GRANULARITY, METHOD = "recompute_granularity", "recompute_method"


def layer_ids(experiment: Experiment) -> tuple[int, ...]:
    """The numbers, rising; none where the experiment gives none.

    Raises
    ------
    InputError
        When they are no whole numbers, or Primus starts no job with what stands beside them.
    """
    written = experiment.options.get(IDS)
    if written is None or written is False:
        return ()
    parts = written.split(",") if isinstance(written, str) else written if isinstance(written, list) else [written]
    words = [str(part).strip() for part in parts if str(part).strip()]
    if not words or len(words) > MAX_LAYERS or not all(re.fullmatch(r"\d{1,6}", word) for word in words):
        raise InputError(
            "must be numbers of layers, separated by commas",
            file=experiment.file,
            field=experiment.place(IDS),
            value=shortened(str(written), 80),
        )
    for name, wanted in ((GRANULARITY, "full"), (METHOD, None)):
        if experiment.options.get(name) != wanted:
            raise InputError(
                f"must be {wanted or 'null'} beside {IDS}: Primus starts no such job",
                file=experiment.file,
                field=experiment.place(name),
                value=shortened(str(experiment.options.get(name)), 40),
                cure=f"write {wanted or 'null'}",
            )
    return tuple(sorted(set(map(int, words))))


def with_layer_ids(config: TrainingConfig, experiment: Experiment, ids: tuple[int, ...]) -> TrainingConfig:
    """The configuration with these layers recomputed, and their number a chunk in its plan.

    Raises
    ------
    InputError
        When the model has no layer of one of the numbers.
    """
    layers, depth = config.model.n_layers, config.model.mtp_layers
    if ids[-1] >= layers + depth:
        raise InputError(
            f"must be from 0 to {layers + depth - 1}: the model has {layers} layers and {depth} MTP modules",
            file=experiment.file,
            field=experiment.place(IDS),
            value=ids[-1],
        )
    mtp = sum(number >= layers for number in ids)
    notes = [*config.notes, f"{IDS}: the number of recomputed layers a chunk is taken, not their places"]
    if 0 < mtp < depth:
        notes.append(f"{IDS} names {mtp} of {depth} MTP modules: they are counted as kept")
    plan = config.plan
    if plan is not None:
        v_shape = config.schedule.v_shape
        ends = list(accumulate(values_in_order(body_layers(plan), v_shape)))
        counts = [
            sum(start <= number < end for number in ids) for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
        plan = PipelinePlan(plan.layers, {**plan.recompute, FULL: grid_in_order(counts, config.strategy.pp, v_shape)})
    return config.replace(plan=plan, notes=tuple(notes), recomputes_mtp=bool(depth) and mtp == depth)
