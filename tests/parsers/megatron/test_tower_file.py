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
from taylor.cost_model.job.tower import Spread, tower_body
from taylor.parsers.huggingface.values import Values
from taylor.parsers.huggingface.vision import qwen3_vl
from taylor.parsers.megatron.tower_file import PLACES, read_tower
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


def spread(
    folder: Path, encoder: object, language: object, flags: str = "", sound: object = None, **changes: Any
) -> Path:
    """A job whose encoder and language model have these lists of layers."""
    heard = {} if sound is None else {"audio_encoder": {"audio_encoder": {**OMNI["audio_encoder"], PLACES: sound}}}
    data = {
        "image_encoder": vision(**{PLACES: encoder}, **changes), "text_decoder": {**DECODER, PLACES: language}, **heard,
    }  # fmt: skip
    return job(folder, data, flags)


@pytest.mark.parametrize(
    ("encoder", "language", "layers", "begins", "frozen"),
    [
        # examples/qwen2.5vl/README.md:466, with this model's 32 and 28 layers.
        ([30, 2, 0, 0], [0, 11, 10, 7], (30, 2), 1, "a stage of frozen layers alone"),
        ([16, 16, 0, 0], [0, 0, 14, 14], (16, 16), 2, "2 stages of frozen layers alone"),
        ([32, 0, 0, 0], [0, 10, 10, 8], (32,), 1, "a stage of frozen layers alone"),
        # docs/zh/features/virtual_pipeline_parallel.md:61-68.
        (
            [[10, 10, 10, 2], [0] * 4, [0] * 4], [[0, 0, 0, 1], [4, 4, 4, 4], [4, 3, 2, 2]], (10, 10, 10, 2), 3,
            "3 stages of frozen layers alone",
        ),
    ],
)  # fmt: skip
def test_an_encoder_on_several_stages_is_read_as_it_is_stated(
    encoder: object, language: object, layers: tuple[int, ...], begins: int, frozen: str, tmp_path: Path
) -> None:
    vpp = "--virtual-pipeline-model-parallel-size 3" if len(layers) == 4 else ""
    config = read_config(spread(tmp_path, encoder, language, vpp))
    assert config.tower is not None
    assert config.tower.spread == Spread(4, 3 if vpp else 1, layers, begins) and config.tower.spreadable == ""
    assert config.tower.spread.rows() == (encoder if vpp else [encoder])
    (note,) = config.notes
    assert frozen in note and "--enable-dummy-optimizer" in note
    for trains in (
        spread(tmp_path, encoder, language, vpp, freeze=False),
        spread(tmp_path, encoder, language, f"{vpp} --enable-dummy-optimizer"),
    ):
        assert not read_config(trains).notes


def test_an_encoder_on_the_first_stage_is_not_spread(tmp_path: Path) -> None:
    config = read_config(spread(tmp_path, [32, 0, 0, 0], [4, 8, 8, 8]))
    assert config.tower is not None and config.tower.spread is None and not config.notes


@pytest.mark.parametrize(
    ("encoder", "language", "says"),
    [
        ([16, 16, 0, 0], [4, 8, 8, 8], "ends the encoder on position 1, and the language model begins on position 0"),
        ([16, 16, 0, 0], [0, 0, 0, 28], "first layers on position 1 or 2"),
        ([16, 0, 16, 0], [0, 0, 14, 14], "leaves a stage out in front of a layer of the encoder"),
        ([0, 32, 0, 0], [0, 4, 12, 12], "leaves a stage out"),
        ([16, 15, 0, 0], [0, 4, 12, 12], "has 31 layers, so that no stage has the projector"),
        ([16, 16], [0, 4, 12, 12], "must list the layers of each of the 4 stages"),
        ([16, 16, 0, "0"], [0, 4, 12, 12], "must list the layers"),
        ([16, 16, 0, True], [0, 4, 12, 12], "must list the layers"),
        ([[16, 16, 0, 0], [0] * 4], [0, 4, 12, 12], "must list the layers of each of the 4 stages"),
        (None, [0, 4, 12, 12], "must list the layers"),
    ],
)
def test_lists_over_which_the_launcher_breaks_are_refused(
    encoder: object, language: object, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"image_encoder\.vision_encoder\.pipeline_num_layers") as found:
        read_config(spread(tmp_path, encoder, language))
    assert says in str(found.value)


@pytest.mark.parametrize(
    ("flags", "changes", "says"),
    [
        ("", {"model_id": "qwen3vit"}, "qwen3vit does not go on from another stage's layers"),
        ("--tensor-model-parallel-size 2 --sequence-parallel", {}, "--sequence-parallel splits"),
        ("--context-parallel-size 2", {}, "--context-parallel-size 2 splits"),
    ],
)
def test_encoders_that_run_on_one_stage_alone_are_refused_on_several(
    flags: str, changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=says):
        read_config(spread(tmp_path, [16, 16, 0, 0], [0, 4, 12, 12], flags, **changes))
    config = read_config(spread(tmp_path, [32, 0, 0, 0], [4, 8, 8, 8], flags, **changes))
    assert config.tower is not None and says in str(config.tower.spreadable)


def test_an_encoder_of_sound_lies_with_the_embedding(tmp_path: Path) -> None:
    config = read_config(spread(tmp_path, [16, 16, 0, 0], [0, 4, 12, 12], sound=[0, 32, 0, 0]))
    assert config.tower is not None and config.tower.spread is not None and config.tower.spread.begins == 1
    for sound in ([32, 0, 0, 0], [16, 16, 0, 0]):
        with pytest.raises(InputError, match=r"audio_encoder.*elsewhere than the embedding.*on position 1"):
            read_config(spread(tmp_path, [16, 16, 0, 0], [0, 4, 12, 12], sound=sound))


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
