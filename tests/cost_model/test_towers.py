"""Encoders of images and sound: published parameters, what torch keeps of activations, time by its parts."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import pytest

from taylor.cost_model.choices.tower_costs import tower_costs
from taylor.cost_model.job.parameters import layer_parameters
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.tower import WINDOWED, TowerRun, tower_body, tower_degrees, tower_rules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.statics import MIB
from taylor.pipeline.plan import NONE
from taylor.register.frameworks import MEGATRON
from taylor.register.registry import Registry
from taylor.register.tower import AUDIO, VISION, TowerSpec

RULES = TrainingRules(framework=MEGATRON, param_bytes=2, compute_bytes=2)
ONE = Strategy(1, 1, 1, sp=False)
QWEN = TowerSpec(
    32, 1280, 16, 80, 3420, gated_mlp=True, norm_bias=False, window=64, full_layers=4,
    ends_parameters=1176 * 1280 + 1280 + 5120 * 5120 + 5120 + 5120 * 3584 + 3584,
    ends_products=1176 * 1280 + (5120 * 5120 + 5120 * 3584) / 4,
)  # fmt: skip
"""Qwen2.5-VL-7B's: transformers 5.23.0 models/qwen2_5_vl/configuration_qwen2_5_vl.py."""


SOUND = Registry.load().model("qwen2-audio-7b").tower


def test_a_clip_of_sound_is_filled_up_or_cut_and_becomes_25_tokens_a_second() -> None:
    assert SOUND is not None and (SOUND.kind, SOUND.patches_per_s, SOUND.merged) == (AUDIO, 50, 2)
    short, whole, long = (TowerRun(SOUND, 2.0, seconds * SOUND.patches_per_s) for seconds in (3, 30, 70))
    assert [one.tokens for one in (short, whole, long)] == [2 * 25 * seconds for seconds in (3, 30, 70)]
    assert [one.ran for one in (short, whole, long)] == [(2.0, 1500), (2.0, 1500), (6.0, 1500)]
    device = Registry.load().device("h100-80g")
    times = [tower_costs(one, ONE.replace(mbs=8), RULES, device).forward_ms for one in (short, whole, long)]
    assert times[0] == times[1] and times[2] == pytest.approx(3 * times[1], rel=0.05)


def test_the_encoders_of_a_job_cost_what_each_of_them_costs() -> None:
    assert SOUND is not None
    device, sound, seen = Registry.load().device("h100-80g"), TowerRun(SOUND, 1.0, 1500), TowerRun(QWEN, trained=True)
    both = replace(seen, further=(sound,))
    apart, together = (
        [tower_costs(one, ONE, RULES, device) for one in (seen, sound)],
        tower_costs(both, ONE, RULES, device),
    )
    assert astuple(together) == pytest.approx([a + b for a, b in zip(*map(astuple, apart), strict=True)])
    assert both.tokens == seen.tokens + sound.tokens and both.any_trained and both.fewest == 1.0
    assert both.unsplit().further[0] == sound
    silent = tower_costs(replace(sound, images=0.0), ONE, RULES, device)
    assert astuple(silent) == (0.0, 0.0, apart[1].states_mib, 0.0)


def test_the_parameters_of_an_encoder_are_the_published_ones() -> None:
    # register/models/qwen2.5-vl-7b.yaml: by the tensors of its checkpoint.
    assert QWEN.parameters == 676_550_144
    body = tower_body(QWEN)
    assert body.body_counts == {VISION: 4, WINDOWED: 28}
    assert {layer_parameters(body, kind) for kind in body.body_counts} == {QWEN.layer_parameters}


@pytest.mark.parametrize("gated", [False, True])
def test_a_layer_keeps_what_torch_keeps(gated: bool) -> None:
    hidden, heads, wide, images, patches = (1280, 16, 3420, 2, 256) if gated else (1152, 16, 4304, 2, 256)
    spec = TowerSpec(1, hidden, heads, hidden // heads, wide, gated_mlp=gated)
    run = TowerRun(spec, float(images), patches, trained=True)
    ours = float(activation_bytes(tower_body(spec), VISION, NONE, tower_degrees(run, ONE), tower_rules(run, RULES)))
    assert ours == pytest.approx(_kept_by_torch(hidden, heads, wide, images, patches, gated=gated), rel=0.005)


def _kept_by_torch(hidden: int, heads: int, wide: int, images: int, patches: int, *, gated: bool) -> float:
    """Bytes that a block of a vision transformer keeps in torch, but for its weights; SwiGLU as one kernel."""
    torch = pytest.importorskip("torch")
    functional, nn = torch.nn.functional, torch.nn

    class FusedSwiglu(torch.autograd.Function):  # type: ignore[misc]
        """It keeps its input alone (Megatron-LM d98e8a64 megatron/core/fusions/fused_bias_swiglu.py)."""

        @staticmethod
        def forward(ctx: Any, both: Any) -> Any:
            ctx.save_for_backward(both)
            gate, up = both.chunk(2, -1)
            return functional.silu(gate) * up

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            raise NotImplementedError

    parts = nn.ModuleDict(
        {
            "norm1": nn.LayerNorm(hidden), "norm2": nn.LayerNorm(hidden), "qkv": nn.Linear(hidden, 3 * hidden),
            "out": nn.Linear(hidden, hidden), "up": nn.Linear(hidden, wide * (1 + gated)),
            "down": nn.Linear(wide, hidden),
        }
    ).bfloat16()  # fmt: skip
    weights = {one.untyped_storage().data_ptr() for one in parts.parameters()}
    saved: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        saved.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    x = torch.randn(images, patches, hidden, dtype=torch.bfloat16, requires_grad=True)
    turn = torch.randn(patches, hidden // heads, dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        split = parts["qkv"](parts["norm1"](x)).chunk(3, -1)
        q, k, v = (one.reshape(images, patches, heads, -1).transpose(1, 2) for one in split)
        context = functional.scaled_dot_product_attention(q * turn, k * turn, v)  # rotated: new tensors
        y = x + parts["out"](context.transpose(1, 2).reshape(images, patches, hidden))
        inner = parts["up"](parts["norm2"](y))
        inner = FusedSwiglu.apply(inner) if gated else functional.gelu(inner, approximate="tanh")
        assert (y + parts["down"](inner)).requires_grad
    saved.pop(turn.untyped_storage().data_ptr(), None)
    return float(sum(one.untyped_storage().nbytes() for at, one in saved.items() if at not in weights))


def test_a_frozen_encoder_has_its_weights_alone_and_no_backward() -> None:
    device = Registry.load().device("h100-80g")
    frozen, trained = (tower_costs(TowerRun(QWEN, trained=trains), ONE, RULES, device) for trains in (False, True))
    assert frozen.states_mib == pytest.approx(2 * QWEN.parameters / MIB, rel=1e-6)
    assert (frozen.backward_ms, frozen.kept_mib) == (0.0, 0.0)
    # Weights, fp32 gradients, fp32 weights and two moments: 18 bytes a parameter without a distributed optimizer.
    assert trained.states_mib == pytest.approx(9 * frozen.states_mib, rel=1e-6)
    assert trained.forward_ms == frozen.forward_ms and trained.backward_ms > 1.5 * frozen.forward_ms
    again = tower_costs(TowerRun(QWEN, trained=True, recomputed=True), ONE, RULES, device)
    assert again.backward_ms == pytest.approx(trained.backward_ms + trained.forward_ms, rel=0.1)
    assert again.kept_mib < 0.1 * trained.kept_mib


def test_an_encoder_runs_whole_beside_a_tiled_mlp_of_the_language_model() -> None:
    device, run = Registry.load().device("h100-80g"), TowerRun(QWEN, trained=True)
    assert tower_costs(run, ONE, RULES.replace(mlp_tiles=4), device) == tower_costs(run, ONE, RULES, device)


def test_its_work_grows_with_images_and_whole_attention_with_their_square() -> None:
    device = Registry.load().device("h100-80g")

    def forward(images: float, patches: int, spec: TowerSpec = QWEN) -> float:
        return tower_costs(TowerRun(spec, images, patches), ONE, RULES, device).forward_ms

    assert forward(32, 4096) == pytest.approx(2 * forward(16, 4096), rel=0.05)
    whole = TowerSpec(**{**QWEN.__dict__, "window": None, "full_layers": 0})
    assert forward(4, 16384, whole) > 1.3 * forward(4, 16384)
    assert forward(16, 4096, whole) < forward(4, 16384, whole)


def test_tp_splits_an_encoder_of_megatron_s_layers_alone() -> None:
    two, device = Strategy(1, 2, 1, sp=False), Registry.load().device("h100-80g")
    whole, split = (tower_costs(TowerRun(QWEN, split=each), two, RULES, device).states_mib for each in (False, True))
    assert split == pytest.approx(whole / 2, rel=0.01)


def test_encoders_of_registered_models_are_all_that_their_checkpoints_have_beside_the_text() -> None:
    registry = Registry.load()
    models = [model for model in map(registry.model, registry.models) if model.tower is not None]
    assert len(models) >= 7
    for model in models:
        assert model.tower is not None and model.tower.parameters == model.extra_parameters, model.name
