"""The peak of a stage as a linear form of the memory profile's coefficients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan
from taylor.pipeline.schedule import Schedule
from taylor.register.model import DENSE, MTP, ModelSpec, kind_of

Floats = NDArray[np.float64]
FIRST, MIDDLE, LAST, ONLY = "static.first", "static.middle", "static.last", "static.only"


class LinearMemory:
    """Rows of the linear system for one configuration's stages, and for those of its probes (`dryrun.fitting.probes`).

    The unknowns are the static memory of the first, a middle and the last stage (with one stage, of
    that one; with two, there is no middle one), the memory of one layer by kind, and what one micro-batch keeps alive
    in one layer by kind and recompute mode. The MTP layer counts as the body layer unless its modules hold other
    layers, as in `cost_model.memory.breakdown.memory_profile`.

    Parameters
    ----------
    config : TrainingConfig
        Its strategy and schedule give the number of micro-batches alive.
    modes : sequence of str
        Available recompute modes, ``none`` among them.
    """

    def __init__(self, config: TrainingConfig, modes: Sequence[str] = (NONE, FULL)) -> None:
        strategy = config.strategy
        self.config, self.modes = config, tuple(modes)
        self.stages, self.interleaves = strategy.pp, strategy.vpp
        self.kinds = _kinds(config.model)
        self.schedule = self.schedule_of(self.stages)
        self._alive: dict[int, tuple[Floats, ...]] = {}
        statics = (ONLY,) if self.stages == 1 else (FIRST, LAST) if self.stages == 2 else (FIRST, MIDDLE, LAST)
        self.unknowns: tuple[str, ...] = (
            *statics,
            *(f"layer.{kind}" for kind in self.kinds),
            *(f"activation.{kind}.{mode}" for kind in self.kinds for mode in self.modes),
        )
        self._index = {name: position for position, name in enumerate(self.unknowns)}

    def micro_batches_of(self, stages: int) -> int:
        """Micro-batches of a probe with a number of stages: the job's own, or as many more as fill the pipeline."""
        own = self.config.strategy.micro_batches
        return own if stages == self.stages else -(-own // stages) * stages

    def schedule_of(self, stages: int) -> Schedule:
        """The job's schedule over a number of stages."""
        spec = self.config.schedule_for(self.interleaves)
        return build_schedule(spec, stages, self.interleaves, self.micro_batches_of(stages))

    def alive_of(self, stages: int) -> tuple[Floats, ...]:
        """Micro-batches alive on each of a number of stages, float64 [moments, interleaves] a stage."""
        if stages not in self._alive:
            self._alive[stages] = alive_vectors(self.schedule_of(stages))
        return self._alive[stages]

    def coefficients(self, profile: MemoryProfile) -> Floats:
        """The unknowns' values in a profile, float64 [unknowns], MiB."""
        only = profile.static_mib(1)[0]
        values = {
            FIRST: profile.static_first_mib,
            MIDDLE: profile.static_middle_mib,
            LAST: profile.static_last_mib,
            ONLY: only,
        }
        for kind in self.kinds:
            entry = profile.kind_for(kind)
            values[f"layer.{kind}"] = profile.layer_mib[entry]
            for mode in self.modes:
                values[f"activation.{kind}.{mode}"] = profile.activation_mib[entry].get(
                    mode, profile.activation_mib[entry][NONE]
                )
        return np.array([values[name] for name in self.unknowns])

    def profile(self, values: Floats, like: MemoryProfile, source: MemorySource) -> MemoryProfile:
        """The profile that holds these values; limit, and what is no unknown, are those of `like`."""
        known: Mapping[str, float] = dict(zip(self.unknowns, map(float, values), strict=True))
        first, middle, last = like.static_first_mib, like.static_middle_mib, like.static_last_mib
        if self.stages == 1:
            first = last = middle = known[ONLY]
        else:
            first, last = known[FIRST], known[LAST]
            middle = known.get(MIDDLE, min(first, last))
        layer = dict(like.layer_mib) | {kind: known[f"layer.{kind}"] for kind in self.kinds}
        activation = {kind: dict(modes) for kind, modes in like.activation_mib.items()}
        for kind in self.kinds:
            by_mode = activation.setdefault(kind, {})
            before = dict(by_mode)
            for mode in self.modes:
                by_mode[mode] = known[f"activation.{kind}.{mode}"]
            for mode in before.keys() - set(self.modes):
                # A mode that was not measured keeps its place between those that were.
                by_mode[mode] = _between(before, by_mode, mode)
        return MemoryProfile(like.device_limit_mib, first, middle, last, layer, activation, source)

    def rows(self, plan: PipelinePlan, values: Floats, stages: Sequence[int] | None = None) -> Floats:
        """One row a stage, float64 [stages asked, unknowns]: row · values = peak, MiB.

        With several virtual stages a stage has several worst moments; the one that is worst under
        `values` gives the row. The plan may be a probe's, of another number of stages.
        """
        chosen = range(plan.stages) if stages is None else stages
        alive = self.alive_of(plan.stages)
        rows = np.zeros((len(chosen), len(self.unknowns)))
        first_activation = len(self.unknowns) - len(self.kinds) * len(self.modes)
        for row, stage in zip(rows, chosen, strict=True):
            row[self._static(stage, plan.stages)] = 1.0
            kept = np.zeros((self.interleaves, len(self.unknowns)))
            for v in range(self.interleaves):
                for (kind, mode), count in _layers_by_mode(plan, v, stage).items():
                    entry = kind_of(kind) if kind_of(kind) in self.kinds else self.kinds[-1]
                    column = self._index.get(f"activation.{entry}.{mode}")
                    if column is None:
                        raise ValueError(f"the plan recomputes by {mode}, which is no unknown here")
                    row[self._index[f"layer.{entry}"]] += count
                    kept[v, column] += count
            moments = alive[stage] @ kept
            worst = int(np.argmax(moments @ values)) if len(moments) else 0
            if len(moments):
                row[first_activation:] += moments[worst, first_activation:]
        return rows

    def _static(self, stage: int, stages: int) -> int:
        if self.stages == 1:
            return self._index[ONLY]
        return self._index[FIRST if stage == 0 else LAST if stage == stages - 1 else MIDDLE]


def _kinds(model: ModelSpec) -> tuple[str, ...]:
    """The kinds with their own coefficients, the body's last: others are charged as it."""
    own = [MTP] if model.mtp_layers and model.mtp_kinds else []
    return (*own, *sorted(model.body_counts, key=lambda kind: kind == model.body_kind)) or (DENSE,)


def _layers_by_mode(plan: PipelinePlan, interleave: int, stage: int) -> dict[tuple[str, str], int]:
    """Layers of one chunk by kind and mode, without zeros; as `PipelinePlan.recompute_by_kind`, for one chunk alone."""
    left = {mode: plan.recompute[mode][interleave][stage] for mode in (FULL, SELECT) if mode in plan.recompute}
    counts: dict[tuple[str, str], int] = {}
    for kind, grid in plan.layers.items():
        unassigned = grid[interleave][stage]
        for mode in left:
            taken = min(unassigned, left[mode])
            counts[kind, mode] = taken
            left[mode] -= taken
            unassigned -= taken
        counts[kind, NONE] = unassigned
    return {key: count for key, count in counts.items() if count}


def _between(before: Mapping[str, float], now: Mapping[str, float], mode: str) -> float:
    span = before[NONE] - before[FULL]
    share = (before[mode] - before[FULL]) / span if span > 0 else 1.0
    return max(0.0, now[FULL] + min(1.0, max(0.0, share)) * (now[NONE] - now[FULL]))
