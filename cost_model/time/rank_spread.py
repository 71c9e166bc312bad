"""Wait for the slowest rank: equal work takes ranks different times; scalars and arrays alike.

Ranks that wait for each other proceed at the pace of the slowest of them, and the expected maximum of n normal
deviations grows with n. Three waits: the ranks that meet in every operation (context and expert groups, fully sharded
weights) for the one whose operation lasts longest; in a plain pipeline a stage for its neighbours' operations; at the
end of a step, all for the rank that is slowest in it. The deviations come from traces of healthy jobs
(`benchmarks.rank_spread`); a broken or throttled card is none of them.
"""

from __future__ import annotations

import numpy as np

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.states import replicas
from taylor.register.model import ModelSpec

OPERATION = 0.0177
"""Standard deviation of a forward or backward of one micro-batch through a stage around its mean in the step, a
fraction of it: ByteDance-Seed/StragglerAnalysis 8efcd7f3, 1.83 and 1.71 % in traces of 64 and 8 cards
(``python -m benchmarks.rank_spread``). A rank of the traces is a group of TP."""
STEP = 0.0020
"""The same of a rank's step around its usual one, beyond what its operations explain: 0.38 and 0.03 %."""
RANK = 0.0036
"""The same of the ranks of a stage around their mean: 0.33 and 0.39 %."""
_NEIGHBOURS = 0.9
"""Wait of a plain 1F1B pipeline of many equal stages for its neighbours, in `OPERATION`s: 1F1B simulated with
normal deviations, 0.40 at 2 stages, 0.66 at 4, 0.80 at 8, 0.86 at 16, for any number of micro-batches; of an
interleaved one it is below 0.1, for more micro-batches are under way than its order needs."""


def slowest_of(ranks: Quantity) -> Quantity:
    """Expected maximum of independent standard normal deviations.

    Blom 1958, Statistical Estimates and Transformed Beta-Variables: the quantile (n − 3/8) / (n + 1/4); its value by
    Abramowitz and Stegun 1964, 26.2.23.
    """
    beyond = 0.625 / (np.maximum(ranks, 1) + 0.25)
    t = np.sqrt(-2 * np.log(beyond))
    quantile: Quantity = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (
        1 + t * (1.432788 + t * (0.189269 + t * 0.001308))
    )
    found: Quantity = np.maximum(quantile, 0.0)
    return found


def wait_share(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Time by which a step's work lasts longer for the slowest ranks, a fraction of it."""
    together = degrees.cp
    if any(layer.moe is not None for kind in model.kind_counts for layer in model.layers_of(kind)):
        together = np.maximum(together, degrees.ep * rules.experts_over(degrees.tp) / degrees.tp)
    if rules.parameter_shard:
        gathered_once = np.logical_and(rules.framework.states.whole_in_pipeline, np.greater(degrees.pp, 1))
        shards = np.minimum(degrees.op, replicas(degrees, rules)[0])
        together = np.where(gathered_once, together, np.maximum(together, shards))
    neighbours = np.where(np.equal(degrees.vpp, 1), _NEIGHBOURS * (1 - 1 / degrees.pp), 0.0)
    every = degrees.dp * degrees.cp * degrees.pp
    waited: Quantity = OPERATION * (slowest_of(together) + neighbours) + np.hypot(STEP, RANK) * slowest_of(every)
    return waited
