"""Encoders in a pipeline's bubbles: the search, its bound, model file and checker, by hand and by brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest

from benchmarks.brute_force import random_plan, random_problem
from benchmarks.random_insertions import instance, model_file_faults, portion
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import BACKWARD, FORWARD, ScheduleSpec
from taylor.pipeline_solver.check.insertion import check_insertion
from taylor.pipeline_solver.heuristics.insertion import quick_insertion
from taylor.pipeline_solver.milp.insertion_milp import solve_insertion, write_insertion_mps
from taylor.pipeline_solver.model.insertion import EncoderRun, EncoderWork, Insertion
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.solving.insertion import best_insertion
from taylor.pipeline_solver.timing.idle_windows import idle_windows

DENSE = LayerKind("dense", 2, 1.0, 10.0, {"none": 1.0})
TWO = PipelineProblem(
    2, 1, 2, (DENSE,), (0.0, 0.0), (100.0, 100.0), ScheduleSpec("1f1b"), backward_ratio=2.0, recompute_ratio={}
)
"""1F1B of two stages and two micro-batches: forwards of 1, backwards of 2, a step of 9."""
EVEN = PipelinePlan({"dense": ((1, 1),)}, {})


def test_each_micro_batch_of_a_frozen_encoder_runs_where_it_ends_first() -> None:
    work = EncoderWork(pieces=2, forward=0.5)
    found = best_insertion(TWO, EVEN, work)
    # Both stages run one before the first task: the second stage's second micro-batch has time until 1 + 1.
    assert found.proven and found.insertion is not None
    assert (found.insertion.step, found.insertion.delay) == (10.0, 1.0)
    assert check_insertion(TWO, EVEN, work, found.insertion) == []


def test_a_trained_encoder_s_backward_follows_its_gradient() -> None:
    work = EncoderWork(pieces=1, forward=1.0, backward=1.5, lag=0.25)
    found = best_insertion(TWO, EVEN, work)
    assert found.proven and found.insertion is not None
    # A delay of 1 has time for one forward on each stage; the second micro-batch's is the other stage's, whose backward
    # waits for the gradient of 9 and its transfer. A delay of 1.25 turns the stages round and gains nothing.
    assert found.insertion.step == pytest.approx(1.0 + 9.0 + 0.25 + 1.5)
    assert check_insertion(TWO, EVEN, work, found.insertion) == []


def test_the_search_equals_the_enumeration_of_all_insertions() -> None:
    result = portion(1, 0, 10)
    assert result["faults"] == [] and result["plans"] > 300 and result["infeasible"] < 5


@pytest.mark.parametrize("seed", range(6))
def test_the_first_insertion_passes_the_checker_and_its_step_is_not_below_the_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cases = 0
    while cases < 4:
        problem = random_problem(rng)
        plan = random_plan(problem, rng) if problem.layers < 12 else None
        if plan is None:
            continue
        cases += 1
        work = EncoderWork(3, 0.4, float(rng.integers(2)) * 0.7, 0.1)
        idle = idle_windows(problem, plan, work)
        quick = quick_insertion(idle, work)
        assert (quick is None) == (not any(idle.alive))
        if quick is not None:
            assert check_insertion(problem, plan, work, quick) == []
            assert idle.step < idle.least_step(work) <= quick.step + 1e-9


def test_the_encoder_runs_where_there_is_memory_for_what_it_keeps() -> None:
    work = EncoderWork(pieces=2, forward=0.5, backward=0.5, kept_mib=30.0)
    tight = TWO.replace(limit_mib=(10.0 + 2.0 + 60.0, 10.0 + 2.0))
    assert idle_windows(tight, EVEN, work).alive == (2, 0)
    found = best_insertion(tight, EVEN, work)
    assert found.insertion is not None and check_insertion(tight, EVEN, work, found.insertion) == []
    assert {run.stage for run in found.insertion.runs} == {0}
    roomy = best_insertion(TWO, EVEN, work)
    assert roomy.insertion is not None and roomy.insertion.step < found.insertion.step
    faults = check_insertion(tight, EVEN, work, roomy.insertion)
    assert any("MiB above its limit" in fault for fault in faults)
    # With memory for one, the second micro-batch's forward would wait for the first one's backward, and that for it.
    one = TWO.replace(limit_mib=(10.0 + 2.0 + 30.0, 10.0 + 2.0))
    assert best_insertion(one, EVEN, work).insertion is None


def test_a_stage_above_its_limit_takes_no_frozen_encoder_either() -> None:
    work = EncoderWork(pieces=2, forward=0.5)
    over = TWO.replace(limit_mib=(11.0, 100.0))
    assert idle_windows(over, EVEN, work).alive == (0, 2)
    for found in (best_insertion(over, EVEN, work), solve_insertion(idle_windows(over, EVEN, work), work, None)):
        assert found.insertion is not None and {run.stage for run in found.insertion.runs} == {1}


def _moved(insertion: Insertion, at: int, **changes: object) -> Insertion:
    runs = list(insertion.runs)
    runs[at] = replace(runs[at], **changes)  # type: ignore[arg-type]
    return replace(insertion, runs=tuple(runs))


def test_the_checker_names_what_is_wrong_with_an_insertion() -> None:
    work = EncoderWork(pieces=1, forward=1.0, backward=1.5, lag=0.25)
    found = best_insertion(TWO, EVEN, work).insertion
    assert found is not None
    forward = next(i for i, run in enumerate(found.runs) if run.direction == FORWARD and run.micro_batch == 0)
    backward = next(i for i, run in enumerate(found.runs) if run.direction == BACKWARD and run.micro_batch == 1)
    wrong = {
        "after the first stage needs it": _moved(found, forward, start=0.5),
        "at once": _moved(found, forward, start=found.delay + 0.5),
        "before its gradient is there": _moved(found, backward, start=found.runs[backward].start - 1.0),
        "of 1 pieces": _moved(found, backward, pieces=2),
        "does not lie on one stage": _moved(found, backward, stage=1 - found.runs[backward].stage),
        "as claimed": replace(found, step=found.step - 0.5),
        "below 0": replace(found, delay=-1.0),
        "that the step does not have": replace(found, runs=(*found.runs, EncoderRun(0, 30.0, 7, FORWARD, 1))),
    }
    for words, insertion in wrong.items():
        assert any(words in fault for fault in check_insertion(TWO, EVEN, work, insertion)), words


def test_the_milp_alone_finds_what_the_search_finds() -> None:
    cases = [instance(2, number) for number in range(12)]
    feasible = [case for case in cases if case[3] < inf]
    assert len(feasible) > 6
    for problem, plan, work, truth, _ in feasible:
        found = solve_insertion(idle_windows(problem, plan, work), work, None)
        assert found.proven and found.insertion is not None and found.insertion.step == pytest.approx(truth, rel=1e-9)


def test_the_model_file_has_the_optimum_under_other_readers(tmp_path: Path) -> None:
    work = EncoderWork(pieces=2, forward=0.7, backward=0.9, lag=0.25)
    found = best_insertion(TWO, EVEN, work).insertion
    assert found is not None and model_file_faults(TWO, EVEN, work, found.step) == []
    text = write_insertion_mps(TWO, EVEN, work, found, tmp_path / "m.mps").read_text(encoding="utf-8")
    assert "forward[0,0,0]" in text and f"step {found.step!r}" in text


def test_a_longer_encoder_never_takes_less() -> None:
    steps = [
        found.step
        for pieces in (1, 2, 3)
        if (found := best_insertion(TWO, EVEN, EncoderWork(pieces, 0.5, 0.5)).insertion) is not None
    ]
    assert len(steps) == 3 and all(a < b for a, b in itertools.pairwise(steps))
