"""Low-rank adapters beside frozen matrices, against torch's autograd, peft's sizes and published runs."""

from __future__ import annotations

import ast
from typing import Any
from weakref import WeakSet

import pytest

from benchmarks.reliability.outside import NotHere, loaded, source
from taylor.cost_model.job.adapters import adapted_matrices, adapter_parameters, adapter_work, decomposed_bytes
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.memory.statics import embedding_state_bytes, head_state_bytes
from taylor.cost_model.time.host_operations import ADAPTER, layer_tensors
from taylor.cost_model.time.step import layer_time, step_ms
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL, NONE
from taylor.register.adapters import (
    ALL_HUGGING_FACE,
    ALL_MEGATRON,
    DOWN,
    EMBEDDING,
    JOINED_QKV,
    JOINED_UP,
    OUTPUT,
    QUERY,
    VALUE,
    Adapters,
    named_targets,
)
from taylor.register.adapters import HEAD as SAVED_HEAD
from taylor.register.frameworks import MEGATRON
from taylor.register.model import DENSE, ModelSpec
from taylor.register.registry import Registry

torch = pytest.importorskip("torch")

REGISTRY = Registry.load()
LLAMA, MIXTRAL, DEEPSEEK = (REGISTRY.model(name) for name in ("llama2-7b", "mixtral-8x7b", "deepseek-v3-671b"))
ONE = Strategy(1, 1, 1, sp=False)
RULES = TrainingRules(framework=MEGATRON, seq_length=256, param_bytes=2, fused_norms=True)
HEADS, HEAD, HIDDEN, WIDTH, TOKENS, RANK = 4, 64, 256, 704, 256, 8


class _Norm(torch.autograd.Function):  # type: ignore[misc,name-defined]
    """A fused RMS norm, which keeps its input and a number a token."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True)).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None


class _Gated(torch.autograd.Function):  # type: ignore[misc,name-defined]
    """A fused SwiGLU, which keeps gate and up."""

    @staticmethod
    def forward(ctx: Any, joined: Any) -> Any:
        ctx.save_for_backward(joined)
        gate, up = joined.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return torch.cat([gradient, gradient], -1)


class _Attention(torch.autograd.Function):  # type: ignore[misc,name-defined]
    """A flash kernel: queries, keys, values, context and a statistic a head and token."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
        context = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        context = context.transpose(0, 1).reshape(TOKENS, HIDDEN)
        ctx.save_for_backward(q, k, v, context, torch.zeros(HEADS, TOKENS))
        return context

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return (gradient.reshape(TOKENS, HEADS, HEAD).transpose(0, 1),) * 3


class Layer:
    """A layer of LLaMA's shape in torch: frozen matrices, with adapters of peft's and Megatron-Bridge's steps."""

    def __init__(self, adapters: Adapters) -> None:
        self.adapters = adapters
        self.weights: list[Any] = []
        self.trained: list[Any] = []

    def linear(self, x: Any, width: int, target: str) -> Any:
        weight = torch.randn(width, x.shape[-1]).bfloat16()
        self.weights.append(weight)
        result = torch.nn.functional.linear(x, weight)
        if not self.adapters.reaches(target):
            return result
        a, b = (torch.nn.Parameter(torch.randn(*size).bfloat16()) for size in ((RANK, x.shape[-1]), (width, RANK)))
        self.trained += [a, b]
        # As on a GPU, with a mask of bytes.
        x = torch.native_dropout(x, 0.05, True)[0] if self.adapters.dropout else x
        added = torch.nn.functional.linear(torch.nn.functional.linear(x, a), b)
        if not self.adapters.decomposed:
            return result + added * 2.0
        magnitude = torch.nn.Parameter(torch.ones(width).bfloat16())
        self.trained.append(magnitude)
        if self.adapters.gathers:  # Megatron-Bridge's
            with torch.no_grad():
                norm = torch.linalg.norm(weight + (2.0 * b) @ a, dim=1).to(weight.dtype)
            return (magnitude / norm).view(1, -1) * (result + added * 2.0) + 0
        with torch.no_grad():  # peft detaches it
            eye = torch.eye(x.shape[-1], dtype=x.dtype)
            matrix = torch.nn.functional.linear(torch.nn.functional.linear(eye, a), b).T
            norm = torch.linalg.norm(weight + 2.0 * matrix, dim=1).to(weight.dtype)
        scale = (magnitude / norm).view(1, -1)
        base = torch.nn.functional.linear(x, weight) if self.adapters.dropout else result
        return result + ((scale - 1) * base + scale * added * 2.0)

    def norm_weight(self) -> Any:
        return torch.ones(HIDDEN).bfloat16()

    def __call__(self, x: Any) -> Any:
        ones = self.norm_weight()
        self.weights.append(ones)
        joined = self.linear(_Norm.apply(x, ones), 3 * HIDDEN, JOINED_QKV)
        q, k, v = (part.reshape(TOKENS, HEADS, HEAD).transpose(0, 1) for part in joined.chunk(3, -1))
        # The rotation makes new queries and keys.
        context = _Attention.apply(q.clone(), k.clone(), v)
        x = x + self.linear(context, HIDDEN, OUTPUT)
        inner = _Gated.apply(self.linear(_Norm.apply(x, ones), 2 * WIDTH, JOINED_UP))
        return x + self.linear(inner, HIDDEN, DOWN)


class _Saved:
    """A tensor that autograd saves, for as long as its graph lives."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor.detach()  # An operation that saves its own result would keep itself alive.


def saved_bytes(layer: Layer, x: Any) -> int:
    """Bytes of all storages that autograd still saves behind a layer's forward, those of parameters left out."""
    alive: WeakSet[_Saved] = WeakSet()

    def pack(tensor: Any) -> _Saved:
        saved = _Saved(tensor)
        alive.add(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        result = layer(x)
    assert result.requires_grad or not alive
    storages = {saved.tensor.untyped_storage().data_ptr(): saved.tensor for saved in alive}
    own = {each.untyped_storage().data_ptr() for each in (*layer.weights, *layer.trained)}
    return sum(each.untyped_storage().nbytes() for at, each in storages.items() if at not in own)


def model_of(hidden: int = HIDDEN) -> ModelSpec:
    return ModelSpec("m", 1, hidden, HEADS, HEADS, HEAD, WIDTH, 1000)


TARGETS = [Adapters(RANK).targets, (JOINED_QKV,), (OUTPUT, JOINED_QKV), (DOWN,), (JOINED_UP,)]


@pytest.mark.parametrize("targets", TARGETS, ids="-".join)
def test_a_layer_keeps_what_autograd_saves_of_it_under_megatron_bridges_dora(targets: tuple[str, ...]) -> None:
    """Within 1 %: one sum for the magnitude's gradient in place of two results."""
    adapters = Adapters(RANK, targets, gathers=True, decomposed=True)
    saved = saved_bytes(Layer(adapters), torch.randn(TOKENS, HIDDEN).bfloat16().requires_grad_())
    kept = activation_bytes(model_of(), DENSE, NONE, ONE, RULES.replace(adapters=adapters))
    assert float(kept) == pytest.approx(saved, rel=0.01)


class OwnLayer(Layer):
    """The layer with Megatron-Bridge's own ``DoRALinear`` in place of its steps."""

    def linear(self, x: Any, width: int, target: str) -> Any:
        if not self.adapters.reaches(target):
            return super().linear(x, width, target)
        nn = torch.nn
        matrix, into, out = (
            nn.Linear(*size, bias=False, dtype=torch.bfloat16)
            for size in ((x.shape[-1], width), (x.shape[-1], RANK), (RANK, width))
        )
        matrix.weight.requires_grad_(False)
        magnitude = nn.Parameter(torch.ones(width).bfloat16())
        self.weights.append(matrix.weight)
        self.trained += [into.weight, out.weight, magnitude]
        dora = dora_class()(matrix, OwnAdapter(into, out, magnitude))
        return dora(x.unsqueeze(1))[0].squeeze(1)


class OwnAdapter(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Megatron-Bridge's ``ParallelLinearAdapter`` on one rank without dropout, scaled by 2."""

    input_is_parallel, alpha, dim = False, 2 * RANK, RANK

    def __init__(self, into: Any, out: Any, magnitude: Any) -> None:
        super().__init__()
        self.linear_in, self.linear_out, self.magnitude, self.dropout = into, out, magnitude, torch.nn.Identity()

    def init_weight_magnitude(self, _value: Any) -> None:
        pass

    def get_weight_magnitude(self) -> Any:
        return self.magnitude

    def forward(self, x: Any) -> Any:
        return self.linear_out(self.linear_in(x)) * (self.alpha / self.dim)


def dora_class() -> Any:
    """``DoRALinear`` of Megatron-Bridge, around a linear layer of torch."""
    try:
        text = source("Megatron-Bridge", "067f987d", "src/megatron/bridge/peft/dora_layers.py")
    except NotHere as here:
        pytest.skip(str(here))
    (own,) = [node for node in ast.parse(text).body if getattr(node, "name", None) == "DoRALinear"]
    around = {
        "AdapterWrapper": Wrapper, "ParallelLinearDoRAAdapter": OwnAdapter, "torch": torch, "nn": torch.nn,
        "gather_from_tensor_model_parallel_region": lambda tensor: tensor,
    }  # fmt: skip
    return loaded("own_dora", ast.unparse(own), **around).DoRALinear


class Wrapper(torch.nn.Module):  # type: ignore[misc,name-defined]
    """What ``DoRALinear`` takes from its base class, on one rank."""

    def __init__(self, to_wrap: Any, adapter: Any) -> None:
        super().__init__()
        self.to_wrap, self.adapter, self._adapter_enabled = to_wrap, adapter, True

    def base_linear_forward(self, x: Any) -> Any:
        return self.to_wrap(x), None, x


@pytest.mark.parametrize("targets", TARGETS, ids="-".join)
def test_megatron_bridges_own_dora_saves_and_multiplies_what_its_steps_here_do(targets: tuple[str, ...]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    adapters = Adapters(RANK, targets, gathers=True, decomposed=True)
    x, found = torch.randn(TOKENS, HIDDEN).bfloat16().requires_grad_(), []
    for layer in (OwnLayer(adapters), Layer(adapters)):
        with FlopCounterMode(display=False) as counted:
            saved = saved_bytes(layer, x)
        found.append((saved, counted.get_total_flops()))
    own, steps = found
    assert own[0] == pytest.approx(steps[0], rel=0.01)
    # A module begins with the norm of its matrices, once.
    sizes = [
        (each.width_in, each.width_out)
        for each in adapted_matrices(model_of(), model_of().layers_of(DENSE)[0], adapters)
    ]
    assert own[1] == steps[1] + sum(2 * RANK * wide * out for wide, out in sizes)


@pytest.mark.parametrize("decomposed", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("targets", TARGETS, ids="-".join)
def test_a_layer_keeps_what_autograd_saves_of_it(targets: tuple[str, ...], dropout: bool, decomposed: bool) -> None:
    """Within 1 %: the frozen matrices save no input, their adapters their own, DoRA's magnitudes two results."""
    adapters = Adapters(RANK, targets, dropout, decomposed=decomposed)
    saved = saved_bytes(Layer(adapters), torch.randn(TOKENS, HIDDEN).bfloat16().requires_grad_())
    kept = activation_bytes(model_of(), DENSE, NONE, ONE, RULES.replace(adapters=adapters))
    assert float(kept) == pytest.approx(saved, rel=0.01)


def test_frozen_matrices_keep_less_than_those_that_train() -> None:
    kept = [
        float(activation_bytes(model_of(), DENSE, NONE, ONE, RULES.replace(adapters=each)))
        for each in (Adapters(RANK, (OUTPUT,)), Adapters(RANK), None)
    ]
    # The inputs of queries, of gate and up, and of the down projection; adapters keep a few columns beside them.
    assert kept[2] - kept[0] == TOKENS * (2 * (2 * HIDDEN + WIDTH) - 2 * RANK)
    assert kept[1] - kept[2] == TOKENS * 2 * 4 * RANK


def test_adapters_multiply_what_torch_counts() -> None:
    """FLOPs forward and backward: a frozen matrix has one product in backward, an adapter's two matrices two each."""
    from torch.utils.flop_counter import FlopCounterMode

    adapters = Adapters(RANK)
    layer, x = Layer(adapters), torch.randn(TOKENS, HIDDEN).bfloat16().requires_grad_()
    with FlopCounterMode(display=False) as ahead:
        out = layer(x)
    with FlopCounterMode(display=False) as back:
        out.sum().backward()
    rules = RULES.replace(adapters=adapters)
    own = float(adapter_work(model_of(), model_of().layers_of(DENSE)[0], ONE, rules, TOKENS, 0.0).flops)
    frozen = 2 * TOKENS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * WIDTH)
    core = ahead.get_total_flops() - own - frozen
    assert 0 <= core <= 4 * TOKENS * TOKENS * HIDDEN
    # The stand-in of attention's backward multiplies nothing.
    assert back.get_total_flops() == 2 * own + frozen


@pytest.mark.parametrize(("dropout", "gathers"), [(False, False), (True, False), (False, True)])
def test_dora_multiplies_what_torch_counts_and_trains_a_magnitude_a_row(dropout: bool, gathers: bool) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    adapters = Adapters(RANK, dropout=dropout, decomposed=True, gathers=gathers)
    plain = Adapters(RANK, dropout=dropout, gathers=gathers)
    layers = [Layer(each) for each in (adapters, plain)]
    totals = []
    for layer in layers:
        x = torch.randn(TOKENS, HIDDEN).bfloat16().requires_grad_()
        with FlopCounterMode(display=False) as ahead:
            out = layer(x)
        with FlopCounterMode(display=False) as back:
            out.sum().backward()
        totals.append((ahead.get_total_flops(), back.get_total_flops()))
    work = adapter_work(model_of(), model_of().layers_of(DENSE)[0], ONE, RULES.replace(adapters=adapters), TOKENS, 0.0)
    assert totals[0][0] - totals[1][0] == work.forward_flops + work.again_flops
    assert totals[0][1] - totals[1][1] == work.again_flops
    more = adapter_parameters(model_of(), adapters) - adapter_parameters(model_of(), plain)
    assert more == sum(each.numel() for each in layers[0].trained) - sum(each.numel() for each in layers[1].trained)


def test_dora_s_norm_needs_three_matrices_at_once() -> None:
    """peft's own steps on fake tensors: the adapter's matrix, that scaled, and the sum."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from taylor.dryrun.torch_stage.counter import LiveCounter

    with FakeTensorMode(), LiveCounter() as counter, torch.no_grad():
        weight = torch.empty(WIDTH, HIDDEN, dtype=torch.bfloat16)
        a, b = (torch.empty(*size, dtype=torch.bfloat16) for size in ((RANK, HIDDEN), (WIDTH, RANK)))
        held = counter.peak = counter.total
        matrix = torch.nn.functional.linear(torch.nn.functional.linear(torch.eye(HIDDEN, dtype=torch.bfloat16), a), b).T
        torch.linalg.norm(weight + 2.0 * matrix, dim=1)
    layer = model_of().layers_of(DENSE)[0]
    rules = RULES.replace(adapters=Adapters(RANK, (DOWN,), decomposed=True))
    assert float(decomposed_bytes(model_of(), layer, ONE, rules)) == pytest.approx(counter.peak - held, rel=0.05)


def test_megatron_bridges_norm_needs_two_matrices_at_once() -> None:
    """dora_layers.py:129-130: the product of the scaled matrices, and the sum."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from taylor.dryrun.torch_stage.counter import LiveCounter

    with FakeTensorMode(), LiveCounter() as counter, torch.no_grad():
        weight = torch.empty(WIDTH, HIDDEN, dtype=torch.bfloat16)
        a, b = (torch.empty(*size, dtype=torch.bfloat16) for size in ((RANK, HIDDEN), (WIDTH, RANK)))
        before = counter.peak = counter.total
        torch.linalg.norm(weight + (2.0 * b) @ a, dim=1)
    layer = model_of().layers_of(DENSE)[0]
    rules = RULES.replace(adapters=Adapters(RANK, (DOWN,), gathers=True, decomposed=True))
    assert float(decomposed_bytes(model_of(), layer, ONE, rules)) == pytest.approx(counter.peak - before, rel=0.05)


def test_an_adapter_starts_what_torch_counts() -> None:
    from tests.cost_model.test_short_steps import _counted

    a, b = (torch.nn.Parameter(torch.randn(*size)) for size in ((RANK, 64), (96, RANK)))
    weight = torch.randn(96, 64)

    def plain(x: Any) -> list[Any]:
        return [torch.mm(x, weight.t())]

    def adapted(x: Any) -> list[Any]:
        return [torch.mm(x, weight.t()) + torch.mm(torch.mm(x, a.t()), b.t()) * 2.0]

    x = torch.randn(32, 64, requires_grad=True)
    (ahead, back), (more_ahead, more_back) = _counted(plain, x), _counted(adapted, x)
    # `_counted` asks for the input's gradient alone; both matrices have one too.
    assert (more_ahead - ahead, more_back - back + 2) == (ADAPTER.forward, ADAPTER.backward)


@pytest.mark.parametrize(
    ("name", "rank", "targets", "published"),
    [
        # Hu et al. 2021 (arXiv:2106.09685) §4.2 and table 4: GPT-3 175B, 4.7 M with rank 1 beside queries and values.
        ("gpt3-175b", 4, (QUERY, VALUE), 18_874_368),
        # peft's print_trainable_parameters of LLaMA-2-7B with rank 8 beside queries and values.
        ("llama2-7b", 8, (QUERY, VALUE), 4_194_304),
        # LLaMA-3-8B with rank 16 beside every linear module.
        ("llama3-8b", 16, ALL_HUGGING_FACE, 41_943_040),
    ],
)
def test_adapters_have_as_many_parameters_as_published(
    name: str, rank: int, targets: tuple[str, ...], published: int
) -> None:
    assert adapter_parameters(REGISTRY.model(name), Adapters(rank, targets)) == published


SCRIPT = """torchrun --nproc_per_node {ranks} posttrain_gpt.py --stage sft --use-mcore-models
 --tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} {more}
 --num-attention-heads 32 --hidden-size 4096 --max-position-embeddings 8192 --make-vocab-size-divisible-by 1
 --untie-embeddings-and-output-weights --disable-bias-linear --swiglu --normalization RMSNorm
 --position-embedding-type rope --attention-dropout 0.0 --hidden-dropout 0.0 --use-flash-attn --bf16
 --no-gradient-accumulation-fusion --lora-r {rank} --lora-alpha 32
 --lora-target-modules linear_qkv linear_proj linear_fc1 linear_fc2
"""
LLAMA3 = (
    "--sequence-parallel --num-layers 8 --ffn-hidden-size 14336 --group-query-attention --num-query-groups 8 "
    "--seq-length 8192 --micro-batch-size 1 --global-batch-size 8 --padded-vocab-size 128256 --vocab-size 128256"
)
QWEN = (
    "--sequence-parallel --num-layers 1 --ffn-hidden-size 12288 --group-query-attention --num-query-groups 8 "
    "--kv-channels 128 --qk-layernorm --seq-length 4096 --micro-batch-size 1 --global-batch-size 8 "
    "--padded-vocab-size 151936 --vocab-size 151936"
)
LLAMA2 = (
    "--num-layers 32 --ffn-hidden-size 11008 --seq-length 4096 --micro-batch-size 4 --global-batch-size 32 "
    "--padded-vocab-size 32000 --vocab-size 32000"
)


@pytest.mark.parametrize(
    ("more", "ranks", "tp", "pp", "rank", "measured"),
    [
        # MindSpeed-LLM c77308a1 tests/pipeline/legacy/baseline/tune_llama2_tp1_pp1_lora_ptd.json
        (LLAMA2, 1, 1, 1, 16, [13431.56]),
        # tests/pipeline/legacy/baseline/tune_llama3_8b_lora_tp1pp8.json, ranks 0 and 1
        (LLAMA3, 8, 1, 8, 8, [1427.6, 427.0]),
        # tests/st/baseline_results/tune_qwen3_8b_lora_tp2pp1.json
        (QWEN, 2, 2, 1, 8, [1376.54]),
    ],
)
def test_states_are_those_that_the_frameworks_own_tests_measure(
    tmp_path: Any, more: str, ranks: int, tp: int, pp: int, rank: int, measured: list[float]
) -> None:
    """``allocated memory`` between steps, MiB: weights, and the adapters' gradients and states. Within 0.4 %."""
    path = tmp_path / "tune.sh"
    path.write_text(SCRIPT.format(more=more, ranks=ranks, tp=tp, pp=pp, rank=rank).replace("\n ", " \\\n "))
    config = read_config(path)
    assert config.rules.adapters == Adapters(rank)
    stages = stage_breakdown(config.model, config.strategy, config.rules, recompute=NONE)
    states = [stage.weights + stage.gradients + stage.optimizer for stage in stages]
    assert states[: len(measured)] == pytest.approx(measured, rel=0.004)


def test_a_frozen_job_takes_less_time_and_memory_than_the_whole_one_and_more_than_its_forward() -> None:
    device = REGISTRY.device("h100-80g")
    rules = RULES.replace(seq_length=4096)
    full = layer_time(LLAMA, DENSE, ONE, rules, device)
    lora = layer_time(LLAMA, DENSE, ONE, rules.replace(adapters=Adapters(16)), device)
    assert full.forward < lora.forward < 1.3 * full.forward
    assert lora.forward - full.forward < lora.backward - 0.7 * full.forward
    assert lora.backward < 0.8 * full.backward
    assert lora.recompute[FULL] >= lora.forward * 0.99


def test_one_adapter_for_a_ranks_experts_weighs_less_than_one_each() -> None:
    each, shared = (Adapters(16, shared_by_experts=one) for one in (False, True))
    more = adapter_parameters(MIXTRAL, each) - adapter_parameters(MIXTRAL, shared)
    of_one = 16 * ((4096 + 2 * 14336) + (14336 + 4096))
    assert more == 32 * 7 * of_one
    alone = Adapters(16, beside_experts=False)
    assert adapter_parameters(MIXTRAL, shared) - adapter_parameters(MIXTRAL, alone) == 32 * of_one


def test_four_bits_store_the_frozen_matrices_and_nothing_else() -> None:
    """QLoRA: embedding and head stay in 16 bits."""
    half, four = (
        stage_breakdown(LLAMA, ONE, RULES.replace(adapters=Adapters(8, base_bytes=size)), recompute=FULL)[0].weights
        for size in (None, 0.5)
    )
    matrices = sum(
        each.width_in * each.width_out for each in adapted_matrices(LLAMA, LLAMA.layers_of(DENSE)[0], Adapters(8))
    )
    assert (half - four) * 2**20 == pytest.approx(32 * matrices * 1.5, rel=1e-9)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("saved", "more"), [((), 0), ((SAVED_HEAD,), 6144), ((EMBEDDING,), 6144), ((EMBEDDING, SAVED_HEAD), 12288)]
)
def test_saved_modules_are_copies_that_train_as_peft_makes_them(saved: tuple[str, ...], more: int, tied: bool) -> None:
    """Of a small Llama of transformers 4.57.1 under peft's ``LoraConfig(r=4, target_modules=["q_proj", "v_proj"],
    modules_to_save=…)``, 1,792 parameters and the copies have ``requires_grad``."""
    small = ModelSpec("small", 2, 64, 4, 2, 16, 112, 96, tied_embedding=tied)
    adapters = Adapters(4, (QUERY, VALUE), saved=saved)
    assert adapter_parameters(small, adapters) == 1792 + more


@pytest.mark.parametrize("shards", [False, True])
def test_a_saved_embedding_and_head_cost_what_they_cost_where_all_train_and_their_frozen_weights(shards: bool) -> None:
    rules = RULES.replace(seq_length=4096, parallel_optimizer=shards, gradient_shard=shards, parameter_shard=shards)
    strategy = ONE.replace(dp=8, op=8 if shards else 1)
    frozen = rules.replace(adapters=Adapters(8))
    saved = rules.replace(adapters=Adapters(8, saved=(EMBEDDING, SAVED_HEAD)))
    for states in (embedding_state_bytes, head_state_bytes):
        of_all, of_frozen, both = (states(LLAMA, strategy, each) for each in (rules, frozen, saved))
        assert both.total == pytest.approx(of_all.total + of_frozen.total, rel=1e-4)
        assert float(both.gradients) == pytest.approx(float(of_all.gradients), rel=1e-4)
        assert float(both.optimizer) == pytest.approx(float(of_all.optimizer), rel=1e-4)
    peaks = [stage_breakdown(LLAMA, strategy, each)[0].total for each in (frozen, saved, rules)]
    assert peaks == sorted(peaks)
    device = REGISTRY.device("h100-80g")
    steps = [float(step_ms(LLAMA, strategy, each, device)) for each in (frozen, saved, rules)]
    assert steps == sorted(set(steps))


def test_latent_attention_has_an_adapter_beside_each_of_its_projections() -> None:
    layer = DEEPSEEK.layers_of("moe")[0]
    assert len(adapted_matrices(DEEPSEEK, layer, Adapters(8, ALL_MEGATRON, beside_experts=False))) == 4 + 1 + 2
    assert layer_tensors(DEEPSEEK, layer, ONE.replace(ep=8), RULES.replace(adapters=Adapters(8))) == (2 * 2 * 32, 2 * 3)


def test_many_strategies_are_priced_at_once_as_each_alone() -> None:
    from taylor.cost_model.job.strategy_table import StrategyTable

    device, rules = REGISTRY.device("h100-80g"), RULES.replace(seq_length=4096, adapters=Adapters(8, dropout=True))
    each = [Strategy(8 // (tp * pp), tp, pp, op=8 // (tp * pp), micro_batches=8) for tp in (1, 2) for pp in (1, 2, 4)]
    together = step_ms(LLAMA, StrategyTable.from_strategies(each), rules, device)
    assert together.tolist() == pytest.approx([float(step_ms(LLAMA, one, rules, device)) for one in each], rel=1e-12)


def test_a_module_that_no_adapter_stands_beside_is_named() -> None:
    from taylor.base.errors import InputError

    assert named_targets(["q_proj", "model.layers.0.v_proj"], None) == (QUERY, VALUE)
    assert named_targets(["all-linear"], ALL_MEGATRON) == ALL_MEGATRON
    with pytest.raises(InputError, match="--lora-target-modules: names the module 'lm_head'"):
        named_targets(["lm_head"], None, field="--lora-target-modules")
