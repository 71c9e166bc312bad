"""The order in which a search bounds, divides and solves choices, with times that are given by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from taylor.base.errors import InputError
from taylor.blackbox import degree_search
from taylor.blackbox.degree_search import (
    AHEAD,
    HALF_WIDTH,
    Job,
    _least_ms,
    choices,
    search,
    solved_choice,
    within_reach,
)
from taylor.blackbox.memory_laws import PredictedPeak
from taylor.blackbox.stage_problem import MIB, BlockTimes
from taylor.parsers.small_run import JobSizes, RunSetting, ShardedWeights
from taylor.pipeline_solver.model.solution import Status

STEPS = cast(Any, None)
SHARDED = ShardedWeights(2, 4)


class Choices:
    """Choices by hand: (lower bound, quick time, exact time, error) of each number of layers from 1 on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: Sequence[tuple[float, float, float | None, float]]):
        self.rows, self.divided, self.solved = rows, list[tuple[int, float]](), list[tuple[int, float]]()
        self.runs = [RunSetting(layers=at + 1) for at in range(len(rows))]
        monkeypatch.setattr(degree_search, "choices", lambda job: [(run, 8) for run in self.runs])
        monkeypatch.setattr(degree_search, "_least_ms", lambda run, micro, steps: rows[run.layers - 1][0])
        monkeypatch.setattr(degree_search, "_choice", self.choice)
        monkeypatch.setattr(degree_search, "solved_choice", self.solve)

    def choice(self, run: RunSetting, micro: int, job: Job, steps: Any, beat: float = math.inf) -> Any:
        self.divided.append((run.layers, beat))
        quick = self.rows[run.layers - 1][1]
        return SimpleNamespace(run=run, quick_ms=quick, quick_plan="plan" if quick % 2 else None)

    def solve(self, one: Any, job: Job, steps: Any, beat: float, seconds: float) -> Any:
        self.solved.append((one.run.layers, beat))
        _, _, exact, error = self.rows[one.run.layers - 1]
        return None if exact is None else SimpleNamespace(run=one.run, step_ms=exact, error=error)

    def search(self, count: int) -> Any:
        return search(cast(Any, SimpleNamespace(ranks=8)), STEPS, count)


def test_the_best_are_sorted_and_others_within_their_error_tie(monkeypatch):
    tie = 100 * (1 + HALF_WIDTH * 0.01)
    rows = [(1.0, 90.0, 100.0, 0.01), (1.0, 95.0, 98.0, 0.0), (1.0, 96.0, tie, 0.0), (1.0, 97.0, tie + 0.01, 0.0)]
    one = Choices(monkeypatch, [*rows, (1.0, math.inf, 1.0, 0.0)])
    found = one.search(2)
    assert [each.step_ms for each in found.best] == [98.0, 100.0] and [each.step_ms for each in found.near] == [tie]
    assert (found.legal, found.fitting, found.solved) == (5, 4, 4)
    # Two are known when the third is solved, and the worse of them with its error is to be beaten.
    assert one.solved == [(1, math.inf), (2, math.inf), (3, tie), (4, tie)]


def test_at_most_three_more_tie(monkeypatch):
    one = Choices(monkeypatch, [(1.0, 90.0 + at, 100.0, 0.0) for at in range(8)])
    found = one.search(1)
    assert len(found.best) == 1 and len(found.near) == 3 and found.solved == 8


def test_a_choice_that_could_only_just_tie_is_solved_and_one_beyond_ends_the_search(monkeypatch):
    beat = 97.0
    rows = [(1.0, 80.0, beat, 0.0), (1.0, beat / AHEAD, None, 0.0), (1.0, beat / AHEAD + 0.01, 1.0, 0.0)]
    one = Choices(monkeypatch, rows)
    assert rows[1][1] * AHEAD == beat and [each.step_ms for each in one.search(1).best] == [beat]
    assert [at for at, _ in one.solved] == [1, 2]


def test_sixteen_are_solved_of_which_those_without_any_plan_do_not_count(monkeypatch):
    # Those of an even time have no quick plan; the solver finds none either.
    rows = [(1.0, 101.0 if at % 4 else 100.0, 200.0 if at % 4 else None, 9.0) for at in range(40)]
    one = Choices(monkeypatch, rows)
    found = one.search(3)
    assert found.solved == 16 and len(one.solved) == 10 + 16
    # Without a plan so far the search goes on.
    none = Choices(monkeypatch, [(1.0, 101.0, 300.0 if at == 19 else None, 0.0) for at in range(20)])
    assert none.search(1).best[0].step_ms == 300.0 and len(none.solved) == 20
    with pytest.raises(InputError, match="have no plan of this job that surely fits"):
        Choices(monkeypatch, [(1.0, 101.0, None, 0.0)]).search(1)


def test_no_choice_is_divided_whose_bound_is_beyond_the_sixteenth(monkeypatch):
    quick = 97.0
    just, beyond = quick / AHEAD, quick / AHEAD + 0.001
    leading = [(1.0 + at, quick, 50.0, 0.0) for at in range(16)]
    one = Choices(monkeypatch, [*leading, (just, 99.0, 50.0, 0.0), (beyond, 99.0, 50.0, 0.0)])
    assert one.search(1).fitting == 17
    # Until there are sixteen, how long a choice takes matters whatever it is.
    assert one.divided == [*((at + 1, math.inf) for at in range(16)), (17, quick)]
    fewer = Choices(monkeypatch, [*leading[:15], (beyond, 99.0, 50.0, 0.0)])
    assert fewer.search(1).fitting == 16


def test_choices_in_reach_are_those_that_could_be_faster_than_a_time(monkeypatch):
    beat = 97.0
    rows = [(96.9, 99.0), (97.0, 90.0), (96.0, 100.0), (90.0, 99.99), (1.0, 95.0), (1.0, 50.0)]
    one = Choices(monkeypatch, [(*row, None, 0.0) for row in rows])

    def reached(fraction: Callable[[RunSetting], float]) -> list[int]:
        found = within_reach(cast(Any, None), STEPS, beat, fraction, [one.runs[5]])
        return [each.run.layers for each in found]

    assert beat == 100.0 * AHEAD and reached(lambda run: 1.0) == [5, 1, 4]
    # Where layers could take half the time all can; those that could be fastest come first.
    assert reached(lambda run: 0.5) == [2, 5, 1, 4, 3]
    assert reached(lambda run: 0.5 if run.layers == 3 else 1.0) == [3, 5, 1, 4]


def test_the_lower_bound_is_the_work_of_even_stages_without_recompute():
    times = BlockTimes(2.0, 10.0, 3.0, 20.0, dense=(4.0, 5.0))
    steps = cast(Any, SimpleNamespace(block_times=lambda run: times))
    run = RunSetting(layers=8, pp=4, dense=2)
    work = 6 * 30 + 2 * 9 + (2 + 3) * (1 + 2)
    assert _least_ms(run, 6, steps) == work * 6 / 4 + work * 3 / 4
    assert _least_ms(run.replace(vpp=2), 6, steps) == work * 6 / 4
    assert _least_ms(run.replace(pp=1), 6, steps) == work * 6


def runs(job: Job) -> list[RunSetting]:
    return [run for run, _ in choices(job)]


def test_choices_are_all_powers_of_two_that_can_start():
    own = RunSetting(tp=2, cp=1, ep=2, mbs=2, seq=8192, experts=8, layers=6, pp=1, dp=4)
    sizes = JobSizes(own, tp_ways=8, interleaves=True)

    def found(*searched: str, ranks: int = 16, batch: int = 64, **changes: Any) -> list[Any]:
        job = Job(JobSizes(**{**vars(sizes), **changes}), ranks, batch, 1.0, searched)
        return [tuple(getattr(run, name) for name in (*searched, "dp")) for run in runs(job)]

    assert found() == [(8,)] and found("tp") == [(1, 16), (2, 8), (4, 4), (8, 2)]
    # Of fewer than two thousand tokens a rank none starts.
    assert found("cp") == [(1, 8), (2, 4), (4, 2)]
    long = own.replace(seq=1 << 17, layers=200)
    assert [cp for cp, _ in found("cp", ranks=128, batch=256, own=long)] == [1, 2, 4, 8, 16]
    assert [pp for pp, _ in found("pp", ranks=1024, batch=1024, own=long)] == [1, 2, 4, 8, 16, 32, 64]
    assert found("pp") == [(1, 8), (2, 4), (4, 2)]  # Six layers have no more stages than four.
    assert found("ep") == [(1, 8), (2, 8), (4, 8), (8, 8)]
    assert found("mbs") == [(1, 8), (2, 8), (4, 8), (8, 8)]
    assert found("mbs", batch=16) == [(1, 8), (2, 8)]
    assert found(ranks=15) == [] and found(ranks=1) == []
    assert found("ep", own=own.replace(experts=1)) == [(1, 8)]
    assert found("ep", own=own.replace(experts=6)) == [(1, 8), (2, 8)]
    assert [micro for _, micro in choices(Job(sizes, 16, 64, 1.0, ()))] == [4]


def test_chunks_are_those_of_even_ones_or_of_powers_of_two():
    own = RunSetting(tp=1, seq=8192, layers=12, pp=2, dp=4)

    def found(layers: int = 12, pp: int = 2, batch: int = 32, interleaves: bool = True) -> list[int]:
        sizes = JobSizes(own.replace(layers=layers, pp=pp), tp_ways=1, interleaves=interleaves)
        return [run.vpp for run in runs(Job(sizes, 4 * pp, batch, 1.0, {"vpp"}))]

    # Five chunks of one or two layers are no even ones.
    assert found() == [1, 2, 3, 4, 6] and found(interleaves=False) == [1]
    assert found(layers=36) == [1, 2, 3, 4, 6, 8]  # No more than eight.
    assert found(layers=3) == [1] and found(layers=4) == [1, 2] and found(layers=40) == [1, 2, 4, 5, 8]
    assert found(pp=1) == [1] and found(batch=4 * 3) == [1]  # Three micro-batches are no whole rounds of two.


def test_copies_of_sharded_weights_are_powers_of_two_or_the_files_own():
    own = RunSetting(tp=1, seq=8192, layers=4, dp=8, replicas=4)

    def found(searched: set[str], ranks: int = 8, weights: Any = SHARDED) -> list[int]:
        job = Job(JobSizes(own, tp_ways=1, weights=weights), ranks, 64, 1.0, searched)
        return [run.replicas for run in runs(job)]

    assert found({"replicas"}) == [1, 2, 4] and found(set()) == [4]  # Eight copies have no shards.
    assert found(set(), ranks=4) == [] and found({"replicas"}, weights=None) == [1]


class Solves:
    """A solver by hand: its plans, the bytes that each stage takes, and what it was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plans: Sequence[Any], peaks: Sequence[Sequence[float]]):
        self.plans, self.peaks = iter(plans), iter(peaks)
        self.asked, self.problems = list[Any](), list[tuple[Any, ...]]()
        self.memory = SimpleNamespace(margin=0.25)
        monkeypatch.setattr(degree_search, "solve", self.solve)
        monkeypatch.setattr(degree_search, "stage_peaks", lambda *_: [self.peak(one) for one in next(self.peaks)])
        monkeypatch.setattr(degree_search, "peak_memory_mib", lambda problem, plan: [80.0, 80.0])
        monkeypatch.setattr(degree_search, "_problem", self.problem)
        monkeypatch.setattr(degree_search, "_with_own_tails", lambda problem, run, plan, steps: problem)
        monkeypatch.setattr(degree_search, "step_time", lambda problem, plan: 7.0)

    def peak(self, upper: float) -> PredictedPeak:
        return PredictedPeak(0.0, upper, upper * MIB)

    def solve(self, problem: Any, options: Any, warm_start: Any = None) -> Any:
        cutoff = options.cutoff and options.cutoff()
        self.asked.append((tuple(problem.limit_mib), options.time_limit, options.gap, cutoff, warm_start))
        return next(self.plans)

    def problem(self, run: Any, micro: int, job: Any, steps: Any, full: Any) -> Any:
        self.problems.append((run, micro, tuple(sorted(full))))
        return problem_of(1000.0, 1000.0)

    def relative_error(self, run: Any) -> float:
        return 0.125

    def choose(self, beat: float = math.inf, **more: Any) -> Any:
        choice = SimpleNamespace(run="run", micro_batches=8, problem=problem_of(900.0, 900.0), quick_plan="quick",
                                 first_least=0)  # fmt: skip
        job = cast(Any, SimpleNamespace(limit=100 * MIB))
        return solved_choice(cast(Any, choice), job, cast(Any, self), beat, **more)


def problem_of(*limits: float, unit: float | None = 2.0) -> Any:
    def changed(limit_mib: Any = limits, **_: Any) -> Any:
        return problem_of(*limit_mib, unit=unit)

    return SimpleNamespace(limit_mib=limits, unit_ms=unit, replace=changed)


def solution(first: int = 4, status: Status = Status.OPTIMAL, plan: bool = True) -> Any:
    grid = SimpleNamespace(total_layers=lambda: ((first, 1),))
    return SimpleNamespace(plan=grid if plan else None, objective=5.0, status=status)


def test_a_plan_that_fits_has_its_step_in_ms_and_begins_from_the_quick_one(monkeypatch):
    one = Solves(monkeypatch, [solution(), solution(plan=False), solution()], [(99.0, 100.0), (1.0, 1.0)])
    ranked = one.choose(beat=50.0)
    assert ranked.step_ms == 14.0 and ranked.error == 0.125 and ranked.micro_batches == 8
    assert one.choose() is None and one.choose(known="known", seconds=1.0).step_ms == 14.0
    assert one.asked == [((900.0, 900.0), 5.0, 1e-3, 25.0, "quick"), ((900.0, 900.0), 5.0, 1e-3, None, "quick"),
                         ((900.0, 900.0), 1.0, 1e-3, None, "known")]  # fmt: skip


def test_stages_over_the_limit_count_all_first_and_then_what_they_take_beyond_their_blocks(monkeypatch):
    over = [(101.0, 90.0), (101.0, 102.0), (125.0, 90.0), (90.0, 150.0)]
    one = Solves(monkeypatch, [solution()] * 9, over)
    assert one.choose() is None and len(one.asked) == 4  # No more than four times.
    assert one.problems == [("run", 8, (0,)), ("run", 8, (0, 1))]
    # Of 125 MiB with the margin 100 are without: 20 more than the problem counts, 40 of 150.
    assert [limits for limits, *_ in one.asked] == [(900.0, 900.0), (1000.0, 1000.0), (1000.0, 1000.0), (980.0, 1000.0)]
    again = Solves(monkeypatch, [solution()] * 9, [(101.0, 90.0), (125.0, 90.0), (125.0, 90.0), (90.0, 99.0)])
    assert again.choose().step_ms == 14.0 and again.asked[-1][0] == (960.0, 1000.0)
    less = Solves(monkeypatch, [solution()] * 9, [(101.0, 90.0), (101.0, 90.0), (90.0, 90.0)])
    monkeypatch.setattr(degree_search, "peak_memory_mib", lambda problem, plan: [99.0, 80.0])
    assert less.choose().step_ms == 14.0 and less.asked[-1][0] == (1000.0, 1000.0)


def test_no_tighter_limit_is_tried_where_the_best_is_too_slow_or_a_tensor_has_no_law(monkeypatch):
    slow = Solves(monkeypatch, [solution(status=Status.CUT_OFF)], [(101.0, 90.0)])
    assert slow.choose() is None and len(slow.asked) == 1
    unsure = Solves(monkeypatch, [solution()], [(101.0, 90.0)])
    monkeypatch.setattr(unsure, "peak", lambda upper: PredictedPeak(0.0, upper, upper * MIB, ("w",) * (upper > 100)))
    assert unsure.choose() is None and len(unsure.asked) == 1
