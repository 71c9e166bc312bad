"""Reasons why no strategy remains: the rules at fault, and the nearest batch that works."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.memory import peaks
from taylor.nd_search.options import SearchContext
from taylor.nd_search.rule import Rule
from taylor.nd_search.rules import judge
from taylor.nd_search.space import StrategySpace

BATCH_RULES = frozenset(
    {"batch-by-dp", "micro-batches-fill-pipeline", "micro-batches-in-rounds", "pipeline-mostly-busy"}
)
"""Rules that another global batch can satisfy."""


def explain_emptied(
    space: StrategySpace, rules: Sequence[Rule], context: SearchContext, recompute: str = "best"
) -> InputError:
    """Error for a space that the rules emptied.

    Looks for the strategies that break the fewest rules: those rules are at fault. When only the batch is, the answer
    is the nearest batch under which some strategy obeys every rule and fits the memory (or obeys every rule, where none
    fits).
    """
    blame: Counter[tuple[str, ...]] = Counter()
    fewest = len(rules) + 1
    nearest: Nearest | None = None
    built = 0
    for block in space.blocks():
        if not len(block):
            continue
        built += len(block)
        broken = np.column_stack([~judge(rule, block, context) for rule in rules])
        only_batch = ~broken[:, [rule.name not in BATCH_RULES for rule in rules]].any(axis=1)
        if only_batch.any():
            nearest = _nearer(nearest, _nearest_batch(block.select(only_batch), rules, context, recompute))
        number = broken.sum(axis=1)
        least = int(number.min())
        if least > fewest:
            continue
        if least < fewest:
            fewest = least
            blame.clear()
        patterns, repeats = np.unique(broken[number == least], axis=0, return_counts=True)
        for pattern, count in zip(patterns, repeats, strict=True):
            names = tuple(rule.name for rule, hit in zip(rules, pattern, strict=True) if hit)
            blame[names] += int(count)
    if not built:
        return InputError(
            f"no dp * tp * pp * cp of these pins and bounds gives {context.world_size} ranks",
            field="--world_size",
            value=context.world_size,
            cure="pin fewer degrees, or give a world size that they multiply to",
        )
    if nearest is not None:
        return InputError(
            f"leaves no strategy for {context.world_size} ranks: no data-parallel degree splits it into enough "
            "whole micro-batches",
            field="--gbs",
            value=context.gbs,
            cure=f"{nearest[2]} works",
        )
    names, count = blame.most_common(1)[0]
    by_name = {rule.name: rule for rule in rules}
    named = " and ".join(f"{name} ({by_name[name].explanation})" for name in names)
    return InputError(
        f"no strategy of {built} for {context.world_size} ranks obeys all rules: {count} obey all but "
        f"the rule{'s' if len(names) > 1 else ''} {named}",
        cure=by_name[names[0]].relax
        if len(names) == 1
        else "; ".join(f"for {name}, {by_name[name].relax}" for name in names),
    )


Nearest = tuple[bool, int, int]
"""Key of a batch: whether nothing fits the memory, the distance from the requested batch, the batch."""


def _nearer(one: Nearest | None, other: Nearest | None) -> Nearest | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _nearest_batch(
    table: StrategyTable, rules: Sequence[Rule], context: SearchContext, recompute: str
) -> Nearest | None:
    """Batch nearest to the requested one under which some row obeys all rules, and fits if any does."""
    unit: NDArray[np.int64] = table.dp * table.mbs
    least = np.maximum(table.pp, -(-3 * (table.pp - 1) // (2 * table.vpp)))
    rounds = np.where(table.vpp > 1, table.pp, 1)
    wanted = np.maximum(-(-least // rounds), np.rint(context.gbs / (unit * rounds)).astype(np.int64)) * rounds
    batches = unit * wanted
    wanted_table = replace(table, micro_batches=wanted)
    too_much = peaks(wanted_table, context, recompute, context.device_limit_mib)[0] > context.device_limit_mib
    for index in np.lexsort((np.abs(batches - context.gbs), too_much))[:64]:
        batch = int(batches[index])
        row = wanted_table.select(slice(index, index + 1))
        if all(judge(rule, row, replace(context, gbs=batch)).all() for rule in rules):
            return bool(too_much[index]), abs(batch - context.gbs), batch
    return None
