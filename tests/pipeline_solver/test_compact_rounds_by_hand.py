"""The rounds of the compact MILP, the solver's answers written down here; and its cuts, worked out by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.milp import compact_milp
from taylor.pipeline_solver.milp.compact_milp import _MilpRun, _narrows, _search_ranges, solve_compact
from taylor.pipeline_solver.milp.compact_model import CompactModel
from taylor.pipeline_solver.milp.linear_form import Row
from taylor.pipeline_solver.milp.milp import MilpOutcome, MilpStatus
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.model.progress import Progress
from taylor.pipeline_solver.model.solution import (
    FEASIBLE,
    INFEASIBLE,
    NO_SOLUTION,
    OPTIMAL,
    Solution,
    Status,
    Termination,
)
from taylor.pipeline_solver.timing.durations import chunk_durations, schedule_of
from tests.pipeline_solver.event_graph_reference import play
from tests.solver_cases import plan_of, small_problem

EVEN = plan_of({"body": [[2, 2]]})
UNEVEN = plan_of({"body": [[3, 1]]})
"""Of `small_problem`: the even plan takes 5 · 6 = 30, this one 4 · 9 + 3 = 39 or less."""


def without_recompute(**changes: Any) -> Any:
    return small_problem(recompute_ratio={}, **changes)


@dataclass
class Said:
    """What a scripted solver answers in one round."""

    status: MilpStatus
    bound: float
    plan: PipelinePlan | None = None
    met: tuple[PipelinePlan, ...] = ()
    told: tuple[float, ...] = ()
    interrupted: bool = False


@dataclass
class Scripted:
    """A MILP solver that answers as it is written, and keeps what it was asked and given."""

    said: list[Said]
    asked: list[dict[str, Any]] = field(default_factory=list)
    rows: list[list[Row]] = field(default_factory=list)
    model: Any = None
    known: int = 0

    def __call__(self, model: CompactModel) -> Scripted:
        self.model, self.known = model, len(model.form.rows)
        return self

    def add_rows(self, rows: list[Row]) -> None:
        self.rows.append(rows)

    def solve_milp(self, *, on_point: Any, on_bound: Callable[[float], None], **asked: Any) -> MilpOutcome:
        said = self.said[len(self.asked)]
        self.asked.append(asked)
        for plan in said.met:
            on_point(self.model.point_of(plan))
        for bound in said.told:
            on_bound(bound)
        values = None if said.plan is None else self.model.point_of(said.plan)
        return MilpOutcome(said.status, values, said.bound, said.interrupted)


STOPPED, BEST, FAILED = MilpStatus.STOPPED, MilpStatus.OPTIMAL, MilpStatus.FAILED


def solved(*said: Said, start: PipelinePlan = UNEVEN, **more: Any) -> tuple[Solution, Scripted]:
    """What becomes of the answers after a relaxation that is said to prove 20."""
    solver = Scripted(list(said))
    options = SolveOptions(
        gap=more.pop("gap", 1e-6), time_limit=more.pop("time_limit", None), cutoff=more.pop("cutoff", None)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CompactModel, "tighten_relaxation", lambda model, deadline: MilpOutcome(BEST, None, 20.0))
        found = solve_compact(without_recompute(), options, warm_start=start, make_solver=solver, **more)
    return found, solver


def test_a_plan_met_on_the_way_is_taken_and_starts_the_next_round() -> None:
    found, solver = solved(Said(STOPPED, 20.0, met=(EVEN, UNEVEN)), Said(BEST, 30.0))
    assert (found.plan, found.objective, found.bound) == (EVEN, 30.0, 30.0)
    assert (found.status, found.termination) == (OPTIMAL, Termination.PROVEN)
    first, second = solver.asked
    assert first["start"].tolist() == solver.model.point_of(UNEVEN).tolist()
    assert second["start"].tolist() == solver.model.point_of(EVEN).tolist()
    # New paths: twice the nodes, and the paths go to the solver.
    assert (first["node_limit"], second["node_limit"]) == (2000, 4000)
    assert [len(rows) for rows in solver.rows] == [len(solver.model.form.rows) - solver.known, 0]
    assert solver.rows[0] == solver.model.form.rows[solver.known :] and solver.rows[0]
    assert found.statistics == {"milp_rounds": 2, "cuts": len(found.cuts)}
    assert list(found.cuts) == solver.model.cuts


def test_rounds_go_on_while_a_finer_gap_may_be_asked_for() -> None:
    """Of a plan of 30, bounds of 28, 29.99 and 29.995 leave a tenth of 1/15, of 1/3000 and of 1/6000 of it open."""
    found, solver = solved(
        Said(STOPPED, 28.0), Said(BEST, 29.99), Said(BEST, 29.995), Said(BEST, 29.995), start=EVEN
    )  # fmt: skip
    assert [asked["gap"] for asked in solver.asked] == pytest.approx([1e-3, 1e-3, 1 / 30000, 1 / 60000])
    assert (found.status, found.termination, found.bound) == (FEASIBLE, Termination.STALLED, 29.995)
    # No new path in any round: eight times the nodes.
    assert [asked["node_limit"] for asked in solver.asked] == [2000, 16000, 128000, 1024000]


def test_a_round_that_failed_ends_the_search_unless_it_met_something_new() -> None:
    found, solver = solved(Said(FAILED, -np.inf, met=(EVEN,)), Said(FAILED, -np.inf))
    assert (found.termination, found.objective, len(solver.asked)) == (Termination.SOLVER_FAILURE, 30.0, 2)
    assert found.status is FEASIBLE


def test_an_optimum_with_new_paths_is_no_stalemate() -> None:
    found, solver = solved(Said(BEST, 29.0, EVEN), Said(BEST, 30.0))
    assert (found.termination, len(solver.asked)) == (Termination.PROVEN, 2)


def test_an_interrupted_round_ends_the_search_with_its_plan() -> None:
    found, _ = solved(Said(STOPPED, 25.0, EVEN, interrupted=True))
    assert (found.status, found.termination, found.plan) == (FEASIBLE, Termination.INTERRUPTED, EVEN)
    # Where the proof stood in the last moment the plan is optimal, and still the user asked to stop.
    found, _ = solved(Said(STOPPED, 30.0, EVEN, interrupted=True))
    assert (found.status, found.termination) == (OPTIMAL, Termination.INTERRUPTED)


def test_a_model_without_points_is_infeasible() -> None:
    found, solver = solved(Said(MilpStatus.INFEASIBLE, np.inf))
    assert (found.status, found.termination, found.plan, found.message) == (
        INFEASIBLE, Termination.INFEASIBLE, None, "",
    )  # fmt: skip
    assert len(solver.asked) == 1


@pytest.mark.parametrize(("cutoff", "ends"), [(29.0, True), (29.001, False)])
def test_a_bound_that_meets_the_step_time_to_beat_ends_the_search(cutoff: float, ends: bool) -> None:
    found, solver = solved(
        Said(STOPPED, 29.0), Said(BEST, 30.0), start=EVEN, cutoff=lambda: cutoff, most_rounds=1
    )  # fmt: skip
    assert len(solver.asked) == 1
    assert found.termination is (Termination.CUT_OFF if ends else Termination.ROUND_LIMIT)
    assert found.status is (Status.CUT_OFF if ends else FEASIBLE)
    assert solver.asked[0]["enough"]() is ends


def test_rounds_and_time_have_their_limits() -> None:
    found, solver = solved(Said(STOPPED, 28.0), Said(STOPPED, 28.5), Said(BEST, 30.0), start=EVEN, most_rounds=2)
    assert (found.termination, found.bound, len(solver.asked)) == (Termination.ROUND_LIMIT, 28.5, 2)
    found, solver = solved(start=EVEN, time_limit=0.0)
    assert (found.termination, found.plan, solver.asked) == (Termination.TIME_LIMIT, EVEN, [])
    found, solver = solved(Said(BEST, 30.0), start=EVEN)
    assert solver.asked[0]["time_limit"] is None
    found, solver = solved(Said(BEST, 30.0), start=EVEN, time_limit=500.0)
    assert 400.0 < solver.asked[0]["time_limit"] <= 500.0


def test_a_bound_never_falls_and_never_passes_the_plan() -> None:
    told: list[Progress] = []
    found, _ = solved(
        Said(STOPPED, 28.0, told=(29.0, 28.5, 29.25)), Said(BEST, 31.0), start=EVEN, on_progress=told.append
    )  # fmt: skip
    assert (found.bound, found.termination) == (30.0, Termination.PROVEN)
    rounds = [(one.bound, one.note.partition(":")[0]) for one in told if one.note.startswith("round")]
    assert rounds == [(29.0, "round 1"), (29.25, "round 1"), (29.25, "round 1"), (30.0, "round 2")]
    assert all(one.objective == 30.0 for one in told)


@pytest.mark.parametrize(("bound", "closed"), [(27.0, True), (26.99, False)])
def test_a_gap_is_closed_at_its_border(bound: float, closed: bool) -> None:
    run = _MilpRun(without_recompute(), SolveOptions(gap=0.1), "", None)
    assert not run.closed() and run.gap_of_round() == 1e-3
    model = CompactModel.build(without_recompute())
    assert run.offer(model, EVEN)
    assert not run.offer(model, EVEN)
    run.raise_bound(bound)
    assert (run.closed(), run.over(), run.solution(model).status is OPTIMAL) == (closed, closed, closed)


def test_without_a_plan_a_round_asks_for_a_tenth_of_a_thousandth() -> None:
    run = _MilpRun(without_recompute(), SolveOptions(gap=1e-6), "", None)
    assert run.gap_of_round() == pytest.approx(1e-4)
    run = _MilpRun(without_recompute(), SolveOptions(gap=2e-3), "", None)
    assert run.gap_of_round() == pytest.approx(5e-4)
    assert run.solution(CompactModel.build(without_recompute())).status is NO_SOLUTION


def test_a_worse_plan_brings_its_paths_and_nothing_else() -> None:
    run = _MilpRun(without_recompute(), SolveOptions(), "", None)
    model = CompactModel.build(without_recompute())
    run.raise_bound(100.0)
    run.offer(model, EVEN)
    assert (run.plan, run.objective, run.bound) == (EVEN, 30.0, 30.0)
    assert run.offer(model, UNEVEN)
    assert (run.plan, run.objective) == (EVEN, 30.0)
    assert run.to_beat() == 30.0
    run.cutoff = lambda: 29.5
    assert run.to_beat() == 29.5


def tailed() -> Any:
    return without_recompute(tail=(3.0, 2.0), lag=0.5)


def test_a_cut_holds_the_step_time_above_its_path_with_lags_and_tails() -> None:
    """Four forwards and backwards of stage 0 and one of stage 1, a lag of 0.75 and the tail of stage 1."""
    model = CompactModel.build(tailed())
    before = len(model.form.rows)
    cut = (4.0, 1.0, 4.0, 0.0, 0.0, 1.0, 0.75)
    row = model.add_cut(cut)
    assert row is not None and model.form.rows[before:] == [row]
    times = [model.plans.durations[r] for r in range(4)]
    assert dict(zip(row.columns, row.coefficients, strict=True)) == {
        model.step_time: 1.0, times[0]: -4.0, times[1]: -1.0, times[2]: -4.0,
    }  # fmt: skip
    assert (row.name, row.lower, row.upper) == ("path_cut[1]", 2.75, np.inf)
    assert model.add_cut(cut) is None and len(model.form.rows) == before + 1
    # Without its lag total it is taken with none.
    later = model.add_cut(cut[:-1])
    assert later is not None and (later.name, later.lower) == ("path_cut[2]", 2.0)
    assert model.add_cut((*cut[:-1], 0.0)) is None
    assert model.cuts == [cut, (*cut[:-1], 0.0)]
    model.forget(1)
    assert model.cuts == [cut] and model.form.rows[before:] == [row]
    again = model.add_cut(cut[:-1])
    assert again is not None and again.name == "path_cut[2]"
    assert model.add_cut(cut) is None


def test_the_cuts_at_a_plan_are_its_critical_paths_both_ways() -> None:
    model = CompactModel.build(tailed())
    durations = np.array([1.0, 3.0, 2.0, 6.0, 3.0, 2.0])
    longest, rows = model.cut_at(durations)
    # The fill, four micro-batches on stage 1, the way back and the tail, with a lag each way.
    assert longest == 1 + 0.5 + 36 + 0.5 + 2 + 3
    assert len(rows) == len(model.cuts) >= 1
    for cut in model.cuts:
        assert np.dot(cut[:-1], durations) + cut[-1] == pytest.approx(longest)
    assert model.cut_at(durations) == (longest, [])


def test_the_first_cuts_are_all_of_a_stages_work_with_what_lies_around_it() -> None:
    model = CompactModel.build(tailed())
    rows = model.seed()
    assert len(rows) == len(model.cuts)
    # Stage 0 has nothing around it but its own tail; around stage 1 lie a forward and a backward of stage 0.
    assert set(model.cuts) == {(4.0, 0.0, 4.0, 0.0, 1.0, 0.0, 0.0), (1.0, 4.0, 1.0, 4.0, 1.0, 0.0, 1.0)}


def test_a_point_and_the_plan_at_it_are_each_others() -> None:
    problem = without_recompute(tail=(3.0, 2.0))
    model = CompactModel.build(problem)
    point = model.point_of(UNEVEN)
    assert model.plan_of(point) == UNEVEN
    assert model.durations_of(point).tolist() == [3.0, 1.0, 6.0, 2.0, 3.0, 2.0]
    assert point[model.step_time] == play(schedule_of(problem), [0.0], [3.0, 1.0, 6.0, 2.0, 3.0, 2.0])[0]


def test_the_relaxation_ends_at_the_shortest_step_of_all_fractions_of_layers() -> None:
    """The step time is convex in the layers of stage 0, so that thirds find its least value."""
    problem = without_recompute(head_forward=0.5, lag=0.25)
    model = CompactModel.build(problem)
    outcome = model.tighten_relaxation()

    def step(first: float) -> float:
        last = 4.0 - first + 0.5
        return play(schedule_of(problem), [0.25], [first, last, 2 * first, 2 * last, 0.0, 0.0])[0]

    low, high = 1.0, 3.0
    for _ in range(200):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if step(a) <= step(b) else (a, high)
    assert outcome.status is BEST and outcome.values is not None
    assert outcome.bound == pytest.approx(step(low), rel=2e-7)
    assert outcome.values[model.step_time] == pytest.approx(step(low), rel=2e-7)


def test_a_relaxation_out_of_time_or_of_room_says_so() -> None:
    model = CompactModel.build(without_recompute())
    late = model.tighten_relaxation(time.monotonic())
    assert (late.status, late.values, late.bound) == (STOPPED, None, -np.inf)
    # Four layers of 10 + 4 MiB and more beside 12 MiB do not fit into 2 x 20.
    small = CompactModel.build(without_recompute(limit_mib=(20.0, 20.0)))
    assert small.tighten_relaxation().status is MilpStatus.INFEASIBLE
    assert solve_compact(without_recompute(limit_mib=(20.0, 20.0)), warm_start=EVEN).status is INFEASIBLE


@pytest.mark.parametrize(
    ("interleaves", "choices", "best", "bound", "narrowed"),
    [
        (2, 1, 1000.0, 997.9, True),
        (2, 1, 1000.0, 998.0, False),
        (1, 1, 1000.0, 900.0, False),
        (2, 2, 1000.0, 900.0, False),
        (2, 0, 1000.0, 900.0, False),
        (2, 1, np.inf, 900.0, False),
    ],
)
def test_ranges_are_narrowed_of_folded_pipelines_under_one_choice_whose_bound_is_far(
    interleaves: int, choices: int, best: float, bound: float, narrowed: bool
) -> None:
    """From two thousandths of the best plan on a bound is far."""
    run: Any = SimpleNamespace(to_beat=lambda: best, bound=bound, params=DEFAULT_PARAMS.milp)
    problem: Any = SimpleNamespace(interleaves=interleaves, uniform_recompute=("",) * choices)
    assert bool(_narrows(run, problem)) is narrowed


@pytest.mark.parametrize(
    ("narrowed", "limit", "ruled", "bound"),
    [
        (MilpOutcome(BEST, None, 25.0), 100.0, True, 26.0),
        (MilpOutcome(BEST, None, 25.0), None, True, 26.0),
        (MilpOutcome(BEST, None, 31.0), 100.0, False, 30.0),
        (MilpOutcome(BEST, None, 30.0 * (1 + 1e-9)), 100.0, False, 30.0),
        (MilpOutcome(STOPPED, None, 25.0), 100.0, False, 25.0),
        (MilpOutcome(MilpStatus.INFEASIBLE, None, np.inf), 100.0, False, 30.0),
    ],
)
def test_ranges_are_narrowed_and_short_chunks_ruled_out_before_the_search(
    monkeypatch: pytest.MonkeyPatch, narrowed: MilpOutcome, limit: float | None, ruled: bool, bound: float
) -> None:
    """Of the time that is left 70 % may go into it; plans of the best one's length, but for rounding, stay."""
    options = SolveOptions(gap=1e-6, time_limit=limit)
    run = _MilpRun(without_recompute(), options, "", None)
    model = CompactModel.build(without_recompute())
    run.offer(model, EVEN)
    asked: dict[str, Any] = {}
    ranges = object()

    def narrow(*given: Any) -> MilpOutcome:
        asked["narrow"] = given
        return narrowed

    def rule_out(*given: Any) -> MilpOutcome:
        asked["rule out"] = given
        return MilpOutcome(BEST, None, 26.0)

    def search(*given: Any) -> None:
        asked["search"] = given

    monkeypatch.setattr(compact_milp, "layer_ranges", lambda of: ranges)
    monkeypatch.setattr(compact_milp, "narrow_ranges", narrow)
    monkeypatch.setattr(compact_milp, "rule_out_short", rule_out)
    monkeypatch.setattr(compact_milp, "_search", search)
    now = time.monotonic()
    _search_ranges(run, model, options)
    below = 30.0 * (1 + 1e-9)
    assert asked["narrow"] == (model, ranges, pytest.approx(below, rel=1e-12), run.deadline)
    assert asked["narrow"][2] > 30.0
    assert ("rule out" in asked) is ruled
    if ruled:
        until = asked["rule out"][3]
        assert until is None if limit is None else until - now == pytest.approx(70.0, abs=1.0)
        assert asked["rule out"][4] == run.deadline
    assert asked["search"][3:] == (asked["narrow"][2], 16000)
    assert run.bound == pytest.approx(bound)
    assert "ranged_rounds" in run.solution(model).statistics


def test_a_search_below_a_step_time_proves_that_none_goes_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """No point below it: the bound is that step time. And no bound is told above it."""
    for said, bound in (
        (Said(MilpStatus.INFEASIBLE, np.inf), 29.0),
        (Said(STOPPED, 29.5, interrupted=True), 29.0),
        (Said(STOPPED, 28.5, interrupted=True, told=(29.5,)), 29.0),
    ):
        run = _MilpRun(without_recompute(), SolveOptions(gap=1e-6), "", None)
        model = CompactModel.build(without_recompute())
        run.offer(model, EVEN)
        solver = Scripted([said])
        compact_milp._search(run, model, solver, 29.0, 10)
        assert (run.bound, run.is_infeasible) == (bound, False)
        # The plan known is longer: it is no start.
        assert solver.asked[0]["start"] is None and solver.asked[0]["node_limit"] == 10
        assert model.form.upper[model.step_time] == 29.0
    run = _MilpRun(without_recompute(), SolveOptions(gap=1e-6), "", None)
    run.offer(model, EVEN)
    solver = Scripted([Said(STOPPED, 28.5, interrupted=True)])
    compact_milp._search(run, model, solver, 30.0, 10)
    assert solver.asked[0]["start"] is not None


def test_the_schedule_of_a_model_is_the_problems() -> None:
    problem = small_problem(interleaves=2, schedule=ScheduleSpec("interleaved"), lag=0.5, recompute_ratio={})
    plan = plan_of({"body": [[1, 1], [1, 1]]})
    model = CompactModel.build(problem)
    durations = chunk_durations(problem, plan)
    assert model.point_of(plan)[model.step_time] == play(schedule_of(problem), [0.5] * 3, durations.tolist())[0]


def test_ranges_are_narrowed_where_the_solver_and_the_rounds_are_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[str] = []
    monkeypatch.setattr(compact_milp, "_narrows", lambda run, problem: True)
    monkeypatch.setattr(compact_milp, "_search_ranges", lambda *given: ways.append("ranges"))
    monkeypatch.setattr(compact_milp, "_search", lambda *given: ways.append("free"))
    problem = without_recompute()
    solve_compact(problem, warm_start=EVEN)
    solve_compact(problem, warm_start=EVEN, most_rounds=1)
    solve_compact(problem, warm_start=EVEN, make_solver=Scripted([]))
    monkeypatch.setattr(compact_milp, "_narrows", lambda run, problem: False)
    solve_compact(problem, warm_start=EVEN)
    assert ways == ["ranges", "free", "free", "free"]


def test_a_run_begins_with_a_bound_of_nothing_and_tells_of_none() -> None:
    told: list[Progress] = []
    run = _MilpRun(without_recompute(), SolveOptions(), "", told.append)
    assert (run.bound, run.objective, run.plan, run.rounds) == (0.0, np.inf, None, 0)
    run.report("begun")
    run.note_bound(0.0)
    assert [(one.objective, one.bound, one.note) for one in told] == [(None, None, "begun")]


def test_without_a_start_the_plan_of_least_memory_begins_or_tells_that_none_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frugal: dict[str, Any] = {"plan": EVEN, "over": False, "asked": 0}

    def most_frugal(*given: Any) -> Any:
        frugal["asked"] += 1
        if isinstance(frugal["plan"], type):
            raise frugal["plan"]
        return frugal["plan"]

    monkeypatch.setattr(compact_milp, "most_frugal_plan", most_frugal)
    monkeypatch.setattr(compact_milp, "over_limit", lambda problem, plan: frugal["over"])
    monkeypatch.setattr(compact_milp, "explain_infeasible", lambda problem, plan: "too small")
    start: Any = None
    found, solver = solved(Said(BEST, 30.0), start=start)
    assert solver.asked[0]["start"].tolist() == solver.model.point_of(EVEN).tolist()
    assert (found.plan, found.termination, frugal["asked"]) == (EVEN, Termination.PROVEN, 1)
    solved(Said(BEST, 30.0), start=EVEN)
    late, solver = solved(start=start, time_limit=0.0)
    assert (late.status, late.termination, solver.asked) == (NO_SOLUTION, Termination.TIME_LIMIT, [])
    assert frugal["asked"] == 1
    for plan, over in ((None, False), (EVEN, True)):
        frugal |= {"plan": plan, "over": over}
        none, solver = solved(start=start)
        assert (none.status, none.message, solver.asked) == (INFEASIBLE, "too small", [])
    for raised, end in ((KeyboardInterrupt, Termination.INTERRUPTED), (TimeoutError, Termination.TIME_LIMIT)):
        frugal["plan"] = raised
        ended, _ = solved(start=start)
        assert (ended.status, ended.termination) == (NO_SOLUTION, end)


def test_cuts_that_are_given_come_first() -> None:
    cut = (2.0, 2.0, 2.0, 2.0, 0.0, 1.0, 0.0)
    found, _ = solved(Said(BEST, 30.0), start=EVEN, cuts=[cut])
    assert cut in found.cuts[:3]
