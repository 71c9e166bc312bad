"""Frozen layers and ends in a job that trains others whole, against torch's autograd."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from taylor.cost_model.job.adapters import trained_parameters
from taylor.cost_model.job.parameters import layer_parameters, total_parameters
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.statics import embedding_state_bytes, head_state_bytes, layer_state_bytes
from taylor.cost_model.time.step import layer_time, step_ms
from taylor.cost_model.time.work import model_flops
from taylor.pipeline.plan import FULL, NONE
from taylor.register.adapters import BESIDE, EMBEDDING, FROZEN, HEAD, ROUTERS
from taylor.register.frameworks import MEGATRON
from taylor.register.frozen import with_frozen_layers
from taylor.register.model import DENSE, MOE, ModelSpec
from taylor.register.registry import Registry
from tests.cost_model.test_adapters import HIDDEN, TOKENS, WIDTH, Layer, saved_bytes

torch = pytest.importorskip("torch")

LLAMA = Registry.load().model("llama2-7b")
DEEPSEEK = Registry.load().model("deepseek-v3-671b")
H100 = Registry.load().device("h100-80g")
ONE = Strategy(1, 1, 1, sp=False)
RULES = TrainingRules(framework=MEGATRON, seq_length=TOKENS, param_bytes=2, fused_norms=True)
SMALL = ModelSpec("small", 3, HIDDEN, 4, 4, 64, WIDTH, 1000)


class TrainedLayer(Layer):
    """The layer of the adapters' test with matrices that train."""

    def linear(self, x: Any, width: int, target: str) -> Any:
        weight = torch.nn.Parameter(torch.randn(width, x.shape[-1]).bfloat16())
        self.weights.append(weight)
        self.trained.append(weight)
        return torch.nn.functional.linear(x, weight)

    def norm_weight(self) -> Any:
        return torch.nn.Parameter(super().norm_weight())


def _of_torch(trains: Sequence[bool], *, below: bool) -> list[int]:
    """Bytes that every layer of a stack keeps for the backward, and what is below trains or not."""
    x = torch.randn(TOKENS, HIDDEN).bfloat16().requires_grad_(below)
    found = []
    for own in trains:
        layer = TrainedLayer(FROZEN) if own else Layer(FROZEN)
        found.append(saved_bytes(layer, x))
        x = layer(x).detach().requires_grad_(x.requires_grad or own)
    return found


@pytest.mark.parametrize(
    ("trains", "below"),
    [((False, False, True), False), ((True, False, True), False), ((False, True, False), True), ((True,) * 3, True)],
    ids=["last trained", "frozen between", "embedding trained", "all trained"],
)
def test_layers_keep_what_autograd_saves(trains: tuple[bool, ...], below: bool) -> None:
    """Within 1 %: nothing below the first trained part, no input of a frozen matrix, all of a trained one's."""
    model = with_frozen_layers(SMALL, trains, below=below)
    kinds = [kind for kind, count in model.layer_counts().items() for _ in range(count)]
    kept = [float(activation_bytes(model, kind, NONE, ONE, RULES)) for kind in kinds]
    assert kept == pytest.approx(_of_torch(trains, below=below), rel=0.01)


def test_trained_parameters_are_those_with_a_gradient_in_torch() -> None:
    embedding, head = torch.nn.Embedding(1000, HIDDEN), torch.nn.Linear(HIDDEN, 1000, bias=False)
    embedding.weight.requires_grad_(False)
    layers = [torch.nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3)]
    for layer in layers[:2]:
        layer.weight.requires_grad_(False)
    x = embedding(torch.arange(8))
    for layer in layers:
        x = layer(x)
    head(x).sum().backward()
    counted = [layer.weight.grad is not None for layer in layers]
    assert (counted, embedding.weight.grad is None) == ([False, False, True], True)
    model = with_frozen_layers(SMALL, counted, below=False)
    trained = trained_parameters(model, RULES.replace(frozen=(EMBEDDING,)))
    assert trained == total_parameters(SMALL) - 1000 * HIDDEN - 2 * layer_parameters(SMALL, DENSE)
    assert trained_parameters(SMALL, RULES) == total_parameters(SMALL)


def test_frozen_layers_have_weights_alone() -> None:
    model = with_frozen_layers(LLAMA, [False] * 30 + [True] * 2, below=False)
    frozen, trained = (layer_state_bytes(model, kind, ONE, RULES) for kind in model.body_counts)
    assert float(frozen.total) == float(frozen.weights) == 2 * layer_parameters(LLAMA, DENSE)
    assert float(trained.total) == float(layer_state_bytes(LLAMA, DENSE, ONE, RULES).total)


def test_frozen_ends_and_vision_parts_have_weights_alone() -> None:
    model = LLAMA.replace(extra_parameters=10**9)
    frozen = RULES.replace(frozen=(EMBEDDING, HEAD, BESIDE))
    for part in (embedding_state_bytes(model, ONE, frozen), head_state_bytes(model, ONE, frozen)):
        assert float(part.total) == float(part.weights)
    beside = embedding_state_bytes(model, ONE, frozen).total - embedding_state_bytes(LLAMA, ONE, frozen).total
    assert float(beside) == 2e9


def test_frozen_routers_have_weights_alone() -> None:
    """Of DeepSeek-V3 256 rows of 7,168 a layer of experts, in 2 bytes."""
    routers = 256 * 7168
    trained, frozen = (
        layer_state_bytes(DEEPSEEK, MOE, ONE, each) for each in (RULES, RULES.replace(frozen=(ROUTERS,)))
    )
    whole = RULES.param_bytes + RULES.gradient_bytes + RULES.optimizer_bytes
    assert float(trained.total - frozen.total) == routers * (whole - 2)
    assert float(layer_state_bytes(DEEPSEEK, DENSE, ONE, RULES.replace(frozen=(ROUTERS,))).total) == float(
        layer_state_bytes(DEEPSEEK, DENSE, ONE, RULES).total
    )
    less = trained_parameters(DEEPSEEK, RULES) - trained_parameters(DEEPSEEK, RULES.replace(frozen=(ROUTERS,)))
    assert less == 58 * routers


def test_the_reference_model_of_a_pair_runs_forward_through_layers_that_no_gradient_reaches() -> None:
    model, pairs = with_frozen_layers(LLAMA, [False] * 31 + [True], below=False), RULES.replace(pairs=True)
    for kind in model.body_counts:
        assert float(layer_time(model, kind, ONE, pairs, H100).forward) == pytest.approx(
            float(layer_time(LLAMA, DENSE, ONE, pairs, H100).forward)
        )


@pytest.mark.parametrize("mode", [NONE, FULL])
def test_no_backward_runs_below_the_first_trained_layer(mode: str) -> None:
    model = with_frozen_layers(LLAMA, [False] * 31 + [True], below=False)
    kind = next(iter(model.body_counts))
    time = layer_time(model, kind, ONE, RULES, H100)
    assert float(time.backward) == float(time.recompute[FULL]) == 0
    assert float(activation_bytes(model, kind, mode, ONE, RULES)) == 0
    assert float(time.forward) == float(layer_time(LLAMA, DENSE, ONE, RULES, H100).forward)


def test_passed_layers_make_the_inputs_gradient_alone() -> None:
    """As frozen matrices under adapters: one GEMM of a backward's two, so that the step lies between."""
    first = with_frozen_layers(LLAMA, [True] + [False] * 31, below=False)
    last = with_frozen_layers(LLAMA, [False] * 31 + [True], below=False)
    times = [float(step_ms(each, ONE, RULES, H100)) for each in (last, first, LLAMA)]
    assert times == sorted(times)
    assert times[0] < 0.5 * times[2] < times[1] < 0.8 * times[2]


def test_flops_count_the_passes_that_run() -> None:
    """Six a weight of a trained layer, four of a passed one, two below: of a short sequence, whose scores are few."""
    one = 2.0 * layer_parameters(LLAMA, DENSE)
    every = model_flops(LLAMA, 1)
    for trains, fewer in (([False] * 31 + [True], 31 * 2 * one), ([True] + [False] * 31, 31 * one)):
        assert every - model_flops(with_frozen_layers(LLAMA, trains, below=False), 1) == pytest.approx(fewer, rel=1e-3)


def test_a_wrong_number_of_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="32 layers, and 3"):
        with_frozen_layers(LLAMA, [True, False, True], below=True)
