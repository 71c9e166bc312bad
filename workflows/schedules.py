"""Refuses a schedule that does not exist for a configuration's numbers, before anything is measured or solved."""

from __future__ import annotations

from taylor.base.errors import InputError
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.generators import build_schedule


def require_schedule(config: TrainingConfig) -> None:
    """Refuse stages, interleaves and micro-batches for which the schedule does not exist.

    Raises
    ------
    InputError
        With what the schedule needs.
    """
    strategy = config.strategy
    spec = config.schedule_for(strategy.vpp)
    try:
        build_schedule(spec, strategy.pp, strategy.vpp, strategy.micro_batches)
    except ValueError as error:
        raise InputError(
            str(error),
            file=config.path,
            field="schedule",
            value=spec.name,
            cure="change the global batch, the interleaves or the schedule",
        ) from None
