"""The checker plays a plan's step and walks its memory."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks.layerwise_brute_force import DrawnCosts
from taylor.cost_model.measured.cost_table import CostRow, EndCost, EndCosts, Layout
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy, LayerwisePlan
from taylor.layerwise.checker import check_plan
from taylor.layerwise.galvatron.tasks import hetu_tasks
from taylor.layerwise.job import LayerwiseJob
from taylor.parsers.galvatron.strategy_file import read_strategy
from tests import layerwise_cases as cases

SPLIT, WHOLE = LayerStrategy(tp=2, dp=2), LayerStrategy(dp=4)


@pytest.fixture
def costs():
    rows = {
        SPLIT: CostRow(1.0, 2.0, 0.5, 10.0, 3.0, "body", SPLIT, Layout.of(SPLIT, True), working_mib=4.0),
        WHOLE: CostRow(2.0, 3.0, 0.25, 20.0, 1.0, "body", WHOLE, Layout.of(WHOLE, True), working_mib=1.0),
    }
    ends = EndCosts(EndCost(0.1, 0.2, 0.3, 5.0, 0.5), EndCost(0.4, 0.8, 0.1, 6.0, 0.25))
    a, b = rows[SPLIT].layout, rows[WHOLE].layout
    return DrawnCosts(rows, ends, {(a, b): 0.2, (b, a): 0.6}, {a: 0.05, b: 0.07})


def a_job(**changes):
    return LayerwiseJob(8, 3, 1024, 512, 1000.0).replace(**changes)


def a_plan(layers=(SPLIT, WHOLE, SPLIT), division=(2, 1), m=1, **changes):
    return LayerwisePlan(division, tuple(layers), EndStrategy(dp=4), 8 * m, m, **changes)


def test_one_micro_batch_goes_through_both_stages_and_back(costs):
    # Embedding lies as WHOLE does: one change before the first layer, one inside the first stage, one where the second
    # stage takes what the first left, one before the head.
    first_f, first_b = 0.1 + 1 + 2 + (0.6 + 0.2) / 2, 0.2 + 2 + 3 + (0.6 + 0.2) / 2
    last_f, last_b = 0.4 + 1 + (0.6 + 0.2) / 2, 0.8 + 2 + (0.6 + 0.2) / 2
    found = check_plan(a_job(), a_plan(), costs)
    assert found.faults == ()
    assert found.step_s == pytest.approx(first_f + 0.07 + last_f + last_b + 0.07 + first_b + 0.5 + 0.25 + 0.3)
    assert [stage.peak_mib for stage in found.stages] == pytest.approx(
        [10 + 20 + 5 + 3 + 1 + 0.5 + 4, 10 + 6 + 3.25 + 4]
    )


def test_the_first_stage_holds_a_micro_batch_for_every_stage(costs):
    found = check_plan(a_job(), a_plan(m=4), costs)
    assert found.stages[0].peak_mib == pytest.approx(10 + 20 + 5 + 2 * (3 + 1 + 0.5) + 4)
    assert check_plan(a_job(), a_plan(m=4, schedule="gpipe"), costs).stages[0].peak_mib == pytest.approx(
        10 + 20 + 5 + 4 * (3 + 1 + 0.5) + 4
    )


def test_layers_in_whole_mib_never_need_less(costs):
    exact, whole = (check_plan(a_job(whole_mib=each), a_plan(m=4), costs) for each in (False, True))
    for one, other in zip(exact.stages, whole.stages, strict=True):
        assert one.peak_mib <= other.peak_mib <= one.peak_mib + 3


@pytest.mark.parametrize(
    ("job", "plan", "said"),
    [
        ({"limit_mib": 30.0}, {}, "Stage 0 needs 43.5 MiB"),
        ({}, {"division": (3, 0)}, "without layers"),
        ({}, {"division": (2, 2)}, "have 4 layers"),
        ({"layers": 4}, {}, "the model has 4"),
        ({"world": 16}, {}, "fills 4 of 8 ranks"),
    ],
)
def test_what_does_not_hold_is_said(costs, job, plan, said):
    assert any(said in fault for fault in check_plan(a_job(**job), a_plan(**plan), costs).faults)


def test_a_batch_that_one_layer_cannot_share_out_is_said(costs):
    plan = dataclasses.replace(a_plan(m=4), global_batch=8)
    assert any("Layer 1 (dp4) splits the 2 samples" in fault for fault in check_plan(a_job(), plan, costs).faults)


def test_a_claimed_step_time_must_be_the_played_one(costs):
    step = check_plan(a_job(), a_plan(m=3), costs).step_s
    assert check_plan(a_job(), a_plan(m=3), costs, claimed_s=step).faults == ()
    assert "not 99" in check_plan(a_job(), a_plan(m=3), costs, claimed_s=99.0).faults[0]


@cases.needs_data
def test_galvatrons_plans_take_longer_than_its_formula_says(tmp_path):
    for limit_gb, step in ((36, 24.1679), (24, 29.6861)):
        search = cases.hetu_search(tmp_path, limit_gb=limit_gb)
        found = search.best(hetu_tasks(8, 28, cases.HETU_SPACE, (64,), micro_batches=32))
        checked = check_plan(search.job, found.plan, search.provider)
        assert checked.faults == () and checked.step_s == pytest.approx(step, abs=1e-4)
    search = cases.paddle_search()
    plan = read_strategy(cases.DATA / "paddle_galvatron/configs/fine_grained_config.json").plan
    checked = check_plan(search.job, plan, search.provider)
    assert checked.faults == () and checked.step_s == pytest.approx(109.065, abs=1e-3)
