"""Rules of the frameworks beside the four: each refuses a strategy that breaks it, and not the one beside it."""

from __future__ import annotations

import pytest

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.options import SearchContext, SearchOptions
from taylor.nd_search.rules import judge, select_rules
from taylor.parsers.olmo.read import SCHEDULES
from taylor.register.model import ModelSpec, MoeSpec
from taylor.register.trainers import (
    AREAL_FSDP,
    AUTOMODEL,
    DEEPSPEED,
    GPT_NEOX,
    NANOTRON,
    NEMO_DTENSOR,
    OLMO_CORE,
    ROLL_FSDP,
    TRANSFORMERS,
    VERL_FSDP,
)
from tests.nd_search_cases import DEVICE, job

DENSE = ModelSpec("tiny", 8, 1024, 16, 4, 64, 4096, 32000)


def refusals(model: ModelSpec, rules: TrainingRules, strategy: Strategy) -> set[str]:
    """Names of the legality rules that a strategy breaks."""
    config = job(model=model, rules=rules, strategy=strategy)
    context = SearchContext.settle(
        config, DEVICE, SearchOptions(world_size=strategy.world_size, gbs=strategy.global_batch)
    )
    table = StrategyTable.from_strategies([strategy])
    return {
        rule.name for rule in select_rules(context) if rule.kind == "legality" and not judge(rule, table, context).all()
    }


@pytest.mark.parametrize(
    ("rules", "model", "strategy", "rule"),
    [
        (TrainingRules(GPT_NEOX, gradient_shard=True, parallel_optimizer=True), {}, {"pp": 2, "op": 1},
         "gradients-whole-in-pipeline"),
        (TrainingRules(GPT_NEOX), {}, {"tp": 8}, "kv-groups-by-tp"),
        (TrainingRules(GPT_NEOX), {"hidden": 1026, "head_dim": 64}, {"tp": 4}, "hidden-by-tp"),
        (TrainingRules(GPT_NEOX), {"ffn_hidden": 4098}, {"tp": 4}, "ffn-by-tp"),
        (TrainingRules(GPT_NEOX, seq_length=2050), {}, {"tp": 4, "sp": True}, "sequence-by-cp-tp"),
        (TrainingRules(NANOTRON), {}, {"pp": 4, "micro_batches": 2}, "micro-batches-fill-warm-up"),
        (TrainingRules(NANOTRON, seq_length=2050), {}, {"tp": 4, "sp": True, "mbs": 1}, "tokens-by-tp"),
        (TrainingRules(OLMO_CORE), {"tied_embedding": True}, {"pp": 2, "micro_batches": 4}, "untied-across-stages"),
        (TrainingRules(OLMO_CORE), {}, {"pp": 4, "micro_batches": 2}, "micro-batches-fill-1f1b"),
        (TrainingRules(VERL_FSDP, ulysses_degree=None, repeats_kv_heads=True), {"n_heads": 12, "n_kv_heads": 4},
         {"cp": 6}, "kv-groups-or-copies-by-ulysses"),
        (TrainingRules(VERL_FSDP, ulysses_degree=None, repeats_kv_heads=True), {}, {"cp": 32}, "heads-by-ulysses"),
        (TrainingRules(NEMO_DTENSOR, ulysses_degree=1), {}, {"cp": 2, "tp": 2, "sp": True},
         "context-without-sequence-parallel"),
        (TrainingRules(NEMO_DTENSOR, ulysses_degree=1), {}, {"tp": 8}, "kv-groups-by-tp"),
        (TrainingRules(AUTOMODEL), {}, {"tp": 8}, "kv-groups-by-tp"),
        (TrainingRules(AUTOMODEL), {}, {"pp": 4, "vpp": 2, "micro_batches": 2}, "micro-batches-fill-pipeline"),
        (TrainingRules(TRANSFORMERS), {}, {"tp": 8}, "kv-groups-by-tp"),
        (TrainingRules(DEEPSPEED), {}, {"tp": 8}, "kv-groups-by-tp"),
    ],
)  # fmt: skip
def test_a_strategy_that_the_program_refuses_is_refused_by_name(
    rules: TrainingRules, model: dict, strategy: dict, rule: str
) -> None:
    own = Strategy(**{"dp": 2, "tp": 1, "pp": 1, "sp": False, "micro_batches": 8, **strategy})
    found = refusals(DENSE.replace(**model), rules, own)
    assert found == {rule}
    mended = own.replace(tp=1, pp=1, cp=1, vpp=1, sp=False)
    assert refusals(DENSE.replace(**model), rules, mended) == set()


@pytest.mark.parametrize(("op", "broken"), [(2, set()), (4, {"ep-is-shard"})])
def test_experts_of_olmo_core_lie_on_the_ranks_that_share_a_shard(op: int, broken: set[str]) -> None:
    rules = TrainingRules(OLMO_CORE, gradient_shard=True, parallel_optimizer=True)
    own = Strategy(4, 1, 1, 2, op=op, sp=False, micro_batches=8)
    assert refusals(DENSE.replace(moe=MoeSpec(8, 2, 1024)), rules, own) == broken


def test_a_framework_offers_the_schedules_that_its_files_can_name() -> None:
    assert set(OLMO_CORE.schedules) == set(SCHEDULES.values())
    assert set(OLMO_CORE.filled_schedules) <= set(OLMO_CORE.schedules)


def test_a_rule_s_source_names_the_framework_s_own_checks() -> None:
    from taylor.nd_search.legality import LEGALITY_RULES

    by_name = {rule.name: rule for rule in LEGALITY_RULES}
    for framework in (
        GPT_NEOX,
        NANOTRON,
        OLMO_CORE,
        VERL_FSDP,
        NEMO_DTENSOR,
        ROLL_FSDP,
        AREAL_FSDP,
        AUTOMODEL,
        TRANSFORMERS,
        DEEPSPEED,
    ):
        for name in framework.legality:
            own = framework.own_checks(by_name[name].source)
            assert own.startswith(framework.repositories), (framework, name)
