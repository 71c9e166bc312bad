"""NCCL's collectives, checked against its own formula worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from taylor.cost_model.network import nccl
from taylor.cost_model.network.collectives import all_reduce_ms, gather_ms
from taylor.register.registry import Registry

H100 = Registry.load().device("h100-80g")
ASCEND = Registry.load().device("ascend-910b")


def test_a_tiny_all_gather_inside_a_node_costs_the_start_and_seven_hops_of_ll() -> None:
    assert float(gather_ms(8, 8, 1, H100, 1.0)) == pytest.approx(1e-3 * (6.6 + 7 * 0.6), rel=1e-3)


def test_a_ring_with_one_rank_a_node_hops_over_the_network_alone() -> None:
    tiny = float(gather_ms(64, 64, 8, H100, 1.0))
    ring, pat = 6.6 + 63 * 5.0, 8.0 + 6 * 14 / 3.5 + 64 * 2.8
    assert tiny == pytest.approx(1e-3 * min(ring, pat), rel=1e-3)


def test_hops_inside_a_node_are_cheaper_than_those_between_nodes() -> None:
    # 16 ranks in two nodes: 14 hops inside, at the network's overhead of 1 us, and one between them.
    assert float(gather_ms(16, 16, 1, H100, 1.0)) == pytest.approx(1e-3 * (6.6 + 14 * 1.0 + 2.7), rel=1e-3)


def test_a_large_gather_takes_the_time_of_its_bytes_and_of_its_hops() -> None:
    for volume in (256e6, 4e9):
        moved = volume * 127 / 128 / 50e3
        simple, ll128 = 8.4 + 127 * 14 + moved, 14 + 127 * 8.5 + moved / 0.92
        assert (ll128 < simple) == (volume < 1e9)
        assert float(gather_ms(volume, 128, 8, H100, 1.0)) == pytest.approx(1e-3 * min(simple, ll128))


def test_latency_grows_with_the_ring_and_not_with_its_logarithm() -> None:
    ranks = np.array([8, 64, 512])
    times = np.asarray(gather_ms(2e10, ranks, 8, H100, 1.0))
    moved = 2e10 * (ranks - 1) / ranks / 50e6
    assert times - moved == pytest.approx(1e-3 * (8.4 + (ranks - 1) * 14))


def test_small_all_reduces_of_many_nodes_go_by_trees() -> None:
    ring = 6.6 + 2 * 511 * 5.0
    tree = 6.8 + 2 * 9 * 5.0
    assert tree < ring
    assert float(all_reduce_ms(8, 512, 8, H100, 1.0)) == pytest.approx(1e-3 * tree, rel=1e-2)


def test_measured_gathers_inside_a_node_are_met() -> None:
    """Means of all-gather and reduce-scatter of 512 MiB, ms: nccl-tests in ai-dynamo/aiconfigurator 095f58a5."""
    measured = {
        ("a100-80g", 2): 1.701, ("a100-80g", 4): 2.042, ("a100-80g", 8): 2.247,
        ("h100-80g", 2): 1.059, ("h100-80g", 4): 1.284, ("h100-80g", 8): 1.401,
        ("b200-180g", 2): 0.632, ("b200-180g", 4): 0.720, ("b200-180g", 8): 0.764,
    }  # fmt: skip
    for (name, ranks), time in measured.items():
        device = Registry.load().device(name)
        found = float(gather_ms(2**29, ranks, 1, device, device.efficiency["network"]))
        assert found == pytest.approx(time, rel=0.1), (name, ranks)


def test_an_all_reduce_inside_a_node_is_faster_than_its_halves() -> None:
    for ranks in (2, 4, 8):
        assert float(all_reduce_ms(1e9, ranks, 1, H100, 0.7)) < 2 * float(gather_ms(1e9, ranks, 1, H100, 0.7))


def test_a_group_of_one_moves_nothing() -> None:
    for collective in (gather_ms, all_reduce_ms):
        assert float(collective(1e9, 1, 1, H100, 1.0)) == 0


def test_other_libraries_take_a_start_for_every_doubling() -> None:
    assert ASCEND.collectives != nccl.LIBRARY
    start = 1e-3 * ASCEND.link_latency_us
    assert float(gather_ms(0, 64, 8, ASCEND, 1.0)) == pytest.approx(6 * start)
    assert float(all_reduce_ms(0, 64, 8, ASCEND, 1.0)) == pytest.approx(12 * start)


def test_arrays_cost_what_their_entries_do() -> None:
    groups, strides = np.array([1, 2, 8, 16, 64]), np.array([1, 4, 1, 1, 8])
    for collective in (gather_ms, all_reduce_ms):
        together = np.asarray(collective(1e7, groups, strides, H100, 0.7))
        alone = [float(collective(1e7, int(g), int(s), H100, 0.7)) for g, s in zip(groups, strides, strict=True)]
        assert together == pytest.approx(alone)
