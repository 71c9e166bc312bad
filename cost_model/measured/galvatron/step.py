"""Galvatron's step time of a whole plan, and the memory of gathered hidden states.

Hetu-Galvatron cea12ff galvatron/core/cost_model/cost_model_handler.py:18-111. Only the first and the last stage can be
its bottleneck, so that it is too short where a middle stage is the slowest.
"""

from __future__ import annotations

from collections.abc import Sequence

from taylor.cost_model.measured.cost_table import CostRow, CostSetting, EndCosts, hidden_mib


def galvatron_step_s(rows: Sequence[Sequence[CostRow]], ends: EndCosts, micro_batches: int) -> float:
    """Step time of a plan, s.

    Parameters
    ----------
    rows : sequence [pp] of sequence of CostRow
        The layers of every stage.
    """
    stages = len(rows)
    m = micro_batches
    on_stage = [ends.on_stage(stage, stages) for stage in range(stages)]
    compute = [
        sum(row.micro_batch_s for row in layers) + (0.0 if end is None else end.micro_batch_s)
        for layers, end in zip(rows, on_stage, strict=True)
    ]
    reducing = [sum(row.micro_batch_s + row.tail_s for row in layers) for layers in rows]
    by_last = sum(compute) + compute[-1] * (m - 1)
    first, others = compute[0], sum(compute[1:])
    begun = min(stages - 1, m - 1) * first
    by_first = max(begun / 3, others / 3) + max(begun * 2 / 3, others * 2 / 3) + first * max(0, m + 1 - stages)
    left = max(each - sum(compute[: stage + 1]) for stage, each in enumerate(reducing))
    return max(by_last, by_first) + max(left, 0.0)


def gather_buffer_mib(setting: CostSetting, ranks: int, most_tp: int) -> float:
    """Memory of gathered hidden states of a stage beside its layers, where activations are split over TP, MiB.

    galvatron/core/search_engine/dynamic_programming.py:232-238: at the largest TP of the stage's `ranks`, where a rank
    has most samples.
    """
    return hidden_mib(setting.global_batch / setting.micro_batches / (ranks // most_tp), setting)
