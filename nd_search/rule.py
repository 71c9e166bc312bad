"""One rule that a strategy must obey, evaluated over whole tables at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.options import SearchContext

LEGALITY, EXPERIENCE, USER = "legality", "experience", "user"

Mask = NDArray[np.bool_]


def _always(context: SearchContext) -> bool:
    return True


@dataclass(frozen=True)
class Rule:
    """One rule.

    Parameters
    ----------
    name : str
        Name by which the user disables it.
    explanation : str
        One line: the condition.
    keep : function of (table, context)
        bool [n], True where the rule is satisfied.
    kind : str
        `LEGALITY` (the framework refuses otherwise), `EXPERIENCE` (it would run, badly) or `USER`.
    frameworks : tuple of str
        Names of the frameworks it belongs to; empty = all. A shipped rule belongs to those whose record
        (`register.frameworks.Framework.legality`) names it, and does not name them here.
    programs : tuple of str
        Programs on top of a framework that check it, in place of the framework: ``mindspeed``.
    applies : function of (context)
        Whether the rule applies to this job.
    relax : str
        Change to make when the rule leaves no strategy.
    source : str
        For a shipped legality rule: the checks that it represents, as repository, release, file and line, with the
        releases that have the check in brackets.
    changes : tuple of str
        Values of a job that can change to obey it, the most likely first: fields of `Strategy`, ``seq`` (tokens a
        sample) and ``gbs`` (samples a step). Empty where no other strategy obeys it.
    field : str
        For a rule that reads flags: the flag at fault, without dashes.
    """

    name: str
    explanation: str
    keep: Callable[[StrategyTable, SearchContext], Mask]
    kind: str = USER
    frameworks: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    applies: Callable[[SearchContext], bool] = _always
    relax: str = "disable the rule with --disable_rule"
    source: str = ""
    changes: tuple[str, ...] = ()
    field: str = ""

    def concerns(self, context: SearchContext) -> bool:
        """Return whether the rule applies to this search at all."""
        return (not self.frameworks or context.rules.framework.name in self.frameworks) and self.applies(context)
