"""MLPs that run over parts of the sequence (DeepSpeed's ``TiledMLP``), against the same steps in torch."""

from __future__ import annotations

from typing import Any

import pytest

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.backward_workspace import kind_workspace_bytes
from taylor.cost_model.time.step import layer_time
from taylor.pipeline.plan import FULL, NONE
from taylor.register.layers import LayerSpec, MlpSpec
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry
from taylor.register.trainers import TRANSFORMERS

torch = pytest.importorskip("torch")

HIDDEN, WIDTH, TOKENS = 128, 512, 2048
ONE = Strategy(1, 1, 1, sp=False)
RULES = TrainingRules(framework=TRANSFORMERS, seq_length=TOKENS, param_bytes=2, compute_bytes=2, compiled=True)
MLP = LayerSpec("mlp", mlp=MlpSpec(WIDTH), norms=1)
MODEL = ModelSpec("m", 1, HIDDEN, 4, 4, 32, WIDTH, 1000, kinds=(MLP,), pattern="mlp")
TIMED = RULES.replace(seq_length=8192)
LLAMA, H100 = Registry.load().model("llama3-8b"), Registry.load().device("h100-80g")


class _Gated(torch.autograd.Function):  # type: ignore[misc,name-defined]
    """A fused SwiGLU, which keeps gate and up."""

    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any) -> Any:
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        gate, up = ctx.saved_tensors
        return torch.empty_like(gate), torch.empty_like(up)


class _Tiled(torch.autograd.Function):  # type: ignore[misc,name-defined]
    """A function over parts of its rows: it keeps its input, and runs each part again in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, tiles: int, mlp: Any, weights: list[Any]) -> Any:
        ctx.save_for_backward(x)
        ctx.tiles, ctx.mlp, ctx.weights = tiles, mlp, weights
        return torch.cat([mlp(part) for part in x.chunk(tiles)])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        total = torch.zeros_like(x)
        summed = [torch.zeros_like(weight) for weight in ctx.weights]
        for own, part, into in zip(x.chunk(ctx.tiles), gradient.chunk(ctx.tiles), total.chunk(ctx.tiles), strict=True):
            with torch.enable_grad():
                leaf = own.detach().requires_grad_()
                leaf.grad = into
                torch.autograd.backward(ctx.mlp(leaf), part)
            for weight, place in zip(ctx.weights, summed, strict=True):
                place.add_(weight.grad)
                weight.grad = None
        for weight, place in zip(ctx.weights, summed, strict=True):
            weight.grad = place
        return total, None, None, None


def _of_torch(tiles: int) -> tuple[int, int]:
    """Bytes that stay from forward to backward, and the most that the backward holds beyond them and its gradients."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from taylor.dryrun.torch_stage.counter import LiveCounter

    with FakeTensorMode():
        weights = [
            torch.nn.Parameter(torch.empty(*size, dtype=torch.bfloat16))
            for size in ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
        ]
        gate, up, down = weights

        def mlp(x: Any) -> Any:
            linear = torch.nn.functional.linear
            return linear(_Gated.apply(linear(x, gate), linear(x, up)), down)

        with LiveCounter() as counter:
            x = torch.empty(TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
            out = _Tiled.apply(x, tiles, mlp, weights) if tiles else mlp(x)
            gradient = torch.empty_like(out)
            # The result's storage is freed before the backward, as where a residual was added to it.
            size = gradient.untyped_storage().nbytes()
            kept = counter.total - 2 * size
            counter.peak = counter.total
            out.backward(gradient)
            return kept, counter.peak - kept - 2 * size


@pytest.mark.parametrize("tiles", [1, 2, 8])
def test_a_tiled_mlp_keeps_its_input_alone(tiles: int) -> None:
    whole, tiled = (_of_torch(each)[0] for each in (0, tiles))
    kept = [float(activation_bytes(MODEL, "mlp", NONE, ONE, RULES.replace(mlp_tiles=each))) for each in (0, tiles)]
    assert kept[0] - kept[1] == whole - tiled > 0


@pytest.mark.parametrize("tiles", [1, 2, 8])
def test_the_backward_of_a_tiled_mlp_holds_what_torch_holds(tiles: int) -> None:
    """Within 6 %: one part's activations, the whole input's gradient, and the weights' gradients that add up."""
    rules = RULES.replace(mlp_tiles=tiles)
    assert float(kind_workspace_bytes(MODEL, "mlp", NONE, ONE, rules)) == pytest.approx(_of_torch(tiles)[1], rel=0.06)


def test_the_mlp_of_a_tiled_layer_runs_a_second_time_in_its_backward() -> None:
    """Also where the layer is recomputed, which then runs it a third time; forward and recompute stay as they are."""
    whole, tiled = (layer_time(LLAMA, "dense", ONE, TIMED.replace(mlp_tiles=each), H100) for each in (0, 4))
    assert (float(tiled.forward), float(tiled.recompute[FULL])) == (float(whole.forward), float(whole.recompute[FULL]))
    more = (float(tiled.backward) - float(whole.backward)) / float(whole.forward)
    products = 3 * LLAMA.hidden * LLAMA.ffn_hidden
    others = LLAMA.hidden * (2 * LLAMA.n_heads + 2 * LLAMA.n_kv_heads) * LLAMA.head_dim
    scores = 8192 * LLAMA.n_heads * LLAMA.head_dim  # causal, in weights: two products of half the tokens
    assert products / (products + others + scores) == pytest.approx(more, abs=0.05)


def test_experts_are_not_tiled() -> None:
    mixtral = Registry.load().model("mixtral-8x7b")
    for rules in (RULES, RULES.replace(mlp_tiles=4)):
        assert float(activation_bytes(mixtral, "moe", NONE, ONE, rules)) == float(
            activation_bytes(mixtral, "moe", NONE, ONE, RULES)
        )
