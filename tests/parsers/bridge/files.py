"""A resolved ConfigContainer.yaml and a script with a recipe, in the forms of Megatron-Bridge."""

CONTAINER = """\
_target_: megatron.bridge.training.config.ConfigContainer
checkpoint:
  _target_: megatron.bridge.training.config.CheckpointConfig
  save: /results/checkpoints
comm_overlap: null
dataset:
  _target_: megatron.bridge.training.config.GPTDatasetConfig
  seq_length: 4096
ddp:
  _target_: megatron.core.distributed.distributed_data_parallel_config.DistributedDataParallelConfig
  grad_reduce_in_fp32: true
  overlap_grad_reduce: true
  overlap_param_gather: true
  use_distributed_optimizer: true
  use_megatron_fsdp: false
mixed_precision:
  _target_: megatron.bridge.training.mixed_precision.MixedPrecisionConfig
  bf16: true
  fp8: null
  fp8_recipe: tensorwise
  grad_reduce_in_fp32: false
  params_dtype:
    _call_: false
    _target_: torch.bfloat16
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  activation_func:
    _call_: false
    _target_: torch.nn.functional.silu
  add_bias_linear: false
  add_qkv_bias: false
  attention_backend:
    _args_:
    - 5
    _call_: true
    _target_: megatron.core.transformer.enums.AttnBackend
  attention_dropout: 0.0
  context_parallel_size: 1
  expert_model_parallel_size: 1
  ffn_hidden_size: 14336
  fp8: null
  gated_linear_unit: true
  hidden_dropout: 0.0
  hidden_size: 4096
  hf_model_id: meta-llama/Meta-Llama-3-8B
  kv_channels: 128
  make_vocab_size_divisible_by: 128
  moe_layer_freq: 1
  mtp_num_layers: null
  normalization: RMSNorm
  num_attention_heads: 32
  num_layers: 32
  num_layers_in_first_pipeline_stage: null
  num_layers_in_last_pipeline_stage: null
  num_moe_experts: null
  num_query_groups: 8
  params_dtype:
    _call_: false
    _target_: torch.bfloat16
  pipeline_model_parallel_layout: null
  pipeline_model_parallel_size: 4
  position_embedding_type: rope
  recompute_granularity: null
  recompute_method: null
  recompute_modules: null
  recompute_num_layers: null
  seq_length: 8192
  sequence_parallel: true
  share_embeddings_and_output_weights: false
  should_pad_vocab: false
  tensor_model_parallel_size: 2
  transformer_impl: transformer_engine
  virtual_pipeline_model_parallel_size: null
  vocab_size: 128256
optimizer:
  _target_: megatron.bridge.training.config.OptimizerConfig
  main_grads_dtype:
    _call_: false
    _target_: torch.bfloat16
  optimizer: adam
  use_distributed_optimizer: true
  use_precision_aware_optimizer: true
peft: null
train:
  _target_: megatron.bridge.training.config.TrainingConfig
  global_batch_size: 64
  micro_batch_size: 1
"""
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
MODEL_NAME=qwen3_30b_a3b
SEQ_LENGTH=2048
PARALLELISM_CONFIGS=("4,2,8,1,True" "2,2,8,1,True")
for CONFIG in "${PARALLELISM_CONFIGS[@]}"; do
    IFS=',' read -r TP PP EP CP SP <<< "$CONFIG"
    CLI_OVERRIDES="\\
        model.seq_length=$SEQ_LENGTH \\
        train.global_batch_size=128 \\
        train.micro_batch_size=2 \\
        checkpoint.save=/results/${MODEL_NAME}_tp${TP} \\
        model.tensor_model_parallel_size=$TP \\
        model.pipeline_model_parallel_size=$PP \\
        model.expert_model_parallel_size=$EP \\
        model.sequence_parallel=$SP \\
        model.context_parallel_size=$CP"
    CMD="uv run python scripts/training/run_recipe.py"
    CMD="$CMD --recipe ${MODEL_NAME}_pretrain_16gpu_h100_bf16_config"
    CMD="$CMD $CLI_OVERRIDES"
    echo $CMD
    srun bash -c "$CMD"
done
"""
