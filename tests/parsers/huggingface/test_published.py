"""Published models by the facts of their config.json: their parameters, MTP depth, order of layers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import active_parameters, layer_parameters, total_parameters
from taylor.parsers.huggingface.model import read_model
from taylor.register.model import MTP
from taylor.register.pattern import kinds_in_order

FILE = Path("config.json")
MODELS: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("published.yaml").read_text(encoding="utf-8")
)
WITHIN = 0.005
"""Largest error of a parameter count, as a share of the published one."""


@pytest.mark.parametrize("name", [name for name, row in MODELS.items() if "published" in row])
def test_a_configuration_has_the_published_parameters(name: str) -> None:
    model, _ = read_model(MODELS[name]["config"], FILE)
    assert total_parameters(model) / 1e9 == pytest.approx(MODELS[name]["published"], rel=WITHIN)


def test_at_least_seventy_models_are_compared_with_a_named_source() -> None:
    compared = [row for row in MODELS.values() if "published" in row]
    assert len(compared) >= 70
    assert all(row["config_source"] and row["published_source"] for row in compared)


@pytest.mark.parametrize("name", [name for name, row in MODELS.items() if "weights" in row])
def test_mtp_modules_and_the_vision_part_make_up_the_published_weights(name: str) -> None:
    """The hub rounds to whole billions: a module too many or too few of these models is 0.4 to 10 billion."""
    model, notes = read_model(MODELS[name]["config"], FILE)
    vision = [re.search(r"vision encoder of ([\d,]+) parameters", note) for note in notes]
    beside = sum(int(found[1].replace(",", "")) for found in vision if found is not None)
    whole = total_parameters(model) + model.mtp_layers * layer_parameters(model, MTP) + beside
    assert model.mtp_layers
    assert round(whole / 1e9) == MODELS[name]["weights"]


def test_a_token_passes_the_published_share_of_the_experts() -> None:
    """Cards: DBRX 36 B, Step-3 38 B, Ring-mini-linear-2.0 1.6 B; Step-3's card leaves the embedding out."""
    active = {name: active_parameters(read_model(MODELS[name]["config"], FILE)[0]) / 1e9 for name in MODELS}
    assert active["DBRX"] == pytest.approx(36, rel=0.015)
    assert active["Step-3"] - 128815 * 7168 / 1e9 == pytest.approx(38, rel=0.005)
    assert active["Ring-mini-linear-2.0"] == pytest.approx(1.6, rel=0.005)


def test_layers_stand_where_the_models_have_them() -> None:
    """DeepSeek-V4: the compressed attentions alternate; GLM-5.2: an indexer every fourth layer; Ring: softmax ends a
    group; Step-3: five dense layers, the last one too."""

    def kinds(name: str) -> tuple[str, ...]:
        return kinds_in_order(read_model(MODELS[name]["config"], FILE)[0].pattern)

    ring = kinds("Ring-flash-linear-2.0")
    assert [at for at, kind in enumerate(ring) if kind.startswith("attn")] == [7, 15, 23, 31]
    step = kinds("Step-3")
    assert [at for at, kind in enumerate(step) if kind.endswith("dense")] == [0, 1, 2, 3, 60]
    flash = kinds("DeepSeek-V4-Flash")
    assert {kind.split("+")[0] for kind in flash[2::2]} == {"csa"}
    assert {kind.split("+")[0] for kind in flash[3::2]} == {"hca"}
    owners = [at for at, kind in enumerate(kinds("GLM-5.2")) if "shared" not in kind]
    assert owners[3:6] == [6, 10, 14]


def test_opt_is_read_with_the_width_of_its_embedding_where_its_layers_have_the_same() -> None:
    """125,239,296 by transformers 5.24.0, of facebook/opt-125m; OPT-350M has an embedding of 512 and layers of 1024."""
    config = {"model_type": "opt", "hidden_size": 768, "word_embed_proj_dim": 768, "vocab_size": 50272}
    assert total_parameters(read_model(config, FILE)[0]) == 125_239_296
    with pytest.raises(InputError, match="word_embed_proj_dim: is read for 1024 alone"):
        read_model({**config, "hidden_size": 1024, "num_attention_heads": 16, "word_embed_proj_dim": 512}, FILE)


def test_a_falcon_h1_layer_has_both_mixers() -> None:
    """Sizes of Falcon-H1-34B by the table of transformers' documentation, model_doc/falcon_h1; 34 B by its name."""
    config = {
        "model_type": "falcon_h1", "hidden_size": 5120, "num_hidden_layers": 72, "num_attention_heads": 20,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 261120, "intermediate_size": 21504,
        "mamba_d_ssm": 4096, "mamba_n_heads": 32, "mamba_d_head": 128, "mamba_n_groups": 2, "mamba_d_state": 256,
    }  # fmt: skip
    model, notes = read_model(config, FILE)
    assert total_parameters(model) / 1e9 == pytest.approx(34, rel=0.015)
    first, second = model.layer(kinds_in_order(model.pattern)[0]).halves
    assert first.mamba is not None and second.attention is not None and second.mlp is not None
    assert any("side by side" in note for note in notes)
