"""What Megatron-Bridge's and peft's own adapters save on one rank of several, beside the analytical model's count."""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.reliability.outside import NotHere, loaded, source
from taylor.cost_model.job.adapters import adapter_kept_bytes
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.register.adapters import DOWN, JOINED_UP, Adapters
from taylor.register.frameworks import MEGATRON
from taylor.register.layers import LayerSpec, MlpSpec
from taylor.register.model import ModelSpec

torch = pytest.importorskip("torch")

TOKENS, HIDDEN, WIDTH, RANK, TP = 64, 128, 256, 32, 4
LAYER = LayerSpec("mlp", mlp=MlpSpec(WIDTH), norms=1)
MODEL = ModelSpec("m", 1, HIDDEN, 4, 4, 32, WIDTH, 1000, kinds=(LAYER,), pattern="mlp")
SPLIT = Strategy(1, TP, 1, sp=True)
RULES = TrainingRules(framework=MEGATRON, seq_length=TOKENS, param_bytes=2)


def tokens_gathered(x: Any, **_: Any) -> Any:
    return torch.cat([x] * TP)


def tokens_scattered(x: Any, **_: Any) -> Any:
    return x.chunk(TP)[0].clone()


class Gathered(torch.autograd.Function):  # type: ignore[misc,name-defined]
    """Megatron's GEMM of a column-parallel linear layer under SP: it saves its own tokens, and gathers them."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return tokens_gathered(x) @ weight.T


class Weighted:
    """A linear layer's part on one rank, [out, in] of its weight."""

    def __init__(self, wide_in: int, wide_out: int) -> None:
        self.weight = torch.nn.Parameter(torch.randn(wide_out, wide_in).bfloat16())
        self.bias = None

    def __call__(self, x: Any) -> Any:
        return torch.nn.functional.linear(x, self.weight)


class Features(Weighted):
    """Megatron-Bridge's ``ColumnParallelLinear(gather_output=True)``."""

    def __call__(self, x: Any) -> Any:
        return torch.cat([super().__call__(x)] * TP, -1), None


class Part(Weighted):
    """A parallel linear layer that returns a rank's part, or sums that are already there."""

    def __call__(self, x: Any) -> Any:
        return super().__call__(x), None


class Scattering(Weighted):
    """Megatron's ``RowParallelLinear`` under SP."""

    def __call__(self, x: Any) -> Any:
        return tokens_scattered(super().__call__(x))


class Gathering(Weighted):
    """Megatron's ``ColumnParallelLinear`` under SP."""

    def __call__(self, x: Any) -> Any:
        return Gathered.apply(x, self.weight)


def dropped(x: Any) -> Any:
    """Dropout as on a GPU, with a mask of bytes."""
    return torch.native_dropout(x, 0.1, True)[0]


def forward_of(repository: str, revision: str, path: str, name: str) -> Any:
    """A class's own ``forward``."""
    try:
        text = source(repository, revision, path)
    except NotHere as here:
        pytest.skip(str(here))
    (of,) = [node for node in ast.parse(text).body if getattr(node, "name", None) == name]
    assert isinstance(of, ast.ClassDef)
    (own,) = [node for node in of.body if getattr(node, "name", None) == "forward"]
    around = {
        "torch": torch,
        "nn": torch.nn,
        "Any": Any,
        "gather_from_sequence_parallel_region": tokens_gathered,
        "scatter_to_sequence_parallel_region": tokens_scattered,
    }
    return loaded(f"own_{name}", ast.unparse(own), **around).forward


def of_bridge(target: str, x: Any, *, dropout: bool) -> Any:
    """The result of Megatron-Bridge's adapter: TE gathers what enters a column-parallel layer, with its norm."""
    place = "067f987d", "src/megatron/bridge/peft/utils.py", "ParallelLinearAdapter"
    rows = target == DOWN
    adapter = SimpleNamespace(
        dropout_position="pre", dropout=dropped if dropout else lambda each: each, is_expert=False,
        input_is_parallel=rows, disable_sequence_parallel_comm=not rows, tp_group=None, use_a2a=False,
        config=SimpleNamespace(cpu_offloading=False), activation=lambda each: each, alpha=2 * RANK, dim=RANK,
        linear_in=Part(WIDTH // TP, RANK) if rows else Features(HIDDEN, RANK // TP),
        linear_out=Features(RANK, HIDDEN // TP) if rows else Part(RANK, 2 * WIDTH // TP),
        _sequence_parallel_input_regather_eligibility=lambda _: (False, None),
        _log_sequence_parallel_input_regather_fallback=lambda _: None,
    )  # fmt: skip
    x = x if rows else tokens_gathered(x)
    return forward_of("Megatron-Bridge", *place)(adapter, x), (x, adapter.linear_in.weight, adapter.linear_out.weight)


def of_peft(target: str, x: Any, *, dropout: bool) -> Any:
    """The result of peft's adapter beside a parallel layer of Megatron's."""
    place = "5d602fdb", "src/peft/tuners/lora/tp_layer.py", "LoraParallelLinear"
    rows = target == DOWN
    base = torch.zeros((TOKENS // TP, HIDDEN) if rows else (TOKENS, 2 * WIDTH // TP)).bfloat16()
    into = Scattering(WIDTH // TP, RANK) if rows else Weighted(HIDDEN, RANK)
    out = Weighted(RANK, HIDDEN) if rows else Gathering(RANK, 2 * WIDTH // TP)
    layer = SimpleNamespace(
        _check_forward_args=lambda *_: None, disable_adapters=False, merged=False, active_adapters=["a"],
        base_layer=lambda _: (base, None), lora_A={"a": into}, lora_B={"a": out}, scaling={"a": 2.0},
        lora_dropout={"a": dropped if dropout else lambda each: each},
        _cast_input_dtype=lambda each, kind: each.to(kind),
    )  # fmt: skip
    return forward_of("peft", *place)(layer, x)[0], (x, into.weight, out.weight)


def of_bridges_dora(target: str, x: Any, *, dropout: bool) -> Any:
    """The result of Megatron-Bridge's DoRA, whose magnitude scales the sum of both results."""
    assert not dropout
    known: list[Any] = []
    rows = target == DOWN
    features, tokens = (HIDDEN, TOKENS // TP) if rows else (2 * WIDTH // TP, TOKENS)

    def adapter(entering: Any) -> Any:
        result, beside = of_bridge(target, entering, dropout=False)
        known.extend(beside)
        return result

    adapter.dropout = torch.nn.Identity()  # type: ignore[attr-defined]
    magnitude = torch.nn.Parameter(torch.ones(features).bfloat16())
    adapter.get_weight_magnitude = lambda: magnitude  # type: ignore[attr-defined]
    layer = SimpleNamespace(
        base_linear_forward=lambda each: (torch.zeros(tokens, features).bfloat16(), None, each),
        _adapter_enabled=True, adapter=adapter, training=True, _get_weight_norm=lambda: torch.ones(features).bfloat16(),
    )  # fmt: skip
    place = "067f987d", "src/megatron/bridge/peft/dora_layers.py", "DoRALinear"
    return forward_of("Megatron-Bridge", *place)(layer, x)[0], known


@pytest.mark.parametrize("target", [JOINED_UP, DOWN])
def test_bridge_s_own_dora_saves_the_sum_of_a_rank_s_own_tokens(target: str) -> None:
    """The norm and the magnitude over it, a number a feature each, are not counted."""
    features = HIDDEN if target == DOWN else 2 * WIDTH // TP
    adapters = Adapters(RANK, (target,), gathers=True, decomposed=True)
    counted = TOKENS * adapter_kept_bytes(MODEL, LAYER, SPLIT, RULES.replace(adapters=adapters))
    assert saved_by(of_bridges_dora, target, dropout=False) == float(counted) + 2 * 2 * features


@pytest.mark.parametrize("dropout", [False, True], ids=["", "dropout"])
@pytest.mark.parametrize("target", [JOINED_UP, DOWN])
@pytest.mark.parametrize("tool", ["bridge", "peft"])
def test_an_adapter_s_own_code_saves_what_is_counted_beside_its_input(tool: str, target: str, dropout: bool) -> None:
    adapters = Adapters(RANK, (target,), dropout, gathers=tool == "bridge")
    counted = TOKENS * adapter_kept_bytes(MODEL, LAYER, SPLIT, RULES.replace(adapters=adapters))
    assert saved_by(of_bridge if tool == "bridge" else of_peft, target, dropout=dropout) == float(counted)


def saved_by(run: Callable[..., Any], target: str, *, dropout: bool) -> int:
    """Bytes that autograd saves of an adapter's steps, without its input and its weights."""
    x = torch.randn((TOKENS, WIDTH // TP) if target == DOWN else (TOKENS // TP, HIDDEN)).bfloat16().requires_grad_()
    storages: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result, known = run(target, x, dropout=dropout)
    assert result.requires_grad
    beside = {each.untyped_storage().data_ptr() for each in known}
    return sum(each.untyped_storage().nbytes() for at, each in storages.items() if at not in beside)
