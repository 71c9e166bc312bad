"""Start rules of experts: the overlap of their exchange, their dispatchers, TP's ranks that have experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.mindspeed.start_rule import (
    CORE,
    CORE_ALONE,
    EXTEND,
    LAYOUT,
    LLM,
    LLM_ALONE,
    SINCE,
    StartRule,
    apart,
    dispatcher,
    expert_tp,
    has_adapters,
    is_dual_pipe,
    needs,
    own_ep,
    reduces_beside,
)
from taylor.parsers.megatron.own_plan import PER_CHUNK, PER_RANK
from taylor.parsers.megatron.start_flags import EMPTY_CHUNK
from taylor.parsers.stated_flags import StatedFlags

_FB, _OVERLAP, _GATHERED, _MC2 = (
    "moe-fb-overlap", "moe-alltoall-overlap-comm", "moe-allgather-overlap-comm", "moe-alltoall-mc2"
)  # fmt: skip
_FB_CODE, _A2A_CODE = f"{CORE}moe/fb_overlap.py", f"{CORE}moe/moe_alltoall_overlap.py"
_GATHER_CODE, _MC2_CODE = f"{CORE}moe/moe_allgather_overlap.py", f"{CORE}moe/moe_alltoall_mc2.py"


def _has_no_order(table: StrategyTable, flags: StatedFlags) -> Any:
    """Mask of jobs that request neither one stage nor several chunks a stage in the flags that the overlap reads."""
    chunks = (table.vpp > 1) & (flags.on(LAYOUT) | (not flags.on(PER_RANK)))
    return (table.pp > 1) & ~chunks


_OF_OVERLAP = [
    *apart(_FB, [_OVERLAP], f"{_FB_CODE}:76"),
    StartRule(
        "moe-fb-overlap-without-overlapped-reduction",
        "--moe-fb-overlap does not go with overlapped gradient reduction",
        lambda t, f, c: f.on(_FB) & reduces_beside(f),
        "overlap-grad-reduce",
        f"{_FB_CODE}:77", SINCE,
        "leave out --overlap-grad-reduce, or the overlap",
    ),
    StartRule(
        "moe-fb-overlap-without-zero-memory-num-layers",
        "--moe-fb-overlap does not go with --moe-zero-memory-num-layers",
        lambda t, f, c: f.on(_FB) & (f.number("moe-zero-memory-num-layers") != 0),
        "moe-zero-memory-num-layers",
        f"{_FB_CODE}:79", SINCE,
        "leave out --moe-zero-memory-num-layers",
    ),
    *apart(_FB, ["automated-pipeline"], f"{_FB_CODE}:81", programs=CORE_ALONE),
    *apart(_FB, ["recompute-in-bubble"], f"{_FB_CODE}:82"),
    StartRule(
        "moe-fb-overlap-without-recompute-in-advance",
        f"--moe-fb-overlap does not go with --recompute-in-advance and --{PER_CHUNK} 1",
        lambda t, f, c: f.on(_FB) & f.on("recompute-in-advance") & (f.number(PER_CHUNK) == 1),
        "recompute-in-advance",
        f"{_FB_CODE}:83", SINCE,
        "leave out --recompute-in-advance",
    ),
    *apart(_FB, ["use-legacy-models"], f"{_FB_CODE}:84"),
    *apart(_FB, [EXTEND], f"{_FB_CODE}:85"),
    *apart(_FB, ["swap-attention"], f"{_FB_CODE}:86"),
    needs(_FB, "moe-grouped-gemm", f"{_FB_CODE}:87"),
    StartRule(
        "moe-fb-overlap-dispatcher",
        "--moe-fb-overlap needs --moe-token-dispatcher-type alltoall",
        lambda t, f, c: f.on(_FB) & (dispatcher(f) in ("allgather", "alltoall_seq")),
        "moe-token-dispatcher-type",
        f"{_FB_CODE}:88", SINCE,
        "write --moe-token-dispatcher-type alltoall",
    ),
    StartRule(
        "moe-fb-overlap-spreads-experts",
        "--moe-fb-overlap needs whole experts (--expert-tensor-parallel-size 1) spread over ep > 1",
        lambda t, f, c: f.on(_FB) & ((expert_tp(t, f) != 1) | (own_ep(t, f) == 1)),
        "expert-model-parallel-size",
        f"{_FB_CODE}:91", SINCE,
        "write --expert-tensor-parallel-size 1 and an expert parallelism above 1",
        ("ep", "tp"),
    ),
    needs("moe-unperm2-mem-optim-swap", _FB, f"{_FB_CODE}:96"),
    StartRule(
        "moe-fb-overlap-order",
        f"--moe-fb-overlap needs one stage, --{PER_CHUNK} (or a layout) with several chunks a stage, or "
        "--schedules-method dualpipev",
        lambda t, f, c: f.on(_FB) & (not is_dual_pipe(c)) & _has_no_order(t, f),
        "schedules-method",
        f"{_FB_CODE}:101-107", SINCE,
        "write --schedules-method dualpipev, or virtual stages",
        ("vpp", "pp"),
    ),
    StartRule(
        "moe-fb-overlap-two-rounds",
        "under --moe-fb-overlap interleaving has 2 * pp micro-batches or more",
        lambda t, f, c: f.on(_FB) & (not is_dual_pipe(c)) & (t.vpp > 1) & (t.micro_batches // t.pp <= 1),
        "global-batch-size",
        f"{_FB_CODE}:109-115", SINCE,
        "raise --global-batch-size",
        ("gbs", "pp"),
    ),
    StartRule(
        "moe-fb-overlap-fills-chunks",
        "under --moe-fb-overlap a layout puts a layer on every chunk",
        lambda t, f, c: f.on(_FB) & (EMPTY_CHUNK in f.facts),
        LAYOUT,
        f"{_FB_CODE}:64", "26.1.0_core_r0.12.1 to master",
        "write a layout with a layer on every chunk",
    ),
    StartRule(
        "swapped-attention-output-order",
        "--mla-swap-core-attn-out needs --schedules-method dualpipev and --moe-fb-overlap",
        lambda t, f, c: f.on("multi-latent-attention") & f.on("mla-swap-core-attn-out")
        & ((not is_dual_pipe(c)) | (not f.on(_FB))),
        "mla-swap-core-attn-out",
        f"{LLM}transformer/multi_latent_attention/mla_feature.py:95-99", "2.2.0 to master",
        "leave out --mla-swap-core-attn-out, or write both",
        programs=LLM_ALONE,
    ),
]  # fmt: skip


def _sequential(flags: StatedFlags) -> bool:
    return flags.on(_OVERLAP) and dispatcher(flags) == "alltoall_seq"


_OF_DISPATCH = [
    *apart(_OVERLAP, ["use-ascend-mc2"], f"{_A2A_CODE}:23"),
    StartRule(
        f"{_OVERLAP}-dispatcher",
        f"--{_OVERLAP} needs the dispatcher alltoall or alltoall_seq",
        lambda t, f, c: f.on(_OVERLAP) & (dispatcher(f) not in ("alltoall", "alltoall_seq")),
        "moe-token-dispatcher-type",
        f"{_A2A_CODE}:24", SINCE,
        "write --moe-token-dispatcher-type alltoall",
    ),
    StartRule(
        f"{_OVERLAP}-spreads-experts",
        f"--{_OVERLAP} needs ep > 1",
        lambda t, f, c: f.on(_OVERLAP) & (own_ep(t, f) == 1),
        "expert-model-parallel-size",
        f"{_A2A_CODE}:27", SINCE,
        "spread the experts",
        ("ep",),
    ),
    needs(_OVERLAP, "moe-grouped-gemm", f"{_A2A_CODE}:31, :42"),
    StartRule(
        f"{_OVERLAP}-without-{EXTEND}",
        f"--{_OVERLAP} with --{EXTEND} needs the dispatcher alltoall_seq",
        lambda t, f, c: f.on(_OVERLAP) & f.on(EXTEND) & (dispatcher(f) == "alltoall"),
        "moe-token-dispatcher-type",
        f"{_A2A_CODE}:33", SINCE,
        "write --moe-token-dispatcher-type alltoall_seq",
    ),
    StartRule(
        f"{_OVERLAP}-permutation",
        f"--{_OVERLAP} with the dispatcher alltoall_seq needs --moe-permutation-async-comm",
        lambda t, f, c: _sequential(f) & (not f.on("moe-permutation-async-comm")),
        "moe-permutation-async-comm",
        f"{_A2A_CODE}:40", SINCE,
        "add --moe-permutation-async-comm",
    ),
    StartRule(
        f"{_OVERLAP}-tensor-parallel",
        f"--{_OVERLAP} with the dispatcher alltoall_seq and tp > 1 needs --{EXTEND}",
        lambda t, f, c: _sequential(f) & (not f.on(EXTEND)) & (t.tp > 1),
        "tensor-model-parallel-size",
        f"{_A2A_CODE}:44", SINCE,
        f"add --{EXTEND}, or write the dispatcher alltoall",
        ("tp",),
    ),
    *apart(_GATHERED, ["use-ascend-mc2"], f"{_GATHER_CODE}:23"),
    StartRule(
        f"{_GATHERED}-dispatcher",
        f"--{_GATHERED} needs the dispatcher allgather",
        lambda t, f, c: f.on(_GATHERED) & (dispatcher(f) != "allgather"),
        "moe-token-dispatcher-type",
        f"{_GATHER_CODE}:24", SINCE,
        "write --moe-token-dispatcher-type allgather",
    ),
    needs(_GATHERED, "moe-permutation-async-comm", f"{_GATHER_CODE}:27"),
    needs(_GATHERED, "moe-grouped-gemm", f"{_GATHER_CODE}:29"),
    *apart(_MC2, ["use-ascend-mc2", _OVERLAP, _GATHERED, _FB, EXTEND], f"{_MC2_CODE}:22-26",
           releases="26.0.0_core_r0.12.1 to master"),
    StartRule(
        f"{_MC2}-dispatcher",
        f"--{_MC2} needs the dispatcher alltoall or alltoall_seq",
        lambda t, f, c: f.on(_MC2) & (dispatcher(f) not in ("alltoall", "alltoall_seq")),
        "moe-token-dispatcher-type",
        f"{_MC2_CODE}:28", "26.0.0_core_r0.12.1 to master",
        "write --moe-token-dispatcher-type alltoall",
    ),
    StartRule(
        f"{_MC2}-tensor-parallel",
        f"--{_MC2} has tp = 1 with the dispatcher alltoall_seq, whole experts with alltoall",
        lambda t, f, c: f.on(_MC2) & (
            ((dispatcher(f) == "alltoall_seq") & (t.tp != 1))
            | ((dispatcher(f) == "alltoall") & (expert_tp(t, f) != 1))
        ),
        "expert-tensor-parallel-size",
        f"{_MC2_CODE}:33-38", "26.0.0_core_r0.12.1 to master",
        "write --expert-tensor-parallel-size 1",
        ("tp",),
    ),
    StartRule(
        f"{_MC2}-without-capacity",
        f"--{_MC2} with the dispatcher alltoall does not go with --moe-expert-capacity-factor",
        lambda t, f, c: f.on(_MC2) & (dispatcher(f) == "alltoall") & f.on("moe-expert-capacity-factor"),
        "moe-expert-capacity-factor",
        f"{_MC2_CODE}:39", "26.0.0_core_r0.12.1 to master",
        "leave out --moe-expert-capacity-factor",
    ),
    StartRule(
        "moe-permute-fusion-dispatcher",
        "--moe-permute-fusion does not go with the dispatcher allgather",
        lambda t, f, c: _fuses(f) & (dispatcher(f) == "allgather"),
        "moe-token-dispatcher-type",
        f"{CORE}fusions/fused_moe_permute.py:44", SINCE,
        "write --moe-token-dispatcher-type alltoall",
    ),
    StartRule(
        "moe-permute-fusion-pads",
        "--moe-permute-fusion with --moe-expert-capacity-factor needs --moe-pad-expert-input-to-capacity",
        lambda t, f, c: _fuses(f) & (_capacity(f) > 0) & (not f.on("moe-pad-expert-input-to-capacity")),
        "moe-pad-expert-input-to-capacity",
        f"{CORE}fusions/fused_moe_permute.py:49", SINCE,
        "add --moe-pad-expert-input-to-capacity",
    ),
]  # fmt: skip


def _fuses(flags: StatedFlags) -> bool:
    return flags.on("moe-permute-fusion", "use-fused-moe-token-permute-and-unpermute")


def _capacity(flags: StatedFlags) -> float:
    return flags.real("moe-expert-capacity-factor")


def _zero_memory(flags: StatedFlags) -> bool:
    return flags.text("moe-zero-memory", "disable") != "disable"


def _hot_experts(table: StrategyTable, flags: StatedFlags) -> Any:
    hot = flags.number("balanced-moe-hot-expert-num", 3)
    return (hot <= 0) | (hot > flags.number("num-experts", 1) // own_ep(table, flags))


_EXTEND_CODE, _BALANCED = f"{CORE}moe/tp_extend_ep.py", "balanced-moe-experts"

_OF_EXPERTS = [
    StartRule(
        f"{EXTEND}-divides-experts",
        f"under --{EXTEND} tp * ep divides the experts",
        lambda t, f, c: f.on(EXTEND) & (f.number("num-experts", 1) % (t.tp * own_ep(t, f)) != 0),
        "expert-model-parallel-size",
        f"{_EXTEND_CODE}:22", "1.0.RC3 to master",
        "change tp or ep",
        ("ep", "tp"),
    ),
    needs(EXTEND, "moe-permutation-async-comm", f"{_EXTEND_CODE}:24", releases="1.0.RC3 to master"),
    needs(EXTEND, "moe-grouped-gemm", f"{_EXTEND_CODE}:24", releases="1.0.RC3 to master"),
    *apart(EXTEND, ["moe-expert-capacity-factor"], f"{_EXTEND_CODE}:27", releases="1.0.RC3 to master"),
    needs("gemm-gradient-accumulation-fusion", "moe-grouped-gemm", f"{CORE}moe/gmm.py:17",
          releases="1.0.RC3 to master"),
    StartRule(
        "fix-router-spreads-experts",
        "--fix-router needs ep > 1",
        lambda t, f, c: f.on("fix-router") & (own_ep(t, f) <= 1),
        "expert-model-parallel-size",
        f"{CORE}moe/moe_fix_router.py:17", "2.3.0_core_r0.12.1 to master",
        "spread the experts",
        ("ep",),
        CORE_ALONE,
    ),
    StartRule(
        "zero-memory-num-layers",
        "--moe-zero-memory-num-layers is from 0 to the layers of a stage",
        lambda t, f, c: f.on("moe-zero-memory-num-layers") & _beyond_stage(t, f),
        "moe-zero-memory-num-layers",
        f"{CORE}moe/moe_zero_memory.py:29", "1.0.0 to master",
        "write a number up to the layers of a stage",
    ),
    StartRule(
        "zero-memory-needs-level",
        "--moe-zero-memory-num-layers needs --moe-zero-memory",
        lambda t, f, c: f.on("moe-zero-memory-num-layers") & (not _zero_memory(f)),
        "moe-zero-memory-num-layers",
        f"{CORE}moe/moe_zero_memory.py:31", "1.0.0 to master",
        "write --moe-zero-memory level0 or level1",
    ),
    StartRule(
        "zero-memory-needs-overlap",
        f"--moe-zero-memory needs --{_OVERLAP} or --{_FB}",
        lambda t, f, c: _zero_memory(f) & (not f.on(_OVERLAP, _FB)),
        "moe-zero-memory",
        f"{CORE}moe/moe_zero_memory.py:33", SINCE,
        f"add --{_OVERLAP} or --{_FB}",
    ),
    StartRule(
        "one-size-of-shared-experts",
        "--n-shared-experts and --moe-shared-expert-intermediate-size say the same",
        lambda t, f, c: _shared_sizes_differ(f),
        "moe-shared-expert-intermediate-size",
        f"{CORE}moe/shared_expert.py:18", SINCE,
        "leave out one of the two",
        programs=CORE_ALONE,
    ),
    StartRule(
        f"{_BALANCED}-hot-experts",
        "--balanced-moe-hot-expert-num is from 1 to the experts of a rank",
        lambda t, f, c: f.on(_BALANCED) & _hot_experts(t, f),
        "balanced-moe-hot-expert-num",
        f"{CORE}moe/balanced_moe.py:29-36", "2.2.0_core_r0.12.1 to master",
        "write a smaller number, or lower ep",
        ("ep",),
        CORE_ALONE,
    ),
    StartRule(
        f"{_BALANCED}-groups",
        "--trans-hot-expert-group-num is positive",
        lambda t, f, c: f.on(_BALANCED) & (f.number("trans-hot-expert-group-num", 1) <= 0),
        "trans-hot-expert-group-num",
        f"{CORE}moe/balanced_moe.py:45", "2.2.0_core_r0.12.1 to master",
        "write a positive number",
        programs=CORE_ALONE,
    ),
    needs(_BALANCED, _FB, f"{CORE}moe/balanced_moe.py:74", programs=CORE_ALONE,
          releases="2.2.0_core_r0.12.1 to master"),
    needs(_BALANCED, "moe-grouped-gemm", f"{CORE}moe/balanced_moe.py:75", programs=CORE_ALONE,
          releases="2.2.0_core_r0.12.1 to master"),
    StartRule(
        f"{_BALANCED}-dispatcher",
        f"--{_BALANCED} needs the dispatcher alltoall",
        lambda t, f, c: f.on(_BALANCED) & (dispatcher(f) != "alltoall"),
        "moe-token-dispatcher-type",
        f"{CORE}moe/balanced_moe.py:76", "2.2.0_core_r0.12.1 to master",
        "write --moe-token-dispatcher-type alltoall",
        programs=CORE_ALONE,
    ),
    StartRule(
        f"{_BALANCED}-without-capacity",
        f"--{_BALANCED} does not go with --moe-expert-capacity-factor",
        lambda t, f, c: f.on(_BALANCED) & (_capacity(f) != 0),
        "moe-expert-capacity-factor",
        f"{CORE}moe/balanced_moe.py:78", "2.2.0_core_r0.12.1 to master",
        "leave out --moe-expert-capacity-factor",
        programs=CORE_ALONE,
    ),
    StartRule(
        "adapters-of-experts",
        "LoRA of a model with experts needs the dispatcher alltoall_seq",
        lambda t, f, c: has_adapters(f) & (f.number("num-experts") != 0) & (dispatcher(f) != "alltoall_seq"),
        "moe-token-dispatcher-type",
        f"{LLM}finetune/lora.py:62", "2.1.0 to master",
        "write --moe-token-dispatcher-type alltoall_seq",
        programs=LLM_ALONE,
    ),
    StartRule(
        f"lora-without-{EXTEND}",
        f"LoRA does not go with --{EXTEND}",
        lambda t, f, c: has_adapters(f) & f.on(EXTEND),
        EXTEND,
        f"{LLM}finetune/lora.py:65", "2.1.0 to master",
        f"leave out --{EXTEND}",
        programs=LLM_ALONE,
    ),
    StartRule(
        "capacity-dispatcher",
        "--moe-expert-capacity-factor does not go with the dispatcher allgather",
        lambda t, f, c: f.on("moe-expert-capacity-factor") & (dispatcher(f) == "allgather"),
        "moe-token-dispatcher-type",
        f"{LLM}moe/moe_router.py:54", "1.0.0 to master",
        "write --moe-token-dispatcher-type alltoall",
        programs=LLM_ALONE,
    ),
    StartRule(
        "capacity-balancing",
        "--moe-expert-capacity-factor goes with --moe-router-load-balancing-type aux_loss or none",
        lambda t, f, c: f.on("moe-expert-capacity-factor") & (_balancing(f) not in ("aux_loss", "none")),
        "moe-router-load-balancing-type",
        f"{LLM}moe/moe_router.py:60", "1.0.0 to master",
        "write aux_loss or none",
        programs=LLM_ALONE,
    ),
    StartRule(
        "group-limited-router",
        "--moe-router-load-balancing-type group_limited_greedy needs --moe-router-group-topk and "
        "--moe-router-topk-scaling-factor",
        lambda t, f, c: (_balancing(f) == "group_limited_greedy")
        & ((not f.on("moe-router-group-topk", "topk-group"))
           | (not f.on("moe-router-topk-scaling-factor", "routed-scaling-factor"))),
        "moe-router-group-topk",
        f"{LLM}moe/moe_router.py:69-73", "1.0.0 to master",
        "write both",
        programs=LLM_ALONE,
    ),
    StartRule(
        "group-limited-router-by-ep",
        "under group_limited_greedy --moe-router-group-topk is below ep",
        lambda t, f, c: (_balancing(f) == "group_limited_greedy") & (_groups(f) >= own_ep(t, f)),
        "moe-router-group-topk",
        f"{LLM}moe/moe_router.py:74", "1.0.0 to master",
        "raise ep, or lower --moe-router-group-topk",
        ("ep",),
        LLM_ALONE,
    ),
    StartRule(
        "dense-layers-within-a-stage",
        "--first-k-dense-replace is below the layers of a stage, num-layers // pp",
        lambda t, f, c: (f.number("first-k-dense-replace") > 0) & (
            (f.number("num-layers") <= f.number("first-k-dense-replace"))
            | ((t.pp > 1) & (f.number("first-k-dense-replace") >= f.number("num-layers") // t.pp))
        ),
        "first-k-dense-replace",
        f"{LLM}transformer/transformer_block.py:14-19", "2.1.0 to master",
        "ask for fewer stages",
        ("pp",),
        LLM_ALONE,
    ),
]  # fmt: skip


def _beyond_stage(table: StrategyTable, flags: StatedFlags) -> Any:
    count = flags.number("moe-zero-memory-num-layers")
    return (count < 0) | (count > flags.number("num-layers") // np.maximum(1, table.pp))


def _shared_sizes_differ(flags: StatedFlags) -> bool:
    shared, width = flags.number("n-shared-experts"), flags.number("moe-shared-expert-intermediate-size")
    each = flags.number("moe-ffn-hidden-size", flags.number("ffn-hidden-size"))
    return shared != 0 and width != 0 and width != shared * each


def _balancing(flags: StatedFlags) -> str:
    return flags.text("moe-router-load-balancing-type", "aux_loss")


def _groups(flags: StatedFlags) -> int:
    return flags.number("moe-router-group-topk", flags.number("topk-group"))


EXPERT_RULES = (*_OF_OVERLAP, *_OF_DISPATCH, *_OF_EXPERTS)
