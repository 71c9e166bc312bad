"""Recompute of launchers whose files have one choice for all layers."""

from __future__ import annotations

from collections.abc import Sequence

from taylor.parsers.launcher import Launcher
from taylor.parsers.training_config import TrainingConfig, body_layers
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec

BOTH_MODES = (FULL, SELECT)


class AlikeRecompute(Launcher):
    """A launcher, or a mixin before one among the bases: all layers are recomputed in one way, or none is."""

    recomputing: str
    """Subject of the sentence that reports a changed plan, as in ``torchtitan``."""
    recompute_modes: tuple[str, ...] = (FULL,)
    """Ways that its files have: `FULL`, or `FULL` and `SELECT`."""

    def nearest_plan(self, plan: PipelinePlan) -> tuple[PipelinePlan, tuple[str, ...]]:
        """See `Launcher.nearest_plan`."""
        return nearest_alike(plan, self.recomputing, self.recompute_modes)

    def uniform_recompute(self, layers: int, modes: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """See `Launcher.uniform_recompute`: none, or all in one way."""
        choices = ((FULL, 0), *((mode, layers) for mode in self.recompute_modes))
        return tuple(choice for choice in choices if choice[0] in modes)


class OneStage(AlikeRecompute):
    """The same, with one pipeline stage."""

    def can_write(self, config: TrainingConfig, schedule: ScheduleSpec) -> bool:
        """See `Launcher.can_write`: without further stages there is one order of tasks."""
        return schedule.name == config.schedule.name


def nearest_alike(plan: PipelinePlan, recomputing: str, modes: tuple[str, ...]) -> tuple[PipelinePlan, tuple[str, ...]]:
    """The plan where one of the modes or none holds for all layers, else the nearest that fits memory, and a sentence.

    Any full recompute makes it full everywhere; else any selective one makes it selective, or full where that is the
    one mode.
    """
    used = [mode for mode in plan.recompute if plan.uses(mode)]
    if not used:
        return plan, ()
    mode = modes[0] if FULL in used else modes[-1]
    body = body_layers(plan)
    if used == [mode] and plan.recomputed(mode) == body:
        return plan, ()
    alike, name = "alike" if len(modes) > 1 else "or none", "full" if mode == FULL else "selective"
    said = f"{recomputing} recomputes all layers {alike}: the nearest that fits memory is {name} recompute everywhere"
    return PipelinePlan(plan.layers, {mode: body}), (said,)
