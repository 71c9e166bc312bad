"""Embedding, head with loss, and the multi-token-prediction modules before the head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from taylor.dryrun.torch_stage.attention import Dropout
from taylor.dryrun.torch_stage.counter import fused
from taylor.dryrun.torch_stage.kernels import Gather, GradientQueue, Linear, Recompute, gathered, scattered
from taylor.dryrun.torch_stage.layers import TransformerLayer
from taylor.dryrun.torch_stage.norms import NormLayer
from taylor.dryrun.torch_stage.site import Site
from taylor.dryrun.torch_stage.weights import REPLICATED, SPLIT, Weight
from taylor.register.adapters import BESIDE, EMBEDDING, HEAD
from taylor.register.frameworks import COMPILED_LOSS, ENGINE_LOSS, IN_PLACE, STEP_BY_STEP


class Lookup(torch.autograd.Function):
    """Rows of the (vocabulary-parallel) table, reduced over TP and scattered. Saves the token numbers.

    The table's gradient is added row by row to the fp32 one; a frozen table has none. `root` carries the graph: a
    kernel with no differentiable input would have none.
    """

    @staticmethod
    def forward(ctx: Any, root: Tensor, tokens: Tensor, weight: Weight, scatter: int, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.weight, ctx.scatter = weight, scatter
        return scattered(_looked_up(tokens, weight, dtype), scatter)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        (tokens,) = ctx.saved_tensors
        if ctx.weight.trains:
            _add_rows(ctx.weight, tokens, gathered(dy, ctx.scatter))
        return None, None, None, None, None


@fused
def _looked_up(tokens: Tensor, weight: Weight, dtype: torch.dtype) -> Tensor:
    if weight.tensor is None:
        # Read from the optimizer's fp32 table: only the rows are made.
        return torch.empty((len(tokens), weight.shape[1]), dtype=dtype, device=tokens.device)
    # Rows of other ranks are zeros here; memory does not depend on their numbers.
    return weight.tensor[tokens % weight.shape[0]].to(dtype)


@fused
def _add_rows(weight: Weight, tokens: Tensor, dy: Tensor) -> None:
    fresh = weight.site.framework.states.fresh_gradients
    if weight.whole_gradient and not weight.sharded and not fresh:
        weight.make_gradient().index_add_(0, tokens % weight.shape[0], dy.float())
    else:
        # A whole one is made temporarily: to be reduced, or to become the table's own.
        rows = weight.site.model.vocab if weight.gathers_gradient else weight.shape[0]
        kind = dy.dtype if weight.sharded else weight.gradient_type
        weight.add_gradient(lambda: torch.zeros((rows, weight.shape[1]), dtype=kind, device=dy.device))


class Embedding:
    """Token and learned position embedding: token numbers [tokens] to the residual stream.

    Parameters
    ----------
    whole : bool
        It includes what else stands before the layers (`ModelSpec.extra_parameters`); not so beside the
        prediction modules of a stage that does not begin the model.
    """

    def __init__(self, site: Site, *, whole: bool = True) -> None:
        self.site = site
        model, states = site.model, site.framework.states
        piped = site.strategy.pp > 1 and states.splits_embedding_in_pipeline
        split = (site.rules.vocab_parallel or piped) and site.splits_vocabulary
        copy = not states.casts_embedding_rows
        rows, group = (site.vocabulary, SPLIT) if split else (model.vocab, REPLICATED)
        gathers = split and site.rules.parameter_shard and states.gathers_embedding_gradient
        shape = (rows, model.hidden)
        own = site.at(EMBEDDING)
        self.table = Weight(own, shape, group, copy=copy, in_layer=False, gathers_gradient=gathers)
        self.positions = None
        if model.learned_positions:
            # Positions are not split over TP: every rank adds the rows of its tokens.
            self.positions = Weight(own, (model.learned_positions, model.hidden), REPLICATED, copy=copy)
        self.beside = None
        if model.extra_parameters and whole:
            self.beside = Weight(site.of_part(BESIDE), (model.extra_parameters,), REPLICATED)
        self.frozen: list[Weight] = []
        if site.rules.saves(EMBEDDING):
            # The frozen tables beside copies that train.
            self.frozen = [Weight(site, each.shape, of, in_layer=False) for each, of in self._tables(group)]
        self.root = torch.empty(0, requires_grad=True, device=site.device)

    def weights(self) -> list[Weight]:
        """Every weight of the embedding."""
        own = (self.table, self.positions, self.beside, *self.frozen)
        return [weight for weight in own if weight is not None]

    def _tables(self, group: str) -> list[tuple[Weight, str]]:
        positions = [] if self.positions is None else [(self.positions, REPLICATED)]
        return [(self.table, group), *positions]

    def __call__(self, tokens: Tensor, root: Tensor) -> Tensor:
        site = self.site
        y = Lookup.apply(root, tokens, self.table, site.shard_ways, site.residual_dtype)
        if self.positions is not None:
            place = torch.arange(site.shard_tokens, device=site.device)
            y = y + Lookup.apply(root, place, self.positions, 1, site.residual_dtype)
        return Dropout.apply(y, site.dropout_rate) if site.rules.dropout else y


class VocabularyCrossEntropy(torch.autograd.Function):
    """`IN_PLACE` cross entropy over logits split by vocabulary.

    One fp32 copy of the logits becomes, in place, the softmax that is saved, and in backward the
    gradient. Beside it live the bf16 logits in forward and the bf16 gradient in backward: 6 bytes a logit.
    Compiled (`COMPILED_LOSS`), the steps pass on a new tensor instead of writing into the cast.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, compiled: bool = False) -> Tensor:
        softmax = logits.float()
        if compiled or softmax is logits:
            softmax = softmax.clone()
        loss, target = _in_place_softmax(softmax, target)
        ctx.save_for_backward(softmax, target)
        return loss

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        gradient, target = ctx.saved_tensors
        _subtract_target(gradient, target, dy)
        return gradient, None, None


class EngineCrossEntropy(torch.autograd.Function):
    """One kernel finds each row's loss and sum, and one the gradient.

    `ENGINE_LOSS` writes it over the logits; compiled (`StaticRules.compiled_logits_bytes`) it is a separate tensor.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, beside: bool = False) -> Tensor:
        ctx.beside = beside
        loss, target, total = _row_sums(logits, target)
        ctx.save_for_backward(logits, target, total)
        return loss

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        logits, target, total = ctx.saved_tensors
        gradient = logits.clone() if ctx.beside else logits
        _write_gradient(gradient, target, total, dy)
        return gradient, None, None


@fused
def _row_sums(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    target = target % logits.shape[1]
    total = logits.float().logsumexp(-1)
    predicted = logits.gather(1, target[:, None])[:, 0].float()
    return (total - predicted).mean(), target, total


@fused
def _write_gradient(logits: Tensor, target: Tensor, total: Tensor, dy: Tensor) -> None:
    softmax = (logits.float() - total[:, None]).exp()
    _subtract_target(softmax, target, dy)
    logits.copy_(softmax)


@fused
def _in_place_softmax(wide: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    target = target % wide.shape[1]
    wide.sub_(wide.max(-1, keepdim=True)[0])
    predicted = wide.gather(1, target[:, None])[:, 0]
    wide.exp_()
    total = wide.sum(-1)
    wide.div_(total[:, None])
    return (total.log() - predicted).mean(), target


@fused
def _subtract_target(softmax: Tensor, target: Tensor, dy: Tensor) -> None:
    softmax.scatter_add_(1, target[:, None], torch.full_like(target[:, None], -1, dtype=softmax.dtype))
    softmax.mul_(dy / softmax.shape[0])


class SplitCrossEntropy(torch.autograd.Function):
    """torch's ``loss_parallel``: every step makes a new tensor, in backward too (`split_logits_bytes`)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        target = target % logits.shape[1]
        wide = logits.float()
        shifted = wide - wide.max(-1, keepdim=True)[0]
        result = shifted - shifted.exp().sum(-1, keepdim=True).log()
        ctx.save_for_backward(result, target)
        return -result.gather(1, target[:, None]).mean()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        result, target = ctx.saved_tensors
        gradient = torch.zeros_like(result)
        gradient.scatter_(1, target[:, None], -1.0)
        return (gradient + result.exp()) * (dy / result.shape[0]), None


class UnfusedCrossEntropy(torch.autograd.Function):
    """`STEP_BY_STEP` cross entropy: each step makes a new tensor; saves the softmax.

    Shifted logits, their exponentials and the softmax, fp32, beside the bf16 logits: 14 bytes a logit.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        shifted = _shifted(logits)
        target = target % logits.shape[1]
        exponential = torch.exp(shifted)
        total = exponential.sum(-1, keepdim=True)
        softmax = exponential / total
        ctx.save_for_backward(softmax, target)
        return (total[:, 0].log() - shifted.gather(1, target[:, None])[:, 0]).mean()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        softmax, target = ctx.saved_tensors
        gradient = softmax.clone()
        _subtract_target(gradient, target, dy)
        return gradient, None


@fused
def _shifted(logits: Tensor) -> Tensor:
    wide = logits.float()
    return wide - wide.max(-1, keepdim=True)[0]


_CAP = 30.0
"""Cap of the logits; no figure depends on it."""


class Head:
    """Final norm, GEMM with the vocabulary, and loss; the loss's own logits live while it is computed.

    Parameters
    ----------
    table : Weight, optional
        The embedding's table where head and embedding are tied.
    """

    def __init__(self, site: Site, queue: GradientQueue, table: Weight | None = None) -> None:
        self.site, self.queue = site, queue
        own = site.at(HEAD)
        self.norm = NormLayer(site.of_part(HEAD))
        saved = site.rules.saves(HEAD)
        self.tied = table is not None and not saved
        group = SPLIT if site.splits_vocabulary else REPLICATED
        shape = (site.vocabulary, site.model.hidden)
        self.table = table if table is not None and not saved else Weight(own, shape, group, in_layer=False)
        # The frozen head beside a copy that trains; a tied one is the embedding's.
        self.frozen = Weight(site, shape, group, in_layer=False) if saved and table is None else None
        self.logits: list[Tensor] = []

    def weights(self) -> list[Weight]:
        """Every weight of the head, without a tied one."""
        own = [None if self.tied else self.table, self.frozen]
        return [*self.norm.weights(), *(weight for weight in own if weight is not None)]

    def loss(
        self,
        x: Tensor,
        target: Tensor,
        *,
        norm: NormLayer | None = None,
        leave: Callable[[Tensor], Tensor] = lambda logits: logits,
    ) -> Tensor:
        """Mean loss of [n, hidden] of the residual stream; `norm` replaces the head's.

        Parameters
        ----------
        leave : callable
            Called with the logits: where the head's own block ends, and in backward begins.
        """
        x = (self.norm if norm is None else norm)(x)
        chunks = self.site.rules.loss_chunks
        run = partial(self._chunk, leave=leave)
        if chunks == 1:
            return run(x, target)
        # One chunk's logits at a time: they are rebuilt in backward.
        rows, targets = x.tensor_split(chunks), target.tensor_split(chunks)
        losses = [Recompute.apply(run, part, wanted) for part, wanted in zip(rows, targets, strict=True)]
        return torch.stack(losses).mean()

    def _chunk(self, x: Tensor, target: Tensor, *, leave: Callable[[Tensor], Tensor]) -> Tensor:
        ways = self.site.shard_ways
        framework = self.site.framework
        if framework.activations.saves_gathered_inputs and ways > 1:
            x, ways = Gather.apply(x, ways), 1
        logits = leave(Linear.apply(x, self.table, self.queue, ways))
        if self.site.rules.capped_logits:
            logits = (logits / _CAP).tanh() * _CAP
        target = target[: logits.shape[0]]
        kernel = self.site.rules.loss_kernel
        if kernel == ENGINE_LOSS:
            return EngineCrossEntropy.apply(logits, target)
        if framework.statics.cross_entropy == IN_PLACE:
            return VocabularyCrossEntropy.apply(logits, target, kernel == COMPILED_LOSS)
        if framework.statics.cross_entropy == STEP_BY_STEP:
            return UnfusedCrossEntropy.apply(logits, target)
        if self.site.strategy.pp > 1 or not framework.statics.drops_logits:
            # The stage keeps its output until the micro-batch's backward is over.
            self.logits.append(logits)
        if framework.statics.split_logits_bytes is not None and logits.shape[1] < self.site.model.vocab:
            return SplitCrossEntropy.apply(logits, target)
        if self.site.rules.compiled_loss:
            return EngineCrossEntropy.apply(logits, target, True)
        return torch.nn.functional.cross_entropy(logits.float(), target % logits.shape[1])


class PredictionModule:
    """One multi-token-prediction module (DeepSeek-V3 §2.2): two norms, a projection, its layers, a final norm."""

    def __init__(self, site: Site, queue: GradientQueue, mode: str) -> None:
        self.site, self.queue = site, queue
        hidden, tp = site.model.hidden, site.strategy.tp
        self.norms = [NormLayer(site) for _ in range(3)]
        self.projection = Weight(site, (-(-hidden // tp), 2 * hidden), SPLIT)
        self.layers = [TransformerLayer(site, queue, layer, mode) for layer in site.model.mtp_module()]

    def weights(self) -> list[Weight]:
        """Every weight of the module, without embedding and head."""
        layers = [weight for layer in self.layers for weight in layer.weights()]
        return [*(w for norm in self.norms for w in norm.weights()), self.projection, *layers]

    def project(self, x: Tensor, embedded: Tensor) -> Tensor:
        """The layer's input from the hidden state before and the next token's embedding."""
        ways = self.site.shard_ways
        joined = torch.cat([self.norms[0](x), self.norms[1](embedded)], -1)
        part = Linear.apply(joined, self.projection, self.queue, ways)
        del joined
        return _Regather.apply(part, x.shape, x.dtype)


class _Regather(torch.autograd.Function):
    """Columns split over TP to whole rows of the residual stream: gather of features, then this rank's tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        ctx.shape, ctx.dtype = x.shape, x.dtype
        if x.shape == shape:
            return x.to(dtype, copy=True)
        return torch.empty(shape, dtype=dtype, device=x.device)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # type: ignore[override]
        if dy.shape == ctx.shape:
            return dy.to(ctx.dtype), None, None
        return torch.empty(ctx.shape, dtype=ctx.dtype, device=dy.device), None, None
