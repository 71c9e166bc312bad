"""The chunks on which MindSpeed-MM's own code builds encoders and a language model, beside those that are read.

The code is that of Ascend/MindSpeed-MM 57069cd5, where a clone is available; stand-ins take the place of the layers.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from benchmarks.reliability.outside import NotHere, loaded, source, without_package
from taylor.base.errors import InputError
from taylor.parsers.megatron.tower_file import VIRTUAL
from taylor.parsers.read import read_config
from taylor.parsers.write_back import write_plan
from tests.parsers.megatron.test_tower_file import spread

PLACE = "MindSpeed-MM", "57069cd5"
MODEL, VISION_MODEL = "mindspeed_mm/models/vlm_model.py", "mindspeed_mm/models/vision/vision_model.py"
CHECKS, PROGRAM = "mindspeed_mm/patchs/validate_args_patch.py", "pretrain_vlm.py"
README, VPP_PAGE = "examples/qwen2.5vl/README.md", "docs/zh/features/virtual_pipeline_parallel.md"
STAGES, ENCODER_LAYERS, LAYERS = 4, 32, 28
METHODS = ("_build_image_encoder_model", "_build_audio_encoder_model", "_build_text_decoder_model", "set_input_tensor")


class Chunk(NamedTuple):
    """Layers of a chunk, the modules beside them, and the one that takes the tensor of the chunk before."""

    vision: int
    sound: int
    language: int
    projector: bool
    embedding: bool
    head: bool
    takes: str


class Part(SimpleNamespace):
    """A module that keeps with what it was built, and the tensor that it is given."""

    received: object = None

    def set_input_tensor(self, tensor: object) -> None:
        self.received = tensor


class Module:
    """Megatron's module, which takes a configuration."""

    def __init__(self, config: Any = None) -> None:
        pass


def part(config: Any, pre_process: bool, post_process: bool, **_: Any) -> Part:
    """A stand-in for a model, with the layers that its configuration has."""
    return Part(layers=config.num_layers, pre_process=pre_process, post_process=post_process)


def _ensure_valid(passes: bool, message: str = "") -> None:
    assert passes, message


@cache
def own() -> SimpleNamespace:
    """MindSpeed-MM's own methods that build a chunk, and its check of the virtual stages."""
    try:
        text, absent = without_package(source(*PLACE, VISION_MODEL), "megatron", "mindspeed", "mindspeed_mm")
        model, checks = ast.parse(source(*PLACE, MODEL)), ast.parse(source(*PLACE, CHECKS))
    except NotHere as missing:
        pytest.skip(str(missing))
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("import torch", "from .")))
    classes = dict.fromkeys(("InternVLMLP", "GlmMLP", "CLIPViT", "Qwen3VLViT", "GlmViT", "create_deepseekvl_mlp"))
    stand_ins = {
        **absent, **classes, "torch": SimpleNamespace(Tensor=object), "MultiModalModule": Module, "Qwen2VLViT": part,
        "MultimodalProjector": Part,
    }  # fmt: skip
    vision_model = loaded("own_vision_model", text, **stand_ins)
    (vlm,) = [node for node in model.body if isinstance(node, ast.ClassDef) and node.name == "VLMModel"]
    methods = [node for node in vlm.body if isinstance(node, ast.FunctionDef) and node.name in METHODS]
    specs = ("get_vit_layer_spec", "get_llm_layer_spec", "get_projector_layer_spec", "get_audio_layer_spec")
    around = {
        **dict.fromkeys(specs, lambda _: None), "get_args": lambda: SimpleNamespace(hetero_parallel=False),
        "VisionModel": vision_model.VisionModel, "MMGPTModel": part, "print": lambda *_: None,
        "AudioModel": lambda config, **rest: part(config.audio_encoder, **rest),
    }  # fmt: skip
    module = loaded("own_vlm_model", "\n\n".join(map(ast.unparse, methods)), **around)
    (check,) = [node for node in checks.body if isinstance(node, ast.FunctionDef) and node.name == "validate_args"]
    rules = [node for node in check.body if isinstance(node, ast.If) and f"--{VIRTUAL}" in ast.unparse(node)]
    assert len(rules) == 2
    lines = "\n".join(map(ast.unparse, rules)).replace("\n", "\n    ")
    module.checked = loaded("own_checks", f"def checked(args):\n    {lines}", ensure_valid=_ensure_valid).checked
    return SimpleNamespace(**vars(module))


def built(encoder: Any, language: Any, sound: Any = None, virtual: int | None = None) -> list[Chunk]:
    """Chunks in model order, as MindSpeed-MM builds them from these lists."""
    decoder = SimpleNamespace(pipeline_num_layers=language)
    args = SimpleNamespace(
        virtual_pipeline_model_parallel_size=virtual, num_layers_per_virtual_pipeline_stage=None,
        num_virtual_stages_per_pipeline_rank=None, overlap_p2p_comm=True, pipeline_model_parallel_size=STAGES, rank=1,
        mm=SimpleNamespace(model=SimpleNamespace(text_decoder=decoder)),
    )  # fmt: skip
    own().checked(args)
    vpp = args.virtual_pipeline_model_parallel_size
    return [_chunk(encoder, language, sound, vpp, (v, s)) for v in range(vpp or 1) for s in range(STAGES)]


def _chunk(encoder: Any, language: Any, sound: Any, vpp: int | None, at: tuple[int, int]) -> Chunk:
    model = SimpleNamespace(
        pp_size=STAGES, enable_vp=vpp is not None, vp_size=vpp, vp_rank=at[0], pp_rank=at[1], add_image_encoder=True,
        add_audio_encoder=sound is not None, add_text_decoder=True, reward_process=False, input_tensor=None,
        share_embeddings_and_output_weights=False,
    )  # fmt: skip

    def of(layers: int, places: Any, **more: Any) -> SimpleNamespace:
        return SimpleNamespace(num_layers=layers, pipeline_num_layers=places, **more)

    images = SimpleNamespace(
        vision_encoder=of(ENCODER_LAYERS, encoder, model_id="qwen2vit"),
        vision_projector=SimpleNamespace(model_id="mlp"),
    )
    text = of(
        LAYERS, language, vocab_size=1, max_position_embeddings=1, parallel_output=True, rope_theta=1e6,
        position_embedding_type="mrope",
    )  # fmt: skip
    heard = None
    if sound is not None:
        sounds = SimpleNamespace(audio_encoder=of(ENCODER_LAYERS, sound))
        heard = own()._build_audio_encoder_model(model, sounds)
    model.image_encoder = own()._build_image_encoder_model(model, images)
    model.text_decoder = own()._build_text_decoder_model(model, text)
    own().set_input_tensor(model, "tensor")
    seen, said = model.image_encoder and model.image_encoder.encoder, model.text_decoder
    takers = {"vision": seen and seen.received, "language": said and said.received, "embedding": model.input_tensor}
    # Megatron builds this part of the layers in a configuration on a chunk.
    counts = [one.layers // (STAGES * (vpp or 1)) if one else 0 for one in (seen, heard, said)]
    return Chunk(
        *counts,
        bool(seen and model.image_encoder.projector),
        bool(said and said.pre_process),
        bool(said and said.post_process),
        next((name for name, taken in takers.items() if taken), ""),
    )


def runs(chunks: list[Chunk], heard: bool) -> bool:
    """Return whether every chunk takes and passes on what `VLMModel.forward` needs of it (vlm_model.py:581-713)."""
    for place, chunk in enumerate(chunks):
        if not (chunk.vision or chunk.language) or (place and not chunk.takes):
            return False  # no output, or no input
        if chunk.vision and chunk.language and not (chunk.embedding and chunk.projector):
            return False  # the language model gets no tensor, or unprojected patches
        if chunk.embedding and not chunk.vision and not (place and chunks[place - 1].projector):
            return False
        if chunk.sound != (ENCODER_LAYERS if heard and chunk.embedding else 0):
            return False
        if chunk.head != (chunk is chunks[-1]):
            return False
    return any(chunk.embedding for chunk in chunks)


def own_chunks(encoder: Any, language: Any, sound: Any = None, virtual: int | None = None) -> list[Chunk] | None:
    """Chunks of a launch that runs; None where the code refuses the lists or breaks over them."""
    try:
        chunks = built(encoder, language, sound, virtual)
    except (AssertionError, ValueError, TypeError, IndexError):
        return None
    return chunks if runs(chunks, sound is not None) else None


def read_chunks(
    folder: Path, encoder: Any, language: Any, sound: Any = None, virtual: int | None = None
) -> list[tuple[int, int, bool, bool]] | None:
    """Layers of encoder and language model, embedding and head of every chunk; None where they are refused."""
    flags = "" if virtual is None else f"--{VIRTUAL} {virtual}"
    try:
        config = read_config(spread(folder, encoder, language, flags, sound))
    except InputError as error:
        assert "pipeline_num_layers" in str(error) or VIRTUAL in str(error)
        return None
    assert config.plan is not None and config.tower is not None
    assert not [flag for flag in config.unmodelled if VIRTUAL in flag.name]
    placed = [count for row in config.plan.total_layers() for count in row]
    own_spread = config.tower.spread
    rows = own_spread.rows() if own_spread else [[ENCODER_LAYERS, *[0] * (len(placed) - 1)]]
    begins, last = own_spread.begins if own_spread else 0, len(placed) - 1
    seen = [count for row in rows for count in row]
    return [(seen[at], count, at == begins, at == last) for at, count in enumerate(placed)]


def parts_of(chunks: list[Chunk] | None) -> list[tuple[int, int, bool, bool]] | None:
    """What `read_chunks` gives, of the chunks that were built."""
    return None if chunks is None else [(one.vision, one.language, one.embedding, one.head) for one in chunks]


def test_the_lists_of_the_documentation_are_read_as_they_are_built(tmp_path: Path) -> None:
    own()
    found = re.findall(r"`(\[[\d,]+\])`、`(\[[\d,]+\])`", source(*PLACE, README))
    pairs = [tuple(map(json.loads, pair)) for pair in found]
    # examples/qwen2.5vl/README.md:464-466: the second pair is the one that it calls wrong.
    chunks = [own_chunks(*pair) for pair in pairs]
    assert [one is not None for one in chunks] == [True, False, True]
    assert [read_chunks(tmp_path, *pair) for pair in pairs] == list(map(parts_of, chunks))
    language, encoder = map(json.loads, re.findall(r'"pipeline_num_layers": (\[\[.*\]\])', source(*PLACE, VPP_PAGE)))
    chunks = [own_chunks(encoder, language, virtual=count) for count in (3, None, 1, 2)]
    assert [one is not None for one in chunks] == [True, False, False, False]
    for count, one in zip((3, None, 1, 2), chunks, strict=True):
        assert read_chunks(tmp_path, encoder, language, virtual=count) == parts_of(one)


def any_lists(random: Random) -> tuple[Any, Any, Any, int | None]:
    """Lists of two encoders and a language model, and virtual stages: some of them run, others nearly do."""
    virtual = random.choice((None, None, 1, 2, 3))
    chunks = STAGES * (virtual or 1)
    lead = random.randint(1, min(chunks, 6))
    begins = min(max(lead - random.choice((1, 1, 1, 0, 0, 2, -1)), 0), chunks - 1)

    def dealt(layers: int, first: int, last: int) -> list[int]:
        cuts = sorted(random.sample(range(1, layers), last - first - 1))
        counts = [high - low for low, high in zip([0, *cuts], [*cuts, layers], strict=True)]
        return [*[0] * first, *counts, *[0] * (chunks - last)]

    heard = begins if random.random() < 0.9 else random.randrange(chunks)
    lists: list[Any] = [dealt(ENCODER_LAYERS, 0, lead), dealt(LAYERS, begins, chunks)]
    lists.append(dealt(ENCODER_LAYERS, heard, heard + 1) if random.random() < 0.5 else None)
    odd = random.choice(lists[:2])
    if random.random() < 0.2:
        one, other = random.sample(range(chunks), 2)
        odd[one], odd[other] = odd[other], odd[one]
    if random.random() < 0.1:
        odd[random.randrange(chunks)] += 1
    if (virtual or 1) > 1:
        lists = [each and [each[at : at + STAGES] for at in range(0, chunks, STAGES)] for each in lists]
    if random.random() < 0.1:
        odd = random.choice(lists[:2])
        odd.append(odd[-1]) if random.random() < 0.5 else odd.pop()
    if random.random() < 0.1:
        virtual = random.choice((None, 1, 2, 3, STAGES))
    encoder, language, sound = lists
    return encoder, language, sound, virtual


def test_lists_are_read_as_they_are_built_or_refused_where_the_code_breaks(tmp_path: Path) -> None:
    own()
    random, run, cases = Random(7), 0, 200
    for number in range(cases):
        lists = any_lists(random)
        chunks = own_chunks(*lists)
        assert read_chunks(tmp_path, *lists) == parts_of(chunks), f"{number}: {lists}"
        run += chunks is not None
    assert cases / 4 < run < 3 * cases / 4


def test_written_lists_are_those_that_a_launch_would_state(tmp_path: Path) -> None:
    random, written, last = Random(11), 0, None
    for _ in range(200):
        encoder, language, sound, virtual = lists = any_lists(random)
        if read_chunks(tmp_path, *lists) is None or virtual == 1:
            continue
        flags = "" if virtual is None else f"--{VIRTUAL} {virtual}"
        config = read_config(spread(tmp_path, encoder, language, flags, sound))
        if last is not None and last[0] == (sound is None, virtual):
            write_plan(last[1].replace(path=config.path), last[1].plan)
            model = json.loads((config.path.parent / "model.json").read_text(encoding="utf-8"))
            parts = [model["image_encoder"]["vision_encoder"], model["text_decoder"]]
            parts += [] if sound is None else [model["audio_encoder"]["audio_encoder"]]
            assert [part["pipeline_num_layers"] for part in parts] == [each for each in last[2] if each is not None]
            written += 1
        last = (sound is None, virtual), config, lists[:3]
    assert written > 10


def test_an_encoder_is_frozen_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    own()
    (freezing,) = [
        node
        for node in ast.parse(source(*PLACE, PROGRAM)).body
        if isinstance(node, ast.FunctionDef) and node.name == "_apply_freezing"
    ]
    apply = loaded("own_freezing", ast.unparse(freezing))._apply_freezing
    for stated in ({}, {"freeze": True}, {"freeze": False}):
        frozen: dict[str, bool] = {}
        model = SimpleNamespace(freeze=lambda found=frozen, **parts: found.update(parts))
        encoder = SimpleNamespace(**stated)
        images = SimpleNamespace(vision_encoder=encoder, vision_projector=SimpleNamespace())
        apply(model, SimpleNamespace(image_encoder=images, audio_encoder=SimpleNamespace(audio_encoder=encoder)))
        file = spread(tmp_path, [ENCODER_LAYERS, 0, 0, 0], [4, 8, 8, 8], sound=[ENCODER_LAYERS, 0, 0, 0])
        model_file = file.parent / "model.json"
        data = json.loads(model_file.read_text(encoding="utf-8"))
        for name, section in (("image_encoder", "vision_encoder"), ("audio_encoder", "audio_encoder")):
            data[name][section].pop("freeze")
            data[name][section] |= stated
        model_file.write_text(json.dumps(data), encoding="utf-8")
        tower = read_config(file).tower
        assert tower is not None
        assert [one.trained for one in tower.parts] == [
            not frozen["freeze_image_encoder"], not frozen["freeze_audio_encoder"]
        ]  # fmt: skip
