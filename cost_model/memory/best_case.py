"""The least peak memory of any pipeline plan of a strategy: a safe bound for pruning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.alive import ONE_FORWARD_ONE_BACKWARD, alive_lower_bound
from taylor.cost_model.memory.statics import MIB, kept_bytes, layer_state_bytes, static_mib
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import DENSE, MTP, ModelSpec, kind_of

TOLERANCE_MIB = 0.01
"""Width at which the search for the least peak stops; the lower end is reported."""

InFront: TypeAlias = Callable[[StrategyTable], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""MiB of what lies in front of the model's layers, for every strategy: states, and what a micro-batch keeps."""

_BLOCK = 400_000
"""Stage-rows of one pass, so that the working arrays fit in the cache."""


def best_case_peak_mib(
    model: ModelSpec,
    rules: TrainingRules,
    table: StrategyTable,
    recompute: str = "best",
    device_limit_mib: float | None = None,
    schedule: ScheduleSpec = ONE_FORWARD_ONE_BACKWARD,
    in_front: InFront | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Peak of the heaviest stage under the memory-friendliest offset, for every strategy of a table.

    A lower bound for every plan: with one virtual stage and a schedule with a formula it is the exact minimum over all
    offsets; with several, all chunks take a stage's cheapest moment and dense layers in front of MoE ones count as
    free. Layers of a model with a `pattern` count as their average, less the largest deficit of any run of them.

    Parameters
    ----------
    recompute : str
        ``best`` and ``full``: every layer recomputed, which needs least; ``none``: no layer.
    device_limit_mib : float, optional
        Rows whose first, coarser bound is already above the limit are not refined (they do not fit
        either way).
    schedule : ScheduleSpec
        Every row runs it as its virtual stages ask (`ScheduleSpec.for_interleaves`).
    in_front : callable, optional
        What the first stage holds in front of the model's layers.

    Returns
    -------
    peak : float64 [n], MiB
    heaviest stage : int64 [n]

    Raises
    ------
    ValueError
        When `recompute` is none of ``best``, ``none``, ``full``.
    """
    if recompute not in ("best", NONE, FULL):
        raise ValueError(f"recompute must be best, none or full, found {recompute!r}")
    mode = NONE if recompute == NONE else FULL
    peak, heaviest = np.zeros(len(table)), np.zeros(len(table), dtype=np.int64)
    shapes = table.pp * (table.vpp.max(initial=1) + 1) + table.vpp
    for shape in np.unique(shapes):
        rows = np.flatnonzero(shapes == shape)
        step = max(1, _BLOCK // int(table.pp[rows[0]]))
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            search = _LeastPeakSearch.of(model, rules, table.select(block), mode, schedule, in_front)
            peak[block], heaviest[block] = search.least_peak(device_limit_mib)
    return peak, heaviest


def lightest_layers(
    model: ModelSpec,
    strategy: Strategy,
    rules: TrainingRules,
    recompute: str = FULL,
    schedule: ScheduleSpec = ONE_FORWARD_ONE_BACKWARD,
) -> list[int]:
    """Layers of every stage under the offset of `best_case_peak_mib`, int [pp].

    Stages are filled from the front up to the least peak, with at least a layer for each that follows. With several
    virtual stages the least peak is a bound that counts dense layers in front of the body as free: layers that do not
    fit below it go, one by one, to the stage that is then the lightest.
    """
    search = _LeastPeakSearch.of(model, rules, StrategyTable.from_strategies([strategy]), recompute, schedule)
    _, high = search.bounds(None)
    capacity = np.maximum(search.most_layers(high)[:, 0], strategy.vpp).astype(np.int64)
    while capacity.sum() < search.layers:
        capacity[np.argmin(search.with_one_more(capacity))] += 1
    left, layers = search.layers, []
    for stage in range(strategy.pp):
        later = (strategy.pp - 1 - stage) * strategy.vpp
        layers.append(int(min(capacity[stage], left - later)) if later else left)
        left -= layers[-1]
    return layers


@dataclass(frozen=True)
class _LeastPeakSearch:
    """Strategies of one (pp, vpp): memory of stage s with n layers is base + n·slope.

    `base` and `slope` are [pp, n] MiB, `dense_slope` [dense stages, n] the same for dense layers in
    front of the body; `layers` counts all of the model's, `dense` those in front.
    """

    base: NDArray[np.float64]
    slope: NDArray[np.float64]
    dense_slope: NDArray[np.float64]
    layers: int
    dense: int
    interleaves: int

    @classmethod
    def of(
        cls,
        model: ModelSpec,
        rules: TrainingRules,
        table: StrategyTable,
        mode: str,
        schedule: ScheduleSpec,
        in_front: InFront | None = None,
    ) -> _LeastPeakSearch:
        stages, interleaves = int(table.pp[0]), int(table.vpp[0])
        schedule = schedule.for_interleaves(interleaves, rules.framework)
        body = model.body_kind
        counts = model.layer_counts()
        front = _front_kind(model)
        dense = 0 if front is None else counts[front]
        mixed = bool(model.pattern) and front is None
        kinds = set(model.kind_counts) if model.pattern else {front or body, body}
        layer = {
            kind: np.broadcast_to(layer_state_bytes(model, kind, table, rules).total / MIB, len(table))
            for kind in sorted(kinds)
        }
        kept = {kind: np.broadcast_to(kept_bytes(model, kind, mode, table, rules) / MIB, len(table)) for kind in layer}
        least_kept = np.minimum.reduce(list(kept.values()))
        first, middle, last = static_mib(model, table, rules, schedule)
        base = np.empty((stages, len(table)))
        slope, dense_slope = np.empty_like(base), np.empty_like(base)
        for stage in range(stages):
            alive = alive_lower_bound(schedule, stages, interleaves, stage, table.micro_batches)
            fewest = np.minimum.reduce(np.array(alive))
            base[stage] = least_kept * (sum(alive) - interleaves * fewest)
            if stage == 0 and in_front is not None:
                states, each = in_front(table)
                base[0] += states + each * fewest
            costs = {kind: layer[kind] + kept[kind] * fewest for kind in layer}
            if mixed:
                slope[stage], below = _average_and_dip(counts, costs)
                base[stage] -= interleaves * below
            else:  # an MTP layer of another kind may be lighter
                slope[stage] = np.minimum.reduce([cost for kind, cost in costs.items() if kind != front])
            dense_slope[stage] = slope[stage] if front is None else costs[front]
        base += middle
        base[0] += first - middle
        base[-1] += last - middle
        # Where all of a layer is on the host it costs a byte, so that a number of layers has a least peak.
        slope, dense_slope = (np.maximum(each, 1 / MIB) for each in (slope, dense_slope))
        return cls(base, slope, dense_slope, sum(counts.values()), dense, interleaves)

    def most_layers(self, peak: NDArray[np.float64]) -> NDArray[np.float64]:
        """Most layers of every stage under a peak [n], from the model's front; float [pp, n]."""
        capacity = peak - self.base
        if not self.dense or self.interleaves > 1:
            return np.floor(capacity / self.slope + 1e-9)
        result = np.empty_like(capacity)
        dense_left = np.full(capacity.shape[1], float(self.dense))
        # Every stage holds a layer at least, so dense layers reach no further than this.
        reach = min(self.dense, len(capacity))
        for stage in range(reach):
            fits = np.maximum(np.floor(capacity[stage] / self.dense_slope[stage] + 1e-9), 0)
            dense = np.minimum(fits, dense_left)
            body = np.floor((capacity[stage] - dense * self.dense_slope[stage]) / self.slope[stage] + 1e-9)
            dense_left -= dense
            result[stage] = dense + np.where(dense_left > 0, 0, body)
        result[reach:] = np.floor(capacity[reach:] / self.slope[reach:] + 1e-9)
        return result

    def with_one_more(self, layers: NDArray[np.int64]) -> NDArray[np.float64]:
        """Peak of every stage of the first row with a layer more, float [pp]; `layers` int [pp].

        The dense layers lie in the stages' first chunks.
        """
        peaks = np.empty(len(layers))
        for stage, count in enumerate(layers):
            before = int((layers[:stage] // self.interleaves).sum())
            first = -(-(int(count) + 1) // self.interleaves)
            dense = min(max(self.dense - before, 0), first)
            body = count + 1 - dense
            peaks[stage] = self.base[stage, 0] + body * self.slope[stage, 0] + dense * self.dense_slope[stage, 0]
        return peaks

    def fits(self, peak: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return whether some offset stays within a peak [n]; bool [n]."""
        most_layers = self.most_layers(peak)
        free = self.dense if self.interleaves > 1 else 0
        # A layer a chunk at least; a stage has at most as many dense layers as follow the stages before it.
        dense = np.maximum(free - np.arange(len(most_layers)), 0)
        least = np.maximum(self.interleaves - dense, 0)[:, np.newaxis]
        enough: NDArray[np.bool_] = (most_layers.sum(axis=0) + free >= self.layers) & (most_layers >= least).all(axis=0)
        return enough

    def least_peak(self, limit: float | None) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Least peak [n] and the stage that has it [n]."""
        low, high = self.bounds(limit)
        most_layers = np.maximum(self.most_layers(high), 0)
        filled = self.base + most_layers * self.slope
        if self.dense and self.interleaves == 1:
            before = np.cumsum(most_layers, axis=0) - most_layers
            in_front = np.minimum(np.maximum(self.dense - before, 0), most_layers)
            filled += in_front * (self.dense_slope - self.slope)
        return low, np.argmax(filled, axis=0).astype(np.int64)

    def bounds(self, limit: float | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bounds [n] of the least peak, `TOLERANCE_MIB` apart, by bisection.

        It starts from the fractional bound and the even spread; the upper one is always reached.
        """
        stages = len(self.base)
        cheaper = np.minimum(self.slope, self.dense_slope)
        inverse = 1 / cheaper
        # Row by row: numpy's own sum over an axis depends, in the last digit, on the table's length.
        weight, weighted = inverse[0], self.base[0] * inverse[0]
        for stage in range(1, stages):
            weight, weighted = weight + inverse[stage], weighted + self.base[stage] * inverse[stage]
        share = max(self.interleaves, -(-self.layers // stages))
        high = (self.base + share * np.maximum(self.slope, self.dense_slope)).max(axis=0)
        low = (self.layers - (self.dense if self.interleaves > 1 else 0) + weighted) / weight
        low = np.minimum(low - TOLERANCE_MIB, high)
        refined = np.ones(low.shape, dtype=bool) if limit is None else low <= limit
        # Each row stops separately, so that its figures do not depend on its neighbours.
        while bool((open_rows := refined & (high - low > TOLERANCE_MIB)).any()):
            middle = 0.5 * (low + high)
            good = self.fits(middle)
            high = np.where(open_rows & good, middle, high)
            low = np.where(open_rows & ~good, middle, low)
        return low, high


def _front_kind(model: ModelSpec) -> str | None:
    """The kind of the layers in front of a body of one other kind; None where there are none or the body is mixed."""
    if not model.pattern:
        return DENSE if model.body_kind != DENSE and model.layer_counts().get(DENSE) else None
    runs = [run for run in model.layer_counts() if run != MTP]
    return runs[0] if len(runs) == 2 and runs[1] == model.body_kind else None


def _average_and_dip(
    counts: Mapping[str, int], costs: Mapping[str, NDArray[np.float64]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Average cost of a layer [n], and the most by which a stretch of layers costs less than as many average ones [n].

    Parameters
    ----------
    counts : mapping of run to int
        Layers by run in model order.
    costs : mapping of kind to float64 [n]
    """
    total = np.zeros_like(next(iter(costs.values())))
    for run, count in counts.items():
        total = total + count * costs[kind_of(run)]
    average = total / sum(counts.values())
    # Cost so far less the average's, at the border of every run: the deepest fall from a peak.
    ahead = peak = dip = np.zeros_like(average)
    for run, count in counts.items():
        ahead = ahead + count * (costs[kind_of(run)] - average)
        peak = np.maximum(peak, ahead)
        dip = np.maximum(dip, peak - ahead)
    return average, dip
