"""Summary of the laws of a network's operators from small runs, and as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from taylor.blackbox.blocks import LawfulOperator
from taylor.blackbox.laws import FACTORS, Deciding, SizeFit, deciding_runs
from taylor.parsers.small_run import RunSetting


@dataclass(frozen=True)
class LawSummary:
    """Counts of settled and unsettled laws.

    Parameters
    ----------
    operators : int
        Places of an operator in the runs, those of a further layer not counted again.
    settled, ambiguous, scattered, lawless : int
        Operators whose dimensions all follow one exact law; with several exact ones, or an open number of turns; with
        sizes that leave their law between runs; without any law, or without a condition for when they run.
    conditions : tuple of (str, int)
        Number of operators by condition, the commonest first.
    deciding : tuple of Deciding
        Runs that would settle ambiguous ones.
    """

    operators: int
    settled: int
    ambiguous: int
    scattered: int
    lawless: int
    conditions: tuple[tuple[str, int], ...]
    deciding: tuple[Deciding, ...]


def law_summary(operators: Sequence[LawfulOperator], candidates: Sequence[RunSetting], most: int) -> LawSummary:
    """Sum up the operators of runs.

    Parameters
    ----------
    candidates : sequence of RunSetting
        Further runs that could be started.
    most : int
        Most of them.
    """
    own = [one for one in operators if not one.further and not one.repeats]
    kinds = Counter(law_state(one) for one in own)
    conditions = Counter(str(one.condition) if one.condition else "no condition found" for one in own)
    # Sizes that are ambiguous alike are decided alike.
    fits = list(dict.fromkeys(fit for one in own for fit in one.fits if len(fit.laws) > 1))
    deciding = [*_of_counts(own, candidates), *deciding_runs(fits, candidates)][:most]
    return LawSummary(
        len(own),
        kinds["settled"],
        kinds["ambiguous"],
        kinds["scattered"],
        kinds["lawless"],
        tuple(conditions.most_common()),
        tuple(deciding),
    )


def _of_counts(operators: Sequence[LawfulOperator], candidates: Sequence[RunSetting]) -> list[Deciding]:
    """The cheapest run that shows how often operators run whose number the runs leave open: turns over CP's ranks."""
    places = tuple(place for place, one in enumerate(operators) if not one.is_counted)
    # Of one CP alone runs show 2: the base's.
    shown = max(
        (2 if one.count is None else one.count.open_above for one in operators if not one.is_counted), default=2
    )
    other = next((one for one in candidates if one.cp > shown), None)
    return [Deciding(other, places)] if places and other is not None else []


def law_state(operator: LawfulOperator) -> str:
    """Whether an operator's laws are settled, ambiguous, scattered or lawless, as `LawSummary` counts them."""
    fits = operator.fits
    if operator.condition is None or any(not fit.laws for fit in fits):
        return "lawless"
    if any(fit.spread for fit in fits):
        return "scattered"
    return "settled" if operator.is_counted and all(fit.settled for fit in fits) else "ambiguous"


def laws_as_data(operators: Sequence[LawfulOperator]) -> list[dict[str, Any]]:
    """The operators in their order as JSON data: when each runs, and the laws of every dimension."""
    return [
        {
            "type": one.like.type,
            "core": one.like.core,
            "dtypes": list(one.like.dtypes),
            "runs": str(one.condition) if one.condition else None,
            "times": str(one.count) if one.count else None,
            **({} if one.is_counted else {"times_open": True}),
            "inputs": [[_fit(fit) for fit in shape] for shape in one.inputs],
            "outputs": [[_fit(fit) for fit in shape] for shape in one.outputs],
        }
        for one in operators
    ]


def _fit(fit: SizeFit) -> dict[str, Any]:
    laws = [
        {
            "coefficient": str(law.coefficient),
            "powers": {name: power for name, power in zip(FACTORS, law.exponents, strict=True) if power},
            **({"unit": law.unit} if law.unit > 1 else {}),
            # As `Law` says: the coefficient is then TP's whole, whose shard is rounded up before it meets the rest.
            **({"rows": str(law.rows)} if law.rows else {}),
        }
        for law in fit.laws
    ]
    return {"laws": laws, **({"spread": round(fit.spread, 4)} if fit.spread else {})}
