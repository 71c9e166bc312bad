"""One layer alone: memory kept for backward and needed for a moment, to compare with the analytical model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.dryrun.torch_stage.counter import LiveCounter
from taylor.dryrun.torch_stage.kernels import GradientQueue
from taylor.dryrun.torch_stage.layers import TransformerLayer
from taylor.dryrun.torch_stage.site import Site
from taylor.register.model import ModelSpec


@dataclass(frozen=True)
class ProbedLayer:
    """Bytes of one layer and micro-batch.

    Parameters
    ----------
    kept : int
        Alive between forward and backward, with the layer's input and without its output.
    forward, backward : int
        Most that was alive at once during forward, and during backward, beyond `kept` at its end (forward)
        or its beginning (backward), without the output or its gradient.
    """

    kept: int
    forward: int
    backward: int


def layer_memory(model: ModelSpec, kind: str, mode: str, strategy: Strategy, rules: TrainingRules) -> ProbedLayer:
    """Run one layer forward and backward on fake tensors.

    Raises
    ------
    RuntimeError
        When something outlives the backward.
    """
    site = Site(model, strategy, rules)
    counter = LiveCounter()
    with FakeTensorMode(), counter:
        layer = TransformerLayer(site, GradientQueue(), model.layer(kind), mode)
        for weight in layer.weights():
            # FSDP's gathered weights are not the layer's activations.
            if weight.tensor is None:
                weight.tensor = torch.empty(weight.shape, dtype=site.dtype)
            # Nor are gradients that come with the backward.
            weight.make_gradient()
        states = counter.total
        x = torch.empty((site.shard_tokens, model.hidden), dtype=site.residual_dtype, requires_grad=True)
        boundary = counter.total - states
        counter.start_window()
        y = layer(x)
        edge = torch.autograd.graph.get_gradient_edge(y)
        forward = counter.window_peak - counter.total
        gradient = torch.empty_like(y)
        del y
        kept = counter.total - states - boundary
        counter.start_window()
        torch.autograd.backward(edge, gradient)
        backward = counter.window_peak - states - boundary - kept
        del gradient, edge
        pending = sum(w.pending.untyped_storage().nbytes() for w in layer.weights() if w.pending is not None)
        left = counter.total - states - 2 * boundary - pending
        if left > 512 * len(layer.weights()):
            raise RuntimeError(f"{left} bytes outlive the backward of a {kind} layer")
    return ProbedLayer(kept, forward, backward)
