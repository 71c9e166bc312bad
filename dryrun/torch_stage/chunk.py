"""One chunk of a stage: its layers, with embedding or head where the model begins or ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from taylor.dryrun.torch_stage.counter import TRANSIENT, Charged, active_counter
from taylor.dryrun.torch_stage.ends import Embedding, Head, PredictionModule
from taylor.dryrun.torch_stage.kernels import Begin, GradientQueue
from taylor.dryrun.torch_stage.layers import RecomputedGroup, TransformerLayer
from taylor.dryrun.torch_stage.norms import NormLayer
from taylor.dryrun.torch_stage.sharding import Enter, Leave, ShardedBlock
from taylor.dryrun.torch_stage.site import Site
from taylor.dryrun.torch_stage.weights import moved
from taylor.pipeline.plan import FULL, RECOMPUTE_MODES, PipelinePlan
from taylor.register.model import MTP, kind_of

LOGITS = "logits"


def activations_of(kind: str) -> str:
    """Category of the tensors that layers of a kind keep."""
    return f"activations {kind}"


def layers_and_modes(plan: PipelinePlan, interleave: int, stage: int) -> list[tuple[str, str]]:
    """(kind, recompute mode) of a chunk's layers in order; runs of one kind have its name."""
    by_kind = plan.recompute_by_kind()
    return [
        (kind_of(run), mode)
        for run, modes in by_kind.items()
        for mode in RECOMPUTE_MODES
        for _ in range(modes[mode][interleave][stage])
    ]


@contextmanager
def _survivors(name: str) -> Iterator[None]:
    counter = active_counter()
    if counter is None:
        yield
        return
    with counter.survivors(name):
        yield


class StageChunk:
    """Forward of one chunk; backward is autograd's.

    Parameters
    ----------
    layers : list of (kind, mode)
    embedding : Embedding or None
        Of the model's first chunk; and of the last one, for its prediction modules.
    first, last : bool
        The chunk begins or ends the model.
    tied : bool
        The head reads the table of `embedding`, which lies on the same stage.
    """

    def __init__(
        self,
        site: Site,
        queue: GradientQueue,
        layers: list[tuple[str, str]],
        *,
        first: bool,
        last: bool,
        embedding: Embedding | None = None,
        tied: bool = False,
    ) -> None:
        self.site = site
        self.first, self.last = first, last
        self.recomputes = any(mode == FULL for _, mode in layers)
        self.embedding = embedding
        modules = [(kind, mode) for kind, mode in layers if kind == MTP]
        if (first or modules) and embedding is None:
            self.embedding = Embedding(site, whole=first)
        if modules and not last:
            raise ValueError("a prediction module (MTP) belongs to the chunk that ends the model, beside the head")
        self.kinds = [kind for kind, _ in layers if kind != MTP]
        self.layers = [
            TransformerLayer(site, queue, site.model.layer(kind), mode) for kind, mode in layers if kind != MTP
        ]
        self.modules = [PredictionModule(site, queue, mode) for _, mode in modules]
        table = self.embedding.table if tied and self.embedding is not None else None
        self.head = Head(site, queue, table) if last else None
        self.root = torch.empty(0, requires_grad=True, device=site.device)
        self.blocks: list[ShardedBlock] = []
        if site.rules.parameter_shard:
            self._shard(embedding is None)

    def _shard(self, own_embedding: bool) -> None:
        layers = [layer.weights() for layer in self.layers] + [module.weights() for module in self.modules]
        self.blocks = [ShardedBlock(weights, self.site, in_layer=True) for weights in layers]
        if self.embedding is not None and own_embedding:
            self.blocks.insert(0, ShardedBlock(self.embedding.weights(), self.site, in_layer=False))
        if self.head is not None:
            self.blocks.append(ShardedBlock(self.head.weights(), self.site, in_layer=False))
        for before, after in zip(self.blocks, self.blocks[1:], strict=False):
            before.after, after.before = after, before

    def __call__(self, x: Tensor | None, tokens: Tensor) -> Tensor:
        """The residual stream behind the chunk, or the loss behind the last one."""
        blocks = iter(self.blocks)
        first = activations_of(self.kinds[0] if self.kinds else MTP)
        own_embedding = self.embedding is not None and (self.first or bool(self.modules))
        embedding_block = next(blocks) if self.blocks and own_embedding else None
        if x is None:
            with _survivors(first):
                x = self._embed(tokens, embedding_block)
        for kind, layer in self._in_groups():
            # A layer's input is its own, whoever made it.
            moved(x, activations_of(kind))
            with _survivors(activations_of(kind)):
                x = _run(layer, x, next(blocks, None))
                if not x.requires_grad:
                    x = Begin.apply(self.root, x)
        if self.head is None:
            return x
        moved(x, LOGITS)
        bodies = [x]
        for module in self.modules:
            block = next(blocks, None)
            y = bodies[-1] if block is None else Enter.apply(bodies[-1], block)
            # The module's projection counts with the head, its layers as layers.
            with _survivors(LOGITS):
                y = module.project(y, self._embed(tokens, None if self.first else embedding_block))
            moved(y, activations_of(MTP))
            with _survivors(activations_of(MTP)):
                for layer in module.layers:
                    y = layer(y)
            bodies.append(y if block is None else Leave.apply(y, block))
            del y
            moved(bodies[-1], LOGITS)
        head_block = next(blocks, None)
        losses = []
        # The modules' losses come first, the model's own last (Megatron).
        for place in reversed(range(len(bodies))):
            norm = self.modules[place - 1].norms[2] if place else None
            y = Charged.apply(bodies.pop(), LOGITS, TRANSIENT)
            losses.append(_loss(self.head, tokens, norm, y, head_block))
            losses[-1] = Charged.apply(losses[-1], TRANSIENT, LOGITS)
            del y
        with _survivors(LOGITS):
            return torch.stack(losses).sum()

    def _in_groups(self) -> Iterator[tuple[str, TransformerLayer | RecomputedGroup]]:
        """The layers with their kinds, those that recompute takes together as one of the first's kind.

        Sharded blocks are entered one by one, so that they stay separate.
        """
        size = 1 if self.blocks else self.site.rules.recompute_group
        start = 0
        while start < len(self.layers):
            full = itertools.takewhile(lambda layer: layer.mode == FULL, self.layers[start : start + size])
            together = list(full) if size > 1 else []
            kind = self.kinds[start]
            yield kind, RecomputedGroup(together) if len(together) > 1 else self.layers[start]
            start += max(1, len(together))

    def _embed(self, tokens: Tensor, block: ShardedBlock | None) -> Tensor:
        assert self.embedding is not None
        if block is None:
            return self.embedding(tokens, self.embedding.root)
        y = self.embedding(tokens, Enter.apply(self.embedding.root, block))
        return Leave.apply(y, block)


def _loss(head: Head, tokens: Tensor, norm: NormLayer | None, x: Tensor, sharded: ShardedBlock | None) -> Tensor:
    """The loss of the body's output; the logits are the last result of the head's weights."""
    if sharded is None or not head.site.framework.states.gathers_blocks:
        return _run(lambda x: head.loss(x, tokens, norm=norm), x, sharded)
    return head.loss(Enter.apply(x, sharded), tokens, norm=norm, leave=lambda logits: Leave.apply(logits, sharded))


def _run(block: Callable[[Tensor], Tensor], x: Tensor, sharded: ShardedBlock | None) -> Tensor:
    if sharded is None:
        return block(x)
    return Leave.apply(block(Enter.apply(x, sharded)), sharded)
