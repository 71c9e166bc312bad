"""Refuses a job that cannot start, or a schedule that cannot run or be written, before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.dryrun.launch import read_environment
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.generators import MOST_PASSES, build_schedule
from taylor.pipeline.schedule import ScheduleSpec


def require_start(config: TrainingConfig, allowed: Sequence[str] = ()) -> None:
    """Refuse a job that its launcher does not start as its file states it.

    Parameters
    ----------
    allowed : sequence of str
        Names of rules that it may break.

    Raises
    ------
    InputError
        With the key or flag at fault.
    """
    for misfit in config.misfits:
        if not (misfit.rule and misfit.rule in allowed):
            raise misfit.error(config.path)


def require_schedule(config: TrainingConfig) -> None:
    """Refuse stages, virtual stages and micro-batches for which the schedule does not exist.

    Raises
    ------
    InputError
        With the needs of the schedule.
    """
    strategy = config.strategy
    if strategy.pp == 1 and strategy.vpp > 1:
        raise InputError(
            "one stage has no virtual stages to alternate",
            file=config.path,
            field="interleaves",
            value=strategy.vpp,
            cure="use one virtual stage, or two stages or more",
        )
    spec = config.schedule_for(strategy.vpp)
    _require_bounded(config, spec)
    least = config.rules.least_micro_batches(spec, strategy.pp)
    try:
        if strategy.micro_batches < least:
            raise ValueError(
                f"{spec.name} needs at least {least} micro-batches on {strategy.pp} stages, "
                f"found {strategy.micro_batches}"
            )
        build_schedule(spec, strategy.pp, strategy.vpp, strategy.micro_batches)
    except ValueError as error:
        raise InputError(
            str(error),
            file=config.path,
            field="schedule",
            value=spec.name,
            cure="change the global batch, the virtual stages or the schedule",
        ) from None


def _require_bounded(config: TrainingConfig, spec: ScheduleSpec) -> None:
    """Refuse a step of more forward passes than the planner handles, before any work is done for it."""
    strategy = config.strategy
    each = strategy.pp * strategy.vpp * spec.seq_splits
    if strategy.micro_batches * each <= MOST_PASSES:
        return
    most = MOST_PASSES // each * strategy.dp * strategy.mbs
    raise InputError(
        f"is too large to plan: {strategy.micro_batches:,} micro-batches x {strategy.pp} stages x {strategy.vpp} "
        f"virtual stages make {strategy.micro_batches * each:,} forward passes a step; the limit is {MOST_PASSES:,}",
        file=config.path,
        field="global batch",
        value=strategy.micro_batches * strategy.dp * strategy.mbs,
        cure=f"a global batch of at most {most:,} with this strategy, larger micro-batches, or more data parallelism",
    )


def log_interleaving(
    schedule: ScheduleSpec, config: TrainingConfig, *, given: bool, env_json: Path | None = None
) -> None:
    """Log in one line which of its two interleaved orders a job runs, where its schedule has two, and why.

    Parameters
    ----------
    given : bool
        Whether the command line states it.
    env_json : Path, optional
        Environment of the job's runs, as JSON; it takes precedence over the tool's own.
    """
    if not schedule.traits.low_memory_switch:
        return
    variable = launcher_of(config).low_memory_variable
    if given or variable is None:
        reason = "as asked for" if given else "its default"
    else:
        where = f" in {env_json}" if variable in read_environment(env_json) else ""
        reason = f"{variable} is {'set' if schedule.low_memory else '0' if where else 'not set'}{where}"
    kind = "low" if schedule.low_memory else "high"
    log.info("%s: interleaving in the %s-memory order (%s)", config.path, kind, reason)


def require_writable(config: TrainingConfig, schedule: ScheduleSpec) -> None:
    """Refuse a schedule that the configuration's file cannot state.

    Parameters
    ----------
    config : TrainingConfig
        As read from the file.

    Raises
    ------
    InputError
        When the file cannot.
    """
    launcher = launcher_of(config)
    if not launcher.can_write(config, schedule):
        raise InputError(
            f"cannot be written into this {launcher.title}",
            file=config.path,
            field="schedule",
            value=schedule.name,
            cure="choose another schedule, or solve with -write n",
        )
