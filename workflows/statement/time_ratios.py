"""Time ratios that a job is solved with: given, estimated for the job, the older tool's, or a mixture."""

from __future__ import annotations

from dataclasses import dataclass, replace

from taylor.cost_model.profile import RatioSource, TimeRatios
from taylor.cost_model.time.step import estimate_ratios
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.register.device import DeviceSpec
from taylor.workflows.statement.options import RatioChoice

FIXED = TimeRatios(source=RatioSource.FIXED)
"""Ratios of the older tool."""


@dataclass(frozen=True)
class SettledRatios:
    """Time ratios and their source.

    Parameters
    ----------
    ratios : TimeRatios
    described : str
        Source with the values, in a line.
    assumptions : tuple of str
        Sentence for each figure that was neither given nor measured.
    """

    ratios: TimeRatios
    described: str
    assumptions: tuple[str, ...] = ()

    @property
    def short(self) -> str:
        """Source in a few words."""
        words = {RatioSource.ESTIMATE: "time ratios estimated", RatioSource.FIXED: "the older tool's time ratios"}
        return words.get(self.ratios.source, f"time ratios {self.ratios.source}")


def settle_ratios(asked: RatioChoice | TimeRatios, config: TrainingConfig, device: DeviceSpec) -> SettledRatios:
    """Time ratios of a job from those that the user gave.

    Where all ratios that the job's layers need are given, or fixed, nothing else is added: embedding, transfers and the
    end of the step take no time, so that the step in units of one body layer follows from the inputs alone. The real
    time of that unit is then estimated, for nothing else depends on it.
    """
    guess = estimate_ratios(config.model, config.strategy, config.rules, device)
    if isinstance(asked, TimeRatios):
        return _with_unit(asked, guess, f"{asked.source}: {_values(asked, config)}")
    given = {
        "dense over MoE layer": asked.dense_forward,
        "backward": asked.backward,
        "head": asked.head,
        "recompute": asked.recompute,
        "selective recompute": asked.select,
    }
    stated = [f"{name} {value:g}" for name, value in given.items() if value is not None]
    needed = [asked.backward, asked.head, asked.recompute, *([asked.dense_forward] if _has_two_kinds(config) else [])]
    complete = None not in needed
    if asked.fixed or complete:
        ratios = replace(_overlaid(FIXED, asked), source=RatioSource.GIVEN if complete else RatioSource.FIXED)
        rest = "" if complete else " (-ratios fixed)"
        return _with_unit(ratios, guess, f"{ratios.source}{rest}: {_values(ratios, config)}")
    ratios = replace(_overlaid(guess, asked), source=RatioSource.PARTLY_GIVEN if stated else guess.source)
    how = f"given: {', '.join(stated)}; the others estimated" if stated else "estimated"
    sentence = f"time ratios {how} for this job on {device.name}"
    described = f"{how} for this job on {device.name}: {_values(ratios, config)}; {_unit(ratios)}"
    return SettledRatios(ratios, described, (sentence,))


def _with_unit(ratios: TimeRatios, guess: TimeRatios, described: str) -> SettledRatios:
    """Given ratios, with an estimate of the unit that they do not state."""
    free = not (ratios.embedding or ratios.lag or ratios.tail)
    assumptions = (
        ("embedding, transfers and the end of the step take no time, as no ratio is given for it",) if free else ()
    )
    if ratios.unit_ms is not None:
        return SettledRatios(ratios, f"{described}; {_unit(ratios)}", assumptions)
    timed = replace(ratios, unit_ms=guess.unit_ms)
    estimated = f"{_unit(timed)} (estimated)"
    return SettledRatios(timed, f"{described}; {estimated}", (f"{estimated}: the ratios give no time", *assumptions))


def _overlaid(base: TimeRatios, asked: RatioChoice) -> TimeRatios:
    """Base with the given ratios in its place."""

    def either(value: float | None, other: float) -> float:
        return other if value is None else value

    return replace(
        base,
        dense_forward=either(asked.dense_forward, base.dense_forward),
        backward=either(asked.backward, base.backward),
        head=either(asked.head, base.head),
        recompute={
            FULL: either(asked.recompute, base.recompute[FULL]),
            SELECT: either(asked.select, base.recompute[SELECT]),
            NONE: 0.0,
        },
    )


def _has_two_kinds(config: TrainingConfig) -> bool:
    return bool(config.model.n_dense and config.model.n_moe and not config.model.pattern)


def _unit(ratios: TimeRatios) -> str:
    unit = f"one body layer's forward takes {ratios.unit_ms:,.3f} ms"
    if not ratios.lags or ratios.unit_ms is None:
        return unit
    near, far = (ratios.unit_ms * lag for lag in (min(ratios.lags), max(ratios.lags)))
    return f"{unit}, a transfer to the next stage {near:,.3f} ms inside a node and {far:,.3f} ms between nodes"


def _values(ratios: TimeRatios, config: TrainingConfig) -> str:
    dense = [f"dense over MoE {ratios.dense_forward:.3g}"] if _has_two_kinds(config) else []
    others = [("backward", ratios.backward), ("head", ratios.head), ("recompute", ratios.recompute[FULL])]
    return ", ".join([*dense, *(f"{name} {value:.3g}" for name, value in others)])
