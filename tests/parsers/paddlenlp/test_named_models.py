"""Scripts that name their model and state no sizes, as those of PaddleNLP's auto-parallel examples do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.read import read_config

SCRIPT = """python -u -m paddle.distributed.launch \\
    --xpus "0,1,2,3,4,5,6,7" \\
    ./run_pretrain_auto.py \\
    --model_name_or_path "{name}" \\
    --per_device_train_batch_size 1 \\
    --gradient_accumulation_steps 4 \\
    --tensor_parallel_degree 1 \\
    --pipeline_parallel_degree 4 \\
    --sharding "stage1" \\
    --max_seq_length 4096 \\
    --bf16 {more}
"""


def read(folder: Path, name: str, more: str = ""):
    """The configuration of a script like paddle-galvatron b0bdd07 llm/auto_parallel/llama/run_llama2_13b_xpu.sh."""
    path = folder / "run.sh"
    path.write_text(SCRIPT.format(name=name, more=more))
    return read_config(path)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("meta-llama/Llama-2-13b", 13_015_864_320),
        ("meta-llama/Llama-2-7b", 6_738_415_616),
        ("facebook/llama-7b", 6_738_415_616),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8_030_261_248),
    ],
)
def test_a_named_model_has_its_published_parameters(name: str, parameters: int, tmp_path: Path) -> None:
    config = read(tmp_path, name)
    assert total_parameters(config.model) == parameters
    assert (config.strategy.pp, config.strategy.dp) == (4, 2)


def test_layers_that_the_script_counts_are_trained_alone(tmp_path: Path) -> None:
    model = read(tmp_path, "meta-llama/Llama-2-7b", "--num_hidden_layers 8").model
    assert (model.n_layers, model.hidden) == (8, 4096)


def test_a_folder_with_a_config_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    config = {
        "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
        "intermediate_size": 96, "vocab_size": 100,
    }  # fmt: skip
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    assert read(tmp_path, "mine").model.n_layers == 4


def test_sizes_of_the_script_go_before_the_name(tmp_path: Path) -> None:
    sizes = "--hidden_size 64 --num_attention_heads 4 --num_hidden_layers 8 --intermediate_size 96 --vocab_size 100"
    assert read(tmp_path, "meta-llama/Llama-2-7b", sizes).model.hidden == 64


@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("qwen/qwen-14b", "", "--model_name_or_path: is no registered model"),
        ("nvidia/Nemotron-3-Nano-30B-A3B", "--num_hidden_layers 8", "num_hidden_layers: is not the 52 layers"),
    ],
)
def test_a_model_that_is_not_known_is_refused_with_its_field(name: str, more: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        read(tmp_path, name, more)
