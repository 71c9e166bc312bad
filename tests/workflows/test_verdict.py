"""What a reader is told of a plan: its gain over the file's own one, its room, and what the figures rest on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import taylor
from benchmarks.measured_runs import MEASURED, PEAK, measured_runs, neighbour_error, summary
from taylor.cost_model.errors.known_error import NEIGHBOUR_ERROR
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.job.length import TrainingLength
from taylor.cost_model.profile import MemoryProfile
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import FEASIBLE, OPTIMAL, Solution, Termination
from taylor.pipeline_solver.solving.uniform_recompute import UNRESTRICTED_OBJECTIVE
from taylor.report.compress import hours_text
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.showing.verdict import (
    basis_line,
    expressible_cost,
    fit_line,
    gain_line,
    proof_text,
    speed_text,
    step_text,
    units_line,
    verdict,
)
from taylor.workflows.showing.verdict import summary as summary_pairs
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.statement.options import FileJob
from tests.conftest import ROOT
from tests.solver_cases import reference_problem

FILE = ROOT / "config" / "pretrain_deepseek3_128p.yaml"
SCRIPT = ROOT / "config" / "pretrain_llama3_70b.sh"


@pytest.fixture(scope="module")
def solved() -> PlannedFile:
    planned = taylor.solve(FILE).planned
    assert planned is not None and planned.own is not None
    return planned


def limited(profile: MemoryProfile, limit_mib: float) -> MemoryProfile:
    return MemoryProfile(**{**vars(profile), "source": "file", "device_limit_mib": limit_mib})


def test_the_gain_is_that_of_the_two_steps_which_stand_beside_it(solved: PlannedFile) -> None:
    assert solved.own is not None and solved.own.objective and solved.solution.objective
    gain = 100 * (solved.own.objective / solved.solution.objective - 1)
    assert gain > 0.1
    line = gain_line(solved)
    assert f"{gain:.1f} % faster than the plan in the file" in line
    assert step_text(solved.problem, solved.own.objective) in line and "MiB" not in line


def test_of_a_plan_that_does_not_fit_the_gain_is_told_and_by_how_much_it_is_over(solved: PlannedFile) -> None:
    assert solved.own is not None
    peaks = solved.own.peak_memory_mib
    tight = taylor.solve(FILE, memory=limited(solved.memory, max(peaks) - 500)).planned
    assert tight is not None and not tight.job_dict()["own_plan"]["fits"]
    line = gain_line(tight)
    assert "% " in line and f"that one is 500 MiB over its limit of {max(peaks) - 500:,.0f}" in line
    assert f"on stage {peaks.index(max(peaks))}" in line


def test_an_evaluated_plan_is_not_compared_with_itself() -> None:
    own = taylor.evaluate(FILE).planned
    assert own is not None and "faster" not in gain_line(own) and "nothing was solved" in gain_line(own)
    limit = max(own.solution.peak_memory_mib) - 500
    over = taylor.evaluate(FILE, memory=limited(own.memory, limit)).planned
    assert over is not None and over.solution.status.value == "over_limit"
    assert fit_line(over).startswith("does not fit; 500 MiB short on stage")
    assert "leave out -evaluate" in fit_line(over)


def test_a_file_without_a_plan_is_solved_without_a_comparison() -> None:
    planned = taylor.solve(taylor.read(FILE).replace(plan=None)).planned
    assert planned is not None and planned.own is None
    assert "the file has no plan" in gain_line(planned)


def test_room_below_the_error_of_its_source_is_tight_and_the_cure_mends_it(solved: PlannedFile) -> None:
    bold = evaluate_file(FileJob(FILE, dryrun=False, check=False, margin=MemoryMargin(risk=0.0)))
    known, limits = bold.config.memory_error("estimate"), bold.solution.memory_limit_mib
    assert known is not None
    full = bold.solution.replace(peak_memory_mib=tuple(limit - 152 for limit in limits))
    line = fit_line(PlannedFile(**{**vars(bold), "solution": full}))
    # A hair below the median of the known error, wherever that error moves.
    assert re.match(r"fits with 5\d % probability", line)
    assert line.partition(" probability: ")[2].startswith(f"152 of {limits[0]:,.0f} MiB (0.3 %) free on stage 0")
    assert (
        f"; tight: up to {known.upper() * (limits[0] - 152):,.0f} MiB with 5 % risk, as estimated peaks of such jobs"
        in line
    )
    assert "--risk 5%" in line
    roomy = evaluate_file(FileJob(FILE, dryrun=False, check=False))
    assert roomy.solution.memory_limit_mib[0] == pytest.approx(limits[0] / known.upper())
    brimful = roomy.solution.replace(peak_memory_mib=roomy.solution.memory_limit_mib)
    line = fit_line(PlannedFile(**{**vars(roomy), "solution": brimful}))
    assert line.startswith("fits with 95 % probability: ") and "tight" not in line
    assert f" of {limits[0]:,.0f} MiB (" in line and f"up to {limits[0]:,.0f} MiB with 5 % risk" in line
    bolder = PlannedFile(**{**vars(roomy), "config": roomy.config.replace(margin=MemoryMargin(risk=0.2))})
    assert bolder.peak_intervals is not None and roomy.peak_intervals is not None
    for (low, high), (least, most) in zip(bolder.peak_intervals, roomy.peak_intervals, strict=True):
        assert least is None or low is None or least < low
        assert most is None or high is None or high < most


def test_the_summary_is_in_the_field_s_units_and_the_solver_s_own_are_apart(solved: PlannedFile) -> None:
    text = "\n".join(f"{name} {told}" for name, told in summary_pairs(solved))
    for words in (" ms, proven to be the fastest", "tokens/s", "TFLOP/s a device (MFU ", "bubble", "offset"):
        assert words in text
    assert "forward" not in text and "forward" not in "\n".join(verdict(solved))
    assert f"{solved.solution.objective:.6f} forwards of one body layer" in units_line(solved)


def test_days_of_training_stand_behind_the_speed_where_its_length_is_known() -> None:
    own = evaluate_file(FileJob(FILE, dryrun=False, check=False, length=TrainingLength(tokens=1.5e12)))
    assert own.speed is not None and own.speed.train_days is not None
    assert own.speed.train_days * 86400 * own.speed.tokens_per_second == pytest.approx(1.5e12)
    assert f"{own.speed.train_days:,.1f} days for 1.5 T tokens" in speed_text(own.speed, own.facts.length)
    assert own.job_dict()["train_days"] == own.speed.train_days


def test_samples_and_hours_of_an_epoch_stand_behind_the_speed() -> None:
    own = evaluate_file(FileJob(FILE, dryrun=False, check=False, length=TrainingLength(epoch_samples=1_000_000)))
    speed = own.speed
    assert speed is not None and speed.epoch_hours is not None
    tokens = own.facts.config.rules.seq_length
    assert speed.samples_per_second * tokens == pytest.approx(speed.tokens_per_second)
    assert speed.epoch_hours * 3600 * speed.samples_per_second == pytest.approx(1e6)
    text = speed_text(speed, own.facts.length)
    assert f"{hours_text(speed.epoch_hours)} an epoch of 1,000,000 samples" in text and " samples/s; " in text
    assert own.job_dict()["epoch_hours"] == speed.epoch_hours


def with_steps(tmp_path, stated):
    text = SCRIPT.read_text(encoding="utf-8").replace("--micro-batch-size", f"{stated} --micro-batch-size", 1)
    path = tmp_path / "run.sh"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("stated", "hours", "words"),
    [
        ("--train-iters 5000", 5000 / 3600, "for 5,000 steps"),
        ("--train-samples 640000", 640_000 / 3600, "for 640,000 samples"),
        ("--train-iters $ITERATIONS", None, ""),
    ],
)
def test_the_files_own_steps_are_counted_in_hours(tmp_path, stated, hours, words) -> None:
    planned = evaluate_file(FileJob(with_steps(tmp_path, stated), dryrun=False, check=False))
    speed, step = planned.speed, planned.speed.step_ms / 1e3
    each = step if "iters" in stated else 1 / speed.samples_per_second
    assert speed.run_hours == (None if hours is None else pytest.approx(hours * each))
    assert words in speed_text(speed, planned.facts.length)


def test_the_steps_of_a_file_made_for_a_model_count_nothing(tmp_path) -> None:
    path = with_steps(tmp_path, "--train-iters 1000")
    of_file, made = (FileJob(path, dryrun=False, check=False, made_for_model=each) for each in (False, True))
    assert evaluate_file(of_file).speed.run_hours is not None and evaluate_file(made).speed.run_hours is None


def test_where_no_time_is_known_the_unit_is_said_in_plain_words() -> None:
    problem: PipelineProblem = reference_problem()
    assert step_text(problem.replace(unit_ms=None), 12.5) == "12.50 times the forward of one body layer"
    assert step_text(problem.replace(unit_ms=2.0), 12.5) == "25 ms"


def test_a_plan_without_a_bound_has_none_yet_and_never_a_gap_of_all() -> None:
    problem = reference_problem()
    found = Solution(FEASIBLE, Termination.TIME_LIMIT, objective=10.0, bound=0.0)
    assert found.gap is None and proof_text(problem, found).startswith("no bound yet")
    assert "gap 10.00 %" in proof_text(problem, found.replace(bound=9.0))


def test_a_proof_among_the_plans_of_a_file_names_its_limits() -> None:
    problem = reference_problem()
    found = Solution(OPTIMAL, Termination.PROVEN, objective=10.0, bound=10.0, statistics={UNRESTRICTED_OBJECTIVE: 9.5})
    assert proof_text(problem, found).startswith("proven to be the fastest within what the file can express in ")
    assert expressible_cost(found) == pytest.approx(10.0 / 9.5 - 1.0)
    same = found.replace(statistics={UNRESTRICTED_OBJECTIVE: 10.0})
    assert proof_text(problem, same).startswith("proven to be the fastest in ") and expressible_cost(same) is None


def test_what_the_figures_rest_on_names_what_was_assumed(solved: PlannedFile) -> None:
    assert basis_line(solved) == (
        "memory estimated by the analytical model, time ratios estimated for ascend-910b, "
        "assumed as no device was named"
    )
    given = evaluate_file(FileJob(FILE, device="ascend-910b", dryrun=False, check=False))
    assert basis_line(given).endswith("time ratios estimated for ascend-910b")


@pytest.mark.slow
@pytest.mark.skipif(not Path(MEASURED).is_dir(), reason="the measured runs are not here")
def test_nine_of_ten_measured_peaks_lie_in_the_intervals_that_other_sets_show() -> None:
    runs, _ = measured_runs(MEASURED)
    assert 85 <= summary(runs, PEAK).set_index("set").loc["all", "covered %"] <= 95
    assert pytest.approx(neighbour_error(runs), abs=0.01) == NEIGHBOUR_ERROR
