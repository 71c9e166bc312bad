"""Exchanges of the experts beside another micro-batch's pass; scalars and arrays alike.

With ``--overlap-moe-expert-parallel-comm`` Megatron-LM runs a layer's forward of one micro-batch and its backward of
the one before as one pass, in three slots on two streams (Megatron-LM d98e8a64
megatron/core/models/common/model_chunk_schedule_plan.py:244-245): the combine of the backward runs beside the forward
of what precedes the experts, both dispatches beside the experts of both ways, and the combine of the forward beside the
backward of what precedes the experts. An exchange overlaps with its slot alone, whatever time another slot has left.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taylor.cost_model.job.strategy import GRAPHED_EXPERTS, TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.time.expert_exchange import EXCHANGE_PROCESSORS, shown_exchange_ms

ALIGNED = 0.3655
"""Fraction of a slot's exchange that in fact runs beside its computation where the host starts both: NVIDIA's trace of
Qwen3 30B-A3B with HybridEP on 16 H100, whose slots all outlast their exchanges (Megatron-Bridge 067f987d
skills/nemo-mbridge-perf-moe-comm-overlap/SKILL.md:84). Where one CUDA graph starts the whole pass, all of it:
assumed."""


class PairedWork(NamedTuple):
    """Computation of one layer, ms: what precedes its experts and the experts themselves, forward and backward."""

    before: Quantity
    before_back: Quantity
    experts: Quantity
    experts_back: Quantity


def paired_exchange_ms(exchange: Quantity, work: PairedWork, rules: TrainingRules) -> tuple[Quantity, Quantity]:
    """Exposed time of the experts' exchanges in a layer's forward and in its backward, ms.

    What runs beside computation slows it down by the multiprocessors that it takes. MindSpeed's passes
    (``--moe-fb-overlap``) cut a layer more finely: as far as the computation of both ways lasts.

    Parameters
    ----------
    exchange : ms
        Dispatch and combine of one way, each half of it.
    """
    if not rules.overlap_experts or rules.overlap_inside:
        both_ways = work.before + work.before_back + work.experts + work.experts_back
        shown = shown_exchange_ms(exchange, both_ways, rules)
        return shown, shown
    half = exchange / 2
    of_dispatches = np.minimum(exchange, work.experts + work.experts_back) / 2
    saved = (1.0 if GRAPHED_EXPERTS in rules.graphed else ALIGNED) * (1 - EXCHANGE_PROCESSORS)
    forward = exchange - saved * (of_dispatches + np.minimum(half, work.before_back))
    backward = exchange - saved * (of_dispatches + np.minimum(half, work.before))
    return forward, backward


def unpaired_micro_batches(degrees: Degrees) -> Quantity:
    """Micro-batches on a step's longest path whose passes run alone: no other's is there in warm-up and cool-down.

    One without a pipeline: the first forward has no backward beside it, the last backward no forward. In an interleaved
    one the chunks of pp micro-batches warm up before the first backward, behind the fill through the other stages.
    """
    warm_up = (degrees.pp - 1) / degrees.vpp + degrees.pp * (degrees.vpp - 1) / degrees.vpp
    return np.minimum(1 + warm_up, degrees.micro_batches)
