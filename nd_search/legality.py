"""Legality rules: the refusals of the frameworks, each with its frameworks and the checks it represents."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.mindspeed.table import START_RULES
from taylor.nd_search.options import SearchContext
from taylor.nd_search.rule import LEGALITY, Mask, Rule
from taylor.nd_search.sources import SOURCES
from taylor.parsers.megatron.own_plan import PER_CHUNK
from taylor.parsers.megatron.start_flags import MINDSPEED_LLM
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.layers import LinearAttentionSpec, MambaSpec
from taylor.register.trainers import ALL_FRAMEWORKS


def _is_moe(context: SearchContext) -> bool:
    return context.model.moe is not None


def _splits_experts(context: SearchContext) -> bool:
    return _is_moe(context) and not context.rules.whole_experts


def _has_whole_experts(context: SearchContext) -> bool:
    return _is_moe(context) and context.rules.whole_experts


def _has_whole_experts_of_own_classes(context: SearchContext) -> bool:
    return _has_whole_experts(context) and not context.rules.core_models


def _is_dense(context: SearchContext) -> bool:
    return context.model.moe is None


def _has_kv_groups(context: SearchContext) -> bool:
    return context.model.mla is None


def _n_experts(context: SearchContext) -> int:
    assert context.model.moe is not None
    return context.model.moe.n_experts


def _expert_hidden(context: SearchContext) -> int:
    assert context.model.moe is not None
    return context.model.moe.expert_hidden


def _ulysses(table: StrategyTable, context: SearchContext) -> NDArray[np.int64]:
    """Ranks of a context group that exchange heads, int64 [n]."""
    degree = context.rules.ulysses_degree
    stated = table.cp if degree is None else np.where(table.cp > 1, degree, 1)
    return np.where(table.ulysses > 0, table.ulysses, stated)


def _exchanges_heads(context: SearchContext) -> bool:
    return context.rules.ulysses_degree != 1 or context.chooses_context


def _is_hybrid(context: SearchContext) -> bool:
    return context.rules.ulysses_degree not in (1, None)


def _sequence_cut(table: StrategyTable) -> NDArray[np.int64]:
    return table.cp * np.where(table.sp, table.tp, 1)


def _expert_tp(table: StrategyTable, context: SearchContext) -> NDArray[np.int64]:
    """Ranks over which TP splits an expert, int64 [n]."""
    if context.rules.expert_ways is not None:
        return np.full_like(table.tp, context.rules.expert_ways)
    return np.ones_like(table.tp) if context.rules.whole_experts else table.tp


def _experts_take_sharded_ranks(table: StrategyTable, context: SearchContext) -> Mask:
    # op = dp_shard * cp, the ranks over which parameters are sharded.
    return (table.ep == 1) | ((table.op * table.tp) % (table.ep * _expert_tp(table, context)) == 0)


def _experts_take_whole_contexts(table: StrategyTable, context: SearchContext) -> Mask:
    inner = table.cp * table.tp // _expert_tp(table, context)
    return (table.ep == 1) | (table.ep % inner == 0)


def _interleaved(context: SearchContext) -> ScheduleSpec:
    """Schedule of the job's framework with several virtual stages."""
    return context.schedule.for_interleaves(2, context.rules.framework)


def _kv_groups_or_copies(table: StrategyTable, context: SearchContext) -> Mask:
    model, groups = context.model, context.model.n_kv_heads
    cut = (model.n_heads + 2 * groups) * model.head_dim % table.tp == 0
    return (groups % table.tp == 0) | ((table.tp % groups == 0) & cut)


def _kv_groups_or_copies_by_ulysses(table: StrategyTable, context: SearchContext) -> Mask:
    groups, ranks = context.model.n_kv_heads, _ulysses(table, context)
    return (groups % ranks == 0) | (ranks % groups == 0)


def _mamba_layers(context: SearchContext) -> list[MambaSpec]:
    model = context.model
    return [mamba for kind in model.body_counts if (mamba := model.layer(kind).mamba) is not None]


def _linear_layers(context: SearchContext) -> list[LinearAttentionSpec]:
    model = context.model
    return [linear for kind in model.body_counts if (linear := model.layer(kind).linear) is not None]


def _mamba_is_dealt_out(table: StrategyTable, context: SearchContext) -> Mask:
    """Heads to every rank of TP and CP; groups to those of TP, and either they or their copies to those of CP."""
    result: Mask = np.ones(len(table), dtype=bool)
    for mamba in _mamba_layers(context):
        groups = mamba.n_groups // table.tp
        shared = (groups % table.cp == 0) | (table.cp % np.maximum(groups, 1) == 0)
        result &= (mamba.n_heads % (table.tp * table.cp) == 0) & (mamba.n_groups % table.tp == 0) & shared
    return result


def _linear_heads_are_dealt_out(table: StrategyTable, context: SearchContext) -> Mask:
    result: Mask = np.ones(len(table), dtype=bool)
    for linear in _linear_layers(context):
        ranks = table.tp * table.cp
        result &= (linear.key_heads % ranks == 0) & (linear.value_heads % ranks == 0)
    return result


def _interleaves_two_stages(context: SearchContext) -> bool:
    """Return whether two stages interleave without overlap too.

    MindSpeed-LLM c77308a1 mindspeed_llm/features_manager/megatron_basic/training_basic.py:72-76 (1.0.0 to master)
    bypasses Megatron-LM's check for chunks that are counted by layers.
    """
    return MINDSPEED_LLM in context.flags.programs and context.flags.on(PER_CHUNK)


def _with_frameworks(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Rules with the frameworks whose records name them, and with their sources."""
    return tuple(
        replace(
            rule,
            frameworks=tuple(name for name, framework in ALL_FRAMEWORKS.items() if rule.name in framework.legality),
            source=SOURCES[rule.name],
        )
        for rule in rules
    )


_LEGALITY: tuple[Rule, ...] = (
    Rule(
        "world-size",
        "dp * tp * pp * cp is the number of ranks",
        lambda t, c: t.dp * t.tp * t.pp * t.cp == c.world_size,
        LEGALITY,
        relax="give a --world_size that the pinned degrees multiply to",
        changes=("dp",),
    ),
    Rule(
        "heads-by-tp",
        "tp divides the attention heads",
        lambda t, c: c.model.n_heads % t.tp == 0,
        LEGALITY,
        relax="search smaller or other tp",
        changes=("tp",),
    ),
    Rule(
        "kv-groups-by-tp",
        "tp divides the key/value groups",
        lambda t, c: c.model.n_kv_heads % t.tp == 0,
        LEGALITY,
        applies=_has_kv_groups,
        relax="search tp up to the key/value groups",
        changes=("tp",),
    ),
    Rule(
        "kv-groups-or-copies",
        "tp divides the key/value groups, or is a multiple of them (copied heads) and divides the width of q, k and v",
        _kv_groups_or_copies,
        LEGALITY,
        applies=_has_kv_groups,
        relax="search other tp",
        changes=("tp",),
    ),
    Rule(
        "mamba-by-tp-cp",
        "tp * cp divides Mamba's heads, tp its groups, and cp what is left of them or the other way round",
        _mamba_is_dealt_out,
        LEGALITY,
        applies=lambda c: any(mamba.dt_rank is None for mamba in _mamba_layers(c)),
        relax="search smaller tp or cp",
        changes=("tp", "cp"),
    ),
    Rule(
        "linear-heads-by-tp-cp",
        "tp * cp divides the heads of keys and of values of linear attention",
        _linear_heads_are_dealt_out,
        LEGALITY,
        applies=lambda c: bool(_linear_layers(c)),
        relax="search smaller tp or cp",
        changes=("tp", "cp"),
    ),
    Rule(
        "hidden-by-tp",
        "tp divides the hidden size",
        lambda t, c: c.model.hidden % t.tp == 0,
        LEGALITY,
        relax="search other tp",
        changes=("tp",),
    ),
    Rule(
        "mtp-projection-by-tp",
        "tp divides the hidden size, to which the MTP modules project",
        lambda t, c: c.model.hidden % t.tp == 0,
        LEGALITY,
        applies=lambda c: c.model.mtp_layers > 0,
        relax="search other tp",
        changes=("tp",),
    ),
    Rule(
        "ffn-by-tp",
        "tp divides the width of the MLP",
        lambda t, c: c.model.ffn_hidden % t.tp == 0,
        LEGALITY,
        applies=lambda c: c.model.n_dense > 0,
        relax="search other tp",
        changes=("tp",),
    ),
    Rule(
        "expert-ffn-by-tp",
        "the tp that splits an expert divides its width",
        lambda t, c: _expert_hidden(c) % _expert_tp(t, c) == 0,
        LEGALITY,
        applies=_splits_experts,
        relax="search other tp",
        changes=("tp",),
    ),
    Rule(
        "vocab-by-tp",
        "tp divides the vocabulary, over which the head is split and not padded",
        lambda t, c: c.model.vocab % t.tp == 0,
        LEGALITY,
        applies=lambda c: c.rules.core_models,
        relax="pad the vocabulary, or search other tp",
        changes=("tp",),
    ),
    Rule(
        "dense-without-ep",
        "a model without experts has ep = 1",
        lambda t, c: t.ep == 1,
        LEGALITY,
        applies=_is_dense,
        relax="do not pin ep",
        changes=("ep",),
    ),
    Rule(
        "experts-by-ep",
        "ep divides the experts",
        lambda t, c: _n_experts(c) % t.ep == 0,
        LEGALITY,
        applies=_is_moe,
        relax="search other ep",
        changes=("ep",),
    ),
    Rule(
        "max-expert-parallel",
        "ep is at most --max_expert_parallel",
        lambda t, c: t.ep <= c.max_expert_parallel,
        LEGALITY,
        applies=_is_moe,
        relax="raise --max_expert_parallel",
        changes=("ep",),
    ),
    Rule(
        "ep-in-dp-tp",
        "ep divides dp * tp, whose ranks it reuses",
        lambda t, c: (t.dp * t.tp) % t.ep == 0,
        LEGALITY,
        applies=_has_whole_experts_of_own_classes,
        relax="search smaller ep or pp",
        changes=("ep", "tp", "pp"),
    ),
    Rule(
        "ep-in-dp-cp",
        "ep, times the tp that splits an expert, divides dp * tp * cp, whose ranks it reuses",
        lambda t, c: (t.dp * t.tp * t.cp) % (t.ep * _expert_tp(t, c)) == 0,
        LEGALITY,
        applies=_splits_experts,
        relax="search smaller ep, tp or pp",
        changes=("ep", "tp", "pp"),
    ),
    Rule(
        "ep-in-dp-tp-cp",
        "ep divides dp * tp * cp, whose ranks it reuses (whole experts)",
        lambda t, c: (t.dp * t.tp * t.cp) % t.ep == 0,
        LEGALITY,
        applies=_has_whole_experts,
        relax="search smaller ep or pp",
        changes=("ep", "tp", "pp"),
    ),
    Rule(
        "ep-in-shards",
        "ep, times the tp that splits an expert, divides the sharded ranks it reuses (op * tp)",
        _experts_take_sharded_ranks,
        LEGALITY,
        applies=_is_moe,
        relax="search other ep, tp or cp",
        changes=("ep", "tp", "cp"),
    ),
    Rule(
        "ep-holds-cp",
        "ep is a multiple of cp, times tp where experts are whole",
        _experts_take_whole_contexts,
        LEGALITY,
        applies=lambda c: _is_moe(c) and c.rules.ep_includes_cp,
        relax="search other ep, tp or cp, or take keys that v0.2.1 dropped from the file",
        changes=("ep", "cp", "tp"),
    ),
    Rule(
        "ep-is-shard",
        "ep is the shard degree of hybrid sharding, without tp",
        lambda t, c: (t.ep == 1) | ((t.ep * t.cp == t.op) & (t.tp == 1)),
        LEGALITY,
        applies=_is_moe,
        relax="search other ep",
        changes=("ep", "op"),
    ),
    Rule(
        "op-in-replicas",
        "op divides dp * cp",
        lambda t, c: (t.dp * t.cp) % t.op == 0,
        LEGALITY,
        relax="do not pin op",
        changes=("op",),
    ),
    Rule(
        "op-holds-cp",
        "op is a multiple of cp: parameters are sharded over the context ranks too",
        lambda t, c: t.op % t.cp == 0,
        LEGALITY,
        relax="search other op",
        changes=("op",),
    ),
    Rule(
        "plain-replicas-alone",
        "replicas that shard no parameter have neither tp nor pp beside them",
        lambda t, c: (t.op > 1) | (t.dp == 1) | (t.tp * t.pp == 1),
        LEGALITY,
        relax="shard the parameters: data_parallel_shard_degree above 1",
        changes=("op",),
    ),
    Rule(
        "op-needs-parallel-optimizer",
        "op > 1 needs the parallel optimizer, which the file disables",
        lambda t, c: t.op == 1,
        LEGALITY,
        applies=lambda c: not (c.rules.parallel_optimizer or c.rules.parameter_shard),
        relax="enable the parallel optimizer in the file",
        changes=("op",),
    ),
    Rule(
        "sp-needs-tp",
        "sequence parallel needs tp > 1",
        lambda t, c: ~t.sp | (t.tp > 1),
        LEGALITY,
        relax="do not pin sp",
        changes=("sp", "tp"),
    ),
    Rule(
        "moe-sp-with-tp",
        "a model with experts has sequence parallel on where tp > 1",
        lambda t, c: t.sp | (t.tp == 1),
        LEGALITY,
        applies=lambda c: _is_moe(c) and c.rules.core_models,
        relax="do not pin sp=0, or search tp = 1",
        changes=("sp", "tp"),
    ),
    Rule(
        "sequence-by-cp-tp",
        "cp, times tp under sequence parallel, divides the sequence length",
        lambda t, c: c.rules.seq_length % _sequence_cut(t) == 0,
        LEGALITY,
        relax="search smaller cp or tp",
        changes=("seq", "tp", "cp"),
    ),
    Rule(
        "sequence-by-2cp-tp",
        "2 * cp (cp > 1, balanced halves), times tp under sequence parallel, divides the sequence length",
        lambda t, c: (
            (c.rules.seq_length % (np.where(t.cp > 1, 2, 1) * t.cp) == 0) & (c.rules.seq_length % _sequence_cut(t) == 0)
        ),
        LEGALITY,
        relax="search smaller cp or tp",
        changes=("seq", "tp", "cp"),
    ),
    Rule(
        "sequence-by-2cp-tp-always",
        "2 * cp * tp divides the sequence length",
        lambda t, c: c.rules.seq_length % (2 * t.cp * t.tp) == 0,
        LEGALITY,
        relax="search smaller cp or tp",
        changes=("seq", "tp", "cp"),
    ),
    Rule(
        "tokens-by-tp",
        "tp divides the tokens of a micro-batch, which sequence parallelism splits",
        lambda t, c: ~t.sp | (c.rules.seq_length * t.mbs % t.tp == 0),
        LEGALITY,
        relax="search smaller tp",
        changes=("mbs", "tp", "seq"),
    ),
    Rule(
        "context-without-sequence-parallel",
        "cp > 1 does not go with sequence parallelism over tp > 1",
        lambda t, c: (t.cp == 1) | (t.tp == 1) | ~t.sp,
        LEGALITY,
        relax="switch sequence parallelism off, or search cp = 1",
        changes=("cp", "tp"),
    ),
    Rule(
        "context-needs-flash",
        "cp > 1 needs flash attention, which the file disables",
        lambda t, c: t.cp == 1,
        LEGALITY,
        applies=lambda c: not c.rules.flash_attention,
        relax="enable flash attention in the file, or do not search cp",
        changes=("cp",),
    ),
    Rule(
        "heads-by-ulysses",
        "tp, times the context ranks that exchange heads (Ulysses), divides the attention heads",
        lambda t, c: (t.ulysses == 1) | (c.model.n_heads % (t.tp * _ulysses(t, c)) == 0),
        LEGALITY,
        applies=lambda c: _exchanges_heads(c) and c.rules.repeats_kv_heads,
        relax="search smaller cp or tp",
        changes=("cp", "tp"),
    ),
    Rule(
        "kv-groups-by-ulysses",
        "tp, times the context ranks that exchange heads (Ulysses), divides the key/value groups",
        lambda t, c: (t.cp == 1) | (t.ulysses == 1) | (c.model.n_kv_heads % (t.tp * _ulysses(t, c)) == 0),
        LEGALITY,
        applies=lambda c: _exchanges_heads(c) and not c.rules.repeats_kv_heads,
        relax="search smaller cp or tp",
        changes=("cp", "tp"),
    ),
    Rule(
        "kv-groups-or-copies-by-ulysses",
        "the context ranks that exchange heads (Ulysses) divide the key/value groups, or the groups divide them",
        _kv_groups_or_copies_by_ulysses,
        LEGALITY,
        applies=_exchanges_heads,
        relax="search smaller cp",
        changes=("cp",),
    ),
    Rule(
        "ulysses-in-context",
        "the context ranks that exchange heads (Ulysses) divide cp",
        lambda t, c: t.cp % _ulysses(t, c) == 0,
        LEGALITY,
        applies=_is_hybrid,
        relax="search other cp, or change the degree of Ulysses in the file",
        changes=("cp",),
    ),
    Rule(
        "ring-of-two",
        "beside Ulysses, the ring over the rest of cp has two ranks or more",
        lambda t, c: (t.cp == 1) | (t.ulysses > 0) | (t.cp > _ulysses(t, c)),
        LEGALITY,
        applies=_is_hybrid,
        relax="search larger cp, or change the degree of Ulysses in the file",
        changes=("cp",),
    ),
    Rule(
        "context-levels",
        "cp is what the file's sizes of context groups multiply to",
        lambda t, c: (t.ulysses > 0) | (t.cp == (c.rules.context_levels or 1)),
        LEGALITY,
        applies=lambda c: c.rules.context_levels is not None,
        relax="change or leave out --hierarchical-context-parallel-sizes in the file",
        changes=("cp",),
    ),
    Rule(
        "layers-fill-chunks",
        "pp * vpp is at most the number of layers",
        lambda t, c: t.pp * t.vpp <= c.layers,
        LEGALITY,
        relax="search smaller pp or vpp",
        changes=("vpp", "pp"),
    ),
    Rule(
        "gradients-whole-in-pipeline",
        "a pipeline has whole gradients and parameters: ZeRO-2 and ZeRO-3 have pp = 1",
        lambda t, c: t.pp == 1,
        LEGALITY,
        applies=lambda c: c.rules.gradient_shard or c.rules.parameter_shard,
        relax="write stage 1, or do not search pp",
        changes=("pp",),
    ),
    Rule(
        "untied-across-stages",
        "a model whose head is its embedding has pp = 1",
        lambda t, c: t.pp == 1,
        LEGALITY,
        applies=lambda c: c.model.tied_embedding,
        relax="do not search pp",
        changes=("pp",),
    ),
    Rule(
        "vpp-needs-pipeline",
        "vpp > 1 needs pp > 1",
        lambda t, c: (t.vpp == 1) | (t.pp > 1),
        LEGALITY,
        relax="do not pin vpp",
        changes=("vpp", "pp"),
    ),
    Rule(
        "interleaving-without-overlap",
        "vpp > 1 needs pp > 2 where transfers do not overlap (the file's --no-overlap-p2p-communication)",
        lambda t, c: (t.vpp == 1) | (t.pp > 2) | ((t.pp == 2) & _interleaves_two_stages(c)),
        LEGALITY,
        applies=lambda c: not c.rules.overlap_p2p,
        relax="take that flag from the file, or search other pp or vpp",
        changes=("vpp", "pp"),
    ),
    Rule(
        "zero-bubble-v-two-chunks",
        "a V-shaped schedule has two chunks a stage: vpp = 2",
        lambda t, c: t.vpp == 2,
        LEGALITY,
        applies=lambda c: c.schedule.v_shape,
        relax="choose another schedule, or do not search vpp",
        changes=("vpp",),
    ),
    Rule(
        "gpipe-one-chunk",
        "gpipe has one chunk a stage: vpp = 1",
        lambda t, c: t.vpp == 1,
        LEGALITY,
        applies=lambda c: c.schedule.traits.keeps_all,
        relax="choose another schedule, or do not search vpp",
        changes=("vpp",),
    ),
    Rule(
        "schedule-needs-pipeline",
        "this schedule needs pp > 1",
        lambda t, c: t.pp > 1,
        LEGALITY,
        applies=lambda c: c.schedule.traits.needs_pipeline,
        relax="choose another schedule, or do not pin pp",
        changes=("pp",),
    ),
    Rule(
        "batch-by-dp",
        "dp * mbs divides the global batch: micro_batches is a whole number",
        lambda t, c: t.dp * t.mbs * t.micro_batches == c.gbs,
        LEGALITY,
        relax="change --gbs",
        changes=("gbs",),
    ),
    Rule(
        "micro-batches-fill-zero-bubble",
        "a V schedule has 2 * pp - 1 micro-batches, and 2 * pp under DualPipeV of torch or core models of MindFormers",
        lambda t, c: t.micro_batches >= c.rules.least_micro_batches(c.schedule, t.pp),
        LEGALITY,
        applies=lambda c: c.schedule.v_shape,
        relax="raise --gbs, or search smaller pp, dp or mbs",
        changes=("gbs", "pp"),
    ),
    Rule(
        "micro-batches-fill-warm-up",
        "1F1B has at least pp - 1 micro-batches",
        lambda t, c: t.micro_batches >= t.pp - 1,
        LEGALITY,
        applies=lambda c: not c.schedule.traits.keeps_all,
        relax="raise the batch, or search smaller pp, dp or mbs",
        changes=("gbs", "pp"),
    ),
    Rule(
        "micro-batches-fill-1f1b",
        "1F1B has at least as many micro-batches as stages",
        lambda t, c: (t.vpp > 1) | (t.micro_batches >= t.pp),
        LEGALITY,
        applies=lambda c: not c.schedule.traits.keeps_all,
        relax="raise --gbs, or search smaller pp, dp or mbs",
        changes=("gbs", "pp"),
    ),
    Rule(
        "micro-batches-fill-pipeline",
        "a pipeline of any schedule has at least as many micro-batches as stages",
        lambda t, c: (t.pp == 1) | (t.micro_batches >= t.pp),
        LEGALITY,
        relax="raise --gbs, or search smaller pp, dp or mbs",
        changes=("gbs", "pp"),
    ),
    Rule(
        "micro-batches-fill-interleaving",
        "interleaving has at least as many micro-batches as stages",
        lambda t, c: (t.vpp == 1) | (t.micro_batches >= t.pp),
        LEGALITY,
        applies=lambda c: _interleaved(c).traits.low_memory_switch,
        relax="raise --gbs, or search smaller pp, dp or mbs",
        changes=("gbs", "pp", "vpp"),
    ),
    Rule(
        "micro-batches-in-rounds",
        "with vpp > 1 the micro-batches come in groups of pp, or of the size in the file where that is at least pp; "
        "the remainder is 0 or at least pp",
        lambda t, c: (t.vpp == 1) | _interleaved(c).fits_rounds(t.pp, t.micro_batches),
        LEGALITY,
        relax="change --gbs, or search vpp = 1",
        changes=("gbs", "pp", "vpp"),
    ),
    Rule(
        "pieces-fill-rounds",
        "seqvpp and seqsmartvpp have vpp of 2 or more, no more pieces of a sequence than pp, and as many pieces in all "
        "as pp; seqsmartvpp an even pp",
        lambda t, c: (t.vpp > 1) & c.schedule.fits_pieces(t.pp, t.micro_batches),
        LEGALITY,
        applies=lambda c: c.schedule.traits.piece_rounds,
        relax="choose another schedule, or other sequence splits, pp or vpp",
        changes=("vpp", "pp", "gbs"),
    ),
    Rule(
        "micro-batches-in-even-rounds",
        "under interleaving max(1, micro_batches // pp), the number of rounds, divides the micro-batches",
        lambda t, c: (t.vpp == 1) | (t.micro_batches % np.maximum(1, t.micro_batches // t.pp) == 0),
        LEGALITY,
        applies=lambda c: not c.schedule.v_shape,
        relax="change --gbs, or search vpp = 1",
        changes=("gbs", "pp", "vpp"),
    ),
)

LEGALITY_RULES = (*_with_frameworks(_LEGALITY), *(rule.as_rule() for rule in START_RULES))
