"""The first plans and the best plan of a search, the walks and the annealing that they rest on written down here."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.check.checker import exact_step_time
from taylor.pipeline_solver.columns.columns import build_columns
from taylor.pipeline_solver.columns.stage_tuples import stage_tuples
from taylor.pipeline_solver.heuristics import incumbents
from taylor.pipeline_solver.heuristics.first_plans import FirstPlans
from taylor.pipeline_solver.heuristics.incumbents import Incumbents
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from tests.solver_cases import plan_of, small_problem

BYTE = 1e-6


class Walk:
    """Walks that end as it is written: (MiB over the limits, step time) of the best state met, in turn the last one."""

    def __init__(self, *ends: tuple[float, float]) -> None:
        self.ends = ends
        self.runs: list[tuple[Any, int, float, float]] = []
        self.even_by: dict[bool, Any] = {True: ("even", 3.0, 50.0), False: None}

    def run(self, state: Any, steps: int, seed: int, hot: float, cold: float) -> Any:
        self.runs.append((state, steps, hot, cold))
        over, took = self.ends[min(len(self.runs), len(self.ends)) - 1]
        return over, took, f"best {len(self.runs)}", f"last {len(self.runs)}"

    def time_of(self, state: Any) -> float:
        return 80.0

    def plan_of(self, state: Any) -> Any:
        return f"plan of {state}"

    def state_of(self, plan: Any) -> Any:
        return plan

    def even(self, by_work: bool) -> Any:
        return self.even_by[by_work]

    def fitted(self, start: Any) -> Any:
        name, over, took = start
        return over, took, f"fitted {name}"


def plans(walk: Walk, size: int = 1000, best: tuple[float, float] = (np.inf, np.inf)) -> tuple[Any, list[int]]:
    """First plans that begin with a best state of so many MiB over the limits and such a step time."""
    problem = small_problem()
    graph = EventGraph.from_schedule(schedule_of(problem), 0.0)
    checks: list[int] = []
    stopper: Any = SimpleNamespace(check=lambda: checks.append(1))
    first: Any = FirstPlans(problem, graph, 0, stopper)
    first.walk, first.size = walk, size
    if np.isfinite(best[1]):
        first.over, first.time, first.state, first.start = *best, "known", "start"
    return first, checks


def test_a_state_is_a_plan_up_to_a_byte_above_the_limits() -> None:
    assert plans(Walk())[0].plan is None
    assert plans(Walk(), best=(BYTE, 9.0))[0].plan == "plan of known"
    assert plans(Walk(), best=(1.01 * BYTE, 9.0))[0].plan is None


def test_the_walk_begins_from_the_best_of_the_known_and_the_even_plans() -> None:
    """The least memory above the limits first, then the step time; and a short walk from there."""
    walk = Walk((0.0, 45.0))
    first, _ = plans(walk)
    known: Any = ("known", 3.0, 49.0)
    walk.even_by = {True: ("work", 3.0, 50.0), False: ("layers", 2.5, 60.0)}
    first.begin(known)
    assert first.start == "fitted layers" and walk.runs[0][0] == "fitted layers"
    assert (first.over, first.time, first.state) == (0.0, 45.0, "best 1")
    assert walk.runs[0][2] == pytest.approx(0.01 * 60.0)
    first, _ = plans(walk := Walk((9.0, 1.0)))
    walk.even_by = {True: None, False: None}
    first.begin(None)
    assert (first.start, first.plan, walk.runs) == (None, None, [])
    first.begin(("known", 3.0, 49.0))
    assert (first.over, first.time, first.start) == (3.0, 49.0, "fitted known")
    first, _ = plans(Walk((9.0, 1.0)))
    first.begin(("known", 3.0, 51.0))
    assert first.start == "fitted even"


@pytest.mark.parametrize(
    ("size", "slices", "steps"),
    [
        # 10,000 moves of 1000 tasks are 1e7: one slice.
        (1000, 1, 10_000),
        # 4e7 tasks in moves of 30,000 are 1333 moves; 3e7 tasks are 1000 moves.
        (30_000, 2, 667),
        # No walk has less than 500 moves.
        (1_000_000, 17, 30),
    ],
)
def test_a_walk_cools_down_slice_by_slice(size: int, slices: int, steps: int) -> None:
    walk = Walk((0.0, 90.0))
    first, checks = plans(walk, size, best=(0.0, 100.0))
    first._walk_from("start", min(10_000, 4e7 / size), 0.01)
    assert len(walk.runs) == len(checks) == slices
    assert {run[1] for run in walk.runs} == {steps}
    assert walk.runs[0][2] == pytest.approx(0.01 * 100.0) and walk.runs[-1][3] == pytest.approx(5e-5 * 100.0)
    heats = [run[2] for run in walk.runs] + [walk.runs[-1][3]]
    assert np.diff(np.log(heats)) == pytest.approx(np.full(slices, np.log(5e-3) / slices))
    assert all(a[3] == b[2] for a, b in zip(walk.runs[:-1], walk.runs[1:], strict=True))
    # Each slice goes on from where the one before ended.
    assert [run[0] for run in walk.runs] == ["start", *(f"last {n}" for n in range(1, slices))]


def test_without_a_best_plan_the_start_gives_the_scale_of_a_walk() -> None:
    walk = Walk((5.0, 90.0))
    first, _ = plans(walk)
    assert first._walk_from("start", 500, 0.01) == np.inf
    assert walk.runs[0][2] == pytest.approx(0.01 * 80.0)
    assert (first.over, first.state) == (5.0, "best 1")


def test_the_best_step_time_that_a_walk_meets_is_that_of_states_that_fit() -> None:
    walk = Walk((1.01 * BYTE, 10.0), (BYTE, 30.0), (0.0, 40.0), (5.0, 1.0))
    first, _ = plans(walk, 100_000, best=(0.0, 35.0))
    assert first._walk_from("start", 900, 0.01) == 30.0
    # 30 needs a byte more than the best one, which stays.
    assert (first.over, first.time) == (0.0, 35.0)


def test_a_walk_out_of_time_goes_cold_at_once_from_the_best_state() -> None:
    walk = Walk((0.0, 90.0))
    first, _ = plans(walk, 30_000, best=(0.0, 100.0))
    first._walk_from("start", 1333, 0.01, time.monotonic() - 1.0)
    middle = (0.01 * 5e-5) ** 0.5 * 100.0
    assert walk.runs == [("known", 667, pytest.approx(middle), pytest.approx(5e-5 * 100.0))]
    first, _ = plans(walk := Walk((0.0, 90.0)), 30_000, best=(0.0, 100.0))
    first._walk_from("start", 1333, 0.01, time.monotonic() + 1000.0)
    assert len(walk.runs) == 2


def test_three_short_walks_to_the_best_plan_are_enough() -> None:
    walk = Walk((0.0, 50.0), (0.0, 40.0), (0.0, 40.0 * (1 + 0.9e-9)), (0.0, 40.0 * (1 + 2e-9)), (0.0, 40.0))
    first, _ = plans(walk, best=(0.0, 45.0))
    assert first.start_again()
    assert len(walk.runs) == 5 and first.time == 40.0
    assert {run[0] for run in walk.runs} == {"start"} and {run[1] for run in walk.runs} == {10_000}
    # The first temperatures in turn, of the best step time before the walk.
    shares = [0.005 * 45.0, 0.01 * 45.0, 0.005 * 40.0, 0.02 * 40.0, 0.005 * 40.0]
    assert [run[2] for run in walk.runs] == pytest.approx(shares)


def test_short_walks_end_without_a_start_out_of_time_and_after_sixteen() -> None:
    first, _ = plans(walk := Walk((0.0, 50.0)), best=(0.0, 45.0))
    assert not first.start_again() and len(walk.runs) == 16
    first, _ = plans(walk := Walk((0.0, 45.0)), best=(0.0, 45.0))
    assert not first.start_again(0.0) and walk.runs == []
    first, _ = plans(walk := Walk((0.0, 45.0)), best=(0.0, 45.0))
    first.start = None
    assert not first.start_again() and walk.runs == []
    first, _ = plans(walk := Walk((0.0, 45.0)), best=(0.0, 45.0))
    assert first.start_again(1000.0) and len(walk.runs) == 3


def test_long_walks_go_on_from_the_best_state_with_their_temperatures_in_turn() -> None:
    walk = Walk((0.0, 50.0))
    first, _ = plans(walk, best=(0.0, 45.0))
    for attempt in range(3):
        first.go_on(attempt, None if attempt else 1000.0)
    # 120,000 moves of 1000 tasks in slices of 3e7.
    assert len(walk.runs) == 12 and {run[1] for run in walk.runs} == {30_000}
    assert [walk.runs[k][2] / 45.0 for k in (0, 4, 8)] == pytest.approx([0.03, 0.01, 0.03])
    assert walk.runs[0][0] == walk.runs[4][0] == "known"
    first, _ = plans(walk := Walk((0.0, 50.0)), 100_000, best=(0.0, 45.0))
    first.go_on(0)
    # 1.6e9 tasks are 16,000 moves, 300 a slice.
    assert len(walk.runs) == 54 and walk.runs[0][1] == 297
    first, _ = plans(walk := Walk())
    first.go_on(0)
    assert walk.runs == []


def test_a_state_with_choices_is_judged_by_its_plan() -> None:
    """The first stage needs 5 + 20 - 3 + 2 (4 + 1) = 32 MiB and 3 + 2 · 2 of the host, the last 23 and 6 + 4."""
    off = LayerChoice(0.25, 0.5, 0.125, -3.0, 2.0, 3.0)
    kept = {"none": 4.0, "full": 1.0, "off": 1.0}
    problem = small_problem(
        kinds=(LayerKind("body", 4, 1.0, 10.0, kept, choices={"off": off}),), choices=("off",), limit_mib=(30.0, 23.5)
    )
    plan = plan_of({"body": [[2, 2]]}, {"off": [[1, 2]]})
    graph = EventGraph.from_schedule(schedule_of(problem), 0.0)
    step = float(exact_step_time(problem, plan))
    for host, over in (((), 2.0), ((7.5, 9.0), 3.0), ((6.0, 10.0), 3.0)):
        stated = problem.replace(host_limit_mib=host)
        first: Any = FirstPlans(stated, graph, 0, Any)  # type: ignore[arg-type]
        first.walk = SimpleNamespace(plan_of=lambda state: plan)
        first._take(0.0, 1.0, "walked")
        assert (first.over, first.time, first.state) == (over, pytest.approx(step), "walked")
        first._take(over, 2 * step, "worse")
        assert first.state == "walked"
        # Better by the walk, and by its plan no better.
        first._take(0.0, 1.0, "same")
        assert first.state == "walked"


@pytest.fixture
def search() -> Incumbents:
    """Of two stages with two interleaves, four layers and no plan yet."""
    problem = small_problem(interleaves=2, schedule=ScheduleSpec("interleaved"), min_layers=0)
    columns = build_columns(problem, stage_tuples(problem, 1000), 1000)
    graph = EventGraph.from_schedule(schedule_of(problem), 0.0)
    return Incumbents(problem, columns, PathCuts(problem, graph), 5)


def scripted(search: Incumbents, *lengths: float) -> list[float]:
    left = list(lengths)
    search.paths.path = lambda durations, prefer=0: (left.pop(0), 0)  # type: ignore[method-assign]
    return left


def test_a_choice_is_kept_where_it_is_better_by_more_than_rounding(search: Incumbents) -> None:
    near, better = 10.0 * (1 - 1e-13), 10.0 * (1 - 1e-11)
    scripted(search, np.inf, 10.0, near, better)
    for number, kept in ((0, 0), (1, 1), (2, 1), (3, 3)):
        search.try_choice(np.array([number, number]))
        assert search.chosen().tolist() == [kept, kept]
    assert search.best_time == better
    search.take(np.array([7, 7]), better)
    search.take(None, 1.0)
    assert search.chosen().tolist() == [3, 3]
    search.take(np.array([7, 7]), 9.0)
    assert (search.chosen().tolist(), search.best_time) == ([7, 7], 9.0)


def test_annealing_is_as_hot_as_a_share_of_the_best_time_and_brings_sixty_paths(search: Incumbents) -> None:
    search.best_time, search.best = 200.0, np.array([0, 0])
    scripted(search, 150.0)
    asked: list[Any] = []
    width = search.pool.counts.shape[1]
    met = np.arange(61.0)[:, None] * np.ones(width + 1)

    def run(chosen: Any, pool: Any, cooling: Any) -> Any:
        asked.append((chosen, cooling))
        return 150.0, np.array([4, 5]), met

    search.__dict__["annealer"] = SimpleNamespace(run=run)
    before = search.pool.size
    search.anneal(np.array([1, 2]), 77, 0.01)
    chosen, cooling = asked[0]
    assert chosen.tolist() == [1, 2]
    assert (cooling.steps, cooling.hot, cooling.cold) == (77, pytest.approx(2.0), pytest.approx(0.01))
    assert (search.chosen().tolist(), search.best_time) == ([4, 5], 150.0)
    assert search.pool.size == before + 60
    assert search.pool.counts[before + 7].tolist() == [7.0] * width and search.pool.constant[before + 7] == 7.0


@pytest.mark.parametrize(("tasks", "moves"), [(1000, 20_000), (8000, 10_000), (100_000, 3000)])
def test_long_schedules_get_fewer_moves(search: Incumbents, tasks: int, moves: int) -> None:
    search.paths.graph = SimpleNamespace(before=range(tasks))  # type: ignore[assignment]
    assert search.anneal_moves() == moves


def test_noise_is_added_up_to_its_size(search: Incumbents) -> None:
    weights = np.arange(1000.0)
    assert search.noisy(weights, 0.0) is weights
    noise = search.noisy(weights, 0.5) - weights
    assert 0 <= noise.min() < 0.05 and 0.45 < noise.max() <= 0.5


class Programs:
    def __init__(self, *chosen: Any) -> None:
        self.chosen, self.weights = list(chosen), []  # type: ignore[var-annotated]

    def best(self, weights: Any) -> Any:
        self.weights.append(weights)
        return self.chosen.pop(0)


def test_columns_are_weighed_by_the_prices_of_their_times(search: Incumbents) -> None:
    prices = np.arange(8.0).reshape(2, 2, 2) - 4.0
    master: Any = SimpleNamespace(prices=lambda: SimpleNamespace(duration=prices))
    search.programs = programs = Programs(np.array([0, 1]), np.array([2, 3]), None)  # type: ignore[assignment]
    left = scripted(search, 9.0, 8.0)
    search.try_at_prices(master, 4)
    columns = search.columns
    own = np.array([
        sum(abs(prices[d, v, columns.stage[c]]) * columns.durations[c, d * 2 + v] for d in range(2) for v in range(2))
        for c in range(len(columns))
    ])  # fmt: skip
    expected = own + 0.1 * columns.work * own.mean() / columns.work.mean()
    assert programs.weights[0] == pytest.approx(expected)
    for attempt in (1, 2):
        noise = programs.weights[attempt] - expected
        size = 0.1 * own.mean() * attempt / 4
        assert noise.min() >= 0 and 0.5 * size < noise.max() <= size
    assert left == [] and search.chosen().tolist() == [2, 3] and len(programs.weights) == 3


@pytest.mark.parametrize(("best", "step"), [(None, 1.0), (100.0, 2.0), (99.999, 0.05)])
def test_the_cheapest_choice_is_looked_for_inside_a_node_and_around_it(
    search: Incumbents, best: float | None, step: float
) -> None:
    """Half of what is open, a thousandth of the best time at least, is the noise of two stages."""
    if best is not None:
        search.best, search.best_time = np.array([0, 0]), best
    count = len(search.columns)
    reduced = np.arange(float(count)) - 3.0
    mask = np.arange(count) % 2 == 0
    search.programs = programs = Programs(None, np.array([1, 1]))  # type: ignore[assignment]
    scripted(search, 150.0)
    search.try_at_reduced_costs(mask, reduced, 96.0 if best == 100.0 else 99.99)
    inside, around = programs.weights
    assert inside.tolist() == np.where(mask, reduced + 3.0, np.inf).tolist()
    noise = around - (reduced + 3.0) - np.where(mask, 0.0, 10 * step)
    assert noise.min() >= -1e-9 and 0.4 * step < noise.max() <= step
    assert search.chosen().tolist() == ([0, 0] if best else [1, 1])


@pytest.mark.parametrize(
    ("times", "most", "runs", "best"),
    [
        # Three in a row that are no better end it; one that is begins the count anew.
        ([100.0, 120.0, 110.0], 99, 3, 100.0),
        ([110.0, 90.0, 95.0, 90.0, 91.0], 99, 5, 90.0),
        ([99.0 - n for n in range(12)], 99, 12, 88.0),
        ([99.0 - n for n in range(12)], 4, 4, 96.0),
        ([99.0, None], 99, 1, 99.0),
    ],
)
def test_annealing_among_the_columns_left_goes_on_while_it_finds_better_plans(
    search: Incumbents, monkeypatch: pytest.MonkeyPatch, times: list[Any], most: int, runs: int, best: float
) -> None:
    search.best, search.best_time = np.array([0, 0]), 100.0
    left = np.arange(len(search.columns)) % 2 == 1
    numbers = np.nonzero(left)[0]
    costs = np.arange(float(len(search.columns)))[None]
    hots: list[float] = []
    asked: list[int] = []

    class Among:
        """A search among the columns left, which anneals to the step times written."""

        best: Any = None
        tried: Any = None
        best_time = np.inf

        def __init__(self, problem: Any, part: Any, paths: Any, seed: int, params: Any) -> None:
            assert len(part) == len(numbers)
            self.random, self.programs = np.random.default_rng(seed), SimpleNamespace(best=self.cheapest)

        def cheapest(self, weights: Any) -> Any:
            assert weights.tolist() == costs[0][numbers].tolist()
            return None if times[len(hots)] is None else np.array([1, 2])

        def try_choice(self, chosen: Any) -> None:
            assert self.best is None
            self.best = self.tried = chosen

        def anneal_moves(self) -> int:
            return 5

        def anneal(self, chosen: Any, moves: int, hot: float) -> None:
            assert chosen is self.tried and moves == 5
            self.best_time = times[len(hots)]
            hots.append(hot)

        def chosen(self) -> Any:
            return self.best

    def more() -> bool:
        asked.append(1)
        return len(asked) <= most

    monkeypatch.setattr(incumbents, "Incumbents", Among)
    Incumbents.anneal_among(search, left, costs, more)
    assert hots == [0.01 if n % 2 == 0 else 0.003 for n in range(runs)]
    assert search.best_time == best
    assert search.chosen().tolist() == ([0, 0] if best == 100.0 else numbers[[1, 2]].tolist())
