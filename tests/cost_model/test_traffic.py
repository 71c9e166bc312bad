"""What a layer's operations move through the device's memory, beside torch's own operations."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from benchmarks.reliability.outside import NotHere, loaded, source
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.statics import logits_bytes
from taylor.cost_model.time.work import head_work, layer_work
from taylor.register import frameworks
from taylor.register.registry import Registry

torch = pytest.importorskip("torch")

DENSE = Registry.load().model("llama2-7b")
RULES = TrainingRules(framework=frameworks.MEGATRON, seq_length=8192, engine_layers=True)


class _Moved(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc,name-defined]
    """Counts the bytes that torch's operations read and write, views left out; what is small against `size` too."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.bytes = size, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            given = [each for each in [*args, *(args[0] if isinstance(args[0], list) else [])]]
            made = result if isinstance(result, (tuple, list)) else [result]
            tensors = [each for each in [*given, *made] if isinstance(each, torch.Tensor)]
            self.bytes += sum(each.nbytes for each in tensors if each.numel() * 4 >= self.size)
        return result


def test_megatron_s_loss_moves_what_its_operations_do() -> None:
    """The steps of megatron/core/tensor_parallel/cross_entropy.py, of which `mul_` and the last cast are backward."""
    n, v = 4, 1024
    logits = torch.randn(n, v).bfloat16()
    with _Moved(n * v) as moved:
        wide = logits.float()
        wide -= torch.max(wide, dim=-1)[0].unsqueeze(-1)
        torch.exp(wide, out=wide)
        wide.div_(wide.sum(dim=-1).unsqueeze(-1))
        wide.mul_(torch.ones(n, 1)).bfloat16()
    assert moved.bytes == frameworks.LOSS_TRAFFIC[frameworks.IN_PLACE] * n * v


def test_a_rotation_of_single_operations_moves_twelve_elements_for_each() -> None:
    """The steps of megatron/core/models/common/embeddings/rope_utils.py."""
    t = torch.randn(16, 4, 8, 64).bfloat16()
    angle = torch.randn(16, 1, 1, 64).bfloat16()
    with _Moved(2 * t.numel()) as moved:
        first, second = torch.chunk(t, 2, dim=-1)
        turned = (t * angle) + (torch.cat((-second, first), dim=-1) * angle)
        torch.cat((turned, t[..., 64:]), dim=-1)
    one, strategy = RULES.replace(rotated_apart=1.0), Strategy(1, 1, 1)
    works = [layer_work(DENSE, "dense", strategy, rules).element_bytes for rules in (RULES, one)]
    fused = 2 * 2
    assert (works[1] - works[0]) / (8192 * 2 * 4096) + fused == moved.bytes / t.numel() == 12 * 2


def test_a_cap_on_the_logits_moves_thirteen_elements_for_each() -> None:
    """Megatron's model with a softcap: MindSpeed-LLM's gpt_model.py:114-117 of 1.0.RC3; torch adds the backward."""
    logits = torch.randn(16, 1024).bfloat16().requires_grad_()
    arriving = torch.ones_like(logits).detach()
    with _Moved(logits.numel()) as moved:
        capped = torch.tanh(logits / 30.0) * 30.0
        capped.backward(arriving)
    rules, strategy = RULES.replace(capped_logits=True), Strategy(1, 1, 1)
    works = [head_work(DENSE, strategy, each).element_bytes for each in (RULES, rules)]
    assert moved.bytes == 2 * 13 * logits.numel()
    assert 3 * (works[1] - works[0]) == pytest.approx(2 * 13 * 8192 * DENSE.vocab)
    kept = [logits_bytes(DENSE, strategy, each) for each in (RULES, rules)]
    assert kept[1] - kept[0] == 2 * 8192 * DENSE.vocab


def test_a_window_s_mask_moves_what_its_operations_do() -> None:
    """MindSpeed-LLM 1.0.RC3 modellink/core/transformer/transformer_layer.py:97-100, in every second layer."""
    mask = torch.ones(1, 1, 64, 64, dtype=torch.bool).triu(1)
    with _Moved(mask.numel()) as moved:
        # `ones_like`, which reads nothing of what it is like.
        window = torch.tril(torch.ones(mask.shape, dtype=torch.bool), diagonal=-16)
        torch.where(window, torch.finfo(torch.bfloat16).min, mask).bool()
    work = layer_work(DENSE, "dense", Strategy(1, 1, 1, mbs=2), RULES.replace(window_masks=True))
    assert 2 * work.mask_bytes / (2 * 8192**2) == moved.bytes / mask.numel()
    assert layer_work(DENSE, "dense", Strategy(1, 1, 1), RULES).mask_bytes == 0


def _attention(dropout: float) -> tuple[int, int, int]:
    """Scores of attention without a flash kernel, and bytes that torch moves over them, forward and backward.

    One softmax operation stands for the fused kernel of scale, mask and softmax.
    """
    heads, length, width = 4, 256, 8
    q, k, v = (torch.randn(heads, length, width).bfloat16().requires_grad_() for _ in range(3))
    size = 4 * heads * length * length
    with _Moved(size) as forward:
        scores = torch.bmm(q, k.transpose(1, 2))
        seen = torch.softmax(scores, dim=-1)
        kept = torch.ops.aten.native_dropout(seen, dropout, True)[0] if dropout else seen
        out = torch.bmm(kept, v)
    with _Moved(size) as backward:
        out.backward(torch.ones_like(out))
    return heads * length * length, forward.bytes, backward.bytes


@pytest.mark.parametrize("dropout", [False, True])
def test_scores_without_a_flash_kernel_move_what_torch_s_operations_do(dropout: bool) -> None:
    scores, forward, backward = _attention(0.1 if dropout else 0.0)
    rules = RULES.replace(flash_attention=False, dropout=dropout, engine_layers=False)
    work = layer_work(DENSE, "dense", Strategy(1, 1, 1, mbs=2), rules)
    count = 2 * 32 * 8192**2
    assert (work.score_bytes / count, work.gradient_score_bytes / count) == (forward / scores, backward / scores)


def test_with_a_flash_kernel_no_score_reaches_memory() -> None:
    work = layer_work(DENSE, "dense", Strategy(1, 1, 1), RULES)
    assert (work.score_bytes, work.gradient_score_bytes, work.mask_bytes) == (0, 0, 0)


def test_transformer_engine_makes_a_mask_in_every_layer_and_reads_it_beside_the_scores() -> None:
    """The steps of `get_full_mask` for causal attention: TransformerEngine d0067d0
    transformer_engine/pytorch/attention/dot_product_attention/utils.py."""
    length, samples = 64, 3
    came = torch.ones(samples, 1, length, length, dtype=torch.bool).triu(1)
    position = torch.arange(length, dtype=torch.int32)
    with _Moved(4 * length**2) as moved:
        apart = position.view(1, 1, length, 1) - position.view(1, 1, 1, length)
        left, right = apart - length, apart + 0
        made = torch.logical_not((left <= 0) & ~(right < 0))
    with _Moved(4 * length**2) as joined:
        torch.logical_or(made, came)
    apart_rules = RULES.replace(flash_attention=False)
    works = [
        layer_work(DENSE, "dense", Strategy(1, 1, 1, mbs=samples), apart_rules.replace(engine_layers=engine))
        for engine in (False, True)
    ]
    assert works[1].mask_bytes / 8192**2 == (moved.bytes + joined.bytes) / length**2
    assert works[0].mask_bytes == 0
    assert works[1].score_bytes - works[0].score_bytes == samples * 32 * 8192**2


ENGINE = "d0067d0", "transformer_engine/pytorch/attention/dot_product_attention"


def _of_engine(file: str, name: str, **around: Any) -> Any:
    """A function of transformer engine's own, on the CPU."""
    revision, folder = ENGINE
    try:
        text = source("TransformerEngine", revision, f"{folder}/{file}")
    except NotHere as absent:
        pytest.skip(str(absent))
    [found] = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef) and each.name == name]
    own = ast.unparse(found).replace("device='cuda'", "device='cpu'")
    return getattr(loaded(f"engine_{name}", "from __future__ import annotations\n" + own, **around), name)


def test_transformer_engine_s_own_mask_moves_what_is_told() -> None:
    make = _of_engine("utils.py", "get_full_mask", torch=torch)
    length, samples = 64, 3
    came = torch.ones(samples, 1, length, length, dtype=torch.bool).triu(1)
    with _Moved(4 * length**2) as moved:
        kind, mask, *_ = make(length, length, "causal", came, (-1, 0), "self", False)
    assert kind == "causal" and mask.shape == came.shape and torch.equal(mask, came)
    rules = RULES.replace(flash_attention=False)
    work = layer_work(DENSE, "dense", Strategy(1, 1, 1, mbs=samples), rules)
    assert work.mask_bytes / 8192**2 == moved.bytes / length**2


def test_transformer_engine_s_own_softmax_reads_the_mask() -> None:
    """Of a causal mask too, and none of its kernels makes it up."""
    called: list[str] = []

    class Kernels:
        def __getattr__(self, name: str) -> Any:
            return lambda *words: called.append(name)

    class Torch:
        ops = type("ops", (), {"te_softmax": Kernels()})

    softmax = _of_engine("softmax.py", "forward_fused_softmax", torch=Torch)
    module = type("module", (), {"attn_mask_type": "causal"})()
    softmax(module, torch.zeros(1), torch.zeros(1, dtype=torch.bool))
    assert called == ["scaled_masked_softmax_fwd"]
