"""A YAML of NeMo RL with all that its bases state, and one for DTensors."""

MEGATRON = """\
# A policy on eight nodes.
grpo:
  num_prompts_per_step: 64
  num_generations_per_prompt: 8
policy:
  model_name: "Qwen/Qwen3-8B"
  train_global_batch_size: 512
  train_micro_batch_size: 1
  max_total_sequence_length: 4096
  precision: "bfloat16"
  dtensor_cfg:
    enabled: false
  megatron_cfg:
    enabled: true
    activation_checkpointing: true # all layers
    tensor_model_parallel_size: 2
    pipeline_model_parallel_size: 4
    num_layers_in_first_pipeline_stage: null
    num_layers_in_last_pipeline_stage: null
    context_parallel_size: 1
    expert_model_parallel_size: 1
    expert_tensor_parallel_size: 1
    sequence_parallel: true
    apply_rope_fusion: true
    gradient_accumulation_fusion: false
    optimizer:
      optimizer: "adam"
      bf16: true
      use_distributed_optimizer: true
      use_precision_aware_optimizer: true
    distributed_data_parallel_config:
      grad_reduce_in_fp32: false
      overlap_grad_reduce: true
      overlap_param_gather: true
      use_custom_fsdp: false
      data_parallel_sharding_strategy: "optim_grads_params"
  sequence_packing:
    enabled: true
    train_mb_tokens: ${mul:${policy.max_total_sequence_length}, ${policy.train_micro_batch_size}}
  generation:
    colocated:
      enabled: true
cluster:
  gpus_per_node: 8
  num_nodes: 2
"""
PPO = (
    MEGATRON.replace("grpo:", "ppo:").replace(
        "num_generations_per_prompt: 8", "num_generations_per_prompt: 8\n  ppo_epochs: 2"
    )
    + """\
value:
  model_name: Qwen/Qwen3-1.7B
  train_global_batch_size: ${policy.train_global_batch_size}
  train_micro_batch_size: 4
  logprob_batch_size: 8
  max_total_sequence_length: ${policy.max_total_sequence_length}
  precision: "bfloat16"
  dtensor_cfg:
    enabled: false
  megatron_cfg:
    enabled: true
    activation_checkpointing: false
    tensor_model_parallel_size: 2
    pipeline_model_parallel_size: 1
    context_parallel_size: 1
    expert_model_parallel_size: 1
    expert_tensor_parallel_size: 1
    sequence_parallel: true
    optimizer:
      optimizer: "adam"
      bf16: true
      use_distributed_optimizer: true
"""
)
SHARDED = """\
sft:
  max_num_steps: 60
policy:
  model_name: meta-llama/Llama-3.1-8B
  train_global_batch_size: 64
  train_micro_batch_size: 1
  max_total_sequence_length: 2048
  precision: bfloat16
  dtensor_cfg:
    enabled: true
    sequence_parallel: false
    activation_checkpointing: true
    tensor_parallel_size: 2
    context_parallel_size: 1
  megatron_cfg:
    enabled: false
cluster:
  gpus_per_node: 8
  num_nodes: 1
"""
