"""Frameworks of Hugging Face's Trainer: plain torch modules on one stage, sharded by torch's FSDP or DeepSpeed's ZeRO.

They stand apart from `register.frameworks.FRAMEWORKS`: no file is made from a model alone for them, and no rule of a
search belongs to them, for their files have no pipeline stages.
"""

from __future__ import annotations

from dataclasses import replace

from taylor.register.frameworks import IN_PLACE, OF_TORCH, ActivationRules, Framework, StateRules, StaticRules

TRANSFORMERS = Framework(
    name="transformers",
    repositories=("transformers", "accelerate", "torch "),
    schedules=("1f1b", "gpipe"),
    interleaved_schedule="megatron-interleaved",
    legality=(),
    states=StateRules(groups_replicas=True, gathers_blocks=True, fresh_gradients=True, copies_transfers=True),
    activations=ActivationRules(fp32_norm_input=True),
    statics=StaticRules(
        cross_entropy=OF_TORCH,
        logits_bytes=14,
        counted_as_fitted=False,
        transfer_buffers=2,
        buffers_every_micro_batch=False,
        overhead_mib=1024.0,
    ),
    single_operations=True,
    overlaps_reduction=True,
    searched=("dp", "mbs", "micro_batches"),
)
"""Models of transformers under torch's DDP or FSDP.

Norms work on an fp32 cast of their input, and gate, up and their product are separate tensors (huggingface/transformers
v4.57.1 src/transformers/models/llama/modeling_llama.py, ``LlamaRMSNorm``, ``LlamaMLP``). The loss takes an fp32 copy of
the logits, which stay in the model's output (src/transformers/loss/loss_utils.py, ``ForCausalLMLoss``). The Trainer
drops the gradients behind a step (src/transformers/trainer.py, ``model.zero_grad()``, torch's ``set_to_none``). The
memory of context and NCCL is assumed, as for torchtitan. One stage alone: the schedules are named because every record
has some.
"""

DEEPSPEED = replace(
    TRANSFORMERS,
    name="deepspeed",
    repositories=("transformers", "accelerate", "DeepSpeed"),
    states=replace(TRANSFORMERS.states, fresh_gradients=False, copies_transfers=False),
)
"""The same models under DeepSpeed, whose buffer of gradients stays from step to step (deepspeedai/DeepSpeed edaa7221
deepspeed/runtime/zero/stage3.py:742, ``grad_partitions_flat_buffer``)."""

GPT_NEOX = Framework(
    name="gpt-neox",
    repositories=("gpt-neox", "DeeperSpeed", "DeepSpeed"),
    schedules=("1f1b",),
    interleaved_schedule="megatron-interleaved",
    legality=(),
    states=StateRules(keeps_weights_whole=True),
    activations=ActivationRules(joined_qkv=True),
    statics=StaticRules(
        cross_entropy=IN_PLACE,
        logits_bytes=6,
        counted_as_fitted=False,
        transfer_buffers=2,
        buffers_every_micro_batch=False,
        overhead_mib=1536.0,
    ),
    starts_experts_singly=True,
    searched=("dp", "tp", "pp", "sp", "mbs", "micro_batches"),
)
"""gpt-neox on DeepSpeed's pipeline: Megatron's parallel layers of 2021.

One GEMM gives Q, K and V, and a gated MLP's halves are chunks of another (EleutherAI/gpt-neox ea7aefd8
megatron/model/transformer.py:166-199, 430); the cross entropy works in place on an fp32 copy of the logits
(megatron/model/gpt2_model.py:75, megatron/mpu/cross_entropy.py:33-90). DeepSpeed's engine has no virtual stages. The
memory of context and NCCL is assumed, as for Megatron.
"""
