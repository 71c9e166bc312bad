"""The walk to plans worth a dry-run, repeated by hand in a space of plans that is small enough to list."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from taylor.base.errors import InfeasibleError, NoSolutionError
from taylor.dryrun.fitting import near_plans as module
from taylor.dryrun.fitting.near_plans import LEAST_GAIN, REACH, SAFE, SOLVES, NearPlan, PlanSearch, StageRecord
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRun, DryRunResult, StagePeak
from taylor.pipeline.plan import FULL, PipelinePlan

LAYERS, STAGES = 8, 3


def plan(held, again):
    return PipelinePlan({"dense": (held,)}, {FULL: (again,)})


SPACE = [
    plan(held, again)
    for held in itertools.product(range(1, LAYERS), repeat=STAGES)
    if sum(held) == LAYERS
    for again in itertools.product(*(range(count + 1) for count in held))
]


def peaks_of(each):
    [held], [again] = each.layers["dense"], each.recompute[FULL]
    return np.array(
        [
            100.0 + (10.0 + 0.37 * s) * n + 7.1 * (STAGES - s) * (n - r)
            for s, (n, r) in enumerate(zip(held, again, strict=True))
        ]
    )


def time_of(each):
    [held], [again] = each.layers["dense"], each.recompute[FULL]
    slowest = max(3 * n + r for n, r in zip(held, again, strict=True))
    return 8.0 * slowest + 0.01 * sum(again) + 0.0017 * held[0] + 0.0003 * again[1]


NUMBERS = {repr(each): number for number, each in enumerate(SPACE)}
LISTED = sorted(((time_of(each), number, peaks_of(each)) for number, each in enumerate(SPACE)), key=lambda x: x[:2])
PEAKS = np.array([peaks for _, _, peaks in LISTED])


@dataclass(frozen=True)
class Problem:
    limit_mib: tuple

    def replace(self, limit_mib):
        assert all(type(each) is float for each in limit_mib)
        return replace(self, limit_mib=limit_mib)


class Solver:
    """The quickest listed plan within the limits."""

    def __init__(self, failing=InfeasibleError):
        self.asked, self.failing = [], failing

    def __call__(self, problem):
        self.asked.append(problem.limit_mib)
        fits = (np.array(problem.limit_mib) >= PEAKS).all(axis=1)
        if not fits.any():
            raise self.failing("nothing fits")
        time, number, _ = LISTED[int(np.argmax(fits))]
        return SimpleNamespace(plan=SPACE[number], objective=time)


def record():
    def rows(each, ones, stages):
        [held], [again] = each.layers["dense"], each.recompute[FULL]
        return np.array([[float(held[s]), float(again[s])] for s in stages])

    return StageRecord(SimpleNamespace(unknowns=("layers", "again"), rows=rows))


def chance(peak, limit, scatter):
    """The normal distribution's share below the limit."""
    return 0.5 * math.erfc(-(limit / peak - 1.0) / scatter / math.sqrt(2.0))


def walked(limits, scatter, tried, to_beat, number):
    """The plans, and the limits in the order in which they are solved: the worthiest open ones first."""
    opened, closed, solved, found = [], set(), [], {}

    def open_(worth, allowed):
        rounded = tuple(round(each) for each in allowed)
        if rounded not in closed:
            closed.add(rounded)
            opened.append((worth, allowed))

    open_(math.inf, tuple(limits))
    open_(math.inf, tuple(limit * (1 + scatter / 2) for limit in limits))
    solver = Solver()
    for _ in range(SOLVES):
        if not opened:
            break
        at = max(range(len(opened)), key=lambda place: (opened[place][0], -place))
        _, allowed = opened.pop(at)
        solved.append(allowed)
        try:
            solution = solver(Problem(allowed))
        except InfeasibleError:
            continue
        if solution.objective >= to_beat:
            continue
        peaks = peaks_of(solution.plan).tolist()
        likely = math.prod(chance(p, limit, scatter) for p, limit in zip(peaks, limits, strict=True))
        gain = likely * (to_beat - solution.objective)
        found.setdefault(NUMBERS[repr(solution.plan)], gain)
        for stage in range(STAGES):
            if solution.plan in tried or peaks[stage] / limits[stage] > 1 - REACH * scatter:
                lower = list(allowed)
                lower[stage] = min(lower[stage], peaks[stage] - 1)
                open_(gain, tuple(lower))
    fresh = [(gain, place) for place, gain in found.items() if SPACE[place] not in tried]
    fresh = sorted(fresh, key=lambda each: -each[0])
    return [SPACE[place] for gain, place in fresh if gain / to_beat > LEAST_GAIN][:number], solved


CASES = [
    (limits, scatter)
    for limits in ((150.0, 150.0, 150.0), (170.0, 145.0, 140.0), (135.0, 135.0, 150.0), (1000.0, 1000.0, 1000.0))
    for scatter in (0.005, 0.02, 0.06)
]


@pytest.mark.parametrize("tried", [0, 1, 3])
def test_the_walk_finds_what_it_finds_by_hand_in_the_same_order(tried):
    differing = 0
    for (limits, scatter), number in itertools.product(CASES, (4, 30)):
        solver = Solver(NoSolutionError if number == 4 else InfeasibleError)
        within = np.flatnonzero((np.array(limits) >= PEAKS).all(axis=1))[:tried]
        done = [SPACE[LISTED[place][1]] for place in within.tolist()]
        for to_beat in (90.0, 105.0, 130.0):
            solver.asked.clear()
            found = module.near_plans(
                Problem(()), record(), peaks_of, np.array(limits), scatter, solver,
                tried=done, to_beat=to_beat, number=number,
            )  # fmt: skip
            plans, solved = walked(limits, scatter, done, to_beat, number)
            assert [each.plan for each in found] == plans
            assert np.array(solver.asked) == pytest.approx(np.array(solved))
            differing += len(plans) > 1
            for near in found:
                assert near.time == time_of(near.plan) < to_beat
                shares = [chance(p, limit, scatter) for p, limit in zip(peaks_of(near.plan), limits, strict=True)]
                assert near.chances == pytest.approx(shares) and near.chance == pytest.approx(math.prod(shares))
    assert differing > 5


def test_no_more_is_solved_once_patience_ends(monkeypatch):
    clock = iter([0.0, 1.0, 59.0, 60.0, 61.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    solver = Solver()
    module.near_plans(
        Problem(()), record(), peaks_of, np.array([150.0] * 3), 0.02, solver, tried=[], to_beat=200.0, number=9
    )
    assert len(solver.asked) == 2


def answer(each, peaks):
    stages = tuple(
        StagePeak(
            stage, peak if isinstance(peak, float) else None, "x", failure="" if isinstance(peak, float) else peak
        )
        for stage, peak in enumerate(peaks)
    )
    return DryRunResult(DryRun(None, None, each), stages)


def test_a_content_that_was_measured_holds_or_not_until_any_scatters_by_more_than_rounding():
    one, other = plan((2, 3, 4), (0, 1, 2)), plan((2, 4, 3), (0, 1, 2))
    limits, fitted = np.array([150.0] * 3), np.array([149.0, 151.0, 150.0])
    by_fit = [chance(p, 150.0, 0.02) for p in fitted.tolist()]
    assert record().chances(one, fitted, limits, 0.02) == pytest.approx(by_fit) and by_fit[2] == 0.5
    for first, second, anew in (
        (150.0, 150.0, False),
        (148.0, 149.5, False),
        (148.0, 149.6, True),
        (151.0, 150.0, False),
    ):
        kept = record()
        kept.add(answer(one, [first, "crashed", OUT_OF_MEMORY]))
        kept.add(answer(other, [second, "crashed", 149.0]))
        assert kept.changed_law == anew
        expected = by_fit if anew else [float(max(first, second) <= 150.0), by_fit[1], 0.0]
        assert kept.chances(one, fitted, limits, 0.02) == pytest.approx(expected)
        expected = by_fit if anew else [float(max(first, second) <= 150.0), by_fit[1], 1.0]
        assert kept.chances(other, fitted, limits, 0.02) == pytest.approx(expected)


@pytest.mark.parametrize("failing", [InfeasibleError, NoSolutionError])
def test_a_round_fills_up_with_further_plans_and_remembers_all_of_them(failing):
    limits, scatter = np.array([150.0] * 3), 0.02
    for plans, taken in ((3, 1), (2, 2), (6, 0), (6, 2)):
        solver = Solver(failing)
        search = PlanSearch(record(), limits, scatter, solver, plans)
        chosen = [NearPlan(None, SimpleNamespace(plan=SPACE[n], objective=t), np.ones(3)) for t, n, _ in LISTED[:taken]]
        found = search.more(Problem(()), peaks_of, None, chosen)
        # What is to be beaten is the best plan that stays two deviations below every limit.
        assert solver.asked[0] == pytest.approx([(1 - SAFE * scatter) * 150.0] * 3)
        safe = LISTED[int(np.argmax(((1 - SAFE * scatter) * limits >= PEAKS).all(axis=1)))][0]
        before = [near.plan for near in chosen]
        assert [near.plan for near in found] == walked(limits, scatter, before, safe, plans - taken)[0]
        assert search.tried == [*before, *(near.plan for near in found)]
        again = search.more(Problem(()), peaks_of, found[0] if found else None, [])
        assert not [near for near in again if near.plan in search.tried[: len(before) + len(found)]]
    nothing = PlanSearch(record(), np.array([1.0] * 3), scatter, Solver(failing), 4)
    assert nothing.more(Problem(()), peaks_of, None, []) == [] and nothing._time_of_safe_plan(Problem(())) == math.inf
