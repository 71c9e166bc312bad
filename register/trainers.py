"""Further frameworks: Hugging Face's Trainer, gpt-neox, and those that run another one's layers by rules of their own.

They stand apart from `register.frameworks.FRAMEWORKS`: no file is made from a model alone for them.
"""

from __future__ import annotations

from dataclasses import replace

from taylor.register.frameworks import (
    FRAMEWORKS,
    IN_PLACE,
    MEGATRON,
    OF_TORCH,
    TORCHTITAN,
    ActivationRules,
    Framework,
    StateRules,
    StaticRules,
)

TRANSFORMERS = Framework(
    name="transformers",
    repositories=("transformers", "accelerate", "torch "),
    schedules=("1f1b", "gpipe"),
    interleaved_schedule="megatron-interleaved",
    legality=("kv-groups-by-tp",),
    states=StateRules(groups_replicas=True, gathers_blocks=True, fresh_gradients=True, copies_transfers=True),
    activations=ActivationRules(fp32_norm_input=True, plain_modules=True),
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
    legality=(
        "kv-groups-by-tp",
        "hidden-by-tp",
        "ffn-by-tp",
        "sequence-by-cp-tp",
        "gradients-whole-in-pipeline",
    ),
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

NANOTRON = replace(
    MEGATRON,
    name="nanotron",
    repositories=("nanotron",),
    schedules=("1f1b", "gpipe"),
    estimated_as=MEGATRON.name,
    legality=("kv-groups-by-tp", "ffn-by-tp", "tokens-by-tp", "micro-batches-fill-warm-up"),
    overlaps_reduction=True,
    # A GEMM makes a gradient, which is added to the fp32 one behind the backward of a micro-batch
    # (huggingface/nanotron 2411b022 src/nanotron/optim/gradient_accumulator.py:183-212).
    states=replace(MEGATRON.states, fused_accumulation=False, takes_narrow_states=False),
    # Gate and up are one GEMM, and their activation and product two operations (models/llama.py:198-206).
    activations=replace(MEGATRON.activations, fused_swiglu=False),
    # fp32 logits beside those in 16 bits, and the softmax, which becomes their gradient (models/llama.py:899-905,
    # parallel/tensor_parallel/functional.py:32-113).
    statics=replace(MEGATRON.statics, logits_bytes=10),
)
"""nanotron's layers, ZeRO-1 and 1F1B are Megatron's, whose rules of memory and time hold but for these."""

OLMO_CORE = replace(
    TORCHTITAN,
    name="olmo-core",
    repositories=("OLMo-core", "torch "),
    estimated_as=TORCHTITAN.name,
    # src/olmo_core/distributed/parallel/pipeline_parallel.py:25-43 of fa6c5014: no DualPipeV.
    schedules=tuple(name for name in TORCHTITAN.schedules if name != "dualpipev"),
    filled_schedules=(),
    legality=(
        "ep-is-shard",
        "untied-across-stages",
        "micro-batches-fill-1f1b",
        "micro-batches-in-even-rounds",
    ),
)
"""OLMo-core runs torch's FSDP, pipelines and compiler, as torchtitan does, whose rules of memory and time it gets; it
starts by checks of its own."""

VERL_FSDP = replace(
    TORCHTITAN,
    name="verl-fsdp",
    repositories=("verl",),
    estimated_as=TORCHTITAN.name,
    legality=("heads-by-ulysses", "kv-groups-or-copies-by-ulysses"),
)
NEMO_DTENSOR = replace(
    TORCHTITAN,
    name="nemo-rl-dtensor",
    repositories=("NeMo-RL", "Automodel"),
    estimated_as=TORCHTITAN.name,
    legality=("kv-groups-by-tp", "context-without-sequence-parallel"),
)
ROLL_FSDP = replace(VERL_FSDP, name="roll-fsdp2", repositories=("ROLL",))
AREAL_FSDP = replace(
    VERL_FSDP, name="areal-fsdp", repositories=("AReaL",), legality=(*VERL_FSDP.legality, "kv-groups-by-tp")
)
"""A policy that verl, NeMo RL, ROLL or AReaL trains on parameters that torch shards: torchtitan's rules of memory and
time, which files name as not modelled (`parsers.policy.sharded.MODEL_CODE`), and start-up checks of their own."""

AUTOMODEL = replace(
    TORCHTITAN,
    name="automodel",
    repositories=("Automodel", "torch "),
    estimated_as=TORCHTITAN.name,
    # Stages lie in a V under ZBVZeroBubble alone (Automodel 36044ad3
    # nemo_automodel/components/distributed/pipelining/functional.py:801).
    schedules=tuple(name for name in TORCHTITAN.schedules if name != "dualpipev"),
    filled_schedules=(),
    legality=(
        "kv-groups-by-tp",
        "ep-in-dp-tp-cp",
        "op-holds-cp",
        "micro-batches-fill-pipeline",
        "micro-batches-in-even-rounds",
    ),
)
"""NeMo Automodel runs its layers on torch's FSDP, pipelines and tensors: torchtitan's rules of memory and time, and
start-up checks of its own (`parsers.automodel.start_rules`)."""

TRAINERS = (
    TRANSFORMERS,
    DEEPSPEED,
    GPT_NEOX,
    NANOTRON,
    OLMO_CORE,
    VERL_FSDP,
    NEMO_DTENSOR,
    ROLL_FSDP,
    AREAL_FSDP,
    AUTOMODEL,
)

ALL_FRAMEWORKS = {**FRAMEWORKS, **{each.name: each for each in TRAINERS}}
"""Every framework by its name."""
