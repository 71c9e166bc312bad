"""What an encoder of images adds to the memory and time of searched strategies."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.choices.tower_costs import tower_costs
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.breakdown import best_case_peak_mib
from taylor.nd_search.options import PeakEstimate
from taylor.parsers.training_config import TrainingConfig
from taylor.register.device import DeviceSpec


def peaks_with_encoder(config: TrainingConfig, device: DeviceSpec) -> PeakEstimate:
    """Estimated peaks of strategies, with what a job's encoder adds to the first stage."""
    if config.tower is None:
        return best_case_peak_mib

    def in_front(table: StrategyTable) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        _, states, kept = _on_table(config, device, table)
        return states, kept

    return partial(best_case_peak_mib, in_front=in_front)


def encoder_step_ms(config: TrainingConfig, device: DeviceSpec, table: StrategyTable) -> NDArray[np.float64]:
    """Time that a job's encoder adds to a step of every strategy, as balanced stages share it, ms [n]."""
    if config.tower is None:
        return np.zeros(len(table))
    return _on_table(config, device, table)[0] * table.micro_batches / table.pp


def _on_table(config: TrainingConfig, device: DeviceSpec, table: StrategyTable) -> NDArray[np.float64]:
    """Time of a micro-batch, ms, states beyond what the model counts, and MiB kept, of every strategy, [3, n]."""
    assert config.tower is not None
    degrees = np.stack([table.dp, table.tp, table.cp, table.op, table.sp, table.mbs, table.ep], axis=1)
    _, first, row = np.unique(degrees, axis=0, return_index=True, return_inverse=True)
    found = []
    for index in first:
        strategy = table.row(int(index))
        costs = tower_costs(config.tower, strategy, config.rules, device)
        uncounted = (one for one in config.tower.parts if not one.counted)
        states = sum(tower_costs(one, strategy, config.rules, device).states_mib for one in uncounted)
        found.append((costs.forward_ms + costs.backward_ms, states, costs.kept_mib))
    return np.array(found).reshape(-1, 3)[row.reshape(-1)].T
