"""A plan as a start script for Megatron-LM, for models that its flags describe in full."""

from __future__ import annotations

from taylor.parsers.export import export_plan
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.register.model import ModelSpec


def has_script(model: ModelSpec) -> bool:
    """Whether the script below describes a model in full: dense, gated, one kind of layer, no special heads."""
    plain = model.moe is None and model.mla is None and len(set(model.layer_counts())) == 1 and not model.mtp_layers
    return bool(
        plain
        and model.gated_mlp
        and not (model.learned_positions or model.qk_norm or model.norm_bias or model.output_bias or model.mlp_bias)
        and not model.extra_parameters
    )


def megatron_script(config: TrainingConfig, plan: PipelinePlan, gpus_per_node: int) -> str | None:
    """The script; None for a model or a plan that it cannot say.

    Megatron recomputes the first layers of every stage (``--recompute-method block --recompute-num-layers N``), the
    same number everywhere: the largest of the plan, so that every stage fits as planned.
    """
    model, strategy, rules = config.model, config.strategy, config.rules
    if not has_script(model):
        return None
    ranks = strategy.world_size
    each = min(gpus_per_node, ranks)
    flags = {
        "num-layers": model.n_layers,
        "hidden-size": model.hidden,
        "ffn-hidden-size": model.ffn_hidden,
        "num-attention-heads": model.n_heads,
        "kv-channels": model.head_dim,
        "group-query-attention": None,
        "num-query-groups": model.n_kv_heads,
        "seq-length": rules.seq_length,
        "max-position-embeddings": rules.seq_length,
        "normalization": "RMSNorm",
        "swiglu": None,
        "disable-bias-linear": None,
        "position-embedding-type": "rope",
        "vocab-size": model.vocab,
        "make-vocab-size-divisible-by": 1,
        "use-flash-attn": None,
        **({"add-qkv-bias": None} if model.attention_bias else {}),
        **({} if model.tied_embedding else {"untie-embeddings-and-output-weights": None}),
    }
    parallel: dict[str, object] = {
        "tensor-model-parallel-size": strategy.tp,
        "pipeline-model-parallel-size": strategy.pp,
        "use-distributed-optimizer": None,
    }
    if strategy.sp and strategy.tp > 1:
        parallel["sequence-parallel"] = None
    if strategy.cp > 1:
        parallel["context-parallel-size"] = strategy.cp
    if strategy.pp > 1:
        parallel["pipeline-model-parallel-layout"] = f"'{export_plan(plan, 'megatron-layout')}'"
    recomputed = max((max(row) for row in plan.recomputed(FULL)), default=0)
    if recomputed:
        parallel |= {"recompute-granularity": "full", "recompute-method": "block", "recompute-num-layers": recomputed}
    training = {
        "micro-batch-size": strategy.mbs,
        "global-batch-size": strategy.global_batch,
        "bf16": None,
        "attention-dropout": "0.0",
        "hidden-dropout": "0.0",
    }
    blocks = "".join(
        f"{name}=(\n" + "".join(f"    --{flag}{'' if value is None else f' {value}'}\n" for flag, value in told.items())
        + ")\n" for name, told in (("MODEL_ARGS", flags), ("PARALLEL_ARGS", parallel), ("TRAINING_ARGS", training))
    )  # fmt: skip
    return (
        f"#!/bin/bash\n# {model.name} on {ranks} ranks, for Megatron-LM; planned by Taylor.\n"
        f"GPUS_PER_NODE={each}\nNNODES={ranks // each}\n\n{blocks}\n"
        "torchrun --nproc_per_node ${GPUS_PER_NODE} --nnodes ${NNODES} pretrain_gpt.py \\\n"
        "    ${MODEL_ARGS[@]} ${PARALLEL_ARGS[@]} ${TRAINING_ARGS[@]}\n"
    )
