"""One start rule: a condition on flags and degrees under which a job is refused, and the program's check of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.options import SearchContext
from taylor.nd_search.rule import LEGALITY, Mask, Rule
from taylor.parsers.megatron.start_flags import EARLIER, MINDSPEED, MINDSPEED_LLM, RUNS_ON
from taylor.parsers.stated_flags import StatedFlags

CORE, LLM = "MindSpeed 028de58c mindspeed/features_manager/", "MindSpeed-LLM c77308a1 mindspeed_llm/features_manager/"
SINCE = "2.1.0_core_r0.12.1 to master"
"""Releases of MindSpeed whose features check their arguments; before, mindspeed/arguments.py did."""
BOTH = frozenset({MINDSPEED, MINDSPEED_LLM})
LLM_ALONE, CORE_ALONE = frozenset({MINDSPEED_LLM}), frozenset({MINDSPEED})

Broken = Callable[[StrategyTable, StatedFlags, SearchContext], Any]
"""Mask of a table's strategies that break a rule: bool or bool [n]."""

LAYOUT = "pipeline-model-parallel-layout"
EXTEND = "moe-tp-extend-ep"


@dataclass(frozen=True)
class StartRule:
    """Rule of MindSpeed's or MindSpeed-LLM's argument checks.

    Parameters
    ----------
    name : str
        Name by which a job may break it.
    explanation : str
        One line: the condition.
    broken : callable
        See `Broken`.
    field : str
        Flag at fault, without dashes, where no single change of the strategy makes the job legal.
    source : str
        Repository, commit, file and line.
    releases : str
        The releases that have the check, the first one first: ``2.2.0 to master``.
    relax : str
        Remedy.
    changes : tuple of str
        As `Rule.changes`; empty where the flags alone break it.
    programs : frozenset of str
        The programs, of the two, that check it.
    """

    name: str
    explanation: str
    broken: Broken
    field: str
    source: str
    releases: str
    relax: str
    changes: tuple[str, ...] = ()
    programs: frozenset[str] = BOTH

    def _checked(self, flags: StatedFlags) -> bool:
        """Return whether the launch's program, in the release that it states, makes this check."""
        return not self.programs.isdisjoint(flags.programs) and not (self._late and EARLIER in flags.facts)

    @property
    def _late(self) -> bool:
        """True where the check came with the features or after them, in 2.1.0 or later."""
        return not self.releases.startswith(("1.", "2.0."))

    def as_rule(self) -> Rule:
        """Rule in the form for a search and a stated job."""

        def keep(table: StrategyTable, context: SearchContext) -> Mask:
            found = np.broadcast_to(np.asarray(self.broken(table, context.flags, context), dtype=bool), (len(table),))
            return ~found

        return Rule(
            self.name,
            self.explanation,
            keep,
            LEGALITY,
            frameworks=RUNS_ON,
            programs=tuple(sorted(map(str.lower, self.programs))),
            applies=lambda context: self._checked(context.flags),
            relax=self.relax,
            source=f"{self.source} ({self.releases})",
            changes=self.changes,
            field=self.field,
        )


def apart(
    feature: str, others: Sequence[str], source: str, *, programs: frozenset[str] = BOTH, releases: str = SINCE
) -> list[StartRule]:
    """Rules that a flag does not go with others: their ``incompatible_check``."""
    return [
        StartRule(
            f"{feature}-without-{other}",
            f"--{feature} does not go with --{other}",
            lambda t, f, c, other=other: f.on(feature) & f.on(other),  # type: ignore[misc]
            feature,
            source,
            releases,
            f"leave out --{other} or --{feature}",
            programs=programs,
        )
        for other in others
    ]


def needs(
    feature: str, other: str, source: str, *, programs: frozenset[str] = BOTH, releases: str = SINCE
) -> StartRule:
    """Rule that a flag needs another: their ``dependency_check``."""
    return StartRule(
        f"{feature}-needs-{other}",
        f"--{feature} needs --{other}",
        lambda t, f, c: f.on(feature) & (not f.on(other)),
        feature,
        source,
        releases,
        f"add --{other}, or leave out --{feature}",
        programs=programs,
    )


def dispatcher(flags: StatedFlags) -> str:
    """Dispatcher that sends tokens to the experts."""
    return flags.text("moe-token-dispatcher-type", "allgather")


def own_ep(table: StrategyTable, flags: StatedFlags) -> NDArray[np.int64]:
    """``--expert-model-parallel-size``, which excludes TP's ranks where they have experts too; int64 [n]."""
    return np.maximum(1, table.ep // table.tp) if flags.on(EXTEND) else table.ep


def expert_tp(table: StrategyTable, flags: StatedFlags) -> NDArray[np.int64]:
    """``--expert-tensor-parallel-size``, by default TP; int64 [n]."""
    stated = flags.number("expert-tensor-parallel-size")
    return np.full_like(table.tp, stated) if stated else table.tp


def is_dual_pipe(context: SearchContext) -> bool:
    """Return whether the job runs ``--schedules-method dualpipev``."""
    return context.schedule.name == "dualpipev"


def reduces_beside(flags: StatedFlags) -> bool:
    """Return whether gradients are reduced beside the backward.

    Megatron-LM core_v0.12.1 megatron/training/arguments.py:495-500.
    """
    return flags.on("overlap-grad-reduce") or flags.text("data-parallel-sharding-strategy") in (
        "optim_grads",
        "optim_grads_params",
    )


def has_adapters(flags: StatedFlags) -> bool:
    """Return whether the job trains LoRA's adapters."""
    return flags.on("lora-target-modules")
