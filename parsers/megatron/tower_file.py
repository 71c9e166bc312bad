"""The encoders in MindSpeed-MM's JSONs: ``image_encoder`` and ``audio_encoder`` of ``--mm-model``, the pixels of
``--mm-data``.

Its layers lie on the stages that ``pipeline_num_layers`` names (Ascend/MindSpeed-MM 57069cd5
mindspeed_mm/models/vlm_model.py:128-205, `_build_image_encoder_model`), in all of its examples the first. They may lie
on several (examples/qwen2.5vl/README.md:466; docs/zh/features/virtual_pipeline_parallel.md:55-68): a stage hands its
patches to the next one, the projector is with the last of them (mindspeed_mm/models/vision/vision_model.py:62-64), and
the embedding with the language model's first layers (vlm_model.py:328-342). They are
Megatron's, so that TP and sequence parallelism split them (mindspeed_mm/models/vision/vision_encoders/
qwen2vl_vit_model.py:564-631). Biases: mindspeed_mm/models/common/module_spec/qwen2vl_layer_spec.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.cost_model.job.tower import USUAL_PATCHES, Spread, TowerRun
from taylor.parsers.text.fields import MAX_LAYERS, MAX_SIZE
from taylor.register.tower import AUDIO, TowerSpec

ENCODER, PROJECTOR, AUDIO_ENCODER = "vision_encoder", "vision_projector", "audio_encoder"
DECODER = "text_decoder"
PLACES = "pipeline_num_layers"
PASS_ON = ("qwen2vit", "qwen2_5_vit", "videoalign_vit")
"""Encoders (``model_id``) that go on from what a stage receives (Ascend/MindSpeed-MM 57069cd5
mindspeed_mm/models/vision/vision_model.py:17-24). ``qwen3vit`` asks every stage for the table of positions that the
first one alone has (vision_encoders/qwen3vl_vit_model.py:121-123, 167-181, 277), ``glm4v_vit`` embeds nothing there
(glm4v_vl_vit_model.py:467-482), and ``clip`` embeds the image again (clip_vit_model.py:89-94, 123)."""
DUMMY_OPTIMIZER = "enable-dummy-optimizer"
VIRTUAL = "virtual-pipeline-model-parallel-size"
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
    encoder, projector = part_of(data, ENCODER), part_of(data, PROJECTOR)
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
        trained=not encoder.get("freeze", True),
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
    encoder = part_of(data, AUDIO_ENCODER, AUDIO_ENCODER)
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
        trained=not encoder.get("freeze", True),
        recomputed=encoder.get("recompute_granularity") == "full",
        split=True,
    )


def read_towers(data: Mapping[str, Any], images: Mapping[str, Any], path: Path) -> TowerRun | None:
    """All encoders of a model file; arguments as of `read_tower`."""
    found = [one for one in (read_tower(data, images, path), read_audio(data, path)) if one is not None]
    return replace(found[0], further=tuple(found[1:])) if found else None


@dataclass(frozen=True)
class Launch:
    """What decides in a script whether an encoder can lie on several stages.

    Parameters
    ----------
    stages, interleaves, tp, cp : int
    sequence_parallel, dummy_optimizer : bool
        ``--sequence-parallel`` and ``--enable-dummy-optimizer``.
    """

    stages: int
    interleaves: int
    tp: int
    cp: int
    sequence_parallel: bool
    dummy_optimizer: bool


def unable_to_spread(data: Mapping[str, Any], launch: Launch) -> str:
    """Why MindSpeed-MM cannot run the encoder of images on several stages, with the cure; empty where it can.

    A stage behind the first has no tensor to split over TP or CP when it asks for that (Ascend/MindSpeed-MM 57069cd5
    mindspeed_mm/models/vision/vision_encoders/qwen2vl_vit_model.py:504-505, 564-580).
    """
    kind = part_of(data, ENCODER).get("model_id")
    if kind not in PASS_ON:
        return f"model_id {shortened(str(kind))} does not go on from another stage's layers, as {', '.join(PASS_ON)} do"
    if launch.sequence_parallel and launch.tp > 1:
        return "--sequence-parallel splits what no stage behind the first has; leave it out"
    if launch.cp > 1:
        return f"--context-parallel-size {launch.cp} splits what no stage behind the first has; use 1"
    return ""


def chunks_of(places: Any, launch: Launch, path: Path, field: str) -> list[int]:
    """Counts by chunk in model order: a number a stage, with virtual stages a row of them for each.

    Source: Ascend/MindSpeed-MM 57069cd5 mindspeed_mm/models/vlm_model.py:152-168, 312-326.

    Raises
    ------
    InputError
        When the list has another form, over which the launcher breaks.
    """
    rows = places if launch.interleaves > 1 else [places]
    if isinstance(rows, list) and all(isinstance(row, list) and len(row) == launch.stages for row in rows):
        counts = [count for row in rows for count in row]
        whole = all(type(count) is int and 0 <= count <= MAX_LAYERS for count in counts)
        if len(rows) == launch.interleaves and whole and sum(counts) <= MAX_LAYERS:
            return counts
    each = f", a row for each of the {launch.interleaves} virtual stages" if launch.interleaves > 1 else ""
    cure = f"write a number a stage; under --{VIRTUAL} a row of them for each virtual stage"
    problem = f"must list the layers of each of the {launch.stages} stages{each}"
    raise InputError(problem, file=path, field=field, value=shortened(str(places)), cure=cure)


def read_language(decoder: Mapping[str, Any], launch: Launch, path: Path) -> list[int]:
    """The language model's layers by chunk in model order.

    Raises
    ------
    InputError
        When the launcher breaks over them: a chunk without a layer passes nothing on (vlm_model.py:328-330, 622-713),
        and the head is where the list has reached ``num_layers`` (vlm_model.py:343).
    """
    chunks = chunks_of(decoder.get(PLACES), launch, path, f"{DECODER}.{PLACES}")
    begins = next((place for place, count in enumerate(chunks) if count), 0)
    if sum(chunks) != decoder["num_layers"]:
        cure = f"let the list add up to num_layers = {decoder['num_layers']}"
        raise _odd_places(decoder, f"has {sum(chunks)} layers, so that no stage has the head", cure, path)
    if 0 in chunks[begins:]:
        problem = f"has no layer on position {chunks.index(0, begins)}, behind the first layers"
        raise _odd_places(decoder, problem, "give every later position a layer", path)
    return chunks


def _odd_places(section: Mapping[str, Any], problem: str, cure: str, path: Path, name: str = DECODER) -> InputError:
    value = shortened(str(section.get(PLACES)))
    return InputError(problem, file=path, field=f"{name}.{PLACES}", value=value, cure=cure)


def read_spread(data: Mapping[str, Any], language: Sequence[int], launch: Launch, path: Path) -> Spread | None:
    """The chunks of a model file's encoder of images; None where it lies on the first one with the embedding.

    Raises
    ------
    InputError
        When the launcher refuses the lists or breaks over them: the encoder's layers must fill the first chunks from
        the first one on, the language model begins on the last of these or behind it, and an encoder of sound lies
        whole where it begins. A chunk with neither never gets an input (vlm_model.py:370-381, 624-625), and sound that
        is heard elsewhere is not handed over (vlm_model.py:631-646).
    """
    encoder, name = part_of(data, ENCODER), f"image_encoder.{ENCODER}"
    begins = next(place for place, count in enumerate(language) if count)
    if not encoder and begins:
        problem = f"begins on position {begins}, and no encoder is on the ones before it"
        raise _odd_places(data[DECODER], problem, "give every position a layer", path)
    chunks = chunks_of(encoder.get(PLACES), launch, path, f"{name}.{PLACES}") if encoder else []

    def error(problem: str, cure: str) -> InputError:
        return _odd_places(encoder, problem, cure, path, name)

    if sum(chunks) != encoder.get("num_layers", 0):
        cure = f"let the list add up to num_layers = {encoder['num_layers']}"
        raise error(f"has {sum(chunks)} layers, so that no stage has the projector", cure)
    lead = next((place for place, count in enumerate(chunks) if not count), len(chunks))
    if sum(chunks[:lead]) != sum(chunks):
        raise error("leaves a stage out in front of a layer of the encoder", "put its layers on the first stages")
    if not lead - 1 <= begins <= lead:
        cure = f"give {DECODER}.{PLACES} its first layers on position {lead - 1} or {lead} of the list"
        problem = f"ends the encoder on position {lead - 1}, and the language model begins on position {begins}"
        raise error(problem, cure)
    _require_sound_with(data, begins, launch, path)
    if lead > 1 and (why := unable_to_spread(data, launch)):
        raise error(f"puts the encoder on {lead} chunks: {why}", "put all of its layers on the first stage")
    return Spread(launch.stages, launch.interleaves, tuple(chunks[:lead]), begins) if begins else None


def _require_sound_with(data: Mapping[str, Any], begins: int, launch: Launch, path: Path) -> None:
    """Refuse an encoder of sound away from the embedding."""
    sound, name = part_of(data, AUDIO_ENCODER, AUDIO_ENCODER), f"{AUDIO_ENCODER}.{AUDIO_ENCODER}"
    if sound and chunks_of(sound.get(PLACES), launch, path, f"{name}.{PLACES}")[begins] != sound.get("num_layers"):
        cure = f"put all of its layers on position {begins}, the language model's first"
        problem = "puts the encoder of sound elsewhere than the embedding, which alone takes what it hears"
        raise _odd_places(sound, problem, cure, path, name)


def spread_note(data: Mapping[str, Any], spread: Spread | None, launch: Launch) -> str | None:
    """Note for a launch that lacks a flag without which stages of frozen layers alone fail; None otherwise.

    Such a stage has no gradient and no parameter for its optimizer (docs/zh/features/dummy_optimizer.md).
    """
    if spread is None or launch.dummy_optimizer or not part_of(data, ENCODER).get("freeze", True):
        return None
    projects = not part_of(data, PROJECTOR).get("freeze", False)
    frozen = spread.begins - (projects and spread.begins == len(spread.layers))
    if not frozen:
        return None
    stages = "a stage" if frozen == 1 else f"{frozen} stages"
    return f"{ENCODER}.{PLACES} {spread}: {stages} of frozen layers alone: the launch needs --{DUMMY_OPTIMIZER}"


def part_of(data: Mapping[str, Any], name: str, section_name: str = "image_encoder") -> Mapping[str, Any]:
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
