"""Memory that torch's allocator reserves beyond the tensors of a stage's peak; scalars and arrays alike.

The allocator (pytorch 001074d2 c10/cuda/CUDACachingAllocator.cpp) returns a freed block to the pool of the stream that
asked for it, and serves no other stream from there; it gives nothing back to the card before an allocation fails. So a
job reserves the sum of its streams' peaks, which need not be at one time. FSDP (torch 2.13
torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py) has three with memory of their own:

- the computation's: states, activations, gathered weights as GEMMs take them, gradients on their way;
- that which copies shards in to be gathered (:336-350): one buffer for a group of parameters, two of which are alive
  while the next group is gathered beside the present one, and the shards in the type that is gathered (:415-423);
- that which scatters gradients (:611-616): a gradient's shard lies there from its reduction to the next step's
  ``zero_grad``, and its memory waits there through the next forward.

In the computation's pool a block serves smaller requests: best fit, split, and merged with free neighbours. So the
backward finds its memory in what the loss left. The loss does not find its own in what the layers' forward left,
gathered weights and the inner tensors of an MLP: every tensor of the loss is larger. And of a loss in single operations
the logits in 16 bits, freed before its backward, are smaller than every later tensor of it.

That nothing of the forward's memory serves the loss is assumed. Without ``expandable_segments`` no two segments merge,
and it is so; with them, as torchtitan's launch script sets them, the kept activations between the free blocks decide.
torchtitan's published jobs reserve as much as is counted here, ranks simulated on one card (`benchmarks.card_runs`) 0
to 4 GiB less.

Sizes are rounded: a tensor to 512 bytes, a pool of large ones to pages of 20 MiB, one of small ones to 2 MiB.

``torch.cuda.max_memory_allocated`` compares with the allocated peak, ``max_memory_reserved`` with the reserved one, and
the card's own count (nvidia-smi) with that and the CUDA context and the buffers of NCCL, which the allocator knows
nothing of (`statics.overhead_mib`). A job that runs short gives cached blocks back and tries again, at the cost of
time: it may run, slowly, with less than it reserves on a larger card.
"""

from __future__ import annotations

import numpy as np

from taylor.cost_model.job.strategy_table import Quantity

MIB = 2**20
POOLS = 3
"""Streams with memory of their own."""
PAGE_BYTES = (20 + 2) * MIB
"""Last pages of a stream's two pools: ``kLargeBuffer``, ``kSmallBuffer``. They are counted whole."""


def gather_pool_bytes(layer: Quantity, end: Quantity, cast: Quantity) -> Quantity:
    """The pool of gathered buffers: a layer's, beside the next layer's or that of embedding or head.

    Parameters
    ----------
    layer, end : scalar or array [n]
        Bytes of a layer's, and of the larger end's, parameters as they are gathered; 0 for an end that the stage lacks.
    cast : scalar or array [n]
        The part of them that a rank casts first: one of its shards; 0 where they are stored as they are gathered.
    """
    return (layer + np.maximum(layer, end)) * (1 + cast)


def passing_bytes(tokens: Quantity, width: Quantity, slots: Quantity, expert_width: Quantity, element: int) -> Quantity:
    """Inner tensors of a gated MLP's forward that are alive at once: gate, up and their product.

    Parameters
    ----------
    tokens, slots : scalar or array [n]
        Tokens of a rank, and expert slots of one.
    width, expert_width : scalar or array [n]
        Inner widths of the dense MLP, or the shared experts, and of a routed expert on a rank.
    element : int
        Bytes of an element.
    """
    return _INNER_TENSORS * element * tokens * np.maximum(width, slots * expert_width)


_INNER_TENSORS = 3
"""Tensors of an MLP's width that are alive together: gate, up and their product."""


def beside_the_peak(at_loss: Quantity, behind: Quantity, dropped: Quantity, counted: Quantity) -> Quantity:
    """Bytes by which the computation's pool is larger than what is counted at the last stage's peak; may be negative.

    It is negative where gradients that lie in another pool are counted there.

    Parameters
    ----------
    at_loss, behind : scalar or array [n]
        Its tensors at the loss, and in the backward behind it, beside states and activations.
    dropped : scalar or array [n]
        What the forward and the loss left and no tensor of the loss's backward fits in.
    counted : scalar or array [n]
        What the allocated peak has beside states and activations.
    """
    return np.maximum(at_loss + dropped, behind) - counted
