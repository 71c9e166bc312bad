"""A launch script made for a model alone, by Megatron-LM's flags or by MindSpeed-LLM's."""

from __future__ import annotations

from itertools import groupby

from taylor.parsers.megatron.expert_overlap import EXPERT_OVERLAP
from taylor.parsers.megatron.frequency import list_text
from taylor.parsers.megatron.kinds import DENSE_FIRST, PATTERN
from taylor.parsers.megatron.stack import LINEAR_FREQ, LINEAR_VARIANTS, VARIANT
from taylor.parsers.new_file import TRAIN_STEPS, NewFile, NewJob
from taylor.register.layers import GATED_DELTA, SLIDING, AttentionSpec, LayerSpec, MoeSpec
from taylor.register.model import ModelSpec
from taylor.register.narrow_products import FP4_RECIPES, FP8_RECIPES
from taylor.register.pattern import kinds_in_order

_Flags = dict[str, object]
"""Value by flag; None for a flag that takes none."""

_ASCEND: _Flags = {
    "use-fused-rmsnorm": None,
    "use-fused-swiglu": None,
    "use-fused-rotary-pos-emb": None,
    "use-mcore-models": None,
}
"""Kernels that MindSpeed-LLM takes where a flag says so (MindSpeed-LLM 2.3.0 mindspeed_llm/training/arguments.py)."""


_RECOMPUTED: _Flags = {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}

_NEWER = frozenset(
    {
        "softmax-type", "window-size", "window-attn-skip-freq", "attention-output-gate", "moe-latent-size", VARIANT,
        LINEAR_FREQ, "linear-num-key-heads", "linear-num-value-heads", "linear-key-head-dim", "linear-value-head-dim",
        "linear-conv-kernel-dim", "dsa-indexer-n-heads", "dsa-indexer-head-dim", "dsa-indexer-topk",
    }
)  # fmt: skip
"""Flags of Megatron-LM after core 0.12, on which MindSpeed-LLM 2.3.0 builds (flags.yaml has the versions)."""

_SPELLED = {"moe-shared-expert-gate": "shared-expert-gate"}
"""Flags that MindSpeed-LLM spells otherwise."""


def megatron_script(job: NewJob) -> str:
    """A script that starts ``pretrain_gpt.py`` of Megatron-LM."""
    return _script(job, "Megatron-LM", model_flags(job), {"no-create-attention-mask-in-dataloader": None})


def mindspeed_script(job: NewJob) -> str:
    """A script that starts ``pretrain_gpt.py`` of MindSpeed-LLM."""
    model = {_SPELLED.get(name, name): value for name, value in model_flags(job).items() if name not in _NEWER}
    moe = job.model.moe
    if moe is not None and not job.model.pattern and PATTERN in model:
        model |= {DENSE_FIRST: moe.first_dense, PATTERN: 1}
    unused = {
        "use-fused-rmsnorm": job.model.norm_bias,
        "use-fused-swiglu": not job.model.gated_mlp,
        "use-fused-rotary-pos-emb": bool(job.model.learned_positions),
    }
    model |= {name: value for name, value in _ASCEND.items() if not unused.get(name)}
    return _script(job, "MindSpeed-LLM", model, {})


def _script(job: NewJob, program: str, model: _Flags, data: _Flags) -> str:
    """The script: every block of flags as an array, every size of the launch as a variable.

    The tokenizer has just the model's vocabulary, and mock data stand in for real ones (Megatron-LM d98e8a64
    megatron/core/tokenizers/text/libraries/null_tokenizer.py:18, megatron/training/arguments.py:3302), so that the
    script runs as it is.
    """
    each = job.per_node if job.ranks % job.per_node == 0 else job.ranks
    parallel: _Flags = {
        "tensor-model-parallel-size": 1,
        "pipeline-model-parallel-size": 1,
        **({"context-parallel-size": job.rest} if job.rest > 1 else {}),
        **({"expert-model-parallel-size": 1, "expert-tensor-parallel-size": 1} if job.model.moe else {}),
        "use-distributed-optimizer": None,
        "overlap-grad-reduce": None,
        "overlap-param-gather": None,
        # An overlap of experts' exchanges does not start with full recompute (`expert_overlap`).
        **({} if EXPERT_OVERLAP in job.software else _RECOMPUTED),
    }
    training: _Flags = {
        "micro-batch-size": 1,
        "global-batch-size": job.global_batch,
        "train-iters": TRAIN_STEPS,
        "lr": "1.0e-5",
        "bf16": None,
        "attention-dropout": "0.0",
        "hidden-dropout": "0.0",
        "eval-iters": 0,
    }
    # What the job's software states stands in its own block, and nowhere else.
    model, training = ({flag: to for flag, to in one.items() if flag not in job.software} for one in (model, training))
    data = {"mock-data": None, "tokenizer-type": "NullTokenizer", "split": "100,0,0", **data}
    blocks = {"MODEL_ARGS": model, "PARALLEL_ARGS": parallel, "TRAINING_ARGS": training, "DATA_ARGS": data}
    if job.software:
        blocks["SOFTWARE_ARGS"] = {
            flag: _scope(job.model) if to == _LAYERS else to for flag, to in job.software.items()
        }
    arrays = "".join(
        f"{name}=(\n{''.join(_line(flag, value) for flag, value in flags.items())})\n" for name, flags in blocks.items()
    )
    words = " ".join(f"${{{name}[@]}}" for name in blocks)
    return (
        f"#!/bin/bash\n# {job.model.name} on {job.ranks} ranks, for {program}; planned by Taylor.\n"
        "# Mock data and a tokenizer of the model's vocabulary stand in for yours: change DATA_ARGS. Sizes alone are\n"
        "# stated: add rotary base, norm epsilon and the router's scores and loss as the model's card gives them.\n"
        f"GPUS_PER_NODE={each}\nNNODES={job.ranks // each}\n"
        "NODE_RANK=${NODE_RANK:-0}\nMASTER_ADDR=${MASTER_ADDR:-localhost}\nMASTER_PORT=${MASTER_PORT:-6000}\n\n"
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\n\n"
        f"{arrays}\n"
        "torchrun --nproc_per_node ${GPUS_PER_NODE} --nnodes ${NNODES} --node_rank ${NODE_RANK} \\\n"
        "    --master_addr ${MASTER_ADDR} --master_port ${MASTER_PORT} pretrain_gpt.py \\\n"
        f"    {words}\n"
    )


def _line(flag: str, value: object) -> str:
    return f"    --{flag}\n" if value is None else f"    --{flag} {value}\n"


def model_flags(job: NewJob) -> _Flags:
    """The flags that `parsers.megatron.model.read_model` reads; the check of the file covers the rest."""
    model = job.model
    layers = _layers(model)
    attentions = [layer.attention for layer in layers if layer.attention is not None]
    attention = attentions[0] if attentions else AttentionSpec(model.n_heads, model.n_kv_heads, model.head_dim)
    dense = next((layer.mlp for layer in layers if layer.mlp is not None), None)
    flags: _Flags = {
        "num-layers": model.n_layers,
        "hidden-size": model.hidden,
        "ffn-hidden-size": model.ffn_hidden if dense is None else dense.width,
        **_attention_flags(attention),
        **_windows(layers),
        **_linear_flags(layers),
        "seq-length": job.seq_length,
        "max-position-embeddings": max(job.seq_length, model.learned_positions),
        "position-embedding-type": "learned_absolute" if model.learned_positions else "rope",
        "normalization": "LayerNorm" if model.norm_bias else "RMSNorm",
        "vocab-size": model.vocab,
        "make-vocab-size-divisible-by": 1,
        "use-flash-attn": None,
    }
    if model.gated_mlp:
        flags["swiglu"] = None
    if not model.mlp_bias:
        flags["disable-bias-linear"] = None
        if attention.bias:
            flags["add-qkv-bias"] = None
    if not model.tied_embedding:
        flags["untie-embeddings-and-output-weights"] = None
    moe = next((layer.moe for layer in layers if layer.moe is not None), None)
    if moe is not None:
        flags |= _expert_flags(moe, [layer.moe is not None for layer in layers])
    if model.mtp_layers:
        flags["mtp-num-layers"] = model.mtp_layers
    return flags


def _layers(model: ModelSpec) -> list[LayerSpec]:
    if model.pattern:
        return [model.layer(kind) for kind in kinds_in_order(model.pattern)]
    return [model.layer(kind) for kind, count in model.body_counts.items() for _ in range(count)]


def _attention_flags(attention: AttentionSpec) -> _Flags:
    flags: _Flags = {"num-attention-heads": attention.n_heads}
    latent = attention.latent
    if latent is not None:
        flags |= {
            "multi-latent-attention": None,
            "kv-lora-rank": latent.kv_lora_rank,
            "qk-head-dim": latent.qk_nope_head_dim,
            "qk-pos-emb-head-dim": latent.qk_rope_head_dim,
            "v-head-dim": latent.v_head_dim,
        }
        if latent.q_lora_rank is not None:
            flags["q-lora-rank"] = latent.q_lora_rank
        flags["qk-layernorm"] = None  # the norms of the latent vectors, which the model has
    else:
        flags["kv-channels"] = attention.head_dim
        if attention.n_kv_heads != attention.n_heads:
            flags |= {"group-query-attention": None, "num-query-groups": attention.n_kv_heads}
        if attention.qk_norm:
            flags["qk-layernorm"] = None
    if attention.gate:
        flags["attention-output-gate"] = None
    if attention.sinks:
        flags["softmax-type"] = "learnable"
    if attention.indexer is not None:
        indexer = attention.indexer
        flags |= {
            "experimental-attention-variant": "dsa",
            "dsa-indexer-n-heads": indexer.n_heads,
            "dsa-indexer-head-dim": indexer.head_dim,
            "dsa-indexer-topk": indexer.top_k,
        }
    return flags


def _linear_flags(layers: list[LayerSpec]) -> _Flags:
    """Layers that hold a gated delta net (`parsers.megatron.stack`), and its sizes; no other kind can be said."""
    linear = next((layer.linear for layer in layers if layer.linear is not None), None)
    if linear is None or linear.style != GATED_DELTA:
        return {}
    return {
        VARIANT: LINEAR_VARIANTS[1],
        LINEAR_FREQ: f'"{list_text([layer.linear is not None for layer in layers])}"',
        "linear-num-key-heads": linear.key_heads,
        "linear-num-value-heads": linear.value_heads,
        "linear-key-head-dim": linear.key_head_dim,
        "linear-value-head-dim": linear.value_head_dim,
        "linear-conv-kernel-dim": linear.conv_kernel,
    }


def _windows(layers: list[LayerSpec]) -> _Flags:
    """Layers that see a window alone: 1 in ``--window-attn-skip-freq``."""
    windowed = [layer.attention is not None and layer.attention.reach == SLIDING for layer in layers]
    if not any(windowed):
        return {}
    window = next(a.window for layer in layers if (a := layer.attention) is not None and a.reach == SLIDING)
    flags: _Flags = {"window-size": f"{(window or 1) - 1},0"}
    return flags if all(windowed) else {**flags, "window-attn-skip-freq": f'"{list_text(windowed)}"'}


def _expert_flags(moe: MoeSpec, has_experts: list[bool]) -> _Flags:
    flags: _Flags = {
        "num-experts": moe.n_experts,
        "moe-router-topk": moe.top_k,
        "moe-ffn-hidden-size": moe.expert_hidden,
        "moe-grouped-gemm": None,
        "moe-token-dispatcher-type": "alltoall",
    }
    if moe.shared_width:
        flags["moe-shared-expert-intermediate-size"] = moe.shared_width
    if moe.shared_gate:
        flags["moe-shared-expert-gate"] = None
    if moe.correction_bias:
        # The bias goes with sigmoid scores alone: Megatron-LM d98e8a64 megatron/core/transformer/transformer_config.py.
        flags |= {"moe-router-score-function": "sigmoid", "moe-router-enable-expert-bias": None}
    if moe.n_groups > 1:
        flags |= {"moe-router-num-groups": moe.n_groups, "moe-router-group-topk": moe.top_groups}
    if moe.latent is not None:
        flags["moe-latent-size"] = moe.latent
    if not all(has_experts):
        parts = [(kind, len(list(same))) for kind, same in groupby(has_experts)]
        plain = len(parts) == 2 and not parts[0][0]
        text = f"([0]*{parts[0][1]}+[1]*{parts[1][1]})" if plain else list_text(has_experts)
        flags[PATTERN] = f'"{text}"'
    return flags


_LAYERS = "layers"
"""In place of the scope of CUDA graphs that hold a model's layers (`_scope`)."""


def _scope(model: ModelSpec) -> str:
    """Parts of the layers that CUDA graphs can hold: dropless experts are not among them, an MLP is.

    Megatron-LM d98e8a64 megatron/core/transformer/moe/README.md:514, megatron/training/arguments.py:2047.
    """
    layers = _layers(model)
    parts = {
        "attn": any(layer.attention is not None for layer in layers),
        "mamba": any(layer.mamba is not None for layer in layers),
        "mlp": any(layer.mlp is not None for layer in layers),
        "moe_router": model.n_moe > 0,
    }
    return " ".join(part for part, there in parts.items() if there)


_SWITCH: _Flags = {"te-rng-tracker": None, "no-check-for-nan-in-loss-and-grad": None}
"""What Megatron's CUDA graphs need: Megatron-LM d98e8a64 megatron/training/arguments.py:614-638 and 1420-1432."""

_FEATURES: dict[str, dict[str, _Flags]] = {
    "tp-comm-overlap": {"": {"tp-comm-overlap": None}},
    "fp8": {
        name: {"fp8-format": "e4m3" if name in ("blockwise", "mxfp8") else "hybrid", "fp8-recipe": name}
        for name in FP8_RECIPES
    },
    "fp4": {name: {"fp4-format": "e2m1", "fp4-recipe": name} for name in FP4_RECIPES},
    "cuda-graphs": {
        "layers": {"cuda-graph-impl": "transformer_engine", "cuda-graph-scope": _LAYERS, **_SWITCH},
        "iteration": {"cuda-graph-impl": "local", "cuda-graph-scope": "full_iteration", **_SWITCH},
    },
    "dispatcher": {
        "alltoall": {"moe-token-dispatcher-type": "alltoall"},
        "allgather": {"moe-token-dispatcher-type": "allgather"},
        "deepep": {"moe-token-dispatcher-type": "flex", "moe-flex-dispatcher-backend": "deepep"},
        "hybridep": {"moe-token-dispatcher-type": "flex", "moe-flex-dispatcher-backend": "hybridep"},
    },
    "ep-overlap": {"": {EXPERT_OVERLAP: None}},
    "shared-expert-overlap": {"": {"moe-shared-expert-overlap": None}},
    "balanced-routing": {"": {"moe-router-force-load-balancing": None}},
    "fused-loss": {"": {"cross-entropy-loss-fusion": None, "cross-entropy-fusion-impl": "te"}},
    "deterministic": {"": {"deterministic-mode": None}},
}
"""Megatron-LM's flags of each feature (d98e8a64; flags.yaml has the source of each)."""

_ON_ASCEND: dict[str, dict[str, _Flags]] = {
    "dispatcher": {name: _FEATURES["dispatcher"][name] for name in ("alltoall", "allgather")},
    "deterministic": {"": {"npu-deterministic": None}},
}
"""MindSpeed-LLM's (2.3.0 mindspeed_llm/training/arguments.py)."""

NEW_FILES = (
    NewFile("megatron", "Megatron-LM", ".sh", megatron_script, features=_FEATURES),
    NewFile("mindspeed", "MindSpeed-LLM", ".sh", mindspeed_script, on_ascend=True, features=_ON_ASCEND),
)
