"""A mixin for launchers whose files recompute all layers or none, and have one stage."""

from __future__ import annotations

from collections.abc import Sequence

from taylor.base.errors import InputError
from taylor.cost_model.strategy import Strategy
from taylor.parsers.launcher import Launcher
from taylor.parsers.training_config import TrainingConfig, body_layers
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec


class WholeRecompute(Launcher):
    """Stands before a launcher among the bases: one stage, whole layers recomputed, all or none."""

    def can_write(self, config: TrainingConfig, schedule: ScheduleSpec) -> bool:
        """See `Launcher.can_write`: the schedule of one stage alone."""
        return schedule.name == config.schedule.name

    def nearest_plan(self, plan: PipelinePlan) -> tuple[PipelinePlan, tuple[str, ...]]:
        """See `Launcher.nearest_plan`: any recompute makes it full everywhere."""
        body = body_layers(plan)
        used = any(any(map(any, grid)) for grid in plan.recompute.values())
        if not used or plan.recomputed(FULL) == body:
            return plan, ()
        said = "the file recomputes all layers or none: the nearest that fits memory is full recompute everywhere"
        return PipelinePlan(plan.layers, {FULL: body}), (said,)

    def uniform_recompute(self, layers: int, modes: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """See `Launcher.uniform_recompute`: none or all."""
        return ((FULL, 0), (FULL, layers)) if FULL in modes else ()


def refuse_other_degrees(config: TrainingConfig, strategy: Strategy, fixed: Sequence[str]) -> None:
    """Refuse a strategy that differs in a degree that no option of the file states.

    Raises
    ------
    InputError
        With the degree.
    """
    for name in fixed:
        if getattr(strategy, name) != getattr(config.strategy, name):
            raise InputError(
                "is stated by no option of the file",
                file=config.path,
                field=name,
                value=getattr(strategy, name),
                cure=f"plan with {name} {getattr(config.strategy, name)}",
            )
    if strategy.world_size != config.strategy.world_size:
        cure = f"plan with {config.strategy.world_size:,} ranks"
        raise InputError(
            "has other ranks", file=config.path, field="--world_size", value=strategy.world_size, cure=cure
        )
