"""The strategies that a search looks at."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.layerwise.space import SpaceLimits

flags = st.booleans()


@given(
    st.integers(1, 48), flags, flags, flags, flags, flags, flags, st.sampled_from([(2, 3), (0, 3), (0, 2, 3)]),
    st.none() | st.integers(1, 8),
)  # fmt: skip
def test_every_strategy_fills_its_stage_and_keeps_what_was_disabled_out(
    ranks, no_tp, no_sp, no_cp, no_recompute, no_sharding, every, zeros, most
):
    space = SpaceLimits(
        disable_tp=no_tp, disable_sp=no_sp, disable_cp=no_cp, disable_recompute=no_recompute,
        disable_sharding=no_sharding, all_degrees=every, zeros=zeros, most_tp=most,
    )  # fmt: skip
    try:
        found = space.layers(ranks)
    except InputError:
        assert not every
        return
    assert list(found) == sorted(set(found))
    for each in found:
        assert each.ranks == ranks
        assert each.tp <= (1 if no_tp else most or ranks)
        assert not (no_sp and each.sp > 1) and not (no_cp and each.cp > 1)
        assert not (no_recompute and each.recompute) and not (no_sharding and each.zero == 3)
        assert each.dp > 1 or each.zero == 0


def test_degrees_need_not_be_powers_of_two():
    found = SpaceLimits(all_degrees=True).layers(6)
    assert {each.tp for each in found} == {1, 2, 3, 6}
    assert {each.tp for each in SpaceLimits().layers(6)} == {1, 2}


def test_a_space_without_a_strategy_says_so():
    with pytest.raises(InputError, match="no strategy"):
        SpaceLimits(disable_dp=True, disable_tp=True, disable_sp=True).layers(4)
