"""Layers of every stage, as DeepSpeed's pipeline places them.

Source: EleutherAI/DeeperSpeed 91d1c55 (the commit in gpt-neox's requirements) deepspeed/runtime/pipe/module.py,
``_partition_layers``, deepspeed/runtime/utils.py, ``partition_uniform`` and ``partition_balanced``; the modules in
their order: EleutherAI/gpt-neox ea7aefd8 megatron/model/gpt2_model.py:193-330.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from taylor.cost_model.job.parameters import embedding_parameters, head_parameters, layer_parameters
from taylor.pipeline.plan import kind_of
from taylor.register.model import ModelSpec

BEFORE, LAYER = ("EmbeddingPipe", "_pre_transformer_block"), "ParallelTransformerLayerPipe"
RECURRENT_LAYER = "ParallelMambaResidualLayerPipe"
AFTER = ("_post_transformer_block", "NormPipe")
HEAD, TIED = "ParallelLinearPipe", "EmbeddingPipe"
"""Names of the modules and functions in the pipeline; a tied head is the embedding's class again."""
METHODS = ("type:transformer|mlp", "type:transformerlayer", "uniform", "parameters")
"""Methods that a plan is written by, the default first; the second counts the layers alone, so that it is even."""
_MOST_STATES = 200_000
_LONGEST_PATTERN = 64
_PLAIN_PATTERN = re.compile(r"[\w|]{1,64}")


def stage_layers(method: str, model: ModelSpec, stages: int) -> list[int]:
    """Transformer layers of every stage.

    Parameters
    ----------
    method : str
        ``uniform``, ``parameters``, or ``type:`` with names of classes, separated by ``|``.

    Raises
    ------
    ValueError
        When the method is none of these, or the split is too large to work out.
    """
    if stages == 1:
        return [model.n_layers]
    layer = RECURRENT_LAYER if any(kind.mamba is not None for kind in model.kinds) else LAYER
    names = [*BEFORE, *[layer] * model.n_layers, *AFTER, TIED if model.tied_embedding else HEAD]
    low = method.lower()
    if low == "uniform":
        ends = _uniform(len(names), stages)
    elif low == "parameters":
        ends = _balanced(_parameters(model), stages)
    elif low.startswith("type:") and _PLAIN_PATTERN.fullmatch(low[5:]):
        kinds = [part for part in low[5:].split("|") if part]
        weights = [int(any(kind in name.lower() for kind in kinds)) for name in names]
        if not any(weights):
            raise ValueError(f"{method} matches no layer")
        ends = _balanced(weights, stages)
    else:
        raise ValueError(f"{method[:_LONGEST_PATTERN]} is none of uniform, parameters and type:NAME|NAME")
    return [names[start:end].count(layer) for start, end in zip(ends, ends[1:], strict=False)]


def _parameters(model: ModelSpec) -> list[int]:
    layers = [
        layer_parameters(model, kind_of(run)) for run, count in model.layer_counts().items() for _ in range(count)
    ]
    head = embedding_parameters(model) if model.tied_embedding else head_parameters(model)
    return [embedding_parameters(model), 0, *layers, 0, model.hidden * (2 if model.norm_bias else 1), head]


def _uniform(items: int, stages: int) -> list[int]:
    """Ends of the parts: as many items each, the first ones one more."""
    if items <= stages:
        return [min(part, items) for part in range(stages + 1)]
    each, more = divmod(items, stages)
    return [part * each + min(part, more) for part in range(stages + 1)]


def _balanced(weights: Sequence[int], stages: int) -> list[int]:
    """Ends of the parts whose largest and smallest sums differ least, each prefix extended from its best.

    Of equal choices the latest start of the last part is taken, as DeepSpeed's loop does.
    """
    items = len(weights)
    if items <= stages:
        return _uniform(items, stages)
    if items * stages > _MOST_STATES or items > 2_000:
        raise ValueError(f"{items:,} modules over {stages:,} stages are too many to balance here")
    sums = np.concatenate([[0], np.cumsum(np.asarray(weights, dtype=np.float64))])
    most, least = np.full((stages + 1, items + 1), np.inf), np.full((stages + 1, items + 1), np.inf)
    start = np.zeros((stages + 1, items + 1), dtype=np.int64)
    most[0, 0] = 0
    for part in range(1, stages + 1):
        for end in range(part, items + 1):
            last = sums[end] - sums[:end]
            highs, lows = np.maximum(most[part - 1, :end], last), np.minimum(least[part - 1, :end], last)
            spread = highs - lows
            best = int(end - 1 - np.argmin(spread[::-1]))
            most[part, end], least[part, end], start[part, end] = highs[best], lows[best], best
    ends = [items]
    for part in range(stages, 0, -1):
        ends.append(int(start[part, ends[-1]]))
    return ends[::-1]
