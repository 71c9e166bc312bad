"""An even split of the layers, for files that need a plan before one is solved."""

from __future__ import annotations

from taylor.cost_model.strategy import Strategy
from taylor.parsers.mindformers.plan import chunk_order
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid
from taylor.register.model import MTP


def even_plan(config: TrainingConfig, strategy: Strategy, v_shape: bool) -> PipelinePlan:
    """An even split; what is left over goes to the chunks before the last, which holds head and loss.

    Everything is recomputed when the file recomputes anything, else nothing.
    """
    order = chunk_order(strategy.pp, strategy.vpp, v_shape)
    counts = config.model.layer_counts()
    queue = [kind for kind, count in counts.items() if config.mtp_counted or kind != MTP for _ in range(count)]
    base, left = divmod(len(queue), len(order))
    sizes = [base] * len(order)
    for index in range(len(order) - 1 - left, len(order) - 1):
        sizes[index] += 1
    layers = {kind: [[0] * strategy.pp for _ in range(strategy.vpp)] for kind in counts}
    grid = [[0] * strategy.pp for _ in range(strategy.vpp)]
    for (v, s), size in zip(order, sizes, strict=True):
        grid[v][s] = size
        for kind in queue[:size]:
            layers[kind][v][s] += 1
        queue = queue[size:]
    if MTP in counts and not config.mtp_counted:
        layers[MTP][order[-1][0]][order[-1][1]] = counts[MTP]
    recomputes = config.plan is None or any(any(map(any, rows)) for rows in config.plan.recompute.values())
    full = grid if recomputes else [[0] * strategy.pp for _ in range(strategy.vpp)]
    return PipelinePlan({kind: as_grid(rows) for kind, rows in layers.items()}, {FULL: as_grid(full)})
