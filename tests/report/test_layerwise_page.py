"""A layer-wise plan drawn is the plan that the checker prices."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from benchmarks.layerwise_brute_force import random_case
from taylor.layerwise.checker import check_plan
from taylor.report.layerwise import outcome_of
from taylor.report.layerwise_page import layerwise_parts, layerwise_timeline


@pytest.mark.parametrize("seed", [seed for seed in range(20) if random_case(seed).solve().plan is not None][:8])
def test_a_drawn_step_ends_when_the_checker_says_and_memory_peaks_where_it_does(seed):
    case = random_case(seed)
    plan = case.solve().plan
    found = check_plan(case.job, plan, case.costs)
    drawn = layerwise_timeline(case.job, plan, case.costs, "plan")
    assert drawn.finish == pytest.approx(1e3 * found.step_s, rel=1e-12)
    parts = layerwise_parts(case.job, plan, case.costs)
    for stage, figures in enumerate(found.stages):
        assert drawn.memory[stage].peak_mib == pytest.approx(figures.peak_mib, rel=1e-9)
        assert sum(mib[stage] for mib in parts.mib.values()) == pytest.approx(figures.peak_mib, abs=2)


@pytest.mark.parametrize(
    ("bound", "solution", "words"),
    [(math.inf, None, "nothing fits"), (1.0, None, "cut off by its relaxation"),
     (1.0, SimpleNamespace(plan=None), "cut off by its contents"), (1.0, SimpleNamespace(plan="a plan"), "solved")],
)  # fmt: skip
def test_the_outcome_of_an_outer_choice_says_what_ended_it(bound, solution, words):
    assert outcome_of(SimpleNamespace(bound_s=bound, solution=solution)) == words
