"""The exact search of one outer choice, and of the choices around it."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.layerwise_brute_force import BruteForce, compare, compare_milp, random_case
from taylor.layerwise import search as searching
from taylor.layerwise.checker import check_plan
from taylor.layerwise.exact import relaxation
from taylor.layerwise.exact import solve as solving
from taylor.layerwise.exact.contents import StageListing, coarsened
from taylor.layerwise.exact.events import LaggedGraph
from taylor.layerwise.exact.fixed import FixedProblem, least_path
from taylor.layerwise.exact.large import LargeSearch
from taylor.layerwise.exact.relaxation import relax
from taylor.layerwise.exact.solve import assembled_plan, solve_fixed
from taylor.layerwise.galvatron.tasks import hetu_tasks
from taylor.layerwise.search import OuterSpace, cut_off, search
from taylor.layerwise.space import SpaceLimits
from tests import layerwise_cases as cases

FEW = [seed for seed in range(90) if random_case(seed).job.layers <= 4][:14]
LOST_BY_HIGHS_1_16_0 = 514


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*FEW, LOST_BY_HIGHS_1_16_0])
def test_no_plan_of_a_small_job_is_better(seed):
    assert compare(seed)[0] == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [665, 1885])
def test_a_plan_far_above_the_bound_is_found(seed):
    case = random_case(seed)
    problem = case.problem()
    relaxed = relax(problem, LaggedGraph.of(problem.schedule))
    assert relaxed is not None and relaxed.bound * 1.2 < BruteForce(case).best_s()
    assert compare(seed)[0] == ""


def test_a_relaxation_whose_time_ends_between_two_lps_keeps_the_bound_of_the_first(monkeypatch):
    problems = (random_case(seed).problem() for seed in range(100))
    problem, graph, first = next(
        (problem, graph, first)
        for problem in problems
        if (first := relax(problem, graph := LaggedGraph.of(problem.schedule), rounds=1)) is not None
        and first.bound < relax(problem, graph).bound
    )
    left = iter([None, 0.0])
    monkeypatch.setattr(relaxation, "TimeBudget", lambda deadline: SimpleNamespace(left=next(left)))
    assert relax(problem, graph).bound == first.bound


@pytest.mark.parametrize("seed", FEW[:5])
def test_the_milp_finds_the_same_step(seed):
    assert compare_milp(seed) == ""


@pytest.mark.parametrize("seed", FEW[:6])
def test_the_relaxation_bounds_every_plan(seed):
    case = random_case(seed)
    problem = case.problem()
    relaxed = relax(problem, LaggedGraph.of(problem.schedule))
    best = BruteForce(case).best_s()
    assert relaxed is None or relaxed.bound <= best * (1 + 1e-7)
    assert relaxed is not None or best == np.inf


@pytest.mark.parametrize("seed", FEW[:6])
def test_with_a_gap_the_plan_is_that_close_and_says_so(seed):
    case = random_case(seed)
    exact, rough = case.solve(), case.solve(gap=0.05)
    assert (rough.plan is None) == (exact.plan is None)
    if exact.plan is not None:
        assert rough.gap <= 0.05 and rough.bound_s <= exact.step_s * (1 + 1e-9)
        assert exact.step_s <= rough.step_s * (1 + 1e-9)


def test_a_step_to_beat_ends_the_search_without_a_plan():
    case = random_case(FEW[0])
    problem = case.problem()
    known = case.solve()
    none = solve_fixed(problem, case.outer, cutoff_s=known.step_s * 0.99)
    assert none.plan is None and none.bound_s >= known.step_s * 0.98


@pytest.mark.parametrize("seed", FEW[::2])
def test_a_plan_put_together_holds_and_its_bound_is_below_the_best(seed):
    case = random_case(seed)
    problem, best = case.problem(), case.solve()
    graph = LaggedGraph.of(problem.schedule)
    large, relaxed = LargeSearch(problem, graph, np.inf), relax(problem, graph)
    assert relaxed is None or relaxed.bound <= large.bound(relaxed) <= best.step_s * (1 + 1e-7)
    if relaxed is not None:
        large.first()
        large.improve(relaxed, 0.0, lambda found: None)
    if large.best is not None:
        plan = assembled_plan(problem, case.outer, large.best)
        assert check_plan(case.job, plan, case.costs, claimed_s=large.best.step).faults == ()
        assert large.best.step >= best.step_s * (1 - 1e-9)


def test_what_is_too_much_to_list_is_put_together(monkeypatch):
    case = random_case(FEW[0])
    known = case.solve()
    monkeypatch.setattr(solving, "MOST_CONTENTS", 0)
    found, reported = solve_fixed(case.problem(), case.outer, gap=1e-6), []
    assert found.bound_s <= known.step_s * (1 + 1e-9) <= found.step_s * (1 + 2e-9)
    monkeypatch.setattr(solving, "MANY_CHUNKS", 1)
    again = solve_fixed(case.problem(), case.outer, gap=1e-6, on_plan=lambda *figures: reported.append(figures))
    assert again.step_s == reported[-1][0] and again.bound_s <= known.step_s * (1 + 1e-9)


def test_layouts_are_passed_in_the_cheapest_order():
    change = np.array([[0, 1, 5], [1, 0, 1], [5, 1, 0]], dtype=float)
    assert least_path(change, 0, [1, 2], 2) == (2.0, (1, 2))
    assert least_path(change, 0, [0, 1], 0) == (2.0, (1, 0))


def test_coarse_contents_are_few_and_hardly_slower():
    case = random_case(4)
    problem = case.problem()
    every = StageListing(problem, LaggedGraph.of(problem.schedule), 0, None).list(np.inf)
    few = coarsened(every, 0.2, 0.5)
    assert 0 < len(few) < len(every)
    for times, layers in zip(every.times, every.layers, strict=True):
        mine = few.times[few.layers == layers]
        assert ((mine[:, :-1] <= times[:-1] * 1.2).all(axis=1) & (mine[:, -1] <= times[-1] + 0.5)).any()


def test_a_search_is_as_good_as_its_best_outer_choice():
    case = random_case(18)
    job = case.job.replace(world=8, layers=4, limit_mib=1e9)
    space = OuterSpace((8,), (2,), (2,), (1, 2), interleaved="interleaved", limits=SpaceLimits(zeros=(0, 2, 3)))
    found = search(job, case.costs, space, gap=1e-9)
    steps = []
    for outer in space.choices(job):
        problem = FixedProblem.of(job, outer, case.costs, tuple(sorted(case.costs.rows)))
        steps.append(solve_fixed(problem, outer, gap=1e-10).step_s)
    assert found.step_s == pytest.approx(min(steps), rel=1e-8)
    assert check_plan(job, found.plan, case.costs, claimed_s=found.step_s).faults == ()
    assert any("was not drawn" in reason for reason in found.left_out)


def test_where_bounding_takes_most_of_the_time_there_is_a_plan_and_no_proof(monkeypatch):
    case = random_case(18)
    job = case.job.replace(world=8, layers=4, limit_mib=1e9)
    space = OuterSpace((8,), (2,), (2,), (1, 2), interleaved="interleaved", limits=SpaceLimits(zeros=(0, 2, 3)))
    whole = search(job, case.costs, space)
    now = time.monotonic()
    clock = iter([now])  # at the start; from then on 51 of 60 s
    monkeypatch.setattr(searching, "time", SimpleNamespace(monotonic=lambda: next(clock, now + 51.0)))
    found = search(job, case.costs, space, time_limit=60.0)
    assert found.plan is not None and 0 < len(found.tried) < len(whole.tried)
    assert np.isinf(found.most_samples_a_s) and found.step_s >= whole.step_s * (1 - 1e-9)


@cases.needs_data
@pytest.mark.parametrize(
    ("stages", "limit_gb", "layers", "galvatron_s", "most_s"),
    [((), 24, 28, 29.6861, 29.2988), ((8,), 80, 28, 49.680, 28.787), ((4,), 80, 28, 23.997, 22.151)],
)
def test_galvatrons_plans_are_beaten_on_the_same_costs(tmp_path, stages, limit_gb, layers, galvatron_s, most_s):
    rival = cases.hetu_search(tmp_path, layers=layers, limit_gb=limit_gb)
    theirs = rival.best(hetu_tasks(8, layers, cases.HETU_SPACE, (64,), 32, *(stages or (None,))))
    checked = check_plan(rival.job, theirs.plan, rival.provider)
    assert checked.step_s == pytest.approx(galvatron_s, abs=6e-4)
    found = search(rival.job, rival.provider, OuterSpace((64,), (32,), stages, limits=cases.HETU_SPACE))
    assert found.step_s <= most_s + 6e-4 and found.gap <= 1e-3
    assert check_plan(rival.job, found.plan, rival.provider, claimed_s=found.step_s).faults == ()
    assert all(each.most_samples_a_s <= found.samples_a_s * 1.002 for each in cut_off(found))


def test_many_chunks_have_a_plan_before_their_bounds(monkeypatch):
    """Bounding takes all of the time here, and there is a plan all the same."""
    from taylor.layerwise import search as module

    case = random_case(next(seed for seed in FEW if random_case(seed).outer.stages > 1))
    monkeypatch.setattr(module, "MANY_CHUNKS", 2)
    monkeypatch.setattr(OuterSpace, "choices", lambda self, job: iter([case.outer]))
    space = OuterSpace((case.outer.global_batch,), limits=SpaceLimits(zeros=(0, 2, 3)))
    reported = []
    monkeypatch.setattr(module._Search, "_settle", lambda self, each: self.open.clear())
    found = search(case.job, case.costs, space, report=reported.append)
    assert found.plan is not None and len(reported) == 1


def test_a_stage_leaves_a_layer_to_every_chunk_of_the_others():
    """Of jobs whose memory would let one stage hold more."""
    bounded = 0
    for seed in range(40):
        problem = random_case(seed).problem()
        graph = LaggedGraph.of(problem.schedule)
        for stage in range(problem.stages):
            most = problem.layers - (problem.stages - 1) * problem.interleaves
            layers = StageListing(problem, graph, stage, None).list(np.inf, np.inf).layers
            assert layers.max(initial=0) <= most
            bounded += layers.max(initial=0) == most and problem.stages > 1
    assert bounded > 10
