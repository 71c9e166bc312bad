"""Buffers that a rank's communicators have on its device, outside every allocator; scalars and arrays alike.

A library makes a communicator, with its buffers, at the first exchange of a group of ranks, and keeps it.

- *HCCL*: each communicator has two buffers of ``HCCL_BUFFSIZE``, by default 200 MB, one to send and one to receive
  (hiascend.com, CANN 8.0 environment variables, ``HCCL_BUFFSIZE``).
- *NCCL*: each channel has a buffer by protocol for the rank before it in the ring (NVIDIA/nccl 5067397c
  src/init.cc:810-824): simple 4 MiB, LL 512 threads of 8 lines of 16 bytes in 8 steps, LL128 640 threads of 120
  elements of 8 bytes in 8 steps (src/include/device.h:26, 97-98, 114-115). Trees and NVLink's multicast have further
  ones, which are not counted, so that the figure is a lower one. The number of channels is assumed.
"""

from __future__ import annotations

import numpy as np

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.states import replicas
from taylor.cost_model.network.nccl import LIBRARY
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec

MIB = 2**20

HCCL = "hccl"
"""The library's name in a device's ``collectives``."""

HCCL_BUFFERS_MIB = 2 * 200.0
"""Buffers of a communicator of HCCL."""

NCCL_CHANNELS = 16
"""Channels of a communicator of NCCL. Assumed: it chooses 2 to 32 by the links that it finds."""

NCCL_CHANNEL_BYTES = 4 * MIB + 512 * 8 * 8 * 16 + 640 * 120 * 8 * 8
"""Buffers of a channel of NCCL's ring: simple, LL and LL128."""

WHOLE_JOB = 2
"""Communicators of all ranks, or of all of a pipeline stage: the start's barrier and the gradients' norm
(Megatron-LM d98e8a64 megatron/core/parallel_state.py:1558)."""


def communicators(model: ModelSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Number of groups with more than one rank in which a rank exchanges anything during a step.

    Megatron-LM d98e8a64 megatron/core/parallel_state.py: replicas with CP (968), CP (1122), TP (1169), PP (1250), the
    two copies of a tied embedding (1274), EP (1362) and replicas of experts (1462).
    """
    _, _, of_experts = replicas(degrees, rules)
    has_experts = model.n_moe > 0
    sizes = (degrees.dp * degrees.cp, degrees.cp, degrees.tp, degrees.pp, degrees.ep * has_experts)
    count = sum(np.greater(size, 1).astype(int) for size in (*sizes, of_experts * has_experts))
    world = degrees.dp * degrees.cp * degrees.tp * degrees.pp
    tied = model.tied_embedding * np.greater(degrees.pp, 1)
    total: Quantity = count + tied + WHOLE_JOB * np.greater(world, 1)
    return total


def communication_mib(model: ModelSpec, degrees: Degrees, rules: TrainingRules, device: DeviceSpec) -> Quantity:
    """Buffers of all communicators of a rank, MiB; 0 where the library is another than HCCL and NCCL."""
    each = {LIBRARY: NCCL_CHANNELS * NCCL_CHANNEL_BYTES / MIB, HCCL: HCCL_BUFFERS_MIB}
    return communicators(model, degrees, rules) * each.get(device.collectives, 0.0)
