"""Training files of other tools are refused by their true name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taylor.base.console import run_command
from taylor.base.errors import EXIT_BAD_INPUT, InputError
from taylor.command_lines.pipeline_parallel import run
from taylor.parsers.other_files import OTHER_FILES
from taylor.parsers.read import read_config
from taylor.parsers.text.yaml_source import YamlSource
from tests.conftest import ROOT, SHARED

FILES = {
    "Megatron-LM --yaml-cfg": [
        "language_model: {num_layers: 4, hidden_size: 64}\nmodel_parallel: {tensor_model_parallel_size: 1}\n"
        "micro_batch_size: 1\n"
    ],
    "NeMo 1": [
        "trainer: {devices: 8, num_nodes: 1}\nexp_manager: {name: a}\nmodel: {num_layers: 4}\n",
        "trainer: {devices: 8}\nmodel: {tensor_model_parallel_size: 2, num_layers: 4}\n",
    ],
    "file of Megatron-Bridge": [
        "model: {tensor_model_parallel_size: 1, context_parallel_size: 1}\ntrain: {train_iters: 9}\n",
        "dataset: {seq_length: 4096}\ntrain: {train_iters: 9, micro_batch_size: 1}\nmodel: {seq_length: 4096}\n",
        "train: {train_iters: 9}\ncheckpoint: {save: out}\nmodel: {num_layers: 4, hidden_size: 64}\n",
    ],
    "card of Megatron-Bridge": [
        "title: a\nverification_index: {training: {}}\nmodel: {hf_id: a/b}\nitems: {}\n",
        "title: a\nvalidated_on: '2026-06-29'\nsummary: b\n",
    ],
    "MindSpeed-LLM fsdp2": [
        "model: {train_from_scratch: false}\ndata: {template: a}\n"
        "parallel:\n  fsdp_modules:\n    - model.layers.{*}\n  recompute: true\ntraining: {stage: pt}\n",
        "model: {model_id: a}\nparallel: {fsdp_size: 16}\ntraining: {max_steps: 9}\n",
    ],
    "MindSpeed-MM": [
        "parallel:\n  fully_shard_parallel_size: auto\n  fsdp_plan: {param_dtype: bf16}\nmodel: {model_id: a}\n",
        "gpt_args: {use_torch_fsdp2: true}\nmodel: {text_decoder: {num_layers: 4}}\n",
        "sharding_size: 16\nparam_dtype: bf16\n",
    ],
    "MindSpeed-RL": ["megatron_training: {model: a}\nactor_config: {pipeline_model_parallel_size: 2}\nrl_config: {}\n"],
    "SkyPilot": ["resources: {accelerators: H100:8}\nsetup: pip install verl\nrun: python3 train.py\n"],
    "verl": ["actor_rollout_ref:\n  model: {path: a}\ntrainer: {nnodes: 1}\n"],
    "MindFormers PyNative": [
        "training: {local_batch_size: 2}\nparallelism: {tensor_parallel: 1, data_parallel_shard: -1}\n"
        "model: {model_type: deepseek_v3, num_hidden_layers: 12}\n"
    ],
    "Accelerate": ["compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\n"],
    "DeepSpeed": [
        "zero_optimization: {stage: 3}\nbf16: {enabled: true}\n",
        "train_batch_size: 8\ngradient_accumulation_steps: 1\n",
    ],
}
"""Files of each kind in the shape of its tool's own (`OtherFile.source`), by a word of its title."""
COMMANDS = {
    "command of trl": "HF_HOME=. trl stf --model_name_or_path Qwen/Qwen2.5-7B",
    "command of ms-swift": "NPROC_PER_NODE=8 swift sfft --model Qwen/Qwen2.5-7B",
    "Megatron-LM --yaml-cfg": "torchrun --nproc-per-node 8 pretrain_gpt.py --yaml-cfg job.yaml",
    "FlagScale": "python run.py --config-path ./conf --config-name train action=run",
    "Primus experiment": "./runner/primus-cli direct -- train pretrain --config job.yaml",
    "file of Megatron-Bridge": "torchrun run_recipe.py train.train_iters=9 model.tensor_model_parallel_size=4",
    "MindSpeed-LLM fsdp2": "torchrun --nproc_per_node 8 train_fsdp2.py job.yaml --parallel.fsdp_size 8",
    "MindSpeed-MM": "torchrun mindspeed_mm/fsdp/train/trainer.py job.yaml",
    "profiler of Galvatron": "python ./search_dist.py --seqlen_list 4096 --world_size 64",
    "LLaMA-Factory": "llamafactory-cli train job.yaml",
    "axolotl": "axolotl train job.yaml",
    "accelerate launch": "accelerate launch --config_file a.yaml ./train_dreambooth_flux.py",
    "diffusion model": "torchrun posttrain_flux_dancegrpo.py --mm-model m.json",
}


def samples() -> list[tuple[str, str]]:
    return [(name, text) for name, texts in FILES.items() for text in texts]


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert caught.value.exit_code == EXIT_BAD_INPUT
    return str(caught.value)


@pytest.mark.parametrize(("name", "text"), samples())
@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_file_of_another_tool_is_refused_by_its_name_with_what_to_give_instead(
    name: str, text: str, suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"job{suffix}"
    path.write_text(text)
    path.write_text(text if suffix == ".yaml" else json.dumps(YamlSource.read(path).data))
    message = refusal(path)
    assert str(path) in message and name in message and "which is not read: " in message
    assert ("Megatron's flags" in message or "give the script that" in message) and "\n" not in message


@pytest.mark.parametrize(("name", "command"), COMMANDS.items())
def test_a_script_that_starts_another_tool_is_refused_by_that_name(name: str, command: str, tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text(f"#!/bin/bash\nexport A=1\n{command} 2>&1 | tee log\n")
    assert "starts the job of" in (message := refusal(path)) and name in message


def test_a_python_recipe_is_refused_by_its_tool_and_other_python_by_its_suffix(tmp_path: Path) -> None:
    recipe, other = tmp_path / "recipe.py", tmp_path / "other.py"
    recipe.write_text("from megatron.bridge.recipes.llama import llama32_1b_pretrain_config\n")
    other.write_text("import os\n")
    assert "Megatron-Bridge" in refusal(recipe)
    assert "is not a known kind of configuration" in refusal(other)


def test_every_kind_is_sampled_and_has_a_name_of_its_own() -> None:
    titles = [kind.title for kind in OTHER_FILES]
    assert len(set(titles)) == len(titles)
    for title in titles:
        assert sum(name in title for name in {*FILES, *COMMANDS}) == 1, title


@pytest.mark.parametrize("text", ["a: 1\n", "a: [1\n", "- 1\n", "", '{"a": 1}'])
@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_what_bears_no_sign_keeps_its_own_refusal(text: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"job{suffix}"
    path.write_text(text)
    assert "which is not read" not in refusal(path)


@pytest.mark.slow
def test_no_sample_that_is_read_bears_the_signs_of_another_tool() -> None:
    folders = (ROOT / "config", SHARED / "data" / "mindformers_yaml")
    paths = [path for folder in folders for path in sorted(folder.glob("*.yaml"))]
    assert paths
    for path in paths:
        assert [kind.title for kind in OTHER_FILES if kind.matches(YamlSource.read(path).data)] == [], path.name


def test_the_command_ends_with_the_refusal_and_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(FILES["verl"][0])
    assert run_command(lambda: run(["-yaml", str(path)])) == EXIT_BAD_INPUT
    told = "".join(capsys.readouterr())
    assert "verl" in told and "Traceback" not in told
