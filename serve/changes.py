"""Changes of a question that make it fit, or make its step shorter: each answered as the question itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from taylor.base.errors import TaylorError
from taylor.serve.question import Models, Question

SHOWN = 3
"""Changes shown."""

LEAST_GAIN = 0.005
"""Relative gain below which a change is not shown."""

EVERY = 10.0
"""Step of the recompute slider that is tried, per cent."""


def changes_of(models: Models, ask: Question) -> list[dict[str, Any]]:
    """Single changes, the best first: those with which the job fits where it does not, else those that are faster.

    Returns
    -------
    list of dict
        ``change`` (fields and their values), ``step_ms``, ``gain`` (of tokens a second and device, over the question's)
        and ``probability`` that it fits.

    Raises
    ------
    InputError
        When the question itself has no answer.
    """
    now = models.answer(ask)
    speed = now["tokens_per_second"] / ask.ranks
    found: list[dict[str, Any]] = []
    for change in _candidates(ask):
        try:
            other = ask.model_validate({**ask.model_dump(), **change})
            answer = models.answer(other)
        except (TaylorError, ValueError):
            continue
        gain = answer["tokens_per_second"] / other.ranks / speed - 1.0
        if answer["fits"] and (not now["fits"] or gain > LEAST_GAIN):
            probability = answer["verdict"]["probability"]
            found.append({"change": change, "step_ms": answer["step_ms"], "gain": gain, "probability": probability})
    best: dict[tuple[str, ...], dict[str, Any]] = {}  # of each setting its best value
    for one in sorted(found, key=lambda one: -one["gain"]):
        best.setdefault(tuple(one["change"]), one)
    return list(best.values())[:SHOWN]


def _candidates(ask: Question) -> Iterator[dict[str, Any]]:
    """Changes of one setting; degrees with the data-parallel degree as what gives way."""
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
