"""Parameters of the encoders that stand beside a language model, each counted by name from its class.

Sources: transformers 5.23.0, the ``modeling_*.py`` beside the configuration that `model_types.yaml` names.
"""

from __future__ import annotations

from dataclasses import replace

from taylor.parsers.huggingface.values import Values
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.tower import AUDIO, TowerSpec

MLP_RATIO = 8960 / 1536
"""Width of Step-3.7's vision MLP over its hidden size: models/step3p7/configuration_step3p7.py."""


def _with_bias(inner: int, outer: int) -> int:
    return inner * outer + outer


def _plain_layer(hidden: int, width: int) -> int:
    """Attention and MLP with biases, a LayerNorm before each."""
    attention = _with_bias(hidden, 3 * hidden) + _with_bias(hidden, hidden)
    return attention + _with_bias(hidden, width) + _with_bias(width, hidden) + 4 * hidden


def qwen3_vl(vision: Values, text_hidden: int) -> int:
    """Qwen3-VL and Qwen3.5: patches in time and space, a merger, further ones for the layers it looks into.

    Parameters
    ----------
    text_hidden : int
        Width of the language model; the encoder says its own output width.
    """
    hidden, depth = vision.size("hidden_size"), vision.size("depth", high=MAX_LAYERS)
    patch = vision.size("in_channels") * vision.size("temporal_patch_size") * vision.size("patch_size") ** 2
    merged = hidden * vision.size("spatial_merge_size", high=64) ** 2
    out = vision.size("out_hidden_size")
    mlp = _with_bias(merged, merged) + _with_bias(merged, out)
    looked_into = vision.list_or_none(
        "deepstack_visual_indexes", lambda name, value: vision.whole(name, value, 0, depth)
    )
    return (
        _with_bias(patch, hidden)
        + vision.size("num_position_embeddings") * hidden
        + depth * _plain_layer(hidden, vision.size("intermediate_size"))
        + mlp
        + 2 * hidden
        + len(looked_into or []) * (mlp + 2 * merged)
    )


def qwen3_vl_tower(vision: Values, text_hidden: int) -> TowerSpec:
    """The layers of Qwen3-VL's encoder; a square of patches becomes a token."""
    hidden, depth, heads = vision.size("hidden_size"), vision.size("depth", high=MAX_LAYERS), vision.size("num_heads")
    square, patch = vision.size("spatial_merge_size", high=64) ** 2, vision.size("patch_size") ** 2
    inputs = vision.size("in_channels") * vision.size("temporal_patch_size") * patch
    further = vision.list_or_none("deepstack_visual_indexes", lambda name, value: vision.whole(name, value, 0, depth))
    mergers = (1 + len(further or [])) * hidden * (hidden * square + vision.size("out_hidden_size"))
    spec = TowerSpec(depth, hidden, heads, hidden // heads, vision.size("intermediate_size"), merged=square)
    ends = qwen3_vl(vision, text_hidden) - depth * spec.layer_parameters
    return replace(spec, ends_parameters=ends, ends_products=float(inputs * hidden + mergers))


def siglip_tower(vision: Values, text_hidden: int) -> TowerSpec:
    """The layers of Gemma 3's encoder; 256 tokens an image, pooled from all of its patches
    (models/gemma3/configuration_gemma3.py, ``mm_tokens_per_image``)."""
    hidden, depth = vision.size("hidden_size"), vision.size("num_hidden_layers", high=MAX_LAYERS)
    heads, patch = vision.size("num_attention_heads"), vision.size("patch_size")
    merged = max(1, (vision.size("image_size") // patch) ** 2 // 256)
    spec = TowerSpec(depth, hidden, heads, hidden // heads, vision.size("intermediate_size"), merged=merged)
    ends = siglip(vision, text_hidden) - depth * spec.layer_parameters
    products = vision.size("num_channels") * patch**2 * hidden + hidden * text_hidden / merged
    return replace(spec, ends_parameters=ends, ends_products=float(products))


def siglip(vision: Values, text_hidden: int) -> int:
    """Gemma 3: SigLIP with its pooling head where it is on, a norm and a projection to the text."""
    hidden, width = vision.size("hidden_size"), vision.size("intermediate_size")
    side = vision.size("image_size") // vision.size("patch_size")
    patch = vision.size("num_channels") * vision.size("patch_size") ** 2
    head = 0
    if vision.flag("vision_use_head"):
        head = hidden + _plain_layer(hidden, width) - 2 * hidden
    layers = vision.size("num_hidden_layers", high=MAX_LAYERS) * _plain_layer(hidden, width)
    projector = hidden * text_hidden + hidden
    return _with_bias(patch, hidden) + side * side * hidden + layers + 2 * hidden + head + projector


def gemma4(vision: Values, text_hidden: int) -> int:
    """Gemma 4: gated MLPs, norms on queries and keys, two position tables, a projection to the text."""
    vision.must_be("use_clipped_linears", False, "clipped layers are not counted")
    vision.must_be("attention_bias", False, "biases are not counted")
    hidden, width, size = vision.size("hidden_size"), vision.size("intermediate_size"), vision.size("head_dim")
    queries = vision.size("num_attention_heads") * size
    keys = vision.size("num_key_value_heads") * size
    layer = 2 * hidden * (queries + keys) + 2 * size + 3 * hidden * width + 4 * hidden
    patch = 3 * vision.size("patch_size") ** 2
    return (
        2 * vision.size("position_embedding_size") * hidden
        + patch * hidden
        + vision.size("num_hidden_layers", high=MAX_LAYERS) * layer
        + hidden * text_hidden
    )


def step3p7(vision: Values, text_hidden: int) -> int:
    """Step-3.7: two scales a layer, two convolutions that halve the image, a projection to the text."""
    hidden = vision.size("width", "hidden_size")
    width = int(hidden * (vision.number("mlp_ratio") if "mlp_ratio" in vision.data else MLP_RATIO))
    side = vision.size("image_size") // vision.size("patch_size")
    patch = vision.size("num_channels") * vision.size("patch_size") ** 2
    layers = vision.size("layers", "num_hidden_layers", high=MAX_LAYERS) * (_plain_layer(hidden, width) + 2 * hidden)
    halved = _with_bias(9 * hidden, 2 * hidden) + _with_bias(18 * hidden, 4 * hidden)
    return patch * hidden + side * side * hidden + 2 * hidden + layers + halved + 4 * hidden * text_hidden


def qwen2_audio(audio: Values, text_hidden: int) -> int:
    """Qwen2-Audio: Whisper's encoder, whose keys have no bias, and a projection to the text."""
    hidden, width, mels = audio.size("d_model"), audio.size("encoder_ffn_dim"), audio.size("num_mel_bins")
    layers = audio.size("encoder_layers", high=MAX_LAYERS) * (_plain_layer(hidden, width) - hidden)
    convolutions = _with_bias(3 * mels, hidden) + _with_bias(3 * hidden, hidden)
    positions = audio.size("max_source_positions") * hidden
    return layers + convolutions + positions + 2 * hidden + _with_bias(hidden, text_hidden)


def qwen2_audio_tower(audio: Values, text_hidden: int) -> TowerSpec:
    """The layers of Qwen2-Audio's encoder.

    A frame of sound is 10 ms (hop_length 160 of 16,000 samples: models/whisper/feature_extraction_whisper.py); the
    second convolution halves the frames, and pairs of what the layers give become a token (`avg_pooler`). Every clip is
    filled up to `max_source_positions` (models/qwen2_audio/modeling_qwen2_audio.py, ``Qwen2AudioEncoder.forward``
    raises otherwise).
    """
    hidden, heads, mels = audio.size("d_model"), audio.size("encoder_attention_heads"), audio.size("num_mel_bins")
    depth, merged = audio.size("encoder_layers", high=MAX_LAYERS), 2
    spec = TowerSpec(
        depth,
        hidden,
        heads,
        hidden // heads,
        audio.size("encoder_ffn_dim"),
        merged=merged,
        kind=AUDIO,
        patches_per_s=50,
        padded=audio.size("max_source_positions"),
    )
    products = 6 * mels * hidden + 3 * hidden**2 + hidden * text_hidden / merged
    ends = qwen2_audio(audio, text_hidden) - depth * spec.layer_parameters
    return replace(spec, ends_parameters=ends, ends_products=float(products))
