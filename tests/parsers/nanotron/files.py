"""nanotron YAML files, as its examples write them."""

LLAMA = """\
# Llama-3.1-8B on 16 devices
general:
  project: debug
  run: llama_%date_%jobid
  seed: 42
model:
  ddp_bucket_cap_mb: 25
  dtype: bfloat16
  init_method:
    std: 0.025
  make_vocab_size_divisible_by: 1
  model_config:
    hidden_act: silu
    hidden_size: 4096
    intermediate_size: 14336
    is_llama_config: true
    max_position_embeddings: 8192
    num_attention_heads: 32
    num_hidden_layers: 32
    num_key_value_heads: 8
    rms_norm_eps: 1.0e-05
    tie_word_embeddings: false
    vocab_size: 128256
optimizer:
  accumulate_grad_in_fp32: true
  clip_grad: 1.0
  learning_rate_scheduler:
    learning_rate: 0.0003
  optimizer_factory:
    adam_beta1: 0.9
    adam_beta2: 0.95
    adam_eps: 1.0e-08
    name: adamW
    torch_adam_is_fused: true
  weight_decay: 0.01
  zero_stage: 1
parallelism:
  dp: 2
  expert_parallel_size: 1
  pp: 4   # stages
  pp_engine: 1f1b
  tp: 2
  tp_linear_async_communication: true
  tp_mode: REDUCE_SCATTER
tokens:
  batch_accumulation_per_replica: 8
  micro_batch_size: 1
  sequence_length: 8192
  train_steps: 100
"""
MOE = """\
model:
  model_config:
    hidden_size: 256
    intermediate_size: 768
    is_qwen2_config: true
    num_attention_heads: 4
    num_hidden_layers: 12
    tie_word_embeddings: true
    vocab_size: 128256
    moe_config:
      num_experts: 8
      top_k: 1
      enable_shared_expert: true
optimizer:
  accumulate_grad_in_fp32: false
  zero_stage: 0
parallelism:
  dp: 2
  pp: 1
  tp: 1
tokens:
  batch_accumulation_per_replica: 1
  micro_batch_size: 3
  sequence_length: 4096
"""
