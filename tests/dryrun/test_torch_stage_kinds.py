"""Every kind of layer on fake tensors beside its closed forms: states, what a layer keeps, the room of its backward."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from taylor.cost_model.job.strategy import Strategy, TrainingRules  # noqa: E402
from taylor.cost_model.memory.activations import activation_bytes  # noqa: E402
from taylor.cost_model.memory.backward_workspace import gradient_workspace_bytes  # noqa: E402
from taylor.cost_model.memory.statics import layer_state_bytes  # noqa: E402
from taylor.dryrun.torch_stage.kernels import GradientQueue  # noqa: E402
from taylor.dryrun.torch_stage.layers import TransformerLayer  # noqa: E402
from taylor.dryrun.torch_stage.probe import layer_memory  # noqa: E402
from taylor.dryrun.torch_stage.site import Site  # noqa: E402
from taylor.pipeline.plan import FULL, NONE, SELECT  # noqa: E402
from taylor.register.layers import (  # noqa: E402
    CHUNKED,
    GATED_DELTA,
    KIMI_DELTA,
    LIGHTNING,
    SLIDING,
    AttentionSpec,
    IndexerSpec,
    LayerSpec,
    LinearAttentionSpec,
    MambaSpec,
    MlaSpec,
    MlpSpec,
    MoeSpec,
)
from taylor.register.model import ModelSpec  # noqa: E402
from taylor.register.registry import Registry  # noqa: E402
from tests import torch_stage_cases as cases  # noqa: E402

HIDDEN = 512
HEADS, GROUPS, SIZE = 16, 8, 64
PLAIN = AttentionSpec(HEADS, GROUPS, SIZE)
MLP, EXPERTS = MlpSpec(1536), MoeSpec(16, 4, 256, n_shared=1)

KINDS = {
    "attention alone": LayerSpec("a", PLAIN),
    "mlp alone": LayerSpec("a", mlp=MLP),
    "ungated mlp with bias": LayerSpec("a", mlp=MlpSpec(1536, gated=False, bias=True)),
    "experts alone": LayerSpec("a", moe=EXPERTS),
    "experts with a gate": LayerSpec("a", PLAIN, moe=MoeSpec(16, 4, 256, n_shared=1, shared_gate=True)),
    "attention beside mlp": LayerSpec("a", PLAIN, mlp=MLP, norms=1),
    "mlp beside experts": LayerSpec("a", PLAIN, mlp=MLP, moe=EXPERTS),
    "mlp beside experts, norms apart": LayerSpec("a", PLAIN, mlp=MLP, moe=EXPERTS, norms=3),
    "sandwich norms": LayerSpec("a", PLAIN, mlp=MLP, norms=4),
    "many norms": LayerSpec("a", PLAIN, mlp=MLP, moe=EXPERTS, norms=7, extra=640),
    "sliding": LayerSpec("a", AttentionSpec(HEADS, GROUPS, SIZE, reach=SLIDING, window=128), mlp=MLP),
    "chunked": LayerSpec("a", AttentionSpec(HEADS, GROUPS, SIZE, reach=CHUNKED, window=256), mlp=MLP),
    "narrow values": LayerSpec("a", AttentionSpec(HEADS, GROUPS, 96, v_head_dim=64), mlp=MLP),
    "norms on queries and keys": LayerSpec("a", AttentionSpec(HEADS, GROUPS, SIZE, qk_norm=True), mlp=MLP),
    "norms over all heads": LayerSpec(
        "a", AttentionSpec(HEADS, GROUPS, SIZE, qk_norm=True, qk_norm_weights=(HEADS + GROUPS) * SIZE), mlp=MLP
    ),
    "gate a channel": LayerSpec("a", AttentionSpec(HEADS, GROUPS, SIZE, gate=HEADS * SIZE, qk_norm=True), moe=EXPERTS),
    "gate a head": LayerSpec("a", AttentionSpec(HEADS, GROUPS, SIZE, gate=HEADS), mlp=MLP),
    "biases and sinks": LayerSpec(
        "a",
        AttentionSpec(HEADS, GROUPS, SIZE, bias=True, output_bias=True, sinks=True, reach=SLIDING, window=128),
        moe=MoeSpec(16, 4, 256, router_bias=True, expert_bias=True),
    ),
    "shared keys and values": LayerSpec("a", AttentionSpec(HEADS, GROUPS, SIZE, shared_kv=True), mlp=MLP),
    "low ranks": LayerSpec(
        "a",
        AttentionSpec(
            HEADS, 4, 128, q_rank=256, output_rank=64, output_groups=4, shared_kv=True, sinks=True,
            indexer=IndexerSpec(4, 32, 64, 12_345),
        ),
        moe=EXPERTS,
    ),
    "latent with a gate": LayerSpec(
        "a", AttentionSpec(HEADS, HEADS, 96, latent=MlaSpec(128, 32, 64, 64, 192), gate=HEADS * 64), mlp=MLP
    ),
    "latent experts": LayerSpec("a", PLAIN, moe=MoeSpec(16, 4, 256, n_shared=4, latent=128, gated=False)),
    "reused keys and values": LayerSpec(
        "a", AttentionSpec(HEADS, GROUPS, SIZE, qk_norm=True, qk_norm_weights=SIZE, reused_kv=True), mlp=MLP
    ),
    "mamba-2": LayerSpec("a", mamba=MambaSpec(1024, 16, 128, n_groups=8)),
    "mamba-2 without a norm": LayerSpec("a", mamba=MambaSpec(1024, 16, 64, n_groups=4, gate_norm=False), mlp=MLP),
    "mamba-2 with biases": LayerSpec("a", mamba=MambaSpec(1024, 32, 128, n_groups=4, projection_bias=True), mlp=MLP),
    "mamba-1": LayerSpec("a", mamba=MambaSpec(1024, 1024, 16, dt_rank=32)),
    "mamba-1 with norms": LayerSpec("a", mamba=MambaSpec(1024, 1024, 16, dt_rank=32, inner_norms=True), moe=EXPERTS),
    "gated delta net": LayerSpec("a", linear=LinearAttentionSpec(GATED_DELTA, 8, 8, 64, 128), mlp=MLP),
    "gated delta net, repeated": LayerSpec("a", linear=LinearAttentionSpec(GATED_DELTA, 8, 16, 64, 64), moe=EXPERTS),
    "kimi delta": LayerSpec("a", linear=LinearAttentionSpec(KIMI_DELTA, 8, 8, 64, 64, gate_rank=32), moe=EXPERTS),
    "kimi delta with a full gate": LayerSpec(
        "a", linear=LinearAttentionSpec(KIMI_DELTA, 8, 8, 64, 64, full_gate=True), mlp=MLP
    ),
    "lightning": LayerSpec("a", linear=LinearAttentionSpec(LIGHTNING, 8, 8, 64, 64, conv_kernel=0), mlp=MLP),
}  # fmt: skip

RULES = {
    "megatron": cases.MEGATRON.replace(seq_length=2048, expert_tensor_parallel=False),
    "torchtitan": cases.TORCHTITAN.replace(seq_length=2048, expert_tensor_parallel=False),
    "mindformers": cases.MINDFORMERS.replace(seq_length=2048),
}

STRATEGIES = {
    "alone": Strategy(4, 1, 1, 2, op=4, mbs=2),
    "tp2": Strategy(4, 2, 1, 2, op=4, sp=False),
    "tp4 sp": Strategy(4, 4, 1, 4, op=4),
}


def model_of(spec: LayerSpec) -> ModelSpec:
    """A model of two such layers."""
    return ModelSpec("m", 2, HIDDEN, HEADS, GROUPS, SIZE, 1536, 4096, kinds=(spec,), pattern=f"2 {spec.name}")


@dataclass(frozen=True)
class Held:
    """Elements and bytes that one rank holds of a layer."""

    elements: int
    weights: int
    gradients: int
    optimizer: int


def held_by(model: ModelSpec, kind: str, strategy: Strategy, rules: TrainingRules) -> Held:
    with FakeTensorMode():
        layer = TransformerLayer(Site(model, strategy, rules), GradientQueue(), model.layer(kind), NONE)
        weights = layer.weights()
        return Held(
            sum(torch.Size(weight.shape).numel() for weight in weights),
            sum(weight.tensor.untyped_storage().nbytes() for weight in weights if weight.tensor is not None),
            sum(weight.make_gradient().untyped_storage().nbytes() for weight in weights),
            sum(weight.optimizer.untyped_storage().nbytes() for weight in weights),
        )


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_a_rank_holds_the_states_of_the_closed_form(strategy: Strategy) -> None:
    rules = RULES["megatron"]
    for name, spec in KINDS.items():
        model = model_of(spec)
        found = held_by(model, spec.name, strategy, rules)
        expected = layer_state_bytes(model, spec.name, strategy, rules)
        assert found.weights == float(expected.weights) == 2 * found.elements, name
        assert found.gradients == float(expected.gradients), name
        # A share of a shard is rounded up to a whole byte, weight by weight.
        assert found.optimizer == pytest.approx(float(expected.optimizer), abs=64), name


CASES = [
    *(("megatron", strategy, NONE) for strategy in STRATEGIES),
    ("megatron", "tp4 sp", SELECT),
    ("megatron", "tp4 sp", FULL),
    ("torchtitan", "tp4 sp", NONE),
    ("torchtitan", "tp4 sp", SELECT),
    ("mindformers", "tp4 sp", NONE),
]


@pytest.mark.parametrize(("framework", "degrees", "mode"), CASES, ids=map(" ".join, CASES))
def test_a_layer_of_any_kind_keeps_what_its_closed_form_says(framework: str, degrees: str, mode: str) -> None:
    rules, strategy = RULES[framework], STRATEGIES[degrees]
    for name, spec in KINDS.items():
        model = model_of(spec)
        kept = layer_memory(model, spec.name, mode, strategy, rules).kept
        expected = float(activation_bytes(model, spec.name, mode, strategy, rules))
        assert kept == pytest.approx(expected, rel=0.02), name


@pytest.mark.slow
@pytest.mark.parametrize("degrees", ["alone", "tp4 sp"])
def test_the_backward_of_a_rebuilt_layer_needs_the_room_of_its_closed_form(degrees: str) -> None:
    rules, strategy = RULES["megatron"], STRATEGIES[degrees]
    for name, spec in KINDS.items():
        model = model_of(spec)
        none, full = (float(activation_bytes(model, spec.name, mode, strategy, rules)) for mode in (NONE, FULL))
        room = none - full + float(gradient_workspace_bytes(model, spec.name, strategy, rules))
        assert layer_memory(model, spec.name, FULL, strategy, rules).backward == pytest.approx(room, rel=0.055), name


@pytest.mark.parametrize(
    "name",
    [
        "nemotron-3-nano-30b-a3b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "jamba-v0.1", "gemma-4-26b-a4b",
        "gpt-oss-20b", "deepseek-v4-flash", "granite-4.0-h-small", "step-3.7-flash",
    ],
)  # fmt: skip
def test_every_layer_of_a_registered_model_is_what_its_closed_forms_say(name: str) -> None:
    model, strategy, rules = Registry.load().model(name), Strategy(8, 1, 1, 1, op=8), RULES["megatron"]
    for kind in model.body_counts:
        held = held_by(model, kind, strategy, rules)
        assert 2 * held.elements == float(layer_state_bytes(model, kind, strategy, rules).weights), kind
        kept = layer_memory(model, kind, NONE, strategy, rules).kept
        assert kept == pytest.approx(float(activation_bytes(model, kind, NONE, strategy, rules)), rel=0.015), kind
