"""Weights of a stage with their gradients and optimizer states, as storages of the size each framework gives them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from taylor.cost_model.job.parameters import ParameterGroups
from taylor.cost_model.memory.states import group_bytes
from taylor.dryrun.torch_stage.counter import LiveCounter, active_counter, fused
from taylor.dryrun.torch_stage.site import Site

SPLIT, LATENT, REPLICATED, ROUTED = "split", "latent", "replicated", "routed"
"""Division of a parameter: the groups of `cost_model.job.parameters.ParameterGroups`."""

_FP32 = 4
WEIGHTS, GRADIENTS, OPTIMIZER, BUFFERS = "weights", "gradients", "optimizer", "buffers"


@contextmanager
def charged(category: str) -> Iterator[None]:
    """Charge what is made inside to a category, where anyone counts."""
    counter: LiveCounter | None = active_counter()
    if counter is None:
        yield
        return
    with counter.category(category):
        yield


def moved(tensor: torch.Tensor, category: str) -> torch.Tensor:
    """A tensor that now belongs to another category, where anyone counts."""
    counter: LiveCounter | None = active_counter()
    if counter is not None:
        counter.move(tensor, category)
    return tensor


class Weight:
    """One parameter on this rank.

    Its bytes follow `cost_model.memory.states.group_bytes`: the compute copy where the framework keeps one,
    the fp32 gradient (or its shard), and the optimizer's shard, each a separate storage.

    Parameters
    ----------
    shape : tuple of int
        This rank's part, elements.
    group : str
        `SPLIT`, `LATENT`, `REPLICATED` or `ROUTED`.
    copy : bool
        Off: no compute copy beside the fp32 weight (MindFormers' embedding).
    counted : bool
        Its GEMM is one of those that recompute by operator counts (`cost_model.memory.saved_operators`).
    kept_result : bool
        Off: recompute by operator keeps its GEMM's result in no case (`saved_operators.ends_unkept`).
    in_layer : bool
        Off: a table over the vocabulary, whose GEMM never runs in fewer than 16 bits.
    gathers_gradient : bool
        Its gradient has the rows of all ranks of TP until it is reduced (`StateRules.gathers_embedding_gradient`).
    """

    def __init__(
        self,
        site: Site,
        shape: tuple[int, ...],
        group: str,
        *,
        copy: bool = True,
        counted: bool = True,
        kept_result: bool = True,
        in_layer: bool = True,
        gathers_gradient: bool = False,
    ) -> None:
        self.site, self.counted, self.gathers_gradient = site, counted, gathers_gradient
        self.trains = site.rules.adapters is None
        """Off: frozen, without gradient and optimizer states."""
        self.kept_result = kept_result
        self.shape = shape
        count = math.prod(shape)
        whole = ParameterGroups(**{group: count * _ways(site, group)})
        states = group_bytes(whole, site.strategy, site.rules, copy_weights=copy, in_layer=in_layer)
        narrow = site.rules.saved_narrow if self.trains else site.rules.narrow
        self.narrow = narrow if in_layer and group != REPLICATED else None
        """Number format where its GEMMs run in fewer than 16 bits, from copies of the weight."""
        frozen = site.rules.adapters if in_layer and group != REPLICATED else None
        self.stored_bytes = None if frozen is None else frozen.base_bytes
        """Bytes an element of a frozen matrix that is written in the compute type for every use (QLoRA)."""
        quantized = site.rules.narrow if site.rules.narrow_gather and in_layer and group != REPLICATED else None
        self.gathers_narrow = None if group == ROUTED and not site.rules.narrow_experts else quantized
        """Number format in which it is gathered, where that is not the one that GEMMs compute from."""
        copies = 0.0 if self.narrow is None or site.rules.narrow_weights else count * self.narrow.weight_bytes
        stored = float(states.weights) - copies
        width = self._narrow_width(site.rules.compute_bytes)
        self.kept = stored >= count * width
        framework = site.framework.states
        self.fused_accumulation = site.rules.adds_in_products
        with charged(WEIGHTS):
            self.tensor: torch.Tensor | None = None
            self.copies: torch.Tensor | None = _bytes(copies, site)
            if self.kept:
                self.make_whole()
            elif stored:
                self.weight_shard = _bytes(stored, site)
        optimizer = float(states.optimizer)
        with charged(OPTIMIZER):
            whole_optimizer = optimizer >= count * site.rules.optimizer_bytes
            if self.tensor is None and whole_optimizer and not (site.rules.parameter_shard or site.rules.autocast):
                # No copy is kept: the fp32 master weight itself is read.
                self.tensor = torch.empty(shape, dtype=torch.float32, device=site.device)
                optimizer -= framework.master_bytes * count
            self.optimizer = _bytes(optimizer, site)
        width = site.rules.gradient_bytes
        whole_gradient = float(states.gradients) >= count * width
        self.whole_gradient = whole_gradient
        self.gradient_shape = shape if whole_gradient else (math.ceil(states.gradients / width),)
        self.gradient_type = torch.float32 if width == framework.gradient_bytes else site.dtype
        self.main_grad: torch.Tensor | None = None
        if self.trains and not framework.fresh_gradients:
            self.make_gradient()
        self.pending: torch.Tensor | None = None
        self.sharded = site.rules.parameter_shard

    def make_gradient(self) -> torch.Tensor:
        """The accumulated gradient, or this rank's shard of it; made where the step began without."""
        if self.main_grad is None:
            with charged(GRADIENTS):
                self.main_grad = torch.zeros(self.gradient_shape, dtype=self.gradient_type, device=self.site.device)
        return self.main_grad

    def _narrow_width(self, usual: float) -> float:
        """Bytes an element of the whole weight: of what is stored in fewer bits, or of its only copies."""
        if self.stored_bytes is not None:
            return self.stored_bytes
        return self.narrow.weight_bytes if self.narrow is not None and self.site.rules.narrow_weights else usual

    def make_whole(self) -> None:
        """Make the weight as GEMMs take it."""
        site, count = self.site, math.prod(self.shape)
        if self.stored_bytes is not None:
            self.copies = _bytes(count * self.stored_bytes, site)
            self.tensor = self._shape_alone(self.shape)
            return
        if self.gathers_narrow is not None:
            self.copies = _bytes(count * self.gathers_narrow.input_bytes, site)
            self.tensor = self._shape_alone(self.shape)
            return
        if self.narrow is None or not site.rules.narrow_weights:
            self.tensor = torch.empty(self.shape, dtype=site.dtype, device=site.device)
            return
        # The copies are all there is; GEMMs find the shape and take no memory for it.
        self.copies = _bytes(count * self.narrow.weight_bytes, site)
        self.tensor = self._shape_alone(self.shape)

    def drop(self) -> None:
        """Drop the whole weight, where a shard of it is stored."""
        if not self.kept:
            self.tensor = None
            if self.site.rules.narrow_weights or self.gathers_narrow is not None or self.stored_bytes is not None:
                self.copies = None

    def read(self) -> torch.Tensor:
        """The weight as a GEMM takes it; made for the moment where no copy is kept."""
        if self.tensor is not None and self.stored_bytes is None:
            return self.tensor
        return torch.empty(self.shape, dtype=self.site.dtype, device=self.site.device)

    def reduced(self, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient in the type in which it is added up whole, and reduced."""
        return gradient if self.site.rules.gathered().gradient_bytes < _FP32 else gradient.float()

    def saved_input(self, x: torch.Tensor, *, kept_elsewhere: bool = False) -> torch.Tensor:
        """The part of its input that a GEMM with this weight saves."""
        if self.narrow is None or (kept_elsewhere and self.narrow.requantizes):
            return x
        return _bytes(x.numel() * self.narrow.input_bytes, self.site)

    def cast_gradient(self, dy: torch.Tensor, ways: int = 1) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A gradient as GEMMs take it, cast before it is gathered over `ways`; and its narrow copies."""
        if self.narrow is None:
            return dy, None
        # The second copy is for the weight's gradient.
        copies = _bytes((1 + self.trains) * ways * dy.numel() * self.narrow.input_bytes, self.site)
        return self._shape_alone((ways * dy.shape[0], *dy.shape[1:])), copies

    def restored(self, saved: torch.Tensor, shape: tuple[int, ...], ways: int = 1) -> torch.Tensor:
        """The saved input, gathered, as a GEMM takes it; of a narrow one the shape alone."""
        if saved.shape == shape:
            return saved if ways == 1 else saved.repeat(ways, *[1] * (saved.dim() - 1))
        return self._shape_alone((ways * shape[0], *shape[1:]))

    def _shape_alone(self, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.empty(1, dtype=self.site.dtype, device=self.site.device).expand(shape)

    def add_gradient(self, make: Callable[[], torch.Tensor]) -> None:
        """Add a micro-batch's gradient, in the shape of the weight; none to a frozen one.

        GEMMs add to the fp32 gradient as they run (`TrainingRules.adds_in_products`), or make a
        gradient first. Under FSDP it stays until the layer's backward is over (`ShardedBlock`).
        """
        if not self.trains:
            return
        if self.fused_accumulation and self.whole_gradient:
            _accumulate(self.make_gradient(), make)
            return
        made = make()
        if self.sharded:
            self.pending = made
            return
        if self.main_grad is None and made.shape == self.gradient_shape and made.dtype == self.gradient_type:
            # The first gradient of a parameter becomes its own.
            self.main_grad = moved(made, GRADIENTS)
            return
        main_grad = self.make_gradient()
        main_grad.add_(made if self.whole_gradient else made.reshape(-1)[: main_grad.numel()])


@fused
def _accumulate(main_grad: torch.Tensor, make: Callable[[], torch.Tensor]) -> None:
    main_grad.add_(make())


def _bytes(size: float, site: Site) -> torch.Tensor:
    return torch.empty(math.ceil(size), dtype=torch.uint8, device=site.device)


def _ways(site: Site, group: str) -> int:
    """Ranks over which one whole parameter of a group is spread."""
    tp, ep = site.strategy.tp, site.strategy.ep
    if group == SPLIT or (group == LATENT and site.framework.states.splits_latent_projections):
        return tp
    if group == ROUTED:
        return ep * int(site.rules.experts_over(tp))
    return 1
