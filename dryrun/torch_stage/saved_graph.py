"""The operators of one layer with the tensors that each makes and saves, recorded while it runs on fake tensors.

An autograd function is one operator, and so is every call of torch outside of one. What an operator saves is what its
nodes of the graph hold. Tensors are storages: views have one number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from taylor.cost_model.choices.layer_graph import CORE, EXCHANGE, GROUPED, PLAIN, LayerGraph, Operator, OperatorWork
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.statics import MIB
from taylor.dryrun.torch_stage.attention import SplitFeatures
from taylor.dryrun.torch_stage.counter import LiveCounter, rounded
from taylor.dryrun.torch_stage.experts import Exchange
from taylor.dryrun.torch_stage.grouped_linear import GroupedLinear
from taylor.dryrun.torch_stage.kernels import Gather, GradientQueue, Linear, Scatter
from taylor.dryrun.torch_stage.layers import TransformerLayer
from taylor.dryrun.torch_stage.site import Site
from taylor.dryrun.torch_stage.weights import Weight
from taylor.pipeline.plan import NONE
from taylor.register.model import ModelSpec

_CORES = ("attention", "sparse_latent", "mamba", "linear_kernels", "linear_attention")
"""Modules whose autograd functions are the cores of mixers."""


@lru_cache(maxsize=64)
def layer_graph(model: ModelSpec, kind: str, strategy: Strategy, rules: TrainingRules) -> LayerGraph:
    """Run one layer of a kind forward, nothing recomputed, and record its operators."""
    site = Site(model, strategy, rules)
    record = _Record()
    with FakeTensorMode(), LiveCounter():
        layer = TransformerLayer(site, GradientQueue(), model.layer(kind), NONE)
        for weight in layer.weights():
            if weight.tensor is None:
                weight.tensor = torch.empty(weight.shape, dtype=site.dtype)
        x = torch.empty((site.shard_tokens, model.hidden), dtype=site.residual_dtype, requires_grad=True)
        record.number(x)
        with record.watching():
            y = layer(x)
        return record.graph(y)


class _Products(TorchDispatchMode):
    """Counter of the FLOPs of GEMMs."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm):
            self.flops += 2.0 * out.numel() * args[0].shape[-1]
        elif func._overloadpacket is torch.ops.aten.addmm:
            self.flops += 2.0 * out.numel() * args[1].shape[-1]
        return out


class _Calls(TorchFunctionMode):
    """Shows a record every call of torch outside of autograd functions."""

    def __init__(self, record: _Record) -> None:
        super().__init__()
        self.record = record

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "call")
        return self.record.call(name, lambda: func(*args, **kwargs), (*args, *kwargs.values()))


@dataclass
class _Record:
    """Operators and storages so far, and what each node of the graph holds.

    `alive` keeps the storages, so that no other one takes an address.
    """

    operators: list[Operator] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    gradients: list[int] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    alive: list[Any] = field(default_factory=list)
    nodes: dict[Any, tuple[int, ...]] = field(default_factory=dict)
    products: _Products = field(default_factory=_Products)
    inside: bool = False

    def number(self, tensor: Tensor) -> int:
        """Number of a tensor's storage."""
        storage = tensor.untyped_storage()
        found = self.numbers.get(storage._cdata)
        if found is None:
            found = self.numbers[storage._cdata] = len(self.sizes)
            self.alive.append(tensor)
            self.sizes.append(rounded(storage.nbytes()))
            self.gradients.append(0)
        if tensor.requires_grad and tensor.is_floating_point():
            self.gradients[found] = self.sizes[found]
        return found

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Region whose operators are recorded."""
        apply = torch.autograd.Function.__dict__["apply"]
        record = self

        def recorded(function: Any, *args: Any, **kwargs: Any) -> Any:
            run = apply.__get__(None, function)
            return record.call(function.__name__, lambda: run(*args, **kwargs), args, function)

        torch.autograd.Function.apply = classmethod(recorded)  # type: ignore[method-assign,assignment]
        try:
            with self.products, _Calls(self):
                yield
        finally:
            torch.autograd.Function.apply = apply  # type: ignore[method-assign]

    def call(self, name: str, run: Callable[[], Any], given: Iterable[Any], function: Any = None) -> Any:
        """Run an operator and record it, unless it is part of another one."""
        if self.inside:
            return run()
        self.inside, before = True, self.products.flops
        try:
            out = run()
        finally:
            self.inside = False
        given = list(given)
        inputs = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        if not outputs:
            return out
        self._add(name, inputs, outputs, _work(function, given, inputs, outputs, self.products.flops - before))
        return out

    def _add(self, name: str, inputs: list[Tensor], outputs: list[Tensor], work: OperatorWork) -> None:
        known = len(self.sizes)
        read = tuple(dict.fromkeys(self.number(tensor) for tensor in inputs))
        known = max(known, len(self.sizes))
        made = tuple(dict.fromkeys(self.number(tensor) for tensor in outputs))
        saves = self._saved(outputs)
        new = tuple(sorted({tensor for tensor in (*made, *saves) if tensor >= known}))
        if new or saves:
            self.operators.append(Operator(name, read, new, saves, work=work))
        elif name == "Bias":  # it writes into the result of the GEMM in front
            place = next(place for place, one in enumerate(self.operators) if made[0] in one.outputs)
            one = self.operators[place]
            self.operators[place] = replace(one, name=f"{one.name}+{name}", work=one.work.with_traffic(work))

    def _saved(self, outputs: list[Tensor]) -> tuple[int, ...]:
        """What the nodes of the graph that are new with some results hold."""
        saved: dict[int, None] = {}
        for node in _behind(outputs, self.nodes):
            self.nodes[node] = tuple(dict.fromkeys(self.number(tensor) for tensor in _saved_by(node)))
            saved |= dict.fromkeys(self.nodes[node])
        return tuple(saved)

    def graph(self, result: Tensor) -> LayerGraph:
        """The layer as recorded; what the backward of its result does not need is freed at once."""
        needed = {tensor for node in _behind([result], {}) for tensor in self.nodes[node]}
        for place, one in enumerate(self.operators):
            self.operators[place] = replace(one, saves=tuple(tensor for tensor in one.saves if tensor in needed))
        mib = [tuple(size / MIB for size in each) for each in (self.sizes, self.gradients)]
        return LayerGraph(tuple(self.operators), mib[0], mib[1])


def _behind(results: list[Tensor], known: Container[Any]) -> Iterator[Any]:
    """Nodes of the graph behind some results, but for known ones and those behind these."""
    open_ones, seen = [tensor.grad_fn for tensor in results], set()
    while open_ones:
        node = open_ones.pop()
        if node is not None and node not in seen and node not in known:
            seen.add(node)
            open_ones += [before for before, _ in node.next_functions]
            yield node


def _saved_by(node: Any) -> Iterator[Tensor]:
    """Tensors that a node of the graph holds for its backward."""
    if hasattr(node, "saved_tensors"):
        yield from (tensor for tensor in node.saved_tensors if tensor is not None)
        return
    for name in dir(node):
        if name.startswith("_saved_"):
            yield from (leaf for leaf in tree_leaves(getattr(node, name)) if isinstance(leaf, Tensor))


def _work(function: Any, given: list[Any], inputs: list[Tensor], outputs: list[Tensor], flops: float) -> OperatorWork:
    weights = sum(math.prod(each.shape) * each.site.dtype.itemsize for each in given if isinstance(each, Weight))
    read = weights + sum(tensor.numel() * tensor.element_size() for tensor in inputs)
    written = sum(tensor.numel() * tensor.element_size() for tensor in outputs)
    gathers = int(function in (Gather, Scatter))
    if function is Linear:
        gathers = sum(way > 1 for way in given[3:5])
    return OperatorWork(_group(function), flops, float(read), float(written), gathers)


def _group(function: Any) -> str:
    if function is Exchange:
        return EXCHANGE
    if function is GroupedLinear:
        return GROUPED
    if function is None or function is SplitFeatures:
        return PLAIN
    return CORE if function.__module__.rpartition(".")[2] in _CORES else PLAIN
