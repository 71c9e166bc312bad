"""Trainers that launch scripts and YAML files name by marks of their own, and that no launcher here reads.

The kinds stand before those of `parsers.other_files`, whose signs are wider: a part of a gpt-neox configuration may
have DeepSpeed's keys too.
"""

from __future__ import annotations

import re
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.parsers.other_files import OtherFile, refuse_kinds
from taylor.parsers.text.yaml_source import MAX_BYTES

_FLAGS = "state the job as Megatron's flags in a .sh script"
_STAGED = f"{_FLAGS} to plan it with pipeline stages"
_SHARDED = "FSDP shards its parameters, without pipeline stages"
_JAX = "JAX lays its arrays out over a mesh of devices, and XLA places the layers"
_ROLL_OUTS = "it describes several models and their roll-outs, not one training step"
_NOT_TRAINING = "it trains nothing"
_TRAINING_SCRIPT = "give the script that launches the training"
_WHOLE_YAML = "give the YAML of the training"

OTHER_TOOLS = (
    OtherFile(
        "a nanotron training",
        "",
        "give its YAML with -yaml (parallel_tool.py: --yaml_path)",
        (),
        r"\brun_train\.py\b[^\n]*--config-file\b|\btrain_\w+\.py\b[^\n]*--config-file\b|\bnanotron\b",
        "huggingface/nanotron 2411b022 examples/train_tiny_llama.sh",
    ),
    OtherFile(
        "a torchtitan TOML",
        "",
        "give its TOML with -toml (parallel_tool.py: --toml_path), and write what the command overrides into it",
        (),
        r"\bCONFIG_FILE=\S*\.toml[^\n]*\brun_train\.sh\b",
        "pytorch/torchtitan v0.2.2 run_train.sh:22",
    ),
    OtherFile(
        "a Primus file that extends an experiment and states no modules",
        "Primus reads the options of modules alone, so that lora and the batches at its top have no effect",
        "give the experiment that it extends, or state these options below modules",
        (("extends", "lora", "global_batch_size"),),
        "",
        "AMD-AGI/Primus fd1eeabb examples/megatron/configs/MI355X/llama3_8B-BF16-lora-sft.yaml; "
        "primus/core/launcher/parser.py:330-343",
    ),
    OtherFile(
        "a part of a gpt-neox configuration",
        "it states data, checkpoints or logging, and the model stands in another file",
        "give the file with the model, or a script that runs deepy.py with all of them",
        (
            ("data_path", "vocab_file"),
            ("data-path", "vocab-file"),
            ("train_data_paths", "vocab_file"),
            ("train_data_paths",),
            ("train-data-paths",),
            ("sparsity_config", "attention_config"),
            ("text_gen_type",),
            ("global_num_gpus",),
            ("memory_profiling_path", "profile_step_start"),
        ),
        "",
        "EleutherAI/gpt-neox ea7aefd8 configs/local_setup.yml, sparse.yml, text_generation.yml, prof.yml",
    ),
    OtherFile(
        "a Hugging Face model under DeepSpeed",
        "it is trained by a program of Pai-Megatron-Patch's own, without Megatron's layers",
        "give the script of the same model that starts Megatron: run_pretrain_megatron_*.sh",
        (),
        r"\bds_train_huggingface_\w+\.py\b",
        "alibaba/Pai-Megatron-Patch a098ca5a examples/baichuan/run_ds_train_huggingface_baichuan.sh",
    ),
    OtherFile(
        "a setting of axolotl's remote machines",
        _NOT_TRAINING,
        _WHOLE_YAML,
        (("secrets", "gpu", "gpu_count"),),
        "",
        "axolotl-ai-cloud/axolotl 067b021c examples/cloud/baseten.yaml, modal.yaml",
    ),
    OtherFile(
        "a ChatLearn job",
        _ROLL_OUTS,
        f"{_FLAGS}, the policy's",
        (),
        r"\bchatlearn_entrypoint\.py\b|\bchatlearn\.\w",
        "alibaba/Pai-Megatron-Patch a098ca5 examples/qwen3/run_mcore_qwen3_8b_chatlearn.sh",
    ),
    OtherFile(
        "a MegatronMIMO job of Megatron-Bridge",
        "its vision and language parts have degrees of their own",
        f"{_FLAGS}, the language model's",
        (),
        r"\bmegatron_mimo_training\w*\.py\b|\bmegatron_mimo/[\w./]*finetune\w*\.py\b",
        "NVIDIA-NeMo/Megatron-Bridge 067f987d examples/megatron_mimo/qwen35_vl/slurm_sft.sh",
    ),
    OtherFile(
        "a NeMo RL training",
        "",
        "give its YAML with -yaml (parallel_tool.py: --yaml_path), inside its checkout",
        (),
        r"\bexamples/(?:nemo_gym/)?run_(?:\w*grpo\w*|sft|dpo|rm|ppo|\w*distillation\w*|eval\w*)\.py\b|\bnemo_rl\b",
        "NVIDIA-NeMo/RL 7ea279ab examples/configs/recipes, examples/run_grpo.py",
    ),
    OtherFile(
        "a NeMo RL evaluation",
        _NOT_TRAINING,
        _TRAINING_SCRIPT,
        (("eval.metric", "generation"), ("defaults", "generation"), ("defaults", "eval")),
        "",
        "NVIDIA-NeMo/RL 7ea279ab examples/configs/evals/eval.yaml",
    ),
    OtherFile(
        "a ModelOpt quantization recipe",
        _NOT_TRAINING,
        _TRAINING_SCRIPT,
        (("quantize.quant_cfg",), ("quant_cfg", "algorithm"), ("metadata.recipe_type",)),
        "",
        "NVIDIA-NeMo/RL 7ea279ab examples/modelopt/quant_configs/nvfp4_a16.yaml",
    ),
    OtherFile(
        "a LLaMA-Factory (v1) YAML that exports a model",
        _NOT_TRAINING,
        _WHOLE_YAML,
        (("model", "peft_config.export_dir"),),
        "",
        "hiyouga/LLaMA-Factory ff6d4d12 examples/v1/train_lora/export_lora.yaml",
    ),
    OtherFile(
        "a LLaMA-Factory YAML that merges or exports a model",
        _NOT_TRAINING,
        _WHOLE_YAML,
        (("model_name_or_path", "export_dir"),),
        r"\bllamafactory-cli\s+export\b",
        "hiyouga/LLaMA-Factory ff6d4d12 examples/merge_lora/qwen3_full_sft.yaml",
    ),
    OtherFile(
        "a LLaMA-Factory YAML that serves a model",
        _NOT_TRAINING,
        _WHOLE_YAML,
        (("model_name_or_path", "infer_backend"),),
        r"\bllamafactory-cli\s+(?:chat|webchat|api)\b",
        "hiyouga/LLaMA-Factory ff6d4d12 examples/inference/qwen3.yaml",
    ),
    OtherFile(
        "an OLMo-core job",
        "its model and degrees are classes of Python",
        "give the config.json that a run of it saves, or the .sh script that starts a published training script",
        (("model.block.attention", "data_loader"), ("train_module.dp_config",)),
        "",
        "allenai/OLMo-core fa6c5014 src/scripts/train/OLMo2/OLMo2-7B.py, docs/source/guides",
    ),
    OtherFile(
        "a torchtune YAML",
        _SHARDED,
        _STAGED,
        (
            ("model._component_", "tokenizer._component_"),
            ("model._component_", "checkpointer._component_"),
            ("policy_model._component_",),
            ("tokenizer._component_", "dataset._component_"),
        ),
        r"\btune\s+run\b",
        "pytorch/torchtune bd2a0fc7 recipes/configs/llama3_1/8B_lora.yaml, "
        "recipes/configs/mistral/7B_full_ppo_low_memory.yaml",
    ),
    OtherFile(
        "a litgpt YAML",
        _SHARDED,
        _STAGED,
        (("out_dir", "train.save_interval"),),
        r"\blitgpt\s+(?:pretrain|finetune\w*)\b",
        "Lightning-AI/litgpt 26857050 config_hub/finetune/llama-3-8b/lora.yaml, config_hub/pretrain/tinyllama.yaml",
    ),
    OtherFile(
        "an LLM Foundry YAML",
        _SHARDED,
        _STAGED,
        (("model.name", "device_train_microbatch_size"), ("model.name", "train_loader", "tokenizer")),
        r"\bcomposer\s[^\n]*\btrain\.py\b",
        "mosaicml/llm-foundry 8c8dd48f scripts/train/yamls/pretrain/mpt-1b.yaml, "
        "scripts/train/yamls/finetune/dbrx-lora-ft.yaml",
    ),
    OtherFile(
        "an OLMo YAML",
        _SHARDED,
        f"give the script of OLMo-core, or {_STAGED}",
        (("model.d_model", "device_train_microbatch_size"), ("model.d_model", "save_folder")),
        "",
        "allenai/OLMo 59a53e3f configs/official-1124/OLMo2-7B-stage1.yaml, configs/tiny/OLMo-700M.yaml",
    ),
    OtherFile(
        "a Modalities YAML",
        "its parts name classes of Python, which put them together",
        _STAGED,
        (("settings.experiment_id", "settings.step_profile"), ("settings.referencing_keys",)),
        r"\bmodalities\s+run\b",
        "Modalities/modalities bf0e6d32 config_files/training/config_lorem_ipsum_long_fsdp1.yaml",
    ),
    OtherFile(
        "a levanter YAML",
        _JAX,
        _FLAGS,
        (("trainer.mp", "trainer.train_batch_size"), ("trainer.tracker",), ("trainer.num_train_steps", "optimizer")),
        r"\blevanter\.main\.\w+|\blevanter/main/\w+\.py\b",
        "stanford-crfm/levanter 9263f81e config/llama2_7b.yaml, config/backpack_nano.yaml",
    ),
    OtherFile(
        "an InternEvo configuration",
        "it is a program in Python",
        _FLAGS,
        (),
        r"^parallel\s*=\s*dict\(\s*zero1\s*=",
        "InternLM/InternEvo c628a8c8 configs/7B_llama2.py",
        said="is",
    ),
    OtherFile(
        "an XTuner configuration",
        "it is a program in Python",
        _STAGED,
        (),
        r"\bxtuner\s+train\b|^from\s+xtuner\.",
        "InternLM/xtuner b934f462 xtuner/configs/baichuan/baichuan2_13b_base/baichuan2_13b_base_qlora_alpaca_e3.py",
        said="is",
    ),
    OtherFile(
        "a MaxText job",
        _JAX,
        _FLAGS,
        (
            ("base_emb_dim", "base_num_decoder_layers"),
            ("ici_fsdp_parallelism",),
            ("base_config", "per_device_batch_size"),
            ("base_config", "model_name"),
            ("base_config", "use_sft"),
            ("base_config", "data_sharding"),
            ("base_config", "enable_jax_profiler"),
            ("mesh_axes", "logical_axis_rules"),
            ("trainer_devices_fraction", "sampler_devices_fraction"),
            ("model_call_mode", "enable_nnx"),
        ),
        r"\bmaxtext\.trainers\.\w+|\bMaxText[./]train\b|\bMaxText\.\w*train\w*",
        "AI-Hypercomputer/maxtext e591f30c src/maxtext/configs/base.yml:23, 176, 674, "
        "src/maxtext/trainers/pre_train/train.py",
    ),
    OtherFile(
        "a program of MaxText that converts, checks or decodes",
        _NOT_TRAINING,
        _TRAINING_SCRIPT,
        (),
        r"\bmaxtext\.(?:checkpoint_conversion|inference)\.\w+|\bforward_pass_logit_checker\b",
        "AI-Hypercomputer/maxtext e591f30c tests/end_to_end/tpu/deepseek/v3-671b/1_test_deepseek.sh",
        said="starts",
    ),
    OtherFile(
        "a program of verl that rolls out, merges or serves",
        _NOT_TRAINING,
        "give the script that starts verl.trainer.main_ppo or a trainer of fine-tuning",
        (),
        r"\bverl\.trainer\.main_(?:generation|eval)\w*|\bverl\.model_merger\b",
        "volcengine/verl b178a3cd examples/generation/run_deepseek7b_mutli_node.sh, verl/model_merger",
    ),
    OtherFile(
        "a YAML of ms-swift's sampler",
        _NOT_TRAINING,
        "give a script or YAML of megatron pt, sft or rlhf",
        (("num_return_sequences", "num_sampling_batch_size"), ("num_return_sequences", "sampler_type")),
        "",
        "modelscope/ms-swift 3602360a examples/sampler/distill/distill.yaml, examples/sampler/sample/sampling.yaml",
        mistaken=r"^num_return_sequences\s*:",
    ),
    OtherFile(
        "an export of ms-swift",
        "it converts, merges or quantizes a checkpoint and trains nothing",
        "give the script that starts megatron pt, sft or rlhf",
        (),
        r"\b(?:swift|megatron)\s+(?:export|merge-lora)\b",
        "modelscope/ms-swift 3602360a swift/cli/main.py:13-26, swift/cli/_megatron/main.py:6-11",
    ),
    OtherFile(
        "a program of ms-swift that serves, predicts or evaluates",
        _NOT_TRAINING,
        "give the script that starts megatron pt, sft or rlhf",
        (),
        r"\bswift\s+(?:infer|deploy|rollout|sample|eval|app|web-ui)\b",
        "modelscope/ms-swift 3602360a swift/cli/main.py:13-26",
    ),
    OtherFile(
        "another script, which starts a training",
        "it starts none itself",
        "give the script that takes it in by source and starts train.py",
        (),
        r"\A(?![\s\S]*\b(?:torchrun|python3?|srun|deepspeed|msrun|accelerate|\w+\.py)\b)"
        r"[\s\S]*?^(?:MODEL_ARGS(?:=\(|\[\d+\]=)|(?:\w+=\S* )+source\s[^\n]*\.sh)",
        "THUDM/slime 624b824a scripts/models/qwen3-30B-A3B.sh, scripts/models/deepseek-v3-5layer.sh",
        said="sets a model's flags for",
    ),
    OtherFile(
        "a conversion of Megatron-Bridge",
        "it converts a checkpoint or compares two and trains nothing",
        _TRAINING_SCRIPT,
        (),
        r"\bconversion/(?:convert\.sh|\w+\.py)\b",
        "NVIDIA-NeMo/Megatron-Bridge 067f987d scripts/conversion/convert.sh, examples/conversion",
    ),
    OtherFile(
        "a ROLL training",
        "",
        "give its YAML with -yaml (parallel_tool.py: --yaml_path)",
        (),
        r"\bstart_\w+_pipeline\.py\b",
        "alibaba/ROLL 8eb27cc2 examples/start_rlvr_pipeline.py, examples/qwen2.5-7B-rlvr_megatron",
    ),
    OtherFile(
        "a part of a ROLL configuration",
        "it states environments or roll-outs, and trains nothing",
        _WHOLE_YAML,
        (
            ("max_actions_per_traj",),
            ("actor_infer", "train_env_manager"),
        ),
        "",
        "alibaba/ROLL 8eb27cc2 examples/config/traj_envs.yaml, "
        "examples/qwen2.5-0.5B-agentic/agentic_rollout_sokoban.yaml",
    ),
    OtherFile(
        "an AReaL training",
        "",
        "give its YAML with -yaml (parallel_tool.py: --yaml_path), and write what the command overrides into it",
        (),
        r"\bareal\.(?:infra\.)?launcher\b|\bscheduler\.type=(?:local|ray|slurm)\b",
        "inclusionAI/AReaL 4aef98d8 examples/math/gsm8k_grpo.yaml, examples/vlm_npu/qwen3_vl_2b_geometry3k_grpo.sh",
    ),
    OtherFile(
        "an AReaL evaluation",
        _NOT_TRAINING,
        _WHOLE_YAML,
        (("experiment_name", "trial_name", "rollout"),),
        "",
        "inclusionAI/AReaL 4aef98d8 examples/experimental/inference_service/tau2_rollout.yaml",
    ),
    OtherFile(
        "an OpenRLHF training",
        "DeepSpeed shards its parameters, without pipeline stages",
        _STAGED,
        (),
        r"\bopenrlhf\.cli\.train_\w+",
        "OpenRLHF/OpenRLHF 3c3be623 examples/scripts/train_ppo_ray_hybrid_engine.sh",
    ),
    OtherFile(
        "a Slurm job of another script, which starts a training",
        "it starts none itself",
        "give the script that it takes in by source",
        (),
        r"^source\s+\S+\s+slurm\b",
        "OpenRLHF/OpenRLHF 3c3be623 examples/scripts/train_nonrl_slurm.sh",
        said="is",
    ),
    OtherFile(
        "a server of a reward model",
        _NOT_TRAINING,
        _TRAINING_SCRIPT,
        (),
        r"\bopenrlhf\.cli\.(?:serve_rm|batch_inference|interactive_chat|lora_combiner)\b",
        "OpenRLHF/OpenRLHF 3c3be623 examples/scripts/serve_remote_rm.sh",
    ),
    OtherFile(
        "a conversion of DeepSpeed's checkpoints",
        _NOT_TRAINING,
        _TRAINING_SCRIPT,
        (),
        r"\bdeepspeed\.checkpoint\.ds_to_universal\b|\bzero_to_fp32\.py\b",
        "OpenRLHF/OpenRLHF 3c3be623 examples/scripts/ckpt_ds_zero_to_universal.sh",
    ),
    OtherFile(
        "an EasyR1 YAML",
        "it states a part of the options, and the script that names it the rest",
        "give the script that starts verl.trainer.main with it",
        (("worker.actor", "worker.rollout"),),
        "",
        "hiyouga/EasyR1 b44b311b examples/config.yaml",
    ),
    OtherFile(
        "a Kubernetes manifest",
        _NOT_TRAINING,
        _WHOLE_YAML,
        (("apiVersion", "kind"),),
        "",
        "hiyouga/EasyR1 b44b311b examples/android_gui_cookbook/game_docker/game-deployment.yaml; "
        "kubernetes.io/docs/concepts/overview/working-with-objects",
    ),
    OtherFile(
        "a set of environment variables",
        "it states no training",
        _WHOLE_YAML,
        (("env_vars",),),
        "",
        "hiyouga/EasyR1 b44b311b examples/runtime_env.yaml; inclusionAI/AReaL 4aef98d8 examples/environ_ref.yaml",
    ),
    OtherFile(
        "a server of a model",
        _NOT_TRAINING,
        _TRAINING_SCRIPT,
        (),
        r"\bvllm\s+serve\b|\bvllm\.entrypoints\b|\bsglang\.launch_server\b",
        "vllm-project/vllm docs/cli/serve.md; sgl-project/sglang python/sglang/launch_server.py",
    ),
)
"""The kinds, the narrower signs first."""


def refuse_other_tool(file: Path) -> None:
    """Refuse a file of one of these tools; nothing is refused where it is none of them.

    Raises
    ------
    InputError
        With the tool, the reason and the files to give instead.
    """
    refuse_kinds(file, OTHER_TOOLS)


def refuse_mistaken(file: Path) -> None:
    """Refuse a YAML that a reader here would take for one of its own.

    Raises
    ------
    InputError
        With the tool, the reason and the files to give instead.
    """
    if file.suffix.lower() not in (".yaml", ".yml"):
        return
    try:
        text = read_text(file, limit_bytes=MAX_BYTES)
    except InputError:
        return  # The reader says what is wrong with it.
    alike = [kind for kind in OTHER_TOOLS if kind.mistaken and re.search(kind.mistaken, text, re.MULTILINE)]
    if alike:
        refuse_kinds(file, alike)
