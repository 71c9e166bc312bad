"""A plan translates to offsets and per-kind recompute as the frameworks count them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.pipeline.chunks import chunk_order, position_of
from taylor.pipeline.plan import (
    FULL,
    NONE,
    SELECT,
    PipelinePlan,
    as_grid,
    counts_by_kind,
    deal_kinds,
    even_plan,
    grid_in_order,
    mode_title,
    values_in_order,
)


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


def test_an_even_plan_spares_the_last_chunk_and_holds_every_layer_once():
    made = even_plan({"dense": 3, "moe": 58, "mtp": 1}, 4, 2)
    assert made.total_layers() == ((7, 8, 8, 8), (8, 8, 8, 7))
    assert made.layers["dense"] == ((3, 0, 0, 0), (0, 0, 0, 0))
    assert made.layers["mtp"] == ((0, 0, 0, 0), (0, 0, 0, 1))
    assert made.recompute == {}


def test_an_even_plan_of_a_v_shape_ends_on_the_first_stage():
    made = even_plan({"dense": 3, "moe": 58, "mtp": 1}, 4, 2, v_shape=True)
    assert made.total_layers() == ((7, 8, 8, 8), (7, 8, 8, 8))
    assert made.layers["mtp"] == ((0, 0, 0, 0), (1, 0, 0, 0))


def test_pinned_layers_of_an_even_plan_join_the_last_chunk_and_are_not_recomputed():
    made = even_plan({"moe": 7, "mtp": 2}, 2, 1, pinned_last=("mtp",), recompute=FULL)
    assert made.layers == {"moe": ((4, 3),), "mtp": ((0, 2),)}
    assert made.recomputed(FULL) == made.layers["moe"] and not made.uses(SELECT)


def test_kinds_are_dealt_in_layer_order_over_a_folded_pipeline():
    layers = deal_kinds({"dense": 3, "moe": 4}, [2, 2, 1, 2], 2, True)
    assert layers == {"dense": ((2, 1), (0, 0)), "moe": ((0, 1), (2, 1))}
    with pytest.raises(ValueError, match="have 6 layers; the model has 7"):
        deal_kinds({"dense": 3, "moe": 4}, [2, 2, 1, 1], 2, True)


@given(st.integers(1, 5), st.integers(1, 4), st.booleans(), st.data())
def test_a_grid_laid_out_in_model_order_is_read_back_in_it(stages, interleaves, v_shape, data):
    chunks = stages * interleaves
    values = data.draw(st.lists(st.integers(0, 9), min_size=chunks, max_size=chunks))
    grid = grid_in_order(values, stages, v_shape)
    assert values_in_order(grid, v_shape) == values
    order = chunk_order(stages, interleaves, v_shape)
    assert sorted(order) == [(v, s) for v in range(interleaves) for s in range(stages)]
    assert [position_of(v, s, stages, v_shape) for v, s in order] == list(range(chunks))
    # Neighbours in the model lie on one stage where the pipeline folds, else on the next one around the ring.
    for (_, s), (w, t) in zip(order, order[1:], strict=False):
        step = -1 if v_shape and w % 2 else 1
        assert t == s + step or (t == s if v_shape else (s, t) == (stages - 1, 0)) or stages == 1


def test_runs_of_a_kind_that_lie_apart_are_shown_together():
    runs = PipelinePlan({"gdn": ((3, 0),), "attn": ((1, 0),), "gdn#2": ((0, 3),), "attn#2": ((0, 1),)}, {})
    assert runs.by_kind() == {"gdn": ((3, 3),), "attn": ((1, 1),)}
    assert counts_by_kind({"gdn": 3, "attn": 1, "gdn#2": 3}) == {"gdn": 6, "attn": 1}
    assert plan(((1, 0),), ((2, 3),)).by_kind() == {"dense": ((1, 0),), "moe": ((2, 3),)}


def test_what_is_no_recompute_alone_is_named_by_itself():
    titles = ["recompute", "select recompute", "none recompute", "offload:core_attn"]
    assert [mode_title(mode) for mode in (FULL, SELECT, NONE, "offload:core_attn")] == titles


def test_an_even_plan_begins_chunks_at_the_nearest_layers_that_may() -> None:
    """Layers 1 and 2, then every third, begin chunks: even ends after 3, 6 and 9 of twelve move to 4, 7 and 10."""
    counts = {"a": 2, "b": 2, "a#2": 1, "b#2": 2, "a#3": 1, "b#3": 2, "a#4": 1, "b#4": 1}
    plan = even_plan(counts, 4, 1, joined=("b", "b#2", "b#3", "b#4"), recompute=FULL)
    assert plan.total_layers() == plan.recomputed(FULL) == ((4, 3, 3, 2),)
    assert even_plan(counts, 2, 2, joined=("b", "b#2", "b#3", "b#4")).total_layers() == ((4, 3), (3, 2))
    assert even_plan(counts, 5, 1, joined=("b", "b#2", "b#3", "b#4")).total_layers() == ((1, 3, 3, 3, 2),)
    assert even_plan(counts, 6, 1, joined=("b", "b#2", "b#3", "b#4")).total_layers() == ((2,) * 6,)
    assert even_plan(counts, 4, 1).total_layers() == ((3,) * 4,)


def test_runs_of_a_kind_are_one_entry_and_several_again() -> None:
    grid = as_grid([[0, 1, 2], [0, 0, 1]])
    split = deal_kinds({"mtp": 2, "mtp#2": 2}, values_in_order(grid, False), 3, False)
    assert split == {"mtp": ((0, 1, 1), (0, 0, 0)), "mtp#2": ((0, 0, 1), (0, 0, 1))}
    plan = PipelinePlan({"dense": as_grid([[1] * 3] * 2), **split}, {})
    assert plan.with_runs_joined("mtp").layers == {"dense": ((1, 1, 1),) * 2, "mtp": grid}
    assert plan.with_runs_joined("dense") is plan and plan.with_runs_joined("moe") is plan
    with pytest.raises(ValueError, match="have 4 layers; the model has 3"):
        deal_kinds({"mtp": 3}, values_in_order(grid, False), 3, False)
