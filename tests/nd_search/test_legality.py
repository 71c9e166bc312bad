"""The legal strategies are those of a slow loop that was written from the frameworks' own checks."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from itertools import product
from typing import Iterator, Sequence

import numpy as np
import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.legality import LEGALITY_RULES
from taylor.nd_search.options import SearchContext, SearchOptions
from taylor.nd_search.prune import apply_rules
from taylor.nd_search.rule import Rule
from taylor.nd_search.rules import EXPERIENCE_RULES, judge, list_rules, select_rules
from taylor.nd_search.space import StrategySpace, build_space, split_by_rule, with_ruled_splits
from taylor.nd_search.stated import broken_rules
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register import frameworks
from taylor.register.layers import AttentionSpec, LayerSpec, LinearAttentionSpec, MambaSpec, MlpSpec
from taylor.register.model import MlaSpec, ModelSpec, MoeSpec
from taylor.register.registry import Registry
from tests.conftest import ROOT
from tests.nd_search_cases import DEVICE, LLAMA2_7B, job

NO_EXPERIENCE = tuple(rule.name for rule in EXPERIENCE_RULES)
DIMENSION_SETS = (
    ("dp", "tp", "pp", "ep"),
    ("dp", "tp", "pp", "ep", "cp"),
    ("dp", "tp", "pp", "ep", "vpp", "mbs"),
    ("dp", "tp", "pp", "ep", "cp", "op"),
    ("dp", "tp", "pp", "ep", "cp", "op", "sp", "vpp", "mbs"),
)


@dataclass(frozen=True)
class Case:
    framework: str
    model: ModelSpec
    seq: int
    world: int
    gbs: int
    shard: bool
    vocab_parallel: bool
    mtp_counted: bool
    schedule: str
    max_ep: int
    whole_experts: bool
    dimensions: tuple[str, ...]
    core_models: bool
    flash: bool
    overlap: bool
    ulysses: int | None
    repeats_kv: bool
    before_v021: bool
    levels: int | None
    group: int | None


def cases(framework: str) -> list[Case]:
    """Eighty small jobs, odd sizes among them."""
    draw = random.Random(f"legality of {framework} 1")
    found = []
    for number in range(80):
        heads = draw.choice([4, 6, 8, 12, 12, 24])
        experts = draw.choice([None, 4, 6, 8, 12, 16])
        expert_hidden, first_dense = draw.choice([24, 32, 36]), draw.choice([0, 1])
        moe = None if experts is None else MoeSpec(experts, 2, expert_hidden, first_dense=first_dense)
        model = ModelSpec(
            "tiny",
            draw.choice([3, 4, 6, 8, 9]),
            draw.choice([48, 64, 80]),
            heads,
            draw.choice([heads, *[kv for kv in (1, 2, 3, 4, 6, 8) if heads % kv == 0]]),
            8,
            draw.choice([48, 50, 100]),
            draw.choice([90, 96, 100]),
            moe=moe,
            mla=MlaSpec(8, 4, 8, 8) if number % 3 == 2 else None,
            mtp_layers=number % 2,
        )
        found.append(
            Case(
                framework,
                model,
                draw.choice([24, 32, 48, 64]),
                draw.choice([4, 6, 8, 12, 16, 24]),
                draw.choice([8, 12, 16, 20, 24, 48]),
                draw.random() < 0.7 or framework == "torchtitan",
                draw.random() < 0.5,
                draw.random() < 0.5,
                draw.choice(["1f1b", "1f1b", "1f1b", "gpipe"]),
                draw.choice([2, 4, 64]),
                framework != "mindformers" and number % 4 == 1,
                DIMENSION_SETS[number % len(DIMENSION_SETS)],
                framework != "mindformers" or draw.random() < 0.5,
                draw.random() < 0.8,
                framework != "megatron" or draw.random() < 0.6,
                1 if framework == "torchtitan" else draw.choice([1, 1, None, 2]),
                framework == "megatron" and draw.random() < 0.3,
                framework == "torchtitan" and draw.random() < 0.4,
                2 if framework == "megatron" and number % 10 in (1, 4) else None,
                (2, 3, 4)[number % 3] if framework == "megatron" and number % 5 in (2, 4) else None,
            )
        )
    return found


def whole(a: int, b: int) -> bool:
    return a % b == 0


def slow_legal(case: Case) -> Iterator[Strategy]:
    """Every strategy, one by one, by nested loops and plain conditions."""
    degrees = range(1, case.world + 1)
    searched = case.dimensions
    for dp, tp, pp in product(degrees, degrees, degrees):
        if dp * tp * pp > case.world:
            continue
        for cp in degrees if "cp" in searched else [1]:
            if dp * tp * pp * cp != case.world:
                continue
            ops = degrees if "op" in searched else [dp * cp if case.shard else 1]
            sps = [False, True] if "sp" in searched else [tp > 1]
            vpps = [1, 2, 3, 4] if "vpp" in searched else [1]
            batches = [1, 2, 4, 8] if "mbs" in searched else [1]
            for ep, op, sp, vpp, mbs in product(degrees, ops, sps, vpps, batches):
                if slow_verdict(case, dp, tp, pp, ep, cp, op, sp, vpp, mbs):
                    yield Strategy(dp, tp, pp, ep, cp, op, sp, vpp, mbs, case.gbs // (dp * mbs))


def slow_verdict(
    case: Case, dp: int, tp: int, pp: int, ep: int, cp: int, op: int, sp: bool, vpp: int, mbs: int
) -> bool:
    model = case.model
    # batch and pipeline: the same everywhere
    if not whole(case.gbs, dp * mbs):
        return False
    micro_batches = case.gbs // (dp * mbs)
    if pp * vpp > model.n_layers + (model.mtp_layers if case.mtp_counted else 0):
        return False
    if vpp > 1 and (pp == 1 or case.schedule == "gpipe"):
        return False
    if sp and tp == 1:
        return False
    if not whole(dp * cp, op) or (op > 1 and not case.shard):
        return False
    if not whole(model.n_heads, tp):
        return False
    # experts: the same everywhere
    if model.moe is None:
        if ep > 1:
            return False
    elif not whole(model.moe.n_experts, ep) or ep > case.max_ep:
        return False
    # experts under TP (Megatron moe_layer.py, MindFormers' core): the sequence is split too
    if case.framework != "torchtitan" and case.core_models and model.moe is not None and tp > 1 and not sp:
        return False
    # heads that Ulysses exchanges (MindFormers llama_transformer.py, MindSpeed-LLM arguments.py)
    if cp > 1 and case.ulysses != 1:
        exchanging = cp if case.ulysses is None else case.ulysses
        if not whole(model.n_heads, tp * exchanging):
            return False
        if not case.repeats_kv and not whole(model.n_kv_heads, tp * exchanging):
            return False
        if case.ulysses is not None and not whole(cp, exchanging):
            return False
        if case.ulysses is not None and case.framework == "megatron" and cp // exchanging <= 1:
            return False
    if case.framework == "mindformers":
        # check_rules.py: "context_parallel is only available for flash attention for now"
        if cp > 1 and not case.flash:
            return False
        if model.mla is None and not whole(model.n_kv_heads, tp):
            return False
        if not whole(model.hidden, tp):
            return False
        if model.n_dense and not whole(model.ffn_hidden, tp):
            return False
        # gpt_model.py of the core: the head is a ColumnParallelLinear of `vocab_size` outputs; llama.py of the old
        # classes leaves a vocabulary that TP does not divide whole.
        if case.core_models and not whole(model.vocab, tp):
            return False
        # moev3.py of the old classes and ffn.py of r1.6.0 of the core leave experts whole; moe.py of the old classes
        # splits them over TP: dp_moe = dp·cp / ep.
        ranks = dp * tp * (cp if case.core_models else 1) if case.whole_experts else dp * cp
        if model.moe is not None and not whole(ranks, ep):
            return False
        # MindSpore's pipeline_scheduler.cc: "MicroBatch num must be larger or equal than StageNum"
        if vpp > 1 and micro_batches < pp:
            return False
        return whole(case.seq, cp * tp) if sp else whole(case.seq, cp)
    if case.framework == "megatron":
        # attention.py: with copied heads, q, k and v are one ColumnParallelLinear all the same
        copied = whole(tp, model.n_kv_heads) and whole((model.n_heads + 2 * model.n_kv_heads) * 8, tp)
        if model.mla is None and not (whole(model.n_kv_heads, tp) or copied):
            return False
        # eh_proj of a multi-token-prediction module is a ColumnParallelLinear of `hidden` outputs
        if model.mtp_layers and not whole(model.hidden, tp):
            return False
        if model.n_dense and not whole(model.ffn_hidden, tp):
            return False
        if model.moe is not None and case.whole_experts:
            # parallel_state.py: the ranks of a pipeline stage are expert TP (1) x EP x the experts' own DP.
            if not whole(dp * tp * cp, ep):
                return False
        elif model.moe is not None and (not whole(model.moe.expert_hidden, tp) or not whole(dp * cp, ep)):
            return False
        # schedules.py: "should range in [PP, M]", and what the last group lacks of `group` may not be under PP
        group = pp if case.group is None else case.group
        if vpp > 1 and not pp <= group <= micro_batches:
            return False
        if vpp > 1 and 0 < micro_batches % group < pp:
            return False
        # arguments.py: context_parallel_size == prod(hierarchical_context_parallel_sizes)
        if case.levels is not None and cp != case.levels:
            return False
        if vpp > 1 and not case.overlap and pp <= 2:
            return False
        if cp > 1 and not whole(case.seq, 2 * cp):
            return False
        return not sp or whole(case.seq, cp * tp)
    # torchtitan: op is dp_shard * cp, so replicas = dp * cp / op
    if model.mla is None and not whole(model.n_kv_heads, tp):
        return False
    if not whole(op, cp):
        return False
    # parallelize.py: "DDP has not supported > 1D parallelism"
    if op == 1 and dp > 1 and tp * pp > 1:
        return False
    if model.n_dense and not whole(model.ffn_hidden, tp):
        return False
    if ep > 1:
        # parallel_dims.py of v0.2.2: the mesh (pp, dp_replicate, efsdp, ep, etp) holds every rank once
        dp_shard, etp = op // cp, 1 if case.whole_experts else tp
        efsdp = dp_shard * cp * tp // (etp * ep)
        if pp * (dp // dp_shard) * efsdp * ep * etp != case.world:
            return False
        # and of v0.2.0, with the two values of etp that it knows
        if case.before_v021 and etp == tp and not whole(ep, cp):
            return False
        if case.before_v021 and etp == 1 and not whole(ep, cp * tp):
            return False
    # torch, schedules.py: Schedule1F1B wants a micro-batch a stage, ScheduleInterleaved1F1B rounds of one size.
    if case.schedule == "1f1b" and vpp == 1 and micro_batches < pp:
        return False
    rounds = micro_batches // pp if micro_batches >= pp else 1
    if vpp > 1 and not whole(micro_batches, rounds):
        return False
    return whole(case.seq, tp * 2 * cp)


def stated(case: Case) -> TrainingConfig:
    rules = TrainingRules(
        framework=frameworks.FRAMEWORKS[case.framework],
        seq_length=case.seq,
        parallel_optimizer=case.shard,
        vocab_parallel=case.vocab_parallel,
        expert_tensor_parallel=not case.whole_experts,
        core_models=case.core_models,
        flash_attention=case.flash,
        overlap_p2p=case.overlap,
        ulysses_degree=case.ulysses,
        repeats_kv_heads=case.repeats_kv,
        ep_includes_cp=case.before_v021,
        context_levels=case.levels,
    )
    schedule = ScheduleSpec(case.schedule, group_size=case.group)
    return job(case.model, Strategy(1, 1, 1), rules, schedule=schedule, mtp_counted=case.mtp_counted)


def settled(case: Case) -> tuple[SearchContext, SearchOptions]:
    options = SearchOptions(
        world_size=case.world, gbs=case.gbs, search=case.dimensions, max_expert_parallel=case.max_ep
    )
    return SearchContext.settle(stated(case), DEVICE, options), options


def legal_of(space: StrategySpace, rules: Sequence[Rule], context: SearchContext) -> list[Strategy]:
    """What the rules leave; nothing when they empty the space, which they say by an error."""
    try:
        return list(apply_rules(space, rules, context).table)
    except InputError:
        return []


FRAMEWORKS = ["mindformers", "megatron", "torchtitan"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_legal_set_equals_that_of_a_slow_loop_in_eighty_small_cases(framework: str) -> None:
    sizes = []
    for case in cases(framework):
        context, options = settled(case)
        legal = legal_of(build_space(context, options), select_rules(context, NO_EXPERIENCE), context)
        slow = set(slow_legal(case))
        assert set(legal) == slow, case
        assert len(legal) == len(slow), f"a strategy twice in {case}"
        sizes.append(len(slow))
    assert len([size for size in sizes if size >= 5]) >= 40, "most cases should leave something to compare"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_two_thousand_stated_jobs_are_legal_where_the_framework_s_own_checks_pass(framework: str) -> None:
    """A single file is judged as a search judges it, and as the slow loop says."""
    draw = random.Random(f"stated jobs of {framework}")
    legal = 0
    for case in cases(framework):
        case = replace(case, max_ep=10**9)
        config, model = stated(case), case.model
        for _ in range(25):
            dp, tp, pp = (draw.choice([1, 1, 2, 2, 3, 4]) for _ in range(3))
            ep, cp = draw.choice([1, 1, 2, 4]), draw.choice([1, 1, 1, 2])
            vpp, mbs = draw.choice([1, 1, 1, 2, 3]), draw.choice([1, 2])
            sp, micro_batches = tp > 1 and draw.random() < 0.9, draw.choice([2, 4, 6, 8, 12])
            op = draw.choice([dp * cp if case.shard else 1, 1])
            strategy = Strategy(dp, tp, pp, ep if model.moe else 1, cp, op, sp, vpp, mbs, micro_batches)
            here = replace(case, world=strategy.world_size, gbs=strategy.global_batch)
            expected = slow_verdict(here, dp, tp, pp, strategy.ep, cp, op, sp, vpp, mbs)
            broken = broken_rules(config.replace(strategy=strategy), DEVICE)
            assert (not broken) == expected, (here, strategy, [rule.name for rule in broken])
            legal += expected
    assert legal >= 200


@pytest.mark.parametrize(
    ("pin", "rule"), [({"op": 3}, "op-in-replicas"), ({"dp": 4, "tp": 4, "pp": 2, "op": 3}, "op-in-replicas")]
)
def test_a_pinned_optimizer_split_that_does_not_divide_the_replicas_is_refused(pin: dict, rule: str) -> None:
    options = SearchOptions(world_size=32, gbs=32, fix=pin)
    context = SearchContext.settle(job(), DEVICE, options)
    with pytest.raises(InputError, match=rule):
        apply_rules(build_space(context, options), select_rules(context, NO_EXPERIENCE), context)


@pytest.mark.parametrize(("ep", "fits"), [(1, True), (2, True), (4, True), (8, False)])
def test_experts_split_over_a_part_of_tp_leave_the_rest_to_ep(ep: int, fits: bool) -> None:
    """parallel_state.py of Megatron-LM: expert TP x EP x PP divides the ranks; TP 4 and expert TP 2 on 8 ranks."""
    model = ModelSpec("tiny", 4, 64, 8, 8, 8, 48, 96, moe=MoeSpec(8, 2, 32))
    rules = TrainingRules(framework=frameworks.MEGATRON, seq_length=32, expert_tensor_parallel=True, expert_ways=2)
    options = SearchOptions(world_size=8, gbs=16, fix={"dp": 2, "tp": 4, "pp": 1, "ep": ep})
    context = SearchContext.settle(job(model, Strategy(1, 1, 1), rules), DEVICE, options)
    space, rules_asked = build_space(context, options), select_rules(context, NO_EXPERIENCE)
    assert bool(legal_of(space, rules_asked, context)) is fits


def test_schedules_of_a_v_have_two_chunks_a_stage() -> None:
    """torch.distributed.pipelining.schedules: "ZBV requires exactly 2 stages per rank"."""
    rules = TrainingRules(framework=frameworks.TORCHTITAN, seq_length=64)
    config = job(LLAMA2_7B, Strategy(1, 1, 1), rules, schedule=ScheduleSpec("zbv"))
    context = SearchContext.settle(config, DEVICE, SearchOptions(world_size=8, gbs=64))
    table = StrategyTable.from_strategies([Strategy(1, 1, 8, vpp=vpp, micro_batches=64) for vpp in (1, 2, 3)])
    (asked,) = [rule for rule in LEGALITY_RULES if rule.name == "zero-bubble-v-two-chunks"]
    assert judge(asked, table, context).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("own", "replicas", "split"),
    [(1, 8, 8), (4, 8, 4), (4, 6, 6), (16, 8, 8)],
)
def test_an_optimizer_split_is_the_file_s_where_it_is_smaller_and_fits_else_whole(
    own: int, replicas: int, split: int
) -> None:
    config = job(LLAMA2_7B, Strategy(8, 1, 1, cp=2, op=own))
    context = SearchContext.settle(config, DEVICE, SearchOptions(world_size=16, gbs=64))
    assert split_by_rule(np.array([replicas]), context).tolist() == [split]
    # Context ranks hold replicas too: dp 4 and cp 2 are eight of them.
    asked = with_ruled_splits(Strategy(replicas // 2, 1, 1, cp=2), context, SearchOptions())
    assert (asked.op, asked.sp) == (split, False)
    assert with_ruled_splits(Strategy(replicas // 2, 2, 1), context, SearchOptions()).sp is True


def test_a_pinned_dimension_and_a_bound_select_from_the_same_legal_set() -> None:
    config = job()
    full = SearchOptions(world_size=64, gbs=64, search=("dp", "tp", "pp", "ep", "cp", "mbs"))
    narrow = replace(full, fix={"tp": 4}, bounds={"pp": (2, 8), "mbs": (1, 2)})

    def legal(options: SearchOptions) -> set[Strategy]:
        context = SearchContext.settle(config, DEVICE, options)
        return set(apply_rules(build_space(context, options), select_rules(context, NO_EXPERIENCE), context).table)

    expected = {s for s in legal(full) if s.tp == 4 and 2 <= s.pp <= 8 and s.mbs <= 2}
    assert len(expected) > 10
    assert legal(narrow) == expected


def test_a_pinned_micro_batch_number_frees_the_micro_batch_size() -> None:
    options = SearchOptions(world_size=64, gbs=256, fix={"micro_batches": 16})
    context = SearchContext.settle(job(), DEVICE, options)
    legal = list(apply_rules(build_space(context, options), select_rules(context, NO_EXPERIENCE), context).table)
    assert {s.micro_batches for s in legal} == {16}
    assert len({s.mbs for s in legal}) > 1
    assert all(s.global_batch == 256 for s in legal)


def test_op_follows_the_file_where_it_sets_a_smaller_split_that_fits() -> None:
    config = job(strategy=Strategy(16, 4, 16, 8, op=8, micro_batches=64))
    options = SearchOptions(gbs=1024)
    context = SearchContext.settle(config, DEVICE, options)
    legal = list(apply_rules(build_space(context, options), select_rules(context), context).table)
    assert {s.op for s in legal if s.dp * s.cp % 8 == 0} == {8}
    assert all(s.op == s.dp * s.cp for s in legal if s.dp * s.cp % 8)


REPOSITORIES = {
    "mindformers": ("MindFormers ", "MindSpore "),
    "megatron": ("Megatron-LM ", "MindSpeed-LLM ", "MindSpeed "),
    "torchtitan": ("torchtitan ", "torch "),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_rule_of_a_framework_cites_a_line_of_its_code_or_of_its_library_s(framework: str) -> None:
    own = [rule for rule in LEGALITY_RULES if framework in rule.frameworks]
    assert own
    for rule in own:
        cited = [part for part in rule.source.split("; ") if part.startswith(REPOSITORIES[framework])]
        assert any(re.search(r"\.py:\d+|\.cc, \w+", part) for part in cited), rule.name
        assert rule.source in list_rules()


@pytest.mark.parametrize(
    ("rule", "layer"),
    [
        ("mamba-by-tp-cp", LayerSpec("other", mamba=MambaSpec(512, 24, 16, n_groups=6))),
        ("mamba-by-tp-cp", LayerSpec("other", mamba=MambaSpec(512, 32, 16, n_groups=4))),
        ("linear-heads-by-tp-cp", LayerSpec("other", linear=LinearAttentionSpec("gdn", 6, 12, 8, 8))),
    ],
)
def test_heads_of_mamba_and_linear_attention_go_to_every_rank(rule: str, layer: LayerSpec) -> None:
    """By Megatron's own asserts, one strategy at a time."""
    attention = LayerSpec("attn", AttentionSpec(48, 48, 8), mlp=MlpSpec(96))
    model = ModelSpec("tiny", 4, 48, 48, 48, 8, 96, 96, kinds=(attention, layer), pattern="2 x (1 attn, 1 other)")
    table = StrategyTable.from_strategies(
        [Strategy(1, tp, 1, cp=cp) for tp in (1, 2, 3, 4, 6, 8, 12) for cp in (1, 2, 3, 4, 6)]
    )
    config = read_config(ROOT / "config" / "pretrain_llama3_70b.sh").replace(model=model)
    context = SearchContext.settle(config, Registry.load().device("h100-80g"), SearchOptions())
    (asked,) = [each for each in LEGALITY_RULES if each.name == rule]
    assert asked.concerns(context)

    def passes(tp: int, cp: int) -> bool:
        if layer.linear is not None:
            return layer.linear.key_heads % (tp * cp) == 0 and layer.linear.value_heads % (tp * cp) == 0
        assert layer.mamba is not None
        heads, groups = layer.mamba.n_heads, layer.mamba.n_groups
        if heads % tp or groups % tp or heads // tp % cp:
            return False
        local = groups // tp
        return cp % local == 0 if local < cp else local % cp == 0

    told = judge(asked, table, context).tolist()
    assert told == [passes(strategy.tp, strategy.cp) for strategy in table]
    assert True in told and False in told
