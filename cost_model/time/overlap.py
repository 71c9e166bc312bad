"""Exposed time of a step's collectives where a flag overlaps them with computation; scalars and arrays alike.

A collective overlaps with the computation beside it; exposed are the part that outlasts it and the slow-down of the
computation.
"""

from __future__ import annotations

import numpy as np

from taylor.cost_model.job.strategy_table import Degrees, Quantity

SLOWED_BESIDE = 0.126
"""Fraction of a collective by which the computation beside it takes longer: on eight A100, backward beside an
all-reduce takes 1.126 times as long (PKU-DAIR/Hetu-Galvatron, ``overlap_coefficient.json`` of its LLaMA2-7B
profiles)."""

_BUCKET = 40_000_000
"""Parameters of a bucket at the least (Megatron-LM d98e8a64 core/distributed/distributed_data_parallel.py:133)."""
_BUCKET_A_RANK = 1_000_000
"""The same a rank of the group (likewise)."""


def buckets(parameters: Quantity, ranks: Quantity) -> Quantity:
    """Number of buckets of a stage's gradients, each of which is a collective for itself.

    Parameters
    ----------
    parameters : count
        Parameters of the stage.
    ranks : count
        Of the group that reduces.
    """
    return np.ceil(np.maximum(parameters / np.maximum(_BUCKET, _BUCKET_A_RANK * ranks), 1))


def shown_beside(
    transfer: Quantity, beside: Quantity, degrees: Degrees, parameters: Quantity, ranks: Quantity
) -> Quantity:
    """Exposed time of a stage's gradient reduction (or weight gathering) in a step, ms.

    Gradients go bucket by bucket in the backward of the last micro-batch (weights in the forward of the first):
    Megatron-LM d98e8a64 megatron/core/distributed/param_and_grad_buffer.py:681. The last bucket (the first) has nothing
    beside it; it holds 40 million parameters or one million a rank of the group, whichever is more
    (distributed_data_parallel.py:133). Chunks of an interleaved pipeline come to their last micro-batch one after the
    other, pp micro-batches apart, so that only the last one's transfers have no other chunk's work beside them.

    Parameters
    ----------
    transfer : ms
        All of the stage's transfers, with nothing beside them.
    beside : ms
        Backward (or forward) of one micro-batch through the stage.
    parameters : count
        Parameters of the stage.
    ranks : count
        Of the group that reduces.
    """
    vpp = degrees.vpp
    bucket = np.maximum(_BUCKET, _BUCKET_A_RANK * ranks) / np.maximum(parameters, 1)
    of_chunk = (transfer - beside) / vpp
    of_stage = transfer - beside * (1 + degrees.pp * (vpp - 1)) / vpp
    return np.maximum(np.maximum(of_chunk, of_stage), transfer * np.minimum(bucket, 1 / vpp))


def shown_behind(transfer: Quantity, work: Quantity, slowed: float = SLOWED_BESIDE) -> Quantity:
    """Exposed time of a transfer beside work: what outlasts the work, and what the work takes longer, ms."""
    return np.maximum(transfer - work, 0) + slowed * np.minimum(transfer, work)


def shown_in_rings(transfer: Quantity, products: Quantity, degrees: Degrees) -> Quantity:
    """Exposed time of a layer's tensor-parallel transfers that run piece by piece beside GEMMs, ms.

    As many pieces as ranks, the first (or last) with nothing beside it: TransformerEngine d0067d0
    transformer_engine/pytorch/module/base.py:387 (``num_splits`` of a ring exchange).
    """
    outlasting = np.maximum(transfer - products, transfer / degrees.tp)
    return outlasting + SLOWED_BESIDE * (transfer - outlasting)
