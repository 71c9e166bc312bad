"""What a search spans, and the batch that it proposes where the asked one leaves nothing, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.emptied import _nearer, _nearest_batch, explain_emptied
from taylor.nd_search.legality import LEGALITY_RULES
from taylor.nd_search.options import SearchContext, SearchOptions
from taylor.nd_search.prune import apply_rules
from taylor.nd_search.rule import Rule
from taylor.nd_search.rules import select_rules
from taylor.nd_search.space import build_space
from taylor.nd_search.user_rules import _exists
from taylor.pipeline.plan import NONE
from tests.nd_search_cases import DEVICE, LLAMA2_7B, job

LEGAL = {rule.name for rule in LEGALITY_RULES}


def context_of(options: SearchOptions, rules: TrainingRules | None = None) -> SearchContext:
    own = job(LLAMA2_7B, Strategy(8, 1, 1, op=8, micro_batches=4), TrainingRules() if rules is None else rules)
    return SearchContext.settle(own, DEVICE, options)


def test_interleaves_reach_from_1_to_4_where_no_bounds_are_given() -> None:
    options = SearchOptions(search=("dp", "tp", "pp", "vpp"), world_size=8, gbs=32)
    table = [row for block in build_space(context_of(options), options).blocks() for row in block]
    assert {row.vpp for row in table} == {1, 2, 3, 4}


def test_the_optimizer_is_split_over_divisors_of_dp_and_cp_together() -> None:
    options = SearchOptions(search=("dp", "tp", "cp", "op"), world_size=8, gbs=32)
    found: dict[tuple[int, int], set[int]] = {}
    for block in build_space(context_of(options), options).blocks():
        for row in block:
            found.setdefault((row.dp, row.cp), set()).add(row.op)
    assert found[2, 2] == {1, 2, 4} and found[1, 4] == {1, 2, 4} and found[8, 1] == {1, 2, 4, 8}


def test_the_batch_proposed_is_the_nearest_of_whole_rounds() -> None:
    """Interleaved over four stages, micro-batches come in fours: of 2 samples a micro-batch, 8 by 8."""
    options = SearchOptions(search=("dp", "tp", "pp", "vpp"), world_size=8, gbs=98)
    table = StrategyTable.from_strategies([Strategy(2, 1, 4, op=2, vpp=2, mbs=1, micro_batches=4)])
    nearest = _nearest_batch(table, (), context_of(options), NONE)
    assert nearest is not None and nearest[1:] == (2, 96)


@pytest.mark.parametrize(
    ("strategy", "gbs", "batch"),
    [
        # 40 % idle at most: 1.5 * (pp - 1) micro-batches over the interleaves, and one a stage.
        (Strategy(2, 1, 2), 2, 4),  # 1.5, and the two stages
        (Strategy(2, 1, 5), 2, 12),  # 6 micro-batches
        (Strategy(2, 1, 5, vpp=2), 2, 10),  # 3, and a round of five
        (Strategy(2, 1, 5, mbs=3), 50, 48),  # 6 a micro-batch of all replicas
        (Strategy(2, 1, 1), 7, 8),  # 3.5 rounds to the even 4
    ],
)
def test_the_batch_proposed_fills_the_pipeline_and_is_near(strategy: Strategy, gbs: int, batch: int) -> None:
    options = SearchOptions(world_size=10, gbs=gbs)
    nearest = _nearest_batch(StrategyTable.from_strategies([strategy]), (), context_of(options), NONE)
    assert nearest is not None and nearest[1:] == (abs(batch - gbs), batch)


@pytest.mark.parametrize("rows", [1, 5, 12, 1000])
def test_blocks_of_any_size_hold_the_space_once_and_in_order(rows: int) -> None:
    options = SearchOptions(search=("dp", "tp", "pp", "vpp", "mbs", "sp"), world_size=12, gbs=24)
    space = build_space(context_of(options), options)
    blocks = list(space.blocks(rows))
    # dp, tp and pp of 12 ranks in 18 ways, 4 interleaves, mbs 1, 2, 4 and 8, sp on and off.
    assert space.size == 18 * 4 * 4 * 2 == sum(map(len, blocks))
    assert [row for block in blocks for row in block] == [row for block in space.blocks() for row in block]
    assert max(map(len, blocks)) <= max(rows, 4 * 4 * 2)


@pytest.mark.parametrize("counted", [True, False])
def test_mtp_modules_are_dealt_out_where_the_file_counts_them(counted: bool) -> None:
    config = job(mtp_counted=counted)
    assert SearchContext.settle(config, DEVICE, SearchOptions()).layers == (62 if counted else 61)


@pytest.mark.parametrize(
    ("name", "rules", "strategy", "legal"),
    [
        # data_parallel_replicate_degree stands for itself: beside sharding anything goes, alone it stands alone.
        ("plain-replicas-alone", {}, Strategy(4, 2, 1, op=2), True),
        ("plain-replicas-alone", {}, Strategy(4, 1, 1, op=1), True),
        ("plain-replicas-alone", {}, Strategy(4, 2, 1, op=1), False),
        # --hierarchical-context-parallel-sizes 2 2.
        ("context-levels", {"context_levels": 4}, Strategy(2, 1, 1, cp=4), True),
        ("context-levels", {"context_levels": 4}, Strategy(8, 1, 1, cp=1), False),
        # 32 heads over 4 ranks of TP and 4 that exchange heads; 12 or 48 ranks do not divide them.
        ("heads-by-ulysses", {"ulysses_degree": None}, Strategy(1, 4, 1, cp=4), True),
        ("heads-by-ulysses", {"ulysses_degree": None}, Strategy(1, 4, 1, cp=3), False),
        ("heads-by-ulysses", {"ulysses_degree": None}, Strategy(1, 16, 1, cp=3), False),
    ],
)
def test_a_rule_keeps_what_its_framework_starts(name: str, rules: dict, strategy: Strategy, legal: bool) -> None:
    [rule] = [rule for rule in LEGALITY_RULES if rule.name == name]
    options = SearchOptions(world_size=strategy.world_size, gbs=32)
    context = context_of(options, TrainingRules(**rules))
    kept = np.asarray(rule.keep(StrategyTable.from_strategies([strategy]), context))
    assert bool(kept[0]) is legal


def test_what_is_legal_is_what_legality_rules_leave() -> None:
    options = SearchOptions(search=("dp", "tp", "pp"), world_size=64, gbs=64)
    context = context_of(options)
    ruled = apply_rules(build_space(context, options), select_rules(context), context)
    refused = sum(record.count for record in ruled.records if record.rule in LEGAL)
    others = sum(record.count for record in ruled.records if record.rule not in LEGAL)
    assert refused > 0 and refused != others
    assert ruled.legal == ruled.built - refused


def test_rules_that_every_strategy_breaks_are_all_named() -> None:
    options = SearchOptions(search=("dp", "tp"), world_size=8, gbs=32)
    context = context_of(options)
    rules = [
        Rule(name, f"is {name}", lambda table, context: np.zeros(len(table), dtype=bool), relax=f"relax {name}")
        for name in ("first", "second")
    ]
    for number in (1, 2):
        told = explain_emptied(build_space(context, options), rules[:number], context)
        named = [rule.name for rule in rules if f"{rule.name} (is {rule.name})" in told.problem]
        assert named == ["first", "second"][:number]
        assert told.cure == ("relax first" if number == 1 else "for first, relax first; for second, relax second")


def test_a_module_of_a_package_that_is_not_there_does_not_exist() -> None:
    assert not _exists("no_such_package.module") and not _exists("json.no_such_module") and _exists("json.decoder")


def test_of_two_batches_one_that_fits_comes_first_and_then_the_nearer() -> None:
    fits, far, near = (False, 8, 40), (True, 1, 33), (True, 0, 32)
    assert _nearer(None, None) is None and _nearer(fits, None) == _nearer(None, fits) == fits
    assert _nearer(fits, far) == _nearer(far, fits) == fits and _nearer(near, far) == _nearer(far, near) == near
