"""Recipes of NeMo Automodel: dense fine-tuning, a mixture of experts in a pipeline, and adapters."""

RECIPE = """\
# automodel llama.yaml --nproc-per-node 8
recipe: TrainFinetuneRecipeForNextTokenPrediction

step_scheduler:
  global_batch_size: 64
  local_batch_size: 4
  max_steps: 100

model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained
  pretrained_model_name_or_path: meta-llama/Llama-3.1-8B
  torch_dtype: bf16

distributed:
  strategy: fsdp2
  dp_size: none
  tp_size: 2
  cp_size: 1
  sequence_parallel: true
  activation_checkpointing: false # none

loss_fn:
  _target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy

dataset:
  _target_: nemo_automodel.components.datasets.llm.squad.make_squad_dataset
  seq_length: 2048

optimizer:
  _target_: torch.optim.Adam
  lr: 1.0e-5

ci:
  nodes: 2
"""
PIPELINE = """\
recipe: BenchmarkingRecipeForNextTokenPrediction

step_scheduler:
  global_batch_size: 512
  local_batch_size: 8
  max_steps: 12

distributed:
  strategy: fsdp2
  tp_size: 1
  cp_size: 1
  pp_size: 4
  ep_size: 64
  activation_checkpointing: true
  pipeline:
    pp_schedule: interleaved1f1b
    pp_microbatch_size: 1
    round_virtual_stages_to_pp_multiple: up
    layers_per_stage: 2
  moe:
    reshard_after_forward: false

model:
  _target_: nemo_automodel.NeMoAutoModelForCausalLM.from_config
  config:
    _target_: transformers.AutoConfig.from_pretrained
    pretrained_model_name_or_path: deepseek-ai/DeepSeek-V3
  backend:
    _target_: nemo_automodel.components.models.common.BackendConfig
    attn: te
    linear: te
    rms_norm: te
    experts: torch_mm
    dispatcher: hybridep
    fake_balanced_gate: true

loss_fn:
  _target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy

dataset:
  _target_: nemo_automodel.components.datasets.llm.mock_iterable_dataset.MockIterableDataset
  seq_len: 4096

optimizer:
  _target_: torch.optim.Adam

ci:
  nodes: 32
"""
"""The largest published benchmark with its pipeline (docs/performance-summary.mdx)."""
ADAPTERS = RECIPE.replace(
    "distributed:\n",
    """\
peft:
  _target_: nemo_automodel.components._peft.lora.PeftConfig
  target_modules: '*_proj'
  dim: 16

distributed:
""",
)
