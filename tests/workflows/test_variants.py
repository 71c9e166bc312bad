"""Variants of a job: which there are, how they share the time, and the best of every combination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from taylor.base.errors import InfeasibleError, InputError
from taylor.dryrun.estimate import EstimateBackend
from taylor.dryrun.interface import DryRun, DryRunResult
from taylor.parsers.read import read_config
from taylor.pipeline.known_orders import known_orders
from taylor.pipeline.schedule import AUTO, SEARCHED, ScheduleSpec
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import CUT_OFF, FEASIBLE, Solution, Termination
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.showing.alternative import IMPOSSIBLE, Alternative
from taylor.workflows.solving import solve_variants, variants
from taylor.workflows.solving.solve_file import solve_file, solve_stated
from taylor.workflows.statement.options import ANY, LISTED, FileJob, Outputs
from taylor.workflows.statement.stated_file import StatedFile
from tests.conftest import ROOT
from tests.solver_cases import plan_of, small_problem

PLAN = plan_of({"body": [[2, 2]]})
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
CARDS = (("h100-80g", 1), ("a100-40g", 1))
AUTOMATIC = SolveOptions(workers=1)


class Stated(variants.Variant):
    """A variant whose problem is stated by hand."""

    def __init__(self, name: str, problem: PipelineProblem) -> None:
        running = SimpleNamespace(strategy=SimpleNamespace(vpp=problem.interleaves), schedule=problem.schedule)
        file = SimpleNamespace(known_plan=lambda problem: None, config=SimpleNamespace(path="job.sh"), running=running)
        super().__init__(file, None, (name,))  # type: ignore[arg-type]
        object.__setattr__(self, "problem", lambda: problem)


def of_length(name: str, forward: float) -> Stated:
    body = small_problem().kinds[0]
    return Stated(name, small_problem(kinds=(type(body)(name, 4, forward, 10.0, body.activation_mib),)))


def of_choices(choices: Sequence[tuple[int, ScheduleSpec]], problem: PipelineProblem = PROBLEM) -> list[Stated]:
    return [Stated(f"{spec.name} vpp {vpp}", problem.replace(interleaves=vpp, schedule=spec)) for vpp, spec in choices]


def best_of(stated: Sequence[variants.Variant], how: SolveOptions = AUTOMATIC) -> solve_variants.Best:
    return solve_variants.best_of(stated, how, None, None)


def test_a_variant_that_was_stopped_early_has_another_slice_against_the_best_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The hard one comes first by its bound, has half of the time, and the time that the others do not need later."""
    turns = []

    def of_one(problem, how, on_progress, store, name, known=None):  # type: ignore[no-untyped-def]
        turns.append((name, round(how.time_limit, 1), None if how.cutoff is None else how.cutoff()))
        if name == "easy":
            return Solution(FEASIBLE, plan=PLAN, objective=90.0, bound=90.0, seconds=0.1).closed(interrupted=False)
        if len(turns) == 1:
            return Solution(FEASIBLE, plan=PLAN, objective=100.0, bound=50.0, seconds=0.1).ended_by(
                Termination.TIME_LIMIT
            )
        return Solution(FEASIBLE, plan=PLAN, objective=80.0, bound=80.0, seconds=0.1).closed(interrupted=False)

    monkeypatch.setattr(solve_variants, "solve_or_find", of_one)
    best = best_of([of_length("easy", 2.0), of_length("hard", 1.0)], SolveOptions(time_limit=60.0))
    assert best.variant.name == "hard" and best.solution.objective == 80.0 and best.solution.gap == 0.0
    assert [name for name, _, _ in turns] == ["hard", "easy", "hard"]
    assert [cutoff for _, _, cutoff in turns] == [None, 100.0, 90.0]
    assert turns[0][1] == pytest.approx(30.0, abs=0.2) and turns[2][1] == pytest.approx(60.0, abs=0.5)
    assert [(one.label, one.objective) for one in best.alternatives] == [("easy", 90.0), ("hard", 80.0)]


def test_the_best_variant_is_the_best_of_the_variants_solved_alone() -> None:
    best = best_of(of_choices(CHOICES))
    alone = {}
    for interleaves, schedule in CHOICES:
        if schedule.name != "megatron-interleaved":
            alone[schedule.name] = solve(PROBLEM.replace(interleaves=interleaves, schedule=schedule)).objective
    least = min(step for step in alone.values() if step is not None)
    assert best.solution.objective == pytest.approx(least, rel=1e-6)
    assert alone[best.problem.schedule.name] == pytest.approx(least, rel=1e-6)
    assert [one.schedule for one in best.alternatives] == [spec for _, spec in CHOICES]
    for one in best.alternatives:
        if one.status == CUT_OFF:
            assert one.bound is not None and one.bound <= (alone[one.schedule.name] or 0.0) * (1 + 1e-6)
            assert one.bound >= least * (1 - 1e-6)


def test_a_schedule_that_does_not_exist_for_these_numbers_gives_its_reason() -> None:
    outcome = best_of(of_choices(CHOICES[:1] + CHOICES[3:4])).alternatives[1]
    assert outcome.status == IMPOSSIBLE and "5" in outcome.note


def test_when_no_variant_fits_the_message_gives_each_ones_reason() -> None:
    tight = PROBLEM.replace(limit_mib=(20.0, 20.0))
    with pytest.raises(InfeasibleError, match="1f1b vpp 1.*interleaved vpp 2"):
        best_of(of_choices([CHOICES[0], CHOICES[2]], tight))


@pytest.mark.parametrize("file, least, never", [
    ("pretrain_llama2_7b.yaml", {"1f1b 1", "gpipe 1", "interleaved 2", "zero_bubble_v 2"},
     "megatron"),
    ("pretrain_llama3_70b.sh", {"1f1b 1", "gpipe 1", "megatron-interleaved 2"}, "zero_bubble"),
])  # fmt: skip
def test_auto_tries_what_the_framework_runs(file: str, least: set[str], never: str) -> None:
    config = read_config(ROOT / "config" / file)
    tried = variants.choices(config, AUTO, AUTO)
    names = {f"{spec.name} {vpp}" for vpp, spec in tried}
    # The environment, not the file, says which of MindSpore's interleaved orders runs.
    assert len(names) == len(tried) and {spec.low_memory for _, spec in tried} == {config.schedule.low_memory}
    assert least <= names and not any(never in name for name in names)
    assert max(vpp for vpp, _ in tried) * config.strategy.pp <= sum(config.model.layer_counts().values())


def test_what_is_given_is_kept_and_only_the_rest_varies() -> None:
    config = read_config(ROOT / "config" / "pretrain_llama2_7b.yaml")
    zero_bubble = ScheduleSpec("zero_bubble_v")
    assert variants.choices(config, 2, zero_bubble) == [(2, zero_bubble)]
    assert {vpp for vpp, _ in variants.choices(config, 3, AUTO)} == {3}
    assert [spec.name for _, spec in variants.choices(config, 1, None)] == ["1f1b"]


def small(folder: Path, suffix: str) -> Path:
    """Job of eight layers on two stages, small enough to be solved in every variant."""
    if suffix == "sh":
        text = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text()
        changes = {"layers 80": "layers 8", "PP=4": "PP=2", "NNODES=4": "NNODES=2", "batch-size 32": "batch-size 6"}
    else:
        text = (ROOT / "config" / "pretrain_llama2_7b.yaml").read_text()
        changes = {"num_layers: 32": "num_layers: 8"}
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / f"job.{suffix}"
    path.write_text(text)
    return path


def by_hand(file: StatedFile, folder: Path) -> Iterator[PipelineProblem]:
    """Problem of every combination, each stated by flags that leave nothing open."""
    job, config = file.job, file.config
    open_schedule = (AUTO if job.schedule == AUTO else None) if not job.is_searched else ScheduleSpec(SEARCHED)
    places = variants.choices(file.running, job.vpp or config.strategy.vpp, open_schedule) if job.has_choices else [
        (config.strategy.vpp, None)
    ]  # fmt: skip
    cards = [job.stage_devices]
    if job.stage_order == ANY:
        cards.append(job.stage_devices[::-1])
    for moved in (False, True)[: 1 + job.offload_optimizer]:
        for vpp, spec in places:
            for rows in cards:
                name = job.schedule if spec is None else spec.name
                plain = replace(
                    job, vpp=vpp, schedule=name, stage_devices=rows, stage_order=LISTED, offload_optimizer=False
                )
                one = StatedFile.of(plain, config, file.chosen)
                one = variants.on_host(one) if moved else one
                problem = one.problem(one.obtain_memory(None, folder))
                if not job.is_searched:
                    yield problem
                    continue
                orders = known_orders(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
                yield from (problem.replace(schedule=order) for order in orders.values())


COMBINATIONS = [
    ("yaml", {"vpp": AUTO, "stage_devices": CARDS}, 4),
    ("yaml", {"vpp": AUTO, "schedule": AUTO, "stage_devices": CARDS, "stage_order": ANY}, 12),
    ("yaml", {"vpp": AUTO, "schedule": SEARCHED}, None),
    ("yaml", {"schedule": SEARCHED, "stage_devices": CARDS, "stage_order": ANY}, 6),
    ("sh", {"vpp": AUTO, "schedule": AUTO, "offload_optimizer": True}, 10),
    ("sh", {"schedule": SEARCHED, "offload_optimizer": True}, 6),
    ("sh", {"vpp": AUTO, "stage_devices": CARDS, "stage_order": ANY, "offload_optimizer": True}, 16),
]


@pytest.mark.parametrize(("suffix", "changes", "count"), COMBINATIONS)
def test_every_combination_gives_the_best_of_its_variants_and_a_bound_of_all(
    tmp_path: Path, suffix: str, changes: dict[str, object], count: int | None
) -> None:
    job = FileJob(small(tmp_path, suffix), dryrun=False, check=False, **changes)  # type: ignore[arg-type]
    file = StatedFile.read(job)
    planned = solve_stated(file, file.obtain_memory(None, tmp_path), AUTOMATIC)
    alone = []
    for problem in by_hand(file, tmp_path):
        assert problem.unit_ms == planned.problem.unit_ms
        try:
            alone.append(solve(problem, AUTOMATIC).objective)
        except ValueError:  # the schedule does not exist for the numbers
            alone.append(None)
    least = min(step for step in alone if step is not None)
    step, bound = planned.solution.objective, planned.solution.bound
    assert step is not None and bound is not None and planned.plan is not None
    assert len(planned.alternatives) == len(alone) and count in (None, len(alone))
    assert bound <= step * (1 + 1e-9) and bound <= least * (1 + 1e-9)
    if job.is_searched:
        assert step <= least * (1 + 1e-6) and planned.order is not None
    else:
        assert step == pytest.approx(least, rel=1e-5) and planned.solution.gap == pytest.approx(0.0, abs=1e-5)
        assert [one.objective for one in planned.alternatives if one.name == planned.variant] == [step]
    assert check(planned.problem, planned.plan, step) == []
    assert (planned.even is not None) == bool(job.stage_devices)


class TooLarge(EstimateBackend):
    """The analytical model, where the first layers of some schedules need more than any device has."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def measure(self, runs: Sequence[DryRun]) -> list[DryRunResult]:
        results = []
        for run, result in zip(runs, super().measure(runs), strict=True):
            more = 1e6 if run.config.schedule.name in self.names else 0.0
            peaks = tuple(replace(peak, peak_mib=(peak.peak_mib or 0.0) + more) for peak in result.stages)
            results.append(replace(result, stages=peaks))
        return results


def test_the_check_takes_the_next_variant_where_the_best_one_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small(tmp_path, "yaml")
    steps: dict[tuple[str, ...], tuple[str, float, dict[str, Alternative]]] = {}
    for names in ((), ("interleaved",), ("interleaved", "1f1b")):
        monkeypatch.setattr(StatedFile, "open_backend", lambda self, folder, n=names: nullcontext(TooLarge(*n)))
        job = FileJob(path, dryrun=False, vpp=AUTO, schedule=AUTO)
        planned = solve_file(job, AUTOMATIC, Outputs(tmp_path / f"out{len(names)}", write=False))
        assert planned.dryrun is not None and planned.solution.objective is not None
        assert planned.solution.bound is not None and planned.solution.bound <= planned.solution.objective
        assert check(planned.problem, planned.plan, planned.solution.objective) == []
        tried = {one.name: one for one in planned.alternatives}
        assert len(tried) == 6
        steps[names] = planned.problem.schedule.name, planned.solution.objective, tried
    assert [name in names for names, (name, _, _) in steps.items()] == [False] * 3
    first, second, third = (step for _, step, _ in steps.values())
    assert first < second < third
    _, step, last = steps[("interleaved", "1f1b")]
    assert "after 1 dry-runs of solved plans nothing fits" in last["1f1b vpp 1"].note
    assert step == min(one.objective for one in last.values() if one.objective is not None)


def test_more_variants_than_can_be_solved_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = StatedFile.read(FileJob(small(tmp_path, "yaml"), dryrun=False, check=False, vpp=AUTO, schedule=AUTO))
    monkeypatch.setattr(variants, "MOST_ORDERS", 5)
    with pytest.raises(InputError, match="6 variants of the job are too many"):
        variants.variants_of(file, file.obtain_memory(None, tmp_path))
