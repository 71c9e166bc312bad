"""Small Primus files: a checkout with presets of a few lines, and merged files that stand alone."""

from __future__ import annotations

from pathlib import Path

EXPERIMENT = """\
work_group: ${PRIMUS_TEAM:amd}
user_name: ${PRIMUS_USER:root}
exp_name: ${PRIMUS_EXP_NAME:small}
workspace: ./output

modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml

    # model to run
    model: small.yaml
    overrides:
      micro_batch_size: 2
      global_batch_size: ${BATCH:64}   # of all ranks
      seq_length: 4096
      tensor_model_parallel_size: ${PRIMUS_TP:1}
      pipeline_model_parallel_size: 2
      gradient_accumulation_fusion: false
      train_data_path: ${DATA:null}
"""

MEGATRON_PRESETS = {
    "modules/module_base.yaml": "trainable: false\nsink_level: null\n",
    "modules/megatron/trainer_base.yaml": """\
extends:
  - ../module_base.yaml
micro_batch_size: 4
global_batch_size: 128
bf16: true
use_distributed_optimizer: true
recompute_granularity: null
recompute_method: null
recompute_num_layers: null
gradient_accumulation_fusion: true
patch_zero_bubble: false
enable_zero_bubble: true
enable_primus_turbo: false
use_turbo_deepep: false
lora:
  enabled: false
  dim: 32
""",
    "modules/megatron/pre_trainer.yaml": "extends:\n  - trainer_base.yaml\ntrainable: true\nseq_length: 1024\n",
    "models/megatron/base.yaml": """\
num_layers: 24
add_bias_linear: false
swiglu: true
normalization: RMSNorm
position_embedding_type: rope
untie_embeddings_and_output_weights: true
sequence_parallel: true
hidden_dropout: 0.0
attention_dropout: 0.0
seq_length: 512
""",
    "models/megatron/small.yaml": """\
extends: base.yaml
num_layers: 16
hidden_size: 2048
ffn_hidden_size: 8192
num_attention_heads: 16
group_query_attention: true
num_query_groups: 4
vocab_size: 32000
""",
    "models/megatron/experts.yaml": """\
extends:
  - small.yaml
num_experts: 8
moe_router_topk: 2
moe_ffn_hidden_size: 1024
moe_layer_freq: "([0]*1+[1]*15)"
mtp_num_layers: 1
expert_model_parallel_size: 4
""",
}

TITAN_EXPERIMENT = """\
work_group: amd
user_name: root
exp_name: small
workspace: ./output

modules:
  pre_trainer:
    framework: torchtitan
    config: pre_trainer.yaml
    model: llama3_8b.yaml
    overrides:
      training:
        local_batch_size: 8
        seq_len: ${SEQ:8192}
      activation_checkpoint:
        mode: "none"  # none, selective or full
"""

TITAN_PRESETS = {
    "modules/torchtitan/pre_trainer.yaml": """\
sink_level: null
training:
  mock_data: true
  local_batch_size: 2
  global_batch_size: -1
  seq_len: 2048
parallelism:
  data_parallel_replicate_degree: 1
  data_parallel_shard_degree: -1
  tensor_parallel_degree: 1
  pipeline_parallel_degree: 1
  pipeline_parallel_schedule: 1F1B
  module_fqns_per_model_part: null
activation_checkpoint:
  mode: none
  selective_ac_option: "2"
primus_turbo:
  enable_primus_turbo: true
  use_turbo_attention: true
""",
    "models/torchtitan/llama3_8b.yaml": """\
model:
  name: llama3
  flavor: 8B
  converters:
    - primus_turbo
""",
}

MERGED = """\
# Merged by primus-cli with --export_config.
modules:
  pre_trainer:
    framework: megatron
    model: small.yaml
    bf16: true
    num_layers: 16
    hidden_size: 2048
    ffn_hidden_size: 8192
    num_attention_heads: 16
    vocab_size: 32000
    add_bias_linear: false
    swiglu: true
    normalization: RMSNorm
    position_embedding_type: rope
    untie_embeddings_and_output_weights: true
    micro_batch_size: 1
    global_batch_size: 64
    seq_length: 4096
    tensor_model_parallel_size: 2
    sequence_parallel: true
    pipeline_model_parallel_size: 4
    use_distributed_optimizer: true
"""

TITAN_MERGED = """\
# Merged by primus-cli with --export_config.
modules:
  pre_trainer:
    framework: torchtitan
    model:
      name: llama3
      flavor: 8B
    training:
      local_batch_size: 8
      seq_len: 4096
    parallelism:
      data_parallel_shard_degree: 2
      pipeline_parallel_degree: 4
    activation_checkpoint:
      mode: none
"""


def checkout(folder: Path, experiment: str = EXPERIMENT, name: str = "configs/MI355X/small.yaml") -> Path:
    """A checkout of Primus with an experiment in it; the experiment's path."""
    for file, text in (MEGATRON_PRESETS | TITAN_PRESETS).items():
        path = folder / "primus" / "configs" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    path = folder / "examples" / "megatron" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(experiment, encoding="utf-8")
    return path
