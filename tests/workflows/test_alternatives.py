"""Interleaves and schedules are tried side by side, and the best of them is what is solved."""

from __future__ import annotations

import pytest

from taylor.base.errors import InfeasibleError
from taylor.parsers.read import read_config
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import CUT_OFF
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.solving.alternatives import AUTO, IMPOSSIBLE, choices, solve_alternatives
from tests.conftest import ROOT

PROBLEM = PipelineProblem(
    2,
    1,
    5,
    (LayerKind("dense", 8, 1.0, 10.0, {"none": 5.0, "full": 1.0}),),
    (0.0, 0.0),
    (1000.0, 1000.0),
    head_forward=1.0,
)
CHOICES = [
    (1, ScheduleSpec("1f1b")),
    (1, ScheduleSpec("gpipe")),
    (2, ScheduleSpec("interleaved")),
    (2, ScheduleSpec("megatron-interleaved")),
    (2, ScheduleSpec("zero_bubble_v")),
]


def stated(interleaves, schedule):
    return PROBLEM.replace(interleaves=interleaves, schedule=schedule)


def one(problem, to_beat, watch, name):
    return solve(problem, SolveOptions(cutoff=lambda: to_beat), on_progress=watch)


def test_the_best_choice_is_the_best_of_the_choices_solved_alone():
    problem, solution, outcomes = solve_alternatives(stated, CHOICES, one, lambda progress: None)
    alone = {}
    for interleaves, schedule in CHOICES:
        if schedule.name != "megatron-interleaved":
            alone[schedule.name] = solve(PROBLEM.replace(interleaves=interleaves, schedule=schedule)).objective
    assert solution.objective == pytest.approx(min(alone.values()), rel=1e-6)
    assert problem.schedule.name == min(alone, key=alone.get)
    for outcome in outcomes:
        if outcome.status == CUT_OFF:
            assert outcome.bound <= alone[outcome.schedule.name] * (1 + 1e-6)
            assert outcome.bound >= solution.objective


def test_a_schedule_that_does_not_exist_for_these_numbers_says_why():
    _, _, outcomes = solve_alternatives(stated, CHOICES[:1] + CHOICES[3:4], one, lambda progress: None)
    assert outcomes[1].status == IMPOSSIBLE and "5" in outcomes[1].note


def test_when_no_choice_fits_each_ones_reason_is_told():
    tight = PROBLEM.replace(limit_mib=(20.0, 20.0))
    with pytest.raises(InfeasibleError, match="1f1b vpp 1.*interleaved vpp 2"):
        solve_alternatives(
            lambda vpp, spec: tight.replace(interleaves=vpp, schedule=spec),
            [CHOICES[0], CHOICES[2]],
            one,
            lambda progress: None,
        )


@pytest.mark.parametrize("file, least, never", [
    ("pretrain_llama2_7b.yaml", {"1f1b 1", "gpipe 1", "interleaved 2", "zero_bubble_v 2"},
     "megatron"),
    ("pretrain_llama3_70b.sh", {"1f1b 1", "gpipe 1", "megatron-interleaved 2"}, "zero_bubble"),
])  # fmt: skip
def test_auto_tries_what_the_framework_runs(file, least, never):
    config = read_config(ROOT / "config" / file)
    tried = choices(config, AUTO, AUTO)
    names = {f"{spec.name} {vpp}" for vpp, spec in tried}
    # The environment, not the file, says which of MindSpore's interleaved orders runs.
    assert len(names) == len(tried) and {spec.low_memory for _, spec in tried} == {config.schedule.low_memory}
    assert least <= names and not any(never in name for name in names)
    assert max(vpp for vpp, _ in tried) * config.strategy.pp <= sum(config.model.layer_counts().values())


def test_what_is_given_is_kept_and_only_the_rest_varies():
    config = read_config(ROOT / "config" / "pretrain_llama2_7b.yaml")
    zero_bubble = ScheduleSpec("zero_bubble_v")
    assert choices(config, 2, zero_bubble) == [(2, zero_bubble)]
    assert {vpp for vpp, _ in choices(config, 3, AUTO)} == {3}
    assert [spec.name for _, spec in choices(config, 1, None)] == ["1f1b"]
