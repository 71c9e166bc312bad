"""A YAML of AReaL whose actor trains on FSDP."""

SHARDED = """\
# GRPO on half of a node.
experiment_name: grpo
trial_name: trial0
cluster: {n_nodes: 1, n_gpus_per_node: 8}
rollout:
  backend: "sglang:d4p1t1"
gconfig:
  n_samples: 4
  max_new_tokens: 1024
actor:
  backend: "fsdp:d4p1t1"
  path: Qwen/Qwen3-8B
  gradient_checkpointing: true
  dtype: bfloat16
  mb_spec:
    max_tokens_per_mb: 10240
  optimizer:
    type: adam
  max_new_tokens: ${gconfig.max_new_tokens}
train_dataset:
  batch_size: 256
  type: rl
  max_length: 1024
"""
