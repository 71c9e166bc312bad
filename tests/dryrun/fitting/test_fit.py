"""The designed dry-runs determine every coefficient, and the fit finds what made the peaks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taylor.cost_model.profile import TimeRatios
from taylor.dryrun.estimate import EstimateBackend, estimate_memory
from taylor.dryrun.fitting.design import Cell, design_runs, random_plans
from taylor.dryrun.fitting.fit import Observation, fit_memory, read_observations, write_observations
from taylor.dryrun.fitting.linear_memory import LinearMemory
from taylor.dryrun.interface import DryRun
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.check.checker import exact_peak_memory
from taylor.register.registry import Registry
from taylor.workflows.statement.problem import build_problem, plan_in_terms_of
from tests.conftest import ROOT

NAMES = (
    "pretrain_deepseek3_671b_1024p",
    "pretrain_llama3_70b",
    "pretrain_mixtral_8x7b",
    "pretrain_llama2_7b",
    "pretrain_qwen3_30b_a3b",
)


def case(name, modes=(NONE, FULL), **strategy):
    config = read_config(ROOT / "config" / f"{name}.yaml")
    config = config.replace(strategy=config.strategy.replace(**strategy))
    prior = estimate_memory(config, Registry.load(None).device("ascend-910b"))
    return LinearMemory(config, modes), prior


def peaks(memory, cells, truth, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Observation(
            cell.plan,
            cell.stage,
            float(memory.rows(cell.plan, truth, [cell.stage])[0] @ truth) * (1 + noise * rng.uniform(-1, 1)),
        )
        for cell in cells
    ]


@pytest.mark.parametrize("modes", [(NONE, FULL), (NONE, SELECT, FULL)])
@pytest.mark.parametrize("name", NAMES)
def test_two_runs_an_unknown_give_back_coefficients_far_from_the_estimate(name, modes):
    memory, prior = case(name, modes)
    truth = memory.coefficients(prior) * np.random.default_rng(3).uniform(0.6, 1.5, len(memory.unknowns))
    cells = design_runs(memory, prior, prior.device_limit_mib)
    assert len(cells) == 2 * len(memory.unknowns)
    fit = fit_memory(memory, peaks(memory, cells, truth), prior)
    assert fit.undetermined == ()
    assert fit.values == pytest.approx(truth, rel=1e-6)
    assert np.abs(fit.residual).max() < 1e-9


@settings(max_examples=15, deadline=None)
@given(pp=st.sampled_from([1, 2, 3, 4, 7, 8]), vpp=st.integers(1, 3), m=st.integers(1, 40), seed=st.integers(0, 99))
def test_any_number_of_stages_and_interleaves_is_determined(pp, vpp, m, seed):
    memory, prior = case("pretrain_llama3_70b", pp=pp, vpp=vpp, micro_batches=max(m, pp))
    truth = memory.coefficients(prior) * np.random.default_rng(seed).uniform(0.8, 1.25, len(memory.unknowns))
    fit = fit_memory(memory, peaks(memory, design_runs(memory, prior, 1e9), truth), prior)
    for plan in random_plans(memory, 5, seed + 1000):
        rows = memory.rows(plan, truth)
        assert rows @ fit.values == pytest.approx(rows @ truth, rel=1e-6)
    if pp > 1:
        assert fit.undetermined == ()
        assert fit.values == pytest.approx(truth, rel=1e-5)
    else:
        # One stage always holds all layers: static memory and layers cannot be told apart, nor need they be.
        assert {"static.only", "layer.dense"} <= set(fit.undetermined)


@pytest.mark.parametrize(
    "name, vpp",
    [("pretrain_deepseek3_671b_1024p", 1), ("pretrain_deepseek3_671b_1024p", 2), ("pretrain_llama3_70b", 3)],
)
def test_the_rows_say_what_the_checker_says_of_a_stage(name, vpp):
    memory, prior = case(name, vpp=vpp)
    config = memory.config.replace(schedule=memory.schedule.spec)
    problem = build_problem(config, prior, TimeRatios())
    values = memory.coefficients(prior)
    for plan in random_plans(memory, 12, 5):
        own = plan_in_terms_of(problem, plan)
        expected = [float(each) for each in exact_peak_memory(problem, own)]
        assert memory.rows(plan, values) @ values == pytest.approx(expected, rel=1e-9)


def test_where_peaks_scatter_the_standard_error_covers_the_true_error():
    memory, prior = case("pretrain_deepseek3_671b_1024p")
    truth = memory.coefficients(prior)
    within = []
    for seed in range(6):
        cells = design_runs(memory, prior, prior.device_limit_mib)
        fit = fit_memory(memory, peaks(memory, cells, truth, 0.02, seed), prior)
        within += list(np.abs(fit.values - truth) <= 3 * fit.standard_error)
    assert np.mean(within) > 0.97


def test_what_no_row_tells_keeps_the_prior_and_is_named():
    memory, prior = case("pretrain_llama3_70b")
    truth = memory.coefficients(prior) * 1.1
    plan = next(iter(random_plans(memory, 1, 0)))
    fit = fit_memory(memory, peaks(memory, [Cell(plan, 1)], truth), prior)
    assert "static.first" in fit.undetermined
    assert fit.values[0] == pytest.approx(memory.coefficients(prior)[0], rel=1e-3)
    assert np.isinf(fit.standard_error[0])
    empty = fit_memory(memory, [], prior)
    assert empty.values == pytest.approx(memory.coefficients(prior)) and set(empty.undetermined) == set(memory.unknowns)


def test_coefficients_never_turn_negative():
    memory, prior = case("pretrain_llama3_70b")
    cells = design_runs(memory, prior, prior.device_limit_mib)
    wild = [Observation(cell.plan, cell.stage, 1000.0 * (1 + index % 7)) for index, cell in enumerate(cells)]
    assert (fit_memory(memory, wild, prior).values >= 0).all()


def test_no_designed_stage_is_over_the_limit_by_the_estimate_and_none_is_chosen_twice():
    memory, prior = case("pretrain_deepseek3_671b_1024p")
    cells = design_runs(memory, prior, 30_000.0)
    values = memory.coefficients(prior)
    rows = [memory.rows(cell.plan, values, [cell.stage])[0] for cell in cells]
    assert cells and all(row @ values <= 30_000 for row in rows)
    assert len({row.tobytes() for row in rows}) == len(rows)


def test_the_estimate_behind_the_interface_is_the_linear_form_of_its_own_profile():
    memory, prior = case("pretrain_llama3_70b")
    plan = next(iter(random_plans(memory, 1, 4)))
    with EstimateBackend() as backend:
        result = backend.measure([DryRun(memory.config, memory.config.strategy, plan, (0, 3, 7))])[0]
    values = memory.coefficients(prior)
    assert [peak.peak_mib for peak in result.stages] == pytest.approx(memory.rows(plan, values, [0, 3, 7]) @ values)


def test_without_a_goal_all_runs_are_chosen_however_sure_the_coefficients_are():
    memory, prior = case("pretrain_llama3_70b")
    number = 6 * len(memory.unknowns)
    chosen = design_runs(memory, prior, 1e9, number)
    assert len(chosen) == number and chosen == design_runs(memory, prior, 1e9, number, goal=0.0)
    assert chosen != design_runs(memory, prior, 1e9, number, goal=1.0)
    assert len(design_runs(memory, prior, 1e9, number, goal=30.0)) < number / 2


def test_measured_peaks_are_kept_and_read_back(tmp_path):
    memory, prior = case("pretrain_deepseek3_671b_1024p", vpp=2)
    memory.config.replace(schedule=ScheduleSpec("interleaved"))
    cells = design_runs(memory, prior, prior.device_limit_mib, 4)
    kept = peaks(memory, cells, memory.coefficients(prior))
    again = read_observations(write_observations(kept, tmp_path / "a.json"))
    assert [(o.plan.layers, o.stage, o.peak_mib) for o in again] == [(o.plan.layers, o.stage, o.peak_mib) for o in kept]
    (tmp_path / "a.json").write_text("{")
    assert read_observations(tmp_path / "a.json") == []
