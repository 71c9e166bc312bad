"""Training files that no launcher here reads: their true name, and the files to give instead."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import SCRIPT, form_of, read_text
from taylor.parsers.text.yaml_edit import lookup
from taylor.parsers.text.yaml_source import MAX_BYTES, YamlSource

_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_FLAGS = "state the job as Megatron's flags in a .sh script"
_NO_STAGES = "it has no pipeline stages to plan, and it names its model by a folder"
_SEVERAL_MODELS = "it describes several models and their roll-outs, not one training step"


@dataclass(frozen=True)
class OtherFile:
    """A kind of training file that is known by name alone.

    Parameters
    ----------
    title : str
        Its name, with its article: ``a DeepSpeed JSON``.
    why : str
        Reason why it is not read, as a clause; empty where the file itself is read and a script that starts it not.
    cure : str
        Files to give instead.
    signs : tuple of tuple of str
        Dotted keys: a file is of the kind where it holds all of one of them.
    started : str
        Pattern of what stands in a script or a Python file that starts such a job; empty where nothing tells.
    source : str
        Repository, commit or release, and file that the signs stand on.
    """

    title: str
    why: str
    cure: str
    signs: tuple[tuple[str, ...], ...]
    started: str
    source: str
    mistaken: str = ""
    """Pattern of files of the kind that a reader here would take for its own; empty where there are none."""
    said: str = ""
    """Words before the title for a script, where ``starts the job of`` says too much."""

    def matches(self, data: Mapping[Any, Any]) -> bool:
        """Return whether a file with this content is of the kind."""
        return any(all(lookup(data, tuple(key.split("."))) is not None for key in sign) for sign in self.signs)


OTHER_FILES = (
    OtherFile(
        "a Megatron-LM --yaml-cfg file",
        "Megatron-LM itself starts none from core 0.11 on, for it wants account_for_embedding_in_pipeline_split both "
        "at the top and below language_model, and refuses a name that stands twice",
        _FLAGS,
        (("language_model", "model_parallel"),),
        r"--yaml[-_]cfg\b",
        "NVIDIA/Megatron-LM core_v0.16.0 examples/gpt3/gpt_config.yaml; core_v0.11.0 to main (d98e8a64) "
        "megatron/training/yaml_arguments.py, validate_yaml and core_config_from_args (core_v0.16.0: 62, 341-342, 380)",
    ),
    OtherFile(
        "a FlagScale experiment",
        "",
        "give its YAML with -yaml (parallel_tool.py: --yaml_path)",
        (),
        r"\bflagscale[\w./]*/train/\w+\.py\b|\brun\.py\s[^\n]*--config-path\b",
        "FlagOpen/FlagScale da4935ec README.md:130",
    ),
    OtherFile(
        "a search or a profiler of Galvatron",
        "it trains nothing",
        "give the script that trains; taylor galvatron FOLDER reads what the profilers wrote",
        (),
        r"\bsearch_dist\.py\b|\bprofile_hardware\.py\b|\bgalvatron/profiler/profile_\w+\.py\b",
        "FeixLiu/paddle-galvatron b0bdd07 llm/auto_parallel/galvatron-llama-submit/scripts/search_dist.sh:53, "
        "profile_hardware.sh:50, profile_overlap.sh",
    ),
    OtherFile(
        "a NeMo 1 YAML",
        "NeMo converts it to its own model classes",
        f"{_FLAGS}; --export megatron-layout writes the layers of each stage",
        (("trainer", "exp_manager"), ("trainer", "model.tensor_model_parallel_size")),
        "",
        "NVIDIA/NeMo 000763d0 examples/nlp/language_modeling/conf/megatron_gpt_config.yaml",
    ),
    OtherFile(
        "a Primus experiment",
        "",
        "give its YAML with -yaml (parallel_tool.py: --yaml_path), inside its checkout",
        (),
        r"\bprimus-cli\b|\bexamples/run_\w*pretrain(?:_cli)?\.sh\b",
        "AMD-AGI/Primus fd1eeabb runner/primus-cli, examples/run_pretrain.sh",
    ),
    OtherFile(
        "a card of Megatron-Bridge",
        "it lists commands that were tried and their results, not one job",
        _FLAGS,
        (("verification_index",), ("validated_on", "summary", "title")),
        "",
        "NVIDIA-NeMo/Megatron-Bridge 067f987d examples/model_verification_cards/qwen3-8b/card.yaml, "
        "skills/nemo-mbridge-perf-memory-tuning/card.yaml",
    ),
    OtherFile(
        "a file of Megatron-Bridge",
        "it states what differs from a recipe, and the rest stands in Python",
        "give the ConfigContainer.yaml that a run writes (logger.save_config_filepath), or a .sh script that starts a "
        f"published recipe by --recipe; or {_FLAGS}",
        (
            ("model.tensor_model_parallel_size",),
            ("model.pipeline_model_parallel_size",),
            ("train.train_iters", "checkpoint"),
            ("train.micro_batch_size",),
        ),
        r"\bmegatron\.bridge\b|(?:^|[\s'\"+])model\.(?:tensor|pipeline|context|expert)_model_parallel_size=",
        "NVIDIA-NeMo/Megatron-Bridge 067f987d tutorials/recipes/llama/conf/llama32_1b_pretrain.yaml, "
        "examples/quantization/conf/quantized_llama3_8b_pretrain_override_example.yaml",
    ),
    OtherFile(
        "a MindSpeed-LLM fsdp2 YAML",
        f"{_NO_STAGES}; ranks and batch stand in the command that starts it",
        f"{_FLAGS} to plan it with pipeline stages",
        (("parallel.fsdp_modules",), ("parallel.fsdp_size",)),
        r"\btrain_fsdp2\.py\b",
        "Ascend/MindSpeed-LLM c77308a1 examples/fsdp2/qwen3/pretrain_qwen3_8b_4k_fsdp2_A3.yaml and .sh",
    ),
    OtherFile(
        "a MindSpeed-MM YAML",
        _NO_STAGES,
        f"{_FLAGS} to plan its language model with pipeline stages",
        (
            ("parallel.fsdp_plan",),
            ("parallel.fully_shard_parallel_size",),
            ("gpt_args", "model"),
            ("sharding_size", "param_dtype"),
        ),
        r"\bmindspeed_mm/[\w./]*\.py\b|\bpretrain_transformers\.py\b",
        "Ascend/MindSpeed-MM 57069cd5 examples/qwen3_5/qwen3_5_27B_config.yaml, "
        "examples/qwen3vl/qwen3vl_full_sft_8B.yaml, examples/qwen2.5vl/fsdp2_config.yaml",
    ),
    OtherFile(
        "a MindSpeed-RL YAML",
        _SEVERAL_MODELS,
        f"{_FLAGS}, the actor's",
        (("megatron_training", "actor_config"), ("megatron_training", "rl_config")),
        "",
        "Ascend/MindSpeed-LLM c77308a1 configs/rlhf/grpo_qwen25_7b_A3.yaml",
    ),
    OtherFile(
        "a SkyPilot task",
        "it starts programs, and states none of their options",
        "give the script that launches the training",
        (("resources.accelerators", "run"), ("resources", "setup", "run")),
        "",
        "volcengine/verl b178a3cd examples/skypilot/verl-ppo.yaml",
    ),
    OtherFile(
        "a verl YAML",
        "it states a part of the options, and the script that names it the rest",
        "give the script that starts verl.trainer.main_ppo with it",
        (("actor_rollout_ref",),),
        "",
        "volcengine/verl 1acd1081 verl/trainer/config/ppo_trainer.yaml",
    ),
    OtherFile(
        "a LLaMA-Factory YAML",
        "",
        "give its YAML with -yaml (parallel_tool.py: --yaml_path)",
        (),
        r"\bllamafactory-cli\s+train\b|\btrain\.py\s+[\w./-]+\.ya?ml\b",
        "hiyouga/LLaMA-Factory e8deda53 examples/ascend/qwen3_full_sft_fsdp2.yaml",
    ),
    OtherFile(
        "an axolotl YAML",
        "",
        "give its YAML with -yaml (parallel_tool.py: --yaml_path)",
        (),
        r"\baxolotl\s+train\b|\baxolotl\.cli\.train\b",
        "axolotl-ai-cloud/axolotl 15f7910d examples/llama-3/fft-8b.yaml",
    ),
    OtherFile(
        "another command of trl than sft and dpo",
        "its step is not modelled, or trl has none of that name",
        "write trl sft or trl dpo",
        (),
        r"^\s*(?:\w+=\S*\s+)*trl\s+(?!(?:sft|dpo)\b)[a-z]",
        "huggingface/trl f2cd5771 trl/cli/commands/training.py, trl/scripts",
    ),
    OtherFile(
        "another command of ms-swift than pt, sft and rlhf",
        "it trains nothing, or ms-swift has none of that name",
        "write swift or megatron with pt, sft or rlhf",
        (),
        r"^\s*(?:\w+=\S*\s+)*(?:swift|megatron)\s+(?!(?:pt|sft|rlhf)\b)[a-z]",
        "modelscope/ms-swift 3602360a swift/cli/main.py:13-26, swift/cli/_megatron/main.py",
    ),
    OtherFile(
        "a program that accelerate launch starts",
        "it has none of the options of Hugging Face's Trainer",
        f"give a script with --per_device_train_batch_size and the like; {_FLAGS} to plan it with pipeline stages",
        (),
        r"\baccelerate\s+launch\b",
        "Ascend/MindSpeed-MM 57069cd5 examples/diffusers/flux/finetune_flux_dreambooth_deepspeed_bf16.sh:69",
    ),
    OtherFile(
        "a post-training of a diffusion model",
        "only language models are planned",
        f"{_FLAGS}, a language model's",
        (),
        r"\bposttrain_\w*grpo\.py\b|\bposttrain_sora_\w+\.py\b",
        "Ascend/MindSpeed-MM 57069cd5 examples/dancegrpo/posttrain_flux_dancegrpo.sh, "
        "examples/wan2.1/14b/i2v/posttrain.sh",
    ),
    OtherFile(
        "a MindFormers PyNative YAML",
        "its degrees and batch have other names, and MindFormers runs it without a graph",
        f"give the YAML that run_mindformer.py trains as a graph, or {_FLAGS}",
        (
            ("parallelism.tensor_parallel", "model"),
            ("parallelism.data_parallel_shard",),
            ("training.local_batch_size",),
        ),
        "",
        "mindspore-ai/mindformers 167a50de tests/st/test_multi_cards_cases/test_pynative/test_models/test_deepseek3/"
        "pynative_ds3.yaml",
    ),
    OtherFile(
        "an Accelerate configuration",
        "it states how a program is spread over ranks, not the model",
        f"give the YAML or the script of the training; {_FLAGS} to plan it with pipeline stages",
        (("distributed_type",),),
        "",
        "hiyouga/LLaMA-Factory 06d78ff1 examples/accelerate/fsdp2_config.yaml; huggingface/accelerate 16cb6eb8 "
        "examples/config_yaml_templates, examples/slurm/fsdp_config.yaml",
    ),
    OtherFile(
        "a DeepSpeed JSON",
        "it states how states are sharded, not the model",
        "give the YAML or the script of the training that names it, or a .sh script with Megatron's flags",
        (
            ("zero_optimization",),
            ("train_micro_batch_size_per_gpu",),
            ("train_batch_size", "gradient_accumulation_steps"),
        ),
        "",
        "hiyouga/LLaMA-Factory 1d6e8b21 examples/deepspeed/ds_z3_config.json",
    ),
)
"""The kinds, the narrower signs first: of a file that bears two, the first is reported."""


def refuse_other_file(file: Path) -> None:
    """Refuse a training file that is known by name alone; nothing is refused where it is none of these.

    Called for a file that no launcher reads, so that its true name is reported and not what a reader misses in it.

    Raises
    ------
    InputError
        With the kind, why it is not read, and what to give instead.
    """
    refuse_kinds(file, OTHER_FILES)


def refuse_kinds(file: Path, kinds: Sequence[OtherFile]) -> None:
    """Refuse a file that is of one of some kinds; the comments of a script say nothing of its kind.

    Raises
    ------
    InputError
        With the first such kind, why it is not read, and what to give instead.
    """
    if form_of(file) in (SCRIPT, ".py"):
        said, text = "starts the job of", _COMMENT.sub("", _text(file))
        found = [kind for kind in kinds if kind.started and re.search(kind.started, text, re.MULTILINE)]
    else:
        said, data = "is", _data(file)
        found = [kind for kind in kinds if kind.matches(data)]
    if found:
        kind = found[0]
        why = f", which is not read: {kind.why}" if kind.why else ""
        raise InputError(f"{kind.said or said} {kind.title}{why}", file=file, cure=kind.cure)


def _text(file: Path) -> str:
    try:
        return read_text(file, limit_bytes=MAX_BYTES)
    except InputError:
        return ""


def _data(file: Path) -> Mapping[Any, Any]:
    """Content of a YAML or JSON file; none where it is damaged, too large or of another form."""
    suffix = file.suffix.lower()
    try:
        if suffix in (".yaml", ".yml"):
            return YamlSource.read(file).data
        content = json.loads(read_text(file, limit_bytes=MAX_BYTES)) if suffix == ".json" else {}
    except (InputError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, Mapping) else {}
