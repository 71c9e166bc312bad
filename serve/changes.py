"""Changes of a question that make it fit, or make its step shorter: each answered as the question itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from taylor.base.errors import TaylorError
from taylor.serve.question import Models, Question

SHOWN = 3
"""Changes shown."""

LEAST_GAIN = 0.005
"""Relative gain below which a change is not shown."""

EVERY = 10.0
"""Step of the recompute slider that is tried, per cent."""


def single_changes(ask: Question) -> Iterator[dict[str, Any]]:
    """Changes of one setting to try; degrees with the data-parallel degree as what gives way."""
    for percent in (ask.recompute - EVERY, ask.recompute - 3 * EVERY, 0.0, ask.recompute + EVERY, 100.0):
        if 0.0 <= percent <= 100.0 and percent != ask.recompute:
            yield {"recompute": percent}
    for name in ("mbs", "tp", "pp", "cp", "vpp"):
        degree = getattr(ask, name)
        yield {name: 2 * degree}
        if degree > 1:
            yield {name: degree // 2}
    if ask.tp > 1 and ask.sp is False:
        yield {"sp": True}
    if not ask.op:
        yield {"op": True}
    if not any(word.startswith(("fp8", "fp4")) for word in ask.software):
        for recipe in ("fp8=mxfp8", "fp8=tensorwise"):
            yield {"software": (*ask.software, recipe)}
    yield {"ranks": 2 * ask.ranks}


def tried(models: Models, ask: Question, now: dict[str, Any], change: dict[str, Any]) -> dict[str, Any] | None:
    """What a change gains; None where it cannot run, or does not help.

    Parameters
    ----------
    now : dict
        Answer to the question itself.

    Returns
    -------
    dict or None
        ``change`` (fields and their values), ``step_ms``, ``gain`` (of tokens a second and device, over the question's)
        and ``probability`` that it fits.
    """
    try:
        other = ask.model_validate({**ask.model_dump(), **change})
        answer = models.answer(other)
    except (TaylorError, ValueError):
        return None
    gain = answer["tokens_per_second"] / other.ranks * ask.ranks / now["tokens_per_second"] - 1.0
    if not answer["fits"] or (now["fits"] and gain <= LEAST_GAIN):
        return None
    probability = answer["verdict"]["probability"]
    return {"change": change, "step_ms": answer["step_ms"], "gain": gain, "probability": probability}


def best_changes(found: Iterable[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """The best few of the changes tried, the best first: of each setting its best value."""
    best: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in sorted((one for one in found if one is not None), key=lambda one: -one["gain"]):
        best.setdefault(tuple(one["change"]), one)
    return list(best.values())[:SHOWN]
