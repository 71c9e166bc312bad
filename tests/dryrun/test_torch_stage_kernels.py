"""The kernels' arithmetic: what they save is enough for the gradients an ordinary implementation gives."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from taylor.cost_model.job.strategy import Strategy, TrainingRules  # noqa: E402
from taylor.dryrun.torch_stage import attention_blocks, ends, experts, kernels  # noqa: E402
from taylor.dryrun.torch_stage.attention import Dropout, FlashAttention, unfused_attention  # noqa: E402
from taylor.dryrun.torch_stage.ends import (  # noqa: E402
    EngineCrossEntropy,
    Head,
    SplitCrossEntropy,
    UnfusedCrossEntropy,
    VocabularyCrossEntropy,
)
from taylor.dryrun.torch_stage.experts import Experts  # noqa: E402
from taylor.dryrun.torch_stage.kernels import DropoutAdd, GradientQueue  # noqa: E402
from taylor.dryrun.torch_stage.layers import TransformerLayer  # noqa: E402
from taylor.dryrun.torch_stage.rebuilt import GivenUpOutputs  # noqa: E402
from taylor.dryrun.torch_stage.site import Site  # noqa: E402
from taylor.dryrun.torch_stage.weights import Weight  # noqa: E402
from taylor.pipeline.plan import FULL, NONE, SELECT  # noqa: E402
from taylor.register import frameworks  # noqa: E402
from taylor.register.model import DENSE, MOE, ModelSpec  # noqa: E402
from tests import torch_stage_cases as cases  # noqa: E402

F = torch.nn.functional
EXACT = TrainingRules(
    framework=frameworks.MEGATRON, param_bytes=4, compute_bytes=4, seq_length=24, parallel_optimizer=False
)
ALONE = Strategy(1, 1, 1, mbs=2)


def seeded(layer, seed: int = 3):  # type: ignore[no-untyped-def]
    """Give every weight small random values, norms values near one; leaves that autograd can differentiate too."""
    generator = torch.Generator().manual_seed(seed)
    for weight in layer.weights():
        assert weight.tensor is not None
        weight.tensor.normal_(0, 0.1, generator=generator)
        if len(weight.shape) == 1:
            weight.tensor.add_(1)
    return layer


def leaf(weight: Weight):  # type: ignore[no-untyped-def]
    """The weight as a leaf of an ordinary graph in float64, whose own rounding does not count."""
    return weight.tensor.detach().double().requires_grad_()


def assert_rounding_alone_differs(found, exact, typical: float = 0.0) -> None:  # type: ignore[no-untyped-def]
    """A float32 result is the exact one but for rounding.

    A sum of n products is off by at most n·2^-24 of the sum of their sizes, whatever order a processor adds
    them in (Higham 2002, eq. 3.5): an element near 0 may be off by far more than its own size, a tensor's norm
    may not. One wrong element among 131,072 of equal size would change the norm by 3e-3. `typical` is the size
    of an element where the exact ones may all cancel, as in the gradient of a key's bias.
    """
    found, exact = found.detach().double(), exact.detach()
    size = max(float(exact.norm()), typical * math.sqrt(exact.numel()))
    assert float((found - exact).norm()) <= 2e-5 * size


def rotated(x, start: int = 0):  # type: ignore[no-untyped-def]
    still, turned = x[..., :start], x[..., start:]
    half = turned.shape[-1] // 2
    angle = torch.arange(x.shape[0]).double()[:, None] * 1e4 ** (-torch.arange(half).double() / half)
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    left, right = turned.chunk(2, -1)
    return torch.cat([still, left * cos - right * sin, right * cos + left * sin], -1)


def attended(q, k, v):  # type: ignore[no-untyped-def]
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
    return (torch.softmax(scores, -1) @ v).permute(2, 0, 1, 3)


def normed(x, weight, bias=None):  # type: ignore[no-untyped-def]
    if bias is not None:
        return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def ordinary_mlp(block, names, x):  # type: ignore[no-untyped-def]
    biases = [names[id(b)] for b in block.up_bias]
    parts = [F.linear(x, names[id(w)], biases[i] if biases else None) for i, w in enumerate(block.up)]
    if block.gated:
        gate, up = parts[0].chunk(2, -1) if len(parts) == 1 else parts
        product = F.silu(gate) * up
    else:
        product = F.gelu(parts[0])
    return F.linear(product, names[id(block.down)], None if block.down_bias is None else names[id(block.down_bias)])


def ordinary_experts(block, names, x):  # type: ignore[no-untyped-def]
    moe, w1, w2 = block.moe, names[id(block.w1)], names[id(block.w2)]
    logits = x @ names[id(block.router)].t()
    scores = torch.sigmoid(logits) if block.correction is not None else torch.softmax(logits, -1)
    out = torch.zeros_like(x)
    for token in range(x.shape[0]):
        chosen = [(token * moe.top_k + i) % moe.n_experts for i in range(moe.top_k)]
        picked = scores[token, chosen] / scores[token, chosen].sum()
        for probability, expert in zip(picked, chosen, strict=True):
            gate, up = (w1[expert] @ x[token]).chunk(2)
            out[token] = out[token] + probability * (w2[expert] @ (F.silu(gate) * up))
    return out + ordinary_mlp(block.shared, names, x)


def ordinary_layer(layer, names, x):  # type: ignore[no-untyped-def]
    """The layer in plain operators with autograd's own backward."""
    site, attention = layer.site, layer.mixer

    def weight(of):  # type: ignore[no-untyped-def]
        return None if of is None else names[id(of)]

    def heads(t, count):  # type: ignore[no-untyped-def]
        return t.view(site.sequence, site.strategy.mbs, count, -1)

    y = normed(x, weight(layer.norms[0].weight), weight(layer.norms[0].bias))
    if site.model.mla is None:
        bias = [weight(b) for b in attention.qkv_bias]
        products = [F.linear(y, weight(w), bias[i] if bias else None) for i, w in enumerate(attention.qkv)]
        parts = products[0].split(list(attention.sizes), -1) if len(products) == 1 else products
        q, k, v = (
            heads(parts[0], attention.heads),
            heads(parts[1], attention.kv_heads),
            heads(parts[2], attention.kv_heads),
        )
        if not site.model.learned_positions:
            q, k = rotated(q), rotated(k)
    else:
        mla = site.model.mla
        q = normed(y @ weight(attention.q_down).t(), weight(attention.q_norm.weight))
        q = rotated(heads(q @ weight(attention.q_up).t(), attention.heads), mla.qk_nope_head_dim)
        latent, rotary = (y @ weight(attention.kv_down).t()).split([mla.kv_lora_rank, mla.qk_rope_head_dim], -1)
        up = heads(normed(latent, weight(attention.kv_norm.weight)) @ weight(attention.ups[0]).t(), attention.heads)
        still, v = up.split([mla.qk_nope_head_dim, mla.v_head_dim], -1)
        k = torch.cat([still, rotated(heads(rotary, 1)).expand(-1, -1, attention.heads, -1)], -1)
    context = attended(q, k, v).reshape(site.tokens, -1)
    x = x + F.linear(context, weight(attention.out), weight(attention.out_bias))
    y = normed(x, weight(layer.norms[1].weight), weight(layer.norms[1].bias))
    block = layer.mlp if layer.mlp is not None else layer.experts
    return x + (ordinary_mlp if layer.mlp is not None else ordinary_experts)(block, names, y)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [NONE, SELECT, FULL])
@pytest.mark.parametrize("framework", ["megatron", "mindformers", "torchtitan"])
@pytest.mark.parametrize(
    ("model", "kind"),
    [(cases.LLAMA, DENSE), (cases.GPT, DENSE), (cases.MOE, MOE), (cases.LATENT, DENSE), (cases.LATENT, MOE)],
    ids=["grouped-query", "gpt", "experts", "latent", "latent experts"],
)
def test_a_layer_has_the_gradients_of_an_ordinary_implementation(
    model: ModelSpec, kind: str, framework: str, mode: str
) -> None:
    # An unsharded fp32 job, so that every framework keeps whole weights and gradients.
    rules = EXACT.replace(framework=frameworks.FRAMEWORKS[framework], flash_attention=model is not cases.GPT)
    assert_ordinary_gradients(model, kind, mode, rules)


@pytest.mark.parametrize("kind", [DENSE, MOE])
@pytest.mark.parametrize(
    "parts",
    [
        (frameworks.NORMS, frameworks.LATENT_UP, frameworks.EXPERT_ACTIVATION, frameworks.ATTENTION_CORE),
        (frameworks.NORMS, frameworks.DENSE_MLP, frameworks.EXPERT_BLOCK),
        (frameworks.SHARED_EXPERTS,),
        (frameworks.DENSE_ACTIVATION, frameworks.SHARED_ACTIVATION, frameworks.EXPERT_ACTIVATION),
        (frameworks.EXPERT_ROWS, frameworks.EXPERT_ACTIVATION, frameworks.LATENT_UP),
    ],
)
def test_parts_that_run_again_leave_the_gradients_as_they_are(kind: str, parts: tuple[str, ...]) -> None:
    assert_ordinary_gradients(cases.LATENT, kind, SELECT, EXACT.replace(framework=frameworks.MEGATRON, selective=parts))


def assert_ordinary_gradients(model: ModelSpec, kind: str, mode: str, rules: TrainingRules) -> None:
    site = Site(model, ALONE, rules)
    layer = seeded(TransformerLayer(site, GradientQueue(), model.layer(kind), mode))
    names = {id(weight): leaf(weight) for weight in layer.weights()}
    x = torch.randn(site.tokens, model.hidden, generator=torch.Generator().manual_seed(1))
    mine, plain = x.clone().requires_grad_(), x.double().requires_grad_()
    y, expected = layer(mine), ordinary_layer(layer, names, plain)
    assert_rounding_alone_differs(y, expected)
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    y.backward(direction)
    expected.backward(direction.double())
    assert_rounding_alone_differs(mine.grad, plain.grad)
    gradients = [each.grad for each in names.values() if each.grad is not None]
    typical = math.sqrt(sum(float(each.square().sum()) for each in gradients) / sum(map(torch.numel, gradients)))
    for weight in layer.weights():
        wanted = names[id(weight)].grad
        if wanted is None:
            # The correction bias takes part in the choice of experts alone.
            assert layer.experts is not None and weight is layer.experts.correction
            continue
        assert_rounding_alone_differs(weight.main_grad, wanted, typical)


def test_flash_and_unfused_attention_agree_on_grouped_heads_and_a_narrower_value() -> None:
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(10, 2, heads, d, generator=generator) for heads, d in ((4, 8), (2, 8), (2, 6)))
    roads = {
        "flash": lambda *x: FlashAttention.apply(*x, 1, 0),
        "ascend": lambda *x: FlashAttention.apply(*x, 16, 0),
        "unfused": lambda *x: unfused_attention(*x, 0.0),
        "plain": attended,
    }
    found = {}
    for name, road in roads.items():
        inputs = [(x.double() if name == "plain" else x.clone()).requires_grad_() for x in (q, k, v)]
        y = road(*inputs)
        y.square().sum().backward()
        found[name] = (y, *(x.grad for x in inputs))
    for name in ("flash", "ascend", "unfused"):
        for one, other in zip(found[name], found["plain"], strict=True):
            assert_rounding_alone_differs(one, other)


@pytest.mark.parametrize(
    "entropy", [VocabularyCrossEntropy, UnfusedCrossEntropy, EngineCrossEntropy, SplitCrossEntropy]
)
def test_all_cross_entropies_are_the_ordinary_one(entropy) -> None:  # type: ignore[no-untyped-def]
    logits = torch.randn(12, 40, generator=torch.Generator().manual_seed(8))
    target = torch.arange(12) * 3
    mine, plain = logits.clone().requires_grad_(), logits.double().requires_grad_()
    loss, expected = entropy.apply(mine, target), F.cross_entropy(plain, target)
    assert_rounding_alone_differs(loss, expected)
    (3 * loss).backward()
    (3 * expected).backward()
    assert_rounding_alone_differs(mine.grad, plain.grad)


@pytest.mark.parametrize("framework", ["megatron", "mindformers", "torchtitan"])
def test_a_chunked_loss_has_the_gradients_of_the_whole_one(framework: str) -> None:
    found = []
    for chunks in (1, 4):
        site = Site(cases.LLAMA, ALONE, EXACT.replace(framework=frameworks.FRAMEWORKS[framework], loss_chunks=chunks))
        head = seeded(Head(site, GradientQueue()))
        x = torch.randn(site.tokens, 256, generator=torch.Generator().manual_seed(1)).requires_grad_()
        loss = head.loss(x, torch.arange(site.tokens))
        loss.backward()
        found.append((loss.detach(), x.grad, head.table.main_grad))
    for one, other in zip(*found, strict=True):
        assert_rounding_alone_differs(one, other.double())


def test_dropout_keeps_the_mean_and_its_gradients_are_those_of_what_was_kept() -> None:
    for rate in (0.0, 0.2, 0.5):
        x = torch.full((400, 50), 3.0).requires_grad_()
        residual = torch.full((400, 50), 7.0).requires_grad_()
        y = DropoutAdd.apply(x, residual, rate)
        y.backward(torch.full((400, 50), 2.0))
        dropped = y.detach() == 7.0
        assert abs(float(dropped.double().mean()) - rate) < 0.02
        assert torch.allclose(y.detach(), torch.where(dropped, 7.0, 7.0 + 3.0 / (1 - rate)))
        assert torch.allclose(x.grad, torch.where(dropped, 0.0, 2.0 / (1 - rate)))
        assert torch.equal(residual.grad, torch.full((400, 50), 2.0))
    x = torch.full((400, 50), 3.0).requires_grad_()
    y = Dropout.apply(x, 0.25)
    y.backward(torch.full((400, 50), 2.0))
    dropped = y.detach() == 0.0
    assert abs(float(dropped.double().mean()) - 0.25) < 0.02
    assert torch.allclose(y.detach(), torch.where(dropped, 0.0, 4.0))
    assert torch.allclose(x.grad, torch.where(dropped, 0.0, 2.0 / 0.75))


@pytest.mark.parametrize("framework", ["megatron", "mindformers", "torchtitan"])
def test_one_rank_alone_gathers_and_scatters_nothing(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        @staticmethod
        def apply(*_args: object) -> None:
            raise AssertionError("nobody is there to exchange with")

    for module, names in ((kernels, "Gather"), (ends, "Gather"), (attention_blocks, "Gather"), (experts, "Gather")):
        monkeypatch.setattr(module, names, Refused)
    monkeypatch.setattr(experts, "Scatter", Refused)
    rules = EXACT.replace(framework=frameworks.FRAMEWORKS[framework])
    for model, kind in ((cases.LLAMA, DENSE), (cases.MOE, MOE), (cases.LATENT, DENSE), (cases.LATENT, MOE)):
        site = Site(model, ALONE, rules)
        layer = seeded(TransformerLayer(site, GradientQueue(), model.layer(kind), NONE))
        x = torch.randn(site.tokens, 256, generator=torch.Generator().manual_seed(1)).requires_grad_()
        layer(x).square().sum().backward()
        assert x.grad is not None
    head = seeded(Head(Site(cases.LLAMA, ALONE, rules), GradientQueue()))
    assert float(head.loss(torch.ones(48, 256), torch.arange(48))) > 0


def test_postponed_weight_gradients_are_the_same_ones() -> None:
    found = []
    for postpone in (False, True):
        queue = GradientQueue(postpone)
        site = Site(cases.MOE, ALONE, EXACT)
        layer = seeded(TransformerLayer(site, queue, cases.MOE.layer(MOE), NONE))
        x = torch.randn(site.tokens, 256, generator=torch.Generator().manual_seed(1)).requires_grad_()
        layer(x).square().sum().backward()
        with torch.no_grad():
            for weight, make in queue.take():
                weight.add_gradient(make)
        found.append([weight.main_grad for weight in layer.weights()])
    for one, other in zip(*found, strict=True):
        assert_rounding_alone_differs(one, other.double())


def test_shared_experts_add_to_the_routed_ones_where_all_tokens_are_gathered() -> None:
    """DeepSeekMoE (Dai et al. 2024, eq. 9): the outputs of shared and routed experts are summed."""
    strategy = Strategy(1, 2, 1, mbs=2, sp=True)
    site = Site(cases.MOE, strategy, EXACT.replace(framework=frameworks.TORCHTITAN))
    moe = cases.MOE.layer(MOE).moe
    assert moe is not None
    block = seeded(Experts(site, GradientQueue(), moe))
    x = torch.randn(site.tokens, 256, generator=torch.Generator().manual_seed(1))
    assert block.gathers and block.shared is not None
    block._shared = lambda x, ways, again: torch.ones_like(x)
    both = block._on_gathered(x, (), GivenUpOutputs())
    block.shared = None
    assert torch.allclose(both, block._on_gathered(x, (), GivenUpOutputs()) + 1, atol=1e-5)


def test_the_loss_of_a_split_vocabulary_is_torch_s_loss_parallel() -> None:
    """torch keeps more beside such logits than beside whole ones; only torchtitan leaves them split."""
    for tp, split in ((1, False), (2, True)):
        rules = cases.TORCHTITAN.replace(parameter_shard=False, gradient_shard=False, parallel_optimizer=False)
        site = Site(cases.LLAMA, Strategy(1, tp, 1, mbs=1, sp=tp > 1), rules)
        head = Head(site, GradientQueue())
        x = torch.randn(site.shard_tokens, 256, dtype=site.residual_dtype).requires_grad_()
        loss = head.loss(x, torch.arange(site.tokens))
        assert ("SplitCrossEntropy" in type(loss.grad_fn).__name__) is split
