"""MindSpeed-MM's own encoder of sound beside what is read of it, where a clone is available."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.reliability.outside import NotHere, loaded, source, without_package
from taylor.parsers.megatron.tower_file import read_audio
from taylor.register.tower import TowerSpec

torch = pytest.importorskip("torch")

PLACE = "MindSpeed-MM", "57069cd5"
FRAMES_PER_S = 100
"""Whisper's: hop_length 160 of 16,000 samples a second."""


class Blocks(torch.nn.Module):  # type: ignore[misc,name-defined]
    """The layers: they note the moments that enter them, and the windows in which these see each other."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.moments, self.windows = 0, []

    def forward(self, hidden: Any, attention_mask: Any, cu_seqlens: Any) -> Any:
        self.moments, self.windows = len(hidden), cu_seqlens.diff().tolist()
        return hidden


class Module(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Megatron's module, which takes a configuration."""

    def __init__(self, config: Any) -> None:
        super().__init__()


def class_of(path: str, name: str, **around: Any) -> Any:
    """A class of MindSpeed-MM's own, by itself."""
    (own,) = [node for node in ast.parse(source(*PLACE, path)).body if getattr(node, "name", None) == name]
    return getattr(loaded(f"own_{name}", ast.unparse(own), torch=torch, nn=torch.nn, **around), name)


@pytest.fixture(scope="module")
def own() -> Any:
    """The encoder of sound of examples/qwen2.5omni/model_7b.json without its layers, and what is read of the file."""
    import numpy as np

    try:
        text, absent = without_package(
            source(*PLACE, "mindspeed_mm/models/audio/audio_model.py"), "megatron", "mindspeed", "mindspeed_mm"
        )
        path = "mindspeed_mm/models/audio/omni_audio_encoder.py"
        absent |= {name: class_of(path, name, np=np) for name in ("AudioLinear", "SinusoidsPositionEmbedding")}
        data = json.loads(source(*PLACE, "examples/qwen2.5omni/model_7b.json"))
    except NotHere as here:
        pytest.skip(str(here))
    absent |= {
        "mpu": SimpleNamespace(get_context_parallel_world_size=lambda: 1),
        "get_args": lambda: SimpleNamespace(use_flash_attn=True),
        "MultiModalModule": Module,
        "Qwen2VLVisionTransformerBlock": Blocks,
    }
    module = loaded("own_audio_model", text, **absent)
    tower = read_audio(data, Path("model_7b.json"))
    assert tower is not None
    encoder = module.OmniAudioEncoder(SimpleNamespace(**data["audio_encoder"]["audio_encoder"]), None)
    return encoder, tower.spec


def test_what_stands_around_the_layers_has_the_parameters_that_are_counted(own: tuple[Any, TowerSpec]) -> None:
    encoder, spec = own
    assert sum(each.numel() for each in encoder.parameters()) == spec.ends_parameters


@pytest.mark.parametrize("seconds", [1, 12.3, 30])
def test_a_second_of_sound_is_50_moments_in_windows_and_25_tokens(own: tuple[Any, TowerSpec], seconds: float) -> None:
    encoder, spec = own
    frames = round(seconds * FRAMES_PER_S)
    with torch.no_grad():
        tokens = encoder(torch.randn(1, 128, frames), torch.ones(1, frames, dtype=torch.int64))
    moments = seconds * spec.patches_per_s
    assert encoder.blocks.moments == pytest.approx(moments, abs=1) and max(encoder.blocks.windows) <= spec.window
    assert len(encoder.blocks.windows) == -(-moments // spec.window)
    assert len(tokens) == pytest.approx(moments / spec.merged, abs=1)
