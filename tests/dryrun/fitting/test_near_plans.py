"""Where peaks scatter, plans near the best one are tried; where they do not, what was over stays over."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from taylor.cost_model.profile import TimeRatios
from taylor.dryrun.fitting.linear_memory import LinearMemory
from taylor.dryrun.fitting.near_plans import StageRecord, near_plans
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRun, DryRunResult, StagePeak
from taylor.parsers.read import read_config
from taylor.parsers.tables.memory_profile import read_memory_profile
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.solving.memory_check import solve_checked
from taylor.workflows.statement.problem import build_problem
from tests.dryrun_cases import DEEPSEEK, DEEPSEEK_TRUTH

LIMIT = 56_320.0
TIMES = TimeRatios(dense_forward=0.397, backward=1.839)


@pytest.fixture
def case(tmp_path):
    file = tmp_path / "model.yaml"
    file.write_text(re.sub(r'max_device_memory: "\w+"', 'max_device_memory: "56320MB"', DEEPSEEK.read_text()))
    (tmp_path / "truth.json").write_text(json.dumps({"device_limit": LIMIT, **DEEPSEEK_TRUTH}))
    memory = replace(read_memory_profile(tmp_path / "truth.json"), device_limit_mib=LIMIT)
    config = read_config(file)
    linear = LinearMemory(config)
    problem = build_problem(config, memory, TIMES)
    values = linear.coefficients(memory)
    return config, memory, linear, problem, lambda plan: linear.rows(plan, values) @ values


def answer(config, plan, peaks):
    stages = tuple(
        StagePeak(stage, None if math.isinf(peak) else peak, "x", failure=OUT_OF_MEMORY if math.isinf(peak) else "")
        for stage, peak in enumerate(peaks)
    )
    return DryRunResult(DryRun(config, config.strategy, plan), stages)


def test_a_content_that_was_over_stays_over_until_some_content_scatters_anew(case):
    config, _, linear, problem, fitted = case
    plan = solve(problem).plan
    limits, peaks = np.full(16, LIMIT), fitted(plan)
    record = StageRecord(linear)
    before = record.chances(plan, peaks, limits, 0.0115)
    assert 0.5 < before[2] < 0.6 and before[15] > 0.999
    record.add(answer(config, plan, [*peaks[:2], 57_000.0, *peaks[3:]]))
    assert record.chances(plan, peaks, limits, 0.0115)[2] == 0.0 and not record.changed_law
    record.add(answer(config, plan, peaks))
    assert record.changed_law and record.chances(plan, peaks, limits, 0.0115)[2] == pytest.approx(before[2])
    record.add(answer(config, plan, [math.inf, *peaks[1:]]))
    assert record.changed_law


def test_near_plans_are_new_better_than_what_is_to_beat_and_the_best_bet_comes_first(case):
    _, _, linear, problem, fitted = case
    limits, best = np.full(16, LIMIT), solve(problem)
    found = near_plans(
        problem,
        StageRecord(linear),
        fitted,
        limits,
        0.0115,
        solve,
        tried=[best.plan],
        to_beat=1.03 * best.objective,
        number=3,
    )
    assert 1 <= len(found) <= 3 and all(near.plan != best.plan for near in found)
    worth = [near.chance * (1.03 * best.objective - near.time) for near in found]
    assert worth == sorted(worth, reverse=True) and min(worth) > 0
    assert (
        near_plans(
            problem, StageRecord(linear), fitted, limits, 0.0115, solve, tried=[], to_beat=best.objective, number=3
        )
        == []
    )


class Backend:
    """Peaks of the true coefficients, a factor over them for all stages of a plan's first dry-run of each stage."""

    name, exact, every_flag = "test", False, True

    def __init__(self, fitted, factor):
        self.fitted, self.factor, self.plans = fitted, factor, []

    def measure(self, runs):
        results = []
        for run in runs:
            self.plans.append(run.plan)
            peaks = self.fitted(run.plan)
            results.append(
                DryRunResult(
                    run,
                    tuple(StagePeak(stage, float(round(peaks[stage] * self.factor)), self.name) for stage in run.asked),
                )
            )
        return results


@pytest.mark.parametrize("factor, rounds", [(1.0, 1), (1.03, 2)])
def test_a_program_that_repeats_itself_gets_one_plan_a_round(case, tmp_path, factor, rounds):
    config, memory, _, _, fitted = case
    backend = Backend(fitted, factor)
    checked = solve_checked(
        config, memory, backend, tmp_path, ("none", "full"), lambda known: build_problem(config, known, TIMES), solve
    )
    assert checked.rounds <= rounds + 1 and len(backend.plans) == checked.rounds
    assert max(peak.peak_mib for peak in checked.dryrun.stages) <= LIMIT
