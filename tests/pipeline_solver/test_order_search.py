"""The order of tasks chosen for a plan, against every order there is and against a MILP over all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.searched_orders import least_step, random_case
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.known_orders import known_orders
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline.schedule import SEARCHED, SEARCHED_V, ScheduleSpec
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.orders import order_kernels
from taylor.pipeline_solver.orders.order_problem import OrderProblem
from taylor.pipeline_solver.orders.order_search import search_order
from taylor.pipeline_solver.timing.event_graph import edge_lags
from tests.solver_cases import plan_of


def step_of(tasks: OrderProblem, orders: tuple[tuple[tuple[int, int], ...], ...]) -> float:
    """Step time of orders of labelled tasks (block, micro-batch); infinite where they do not fit or deadlock."""
    stage, block = tasks.waits
    ends: dict[tuple[int, int, int], float] = {}
    clock, at, moved = [0.0] * len(orders), [0] * len(orders), True
    for s, order in enumerate(orders):
        if max(itertools.accumulate(tasks.change[k, s] for k, _ in order)) > tasks.free_mib[s]:
            return np.inf
    while moved:
        moved = False
        for s, order in enumerate(orders):
            while at[s] < len(order):
                k, i = order[at[s]]
                u = stage[s, k]
                if u >= 0 and (block[s, k], u, i) not in ends:
                    break
                came = 0.0 if u < 0 else ends[block[s, k], u, i] + tasks.lag[k, s]
                ends[k, s, i] = clock[s] = max(clock[s], came) + tasks.durations[k, s]
                at[s] += 1
                moved = True
    done = all(k == len(order) for k, order in zip(at, orders, strict=True))
    return max(clock + tasks.tail) if done else np.inf


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_order_of_labelled_micro_batches_takes_less(seed: int) -> None:
    """Micro-batches may run in any turn here: the search, which runs them in one, must miss nothing."""
    tasks = random_case(np.random.default_rng(seed), 1, 1, stages=2)
    schedule = build_schedule(ScheduleSpec(SEARCHED), 2, 1, 2)
    tasks = OrderProblem(schedule, tasks.durations, tasks.lag, tasks.tail, tasks.kept_mib, tasks.free_mib)
    labelled = [(k, i) for k in range(3) for i in range(2)]
    words = [
        order
        for order in itertools.permutations(labelled)
        if all(order.index((0, i)) < order.index((1, i)) < order.index((2, i)) for i in range(2))
    ]
    least = min(step_of(tasks, pair) for pair in itertools.product(words, words))
    found = search_order(tasks, [schedule])
    assert found.proven and found.step == pytest.approx(least)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "interleaves", "most"), [(1, 1, 8), (2, 1, 8), (5, 1, 8), (3, 2, 3)])
def test_the_order_takes_as_long_as_the_best_of_a_milp_over_all_orders(seed: int, interleaves: int, most: int) -> None:
    tasks = random_case(np.random.default_rng(seed), interleaves, most)
    found = search_order(tasks, [tasks.schedule])
    assert found.proven
    assert least_step(tasks, round(found.step))[0] == pytest.approx(found.step)


@pytest.mark.slow
@pytest.mark.parametrize("name", [SEARCHED, SEARCHED_V])
def test_branching_alone_finds_what_the_local_search_finds_and_proves_it(name: str) -> None:
    V = 2 if name == SEARCHED_V else 1
    rng = np.random.default_rng(7)
    schedule = build_schedule(ScheduleSpec(name), 3, V, 4)
    for _ in range(3):
        kept = rng.uniform(1, 3, size=(V, 3))
        lag = np.ascontiguousarray(edge_lags(schedule, 0.2).T)
        tasks = OrderProblem(
            schedule, rng.uniform(1, 3, size=(3 * V, 3)), lag, np.zeros(3), kept, kept.sum(axis=0) * 2.4
        )
        salts = rng.integers(1, 2**63, size=(3 * V, 5, 3), dtype=np.uint64)
        found = search_order(tasks, [schedule])
        step, words, end, _, root = order_kernels.branch_and_bound(
            tasks.arrays, tasks.precedence, salts, found.step * 1.001, 200_000, 1000
        )
        assert end != order_kernels.STOPPED
        assert root <= step == pytest.approx(found.step)
        assert tasks.finish(words) == pytest.approx(step)


@pytest.mark.parametrize(
    ("name", "interleaves"),
    [(SEARCHED, 1), pytest.param(SEARCHED, 2, marks=pytest.mark.slow), (SEARCHED_V, 2)],
)
def test_the_checker_finds_a_chosen_order_as_good_as_told_and_no_known_one_better(name: str, interleaves: int) -> None:
    S, m = 4, 12
    problem = PipelineProblem(
        stages=S, interleaves=interleaves, micro_batches=m,
        kinds=(LayerKind("body", 16, 1.0, 10.0, {NONE: 4.0, FULL: 1.0}),),
        static_mib=(5.0,) * S, limit_mib=(180.0,) * S, head_forward=0.7, lag=0.05, slowness=(1.0, 1.3, 1.0, 1.2),
        schedule=ScheduleSpec(name),
    )  # fmt: skip
    each = 16 // (S * interleaves)
    plan = plan_of({"body": [[each] * S] * interleaves})
    known = known_orders(problem.schedule, S, interleaves, m)
    schedules = [build_schedule(spec, S, interleaves, m) for spec in known.values()]
    tasks = OrderProblem.of(problem, plan)
    found = search_order(tasks, schedules, moves=2_000_000, nodes=0)
    chosen = problem.replace(schedule=ScheduleSpec(name, words=found.words))
    assert check(chosen, plan, found.step) == []
    assert found.bound <= found.step <= found.started_from
    fit = [spec for spec in known.values() if not check(problem.replace(schedule=spec), plan)]
    assert bool(fit) == (found.started_from < np.inf)


def test_a_stage_without_room_for_a_micro_batch_is_told() -> None:
    schedule = build_schedule(ScheduleSpec(SEARCHED), 2, 1, 2)
    tasks = OrderProblem(
        schedule, np.ones((3, 2)), np.zeros((3, 2)), np.zeros(2), np.full((1, 2), 4.0), np.array([8.0, 3.0])
    )
    with pytest.raises(ValueError, match="does not suffice for a micro-batch"):
        search_order(tasks, [schedule])
