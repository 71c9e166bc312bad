"""A plan translates to offsets and per-kind recompute as the frameworks count them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan


def plan(dense, moe, **recompute):
    return PipelinePlan({"dense": dense, "moe": moe}, recompute)


def test_the_offset_is_what_each_chunk_holds_above_the_even_share():
    assert plan(((3, 0, 0, 0),), ((1, 4, 4, 3),)).offset() == ((1, 1, 1, 0),)


def test_kinds_that_do_not_count_as_layers_are_left_out_of_the_offset():
    held = PipelinePlan({"moe": ((4, 4),), "mtp": ((0, 1),)}, {})
    assert held.offset() == ((0, 1),)
    assert held.offset(uncounted=("mtp",)) == ((0, 0),)


def test_the_first_layers_are_recomputed_fully_and_the_next_selectively():
    kinds = plan(((3,),), ((4,),), full=((2,),), select=((3,),)).recompute_by_kind()
    assert kinds["dense"] == {FULL: ((2,),), SELECT: ((1,),), NONE: ((0,),)}
    assert kinds["moe"] == {FULL: ((0,),), SELECT: ((2,),), NONE: ((2,),)}


@pytest.mark.parametrize("dense, recompute", [(((1, -1),), {}), (((1, 2),), {"full": ((2, 0),)}), (((1,),), {})])
def test_impossible_plans_are_refused(dense, recompute):
    with pytest.raises(ValueError):
        PipelinePlan({"dense": dense, "moe": ((0, 0),)}, recompute)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=5
    )
)
def test_every_layer_has_exactly_one_mode(chunks):
    dense, moe, full, select = [], [], [], []
    for d, m, f, s in chunks:
        dense.append(d), moe.append(m), full.append(min(f, d + m)), select.append(min(s, d + m - full[-1]))
    made = plan((tuple(dense),), (tuple(moe),), full=(tuple(full),), select=(tuple(select),))
    kinds = made.recompute_by_kind()
    for kind, grid in made.layers.items():
        for s, held in enumerate(grid[0]):
            assert sum(kinds[kind][mode][0][s] for mode in (FULL, SELECT, NONE)) == held
    for s in range(len(chunks)):
        assert sum(kinds[kind][FULL][0][s] for kind in kinds) == full[s]
        assert sum(kinds[kind][SELECT][0][s] for kind in kinds) == select[s]
