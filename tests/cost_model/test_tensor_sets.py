"""Choices by saved tensor: the front of a layer's sets is that of every set there is, run backward one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.tensor_sets import AGAIN, KEEP, difference, run_backward
from taylor.cost_model.choices.layer_graph import LayerGraph, Operator
from taylor.cost_model.choices.tensor_sets import LayerTimes, tensor_front

CHAIN = LayerGraph(
    (
        Operator("norm", (0,), (1,), (0,), 1.0),
        Operator("up", (1,), (2,), (1,), 10.0),
        Operator("act", (2,), (3,), (2,), 1.0),
        Operator("down", (3,), (4,), (3,), 10.0),
    ),
    (4.0, 4.0, 16.0, 16.0, 4.0),
    (0.0,) * 5,
)
"""A norm, a GEMM, an activation function and a GEMM, each of which saves its input."""


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_the_front_of_a_random_layer_is_that_of_all_its_sets(count: int) -> None:
    assert [text for number in range(count) if (text := difference(number, 7))] == []


def test_what_is_cheap_to_make_again_goes_first() -> None:
    front = tensor_front(CHAIN, LayerTimes(30.0, 60.0, None))
    found = [(one.added_ms, one.kept_mib, one.again) for one in front]
    assert found[:3] == [(0.0, 40.0, ()), (1.0, 24.0, (3,)), (2.0, 20.0, (1, 3))]
    assert front[-1].kept_mib == CHAIN.entering_mib and front[-1].again == (1, 2, 3)


def test_a_transfer_that_a_layer_overlaps_adds_no_time() -> None:
    fast = tensor_front(CHAIN, LayerTimes(30.0, 60.0, 40.0 / 30.0))
    assert [(one.added_ms, one.kept_mib, one.host_mib) for one in fast] == [(0.0, 0.0, 40.0)]
    slow = tensor_front(CHAIN, LayerTimes(30.0, 60.0, 0.5))
    assert (slow[0].added_ms, slow[0].host_mib) == (0.0, 8.0)  # of 4, 4, 16 and 16 MiB no sum is nearer to 15
    assert all(a.kept_mib > b.kept_mib and a.added_ms < b.added_ms for a, b in itertools.pairwise(slow))


def test_a_tensor_that_nothing_saves_is_made_again_on_the_way() -> None:
    graph = LayerGraph(
        (
            Operator("first", (0,), (1,), (0,), 3.0),
            Operator("second", (1,), (2,), (), 5.0),
            Operator("third", (2,), (3,), (3,), 7.0),
        ),
        (1.0, 0.0, 0.0, 8.0),
        (0.0,) * 4,
    )
    assert [(one.added_ms, one.kept_mib) for one in tensor_front(graph, LayerTimes(9.0, 9.0, None))] == [
        (0.0, 9.0),
        (15.0, 1.0),
    ]


def test_a_set_that_needs_more_than_the_workspace_at_some_point_is_left_out() -> None:
    # Making the last tensor again takes one of 50 MiB, for which nothing that full recompute needs leaves a place.
    sizes, operators = (1.0, 50.0, 8.0), (
        Operator("wide", (0,), (1,), (0,), 1.0),
        Operator("narrow", (1,), (2,), (2,), 1.0),
    )  # fmt: skip
    graph = LayerGraph(operators, sizes, (0.0, 0.0, 0.0))
    assert [one.again for one in tensor_front(graph, LayerTimes(9.0, 9.0, None))] == [()]
    found = run_backward(graph, {0: KEEP, 2: AGAIN})
    assert found is not None and found[0] == 2.0 and not found[1]
    roomy = LayerGraph(operators, sizes, (60.0, 0.0, 0.0))
    assert [one.again for one in tensor_front(roomy, LayerTimes(9.0, 9.0, None))] == [(), (2,)]


def test_a_graph_whose_operators_read_later_tensors_is_refused() -> None:
    with pytest.raises(ValueError, match="reads a tensor before it is made"):
        LayerGraph((Operator("a", (2,), (1,), ()), Operator("b", (1,), (2,), ())), (1.0,) * 3, (0.0,) * 3)


def test_the_most_on_the_host_within_a_time_is_what_its_time_says() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        times = LayerTimes(float(rng.uniform(1, 9)), float(rng.uniform(1, 9)), float(rng.uniform(0.2, 3)))
        again, host = rng.uniform(0, 5, 4), rng.uniform(0, 60, 4)
        ahead, behind = times.added(again, host)
        shown = np.add(ahead, behind)
        most = times.most_host(again, shown)
        free = shown <= again + 1e-9
        assert np.all(most >= host - 1e-6) and np.allclose(most[~free], host[~free])
