"""Time of collectives by volume, group size and the link that the group spans; scalars and arrays alike.

Ring costs: an all-gather or reduce-scatter of N bytes among g ranks moves (g−1)/g·N over the slowest
link, an all-reduce twice that (Thakur et al. 2005, doi:10.1177/1094342005051521 §4); an all-to-all moves (g−1)/g of
what a rank holds, the part for other nodes over the network. Latencies of NCCL's rings and trees:
`cost_model.network.nccl`; other libraries take one start-up time for every doubling of the ranks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from taylor.cost_model.job.strategy_table import Quantity
from taylor.cost_model.network import nccl
from taylor.register.device import DeviceSpec


def in_node_bandwidth(group: Quantity, device: DeviceSpec) -> Quantity:
    """GB/s a rank reaches in a group inside one node; in a full mesh only the links among the group's cards count."""
    if not device.full_mesh:
        return device.intra_node_gb_s * np.ones_like(group, dtype=float)
    peers: Quantity = np.minimum(group, device.devices_per_node) - 1
    return device.intra_node_gb_s * np.maximum(peers, 1) / max(1, device.devices_per_node - 1)


def _between_domains(device: DeviceSpec, used: Quantity) -> float:
    """GB/s of the network between domains; infinite where nothing is sent over it, so that it may be unknown."""
    return device.inter_node_gb_s if device.fabric is not None or np.any(used) else math.inf


def ring_bandwidth(group: Quantity, stride: Quantity, device: DeviceSpec) -> Quantity:
    """GB/s of a ring over ranks that lie `stride` apart.

    A ring that leaves the node enters and leaves it once for all its ranks there, over all their
    network ports together, but no faster than inside.
    """
    local = np.clip(device.devices_per_node // np.maximum(stride, 1), 1, group)
    inside = in_node_bandwidth(local, device)
    crosses = np.greater(group * stride, device.devices_per_node)
    return np.where(crosses, np.minimum(inside, _between_domains(device, crosses) * local), inside)


def gather_ms(volume_bytes: Quantity, group: Quantity, stride: Quantity, device: DeviceSpec, share: float) -> Quantity:
    """Time of an all-gather or reduce-scatter whose full size is `volume_bytes`, ms.

    Parameters
    ----------
    share : float
        Efficiency of the link, (0, 1].
    """
    moved = volume_bytes * (group - 1) / group
    if device.collectives == nccl.LIBRARY:
        speed = _nccl_bandwidth(group, stride, device, share)
        return nccl.gather_ms(moved, speed, group, _nodes(group, stride, device))
    steps = np.ceil(np.log2(np.maximum(group, 1)))
    return moved / (ring_bandwidth(group, stride, device) * share * 1e6) + steps * device.link_latency_us * 1e-3


def all_reduce_ms(
    volume_bytes: Quantity, group: Quantity, stride: Quantity, device: DeviceSpec, share: float
) -> Quantity:
    """Time of an all-reduce of `volume_bytes`, ms: a reduce-scatter and an all-gather, or one of NCCL's trees."""
    if device.collectives == nccl.LIBRARY:
        moved = 2 * volume_bytes * (group - 1) / group
        nodes = _nodes(group, stride, device)
        speed = _nccl_bandwidth(group, stride, device, share)
        speed = speed * np.where(np.equal(nodes, 1), nccl.NODE_ALL_REDUCE, 1.0)
        return nccl.all_reduce_ms(moved, speed, group, nodes)
    return 2 * gather_ms(volume_bytes, group, stride, device, share)


def _nccl_bandwidth(group: Quantity, stride: Quantity, device: DeviceSpec, share: float) -> Quantity:
    """`ring_bandwidth` as measured: a fraction of it, less for few ranks of a node, more between nodes."""
    local = np.clip(device.devices_per_node // np.maximum(stride, 1), 1, group)
    inside = in_node_bandwidth(local, device)
    crosses = np.greater(_nodes(group, stride, device), 1)
    between = _between_domains(device, crosses) * local * min(1.0, share * nccl.FAR)
    return np.where(crosses, np.minimum(inside * share, between), inside * share * nccl.small_group(group))


def _nodes(group: Quantity, stride: Quantity, device: DeviceSpec) -> Quantity:
    """Domains of fast links that a group of ranks `stride` apart lies in."""
    nodes: Quantity = np.ceil(group / np.clip(device.devices_per_node // np.maximum(stride, 1), 1, group))
    return nodes


def hops_ms(block_bytes: Quantity, group: Quantity, stride: Quantity, device: DeviceSpec, share: float) -> Quantity:
    """Time in which blocks of all ranks go from neighbour to neighbour round a ring, ms.

    Unlike an all-gather a hop sends to one rank alone, in a full mesh over the one link to it.
    """
    in_node = np.less_equal(group * stride, device.devices_per_node)
    one_link = in_node_bandwidth(np.minimum(group, 2), device) * share * 1e6
    whole = block_bytes * group
    alone = block_bytes * (group - 1) / one_link + np.maximum(group - 1, 0) * device.link_latency_us * 1e-3
    return np.where(in_node & device.full_mesh, alone, gather_ms(whole, group, stride, device, share))


class Copies(NamedTuple):
    """Distribution of one row's copies over the ranks of an all-to-all.

    Parameters
    ----------
    number : float
        Copies of a row.
    groups, chosen : int
        The ranks form `groups` equal groups, and all copies of a row go to `chosen` of them, drawn at random.
    """

    number: float
    groups: int = 1
    chosen: int = 1

    def reached(self, parts: Quantity) -> Quantity:
        """Number of equal parts of the ranks that a row's copies reach, on average."""
        whole = np.maximum(self.chosen * parts / self.groups, 1)
        # Where a part holds several groups, those that are chosen can lie in the same one.
        expected = parts * (1 - (1 - 1 / parts) ** self.chosen)
        open_to = np.where(np.greater_equal(parts, self.groups), whole, expected)
        return open_to * (1 - (1 - 1 / open_to) ** self.number)


def all_to_all_ms(
    volume_bytes: Quantity,
    group: Quantity,
    stride: Quantity,
    device: DeviceSpec,
    share: float,
    copies: Copies | None = None,
    far_share: float | None = None,
) -> Quantity:
    """Time of an all-to-all in which every rank sends `volume_bytes` in all, ms.

    Parameters
    ----------
    copies : Copies, optional
        The rows are copies, and a row goes to another node once, however many ranks there want it, and to each of those
        once, however many of its copies are for it. Without it each copy travels alone.
    far_share : float, optional
        Efficiency of the network between domains, where it is another one than that of the links inside.
    """
    local = np.clip(device.devices_per_node // np.maximum(stride, 1), 1, group)
    nodes = group / local
    inside, outside = (local - 1) / group, (group - local) / group
    if copies is not None:
        # Nodes and ranks that a row reaches, over its copies; what arrives goes on inside to all but one rank.
        inside = (local - 1) / local * copies.reached(group) / copies.number
        outside = (nodes - 1) / nodes * copies.reached(nodes) / copies.number
    if far_share is None:
        far_share = min(1.0, share * nccl.FAR) if device.collectives == nccl.LIBRARY else share
    between = _between_domains(device, outside > 0) * far_share
    slowest: Quantity = np.maximum(inside / (in_node_bandwidth(local, device) * share), outside / between)
    steps = np.ceil(np.log2(np.maximum(group, 1)))
    return volume_bytes * slowest / 1e6 + steps * device.link_latency_us * 1e-3


def send_ms(volume_bytes: Quantity, distance: Quantity, device: DeviceSpec, share: float) -> Quantity:
    """Time to hand `volume_bytes` to a rank that lies `distance` ranks away, ms."""
    near = in_node_bandwidth(2, device)
    far = np.greater_equal(distance, device.devices_per_node)
    speed = np.where(far, _between_domains(device, far), near)
    return volume_bytes / (speed * share * 1e6) + device.link_latency_us * 1e-3
