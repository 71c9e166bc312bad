"""Makes the times of candidates comparable: a cost that some measured ones lack counts in none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taylor.base.console import log
from taylor.cost_model.profile import RatioSource, TimeRatios
from taylor.workflows.ranking.candidate_file import CandidateFile

COSTS = {"lag": "transfers between stages", "embedding": "the embedding", "tail": "the end of the step"}
"""Costs of `TimeRatios` that a measurement may lack, by field, with their names for a reader."""


def on_one_footing(candidates: Sequence[CandidateFile]) -> list[CandidateFile]:
    """Candidates with only those costs that all measured ones have, as far as any is measured.

    A step time with the transfers in it would rank behind one without them for that alone. Where the measured ones
    agree, estimates beside them follow; where they do not, the cost is removed from all, and a line reports it.
    """
    measured = [one for one in candidates if one.ratios is not None and one.ratios.source != RatioSource.ESTIMATE]
    if not measured:
        return list(candidates)
    gone = []
    for cost, words in COSTS.items():
        has = [_has(one, cost) for one in measured if cost != "lag" or _stages(one) > 1]
        if has and all(has):
            continue
        gone.append(cost)
        if any(has):
            log.warning(
                "%d of %d measured candidates have no time of %s: it is left out of all, so that they compare",
                has.count(False),
                len(has),
                words,
            )
    return [one if one.ratios is None else replace(one, ratios=_without(one.ratios, gone)) for one in candidates]


def note_sources(candidates: Sequence[CandidateFile]) -> None:
    """Log that measured and estimated step times stand in one order, where they do."""
    sources = [one.ratios.source for one in candidates if one.ratios is not None]
    estimated = sources.count(RatioSource.ESTIMATE)
    if 0 < estimated < len(sources):
        log.warning(
            "%d of %d candidates have estimated times, the others measured ones: the ranking puts both in one order, "
            "and an error of the estimate may change it (column ratio_source)",
            estimated,
            len(sources),
        )


def _has(candidate: CandidateFile, cost: str) -> bool:
    return bool(getattr(candidate.ratios, cost) > 0)


def _stages(candidate: CandidateFile) -> int:
    return 1 if candidate.config is None else candidate.config.strategy.pp


def _without(ratios: TimeRatios, costs: Sequence[str]) -> TimeRatios:
    gone: dict[str, Any] = dict.fromkeys(costs, 0.0)
    return replace(ratios, **gone)
