"""Every shipped rule against its sentence said again of one strategy at a time, over degrees that meet its edges."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Callable

import pytest

from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.mindspeed.table import START_RULES
from taylor.nd_search.options import SearchContext, SearchOptions
from taylor.nd_search.rules import built_in_rules, judge
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.frameworks import MINDFORMERS
from taylor.register.frozen import with_frozen_layers
from taylor.register.layers import AttentionSpec, LayerSpec, LinearAttentionSpec, MambaSpec, MlpSpec
from taylor.register.model import ModelSpec
from taylor.register.trainers import ALL_FRAMEWORKS
from tests.nd_search.test_legality import cases, settled

Holds = Callable[[Strategy, SearchContext], bool]


def ulysses(s: Strategy, c: SearchContext) -> int:
    """Context ranks that exchange heads."""
    if c.rules.ulysses_degree is None:
        return s.cp
    return c.rules.ulysses_degree if s.cp > 1 else 1


def expert_tp(s: Strategy, c: SearchContext) -> int:
    if c.rules.expert_ways is not None:
        return c.rules.expert_ways
    return 1 if c.rules.whole_experts else s.tp


def splits(s: Strategy) -> int:
    return s.cp * (s.tp if s.sp else 1)


def rounds(c: SearchContext) -> ScheduleSpec:
    return ScheduleSpec(c.rules.framework.interleaved_schedule, group_size=c.schedule.group_size)


def in_rounds(s: Strategy, c: SearchContext) -> bool:
    if c.schedule.name != "1f1b" or c.rules.framework.interleaved_schedule != "megatron-interleaved":
        return s.micro_batches > 0
    size = c.schedule.group_size or s.pp
    left = s.micro_batches % size
    return s.pp <= size <= s.micro_batches and (left == 0 or left >= s.pp)


def moe(c: SearchContext) -> bool:
    return c.model.moe is not None


LEAST = {"zero_bubble_v": lambda pp: 2 * pp - 1, "dualpipev": lambda pp: 2 * pp - 1}
FILLED = {("mindformers", "zero_bubble_v"), ("torchtitan", "dualpipev")}

HOLDS: dict[str, Holds] = {
    "world-size": lambda s, c: s.dp * s.tp * s.pp * s.cp == c.world_size,
    "heads-by-tp": lambda s, c: not c.model.n_heads % s.tp,
    "kv-groups-by-tp": lambda s, c: not c.model.n_kv_heads % s.tp,
    "kv-groups-or-copies": lambda s, c: (
        not c.model.n_kv_heads % s.tp
        or not (s.tp % c.model.n_kv_heads or (c.model.n_heads + 2 * c.model.n_kv_heads) * c.model.head_dim % s.tp)
    ),
    "hidden-by-tp": lambda s, c: not c.model.hidden % s.tp,
    "mtp-projection-by-tp": lambda s, c: not c.model.hidden % s.tp,
    "ffn-by-tp": lambda s, c: not c.model.ffn_hidden % s.tp,
    "expert-ffn-by-tp": lambda s, c: not c.model.moe.expert_hidden % expert_tp(s, c),
    "vocab-by-tp": lambda s, c: not c.model.vocab % s.tp,
    "dense-without-ep": lambda s, c: s.ep == 1,
    "experts-by-ep": lambda s, c: not c.model.moe.n_experts % s.ep,
    "max-expert-parallel": lambda s, c: not s.ep > c.max_expert_parallel,
    "ep-in-dp-tp": lambda s, c: not s.dp * s.tp % s.ep,
    "ep-in-dp-cp": lambda s, c: not s.dp * s.tp * s.cp % (s.ep * expert_tp(s, c)),
    "ep-in-dp-tp-cp": lambda s, c: not s.dp * s.tp * s.cp % s.ep,
    "ep-in-shards": lambda s, c: s.ep == 1 or not s.op * s.tp % (s.ep * expert_tp(s, c)),
    "ep-holds-cp": lambda s, c: s.ep == 1 or not s.ep % (s.cp * s.tp // expert_tp(s, c)),
    "op-in-replicas": lambda s, c: not s.dp * s.cp % s.op,
    "op-holds-cp": lambda s, c: not s.op % s.cp,
    "plain-replicas-alone": lambda s, c: s.op != 1 or s.dp == 1 or (s.tp == 1 and s.pp == 1),
    "op-needs-parallel-optimizer": lambda s, c: s.op == 1,
    "sp-needs-tp": lambda s, c: s.tp > 1 or not s.sp,
    "moe-sp-with-tp": lambda s, c: s.tp == 1 or s.sp,
    "sequence-by-cp-tp": lambda s, c: not c.rules.seq_length % splits(s),
    "sequence-by-2cp-tp": lambda s, c: (
        not c.rules.seq_length % splits(s) and (s.cp == 1 or not c.rules.seq_length % (2 * s.cp))
    ),
    "sequence-by-2cp-tp-always": lambda s, c: not c.rules.seq_length % (2 * s.cp * s.tp),
    "context-needs-flash": lambda s, c: s.cp == 1,
    "heads-by-ulysses": lambda s, c: not c.model.n_heads % (s.tp * ulysses(s, c)),
    "kv-groups-by-ulysses": lambda s, c: s.cp == 1 or not c.model.n_kv_heads % (s.tp * ulysses(s, c)),
    "ulysses-in-context": lambda s, c: not s.cp % ulysses(s, c),
    "ring-of-two": lambda s, c: s.cp == 1 or s.cp > ulysses(s, c),
    "context-levels": lambda s, c: s.cp == c.rules.context_levels,
    "kv-groups-or-copies-by-ulysses": lambda s, c: (
        not c.model.n_kv_heads % ulysses(s, c) or not ulysses(s, c) % c.model.n_kv_heads
    ),
    "ep-is-shard": lambda s, c: s.ep == 1 or (s.tp == 1 and s.op == s.ep * s.cp),
    "tokens-by-tp": lambda s, c: not s.sp or not s.mbs * c.rules.seq_length % s.tp,
    "context-without-sequence-parallel": lambda s, c: not (s.cp > 1 and s.tp > 1 and s.sp),
    "gradients-whole-in-pipeline": lambda s, c: s.pp == 1,
    "untied-across-stages": lambda s, c: s.pp == 1,
    "micro-batches-fill-warm-up": lambda s, c: not s.micro_batches < s.pp - 1,
    "layers-fill-chunks": lambda s, c: not s.pp * s.vpp > c.layers,
    "vpp-needs-pipeline": lambda s, c: s.vpp == 1 or s.pp != 1,
    "interleaving-without-overlap": lambda s, c: s.vpp == 1 or s.pp not in (1, 2),
    "zero-bubble-v-two-chunks": lambda s, c: s.vpp == 2,
    "gpipe-one-chunk": lambda s, c: s.vpp == 1,
    "schedule-needs-pipeline": lambda s, c: s.pp != 1,
    "pieces-fill-rounds": lambda s, c: (
        s.vpp > 1
        and c.schedule.seq_splits <= s.pp <= s.micro_batches * c.schedule.seq_splits
        and (s.pp % 2 == 0 or c.schedule.name == "seqvpp")
    ),
    "batch-by-dp": lambda s, c: s.dp * s.mbs * s.micro_batches == c.gbs,
    "micro-batches-fill-zero-bubble": lambda s, c: (
        s.micro_batches
        >= LEAST.get(c.schedule.name, lambda pp: 1)(s.pp)
        + (c.rules.core_models and (c.rules.framework.name, c.schedule.name) in FILLED)
    ),
    "micro-batches-fill-1f1b": lambda s, c: s.vpp > 1 or not s.micro_batches < s.pp,
    "micro-batches-fill-pipeline": lambda s, c: s.pp == 1 or not s.micro_batches < s.pp,
    "micro-batches-fill-interleaving": lambda s, c: s.vpp == 1 or not s.micro_batches < s.pp,
    "micro-batches-in-rounds": lambda s, c: s.vpp == 1 or in_rounds(s, c),
    "micro-batches-in-even-rounds": lambda s, c: (
        s.vpp == 1 or s.micro_batches < s.pp or not s.micro_batches % (s.micro_batches // s.pp)
    ),
    "tp-within-node": lambda s, c: not c.device.devices_per_node % s.tp,
    "sp-with-tp": lambda s, c: s.tp == 1 or s.sp,
    "cp-keeps-long-pieces": lambda s, c: s.cp == 1 or not c.rules.seq_length < 1024 * s.cp,
    "ep-in-dp-tp-of-new-releases": lambda s, c: not s.dp * s.tp % s.ep,
    "moe-sp-of-new-releases": lambda s, c: s.tp == 1 or s.sp,
    "zero-bubble-of-new-releases": lambda s, c: not s.micro_batches < 2 * s.pp,
    "frozen-layers-on-one-stage": lambda s, c: not s.pp > 1,
    "pipeline-mostly-busy": lambda s, c: 6 * (s.pp - 1) <= 4 * s.vpp * s.micro_batches,
}
"""Of each rule the verdict on one strategy."""

V_SHAPES = ("zero_bubble_v", "dualpipev", "zbv")

CONCERNS: dict[str, Callable[[SearchContext], bool]] = {
    "kv-groups-by-tp": lambda c: c.model.mla is None,
    "kv-groups-or-copies": lambda c: c.model.mla is None,
    "mtp-projection-by-tp": lambda c: c.model.mtp_layers > 0,
    "ffn-by-tp": lambda c: not moe(c) or c.model.moe.first_dense > 0,
    "expert-ffn-by-tp": lambda c: moe(c) and not c.rules.whole_experts,
    "vocab-by-tp": lambda c: c.rules.core_models,
    "dense-without-ep": lambda c: not moe(c),
    "experts-by-ep": moe,
    "max-expert-parallel": moe,
    "ep-in-dp-tp": lambda c: moe(c) and c.rules.whole_experts and not c.rules.core_models,
    "ep-in-dp-cp": lambda c: moe(c) and not c.rules.whole_experts,
    "ep-in-dp-tp-cp": lambda c: moe(c) and c.rules.whole_experts,
    "ep-in-shards": moe,
    "ep-holds-cp": lambda c: moe(c) and c.rules.ep_includes_cp,
    "op-needs-parallel-optimizer": lambda c: not c.rules.parallel_optimizer and not c.rules.parameter_shard,
    "moe-sp-with-tp": lambda c: moe(c) and c.rules.core_models,
    "kv-groups-or-copies-by-ulysses": lambda c: c.rules.ulysses_degree != 1,
    "ep-is-shard": moe,
    "gradients-whole-in-pipeline": lambda c: c.rules.gradient_shard or c.rules.parameter_shard,
    "untied-across-stages": lambda c: c.model.tied_embedding,
    "micro-batches-fill-warm-up": lambda c: c.schedule.name != "gpipe",
    "mamba-by-tp-cp": lambda c: False,
    "linear-heads-by-tp-cp": lambda c: False,
    "context-needs-flash": lambda c: not c.rules.flash_attention,
    "heads-by-ulysses": lambda c: c.rules.ulysses_degree != 1 and c.rules.repeats_kv_heads,
    "kv-groups-by-ulysses": lambda c: c.rules.ulysses_degree != 1 and not c.rules.repeats_kv_heads,
    "ulysses-in-context": lambda c: c.rules.ulysses_degree not in (1, None),
    "ring-of-two": lambda c: c.rules.ulysses_degree not in (1, None),
    "context-levels": lambda c: c.rules.context_levels is not None,
    "interleaving-without-overlap": lambda c: not c.rules.overlap_p2p,
    "zero-bubble-v-two-chunks": lambda c: c.schedule.name in V_SHAPES,
    "gpipe-one-chunk": lambda c: c.schedule.name == "gpipe",
    "schedule-needs-pipeline": lambda c: c.schedule.name in (*V_SHAPES, "zb-h1", "seqpipe", "seqvpp", "seqsmartvpp"),
    "pieces-fill-rounds": lambda c: c.schedule.name in ("seqvpp", "seqsmartvpp"),
    "micro-batches-fill-zero-bubble": lambda c: c.schedule.name in V_SHAPES,
    "micro-batches-fill-1f1b": lambda c: c.schedule.name != "gpipe",
    "micro-batches-fill-interleaving": lambda c: (
        c.schedule.name == "1f1b" and c.rules.framework.interleaved_schedule == "interleaved"
    ),
    "micro-batches-in-even-rounds": lambda c: c.schedule.name not in V_SHAPES,
    "ep-in-dp-tp-of-new-releases": lambda c: moe(c) and c.rules.core_models and c.rules.framework is MINDFORMERS,
    "moe-sp-of-new-releases": lambda c: moe(c) and not c.rules.core_models and c.rules.framework is MINDFORMERS,
    "zero-bubble-of-new-releases": lambda c: c.schedule.name == "zero_bubble_v" and not c.rules.core_models,
    "frozen-layers-on-one-stage": lambda c: "+frozen" in c.model.pattern,
}
"""Whether each rule says anything about a job, its framework apart; those that are not here always do."""


def contexts() -> list[SearchContext]:
    """Jobs of every framework, schedule and switch that a rule asks about."""
    found = []
    for framework in ("mindformers", "megatron", "torchtitan"):
        for number, case in enumerate(cases(framework)[:40]):
            context, _ = settled(case)
            rules = replace(
                context.rules,
                parameter_shard=number % 5 == 0,
                gradient_shard=number % 5 == 1,
                expert_ways=2 if number % 7 == 3 and not case.before_v021 else None,
                core_models=number % 3 != 1,
                seq_length=(4096, 4095, 2048, 24, 48)[number % 5],
                ulysses_degree=(1, None, 2, 3)[number % 4],
            )
            name = (
                "1f1b", "gpipe", "zero_bubble_v", "1f1b", "dualpipev", "zbv", "zb-h1", "seqpipe", "seqvpp",
                "seqsmartvpp",
            )[number % 10]  # fmt: skip
            splits = 1 + number % 3 if name.startswith("seq") else 1
            schedule = ScheduleSpec(name, seq_splits=splits, group_size=context.schedule.group_size)
            model = replace(context.model, tied_embedding=number % 6 == 1)
            if number % 9 == 4 and not model.pattern:
                model = with_frozen_layers(model, [at > 0 for at in range(model.n_layers)], below=False)
            found.append(replace(context, model=model, rules=rules, schedule=schedule, max_expert_parallel=4))
    return found


def strategies(seed: str) -> list[Strategy]:
    draw = random.Random(seed)
    degrees = (1, 1, 2, 3, 4, 6, 8)
    return [
        Strategy(
            draw.choice(degrees), draw.choice(degrees), draw.choice((1, 2, 3, 4, 5)), draw.choice(degrees),
            draw.choice((1, 2, 3, 4)), draw.choice(degrees), draw.random() < 0.5, draw.choice((1, 2, 3)),
            draw.choice((1, 2)), draw.randint(1, 10),
        )
        for _ in range(120)
    ]  # fmt: skip


def test_every_rule_says_of_each_strategy_what_its_sentence_says() -> None:
    drawn = strategies("rules")
    table = StrategyTable.from_strategies(drawn)
    verdicts: dict[str, set[bool]] = {}
    for context in contexts():
        for rule in built_in_rules():
            if rule.name not in HOLDS or not rule.applies(context):
                continue
            told = judge(rule, table, context).tolist()
            assert told == [HOLDS[rule.name](strategy, context) for strategy in drawn], (rule.name, context)
            verdicts.setdefault(rule.name, set()).update(told)
    of_degrees = {rule.name for rule in built_in_rules()} - {rule.name for rule in START_RULES}
    assert of_degrees - set(verdicts) == {"mamba-by-tp-cp", "linear-heads-by-tp-cp"}
    assert all(told == {True, False} for told in verdicts.values())


def test_every_rule_is_asked_of_the_jobs_that_it_is_about() -> None:
    start = {rule.name for rule in START_RULES}  # Of jobs under MindSpeed: tests/nd_search/test_mindspeed.py
    known = {rule.name for rule in built_in_rules()} - start
    assert set(CONCERNS) <= known and len(ALL_FRAMEWORKS) == 14
    for context in contexts():
        asked = {rule.name for rule in built_in_rules() if rule.applies(context)}
        assert asked == {name for name in known if CONCERNS.get(name, lambda c: True)(context)}
        for rule in (rule for rule in built_in_rules() if rule.name not in start):
            owners = [framework.name for framework in ALL_FRAMEWORKS.values() if rule.name in framework.legality]
            assert list(rule.frameworks) == owners
            assert rule.concerns(context) == (
                rule.name in asked and (not owners or context.rules.framework.name in owners)
            )


@pytest.mark.parametrize(
    ("name", "value", "fine"),
    [
        *((name, 0, False) for name in ("world_size", "gbs", "max_expert_parallel", "profile_num")),
        *((name, 1, True) for name in ("world_size", "gbs", "max_expert_parallel", "profile_num")),
        *(("fix", {name: 0}, False) for name in ("dp", "tp", "vpp", "mbs", "micro_batches")),
        *(("fix", {name: 1}, True) for name in ("dp", "tp", "vpp", "mbs", "micro_batches")),
        *(("fix", {"sp": value}, value in (0, 1)) for value in (-1, 0, 1, 2)),
        ("bounds", {"pp": (3, 2)}, False), ("bounds", {"pp": (2, 2)}, True),
    ],
)  # fmt: skip
def test_options_are_refused_just_outside_of_what_they_mean(name: str, value: object, fine: bool) -> None:
    from taylor.base.errors import InputError

    if fine:
        assert getattr(SearchOptions(**{name: value}), name) == value  # type: ignore[arg-type]
    else:
        with pytest.raises(InputError):
            SearchOptions(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(("sp", "left_out"), [(None, ()), (1, ()), (0, ("sp-with-tp",))])
def test_the_rule_of_sequence_parallel_gives_way_to_a_pin_of_none(sp: int | None, left_out: tuple) -> None:
    options = SearchOptions(fix={} if sp is None else {"sp": sp}, disabled_rules=("tp-within-node",))
    assert options.rules_left_out == ("tp-within-node", *left_out)


ATTENTION = LayerSpec("attn", AttentionSpec(48, 48, 8), mlp=MlpSpec(96))


@pytest.mark.parametrize(
    ("layer", "asked"),
    [
        (LayerSpec("other", mamba=MambaSpec(512, 24, 16, n_groups=6)), "mamba-by-tp-cp"),
        (LayerSpec("other", mamba=MambaSpec(512, 24, 16, n_groups=1, dt_rank=8)), None),
        (LayerSpec("other", linear=LinearAttentionSpec("gdn", 6, 12, 8, 8)), "linear-heads-by-tp-cp"),
    ],
)
def test_layers_without_attention_bring_their_rule(layer: LayerSpec, asked: str | None) -> None:
    model = ModelSpec("tiny", 4, 48, 48, 48, 8, 96, 96, kinds=(ATTENTION, layer), pattern="2 x (1 attn, 1 other)")
    context = replace(contexts()[0], model=model)
    rules = [rule for rule in built_in_rules() if rule.name in ("mamba-by-tp-cp", "linear-heads-by-tp-cp")]
    assert [rule.name for rule in rules if rule.applies(context)] == ([asked] if asked else [])
