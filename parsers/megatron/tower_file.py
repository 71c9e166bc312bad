"""The encoders in MindSpeed-MM's JSONs: ``image_encoder`` and ``audio_encoder`` of ``--mm-model``, the pixels of
``--mm-data``.

Its layers lie on the stages that ``pipeline_num_layers`` names (Ascend/MindSpeed-MM 57069cd5
mindspeed_mm/models/vlm_model.py:128-205, `_build_image_encoder_model`), in all of its examples the first. They are
Megatron's, so that TP and sequence parallelism split them (mindspeed_mm/models/vision/vision_encoders/
qwen2vl_vit_model.py:564-631). Biases: mindspeed_mm/models/common/module_spec/qwen2vl_layer_spec.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.tower import USUAL_PATCHES, TowerRun
from taylor.parsers.text.fields import MAX_LAYERS, MAX_SIZE
from taylor.register.tower import AUDIO, TowerSpec

ENCODER, PROJECTOR, AUDIO_ENCODER = "vision_encoder", "vision_projector", "audio_encoder"
PATCHES_PER_S, AUDIO_MERGED = 50, 2
"""Moments of a second of sound, and how many of them become one token."""
_SQUARE = 2
"""Side of the square of patches that becomes one token where ``spatial_merge_size`` is not given."""


def read_tower(data: Mapping[str, Any], images: Mapping[str, Any], path: Path) -> TowerRun | None:
    """The encoder that a model file describes; None where it has none, or one without its sizes.

    Parameters
    ----------
    data : mapping
        Content of ``--mm-model``.
    images : mapping
        Content of ``--mm-data``; empty where it is not there.

    Raises
    ------
    InputError
        When a size is no number of its kind.
    """
    encoder, projector = _part(data, ENCODER), _part(data, PROJECTOR)
    needed = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "patch_size")
    if any(name not in encoder for name in needed):
        return None
    at = _Sizes(encoder, path)
    patch, side = at.size("patch_size"), at.size("spatial_merge_size", _SQUARE)
    hidden = at.size("hidden_size")
    inputs = at.size("in_channels", 3) * at.size("temporal_patch_size", 1) * patch**2
    norm = hidden * (1 if encoder.get("normalization") == "RMSNorm" else 2)
    ends = inputs * hidden + (hidden if encoder.get("add_bias_conv") is True else 0)
    ends += at.size("max_position_embeddings", 0) * hidden + norm
    products = float(inputs * hidden)
    if "hidden_size" in projector:
        out = _Sizes(projector, path, PROJECTOR)
        merged, inner, width = hidden * side**2, out.size("ffn_hidden_size", hidden * side**2), out.size("hidden_size")
        further = encoder.get("deepstack_visual_indexes")
        more = len(further) if isinstance(further, list) else 0
        ends += (1 + more) * (merged * inner + inner + inner * width + width) + more * norm * side**2
        products += (1 + more) * (merged * inner + inner * width) / side**2
    layers, heads, windows = (
        at.size("num_layers", most=MAX_LAYERS),
        at.size("num_attention_heads", most=hidden),
        encoder.get("fullatt_block_indexes"),
    )
    windowed = isinstance(windows, list) and "window_attn_size" in encoder
    spec = TowerSpec(
        n_layers=layers,
        hidden=hidden,
        n_heads=heads,
        head_dim=at.size("kv_channels", hidden // heads),
        ffn_hidden=at.size("ffn_hidden_size"),
        gated_mlp=encoder.get("gated_linear_unit") is True,
        norm_bias=encoder.get("normalization") != "RMSNorm",
        window=max(1, at.size("window_attn_size") // patch) ** 2 if windowed else None,
        full_layers=min(layers, len(windows)) if windowed and isinstance(windows, list) else 0,
        merged=side**2,
        ends_parameters=ends,
        ends_products=products,
    )
    patches, source = USUAL_PATCHES, "assumed; --images states others"
    pixels = _pixels(images)
    if pixels is not None and pixels >= (patch * side) ** 2:
        patches = pixels // patch**2 // side**2 * side**2
        source = f"one of image_max_pixels = {pixels:,} is assumed; --images states others"
    return TowerRun(
        spec,
        patches=patches,
        trained=encoder.get("freeze") is not True,
        recomputed=encoder.get("recompute_granularity") == "full",
        split=True,
        source=source,
    )


def read_audio(data: Mapping[str, Any], path: Path) -> TowerRun | None:
    """The encoder of sound that a model file describes, which runs where a user states sound; None where it has none.

    Two convolutions, the second one halving the moments, then layers in windows of 2 `n_window` frames, pairs of
    moments averaged, a projection (mindspeed_mm/models/audio/audio_model.py:98-228, `OmniAudioEncoder`; its attention
    has a bias of the keys, too: omni_audio_encoder.py:41-59). A frame is 10 ms of sound (Whisper's: hop_length 160 of
    16,000 samples a second, transformers 5.23.0 models/whisper/feature_extraction_whisper.py), so that a second is 50
    moments and 25 tokens.

    Raises
    ------
    InputError
        When a size is no number of its kind.
    """
    encoder = _part(data, AUDIO_ENCODER, AUDIO_ENCODER)
    needed = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_mel_bins", "n_window")
    if any(name not in encoder for name in (*needed, "output_dim")):
        return None
    at = _Sizes(encoder, path, AUDIO_ENCODER, AUDIO_ENCODER)
    hidden, heads = at.size("hidden_size"), at.size("num_attention_heads", most=at.size("hidden_size"))
    mels, out = at.size("num_mel_bins"), at.size("output_dim")
    ends = (3 * mels * hidden + hidden) + (3 * hidden**2 + hidden) + 2 * hidden + 2 * out + (hidden * out + out)
    spec = TowerSpec(
        n_layers=at.size("num_layers", most=MAX_LAYERS),
        hidden=hidden,
        n_heads=heads,
        head_dim=at.size("kv_channels", hidden // heads),
        ffn_hidden=at.size("ffn_hidden_size"),
        gated_mlp=encoder.get("gated_linear_unit") is True,
        norm_bias=encoder.get("normalization") != "RMSNorm",
        window=at.size("n_window"),
        merged=AUDIO_MERGED,
        ends_parameters=ends,
        ends_products=float(6 * mels * hidden + 3 * hidden**2 + hidden * out / AUDIO_MERGED),
        kind=AUDIO,
        patches_per_s=PATCHES_PER_S,
    )
    return TowerRun(
        spec,
        images=0.0,
        patches=PATCHES_PER_S,
        trained=encoder.get("freeze") is not True,
        recomputed=encoder.get("recompute_granularity") == "full",
        split=True,
    )


def read_towers(data: Mapping[str, Any], images: Mapping[str, Any], path: Path) -> TowerRun | None:
    """All encoders of a model file; arguments as of `read_tower`."""
    found = [one for one in (read_tower(data, images, path), read_audio(data, path)) if one is not None]
    return replace(found[0], further=tuple(found[1:])) if found else None


def spread_note(data: Mapping[str, Any]) -> str | None:
    """Note for an encoder whose layers do not all lie on the first stage; None otherwise."""
    encoder = _part(data, ENCODER)
    places = encoder.get("pipeline_num_layers")
    row = places[0] if isinstance(places, list) and places and isinstance(places[0], list) else places
    if not isinstance(row, list) or (row and row[0] == encoder.get("num_layers")):
        return None
    return f"{ENCODER}.pipeline_num_layers {row}: the encoder is planned with all its layers on the first stage"


def _part(data: Mapping[str, Any], name: str, section_name: str = "image_encoder") -> Mapping[str, Any]:
    """A part of ``image_encoder`` or ``audio_encoder``; empty where there is none."""
    section = data.get(section_name)
    part = section.get(name) if isinstance(section, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def _pixels(images: Mapping[str, Any]) -> int | None:
    found: Any = images
    for name in ("dataset_param", "preprocess_parameters", "image_max_pixels"):
        found = found.get(name) if isinstance(found, Mapping) else None
    whole = isinstance(found, int) and not isinstance(found, bool) and 0 < found <= MAX_SIZE
    return found if whole else None


class _Sizes:
    """Sizes of a section."""

    def __init__(
        self, section: Mapping[str, Any], path: Path, name: str = ENCODER, above: str = "image_encoder"
    ) -> None:
        self.section, self.path, self.name = section, path, f"{above}.{name}"

    def size(self, key: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """A size of at least 1, or the default where it is not given."""
        value = self.section.get(key, default)
        if value == default and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            field = f"{self.name}.{key}"
            raise InputError(f"must be a whole number from 1 to {most}", file=self.path, field=field, value=value)
        return value
