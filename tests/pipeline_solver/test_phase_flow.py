"""The LP over chunks and its tree: bounds never above the best of all plans, and proofs equal to it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.brute_force import enumerate_optimum
from benchmarks.random_instances import alternating_problem
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.columns.work_limits import WorkLimits
from taylor.pipeline_solver.heuristics.plan_walk import PlanWalk
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import graph_of
from taylor.pipeline_solver.tree.flow_tree import FlowTree
from taylor.pipeline_solver.tree.phase_flow import PhaseFlow, covers, exact_period

MOST_PLANS = 20_000
GAP = 1e-6


def repeating_problem(rng: np.random.Generator) -> PipelineProblem:
    """A small pattern: runs of one kind with a single layer of another behind each."""
    stages, interleaves, run = int(rng.integers(2, 4)), int(rng.integers(2, 4)), int(rng.integers(1, 4))
    chunks = stages * interleaves
    layers = chunks + int(rng.integers(1, 5))
    mib, kept, rare = float(rng.integers(10, 60)), float(rng.integers(5, 40)), float(rng.uniform(0.3, 2.0))
    common = {NONE: kept, FULL: round(kept * float(rng.uniform(0.05, 0.6)), 1)}
    counts = [run, 1] * (layers // (run + 1)) + [layers % (run + 1)]
    kinds = tuple(
        LayerKind(
            f"run{k}",
            count,
            rare if k % 2 else 1.0,
            mib * (0.5 if k % 2 else 1.0),
            {mode: value * (1.3 if k % 2 else 1.0) for mode, value in common.items()},
        )
        for k, count in enumerate(counts)
        if count
    )
    need = layers / stages * (mib + stages * kept) * float(rng.choice([0.7, 0.9, 1.2, 4.0]))
    name = str(rng.choice(["interleaved", "megatron-interleaved"]))
    return PipelineProblem(
        stages,
        interleaves,
        stages * int(rng.integers(1, 4)),
        kinds,
        tuple(np.round(rng.uniform(0, 30, stages), 1).tolist()),
        (round(need + 30, 1),) * stages,
        ScheduleSpec(name, bool(rng.integers(2)) if name == "interleaved" else False),
        backward_ratio=round(float(rng.uniform(1, 3)), 3),
        recompute_ratio={FULL: round(float(rng.uniform(0.1, 1.2)), 3)},
        head_forward=round(float(rng.uniform(0, 2)), 3),
        lag=round(float(rng.uniform(0, 0.3)), 3) if rng.random() < 0.4 else 0.0,
        tail=tuple(rng.uniform(0, 1, stages).tolist()) if rng.random() < 0.2 else (),
        slowness=tuple(rng.uniform(0.8, 1.4, stages).tolist()) if rng.random() < 0.3 else (),
    )


def flow_of(problem, cutoff):
    graph = graph_of(problem)
    paths, walk = PathCuts(problem, graph), PlanWalk(problem, graph)
    flow = PhaseFlow(problem, walk, paths, WorkLimits(problem, graph), cutoff)
    for cut in paths.seeds():
        flow.keep(cut)
    return flow, walk


def proof_of(problem, cutoff):
    """Lower bound of a complete tree and the best step time among the plans of its LPs, none above the cutoff."""
    flow, walk = flow_of(problem, cutoff)
    best = [cutoff]

    def offer(state):
        if state is not None:
            over, step_time, _ = walk.fitted(state)
            if over <= 1e-6:
                best[0] = min(best[0], step_time)
        return best[0]

    tree = FlowTree(flow, DEFAULT_PARAMS.bounds, GAP, offer)
    bounds = []
    tree.search(Stopper(None), 3000, lambda: False, lambda: bounds.append(tree.lower_bound()))
    return tree, best[0], bounds


def with_optimum(seed, drawn=repeating_problem):
    problem = drawn(np.random.default_rng([63, seed]))
    truth = enumerate_optimum(problem, MOST_PLANS)
    if truth is None or truth.plan is None or not covers(problem):
        pytest.skip("too many plans to try, or none, or not a problem of this LP")
    return problem, truth.objective


@pytest.mark.parametrize("seed", range(40))
def test_the_lp_over_chunks_bounds_the_best_of_all_plans(seed):
    problem, optimum = with_optimum(seed)
    assert exact_period(problem) is not None
    flow, _ = flow_of(problem, optimum * 1.05)
    bound, _, _, _ = flow.bound(Stopper(None), 100)
    assert 0.3 * optimum < bound <= optimum * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(14))
def test_the_tree_over_chunks_proves_the_best_of_all_plans(seed):
    problem, optimum = with_optimum(seed)
    tree, best, bounds = proof_of(problem, optimum * 1.03)
    assert not tree.open or tree.open[0].bound >= tree.cutoff
    assert best == pytest.approx(optimum, rel=1e-9)
    assert optimum * (1 - 2 * GAP) <= tree.lower_bound() <= optimum * (1 + 1e-9)
    assert all(later >= earlier * (1 - 2 * GAP) for earlier, later in itertools.pairwise(bounds))


@pytest.mark.parametrize("seed", range(7))
def test_stacks_that_do_not_repeat_are_bounded_by_positions(seed):
    problem, optimum = with_optimum(seed, alternating_problem)
    tree, best, _ = proof_of(problem, optimum * 1.03)
    assert best == pytest.approx(optimum, rel=1e-9)
    assert tree.lower_bound() <= optimum * (1 + 1e-9)


def test_no_plan_below_the_optimum_leaves_no_node_open():
    problem, optimum = with_optimum(2)
    tree, best, _ = proof_of(problem, optimum * 0.999)
    assert best == optimum * 0.999 and not [node for node in tree.open if node.bound < tree.cutoff]


def test_pairs_choices_and_given_recompute_are_not_covered():
    problem = repeating_problem(np.random.default_rng(0))
    assert covers(problem)
    assert not covers(problem.replace(uniform_recompute=((FULL, 1),)))
    assert not covers(problem.replace(fixed_recompute={(FULL, 0, 0): 0}))


def test_a_period_is_that_of_all_layers():
    problem = repeating_problem(np.random.default_rng(5))
    first, *others = problem.kinds
    assert exact_period(problem.replace(kinds=(replace(first, forward=7.0), *others))) is None
