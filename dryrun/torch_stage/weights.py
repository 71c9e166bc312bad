"""Weights of a stage with their gradients and optimizer states, as storages of the size each framework gives them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from taylor.cost_model.parameters import ParameterGroups
from taylor.cost_model.states import group_bytes
from taylor.dryrun.torch_stage.counter import LiveCounter, active_counter, fused
from taylor.dryrun.torch_stage.site import Site

SPLIT, LATENT, REPLICATED, ROUTED = "split", "latent", "replicated", "routed"
"""How a parameter is divided: the groups of `cost_model.parameters.ParameterGroups`."""

WEIGHTS, GRADIENTS, OPTIMIZER, BUFFERS = "weights", "gradients", "optimizer", "buffers"


@contextmanager
def charged(category: str) -> Iterator[None]:
    """What is made inside belongs to a category, where anyone counts."""
    counter: LiveCounter | None = active_counter()
    if counter is None:
        yield
        return
    with counter.category(category):
        yield


class Weight:
    """One parameter on this rank.

    Its bytes follow `cost_model.states.group_bytes`: the compute copy where the framework keeps one,
    the fp32 gradient (or its shard), and the optimizer's share, each a storage of its own.

    Parameters
    ----------
    shape : tuple of int
        This rank's part, elements.
    group : str
        `SPLIT`, `LATENT`, `REPLICATED` or `ROUTED`.
    copy : bool
        Off: no compute copy beside the fp32 weight (MindFormers' embedding).
    counted : bool
        Its product is one of those that recompute by operator counts (`cost_model.saved_operators`).
    """

    def __init__(
        self, site: Site, shape: tuple[int, ...], group: str, *, copy: bool = True, counted: bool = True
    ) -> None:
        self.site, self.counted = site, counted
        self.shape = shape
        count = math.prod(shape)
        whole = ParameterGroups(**{group: count * _ways(site, group)})
        states = group_bytes(whole, site.strategy, site.rules, copy_weights=copy)
        self.kept = float(states.weights) >= count * site.rules.compute_bytes
        framework = site.framework.states
        self.fused_accumulation = site.rules.adds_in_products
        with charged(WEIGHTS):
            self.tensor: torch.Tensor | None = None
            if self.kept:
                self.tensor = torch.empty(shape, dtype=site.dtype, device=site.device)
            elif states.weights:
                self.weight_shard = _bytes(states.weights, site)
        optimizer = float(states.optimizer)
        with charged(OPTIMIZER):
            whole_optimizer = optimizer >= count * site.rules.optimizer_bytes
            if self.tensor is None and whole_optimizer and not site.rules.parameter_shard:
                # No copy is kept: the fp32 master weight itself is read.
                self.tensor = torch.empty(shape, dtype=torch.float32, device=site.device)
                optimizer -= framework.master_bytes * count
            self.optimizer = _bytes(optimizer, site)
        width = site.rules.gradient_bytes
        whole_gradient = float(states.gradients) >= count * width
        with charged(GRADIENTS):
            held = shape if whole_gradient else (math.ceil(states.gradients / width),)
            kind = torch.float32 if width == framework.gradient_bytes else site.dtype
            self.main_grad = torch.zeros(held, dtype=kind, device=site.device)
        self.whole_gradient = whole_gradient
        self.pending: torch.Tensor | None = None
        self.sharded = site.rules.parameter_shard

    def read(self) -> torch.Tensor:
        """The weight as a matrix product takes it; made for the moment where no copy is kept."""
        if self.tensor is not None:
            return self.tensor
        return torch.empty(self.shape, dtype=self.site.dtype, device=self.site.device)

    def add_gradient(self, make: Callable[[], torch.Tensor]) -> None:
        """Add a micro-batch's gradient, in the shape of the weight.

        Matrix products add to the fp32 gradient as they run (`TrainingRules.adds_in_products`), or make a
        gradient first. Under FSDP it stays until the layer's backward is over (`ShardedBlock`).
        """
        if self.fused_accumulation and self.whole_gradient:
            _accumulate(self.main_grad, make)
            return
        made = make()
        if self.sharded:
            self.pending = made
        elif self.whole_gradient:
            self.main_grad.add_(made)
        else:
            self.main_grad.add_(made.reshape(-1)[: self.main_grad.numel()])


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
        return ep if site.rules.whole_experts else ep * tp
    return 1
