"""A checkpoint of one's own is planned in the shape of a model that the user names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import taylor
from taylor.base.errors import InputError
from taylor.parsers.named_model import model_as
from taylor.parsers.read import read_config
from tests.conftest import ROOT

RECIPE = "model_name_or_path: me/my-checkpoint\nper_device_train_batch_size: 1\nmax_length: 4096\n"
SIZES = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 8,
    "num_attention_heads": 16, "intermediate_size": 8192, "vocab_size": 32000,
}  # fmt: skip


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def test_a_name_that_is_not_registered_is_refused_with_the_flag_that_cures_it(recipe: Path) -> None:
    with pytest.raises(InputError, match=r"my-checkpoint.*--model_as NAME"):
        read_config(recipe)


def test_a_registered_model_or_a_config_json_gives_the_shape(recipe: Path, tmp_path: Path) -> None:
    with model_as("mistral-7b"):
        config = read_config(recipe)
    assert config.model.name == "mistral-7b"
    assert any("my-checkpoint has the shape of mistral-7b" in note for note in config.notes)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(SIZES), encoding="utf-8")
    for named in (tmp_path / "mine", tmp_path / "mine" / "config.json"):
        with model_as(str(named)):
            assert (read_config(recipe).model.hidden, read_config(recipe).model.n_layers) == (2048, 8)


def test_a_wrong_name_and_a_file_with_sizes_of_its_own_are_refused(recipe: Path) -> None:
    with pytest.raises(InputError, match=r"--model_as.*mistral-7b"), model_as("mistrl-7b"):
        read_config(recipe)
    with pytest.raises(InputError, match="no file names"), model_as("mistral-7b"):
        read_config(ROOT / "config" / "pretrain_llama2_7b.yaml")
    with model_as(None):
        read_config(ROOT / "config" / "pretrain_llama2_7b.yaml")


def test_python_reads_a_file_with_the_same_words_from_outside(recipe: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text('torchrun --nproc_per_node $RANKS -m trl.scripts.sft --config "$1"\n', encoding="utf-8")
    with taylor.started(arguments=[str(recipe)], env={"RANKS": "4"}, model_as="mistral-7b"):
        config = taylor.read(script)
    assert (config.model.name, config.strategy.world_size) == ("mistral-7b", 4)
    with pytest.raises(InputError, match="no file names"), taylor.started(model_as="mistral-7b"):
        taylor.read(ROOT / "config" / "pretrain_llama2_7b.yaml")
