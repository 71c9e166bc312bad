"""What a training device offers: memory, speed, links."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping


@dataclass(frozen=True)
class DeviceSpec:
    """One accelerator and the links around it.

    Parameters
    ----------
    memory_mib : int
        Physical device memory, MiB.
    usable_memory_mib : int
        What a training job can allocate by default, MiB (a file's own limit goes before it).
    peak_bf16_tflops : float
        Dense bf16 matrix peak, TFLOP/s.
    memory_gb_s : float
        Device memory bandwidth, GB/s (1e9 bytes).
    intra_node_gb_s, inter_node_gb_s : float
        Bandwidth of one device to its peers in the node and across nodes, one direction, GB/s.
    devices_per_node : int
        Cards a node; a supernode counts as one node when its fabric is uniform.
    link_latency_us : float
        Start-up time of a collective step, µs.
    efficiency : mapping
        Fitted shares of the peak by kernel group (``matmul``, ``grouped_matmul``, ``attention``,
        ``memory``, ``network``, …), written by the calibration script; never inside a formula.
    full_mesh : bool
        Whether the cards of a node are wired pair by pair: a group of g then reaches only
        (g − 1) / (devices_per_node − 1) of `intra_node_gb_s`. Off for switched fabrics.
    source : str
        Where the figures come from.
    """

    name: str
    memory_mib: int
    usable_memory_mib: int
    peak_bf16_tflops: float
    memory_gb_s: float
    intra_node_gb_s: float
    inter_node_gb_s: float
    devices_per_node: int
    link_latency_us: float = 10.0
    efficiency: Mapping[str, float] = field(default_factory=dict)
    full_mesh: bool = False
    source: str = ""
