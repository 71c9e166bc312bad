"""The least world size of a job is the least number that its framework's own checks let start."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from taylor.cost_model.job.ranks import (
    least_multiple,
    megatron_products,
    megatron_unit,
    nearest_multiples,
    torchtitan_shards,
)

DEGREES = st.integers(1, 6)


@given(DEGREES, DEGREES, DEGREES, DEGREES, DEGREES)
def test_megatron_starts_on_the_unit_and_on_nothing_below(tp: int, pp: int, cp: int, ep: int, expert_tp: int) -> None:
    def starts(world: int) -> bool:  # core_v0.16.0 megatron/core/parallel_state.py:740, :792
        return world % (tp * pp * cp) == 0 and world % (expert_tp * ep * pp) == 0

    unit = megatron_unit(tp, pp, cp, ep, expert_tp)
    assert next(filter(starts, count(1))) == unit and starts(3 * unit)


@given(DEGREES, DEGREES, DEGREES, DEGREES)
def test_torchtitan_starts_with_the_least_shards_and_none_below(tp: int, cp: int, ep: int, expert_tp: int) -> None:
    def starts(shards: int) -> bool:  # v0.2.2 torchtitan/distributed/parallel_dims.py:58-70
        return (shards * cp * tp) % (ep * expert_tp) == 0

    assert next(filter(starts, count(1))) == torchtitan_shards(tp, cp, ep, expert_tp)


@given(st.integers(1, 40), st.integers(1, 400))
def test_the_nearest_legal_values_are_the_multiples_on_either_side(unit: int, world: int) -> None:
    near = nearest_multiples(unit, world)
    assert all(value > 0 and value % unit == 0 and abs(value - world) < unit for value in near)
    assert len(near) == (1 if world % unit == 0 or world < unit else 2)


def test_nodes_are_filled_and_products_that_add_nothing_are_not_named() -> None:
    assert least_multiple(12, 8) == 24 and least_multiple(12, None) == 12
    assert megatron_products(2, 2, 1, 1, 2) == "TP x PP x CP = 4"
    assert megatron_products(1, 2, 1, 4) == "TP x PP x CP = 2 and EP x ETP x PP = 8"
