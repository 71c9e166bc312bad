"""Time of NCCL's collectives by algorithm and protocol; scalars and arrays alike.

NCCL adds a latency that grows with the hops of a ring (or the depth of a tree) to the volume over the bandwidth that a
protocol reaches, for every algorithm that it can use, and takes the fastest (NVIDIA/nccl 5067397c src/graph/tuning.cc,
`ncclTopoTuneModel`; its table of constants is `ncclTunerConstantsDefaults`, lines 118-190). Not modelled: the limits of
a channel's bandwidth, NVLS inside a node, CollNet, and the latency that a network card itself reports.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from taylor.cost_model.job.strategy_table import Quantity

LIBRARY = "nccl"
"""Value of `DeviceSpec.collectives` with which these times apply."""


class _Protocol(NamedTuple):
    """Latencies of one algorithm in a protocol, us: of its start, and of a hop over NVLink, to another node beside
    others of the node, and alone on the node; a hop's fixed cost of the network (tuning.cc: `getNetOverhead`); and the
    fraction of the bandwidth that the protocol reaches."""

    start: float
    near: float
    far: float
    far_alone: float
    overhead: float
    bandwidth: float


RING = (
    _Protocol(6.6, 0.6, 2.7, 5.0, 1.0, 0.5),
    _Protocol(14.0, 1.9, 4.0, 8.5, 1.0, 0.92),
    _Protocol(8.4, 3.4, 14.0, 14.0, 3.0, 1.0),
)
"""Rings in the protocols LL, LL128 and Simple (tuning.cc `baseLatencies`, `hwLatencies`). With one rank a node a hop
has the latency of trees."""
TREE = (
    _Protocol(6.8, 0.6, 5.0, 5.0, 0.0, 0.92 / 3.8),
    _Protocol(14.0, 1.25, 8.5, 8.5, 0.0, 0.92 * 0.92),
    _Protocol(8.4, 4.0, 14.0, 14.0, 0.0, 0.92),
)
"""Trees likewise: for all-reduces alone. Inside a node LL128 reaches 7/9 where 120/128 stand here."""
_PAT_START, _PAT_RANK, _PAT_DEPTH, _PAT_BANDWIDTH = 8.0, 2.8, 14.0 / 3.5, 0.75
"""PAT, for all-gathers and reduce-scatters of one rank a node: start, cost of a rank and of a doubling of the nodes,
us; fraction of the bandwidth."""

_SMALL_GROUPS = (0.73, 0.93, 1.0)
"""Fraction of the bandwidth of eight ranks that two, four and eight reach in one node: means of all-gathers and
reduce-scatters of 512 MiB by nccl-tests on A100, H100, H200, B200 and B300 (ai-dynamo/aiconfigurator 095f58a5
aic-core/src/aiconfigurator_core/systems/data/*/comm/nccl/*/nccl_perf.parquet), 0.67 to 0.78 and 0.90 to 0.95."""
NODE_ALL_REDUCE = 1.15
"""Speed of an all-reduce inside a node over that of a reduce-scatter and an all-gather: the same tables, 1.06 (A100,
eight ranks) to 1.35 (H100, eight ranks, whose switches add), 1.10 to 1.25 elsewhere."""
FAR = 1.15
"""Fraction of the bandwidth between nodes over that inside: 0.81 and 0.83 of eight 50 GB/s ports (all-gather and
all-reduce of nccl-tests on 32 H100, aigatech/vpbenchmarking), of a fitted 0.711 inside."""


def small_group(ranks: Quantity) -> Quantity:
    """Fraction of a node's bandwidth that a group of few of its ranks reaches."""
    flat = np.log2(np.clip(ranks, 2, 8))
    fraction: Quantity = np.interp(flat, (1.0, 2.0, 3.0), _SMALL_GROUPS)
    return fraction


def gather_ms(moved_bytes: Quantity, gb_s: Quantity, group: Quantity, nodes: Quantity) -> Quantity:
    """Time of an all-gather or a reduce-scatter, ms.

    Parameters
    ----------
    moved_bytes : bytes
        Sent by each rank: (g − 1)/g of the whole.
    gb_s : GB/s
        Bandwidth of the ring in the protocol Simple.
    group, nodes : count
        Ranks of the group, and domains of fast links that they lie in.
    """
    # A GB/s is 1e3 bytes a us.
    us = moved_bytes / (gb_s * 1e3)
    best = _fastest([_ring_us(each, us, group - 1, nodes - 1, group, nodes) for each in RING])
    depth = np.log2(np.maximum(nodes, 1))
    pat = _PAT_START + depth * _PAT_DEPTH + group * _PAT_RANK + us / _PAT_BANDWIDTH
    best = np.where(np.less(nodes, group), best, np.minimum(best, pat))
    return 1e-3 * np.where(np.greater(group, 1), best, 0.0)


def all_reduce_ms(moved_bytes: Quantity, gb_s: Quantity, group: Quantity, nodes: Quantity) -> Quantity:
    """Time of an all-reduce, ms; parameters as those of `gather_ms`, `moved_bytes` of both halves together."""
    us = moved_bytes / (gb_s * 1e3)
    rings = [_ring_us(each, us, 2 * (group - 1), 2 * (nodes - 1), group, nodes) for each in RING]
    local, depth = group / nodes, np.log2(np.maximum(nodes, 1))
    # A tree moves the whole twice, whatever the number of ranks: tuning.cc halves its bus bandwidth.
    whole = us * group / np.maximum(group - 1, 1)
    trees = [each.start + 2 * ((local - 1) * each.near + depth * each.far) + whole / each.bandwidth for each in TREE]
    return 1e-3 * np.where(np.greater(group, 1), _fastest([*rings, *trees]), 0.0)


def _ring_us(
    protocol: _Protocol, us: Quantity, steps: Quantity, far_steps: Quantity, group: Quantity, nodes: Quantity
) -> Quantity:
    between = np.greater(nodes, 1)
    near = np.where(between, max(protocol.near, protocol.overhead), protocol.near)
    far = np.where(np.less(nodes, group), protocol.far, protocol.far_alone)
    return protocol.start + (steps - far_steps) * near + far_steps * far + us / protocol.bandwidth


def _fastest(times: list[Quantity]) -> Quantity:
    best: Quantity = times[0]
    for each in times[1:]:
        best = np.minimum(best, each)
    return best
