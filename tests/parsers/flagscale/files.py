"""FlagScale files of our own in the shape of its examples (FlagOpen/FlagScale da4935ec examples/*/conf)."""

from __future__ import annotations

import textwrap
from pathlib import Path

EXPERIMENT = """\
# What is started.
defaults:
  - train: small  # the train file
  - _self_

experiment:
  exp_name: small
  seed: 42
  batch: 64
  task:
    type: train
    backend: megatron
    entrypoint: ./flagscale/train/train_gpt.py
  runner:
    backend: torchrun
    nnodes: 2
    nproc_per_node: 8
    hostfile: hosts
  envs:
    CUDA_VISIBLE_DEVICES: 0,1,2,3,4,5,6,7

action: run
"""
TRAIN = """\
system:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 4   # four stages
  sequence_parallel: true
  use_distributed_optimizer: True
  overlap_grad_reduce: false
  precision:
    bf16: true

# The model.
model:
  transformer_impl: transformer_engine
  num_layers: 16
  hidden_size: 2048
  ffn_hidden_size: 8192
  num_attention_heads: 16
  group_query_attention: true
  num_query_groups: 8 # key-value heads
  seq_length: 4096
  max_position_embeddings: 4096
  swiglu: true
  normalization: RMSNorm
  position_embedding_type: rope
  untie_embeddings_and_output_weights: true
  disable_bias_linear: true
  attention_dropout: 0.0
  hidden_dropout: 0.0
  seed: ${experiment.seed}
  micro_batch_size: 1
  global_batch_size: ${experiment.batch}
  optimizer:
    lr_scheduler:
      lr: 3.0e-4

data:
  data_path: /data
  tokenizer:
    vocab_size: 128256
"""
ONE_FILE = (
    EXPERIMENT.replace("  - train: small  # the train file\n", "")
    + "train:\n"
    + textwrap.indent(TRAIN.replace("${experiment.batch}", "64"), "  ")
)
"""The same job with its train sections in the experiment's file."""
COMMAND = """\
torchrun --nnodes 2 --nproc-per-node 8 train_gpt.py \\
    --tensor-model-parallel-size 2 --pipeline-model-parallel-size 4 --sequence-parallel --use-distributed-optimizer \\
    --bf16 --transformer-impl transformer_engine --num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 \\
    --num-attention-heads 16 --group-query-attention --num-query-groups 8 --seq-length 4096 \\
    --max-position-embeddings 4096 --swiglu --normalization RMSNorm --position-embedding-type rope \\
    --untie-embeddings-and-output-weights --disable-bias-linear --attention-dropout 0.0 --hidden-dropout 0.0 \\
    --seed 42 --micro-batch-size 1 --global-batch-size 64 --lr 3.0e-4 --data-path /data --vocab-size 128256
"""
"""What FlagScale starts for it (flagscale/runner/runner_train.py:30-48, runner/utils.py:271-330)."""


def job(folder: Path, train: str = TRAIN, experiment: str = EXPERIMENT) -> Path:
    """An experiment with its train file in a folder; gives the experiment."""
    (folder / "train").mkdir(parents=True, exist_ok=True)
    (folder / "train" / "small.yaml").write_text(train, encoding="utf-8")
    path = folder / "small.yaml"
    path.write_text(experiment, encoding="utf-8")
    return path
