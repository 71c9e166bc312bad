"""The strategies that a search looks at."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.cost_model.measured.layer_strategy import LayerStrategy
from taylor.layerwise.space import SpaceLimits, batch_sizes, divisors

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


def allowed(space: SpaceLimits, ranks: int) -> set[LayerStrategy]:
    """All strategies of a stage, by the words of `SpaceLimits` alone: every combination is tried."""
    numbers = range(1, ranks + 1)
    degrees = [
        n for n in numbers if ranks / n == ranks // n and (space.all_degrees or n in (1, 2, 4, 8, 16, 32, 64))
    ]  # fmt: skip
    found = set()
    for tp, sp, cp, dp in itertools.product(degrees, degrees, degrees, numbers):
        if tp * sp * cp * dp != ranks or (tp > 1 and sp > 1):
            continue
        too_large = (
            tp > (space.most_tp or ranks) or sp > (space.most_sp or ranks) or cp > (space.most_cp or ranks)
            or (space.disable_tp and tp > 1) or (space.disable_sp and sp > 1) or (space.disable_cp and cp > 1)
            or (space.disable_dp and dp > 1) or (tp, sp, cp) in space.barred
        )  # fmt: skip
        if too_large:
            continue
        same = dp * sp * cp if space.by_replicas else dp
        zeros = {0} if same == 1 else {zero for zero in space.zeros if zero < 3 or not space.disable_sharding}
        for zero in zeros:
            found.add(LayerStrategy(tp, sp, cp, dp, zero))
            found |= set() if space.disable_recompute else {LayerStrategy(tp, sp, cp, dp, zero, recompute=True)}
            found |= {LayerStrategy(tp, sp, cp, dp, zero, offload=True)} if space.offload else set()
    return found


degree = st.none() | st.integers(1, 8)


@given(
    st.integers(1, 24),
    st.builds(
        SpaceLimits, disable_dp=flags, disable_tp=flags, disable_sp=flags, disable_cp=flags, disable_recompute=flags,
        disable_sharding=flags, most_tp=degree, most_sp=degree, most_cp=degree,
        zeros=st.sampled_from([(2, 3), (0, 3), (0, 2, 3)]), offload=flags, all_degrees=flags, by_replicas=flags,
        barred=st.frozensets(st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]), max_size=2),
    ),
)  # fmt: skip
def test_a_search_looks_at_every_strategy_that_is_allowed_and_at_no_other(ranks: int, space: SpaceLimits) -> None:
    wanted = allowed(space, ranks)
    if wanted:
        assert set(space.layers(ranks)) == wanted
    else:
        with pytest.raises(InputError):
            space.layers(ranks)


@given(st.integers(1, 64), st.integers(1, 40), degree, flags, flags)
def test_stages_share_the_ranks_evenly_and_each_has_a_layer(world, layers, most, every, alone):
    space = SpaceLimits(most_stages=most, all_degrees=every, disable_pp=alone)
    for number in range(1, 2 * world):
        even = world % number == 0 and (every or bin(number).count("1") == 1)
        few = number <= layers and number <= (most or world) and not (alone and number > 1)
        assert (number in space.stage_numbers(world, layers)) == (even and few)


@given(st.integers(1, 24), flags, flags, flags)
def test_embedding_and_head_have_the_strategies_of_layers_less_what_is_disabled_for_them(ranks, no_tp, no_sp, no_zero):
    space = SpaceLimits(
        disable_vocabulary_tp=no_tp, disable_vocabulary_sp=no_sp, disable_vocabulary_sharding=no_zero, all_degrees=True
    )
    kept = {
        each.end for each in allowed(space, ranks)
        if (each.tp == 1 or not no_tp) and (each.sp == 1 or not no_sp) and (each.zero < 3 or not no_zero)
    }  # fmt: skip
    assert set(space.ends(ranks)) == kept and list(space.ends(ranks)) == sorted(kept)


@given(st.integers(1, 200))
def test_divisors_are_those_that_a_multiplication_finds(number: int) -> None:
    pairs = [(one, other) for one in range(1, number + 1) for other in range(1, number // one + 1)]
    assert divisors(number) == tuple(sorted({one for one, other in pairs if one * other == number}))


@given(st.integers(1, 50), st.integers(1, 200), st.integers(1, 20))
def test_batches_go_in_steps_from_the_least_to_the_largest(least: int, most: int, step: int) -> None:
    first = max(least, step)
    found = batch_sizes(least, most, step)
    assert all(first <= each <= most and (each - first) % step == 0 for each in found)
    assert len(found) == max(0, (most - first) // step + 1)
