"""Models read from a config.json: their parameters against transformers' own count, their layers, what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import (
    active_parameters,
    embedding_parameters,
    expert_parameters,
    layer_parameters,
    total_parameters,
)
from taylor.parsers.huggingface.file import read_config, read_model_file
from taylor.parsers.huggingface.model import READERS, model_types, read_model
from taylor.register.model import ModelSpec
from taylor.register.pattern import kinds_in_order
from tests.conftest import SHARED

FILE = Path("somewhere/config.json")
CONFIGS = SHARED / "data" / "model_configs"
PUBLISHED = list(csv.DictReader((CONFIGS / "models.csv").open(encoding="utf-8"))) if CONFIGS.is_dir() else []
COUNTED = json.loads(Path(__file__).with_name("counted.json").read_text(encoding="utf-8"))
"""One random small model of each type: its configuration, all its parameters, those of every layer, as transformers
5.23.0 builds it on torch's meta device (benchmarks/counted_models.py draws and counts them)."""

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
}


def read(**changes: Any) -> ModelSpec:
    return read_model({**LLAMA, **changes}, FILE)[0]


def layers_of(model: ModelSpec) -> list[int]:
    return [layer_parameters(model, kind) for kind in kinds_in_order(model.pattern)]


def test_a_model_of_each_type_has_the_parameters_that_transformers_counts() -> None:
    for row in COUNTED:
        model, _ = read_model(row["config"], FILE)
        counted = row["parameters"], row["layers"]
        assert (total_parameters(model), layers_of(model)) == counted, row["config"]["model_type"]


def test_layers_that_reuse_keys_and_values_have_no_weights_for_them() -> None:
    """transformers modeling_gemma4.py, Gemma4TextAttention: `if not self.is_kv_shared_layer` makes k_proj and k_norm.

    The global layers of this model have one such head of 512 and no v_proj (`attention_k_eq_v`).
    """
    [row] = [row for row in COUNTED if row["config"]["model_type"] == "gemma4_text"]
    assert row["config"]["attention_k_eq_v"] and row["config"]["num_key_value_heads"] == 1
    model, _ = read_model({**row["config"], "num_kv_shared_layers": 2, "use_double_wide_mlp": False}, FILE)
    own = row["config"]["hidden_size"] * 512 + 512
    assert layers_of(model) == [*row["layers"][:3], *(layer - own for layer in row["layers"][3:])]


@pytest.mark.parametrize("on", [False, True])
def test_a_window_that_is_switched_off_is_none(on: bool) -> None:
    """transformers configuration_qwen2.py keeps `sliding_window` only with `use_sliding_window`."""
    model = read(
        model_type="qwen2", num_key_value_heads=4, use_sliding_window=on, sliding_window=8,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    kinds = kinds_in_order(model.pattern)
    windows = [attention.window for kind in kinds if (attention := model.layer(kind).attention) is not None]
    assert windows == [8 if on else None, None]


def test_every_reader_has_its_defaults_and_every_type_a_reader() -> None:
    types = model_types()
    assert set(READERS) <= set(types)
    for name, known in types.items():
        language_model = types[known.text] if known.text else known
        assert (language_model.like or known.text or name) in READERS, name


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["model"])
def test_a_published_configuration_gives_the_published_model(row: dict[str, str]) -> None:
    """Parameters to 0.001 % of the count (Step-3.7's was taken with its class's vocabulary, 81 words less), or to 0.2 %
    of the published size; every layer's kind and parameters."""
    model, _ = read_model_file(CONFIGS / row["file"])
    parameters = total_parameters(model)
    if row["counted_parameters"]:
        assert parameters == pytest.approx(int(row["counted_parameters"]), rel=1e-5)
    elif row["published_total_b"]:
        assert parameters == pytest.approx(float(row["published_total_b"]) * 1e9, rel=2e-3)
    assert kinds_in_order(model.pattern) == kinds_in_order(row["pattern"])
    assert model.mtp_layers == int(row["mtp_layers"])
    if row["layer_parameters"]:
        listed, found = json.loads(row["layer_parameters"]), layers_of(model)
        if isinstance(listed[0], list):
            assert found == [each for times, each in listed for _ in range(times)]
        else:
            assert sorted(set(found)) == listed


def test_null_goes_before_the_default_of_a_model_type() -> None:
    small = {"model_type": "deepseek_v3", "num_hidden_layers": 1, "first_k_dense_replace": 1}
    ranks = [
        read_model({**small, **more}, FILE)[0].layer("mla+dense").attention for more in ({}, {"q_lora_rank": None})
    ]
    assert [each.latent.q_lora_rank for each in ranks if each and each.latent] == [1536, None]


def test_longcat_has_its_published_sizes() -> None:
    """560 B, of which a token passes 18.6 to 31.3 B beside its embedding, 27 B on average (arXiv:2509.01322, abstract).

    Transformers builds input matrices for its empty experts as well.
    """
    model, _ = read_model({"model_type": "longcat_flash"}, FILE)
    assert total_parameters(model) == pytest.approx(560e9, rel=2e-3)
    (layer,) = model.kinds
    assert layer.then is not None and layer.moe is not None and layer.moe.n_empty == 256
    experts, embedding = 28 * expert_parameters(model, layer.moe), embedding_parameters(model)
    average = active_parameters(model) - embedding
    found = [average + (visited - layer.moe.visited) * experts for visited in (0, layer.moe.visited, 12)]
    assert found == pytest.approx([18.6e9, 27e9, 31.3e9], rel=7e-3)


def test_kimi_k3_has_its_published_size() -> None:
    """2.8 T: arXiv:2607.24653; latent experts, a gated latent attention, attention over depth."""
    full = [*range(4, 93, 4), 93]
    text = {
        "model_type": "kimi_linear", "num_hidden_layers": 93, "hidden_size": 7168, "num_attention_heads": 96,
        "intermediate_size": 33792, "moe_intermediate_size": 3072, "num_experts": 896, "num_experts_per_token": 16,
        "num_shared_experts": 2, "routed_expert_hidden_size": 3584, "latent_moe_use_norm": True, "q_lora_rank": 1536,
        "mla_use_output_gate": True, "attn_res_block_size": 12, "vocab_size": 163840,
        "linear_attn_config": {
            "full_attn_layers": full, "kda_layers": [each for each in range(1, 94) if each not in full],
            "head_dim": 128, "num_heads": 96, "short_conv_kernel_size": 4, "use_full_rank_gate": True,
        },
    }  # fmt: skip
    model, _ = read_model({"model_type": "kimi_k3", "text_config": text}, FILE)
    assert total_parameters(model) == pytest.approx(2.8e12, rel=0.01)
    assert model.body_counts == {"kda+dense": 1, "kda+moe": 68, "mla+moe": 24}


def test_layers_of_one_name_that_differ_are_told_apart() -> None:
    config = {
        **LLAMA,
        "model_type": "hunyuan_v1_moe",
        "head_dim": 16,
        "num_experts": 4,
        "moe_topk": [1, 2],
        "num_shared_expert": 1,
    }
    assert read_model(config, FILE)[0].pattern == "1 attn+moe(k1), 1 attn+moe(k2)"


def test_a_model_is_called_like_its_file_or_its_folder() -> None:
    assert read().name == "somewhere"
    assert read_model(LLAMA, Path("here/Mine-7B.json"))[0].name == "Mine-7B"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config (fp8)"),
        ({"cross_layer_sharing": 4}, "fields not read; the model's shape is planned without them: cross_layer_sharing"),
    ],
)
def test_what_is_not_heeded_is_said(changes: dict[str, Any], told: str) -> None:
    _, notes = read_model({**LLAMA, **changes}, FILE)
    assert any(told in note for note in notes)


def test_fields_without_effect_are_not_mentioned() -> None:
    _, notes = read_model({**LLAMA, "rope_theta": 10000.0, "bos_token_id": 1, "attention_dropout": 0.1}, FILE)
    assert notes == ()


def test_a_language_model_inside_another_is_read_alone_and_that_is_said() -> None:
    text = {**LLAMA, "model_type": "qwen2", "num_key_value_heads": 2}
    model, notes = read_model({"model_type": "internvl_chat", "llm_config": text, "vision_config": {}}, FILE)
    assert model.n_layers == 2
    assert "internvl_chat is read for its language model (qwen2) alone" in notes[0]


def test_an_encoder_that_is_not_trained_with_the_text_is_left_out_with_its_size() -> None:
    config = {"model_type": "qwen3_5", "text_config": {"num_hidden_layers": 4}, "vision_config": {"depth": 1}}
    _, notes = read_model(config, FILE)
    assert "vision encoder of" in notes[0] and "is not planned" in notes[0]


@pytest.mark.parametrize(
    ("changes", "field", "told"),
    [
        ({"model_type": "llamma"}, "model_type", "those like it are llama"),
        ({"model_type": None}, "model_type", "must name the kind of model"),
        ({"model_type": ["llama"]}, "model_type", "must name the kind of model"),
        ({"hidden_size": "64"}, "hidden_size", "must be a whole number"),
        ({"hidden_size": True}, "hidden_size", "must be a whole number"),
        ({"hidden_size": 64.5}, "hidden_size", "must be a whole number"),
        ({"hidden_size": -64}, "hidden_size", "must be from 1"),
        ({"vocab_size": 10**40}, "vocab_size", "must be from 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "must be from 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", "must be from 1"),
        ({"num_attention_heads": 5}, "num_attention_heads", "must divide the hidden size 64"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "must divide the 4 query heads"),
        ({"attention_bias": 1}, "attention_bias", "must be true or false"),
        ({"routed_expert_inner_size": 8}, "routed_expert_inner_size", "no model type is known to have"),
        ({"use_qk_norm": True}, "use_qk_norm", "not known otherwise"),
        ({"layer_types": "full_attention"}, "layer_types", "must be a list"),
        ({"layer_types": ["full_attention"]}, "layer_types", "the model has 2 layers"),
        ({"layer_types": ["full_attention", "hyena"]}, "layer_types[1]", "is no kind of layer known here"),
        ({"layer_types": ["full_attention", ["x"]]}, "layer_types[1]", "is no kind of layer known here"),
        ({"n_layer": 3}, "n_layer", "differs from num_hidden_layers"),
        (
            {"model_type": "mixtral", "num_key_value_heads": 4, "num_local_experts": 2, "num_experts_per_tok": 3},
            "num_experts_per_tok",
            "must be at most the 2 experts",
        ),
        ({"model_type": "dots1", "moe_layer_freq": 2}, "moe_layer_freq", "is read for 1 alone"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"}, "hybrid_override_pattern", "must be letters"),
        ({"model_type": "nemotron-nas", "block_configs": [1, 2]}, "block_configs[0]", "must have an attention"),
        ({"model_type": "kimi_linear", "linear_attn_config": []}, "linear_attn_config", "must have names and values"),
        ({"model_type": "deepseek_v4", "compress_ratios": [3, 3]}, "compress_ratios", "must contain only 0, 4, 128"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(changes: dict[str, Any], field: str, told: str) -> None:
    with pytest.raises(InputError) as caught:
        read(**changes)
    assert caught.value.field == field
    assert told in str(caught.value) and "config.json" in str(caught.value)


@pytest.mark.parametrize("data", [None, [], "llama", 7])
def test_what_is_no_mapping_is_refused(data: Any) -> None:
    with pytest.raises(InputError, match="must be a model's configuration"):
        read_model(data, FILE)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1', "is no valid JSON"),
        ('{"a": 1, "a": 2}', "stands twice"),
        ("[" * 100_000, "is nested too deep"),
        ('{"hidden_size": ' + "9" * 5000 + "}", "contains a number of 5000 digits"),
        ('{"model_type": "llama", "hidden_size": NaN}', "must be a whole number"),
    ],
)
def test_a_hostile_file_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=told):
        read_model_file(path)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("\ufeff" + json.dumps(LLAMA), encoding="utf-8")
    assert read_config(path) == LLAMA


@pytest.mark.parametrize(
    ("kind", "sizes", "merged"), [("qwen3_vl", {}, 4), ("gemma3", {"image_size": 896, "patch_size": 14}, 16)]
)
def test_the_layers_of_an_encoder_and_its_ends_are_all_of_it(kind: str, sizes: dict[str, int], merged: int) -> None:
    # Gemma 3's pooling head is no layer: its parameters are among the ends.
    text = {"model_type": f"{kind}_text"}
    model, notes = read_model({"model_type": kind, "text_config": text, "vision_config": sizes}, FILE)
    assert model.tower is not None and model.tower.parameters == model.extra_parameters
    assert model.tower.merged == merged and model.tower.ends_parameters > 0
    assert any("not modelled without --images" in note for note in notes)
