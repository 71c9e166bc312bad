"""A YAML of ROLL whose actor Megatron trains, and a fine-tuning on FSDP2."""

MEGATRON = """\
# A policy on two nodes.
hydra:
  run:
    dir: .
exp_name: "policy"
num_gpus_per_node: 8
rollout_batch_size: 64
prompt_length: 1024
response_length: 3072
num_return_sequences_in_group: 8
pretrain: Qwen/Qwen3-8B
actor_train:
  model_args:
    disable_gradient_checkpointing: false
    dtype: bf16
  training_args:
    learning_rate: 1.0e-6
    per_device_train_batch_size: 1
    gradient_accumulation_steps: 32 # of a rank
  strategy_args:
    strategy_name: megatron_train
    strategy_config:
      tensor_model_parallel_size: 2
      pipeline_model_parallel_size: 4
      sequence_parallel: true
      use_distributed_optimizer: true
      recompute_granularity: full
      apply_rope_fusion: true
  device_mapping: list(range(0,16))
  infer_batch_size: 4
actor_infer:
  generating_args:
    max_new_tokens: ${response_length}
  strategy_args:
    strategy_name: vllm
  device_mapping: list(range(0,16))
"""
SHARDED = """\
num_gpus_per_node: 8
sequence_length: 4096
pretrain: Qwen/Qwen3-8B
sft_train:
  model_args:
    ulysses_size: 2
    disable_gradient_checkpointing: true
  training_args:
    per_device_train_batch_size: 1
    gradient_accumulation_steps: 8
  strategy_args:
    strategy_name: fsdp2_train
    strategy_config:
      fsdp_size: 8
      param_dtype: bf16
      reduce_dtype: float32
  device_mapping: list(range(0,8))
"""
