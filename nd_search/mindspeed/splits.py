"""Start rules of tensor and context parallelism: TP-2D, overlapped GEMMs, rings, Ulysses, gathered keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.mindspeed.start_rule import (
    CORE,
    CORE_ALONE,
    LLM,
    LLM_ALONE,
    SINCE,
    StartRule,
    apart,
    has_adapters,
    needs,
    own_ep,
)
from taylor.parsers.megatron.context import ALGORITHM, DEFAULT_ALGORITHM
from taylor.parsers.megatron.context import HYBRID as _HYBRID
from taylor.parsers.megatron.context import RING as _RING
from taylor.parsers.megatron.context import ULYSSES as _ULYSSES
from taylor.parsers.stated_flags import StatedFlags

_HYBRID_ADAPTIVE, _GATHERED, _MAMBA = "hybrid_adaptive_cp_algo", "kvallgather_cp_algo", "mamba_cp_algo"
_2D, _MC2, _COC, _UNALIGNED = "tp-2d", "use-ascend-mc2", "use-ascend-coc", "unaligned-linear"
_2D_CODE, _TE_CODE = f"{CORE}tensor_parallel/tp_2d.py", f"{CORE}megatron_basic/transformer_engine_basic.py"


def _mc2(flags: StatedFlags) -> bool:
    return flags.on(_MC2)


_OF_TENSOR = [
    StartRule(
        "tp-2d-without-sequence-parallel",
        "--tp-2d does not go with --sequence-parallel where tp > 1",
        lambda t, f, c: f.on(_2D) & f.on("sequence-parallel") & (t.tp > 1),
        "sequence-parallel",
        f"{_2D_CODE}:29", SINCE,
        "leave out --sequence-parallel",
        ("sp",),
    ),
    *apart(_2D, ["use-fused-rmsnorm"], f"{_2D_CODE}:30"),
    *apart(_2D, [_COC], f"{_2D_CODE}:32"),
    StartRule(
        "tp-2d-context-algorithm",
        "--tp-2d goes with --context-parallel-algo megatron_cp_algo or ulysses_cp_algo",
        lambda t, f, c: f.on(_2D) & (_algorithm(f) not in (_RING, _ULYSSES)),
        "context-parallel-algo",
        f"{_2D_CODE}:34", SINCE,
        "write megatron_cp_algo or ulysses_cp_algo",
    ),
    StartRule(
        "tp-2d-product",
        "under --tp-2d tp is tp-x * tp-y",
        lambda t, f, c: f.on(_2D) & (t.tp // max(1, f.number("tp-x", 1)) != f.number("tp-y", 1)),
        "tensor-model-parallel-size",
        f"{_2D_CODE}:39", "1.0.RC3 to master",
        "write --tp-x and --tp-y whose product is tp",
        ("tp",),
    ),
    StartRule(
        "tp-2d-without-expert-parallel",
        "--tp-2d does not go with experts that are spread: ep = 1",
        lambda t, f, c: f.on(_2D) & (own_ep(t, f) > 1),
        "expert-model-parallel-size",
        f"{_2D_CODE}:41", "1.0.RC3 to master",
        "leave out --tp-2d, or ask for ep = 1",
        ("ep",),
    ),
    *apart(_COC, [_MC2], f"{CORE}tensor_parallel/locl_coc.py:22, mc2.py:21"),
    StartRule(
        "use-ascend-mc2-splits-sequence",
        "--use-ascend-mc2 needs tp > 1 and --sequence-parallel",
        lambda t, f, c: _mc2(f) & (~t.sp | (t.tp == 1)),
        "sequence-parallel",
        f"{CORE}tensor_parallel/mc2.py:23", SINCE,
        "add --sequence-parallel, or leave out --use-ascend-mc2",
        ("sp", "tp"),
    ),
    *apart(_UNALIGNED, [_MC2, _2D, _COC], f"{CORE}tensor_parallel/unaligned_linear_feature.py:21-22, locl_coc.py:20",
           programs=CORE_ALONE),
    StartRule(
        "unaligned-linear-dense",
        "--unaligned-linear does not go with experts",
        lambda t, f, c: f.on(_UNALIGNED) & (f.number("num-experts") > 1),
        "num-experts",
        f"{CORE}tensor_parallel/unaligned_linear_feature.py:23", SINCE,
        "leave out --unaligned-linear",
        programs=CORE_ALONE,
    ),
    StartRule(
        "use-ascend-mc2-grouped-experts",
        "--use-ascend-mc2 with experts does not go with --moe-grouped-gemm",
        lambda t, f, c: _mc2(f) & (f.number("num-experts") != 0) & f.on("moe-grouped-gemm"),
        "moe-grouped-gemm",
        f"{LLM}transformer/transformer_block.py:20", "1.0.0 to master",
        "leave out --use-ascend-mc2",
        programs=LLM_ALONE,
    ),
    StartRule(
        "lora-without-use-ascend-coc",
        "LoRA does not go with --use-ascend-coc",
        lambda t, f, c: has_adapters(f) & f.on(_COC),
        _COC,
        f"{LLM}tensor_parallel/coc.py:12", "1.0.0 to master",
        "leave out --use-ascend-coc",
        programs=LLM_ALONE,
    ),
    StartRule(
        "engine-without-coc",
        "--transformer-impl transformer_engine does not go with --use-ascend-coc",
        lambda t, f, c: f.on(_COC) & (f.text("transformer-impl") == "transformer_engine"),
        "transformer-impl",
        f"{_TE_CODE}:88", "2.2.0_core_r0.12.1 to master",
        "write --transformer-impl local",
    ),
    StartRule(
        "engine-of-core-models",
        "--transformer-impl transformer_engine does not go with --use-legacy-models",
        lambda t, f, c: f.on("use-legacy-models") & (f.text("transformer-impl") == "transformer_engine"),
        "transformer-impl",
        f"{_TE_CODE}:92", "2.2.0_core_r0.12.1 to master",
        "write --transformer-impl local",
    ),
    StartRule(
        "use-ascend-mc2-recipe",
        "--use-ascend-mc2 with fp8 needs --fp8-recipe mxfp8",
        lambda t, f, c: _mc2(f) & f.on("fp8-format") & (f.text("fp8-recipe", "delayed") != "mxfp8"),
        "fp8-recipe",
        f"{_TE_CODE}:90", "26.0.0_core_r0.12.1 to master",
        "write --fp8-recipe mxfp8",
    ),
    StartRule(
        "fp8-needs-engine",
        "fp8 needs --transformer-impl transformer_engine",
        lambda t, f, c: f.on("fp8-format") & (f.text("transformer-impl") == "local"),
        "transformer-impl",
        f"{_TE_CODE}:86", "2.2.0_core_r0.12.1 to master",
        "write --transformer-impl transformer_engine",
    ),
    StartRule(
        "hif8-recipe",
        "--fp8-format hif8 needs --fp8-recipe tensorwise",
        lambda t, f, c: (f.text("fp8-format") == "hif8") & (f.text("fp8-recipe", "delayed") != "tensorwise"),
        "fp8-recipe",
        f"{_TE_CODE}:96", "2.2.0_core_r0.12.1 to master",
        "write --fp8-recipe tensorwise",
    ),
    needs("fp8-reuse-quantized-weight", "fp8-format", f"{_TE_CODE}:105", releases="26.0.0_core_r0.12.1 to master"),
    StartRule(
        "latent-overlap-order",
        "--mla-up-proj-tp-overlap needs --mla-mm-split and --sequence-parallel with tp > 1",
        lambda t, f, c: _latent(f) & f.on("mla-up-proj-tp-overlap") & ((not f.on("mla-mm-split")) | ~t.sp),
        "sequence-parallel",
        f"{LLM}transformer/multi_latent_attention/mla_feature.py:81-85", "2.1.0 to master",
        "add both, or leave out --mla-up-proj-tp-overlap",
        ("sp", "tp"),
        LLM_ALONE,
    ),
    StartRule(
        "latent-recompute-overlap",
        "--recompute-mla-up-proj needs --mla-up-proj-tp-overlap where tp > 1",
        lambda t, f, c: _latent(f) & f.on("recompute-mla-up-proj") & (not f.on("mla-up-proj-tp-overlap")) & (t.tp != 1),
        "recompute-mla-up-proj",
        f"{LLM}transformer/multi_latent_attention/mla_feature.py:87", "2.1.0 to master",
        "add --mla-up-proj-tp-overlap",
        ("tp",),
        LLM_ALONE,
    ),
    StartRule(
        "latent-recompute-alone",
        "--recompute-mla-up-proj does not go with --mla-zero-memory",
        lambda t, f, c: _latent(f) & f.on("recompute-mla-up-proj") & f.on("mla-zero-memory"),
        "mla-zero-memory",
        f"{LLM}transformer/multi_latent_attention/mla_feature.py:93", "2.1.0 to master",
        "leave out one of the two",
        programs=LLM_ALONE,
    ),
]  # fmt: skip


def _latent(flags: StatedFlags) -> bool:
    return flags.on("multi-latent-attention", "multi-head-latent-attention")


_CP_CODE, _LLM_CP = f"{CORE}context_parallel/context_parallel_feature.py", f"{LLM}context_parallel/"
_ADAPTIVE_CODE = f"{CORE}context_parallel/adaptive_context_parallel.py"
_KV_CODE = f"{CORE}context_parallel/context_parallel_kv_cache.py"
_POLICY, _INTERVAL, _GATHER_KV = (
    "context-parallel-kv-cache-policy", "context-parallel-cache-interval", "use-ulysses-allgather-kv"
)  # fmt: skip

_SWITCHED_LATER = (_GATHERED, "adaptive_cp_algo", _HYBRID_ADAPTIVE, _MAMBA)
"""Algorithms that switch flash attention on never, or after the kept keys are checked (the order of the features)."""


def _algorithm(flags: StatedFlags) -> str:
    return flags.text(ALGORITHM, DEFAULT_ALGORITHM)


def _degree(flags: StatedFlags) -> int:
    return max(1, flags.number("ulysses-degree-in-cp", 1))


def _bad_window(table: StrategyTable, flags: StatedFlags, inner: int) -> Any:
    """Mask where the window of a double ring is not smaller than the ring, or does not divide it."""
    ring, window = table.cp // inner, flags.number("cp-window-size", 1)
    if window < 1:
        return table.cp > 1
    return (table.cp > 1) & ((window >= ring) | (ring % window != 0))


def _heads_do_not_divide(table: StrategyTable, flags: StatedFlags, ways: Any) -> Any:
    heads = flags.number("num-attention-heads")
    return (table.cp > 1) & (heads % (ways * table.tp) != 0)


_OF_CONTEXT = [
    StartRule(
        "ring-window",
        "--cp-window-size, of a double ring, is smaller than cp and divides it",
        lambda t, f, c: (_algorithm(f) == _RING) & _bad_window(t, f, 1),
        "cp-window-size",
        f"{_CP_CODE}:46-50", "1.0.0 to master",
        "write a --cp-window-size that divides cp and is smaller",
        ("cp",),
    ),
    StartRule(
        "hybrid-ring-window",
        "--cp-window-size, of a double ring beside Ulysses, is smaller than the ring, cp / --ulysses-degree-in-cp, and "
        "divides it",
        lambda t, f, c: (_algorithm(f) == _HYBRID) & _bad_window(t, f, _degree(f)) & (t.cp > _degree(f)),
        "cp-window-size",
        f"{_CP_CODE}:75-79", "1.0.0 to master",
        "write a --cp-window-size that divides the ring and is smaller",
        ("cp",),
    ),
    StartRule(
        "hybrid-needs-ulysses-degree",
        "--context-parallel-algo hybrid_cp_algo and hybrid_adaptive_cp_algo with cp > 1 need --ulysses-degree-in-cp",
        lambda t, f, c: (_algorithm(f) in (_HYBRID, _HYBRID_ADAPTIVE)) & (t.cp > 1)
        & (not f.on("ulysses-degree-in-cp")),
        "ulysses-degree-in-cp",
        f"{_CP_CODE}:59, {_ADAPTIVE_CODE}:42", "1.0.RC2 to master",
        "write --ulysses-degree-in-cp, a divisor of cp below it",
        ("cp",),
    ),
    StartRule(
        "adaptive-ulysses-in-context",
        "under hybrid_adaptive_cp_algo --ulysses-degree-in-cp divides cp and is below it",
        lambda t, f, c: (_algorithm(f) == _HYBRID_ADAPTIVE) & f.on("ulysses-degree-in-cp") & (t.cp > 1)
        & ((f.number("ulysses-degree-in-cp") < 1) | (t.cp // _degree(f) <= 1) | (t.cp % _degree(f) != 0)),
        "ulysses-degree-in-cp",
        f"{_ADAPTIVE_CODE}:44", "1.0.0 to master",
        "write a divisor of cp below it",
        ("cp",),
        CORE_ALONE,
    ),
    StartRule(
        "adaptive-heads",
        "under hybrid_adaptive_cp_algo tp * --ulysses-degree-in-cp divides the attention heads",
        lambda t, f, c: (_algorithm(f) == _HYBRID_ADAPTIVE) & _heads_do_not_divide(t, f, _degree(f)),
        "ulysses-degree-in-cp",
        f"{_ADAPTIVE_CODE}:47", "1.0.0 to master",
        "write a smaller --ulysses-degree-in-cp",
        ("tp",),
        CORE_ALONE,
    ),
    StartRule(
        "mamba-context-heads",
        "under mamba_cp_algo tp * cp divides the attention heads",
        lambda t, f, c: (_algorithm(f) == _MAMBA) & _heads_do_not_divide(t, f, t.cp),
        "context-parallel-size",
        f"{_LLM_CP}mamba_context_parallel.py:25", "2.1.0 to master",
        "ask for smaller cp or tp",
        ("cp", "tp"),
        LLM_ALONE,
    ),
    StartRule(
        "gathered-keys-mask",
        "--context-parallel-algo kvallgather_cp_algo with cp > 1 needs --attention-mask-type causal",
        lambda t, f, c: (_algorithm(f) == _GATHERED) & (t.cp > 1) & (_mask(f) != "causal"),
        "attention-mask-type",
        f"{_CP_CODE}:84", "26.0.0_core_r0.12.1 to master",
        "write --attention-mask-type causal",
        ("cp",),
    ),
    StartRule(
        "alibi-ring",
        "alibi with cp > 1 needs megatron_cp_algo, --alibi-fusion-attn-type 2 and a causal mask",
        lambda t, f, c: (t.cp > 1) & _alibi(f)
        & ((_algorithm(f) != _RING) | (f.number("alibi-fusion-attn-type") != 2) | (_mask(f) != "causal")),
        "position-embedding-type",
        f"{_CP_CODE}:42-55", "1.0.0 to master",
        "ask for cp = 1",
        ("cp",),
        CORE_ALONE,
    ),
    StartRule(
        "alibi-without-context-parallel",
        "alibi does not go with cp > 1",
        lambda t, f, c: (t.cp > 1) & _alibi(f),
        "position-embedding-type",
        f"{_LLM_CP}context_parallel_feature.py:49", "2.1.0 to master",
        "ask for cp = 1",
        ("cp",),
        LLM_ALONE,
    ),
    StartRule(
        "window-without-context-parallel",
        "--sliding-window below the sequence length does not go with cp > 1",
        lambda t, f, c: (t.cp > 1) & f.on("sliding-window") & (c.rules.seq_length > f.number("sliding-window")),
        "sliding-window",
        f"{_LLM_CP}context_parallel_feature.py:53", "2.1.0 to master",
        "ask for cp = 1",
        ("cp",),
        LLM_ALONE,
    ),
    StartRule(
        "kv-cache-without-context-parallel",
        "--use-kv-cache does not go with cp > 1",
        lambda t, f, c: (t.cp > 1) & f.on("use-kv-cache"),
        "use-kv-cache",
        f"{_LLM_CP}context_parallel_feature.py:51", "2.1.0 to master",
        "leave out --use-kv-cache",
        ("cp",),
        LLM_ALONE,
    ),
    StartRule(
        "deepseek4-gathers-keys",
        "DeepSeek-V4 with cp > 1 needs --context-parallel-algo kvallgather_cp_algo",
        lambda t, f, c: (t.cp > 1) & ("deepseek4_spec" in f.text("spec")) & (_algorithm(f) != _GATHERED),
        "context-parallel-algo",
        f"{_LLM_CP}context_parallel_feature.py:55", "26.1.0 to master",
        "write --context-parallel-algo kvallgather_cp_algo",
        ("cp",),
        LLM_ALONE,
    ),
    StartRule(
        "reset-masks-vary",
        "--reset-attention-mask with cp > 1 and a causal mask needs --variable-seq-lengths",
        lambda t, f, c: (t.cp > 1) & f.on("reset-attention-mask") & (_mask(f) == "causal")
        & (not f.on("variable-seq-lengths")),
        "reset-attention-mask",
        f"{CORE}transformer/flash_attention/reset_attention_mask_feature.py:21", SINCE,
        "add --variable-seq-lengths",
        ("cp",),
        CORE_ALONE,
    ),
    StartRule(
        "kept-keys-in-context",
        f"--{_POLICY} needs cp > 1",
        lambda t, f, c: f.on(_POLICY) & (t.cp == 1),
        _POLICY,
        f"{_KV_CODE}:32", "2.0.0 to master",
        f"leave out --{_POLICY}",
        ("cp",),
    ),
    StartRule(
        "kept-keys-flash",
        f"--{_POLICY} needs --use-flash-attn",
        lambda t, f, c: f.on(_POLICY) & (not _flash(t, f, _SWITCHED_LATER)),
        _POLICY,
        f"{_KV_CODE}:35", "2.0.0 to master",
        "add --use-flash-attn",
    ),
    StartRule(
        "kept-keys-interval",
        f"--{_INTERVAL} is from 0 to num-layers - 1, and above 0 with --{_POLICY} alone",
        lambda t, f, c: (f.number(_INTERVAL) != 0)
        & ((not f.on(_POLICY)) | (not 0 <= f.number(_INTERVAL) < f.number("num-layers"))),
        _INTERVAL,
        f"{_KV_CODE}:40-49", "2.0.0 to master",
        f"leave out --{_INTERVAL}",
    ),
    StartRule(
        "gathered-heads",
        f"--{_GATHER_KV} needs cp > 1, --context-parallel-algo ulysses_cp_algo and --group-query-attention",
        lambda t, f, c: f.on(_GATHER_KV)
        & ((t.cp == 1) | (_algorithm(f) != _ULYSSES) | (not f.on("group-query-attention"))),
        _GATHER_KV,
        f"{_KV_CODE}:54-63", "2.0.0 to master",
        f"leave out --{_GATHER_KV}",
        ("cp",),
    ),
    *[
        StartRule(
            f"{name}-context",
            f"--{feature} with cp > 1 needs --context-parallel-algo ulysses_cp_algo or kvallgather_cp_algo",
            lambda t, f, c, feature=feature: (  # type: ignore[misc]
                f.on(feature) & (t.cp > 1) & (_algorithm(f) not in (_ULYSSES, _GATHERED))
            ),
            "context-parallel-algo",
            source, releases,
            "write --context-parallel-algo kvallgather_cp_algo",
            ("cp",),
            LLM_ALONE,
        )
        for name, feature, source, releases in (
            ("indexer", "enable-dsa-indexer",
             f"{LLM}transformer/multi_latent_attention/dsa_indexer_feature.py:119", "26.0.0 to master"),
            ("hyper-connections", "enable-mhc", f"{LLM}transformer/mhc_feature.py:60", "26.1.0 to master"),
        )
    ],
]  # fmt: skip


def _flash(table: StrategyTable, flags: StatedFlags, without: tuple[str, ...] = (_GATHERED,)) -> bool:
    """Return whether flash attention is on, which context parallelism switches on but for some algorithms."""
    switched = bool(np.all(table.cp > 1)) and _algorithm(flags) not in without
    return switched or flags.on("use-flash-attn", "use-fusion-attn-v2")


def _mask(flags: StatedFlags) -> str:
    return flags.text("attention-mask-type", flags.text("cp-attention-mask-type", "causal"))


def _alibi(flags: StatedFlags) -> bool:
    return flags.text("position-embedding-type") == "alibi"


SPLIT_RULES = (*_OF_TENSOR, *_OF_CONTEXT)
