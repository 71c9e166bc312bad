"""A YAML file made for a model alone, of MindFormers' new generation (``use_legacy: False``)."""

from __future__ import annotations

import json

from taylor.parsers.new_file import NewFile, NewJob
from taylor.register.layers import MoeSpec
from taylor.register.model import MlaSpec, ModelSpec

_DENSE, _EXPERTS, _SHARED, _LATENT = (
    ("qwen3", "Qwen3ForCausalLM"),
    ("qwen3_moe", "Qwen3MoeForCausalLM"),
    ("glm4_moe", "Glm4MoeForCausalLM"),
    ("deepseek_v3", "DeepseekV3ForCausalLM"),
)
"""Model type and class of MindFormers' core models (master 167a50de mindformers/models): one class builds all of them
from the sizes and switches of the file, so that a model goes under the type whose parts it has."""


def _class_of(model: ModelSpec) -> tuple[str, str]:
    if model.mla is not None:
        return _LATENT
    if model.moe is None:
        return _DENSE
    return _SHARED if model.moe.shared_width or model.moe.first_dense else _EXPERTS


def mindformers_yaml(job: NewJob) -> str:
    """The file; its data set is the user's, which its comment says."""
    model = job.model
    entries = {**_model_entries(model, job.seq_length), **_expert_entries(model.moe)}
    lines = "".join(f"    {name}: {_yaml(value)}\n" for name, value in entries.items())
    columns = '["input_ids", "labels", "loss_mask", "position_ids"]'
    return f"""\
# {json.dumps(model.name)[1:-1]} on {job.ranks} ranks, for MindFormers; planned by Taylor.
# Start it with run_mindformer.py --config FILE. Put your data under train_dataset.data_loader.config.data_path: a bin
# file of Megatron's form without its suffix. Sizes alone are stated: add rope_theta, rms_norm_eps and the router's
# scores and loss as the model's card gives them.
seed: 0
run_mode: 'train'
use_parallel: True
use_legacy: False
output_dir: './output'
load_checkpoint: ''

trainer:
  type: CausalLanguageModelingTrainer
  model_name: {json.dumps(model.name)}

runner_config:
  epochs: 1
  batch_size: 1
  gradient_accumulation_steps: {job.global_batch // job.dp}
runner_wrapper:
  type: MFTrainOneStepCell
  scale_sense: 1.0
  use_clip_grad: True

optimizer:
  type: AdamW
  betas: [0.9, 0.95]
  eps: 1.e-8
lr_schedule:
  type: ConstantWarmUpLR
  learning_rate: 1.e-5
  warmup_ratio: 0.01
  total_steps: -1

train_dataset: &train_dataset
  data_loader:
    type: BlendedMegatronDatasetDataLoader
    datasets_type: "GPTDataset"
    sizes: [{1000 * job.global_batch}, 0, 0]
    config:
      seed: 1234
      split: "1, 0, 0"
      seq_length: {job.seq_length}
      eod_mask_loss: False
      reset_position_ids: False
      create_attention_mask: False
      reset_attention_mask: False
      create_compressed_eod_mask: False
      eod: 1
      pad: -1
      data_path: ['1', "./data/text_document"]
  input_columns: {columns}
  construct_args_key: {columns}
  num_parallel_workers: 8
  drop_remainder: True
train_dataset_task:
  type: CausalLanguageModelDataset
  dataset_config: *train_dataset

context:
  mode: 0
  device_target: "Ascend"
  jit_config:
    jit_level: "O0"

parallel_config:
  data_parallel: &dp {job.dp}
  model_parallel: 1
  pipeline_stage: 1
  expert_parallel: 1
  context_parallel: {job.rest}
  micro_batch_num: &micro_batch_num 1
  use_seq_parallel: False
micro_batch_interleave_num: 1

parallel:
  parallel_mode: 1
  gradients_mean: False
  enable_alltoall: {model.moe is not None}
  full_batch: False
  dataset_strategy: [[*dp, 1], [*dp, 1], [*dp, 1], [*dp, 1]]
  enable_parallel_optimizer: True
  parallel_optimizer_config:
    gradient_accumulation_shard: False
    parallel_optimizer_threshold: 64

recompute_config:
  recompute: True
  select_recompute: False
  parallel_optimizer_comm_recompute: False
  mp_comm_recompute: True
  recompute_slice_activation: True

model:
  model_config:
{lines}
callbacks:
  - type: MFLossMonitor
"""


def _model_entries(model: ModelSpec, seq_length: int) -> dict[str, object]:
    """The entries that `parsers.mindformers.model.read_model` reads; the check covers the rest."""
    kind, architecture = _class_of(model)
    entries: dict[str, object] = {
        "model_type": kind,
        "architectures": [architecture],
        "seq_length": seq_length,
        "max_position_embeddings": seq_length,
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn_hidden,
        "num_hidden_layers": model.n_layers,
        "num_nextn_predict_layers": model.mtp_layers,
        "num_attention_heads": model.n_heads,
        "num_key_value_heads": model.n_heads if model.mla else model.n_kv_heads,
        **(_latent_entries(model.mla) if model.mla else {"head_dim": model.head_dim, "qk_layernorm": model.qk_norm}),
        "normalization": "LayerNorm" if model.norm_bias else "RMSNorm",
        "position_embedding_type": "learned_absolute" if model.learned_positions else "rope",
        "gated_linear_unit": model.gated_mlp,
        "hidden_act": "silu" if model.gated_mlp else "gelu",
        "tie_word_embeddings": model.tied_embedding,
        "untie_embeddings_and_output_weights": not model.tied_embedding,
        "add_bias_linear": model.mlp_bias,
        "attention_bias": model.attention_bias,
        "add_qkv_bias": model.attention_bias,
        "use_flash_attention": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "input_sliced_sig": True,
        "params_dtype": "float32",
        "compute_dtype": "bfloat16",
        "layernorm_compute_dtype": "float32",
        "softmax_compute_dtype": "float32",
        "rotary_dtype": "float32",
        "offset": 0,
        "pp_interleave_num": 1,
    }
    return entries


def _latent_entries(latent: MlaSpec) -> dict[str, object]:
    return {
        "multi_latent_attention": True,
        "q_lora_rank": latent.q_lora_rank,
        "kv_lora_rank": latent.kv_lora_rank,
        "qk_rope_head_dim": latent.qk_rope_head_dim,
        "qk_nope_head_dim": latent.qk_nope_head_dim,
        "v_head_dim": latent.v_head_dim,
        "qk_layernorm": True,
    }


def _expert_entries(moe: MoeSpec | None) -> dict[str, object]:
    if moe is None:
        return {}
    return {
        "n_routed_experts": moe.n_experts,
        "num_experts": moe.n_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.expert_hidden,
        "n_shared_experts": 1 if moe.shared_width else 0,
        "moe_shared_expert_intermediate_size": moe.shared_width,
        "use_shared_expert_gating": moe.shared_gate,
        "first_k_dense_replace": moe.first_dense,
        "moe_router_enable_expert_bias": moe.correction_bias,
        **({"n_group": moe.n_groups, "topk_group": moe.top_groups} if moe.n_groups > 1 else {}),
        "moe_grouped_gemm": True,
    }


def _yaml(value: object) -> str:
    if value is None or isinstance(value, (bool, int, float)):
        return "null" if value is None else str(value)
    return json.dumps(value)


NEW_FILES = (NewFile("mindformers", "MindFormers", ".yaml", mindformers_yaml, on_ascend=True),)
