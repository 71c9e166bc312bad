"""MLPs that run over parts of the sequence (DeepSpeed's ``TiledMLP``), against the same steps in torch."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.reliability.outside import NotHere, loaded, source
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
    """verl's steps: the input is kept, each part runs again; hooks sum what adds up in the weights' ``grad`` too."""

    @staticmethod
    def forward(ctx: Any, mlp: Any, module: Any, x: Any, tiles: int, weights: list[Any]) -> Any:
        ctx.save_for_backward(x)
        ctx.tiles, ctx.mlp, ctx.module, ctx.weights = tiles, mlp, module, weights
        return torch.cat([mlp(module, part) for part in x.chunk(tiles, -2)], -2)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        total = torch.zeros_like(x)
        sums = [torch.zeros_like(weight) for weight in ctx.weights]
        parts = (each.chunk(ctx.tiles, -2) for each in (x, gradient, total))
        for number, (own, part, into) in enumerate(zip(*parts, strict=True), 1):
            pairs = zip(ctx.weights, sums, strict=True)
            hooks = [weight.register_hook(_adding(weight, place, number == ctx.tiles)) for weight, place in pairs]
            with torch.enable_grad():
                leaf = own.detach().requires_grad_()
                leaf.grad = into
                torch.autograd.backward(ctx.mlp(ctx.module, leaf), part)
            for hook in hooks:
                hook.remove()
        return None, None, total, None, None


def _adding(weight: Any, place: Any, last: bool) -> Any:
    def hook(gradient: Any) -> Any:
        place.add_(gradient)
        if last:
            weight.grad = None
        return place if last else None

    return hook


def _own(repository: str, revision: str, path: str) -> Any:
    """A program's own ``TiledMLP``."""
    try:
        return loaded(f"{repository}_tiled", source(repository, revision, path)).TiledMLP
    except NotHere as here:
        pytest.skip(str(here))


def _of_torch(
    tiles: int, sizes: tuple[int, int, int] = (HIDDEN, WIDTH, TOKENS), tiled: Any = _Tiled
) -> tuple[int, int]:
    """Bytes that stay from forward to backward, and most of the backward beyond them and its gradients.

    Parameters
    ----------
    sizes : tuple of int
        Hidden size, width of the MLP, tokens.
    """
    hidden, width, tokens = sizes
    from torch._subclasses.fake_tensor import FakeTensorMode

    from taylor.dryrun.torch_stage.counter import LiveCounter

    with FakeTensorMode():
        module = torch.nn.Module()
        for name, (wide_in, wide_out) in {"gate": sizes[:2], "up": sizes[:2], "down": (width, hidden)}.items():
            setattr(module, name, torch.nn.Linear(wide_in, wide_out, bias=False, dtype=torch.bfloat16))

        def mlp(own: Any, x: Any) -> Any:
            return own.down(_Gated.apply(own.gate(x), own.up(x)))

        with LiveCounter() as counter:
            x = torch.empty(1, tokens, hidden, dtype=torch.bfloat16, requires_grad=True)
            out = tiled.apply(mlp, module, x, tiles, list(module.parameters())) if tiles else mlp(module, x)
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


def _ours(tiles: int, sizes: tuple[int, int, int]) -> float:
    hidden, width, tokens = sizes
    kind = LayerSpec("mlp", mlp=MlpSpec(width), norms=1)
    model = ModelSpec("m", 1, hidden, 4, 4, hidden // 4, width, 1000, kinds=(kind,), pattern="mlp")
    return float(kind_workspace_bytes(model, "mlp", NONE, ONE, RULES.replace(seq_length=tokens, mlp_tiles=tiles)))


SIZES = [(128, 512, 2048), (256, 1024, 1024), (512, 2048, 512)]
"""Hidden size, width and tokens: activations outweigh the weights, both are alike, and the weights outweigh them."""


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("tiles", [1, 2, 8])
def test_the_backward_of_a_tiled_mlp_needs_what_torch_needs(tiles: int, sizes: tuple[int, int, int]) -> None:
    """Within 6 %: one part's activations, the whole input's gradient, two sets of weights' gradients and one more."""
    assert _ours(tiles, sizes) == pytest.approx(_of_torch(tiles, sizes)[1], rel=0.06)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("tiles", [1, 2, 8])
def test_verl_s_own_tiled_mlp_keeps_and_needs_as_much(tiles: int, sizes: tuple[int, int, int]) -> None:
    own = _own("verl", "b178a3cd", "verl/models/transformers/tiled_mlp.py")
    assert _of_torch(tiles, sizes, own) == _of_torch(tiles, sizes)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("tiles", [1, 2, 8])
def test_axolotl_s_own_tiled_mlp_needs_no_more(tiles: int, sizes: tuple[int, int, int]) -> None:
    """At most 22 % less: at the down projection one of an earlier part's gradients is left of it, in place of three."""
    kept, peak = _of_torch(tiles, sizes, _own("axolotl", "067b021c", "src/axolotl/monkeypatch/tiled_mlp/base.py"))
    assert kept == _of_torch(tiles, sizes)[0]
    assert peak <= _ours(tiles, sizes) * (1 + 1e-9) and _ours(tiles, sizes) < 1.22 * peak


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
