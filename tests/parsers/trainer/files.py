"""Small files of the tools that hand a job to Hugging Face's Trainer."""

from __future__ import annotations

LLAMA_FACTORY = """\
### model
model_name_or_path: Qwen/Qwen3-8B
### method
stage: sft
do_train: true
finetuning_type: full
deepspeed: ds.json  # beside the file
### dataset
cutoff_len: 4096
### train
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
bf16: true
"""
AXOLOTL = """\
base_model: meta-llama/Llama-3.1-8B
datasets:
  - path: a/b
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_torch_fused
bf16: auto
gradient_checkpointing: true
fsdp_version: 2
fsdp_config:
  offload_params: false
  reshard_after_forward: true
"""
NEWER = """\
model: Qwen/Qwen3-0.6B
model_class: llm
dist_config:
  name: fsdp2
train_dataset: data.yaml
micro_batch_size: 2
cutoff_len: 2048
"""
SCRIPT = """\
#!/bin/bash
torchrun --nproc_per_node=8 --nnodes=2 run_clm.py \\
    --model_name_or_path meta-llama/Llama-3.1-8B \\
    --per_device_train_batch_size 2 \\
    --gradient_accumulation_steps 4 \\
    --block_size 4096 \\
    --bf16 True \\
    --gradient_checkpointing True \\
    --deepspeed ds.json \\
    --output_dir out
"""
DEEPSPEED = """\
{"train_batch_size": "auto", "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "overlap_comm": false,
 "reduce_bucket_size": "auto", "stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9}}
"""
NEOX = """\
# Pythia-12B, as its paper describes it
{
  "pipe-parallel-size": 4,
  "model-parallel-size": 4,
  "num-layers": 36,
  "hidden-size": 5120,
  "num-attention-heads": 40,
  "seq-length": 2048,
  "max-position-embeddings": 2048,
  "pos-emb": "rotary",
  "rotary-pct": 0.25,
  "no-weight-tying": true,
  "gpt-j-residual": true,
  "tokenizer_type": "HFTokenizer",
  "zero_optimization": {"stage": 1, "reduce_bucket_size": 1260000000, "overlap_comm": True},
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 8,
  "checkpoint-activations": true,
  "checkpoint-num-layers": 1,
  "fp16": {"enabled": true},
  "hidden-dropout": 0,
  "attention-dropout": 0,
}
"""
FILES = {"lf.yaml": LLAMA_FACTORY, "axolotl.yml": AXOLOTL, "newer.yaml": NEWER, "run.sh": SCRIPT, "neox.yml": NEOX}
