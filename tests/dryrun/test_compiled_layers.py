"""Tensors that a compiled layer keeps: counted with torch's own compiler, beside closed forms and dry-run."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import (  # noqa: E402
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from taylor.cost_model.job.strategy import Strategy  # noqa: E402
from taylor.cost_model.memory.activations import activation_bytes  # noqa: E402
from taylor.dryrun.torch_stage.probe import layer_memory  # noqa: E402
from taylor.pipeline.plan import NONE, SELECT  # noqa: E402
from taylor.register.model import DENSE, ModelSpec  # noqa: E402
from tests import torch_stage_cases as cases  # noqa: E402

HIDDEN, HEADS, GROUPS, FFN, TOKENS = 256, 8, 2, 896, 64
HEAD = HIDDEN // HEADS
MODEL = ModelSpec("small", 2, HIDDEN, HEADS, GROUPS, HEAD, FFN, 1024)
RULES = cases.TORCHTITAN.replace(seq_length=TOKENS, compiled=True)
PLACE = Strategy(1, 1, 1)


class _Layer(nn.Module):
    """A LLaMA layer as torchtitan v0.2.2 torchtitan/models/llama3/model/model.py computes it."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"q": (HIDDEN, HIDDEN), "k": (HIDDEN, GROUPS * HEAD), "v": (HIDDEN, GROUPS * HEAD),
                 "o": (HIDDEN, HIDDEN), "w1": (HIDDEN, FFN), "w2": (FFN, HIDDEN), "w3": (HIDDEN, FFN)}  # fmt: skip
        for name, (inner, outer) in sizes.items():
            setattr(self, name, nn.Linear(inner, outer, bias=False, dtype=torch.bfloat16))
        self.norm1, self.norm2 = (nn.RMSNorm(HIDDEN, dtype=torch.bfloat16) for _ in range(2))

    def forward(self, x: Any, turn: Any) -> Any:
        y = self.norm1(x)
        q, k, v = (part(y).view(1, TOKENS, -1, HEAD) for part in (self.q, self.k, self.v))
        q, k = (_turned(part, turn).transpose(1, 2) for part in (q, k))
        context = nn.functional.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)
        h = x + self.o(context.transpose(1, 2).reshape(1, TOKENS, HIDDEN))
        y = self.norm2(h)
        return h + self.w2(nn.functional.silu(self.w1(y)) * self.w3(y))


def _turned(x: Any, turn: Any) -> Any:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turn.view(1, TOKENS, 1, HEAD // 2)).flatten(3).type_as(x)


class _ByOperator(nn.Module):
    """The same, saved by operator as v0.2.2 torchtitan/distributed/activation_checkpoint.py:104-124 does it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, turn: Any) -> Any:
        return checkpoint(self.layer, x, turn, use_reentrant=False, context_fn=_contexts, preserve_rng_state=False)


def _contexts() -> Any:
    counts: dict[bool, int] = defaultdict(int)
    kernels = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
    )

    def policy(context: Any, operator: Any, *_: Any, **__: Any) -> Any:
        product = operator == torch.ops.aten.mm.default
        counts[context.is_recompute] += product
        save = operator in kernels or (product and counts[context.is_recompute] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if save else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _kept_by_torch(module: nn.Module) -> int:
    """Bytes of the activations that the compiled module keeps for its backward."""
    torch._dynamo.reset()
    turn = torch.polar(torch.ones(TOKENS, HEAD // 2), torch.rand(TOKENS, HEAD // 2))
    x = torch.randn(1, TOKENS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    known = {each.untyped_storage().data_ptr() for each in (turn, *module.parameters())}
    kept: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage
        return tensor

    compiled = torch.compile(module, backend="aot_eager_decomp_partition", fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compiled(x, turn)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.slow
@pytest.mark.parametrize("mode", [NONE, SELECT])
def test_a_compiled_layer_keeps_what_torch_s_compiler_keeps(mode: str) -> None:
    layer = _Layer()
    counted = _kept_by_torch(layer if mode == NONE else _ByOperator(layer))
    # torch keeps the root mean squares of norms that do not run again, 4 bytes a token each.
    assert float(activation_bytes(MODEL, DENSE, mode, PLACE, RULES)) == pytest.approx(counted, rel=0.002)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("mode", [NONE, SELECT])
def test_the_dry_run_of_a_compiled_layer_keeps_what_its_closed_form_says(mode: str, tp: int) -> None:
    place = Strategy(1, tp, 1, sp=tp > 1)
    kept = layer_memory(MODEL, DENSE, mode, place, RULES).kept
    assert kept == pytest.approx(float(activation_bytes(MODEL, DENSE, mode, place, RULES)), rel=0.005)
    eager = float(activation_bytes(MODEL, DENSE, mode, place, RULES.replace(compiled=False)))
    assert kept < eager
