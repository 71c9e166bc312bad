"""Pruning: the rules over the space block by block, then the memory of the remaining strategies."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import InfeasibleError
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.emptied import explain_emptied
from taylor.nd_search.memory import peaks
from taylor.nd_search.options import SearchContext
from taylor.nd_search.rule import LEGALITY, Rule
from taylor.nd_search.rules import judge
from taylor.nd_search.space import StrategySpace

MEMORY, PLAN = "memory", "plan"
"""Names of the memory, and of the proof that a strategy has no plan, among the rules."""


@dataclass(frozen=True)
class PruneRecord:
    """Strategies that one rule, or the memory, removed.

    Parameters
    ----------
    count : int
        Strategies that passed everything before it and failed here.
    example : Strategy or None
        The first of them; None when it removed nothing.
    """

    rule: str
    explanation: str
    count: int
    example: Strategy | None


@dataclass(frozen=True)
class RuledSpace:
    """Result of the rules: the strategies that obey all, the numbers built and legal, and a record for each rule."""

    table: StrategyTable
    built: int
    legal: int
    records: tuple[PruneRecord, ...]


@dataclass(frozen=True)
class FittingSpace:
    """Result of the memory check.

    Parameters
    ----------
    peak_mib : float64 [n]
        Peak of the heaviest stage.
    heaviest_stage : int64 [n]
        That stage.
    """

    table: StrategyTable
    peak_mib: NDArray[np.float64]
    heaviest_stage: NDArray[np.int64]
    record: PruneRecord


def apply_rules(
    space: StrategySpace, rules: Sequence[Rule], context: SearchContext, recompute: str = "best"
) -> RuledSpace:
    """Apply every rule to every strategy, legality first.

    `recompute` only serves the error's advice: a batch near the requested one whose strategies also fit.

    Raises
    ------
    InputError
        When nothing remains: names the rule at fault and the remedy.
    """
    ordered = sorted(rules, key=lambda rule: rule.kind != LEGALITY)
    counts = {rule.name: 0 for rule in ordered}
    examples: dict[str, Strategy] = {}
    kept: list[StrategyTable] = []
    built = 0
    for block in space.blocks():
        built += len(block)
        table = block
        for rule in ordered:
            mask = judge(rule, table, context)
            removed = len(table) - int(np.count_nonzero(mask))
            if removed:
                counts[rule.name] += removed
                if rule.name not in examples:
                    examples[rule.name] = table.row(int(np.argmin(mask)))
                table = table.select(mask)
        kept.append(table)
    table = _concatenate(kept)
    if not len(table):
        raise explain_emptied(space, ordered, context, recompute)
    records = tuple(
        PruneRecord(rule.name, rule.explanation, counts[rule.name], examples.get(rule.name)) for rule in ordered
    )
    illegal = sum(counts[rule.name] for rule in ordered if rule.kind == LEGALITY)
    return RuledSpace(table, built, built - illegal, records)


def keep_what_fits(table: StrategyTable, context: SearchContext, recompute: str = "best") -> FittingSpace:
    """Remove every strategy whose heaviest stage is over the limit even at its best.

    Raises
    ------
    InfeasibleError
        When nothing fits: gives the least memory that the best strategy needs.
    """
    peak, stage = peaks(table, context, recompute, context.device_limit_mib)
    fits = peak <= context.device_limit_mib
    if not fits.any():
        peak, stage = peaks(table, context, recompute)
        best = int(np.argmin(peak))
        raise InfeasibleError(
            f"no strategy fits {context.device_limit_mib:.0f} MiB a device: of {len(table)} legal ones the lightest, "
            f"{describe(table.row(best))}, needs {peak[best]:.0f} MiB on stage {stage[best]} "
            f"({peak[best] - context.device_limit_mib:.0f} MiB more than there is); "
            f"use more ranks (--world_size), a device with more memory, or search cp, op and mbs too (--search)"
        )
    over = np.flatnonzero(~fits)
    record = PruneRecord(
        MEMORY,
        f"the heaviest stage needs at most {context.device_limit_mib:.0f} MiB (recompute: {recompute})",
        len(over),
        table.row(int(over[np.argmin(peak[over])])) if len(over) else None,
    )
    return FittingSpace(table.select(fits), peak[fits], stage[fits], record)


def unplanned_record(table: StrategyTable, refused: Mapping[int, str]) -> PruneRecord:
    """Strategies that the quick solves removed: below the memory's bound, but without a plan."""
    first = next(iter(refused), None)
    why = "a plan of whole layers exists (quick solve of the quickest plan)"
    return PruneRecord(
        PLAN,
        why if first is None else f"{why}; the first: {refused[first]}",
        len(refused),
        None if first is None else table.row(first),
    )


def nothing_planned(table: StrategyTable, refused: Mapping[int, str]) -> InfeasibleError:
    """Error where no strategy that fits by its bound has a plan: names the fastest, and its shortage."""
    first = next(iter(refused))
    return InfeasibleError(
        f"none of the {len(table)} strategies that stay below the memory's bound has a plan; the quickest, "
        f"{describe(table.row(first))}: {refused[first]}; use more ranks (--world_size), a device with more memory, "
        "or search cp, op and mbs too (--search)"
    )


def describe(strategy: Strategy) -> str:
    """Strategy as text for logs and tables: the main degrees, and every other one that is not 1."""
    values = {column.name: getattr(strategy, column.name) for column in fields(strategy)}
    always = ("dp", "tp", "pp", "ep", "micro_batches")
    if not values["ulysses"]:
        del values["ulysses"]
    return " ".join(f"{name}={int(value)}" for name, value in values.items() if name in always or int(value) != 1)


def _concatenate(tables: Sequence[StrategyTable]) -> StrategyTable:
    if not tables:
        return StrategyTable.from_strategies([])
    names = [column.name for column in fields(tables[0])]
    return StrategyTable(**{name: np.concatenate([getattr(table, name) for table in tables]) for name in names})
