"""Measured costs obey the rules by which frameworks work; the estimate gives the same kind of row."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.measured.cost_table import CostSetting, Layout, MemorySettings
from taylor.cost_model.measured.costs import MeasuredCosts, MeasuredSettings
from taylor.cost_model.measured.estimate import EstimatedCosts
from taylor.cost_model.measured.hardware import HardwareProfile, overlapped_ms
from taylor.cost_model.measured.laws import ModelLaws
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy, LayerwisePlan
from taylor.parsers.galvatron.folder import read_folders
from taylor.register.frameworks import MEGATRON
from taylor.register.registry import Registry
from tests import galvatron_cases as cases

TOKENS, HIDDEN = 4096, 1024
MESSAGE = TOKENS * HIDDEN * 2 / 2**20
"""Hidden states of a sample, MiB."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    found = read_folders([cases.write_folder(tmp_path_factory.mktemp("profiles") / "hetu")])
    model = found.model(None)
    laws = ModelLaws.of(model.computation, model.memory, model.rules, sequence_parallel=True)
    return MeasuredCosts(laws, found.cluster(8)[1])


@pytest.fixture(scope="module")
def estimated():
    registry = Registry.load(None)
    return EstimatedCosts(registry.model("llama2-7b"), TrainingRules(framework=MEGATRON), registry.device("h100-80g"))


def setting(**changes):
    return CostSetting(
        **{"stages": 1, "global_batch": 32, "micro_batches": 4, "tokens": TOKENS, "hidden": HIDDEN} | changes
    )


def test_a_layer_on_one_rank_is_its_measured_time(measured):
    row = measured.layer("body", LayerStrategy(), setting(global_batch=4))
    assert row.forward_s * 1e3 == pytest.approx(cases.layer_ms(TOKENS))
    assert row.backward_s == pytest.approx(2 * row.forward_s)
    assert row.tail_s == 0
    assert row.states_mib == pytest.approx(cases.PARAMETER_MIB / 4 * 16)
    assert row.activation_mib == pytest.approx(cases.ACTIVATION_MIB_A_TOKEN * TOKENS)


@pytest.mark.parametrize(("zero", "kept"), [(0, 16), (2, 4 + 12 / 8), (3, 2 + 14 / 8)])
def test_zero_shards_over_all_replicas_whatever_makes_them(measured, zero, kept):
    for strategy in (LayerStrategy(dp=8), LayerStrategy(sp=4, dp=2), LayerStrategy(sp=2, cp=2, dp=2)):
        row = measured.layer("body", strategy.replace(zero=zero), setting())
        assert row.states_mib == pytest.approx(cases.PARAMETER_MIB / 4 * kept)


def test_gradients_that_are_reduced_every_micro_batch_are_split_and_slow_every_backward(measured):
    once = measured.layer("body", LayerStrategy(dp=8, zero=2), setting())
    every = measured.layer("body", LayerStrategy(dp=8, zero=2), setting(reduce_every_micro_batch=True))
    assert every.states_mib < once.states_mib
    assert every.backward_s > once.backward_s and every.tail_s < once.tail_s


def test_zero3_gathers_parameters_for_both_directions_beside_the_computation(measured):
    whole = measured.layer("body", LayerStrategy(dp=8), setting())
    split = measured.layer("body", LayerStrategy(dp=8, zero=3), setting())
    gather = cases.PARAMETER_MIB / 2 * 7 / 8 / 150
    for direction in ("forward_s", "backward_s"):
        plain = getattr(whole, direction) * 1e3
        assert getattr(split, direction) * 1e3 == pytest.approx(overlapped_ms(plain, gather, 1.2))
    assert split.working_mib >= cases.PARAMETER_MIB / 2


def test_a_ring_of_context_ranks_splits_the_layer_and_passes_keys_and_values(measured):
    one = measured.layer("body", LayerStrategy(dp=2), setting(global_batch=8))
    four = measured.layer("body", LayerStrategy(dp=2, cp=4), setting(global_batch=8))
    assert four.activation_mib == pytest.approx(one.activation_mib / 4)
    ring = 3 * 2 * MESSAGE / 4 / 160
    attention = cases.LAYER_MS[0] * TOKENS**2 / 4
    expected = one.forward_s * 1e3 / 4 + overlapped_ms(attention, ring, 1.2) - attention
    assert four.forward_s * 1e3 == pytest.approx(expected, rel=1e-6)


def test_ulysses_sends_what_a_rank_holds_and_less_of_grouped_keys(measured):
    plain = measured.layer("body", LayerStrategy(sp=4, dp=2), setting(global_batch=8))
    grouped = measured.layer("body", LayerStrategy(sp=4, dp=2), setting(global_batch=8, kv_hidden=HIDDEN // 4))
    times = measured.hardware.all_to_all[4]
    sent = 4 * times.between_ms(MESSAGE / 4)
    assert plain.forward_s * 1e3 == pytest.approx(cases.layer_ms(TOKENS) / 4 + sent)
    assert grouped.forward_s <= plain.forward_s


def test_recompute_keeps_less_and_runs_the_forward_again(measured):
    plain = measured.layer("body", LayerStrategy(tp=2, dp=4), setting())
    again = measured.layer("body", LayerStrategy(tp=2, dp=4, recompute=True), setting())
    assert again.backward_s == pytest.approx(plain.backward_s + plain.forward_s)
    assert again.activation_mib == pytest.approx(cases.RECOMPUTED_MIB_A_TOKEN * TOKENS * 2 / 2)
    assert again.working_mib == pytest.approx(plain.activation_mib)


def test_offload_needs_the_measured_link_and_moves_activations_to_the_host(measured):
    strategy = LayerStrategy(dp=8, offload=True)
    with pytest.raises(InputError, match="measure the link to the host"):
        measured.layer("body", strategy, setting())
    linked = MeasuredCosts(measured.laws, measured.hardware, MeasuredSettings(host_mib_a_ms=25.0))
    plain, away = (
        linked.layer("body", strategy.replace(offload=False), setting()),
        linked.layer("body", strategy, setting()),
    )
    assert away.activation_mib == 0 and away.host_mib == plain.activation_mib
    assert away.forward_s > plain.forward_s


def test_the_heads_time_is_on_the_last_stage(measured):
    ends = measured.ends(EndStrategy(dp=4), setting(stages=2, global_batch=16))
    assert ends.first.forward_s == 0
    assert ends.last.forward_s * 1e3 == pytest.approx(cases.REST_MS * TOKENS)
    assert measured.ends(EndStrategy(dp=8), setting()).last is None


layouts = st.builds(Layout, st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]))


@given(before=layouts, after=layouts)
def test_a_change_of_layout_costs_the_same_both_ways_and_nothing_where_there_is_none(measured, before, after):
    if max(before.batch_ways, after.batch_ways) * max(before.sequence_ways, after.sequence_ways) > 8:
        return
    told = measured.layout_change_s(before, after, setting())
    assert told == pytest.approx(measured.layout_change_s(after, before, setting()))
    assert (told > 0) == (before != after)


def test_a_change_of_layout_moves_the_bytes_that_a_rank_lacks(measured):
    told = measured.layout_change_s(Layout(4, 2), Layout(8, 1), setting())
    lacking = 8 * MESSAGE / 8 / 2
    assert told * 1e3 == pytest.approx(2 * lacking / 160)


def test_the_allocators_reserve_and_the_context_are_settings(measured):
    assert measured.memory.context_mib == 1024
    assert measured.memory.usable_mib(80 * 1024) == 80 * 1024 - int(80 * 1024 * 0.2)
    own = MeasuredCosts(measured.laws, measured.hardware, MeasuredSettings(memory=MemorySettings(512)))
    assert own.memory.usable_mib(80 * 1024) == 80 * 1024


def test_what_was_not_measured_is_named_and_the_rest_goes_on(measured):
    bare = MeasuredCosts(measured.laws, HardwareProfile(overlap_slowdown=1.2))
    assert bare.layer("body", LayerStrategy(), setting(global_batch=4)).forward_s > 0
    for strategy, word in (
        (LayerStrategy(dp=8), "allreduce_size_8"), (LayerStrategy(tp=2), "allreduce_size_2"),
        (LayerStrategy(sp=2), "all2all_size_2"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=word):
            bare.layer("body", strategy, setting())


degrees = st.sampled_from([1, 2, 4])


@given(tp=degrees, sp=degrees, cp=degrees, dp=degrees, zero=st.sampled_from([0, 2, 3]), recompute=st.booleans())
def test_every_source_gives_rows_of_positive_figures(measured, estimated, tp, sp, cp, dp, zero, recompute):
    if (tp > 1 and sp > 1) or tp * sp * cp * dp > 8:
        return
    strategy = LayerStrategy(tp, sp, cp, dp, zero, recompute)
    for provider in (measured, estimated):
        job = setting(hidden=4096)
        row, ends = provider.layer(provider.kinds[-1], strategy, job), provider.ends(strategy.end, job)
        for each in (row, ends.first):
            assert each.forward_s > 0 and each.backward_s > 0 and each.tail_s >= 0
            assert each.states_mib > 0 and each.activation_mib >= 0
        assert row.layout.batch_ways * row.layout.sequence_ways * row.layout.copies == strategy.ranks


def test_the_estimate_shards_as_the_measured_rules_do(estimated):
    job = setting(hidden=4096)
    spread = [LayerStrategy(dp=8, zero=3), LayerStrategy(sp=4, dp=2, zero=3)]
    states = {round(estimated.layer("dense", each, job).states_mib, 6) for each in spread}
    assert len(states) == 1
    assert estimated.layer("dense", LayerStrategy(dp=8), job).states_mib > 4 * max(states)


@pytest.mark.parametrize(("batch", "starts"), [(4, True), (12, True), (6, False), (2, False)])
def test_a_batch_is_shared_by_the_least_ways_and_the_least_context_ranks(batch: int, starts: bool) -> None:
    """Hetu-Galvatron cea12ff galvatron/core/runtime/hybrid_parallel_config.py:
    ``global_train_batch_size % (world_size // pp_deg // min_tp // min_cp) == 0``: 16 // 2 // 2."""
    layers = (LayerStrategy(tp=4, cp=2, dp=2), LayerStrategy(tp=2, cp=2, dp=4), LayerStrategy(tp=4, cp=4, dp=1))
    plan = LayerwisePlan((2, 1), layers, EndStrategy(tp=2, cp=2, dp=4), batch, 1)
    if starts:
        plan.refuse_odd_batch("plan.json", "global_batch")
    else:
        with pytest.raises(InputError, match="multiple of 4"):
            plan.refuse_odd_batch("plan.json", "global_batch")


def test_a_plan_of_layers_knows_its_ranks_its_stages_and_its_runs() -> None:
    one, other = LayerStrategy(tp=4, cp=2, dp=2), LayerStrategy(tp=2, cp=2, dp=4)
    layers = (one, one, other, other, other, one, one, one)
    plan = LayerwisePlan((3, 5), layers, one.end, 8, 4)
    assert (plan.stages, plan.world) == (2, 32)
    assert [plan.on_stage(stage) for stage in (0, 1)] == [layers[:3], layers[3:]]
    assert list(plan.runs()) == [(0, 2, one), (0, 1, other), (1, 2, other), (1, 3, one)]
    turns = LayerwisePlan((1, 2, 3, 2), layers, one.end, 8, 4, "interleaved", interleaves=2)
    assert (turns.stages, turns.world) == (2, 32)
    assert [turns.on_stage(stage) for stage in (0, 1)] == [(one, other, other, one), (one, other, one, one)]
    assert list(turns.runs()) == [(0, 1, one), (0, 2, other), (0, 1, one), (1, 1, one), (1, 1, other), (1, 2, one)]
    assert not plan.uniform and not turns.uniform
    alike = LayerwisePlan((4, 4), (one,) * 8, one.end, 8, 4)
    assert alike.uniform and not LayerwisePlan((3, 5), (one,) * 8, one.end, 8, 4).uniform
    assert not LayerwisePlan((2,) * 4, (one,) * 8, one.end, 8, 4, "interleaved", interleaves=2).uniform
    assert LayerwisePlan((2, 2, 3), (one,) * 7, one.end, 8, 4).uniform and alike.world == 32
