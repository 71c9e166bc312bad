"""Start rules of optimizer, memory and attention that no degree decides, and of further programs' switches."""

from __future__ import annotations

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
from taylor.parsers.stated_flags import StatedFlags

_REUSE, _REUSE_CODE = "reuse-fp32-param", f"{CORE}memory/reuse_fp32_param.py"
_MUON_CODE = f"{CORE}optimizer/muon_optimizer_feature.py"
_LOW_CODE = f"{CORE}optimizer/low_precision_optimizer_feature.py"
_DSA, _INDEXER = "experimental-attention-variant", "enable-dsa-indexer"
_INDEXER_CODE = f"{LLM}transformer/multi_latent_attention/dsa_indexer_feature.py"
_DSA_FUSED = (
    "use-fused-lightning-indexer", "use-fused-sparse-flash-attention", "use-fused-lightning-indexer-kl-loss"
)  # fmt: skip


def _is_muon(flags: StatedFlags) -> bool:
    return flags.text("optimizer", "adam") in ("muon", "dist_muon")


def _splits_optimizer(flags: StatedFlags) -> bool:
    return flags.on("use-distributed-optimizer") or flags.text("optimizer") == "dist_muon"


def _quantizes(flags: StatedFlags) -> bool:
    return flags.on("quant-grads", "quant-states")


_OF_OPTIMIZER = [
    needs(_REUSE, "bf16", f"{_REUSE_CODE}:19", releases="1.0.0 to master"),
    StartRule(
        f"{_REUSE}-optimizer",
        f"--{_REUSE} does not go with --optimizer-selection fused_ema_adamw",
        lambda t, f, c: f.on(_REUSE) & (f.text("optimizer-selection") == "fused_ema_adamw"),
        "optimizer-selection",
        f"{_REUSE_CODE}:23", "1.0.0 to master",
        f"leave out --{_REUSE}",
    ),
    StartRule(
        f"{_REUSE}-of-core-models",
        f"--{_REUSE} with --use-legacy-models does not go with --overlap-param-gather",
        lambda t, f, c: f.on(_REUSE) & f.on("use-legacy-models") & f.on("overlap-param-gather"),
        "overlap-param-gather",
        f"{_REUSE_CODE}:21", "1.0.0 to master",
        "leave out --overlap-param-gather",
    ),
    *apart("swap-optimizer", [_REUSE], f"{CORE}optimizer/swap_optimizer_feature.py:21"),
    StartRule(
        "swap-optimizer-splits",
        "--swap-optimizer needs --use-distributed-optimizer",
        lambda t, f, c: f.on("swap-optimizer") & (not _splits_optimizer(f)),
        "swap-optimizer",
        f"{CORE}optimizer/swap_optimizer_feature.py:22", SINCE,
        "add --use-distributed-optimizer",
    ),
    StartRule(
        "swap-optimizer-without-low-precision",
        "--swap-optimizer does not go with --quant-states or --quant-grads",
        lambda t, f, c: f.on("swap-optimizer") & _quantizes(f),
        "swap-optimizer",
        f"{_LOW_CODE}:75", "26.0.0_core_r0.12.1 to master",
        "leave out one of the two",
    ),
    StartRule(
        "quant-grads-accumulate",
        "--quant-grads needs --no-gradient-accumulation-fusion",
        lambda t, f, c: f.on("quant-grads") & _fuses_gradients(f),
        "quant-grads",
        f"{_LOW_CODE}:69", "26.0.0_core_r0.12.1 to master",
        "add --no-gradient-accumulation-fusion",
        programs=CORE_ALONE,
    ),
    StartRule(
        "quant-grads-beside-fb-overlap",
        "--quant-grads with --moe-fb-overlap needs --no-gradient-accumulation-fusion",
        lambda t, f, c: f.on("quant-grads") & f.on("moe-fb-overlap") & _fuses_gradients(f),
        "quant-grads",
        f"{LLM}low_precision/low_precision_optimizer_feature.py:69", "26.0.0 to master",
        "add --no-gradient-accumulation-fusion",
        programs=LLM_ALONE,
    ),
    StartRule(
        "muon-without-fp16",
        "--optimizer muon does not go with --fp16",
        lambda t, f, c: _is_muon(f) & f.on("fp16"),
        "fp16",
        f"{_MUON_CODE}:134", "26.1.0_core_r0.12.1 to master",
        "write --bf16",
    ),
    StartRule(
        "muon-without-fsdp",
        "--optimizer muon does not go with --use-custom-fsdp or --use-torch-fsdp2",
        lambda t, f, c: _is_muon(f) & f.on("use-custom-fsdp", "use-torch-fsdp2"),
        "optimizer",
        f"{_MUON_CODE}:136", "26.1.0_core_r0.12.1 to master",
        "leave out FSDP",
    ),
    StartRule(
        "ema-decay",
        "--ema-decay is from 0 to 1",
        lambda t, f, c: not 0 <= f.real("ema-decay", 0.9999) <= 1,
        "ema-decay",
        f"{CORE}optimizer/fused_ema_adamw_feature.py:18", SINCE,
        "write a number from 0 to 1",
    ),
    needs("fsdp2-config-path", "use-torch-fsdp2", f"{CORE}distributed/torch_fully_sharded_data_parallel.py:27"),
    needs("reset-bucket-group-order", "overlap-param-gather",
          f"{CORE}distributed/reset_bucket_group_order_feature.py:21", programs=CORE_ALONE),
    StartRule(
        "param-and-grad-buffer-pad",
        "--param-and-grad-buffer-pad is positive",
        lambda t, f, c: f.number("param-and-grad-buffer-pad") < 0,
        "param-and-grad-buffer-pad",
        f"{CORE}distributed/buffer_pad.py:18", SINCE,
        "write a positive number",
        programs=CORE_ALONE,
    ),
]  # fmt: skip


def _fuses_gradients(flags: StatedFlags) -> bool:
    """Return whether GEMMs add to the gradients, which is Megatron's default."""
    return not flags.on("no-gradient-accumulation-fusion")


_OF_MEMORY = [
    StartRule(
        "lora-without-swap-attention",
        "LoRA does not go with --swap-attention",
        lambda t, f, c: has_adapters(f) & f.on("swap-attention"),
        "swap-attention",
        f"{CORE}memory/swap_attention.py:28", SINCE,
        "leave out --swap-attention",
        programs=LLM_ALONE,
    ),
    StartRule(
        "compressed-activations-kept",
        "--compress-dense does not go with --recompute-activation-function",
        lambda t, f, c: (f.text("compress-dense", "disable") != "disable") & f.on("recompute-activation-function"),
        "compress-dense",
        f"{CORE}compress_dense/compress_dense.py:23", SINCE,
        "leave out one of the two",
        programs=CORE_ALONE,
    ),
    StartRule(
        "auto-settings-alone",
        "--auto-settings does not go with --load or --save",
        lambda t, f, c: f.on("auto-settings") & f.on("load", "save"),
        "auto-settings",
        f"{CORE}auto_settings/auto_settings_feature.py:26", SINCE,
        "leave out --load and --save",
        programs=CORE_ALONE,
    ),
    StartRule(
        "defer-embedding-wgrad-compute",
        "--defer-embedding-wgrad-compute is not supported",
        lambda t, f, c: f.on("defer-embedding-wgrad-compute"),
        "defer-embedding-wgrad-compute",
        f"{CORE}megatron_basic/megatron_basic.py:33", "2.3.0_core_r0.12.1 to master",
        "leave it out",
    ),
    StartRule(
        "distilled-models",
        "--qad-enable has a dense model, one stage and --qad-teacher-load",
        lambda t, f, c: f.on("qad-enable")
        & ((f.number("num-experts") != 0) | (t.pp > 1) | (not f.on("qad-teacher-load"))),
        "qad-enable",
        f"{CORE}qad/qad_quant_engine.py:104-138", "master",
        "ask for one stage",
        ("pp",),
        CORE_ALONE,
    ),
    StartRule(
        "enable-high-availability-checkpoints",
        "--enable-high-availability needs --ckpt-format torch",
        lambda t, f, c: f.on("enable-high-availability") & (f.text("ckpt-format", "torch_dist") != "torch"),
        "ckpt-format",
        f"{LLM}high_availability/high_availability.py:43", "2.2.0 to master",
        "write --ckpt-format torch",
        programs=LLM_ALONE,
    ),
    StartRule(
        "enable-elastic-training-needs-use-distributed-optimizer",
        "--enable-elastic-training needs --use-distributed-optimizer, which --optimizer muon replaces by its own",
        lambda t, f, c: f.on("enable-elastic-training") & ((not f.on("use-distributed-optimizer")) | _is_muon(f)),
        "enable-elastic-training",
        f"{LLM}high_availability/high_availability.py:59", "2.2.0 to master",
        "add --use-distributed-optimizer, and leave out --optimizer muon",
        programs=LLM_ALONE,
    ),
    StartRule(
        "elastic-ranks",
        "--enable-elastic-training has ep = 1 and cp = 1",
        lambda t, f, c: f.on("enable-elastic-training") & ((own_ep(t, f) > 1) | (t.cp > 1)),
        "enable-elastic-training",
        f"{LLM}high_availability/high_availability.py:71", "2.2.0 to master",
        "ask for ep = 1 and cp = 1",
        ("ep", "cp"),
        LLM_ALONE,
    ),
    *[
        needs(feature, other, f"{LLM}high_availability/high_availability.py:{line}", programs=LLM_ALONE,
              releases="2.2.0 to master")
        for feature, other, line in (
            ("enable-hbmfault-repair", "enable-high-availability", 39),
            ("enable-elastic-training", "enable-high-availability", 55),
        )
    ],
    *[
        rule
        for feature, other, line in (
            ("enable-elastic-training", "use-custom-fsdp", 63),
            ("enable-elastic-training", _REUSE, 67),
            ("enable-high-availability", "swap-attention", 45),
            ("enable-high-availability", "disable-gloo-group", 49),
            ("enable-high-availability", "swap-optimizer", 53),
            ("enable-high-availability", "lora-target-modules", 76),
        )
        for rule in apart(feature, [other], f"{LLM}high_availability/high_availability.py:{line}", programs=LLM_ALONE,
                          releases="2.2.0 to master")
    ],
]  # fmt: skip

_OF_ATTENTION = [
    StartRule(
        "sparse-mode",
        "--use-flash-attn has --sparse-mode 0 or 2",
        lambda t, f, c: f.on("use-flash-attn") & (f.number("sparse-mode") not in (0, 2)),
        "sparse-mode",
        f"{CORE}transformer/flash_attention/fusion_attention_v1_feature.py:55", "1.0.0 to master, LLM from 2.2.0",
        "write --sparse-mode 0 or 2",
    ),
    StartRule(
        "alibi-kind",
        "--alibi-fusion-attn-type is 0 or 2",
        lambda t, f, c: f.on("alibi-fusion-attn-type") & (f.number("alibi-fusion-attn-type") not in (0, 2)),
        "alibi-fusion-attn-type",
        f"{CORE}transformer/flash_attention/alibi_feature.py:72", "1.0.0 to master",
        "write 0 or 2",
        programs=CORE_ALONE,
    ),
    StartRule(
        "fused-rotation",
        "--use-fused-rotary-pos-emb needs --position-embedding-type rope",
        lambda t, f, c: f.on("use-fused-rotary-pos-emb") & (not f.on("use-rotary-position-embeddings"))
        & (f.text("position-embedding-type", "learned_absolute") != "rope"),
        "position-embedding-type",
        f"{CORE}fusions/fused_rope.py:24", "1.0.0 to master",
        "write --position-embedding-type rope",
        programs=CORE_ALONE,
    ),
    StartRule(
        "counted-operations",
        "--op-cal-tflops does not go with latent attention",
        lambda t, f, c: f.on("op-cal-tflops") & f.on("multi-latent-attention", "multi-head-latent-attention"),
        "op-cal-tflops",
        f"{CORE}functional/tflops_calculate.py:17", SINCE,
        "leave out --op-cal-tflops",
        programs=CORE_ALONE,
    ),
    StartRule(
        "latent-head-sizes",
        "--multi-head-latent-attention needs --qk-rope-head-dim and --qk-nope-head-dim",
        lambda t, f, c: f.on("multi-head-latent-attention")
        & ((not f.on("qk-rope-head-dim")) | (not f.on("qk-nope-head-dim"))),
        "multi-head-latent-attention",
        f"{CORE}transformer/multi_head_latent_attention/mla_feature.py:61-66", SINCE,
        "write both",
        programs=CORE_ALONE,
    ),
    StartRule(
        "sparse-attention-norms",
        "--experimental-attention-variant dsa needs --qk-layernorm",
        lambda t, f, c: (f.text(_DSA) == "dsa") & (not f.on("qk-layernorm")),
        "qk-layernorm",
        f"{CORE}transformer/experimental_attention_variant/dsa.py:26", "26.0.0_core_r0.12.1 to master",
        "add --qk-layernorm",
        programs=CORE_ALONE,
    ),
    StartRule(
        "sparse-attention-kernels",
        "the fused kernels of sparse attention come together, with --use-dsa-absorb",
        lambda t, f, c: f.on(*_DSA_FUSED) & (not all(f.on(name) for name in ("use-dsa-absorb", *_DSA_FUSED))),
        "use-dsa-absorb",
        f"{CORE}transformer/experimental_attention_variant/dsa.py:31", "26.0.0_core_r0.12.1 to master",
        "write all four, or none",
        programs=CORE_ALONE,
    ),
    StartRule(
        "sparse-attention-context",
        "the fused kernels of sparse attention with cp > 1 need --context-parallel-algo kvallgather_cp_algo",
        lambda t, f, c: f.on(*_DSA_FUSED) & (t.cp > 1)
        & (f.text(ALGORITHM, DEFAULT_ALGORITHM) != "kvallgather_cp_algo"),
        "context-parallel-algo",
        f"{CORE}transformer/experimental_attention_variant/dsa.py:42", "26.0.0_core_r0.12.1 to master",
        "write --context-parallel-algo kvallgather_cp_algo",
        ("cp",),
        CORE_ALONE,
    ),
    *[
        StartRule(
            f"{name}-latent",
            f"--{feature} needs latent attention and --use-flash-attn",
            lambda t, f, c, feature=feature: f.on(feature) & (  # type: ignore[misc]
                (not f.on("multi-latent-attention", "multi-head-latent-attention"))
                | (not f.on("use-flash-attn", "use-fusion-attn-v2"))
            ),
            feature,
            source, releases,
            "add both",
            programs=LLM_ALONE,
        )
        for name, feature, source, releases in (
            ("indexer", _INDEXER, f"{_INDEXER_CODE}:113-117", "26.0.0 to master"),
            ("hyper-connections", "enable-mhc", f"{LLM}transformer/mhc_feature.py:53-57", "26.1.0 to master"),
        )
    ],
    StartRule(
        "indexer-of-documents",
        "--enable-dsa-indexer with --reset-attention-mask needs its fused kernels and --use-sparse-flash-attn",
        lambda t, f, c: f.on(_INDEXER) & f.on("reset-attention-mask") & (
            (not f.on("use-fused-lightning-indexer", "use-fused-lightning-indexer-loss"))
            | (not f.on("use-sparse-flash-attn"))
        ),
        _INDEXER,
        f"{_INDEXER_CODE}:124-130", "26.0.0 to master",
        "add --use-fused-lightning-indexer and --use-sparse-flash-attn",
        programs=LLM_ALONE,
    ),
    StartRule(
        "indexer-quantized",
        "--indexer-qk-quant-scheme needs --enable-dsa-indexer and --kv-compress, and no fused indexer",
        lambda t, f, c: f.on("indexer-qk-quant-scheme") & (
            (not f.on(_INDEXER)) | (not f.on("kv-compress"))
            | f.on("use-fused-lightning-indexer", "use-fused-lightning-indexer-loss")
        ),
        "indexer-qk-quant-scheme",
        f"{_INDEXER_CODE}:131-142", "26.1.0 to master",
        "leave out --indexer-qk-quant-scheme",
        programs=LLM_ALONE,
    ),
    StartRule(
        "fused-hyper-connections",
        "--use-fused-mhc has --hc-mult 4 and --hc-sinkhorn-iters 20",
        lambda t, f, c: f.on("enable-mhc") & f.on("use-fused-mhc")
        & ((f.number("hc-mult", 4) != 4) | (f.number("hc-sinkhorn-iters", 20) != 20)),
        "use-fused-mhc",
        f"{LLM}transformer/mhc_feature.py:62-65", "26.1.0 to master",
        "leave out --use-fused-mhc",
        programs=LLM_ALONE,
    ),
    StartRule(
        "packed-masks",
        "--neat-pack needs --reset-attention-mask",
        lambda t, f, c: f.on("neat-pack") & (not f.on("reset-attention-mask")),
        "neat-pack",
        f"{LLM}megatron_basic/training_basic.py:54", "2.1.0 to master",
        "add --reset-attention-mask",
        programs=LLM_ALONE,
    ),
    StartRule(
        "adapters-converted",
        "LoRA does not go with --enable-mg2hf-convert",
        lambda t, f, c: has_adapters(f) & f.on("enable-mg2hf-convert"),
        "enable-mg2hf-convert",
        f"{LLM}convert_checkpoint/convert_checkpoint.py:150", "26.0.0 to master",
        "leave out --enable-mg2hf-convert",
        programs=LLM_ALONE,
    ),
    *[
        StartRule(
            f"{feature}-needs-{folder}",
            f"--{feature} needs --{folder}",
            lambda t, f, c, feature=feature, folder=folder: f.on(feature) & (not f.on(folder)),  # type: ignore[misc]
            feature,
            f"{LLM}convert_checkpoint/convert_checkpoint.py:{line}", "26.0.0 to master",
            f"write --{folder} or leave out --{feature}",
            programs=LLM_ALONE,
        )
        for feature, folder, line in (("enable-hf2mg-convert", "load", 137), ("enable-mg2hf-convert", "save", 147))
    ],
    StartRule(
        "long-rope-factors",
        "--rope-scaling-type longrope needs --rope-scaling-original-max-position-embeddings, --long-factor and "
        "--short-factor",
        lambda t, f, c: (f.text("rope-scaling-type") == "longrope") & (not all(
            f.on(name) for name in ("rope-scaling-original-max-position-embeddings", "long-factor", "short-factor")
        )),
        "rope-scaling-type",
        f"{LLM}common/rotary.py:69-77", "2.1.0 to master",
        "write all three",
        programs=LLM_ALONE,
    ),
]  # fmt: skip

STATE_RULES = (*_OF_OPTIMIZER, *_OF_MEMORY, *_OF_ATTENTION)
