"""Memory of a layer of transformers, against torch modules written after its model code, on fake tensors.

The classes repeat the operations of huggingface/transformers v5.24.0 src/transformers/models/qwen3/modeling_qwen3.py.
Run in their place, ``Qwen3DecoderLayer`` itself keeps as much, to a byte a token: 71,848 of Qwen3-0.6B.
"""

from __future__ import annotations

from typing import Any

import pytest

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import layer_bytes
from taylor.cost_model.memory.backward_workspace import gradient_workspace_bytes
from taylor.pipeline.plan import NONE
from taylor.register.model import DENSE, ModelSpec
from taylor.register.registry import Registry
from taylor.register.trainers import TRANSFORMERS

torch = pytest.importorskip("torch")

TOKENS = 131072
ALONE = Strategy(1, 1, 1, sp=False)
REGISTRY = Registry.load()


def norm(x: Any, weight: Any) -> Any:
    wide = x.to(torch.float32)
    variance = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(variance + 1e-6)).to(x.dtype)


def turned(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def decoder_layer(model: ModelSpec, weights: dict[str, Any], x: Any, cos: Any, sin: Any) -> Any:
    linear, silu = torch.nn.functional.linear, torch.nn.functional.silu
    attention = model.layer(DENSE).attention
    assert attention is not None
    y = norm(x, weights["before"])
    q, k, v = (linear(y, weights[name]).view(1, TOKENS, -1, attention.head_dim) for name in "qkv")
    q, k = (norm(each, weights[f"{name}_norm"]).transpose(1, 2) for name, each in zip("qk", (q, k), strict=True))
    q, k = turned(q, cos, sin), turned(k, cos, sin)
    context = torch.nn.functional.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)
    x = x + linear(context.transpose(1, 2).reshape(1, TOKENS, -1), weights["o"])
    y = norm(x, weights["behind"])
    return x + linear(silu(linear(y, weights["gate"])) * linear(y, weights["up"]), weights["down"])


def of_torch(name: str) -> tuple[float, float]:
    """Bytes a token that a layer keeps of its forward, and those that its backward holds beyond them at the most."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from taylor.dryrun.torch_stage.counter import LiveCounter

    model = REGISTRY.model(name)
    attention, mlp = model.layer(DENSE).attention, model.layer(DENSE).mlp
    assert attention is not None and mlp is not None
    queries, keys = attention.n_heads * attention.head_dim, attention.n_kv_heads * attention.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "before": (model.hidden,), "behind": (model.hidden,), "q_norm": (attention.head_dim,),
        "k_norm": (attention.head_dim,), "q": (queries, model.hidden), "k": (keys, model.hidden),
        "v": (keys, model.hidden), "o": (model.hidden, queries), "gate": (mlp.width, model.hidden),
        "up": (mlp.width, model.hidden), "down": (model.hidden, mlp.width),
    }  # fmt: skip
    with FakeTensorMode(), LiveCounter() as counter:
        weights = {each: torch.empty(s, dtype=torch.bfloat16, requires_grad=True) for each, s in shapes.items()}
        x = torch.empty(1, TOKENS, model.hidden, dtype=torch.bfloat16, requires_grad=True)
        cos, sin = (torch.empty(1, 1, TOKENS, attention.head_dim, dtype=torch.bfloat16) for _ in range(2))
        before = counter.total
        y = decoder_layer(model, weights, x, cos, sin)
        kept = counter.total - before
        dy = torch.empty_like(y)
        counter.peak = held = counter.total
        y.backward(dy)
        width = 2 * model.hidden  # the result, which the next layer keeps
        return kept / TOKENS - width, (counter.peak - held) / TOKENS


@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-8b", "qwen3-32b"])
def test_a_layer_of_transformers_keeps_and_needs_what_its_operations_do(name: str) -> None:
    model, rules = REGISTRY.model(name), TrainingRules(framework=TRANSFORMERS, seq_length=TOKENS, param_bytes=2)
    kept, beyond = of_torch(name)
    assert float(layer_bytes(model, model.layers_of(DENSE)[0], NONE, ALONE, rules)) / TOKENS == pytest.approx(
        kept, rel=0.005
    )
    counted = float(gradient_workspace_bytes(model, DENSE, ALONE, rules)) / TOKENS
    assert counted == pytest.approx(beyond, rel=0.03)


def test_norms_whose_weights_are_frozen_keep_no_normalized_values() -> None:
    from taylor.register.adapters import QUERY, Adapters

    model, rules = REGISTRY.model("qwen3-8b"), TrainingRules(framework=TRANSFORMERS, seq_length=TOKENS, param_bytes=2)
    layer = model.layers_of(DENSE)[0]
    frozen = rules.replace(adapters=Adapters(8, (QUERY,)))
    less = float(layer_bytes(model, layer, NONE, ALONE, rules) - layer_bytes(model, layer, NONE, ALONE, frozen))
    attention = layer.attention
    assert attention is not None
    normed = 2 * model.hidden + (attention.n_heads + attention.n_kv_heads) * attention.head_dim
    assert less > 2 * normed * TOKENS
