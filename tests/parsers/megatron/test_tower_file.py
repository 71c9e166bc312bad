"""MindSpeed-MM: the encoders of images and sound come from the JSONs that ``--mm-model`` and ``--mm-data`` name.

The JSONs are those of Ascend/MindSpeed-MM 57069cd5, examples/qwen2.5vl/model_7b.json and
examples/mindspore/qwen3vl/model_30B.json, by their sizes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.tower import tower_body
from taylor.parsers.huggingface.values import Values
from taylor.parsers.huggingface.vision import qwen3_vl
from taylor.parsers.megatron.tower_file import read_tower
from taylor.parsers.read import read_config
from taylor.register.tower import AUDIO
from tests.parsers.megatron.test_model_file import DECODER, job

QWEN25: dict[str, Any] = {
    "vision_encoder": {
        "model_id": "qwen2vit", "num_layers": 32, "hidden_size": 1280, "ffn_hidden_size": 3420,
        "gated_linear_unit": True, "num_attention_heads": 16, "in_channels": 3, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "normalization": "RMSNorm", "freeze": True,
        "pipeline_num_layers": [32, 0, 0, 0], "window_attn_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
    },
    "vision_projector": {"input_size": 1280, "hidden_size": 3584, "ffn_hidden_size": 5120, "freeze": True},
}  # fmt: skip
QWEN3: dict[str, Any] = {
    "vision_encoder": {
        "model_id": "qwen3vit", "deepstack_visual_indexes": [8, 16, 24], "num_layers": 27, "hidden_size": 1152,
        "in_channels": 3, "ffn_hidden_size": 4304, "num_attention_heads": 16, "max_position_embeddings": 2304,
        "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "gated_linear_unit": False,
        "add_bias_conv": True, "normalization": "LayerNorm", "freeze": True, "pipeline_num_layers": [27, 0, 0, 0],
    },
    "vision_projector": {"input_size": 1152, "hidden_size": 2048, "ffn_hidden_size": 4608, "freeze": True},
}  # fmt: skip
OMNI: dict[str, Any] = {
    "audio_encoder": {
        "model_id": "qwen_omni", "num_layers": 32, "hidden_size": 1280, "ffn_hidden_size": 5120,
        "gated_linear_unit": False, "num_attention_heads": 20, "normalization": "LayerNorm", "freeze": True,
        "pipeline_num_layers": [32, 0, 0, 0], "d_model": 1280, "num_mel_bins": 128, "max_source_positions": 1500,
        "n_window": 100, "output_dim": 3584,
    }
}  # fmt: skip
"""examples/qwen2.5omni/model_7b.json, by its sizes."""
PIXELS = {"dataset_param": {"preprocess_parameters": {"image_max_pixels": 262144}}}


def vision(**changes: Any) -> dict[str, Any]:
    """Qwen2.5-VL-7B's encoder with fields of it changed."""
    return {**QWEN25, "vision_encoder": {**QWEN25["vision_encoder"], **changes}}


def test_the_encoder_of_sound_has_the_parameters_of_its_class(tmp_path: Path) -> None:
    nn = pytest.importorskip("torch").nn
    file = job(tmp_path, {"image_encoder": QWEN25, "audio_encoder": OMNI, "text_decoder": DECODER})
    tower = read_config(file).tower
    assert tower is not None
    (sound,) = tower.further
    # mindspeed_mm/models/audio/audio_model.py:98-141 and its layers, whose joined projection has one bias.
    ends = [
        nn.Conv1d(128, 1280, 3, padding=1), nn.Conv1d(1280, 1280, 3, stride=2, padding=1), nn.Embedding(2, 3584),
        nn.LayerNorm(1280), nn.Linear(1280, 3584),
    ]  # fmt: skip
    layer = [
        nn.LayerNorm(1280), nn.Linear(1280, 3840), nn.Linear(1280, 1280), nn.LayerNorm(1280), nn.Linear(1280, 5120),
        nn.Linear(5120, 1280),
    ]  # fmt: skip
    ends_count, layer_count = (sum(p.numel() for one in part for p in one.parameters()) for part in (ends, layer))
    assert sound.spec.parameters == ends_count + 32 * layer_count
    # 30 s are 3,000 frames of 10 ms: 1,500 moments in 15 windows of 100, which become 750 tokens.
    assert (sound.spec.kind, sound.spec.patches_per_s, sound.spec.window, sound.spec.merged) == (AUDIO, 50, 100, 2)
    assert (sound.images, sound.trained, sound.split) == (0.0, False, True)


def test_an_encoder_of_sound_alone_is_the_job_s_encoder(tmp_path: Path) -> None:
    config = read_config(job(tmp_path, {"audio_encoder": OMNI, "text_decoder": DECODER}))
    assert config.tower is not None and config.tower.spec.kind == AUDIO and not config.tower.further
    broken = {"audio_encoder": {"audio_encoder": {**OMNI["audio_encoder"], "n_window": -1}}, "text_decoder": DECODER}
    with pytest.raises(InputError, match=r"audio_encoder\.audio_encoder\.n_window"):
        read_config(job(tmp_path, broken))


def test_the_encoder_of_a_published_file_has_the_published_parameters(tmp_path: Path) -> None:
    file = job(tmp_path, {"image_encoder": QWEN25, "text_decoder": DECODER})
    (file.parent / "data.json").write_text(json.dumps(PIXELS), encoding="utf-8")
    config = read_config(file)
    tower = config.tower
    assert tower is not None and tower.spec.parameters == 676_550_144
    assert (tower.trained, tower.recomputed, tower.split) == (False, False, True)
    assert (tower.spec.window, tower.spec.full_layers) == (64, 4)
    # 262,144 pixels in patches of 14 x 14, of which 2 x 2 are a token.
    assert (tower.images, tower.patches, "262,144" in tower.source) == (1.0, 1336, True)
    assert not [flag for flag in config.unmodelled if flag.name == "--mm-model"] and not config.notes


def test_qwen3_s_encoder_is_as_large_as_transformers_class_makes_it() -> None:
    tower = read_tower({"image_encoder": QWEN3}, PIXELS, Path("model.json"))
    own = {
        "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "in_channels": 3, "temporal_patch_size": 2,
        "patch_size": 16, "spatial_merge_size": 2, "out_hidden_size": 2048, "num_position_embeddings": 2304,
        "deepstack_visual_indexes": [8, 16, 24],
    }  # fmt: skip
    assert tower is not None
    assert tower.spec.parameters == qwen3_vl(Values(own, Path("config.json"), "qwen3_vl", {}), 2048)
    assert (tower.spec.window, tower.patches) == (None, 1024)


def test_an_encoder_that_trains_or_runs_again_says_so(tmp_path: Path) -> None:
    data = {"image_encoder": vision(freeze=False, recompute_granularity="full"), "text_decoder": DECODER}
    tower = read_config(job(tmp_path, data)).tower
    assert tower is not None and tower.trained and tower.recomputed
    assert (tower.images, tower.patches) == (1.0, 1024) and "assumed" in tower.source  # no file of the data


def test_layers_of_an_encoder_beyond_the_first_stage_are_noted(tmp_path: Path) -> None:
    config = read_config(
        job(tmp_path, {"image_encoder": vision(pipeline_num_layers=[16, 16, 0, 0]), "text_decoder": DECODER})
    )
    assert any("planned with all its layers on the first stage" in note for note in config.notes)


@pytest.mark.parametrize("value", [True, "32", 0, 10**12, None, -1])
def test_a_wrong_size_is_named_by_its_field(value: object, tmp_path: Path) -> None:
    data = {"image_encoder": vision(num_layers=value), "text_decoder": DECODER}
    with pytest.raises(InputError, match=r"image_encoder.vision_encoder.num_layers"):
        read_config(job(tmp_path, data))


@pytest.mark.parametrize("encoder", [None, [], {"vision_encoder": 3}, {"vision_encoder": {"num_layers": 32}}])
def test_an_encoder_without_sizes_stays_among_what_no_figure_has(encoder: object, tmp_path: Path) -> None:
    config = read_config(job(tmp_path, {"image_encoder": encoder, "text_decoder": DECODER}))
    assert config.tower is None and any(flag.name == "--mm-model" for flag in config.unmodelled)


def test_odd_sizes_still_describe_an_encoder_that_can_be_priced() -> None:
    odd = vision(num_layers=2, window_attn_size=3, fullatt_block_indexes=[1] * 9, num_attention_heads=1280)
    tower = read_tower({"image_encoder": odd}, {"dataset_param": [PIXELS]}, Path("model.json"))
    assert tower is not None and (tower.spec.full_layers, tower.spec.window, tower.patches) == (2, 1, 1024)
    assert tower_body(tower.spec).body_counts == {"vision": 2}
    with pytest.raises(InputError, match="num_attention_heads"):
        read_tower({"image_encoder": vision(num_attention_heads=1281)}, {}, Path("model.json"))
