"""Files of trainers that no reader here knows are refused by the tool's own marks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.reliability.outside import NotHere, source
from taylor.base.errors import InputError
from taylor.parsers.other_tools import OTHER_TOOLS
from taylor.parsers.read import read_config

FILES = {
    "extends an experiment": "extends: [sft.yaml]\nlora: {dim: 8}\nglobal_batch_size: 256\n",
    "part of a gpt-neox": "data_path: data/enwik8\nvocab_file: data/vocab.json\nsave: checkpoints\n",
    "ms-swift's sampler": "system: You are a math model\nsampler_type: sample\nnum_return_sequences: 4\n",
    "NeMo RL evaluation": "eval: {metric: pass@k}\ngeneration: {temperature: 0.0}\n",
    "quantization recipe": "quantize: {quant_cfg: []}\nmetadata: {recipe_type: ptq}\n",
    "LLaMA-Factory (v1)": "model: a/b\npeft_config: {name: lora, export_dir: out}\n",
    "merges or exports": "model_name_or_path: a/b\nexport_dir: out\n",
    "serves a model": "model_name_or_path: a/b\ninfer_backend: vllm\n",
    "OLMo-core": "train_module:\n  dp_config: {name: hsdp}\n",
    "a part of a ROLL configuration": "max_actions_per_traj: 10\nenv_manager_cls: roll.TrajEnvManager\n",
    "an AReaL evaluation": "experiment_name: e\ntrial_name: t\nrollout: {backend: 'sglang:d2'}\n",
    "an EasyR1 YAML": "worker: {actor: {ulysses_size: 1}, rollout: {n: 5}}\n",
    "a Kubernetes manifest": "apiVersion: v1\nkind: Service\n",
    "a set of environment variables": "env_vars: {NCCL_DEBUG: WARN}\n",
    "a torchtune YAML": "model: {_component_: a.lora_b}\ntokenizer: {_component_: a.tokenizer}\n",
    "a litgpt YAML": "checkpoint_dir: a/b\nout_dir: out\ntrain: {save_interval: 200, micro_batch_size: 1}\n",
    "an LLM Foundry YAML": "model: {name: mpt_causal_lm, d_model: 2048}\ndevice_train_microbatch_size: 4\n",
    "an OLMo YAML": "model: {d_model: 4096}\ndevice_train_microbatch_size: 2\nsave_folder: a\n",
    "a Modalities YAML": "settings: {experiment_id: a, step_profile: {sequence_length: 256}}\n",
    "a levanter YAML": "model: {type: llama}\ntrainer: {train_batch_size: 64, mp: 'p=f32,c=bfloat16'}\n",
    "MaxText": "base_emb_dim: 2048\nbase_num_decoder_layers: 16\nici_fsdp_parallelism: -1\n",
}
COMMANDS = {
    "torchtitan TOML": 'CONFIG_FILE="./train_configs/llama3_8b.toml" ./run_train.sh --training.steps 9',
    "nanotron": "torchrun --nproc_per_node 8 run_train.py --config-file examples/config.yaml",
    "NeMo RL": "uv run examples/run_grpo.py --config grpo.yaml",
    "a torchtune YAML": "tune run --nproc_per_node 8 lora_finetune_distributed --config llama3_1/8B_lora",
    "a litgpt YAML": "litgpt finetune_lora a/b --data JSON",
    "an LLM Foundry YAML": "composer train/train.py train/yamls/pretrain/mpt-1b.yaml",
    "an XTuner configuration": "NPROC_PER_NODE=8 xtuner train a_config --deepspeed deepspeed_zero2",
    "MaxText": "python3 -m maxtext.trainers.pre_train.train configs/base.yml",
    "program of verl": "python3 -m verl.trainer.main_generation model.path=a rollout.n=4",
    "conversion of Megatron-Bridge": "./scripts/conversion/convert.sh import --hf-model a --megatron-path b",
    "export of ms-swift": "swift export --model a --to_mcore true",
    "serves, predicts": "swift infer --adapters a --stream true",
    "a ROLL training": "python examples/start_rlvr_pipeline.py --config_path a --config_name b",
    "an AReaL training": "python examples/math/gsm8k_rl.py --config a.yaml scheduler.type=local",
    "an OpenRLHF training": "deepspeed --module openrlhf.cli.train_sft --ds.zero_stage 2",
    "server of a reward model": "python -m openrlhf.cli.serve_rm --reward.model_name_or_path a",
    "conversion of DeepSpeed's": "python -m deepspeed.checkpoint.ds_to_universal --input_folder a",
    "a Slurm job of another script": "source ./${training_script} slurm",
    "server of a model": "vllm serve a --tensor-parallel-size 8",
}


def refusal(path):
    with pytest.raises(InputError) as caught:
        read_config(path)
    return str(caught.value)


@pytest.mark.parametrize(("title", "text"), FILES.items(), ids=FILES)
def test_a_file_of_another_tool_is_refused_by_its_name_and_with_what_works_instead(tmp_path, title, text):
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    said = refusal(path)
    assert title in said and "which is not read: " in said and "; " in said.partition("which is not read")[2]


@pytest.mark.parametrize(("title", "command"), COMMANDS.items(), ids=COMMANDS)
def test_a_script_that_starts_another_tool_is_refused_by_its_name(tmp_path, title, command):
    path = tmp_path / "job.sh"
    path.write_text(f"#!/bin/bash\n{command}\n", encoding="utf-8")
    assert title in refusal(path)


def test_a_script_that_starts_a_training_sets_no_flags_for_another(tmp_path):
    """accelerate 16cb6eb8 examples/slurm/submit_multigpu.sh takes in an environment too."""
    path = tmp_path / "job.sh"
    path.write_text("source env.sh\naccelerate launch --num_processes 4 $SCRIPT $ARGS\n", encoding="utf-8")
    assert "sets a model's flags" not in refusal(path)


def test_a_yaml_without_marks_is_named_as_unknown(tmp_path):
    path = tmp_path / "mi300x.yaml"
    path.write_text("gpu: MI300X\nmemory: 192\n", encoding="utf-8")
    assert "is no known training file" in refusal(path) and "mark of another tool" in refusal(path)
    path.write_text("distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n", encoding="utf-8")
    assert "is an Accelerate configuration" in refusal(path)


def test_a_comment_says_nothing_of_a_scripts_kind(tmp_path):
    path = tmp_path / "job.sh"
    path.write_text("# swift infer --adapters a\necho done\n", encoding="utf-8")
    assert "starts no training" in refusal(path)


def test_an_internevo_configuration_is_named_though_it_is_python(tmp_path):
    path = tmp_path / "7B.py"
    path.write_text("parallel = dict(\n    zero1=dict(size=-1),\n    pipeline=dict(size=1),\n)\n", encoding="utf-8")
    assert "is an InternEvo configuration" in refusal(path)


def test_every_kind_has_its_source_and_a_sign():
    for kind in OTHER_TOOLS:
        assert kind.source and kind.cure and (kind.signs or kind.started)


CITED = re.compile(r"\b(?P<repository>[\w-]+) (?P<revision>[0-9a-f]{8}) (?P<paths>\S+\.(?:yaml|py)(?:, \S+\.yaml)*)$")
OF_THEIR_OWN = ("torchtune", "litgpt", "LLM Foundry", "OLMo YAML", "Modalities", "levanter", "InternEvo", "XTuner")


@pytest.mark.parametrize("name", OF_THEIR_OWN)
def test_the_files_that_a_kind_cites_are_refused_by_its_name(tmp_path, name):
    """Files of the tools' own repositories, where clones are available (`benchmarks/reliability/outside.py`)."""
    [kind] = [kind for kind in OTHER_TOOLS if name in kind.title]
    cited = CITED.search(kind.source)
    for path in cited["paths"].split(", "):
        try:
            text = source(cited["repository"], cited["revision"], path)
        except NotHere as here:
            pytest.skip(str(here))
        file = tmp_path / Path(path).name
        file.write_text(text, encoding="utf-8")
        assert f"is {kind.title}" in refusal(file)
