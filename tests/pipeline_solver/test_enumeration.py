"""Enumeration of a node's choices: it meets the best plan that is left, and closes a node only where none is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.brute_force import comparable_problem, random_problem
from benchmarks.solver import deepseek, light_layers
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.generation import Generation
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.columns.columns import build_columns
from taylor.pipeline_solver.columns.phases import Borders, Phases, borders_of, period_of
from taylor.pipeline_solver.columns.stage_tuples import stage_tuples
from taylor.pipeline_solver.columns.work_limits import WorkLimits
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import OPTIMAL
from taylor.pipeline_solver.model.stopping import OutOfTime, Stopper
from taylor.pipeline_solver.timing.durations import chunk_durations, schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from taylor.pipeline_solver.tree import enumeration
from taylor.pipeline_solver.tree.branch_and_cut import branch_and_cut
from taylor.pipeline_solver.tree.choice_kernels import CHOICE, CLOSED
from taylor.pipeline_solver.tree.choice_samples import Sample
from taylor.pipeline_solver.tree.choice_walk import ChoiceWalk, Matching, Rows
from taylor.pipeline_solver.tree.enumeration import Enumeration, Remaining
from taylor.pipeline_solver.tree.root import bound_root, start_search
from taylor.pipeline_solver.tree.share_messages import Best, Cuts, EnumerationAnswer
from taylor.pipeline_solver.tree.tree_run import TreeRun
from taylor.pipeline_solver.tree.tree_search import Search
from taylor.pipeline_solver.tree.worker_pool import WorkerPool
from tests.pipeline_solver.test_phases import periodic_problems
from tests.solver_params import set_parameter

MOST_CHOICES = 1500
"""Choices of one column a stage that these tests go through one by one."""


def search_of(problem: PipelineProblem) -> Search:
    """A tree whose root has met paths and prices, and no plan."""
    columns = build_columns(problem, stage_tuples(problem, 20_000), 50_000)
    paths = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))
    search = Search(problem, columns, paths, 0.0, 0, Stopper(None), 1e9)
    if (np.diff(columns.start) > 0).all():
        start_search(search, None)
        bound_root(search)
    return search


def searches(number: int, seed: int) -> Iterator[tuple[np.random.Generator, Search]]:
    rng = np.random.default_rng(seed)
    while number:
        search = search_of(random_problem(rng))
        counts = np.diff(search.columns.start).astype(float)
        if 0 < counts.prod() <= MOST_CHOICES:
            number -= 1
            yield rng, search


def step_time(search: Search, chosen: tuple[int, ...]) -> float:
    """Of a choice that the checker finds nothing wrong with; inf for any other."""
    problem, columns = search.problem, search.columns
    if (columns.totals[list(chosen)].sum(axis=0) != [kind.count for kind in problem.placed_kinds]).any():
        return np.inf
    plan = columns.plan(np.array(chosen))
    if check(problem, plan):
        return np.inf
    return float(search.plans.paths.graph.longest_path(chunk_durations(problem, plan)))


def plans_of(search: Search, mask: NDArray[np.bool_]) -> dict[tuple[int, ...], float]:
    """Every plan of some columns with its step time, one by one."""
    start = search.columns.start
    stages = [a + np.nonzero(mask[a:b])[0] for a, b in zip(start[:-1], start[1:], strict=True)]
    found = {chosen: step_time(search, chosen) for chosen in product(*(part.tolist() for part in stages))}
    return {chosen: time for chosen, time in found.items() if time < np.inf}


def looked_through(
    search: Search,
    of: NDArray[np.bool_] | Remaining,
    cutoff: float,
    paths: NDArray[np.int64] | None = None,
    look: Callable[[], None] = lambda: None,
    durations: NDArray[np.float64] | None = None,
) -> bool:
    """Whether all choices of a node below a step time, or the best plan's, are looked through."""
    plans = search.plans
    paths = np.arange(plans.pool.size) if paths is None else paths
    remaining = of if isinstance(of, Remaining) else Remaining(of)
    return search.enumeration.close(remaining, paths, lambda: min(cutoff, plans.best_time), look, durations)[0]


def afresh(search: Search) -> None:
    """Forget the best plan."""
    search.plans.best, search.plans.best_time = None, np.inf


def closed(search: Search, mask: NDArray[np.bool_], cutoff: float) -> bool:
    """The same, from no plan."""
    afresh(search)
    return looked_through(search, mask, cutoff)


@pytest.mark.slow
def test_after_a_first_look_it_goes_on_only_as_far_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    set_parameter(monkeypatch, "tree.first_steps", 6)
    set_parameter(monkeypatch, "tree.choice_steps", 1)
    stopped = 0
    for _, search in searches(40, 9):
        looked = []
        paths = np.arange(search.plans.pool.size)
        for most in (np.inf, 0.0):
            afresh(search)
            every = np.ones(len(search.columns), dtype=bool)
            looked.append(search.enumeration.close(Remaining(every), paths, lambda: 1e6, lambda: None, None, most))
        (whole, steps), (part, fewer) = looked
        assert whole >= part and steps >= fewer
        stopped += whole and not part
    assert stopped > 5


@pytest.mark.slow
def test_it_meets_the_best_plan_below_a_step_time_and_says_where_there_is_none() -> None:
    met = none = 0
    for rng, search in searches(60, 1):
        for share in (1.0, 0.6):
            mask = rng.random(len(search.columns)) < share
            if (np.add.reduceat(mask, search.columns.start[:-1]) == 0).any():
                continue
            every = plans_of(search, mask)
            best = min(every.values(), default=np.inf)
            assert closed(search, mask.copy(), 1e6)
            assert search.plans.best_time == pytest.approx(best, rel=1e-12)
            if every:
                met += 1
                assert closed(search, mask.copy(), best * (1 - 1e-9)) and search.plans.best is None
                assert closed(search, mask.copy(), best * (1 + 1e-9))
                assert search.plans.best_time == pytest.approx(best, rel=1e-12)
            else:
                none += 1
    assert met > 40 and none > 3


@pytest.mark.slow
def test_an_enumeration_that_is_stopped_leaves_every_better_plan_and_goes_on_with_what_is_left(monkeypatch) -> None:
    set_parameter(monkeypatch, "tree.samples", 1)  # more of them leave little to walk through
    set_parameter(monkeypatch, "tree.first_steps", 3)
    set_parameter(monkeypatch, "tree.choice_steps", 1)
    thinned = 0
    for _, search in searches(80, 2):
        mask = np.ones(len(search.columns), dtype=bool)
        every = plans_of(search, mask)
        best = min(every.values(), default=np.inf)
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1
            if looks % 4 == 0:
                raise OutOfTime

        plans = search.plans
        afresh(search)
        for _ in range(500):
            before, remaining = mask, Remaining(mask)
            try:
                ended = looked_through(search, remaining, 1e6, look=look)
            except OutOfTime:
                ended = False
            mask = remaining.mask
            left = plans_of(search, mask)
            assert min([*left.values(), plans.best_time]) == pytest.approx(best, rel=1e-12)
            assert not (mask & ~before).any()
            thinned += bool((mask != before).any()) and not ended
            if ended or not mask.any():
                break
            set_parameter(monkeypatch, "tree.first_steps", DEFAULT_PARAMS.tree.first_steps + 1)
        assert plans.best_time == pytest.approx(best, rel=1e-12) or not np.isfinite(best)
    assert thinned > 5


Deals = list[tuple[NDArray[np.bool_], NDArray[np.int64], list[NDArray[np.bool_]]]]


def dealt(search: Search, mask: NDArray[np.bool_], cutoff: float, portions: int) -> tuple[bool, Deals]:
    """Whether all is looked through by an enumeration that is dealt out after its first look; and what was dealt."""
    deals: Deals = []
    plans, paths = search.plans, np.arange(search.plans.pool.size)

    def below() -> float:
        return min(cutoff, plans.best_time)

    def deal(
        remaining: Remaining, order: NDArray[np.int64], durations: NDArray[np.float64] | None, most: float
    ) -> tuple[bool, int]:
        left = remaining.mask
        parts = [search.enumeration.portion(left, order, k, portions) for k in range(portions)]
        deals.append((left, order, parts))
        for part in parts:
            if np.logical_or.reduceat(part, search.columns.start[:-1]).all():
                walk = search.enumeration.walk_of(part, order, paths, below(), durations)
                assert walk is not None
                while not search.enumeration.look(walk, Remaining(part), below, lambda: None):
                    assert not walk.stuck
        return True, 0

    return search.enumeration.close(Remaining(mask), paths, below, lambda: None, None, np.inf, deal)[0], deals


@pytest.mark.slow
@pytest.mark.parametrize("portions", [2, 3])
def test_portions_of_an_enumeration_are_all_of_it_and_meet_the_best_plan(portions: int, monkeypatch) -> None:
    """Those who go on have each some of one stage's columns, and all of the others'."""
    set_parameter(monkeypatch, "tree.first_steps", 3)
    set_parameter(monkeypatch, "tree.dealt_above", 0)
    shared = ended = 0
    for _, search in searches(60, 11):
        mask = np.ones(len(search.columns), dtype=bool)
        best = min(plans_of(search, mask).values(), default=np.inf)
        afresh(search)
        closed, deals = dealt(search, mask, 1e6, portions)
        left = {} if closed else plans_of(search, mask)
        assert min([*left.values(), search.plans.best_time]) == pytest.approx(best, rel=1e-12)
        ended += closed and bool(deals)
        for left, _, parts in deals:
            assert (np.add.reduce(parts)[left] >= 1).all() and not np.logical_or.reduce(parts)[~left].any()
            own = {int(s) for part in parts for s in search.columns.stage[left & ~part]}
            sizes = [int(part[search.columns.stage == s].sum()) for s in own for part in parts]
            assert len(own) <= 1 and max(sizes, default=0) - min(sizes, default=0) <= 1
            assert not own or sum(sizes) == int(left[search.columns.stage == own.pop()].sum())
            shared += min(sizes, default=0) > 0
    assert shared > 10 and ended > 10


@pytest.mark.slow
@pytest.mark.parametrize("above", [0.0, 0.02, 0.1, np.inf])
def test_what_is_soon_looked_through_is_not_dealt_out(above: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables that others would make first take longer."""
    set_parameter(monkeypatch, "tree.first_steps", 3)
    set_parameter(monkeypatch, "tree.choice_steps", 1)
    set_parameter(monkeypatch, "tree.dealt_above", above)
    begun, left = Enumeration._begun, []

    def watched(*of: Any) -> Any:
        found = begun(*of)
        walk, left[:] = found[0], []
        if walk is not None:
            done = walk.done()
            left[:] = [np.inf if not done else walk.steps / done - walk.steps, walk.rows.costs.size]
        return found

    monkeypatch.setattr(Enumeration, "_begun", watched)
    ends = {True: 0, False: 0}
    for _, search in searches(60, 11):
        _, deals = dealt(search, np.ones(len(search.columns), dtype=bool), 1e6, 2)
        if left and left[0] < np.inf:
            steps, cells = left
            assert bool(deals) == (steps > above * cells)
            ends[bool(deals)] += 1
    assert ends[True] > 10 or above > 0.02
    assert ends[False] > 10 or above < 0.1


def test_shares_make_their_lps_when_these_are_first_asked_for() -> None:
    """As one made at once would be: with the cuts that the tree's held, and no others."""
    for _, search in searches(10, 13):
        pool = WorkerPool(1, search, 0)
        mask, held = np.ones(len(search.columns), dtype=bool), list(search.lp().kept)
        pool.enumerate(search, Remaining(mask), np.arange(search.problem.stages), None, np.inf)
        assert [share.search.master for share in pool.own] == [None] * len(pool.own)
        assert all(share.search.pruning_paths()[: len(held)].tolist() == sorted(held) for share in pool.own)
        first = [share._lp() for share in pool.own]
        assert [lp.kept for lp in first] == [held] * len(pool.own)
        assert [share._lp() for share in pool.own] == first == [share.search.lp() for share in pool.own]


@pytest.mark.slow
def test_shares_leave_every_better_plan_or_meet_it_and_are_heard_where_their_time_ends(monkeypatch) -> None:
    """Two shares in one process, each stopped sooner or later: what they looked through is gone, their best plan is
    known, and they are asked again with what is left."""
    set_parameter(monkeypatch, "tree.first_steps", 3)
    set_parameter(monkeypatch, "tree.choice_steps", 1)
    ends = {True: 0, False: 0}
    for rng, search in searches(40, 12):
        mask = np.ones(len(search.columns), dtype=bool)
        best = min(plans_of(search, mask).values(), default=np.inf)
        enough = int(rng.integers(1, 12))
        looks = iter(range(1, 10**6))

        def check(looks: Iterator[int] = looks, enough: int = enough) -> None:
            if next(looks) % enough == 0:
                raise OutOfTime

        monkeypatch.setattr(search.stopper, "check", check)
        afresh(search)
        pool = WorkerPool(1, search, 0)
        order = np.arange(search.problem.stages)
        for _ in range(200):
            before, remaining = mask, Remaining(mask)
            try:
                closed, steps = pool.enumerate(search, remaining, order, None, np.inf)
            except OutOfTime:
                closed, steps = False, 1
            mask = remaining.mask
            left = {} if closed else plans_of(search, mask)
            assert min([*left.values(), search.plans.best_time]) == pytest.approx(best, rel=1e-12)
            assert steps > 0 and not (mask & ~before).any()
            ends[closed] += bool(closed or (mask != before).any())
            if closed:
                break
            set_parameter(monkeypatch, "tree.first_steps", DEFAULT_PARAMS.tree.first_steps + 1)
        set_parameter(monkeypatch, "tree.first_steps", 3)
    assert min(ends.values()) > 10


@pytest.mark.parametrize(("most", "rounds"), [(2001.0, 10), (1999.0, 1), (1.0, 1)])
def test_shares_go_on_as_long_as_what_both_have_come_to_promises_an_end(most: float, rounds: int) -> None:
    """Two shares look at 1,000 columns each, 100 a round."""
    ((_, search),) = searches(1, 13)
    pool = WorkerPool(1, search, 0)
    mask = np.ones(len(search.columns), dtype=bool)
    asked = 0

    def answers(tasks: list[object], *_: object) -> list[EnumerationAnswer]:
        nonlocal asked
        asked += 1
        left = np.packbits(mask if asked < 10 else ~mask)
        cuts, best = Cuts.of(search.plans.pool, search.plans.pool.size), Best.of(search.plans)
        two = [EnumerationAnswer(left, asked / 10, 100 * asked, False, cuts, best, False)] * 2
        return two + [EnumerationAnswer(np.packbits(~mask), 1.0, 0, False, cuts, best, False)] * (len(tasks) - 2)

    pool._answers = answers  # type: ignore[method-assign, assignment]
    found = pool.enumerate(search, Remaining(mask), np.arange(search.problem.stages), None, most)
    assert (asked, found) == (rounds, (rounds == 10, 200 * rounds))


@pytest.mark.slow
@pytest.mark.parametrize("problem", [light_layers(4, 2, 12, 18), light_layers(3, 3, 9, 17), deepseek(8, 2, 16, 30)])
def test_trees_that_deal_enumerations_out_are_the_same_whoever_works_on_them(
    problem: PipelineProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_parameter(monkeypatch, "tree.first_steps", 300)
    set_parameter(monkeypatch, "tree.dealt_above", 0)
    set_parameter(monkeypatch, "tree.choice_steps", 1)
    with monkeypatch.context() as patch:
        patch.setattr(TreeRun, "_deal", None)
        whole = branch_and_cut(problem, SolveOptions(gap=0.0))
    answers = []
    by_shares = WorkerPool.enumerate

    def counted(*of: Any) -> tuple[bool, int]:
        answers.append(by_shares(*of))
        return answers[-1]

    monkeypatch.setattr(WorkerPool, "enumerate", counted)
    alone, together = (branch_and_cut(problem, SolveOptions(gap=0.0, workers=workers)) for workers in (1, 2))
    assert answers and answers[: len(answers) // 2] == answers[len(answers) // 2 :]
    assert whole.status == alone.status == together.status == OPTIMAL
    assert alone.objective == together.objective == pytest.approx(whole.objective, rel=1e-9)
    assert alone.plan == together.plan and alone.statistics == together.statistics


@pytest.mark.slow
def test_choices_of_many_borders_are_dealt_by_where_they_begin(monkeypatch) -> None:
    """A portion then holds all columns of a stage that come in at a border, or none; where borders are few, columns."""
    set_parameter(monkeypatch, "tree.first_steps", 3)
    set_parameter(monkeypatch, "tree.dealt_above", 0)
    by_border = {True: 0, False: 0}
    for (problem, truth), _ in zip(periodic_problems(13), range(60), strict=False):
        search = phased_search(problem, truth.objective * 1.05)
        if search is None:
            continue
        bound_root(search)
        for borders in (1, 1000):
            set_parameter(monkeypatch, "tree.dealt_by_border", borders)
            afresh(search)
            closed, deals = dealt(search, np.ones(len(search.columns), dtype=bool), truth.objective * 1.04, 2)
            if closed:
                assert search.plans.best_time == pytest.approx(truth.objective, rel=1e-9)
            for _, order, parts in deals:
                matching = search.enumeration.matching
                assert matching is not None
                first = search.columns.stage == order[0]
                enters = matching.borders.high if order[0] > order[-1] else matching.borders.low
                mine, others = (set(enters[part & first]) for part in parts)
                if borders == 1 and len(mine | others) > 1:
                    assert not mine & others
                    by_border[True] += 1
                by_border[False] += borders > 1 and bool(mine & others)
    assert min(by_border.values()) > 10


def test_of_the_orders_the_one_that_samples_tell_to_be_the_shortest_is_walked(monkeypatch) -> None:
    walked: list[list[int]] = []

    def look(_: Enumeration, walk: ChoiceWalk, *__: object) -> bool:
        walked.append(walk.order.tolist())
        return True

    monkeypatch.setattr(Enumeration, "look", look)
    taken = set()
    for rng, search in searches(60, 6):
        expected: dict[tuple[int, ...], float] = {}

        def sampled(walk: ChoiceWalk, cutoff: float, seed: int, rng=rng, expected=expected) -> Sample:
            # The second half of an order's samples counts.
            whole = expected.setdefault(tuple(walk.order.tolist()), float(rng.integers(10, 1000)))
            return Sample(whole if seed >= DEFAULT_PARAMS.tree.samples // 2 else 1.0, 1, None)

        monkeypatch.setattr(enumeration, "sample", sampled)
        afresh(search)
        mask, paths = np.ones(len(search.columns), dtype=bool), np.arange(search.plans.pool.size)
        walked.clear()
        assert search.enumeration.close(Remaining(mask), paths, lambda: 1e6, lambda: None)[0]
        if len(expected) > 1:
            (order,) = walked
            assert expected[tuple(order)] == min(expected.values())
            taken.add(list(expected).index(tuple(order)))
    assert len(taken) > 1


def test_a_walk_that_its_first_samples_call_hopeless_is_not_begun(monkeypatch) -> None:
    looked: list[list[int]] = []
    asked: dict[tuple[int, ...], int] = {}
    limit = DEFAULT_PARAMS.tree.hopeless * DEFAULT_PARAMS.tree.most_steps

    def look(_: Enumeration, walk: ChoiceWalk, *__: object) -> bool:
        looked.append(walk.order.tolist())
        return True

    monkeypatch.setattr(Enumeration, "look", look)
    some = 0
    for rng, search in searches(60, 7):
        hope: dict[tuple[int, ...], bool] = {}
        asked.clear()
        looked.clear()

        def sampled(walk: ChoiceWalk, cutoff: float, seed: int, rng=rng, hope=hope) -> Sample:
            order = tuple(walk.order.tolist())
            asked[order] = asked.get(order, 0) + 1
            return Sample(limit / 2 if hope.setdefault(order, rng.random() < 0.3) else 2.0 * limit, 1, None)

        monkeypatch.setattr(enumeration, "sample", sampled)
        afresh(search)
        mask, paths = np.ones(len(search.columns), dtype=bool), np.arange(search.plans.pool.size)
        remaining = Remaining(mask)
        closed, _ = search.enumeration.close(remaining, paths, lambda: 1e6, lambda: None)
        if not hope:
            continue  # a walk of several parts
        assert remaining.mask.all() and closed == any(hope.values()) and len(looked) == closed
        assert all(hope[tuple(order)] for order in looked)
        for order, hopeful in hope.items():
            # With few stages two orders are the same.
            assert asked[order] % (DEFAULT_PARAMS.tree.samples if hopeful else DEFAULT_PARAMS.tree.first_samples) == 0
        some += closed
        # Where probing goes on with the same columns there is always hope.
        assert search.enumeration.close(Remaining(mask), paths, lambda: 1e6, lambda: None, None, 1.0)[0]
    assert 5 < some < 55


def test_what_would_take_too_much_is_left_as_it_is(monkeypatch) -> None:
    ((_, search),) = searches(1, 3)
    remaining, paths = Remaining(np.ones(len(search.columns), dtype=bool)), np.arange(search.plans.pool.size)
    assert search.enumeration.close(remaining, paths, lambda: np.inf, lambda: None) == (False, 0)
    for name in ("tree.most_cells", "tree.most_table"):
        with monkeypatch.context() as patch:
            set_parameter(patch, name, 1)
            assert search.enumeration.close(remaining, paths, lambda: 1e6, lambda: None) == (False, 0)
    assert remaining.mask.all()


def test_without_room_for_a_path_the_node_stays_open(monkeypatch) -> None:
    set_parameter(monkeypatch, "tree.most_new_rows", 0)
    ends = set()
    for _, search in searches(40, 4):
        mask = np.ones(len(search.columns), dtype=bool)
        best = min(plans_of(search, mask).values(), default=np.inf)
        if np.isfinite(best):
            few = np.array(search.plans.paths.seeds())
            search.enumeration.floors.known = 0
            afresh(search)
            ended = looked_through(search, mask, best * (1 + 1e-6), few)
            assert min([*plans_of(search, mask).values(), search.plans.best_time]) == pytest.approx(best)
            ends.add(ended)
    assert ends == {True, False}


def random_rows(rng: np.random.Generator, borders: int, kinds: int) -> Rows:
    """Three stages of a few columns each, whatever they hold."""
    first = np.concatenate([[0], np.cumsum(rng.integers(1, 6, 3))])
    n = int(first[-1])
    ends = np.array([(a, b) for a in range(borders) for b in range(borders) if borders == 1 or rng.random() < 0.6])
    low, high = (rng.integers(0, borders, n) for _ in range(2))
    late, early = rng.integers(0, 8, (n, kinds)), rng.integers(-1, 4, (n, kinds))
    matching = Matching(rng.integers(0, 4, n), 5, Borders(borders, low, high, ends.reshape(-1, 2)), late, early)
    costs = rng.uniform(0, 10, (4, n)).T
    rows = Rows(np.arange(n), first, matching, rng.uniform(0, 3, 4))
    rows.costs[:, :4] = costs
    return rows


def fits(matching: Matching, some: tuple[int, ...]) -> bool:
    """Whether columns, one of each stage in the stages' order, go together."""
    a, *_, b = of = list(some)
    linked = all(matching.borders.high[i] == matching.borders.low[j] for i, j in zip(of[:-1], of[1:], strict=True))
    ends = (matching.borders.low[a], matching.borders.high[b]) in {tuple(end) for end in matching.borders.ends.tolist()}
    held = matching.layers[of].sum() == matching.goal
    return bool(linked and ends and held and (matching.late[of].min(axis=0) >= matching.early[of].max(axis=0)).all())


@pytest.mark.parametrize(("borders", "kinds"), [(1, 0), (1, 2), (2, 0)])
def test_a_walk_meets_the_choices_that_no_row_rules_out(borders: int, kinds: int) -> None:
    """In any order, in slices, with rows that join on the way: those of all choices one by one."""
    rng = np.random.default_rng(5 + borders + kinds)
    met_any = 0
    for turn in range(120):
        rows = random_rows(rng, borders, kinds)
        stages = [range(a, b) for a, b in zip(rows.first[:-1], rows.first[1:], strict=True)]
        sums = {some: rows.costs[list(some), :4].sum(axis=0) + rows.values[:4] for some in product(*stages)}
        cutoff = float(np.quantile([one.max() for one in sums.values()], 0.9))
        left = {some for some, one in sums.items() if fits(rows.matching, some) and one.max() < cutoff}
        orders = [[0, 1, 2], [2, 1, 0]] + ([[1, 2, 0]] if borders == 1 else [])
        walk = ChoiceWalk(rows, np.array(orders[turn % len(orders)]))
        extra = rng.uniform(0, 10, len(rows.members))
        met: list[tuple[int, ...]] = []
        until, joined = 2, False
        while (end := walk.go_on(until, cutoff)) != CLOSED:
            until = walk.steps + 2
            assert 0.0 <= walk.done() <= 1.0 and not walk.stuck
            if end == CHOICE:
                some = tuple(walk.choice().tolist())
                assert not joined or extra[list(some)].sum() < cutoff
                met.append(some)
            if not joined and rng.random() < 0.2:
                joined = rows.add(extra, 0.0)
        # What the further row rules out may have been met before it joined.
        spared = {some for some in left if extra[list(some)].sum() >= cutoff}
        assert len(met) == len(set(met)) and left - spared <= set(met) <= left
        assert joined or set(met) == left
        met_any += len(met)
    assert met_any > 40


def test_rows_that_join_one_by_one_are_tabulated_as_those_that_came_first() -> None:
    """Beyond the room that there was, too."""
    rng = np.random.default_rng(3)
    met = 0
    for _ in range(20):
        rows = random_rows(rng, 1, 1)
        walk = ChoiceWalk(rows, np.arange(3))
        if not walk.sampled:  # no choice adds up
            continue
        met += 1
        costs = [rows.costs[:, :4].copy()]
        for number in range(DEFAULT_PARAMS.tree.spare_rows + 20):
            costs.append(rng.uniform(0, 10, (len(rows.members), 1)))
            assert rows.add(costs[-1][:, 0].copy(), float(number))
            walk.catch_up()
        number = DEFAULT_PARAMS.tree.spare_rows + 24
        assert np.array_equal(rows.costs[:, :number], np.hstack(costs))
        assert rows.values[4:number].tolist() == list(range(DEFAULT_PARAMS.tree.spare_rows + 20))
        rows.by_class = None
        afresh = ChoiceWalk(rows, np.arange(3))
        assert afresh.classes is not walk.classes
        both = (walk.classes.least, afresh.classes.least)
        for one, other in (both, (walk.rest, afresh.rest), (walk.partial[0], afresh.partial[0])):
            assert np.array_equal(one[..., :number], other[..., :number])
    assert met > 10


def test_a_path_that_joins_costs_what_its_counts_and_the_durations_say() -> None:
    met = 0
    for _, search in searches(6, 4):
        mask = np.ones(len(search.columns), dtype=bool)
        rows = search.enumeration._rows(mask, np.array(search.plans.paths.seeds()), 1e9)
        if rows is None:
            continue
        met += 1
        counts = np.arange(search.plans.pool.counts.shape[1], dtype=float)
        assert rows.add_path(counts, 7.0)
        prices = search.enumeration.floors.under_prices()
        assert rows.costs[:, : len(prices)].tolist() == prices[:, rows.members].T.tolist()
        classes = np.arange(len(counts)).reshape(-1, search.columns.problem.stages)
        for p, passes in enumerate([*search.plans.pool.counts[search.plans.paths.seeds()], counts], len(prices)):
            matching = [
                search.columns.durations[column] @ passes[classes[:, search.columns.stage[column]]]
                for column in rows.members
            ]
            assert rows.costs[:, p] == pytest.approx(np.array(matching))
        assert p == rows.number - 1
    assert met


def linked_sums(
    rows: Rows, stages: list[range], begin: int, ends: set[int], held: int, back: bool
) -> list[NDArray[np.float64]]:
    """What choices of some stages in a row add, that lead from one border to one of some and hold so many layers."""
    borders = rows.matching.borders
    enter, leave = (borders.high, borders.low) if back else (borders.low, borders.high)
    found = []
    for some in product(*stages):
        of = list(some)
        linked = all(leave[i] == enter[j] for i, j in zip(of[:-1], of[1:], strict=True))
        if linked and enter[of[0]] == begin and leave[of[-1]] in ends and rows.matching.layers[of].sum() == held:
            found.append(rows.costs[of, :4].sum(axis=0))
    return found


@pytest.mark.parametrize(("borders", "kinds"), [(1, 0), (2, 0)])
def test_what_stages_behind_a_place_add_is_the_least_of_all_their_choices(borders: int, kinds: int) -> None:
    rng = np.random.default_rng(11 + borders)
    places = 0
    for back in (False, True) * 60:
        rows = random_rows(rng, borders, kinds)
        order = np.array([2, 1, 0] if back else [0, 1, 2])
        walk = ChoiceWalk(rows, order)
        if not walk.parts:
            continue
        stages = [range(rows.first[s], rows.first[s + 1]) for s in order]
        start, goals = walk.parts[0]
        for k in range(3):
            for left in range(rows.matching.goal + 1):
                for border in range(borders):
                    place = walk.where[k, left, border]
                    behind = linked_sums(rows, stages[k:], border, set(goals.tolist()), left, back)
                    before = k == 0 and (left, border) == (rows.matching.goal, start)
                    before |= k > 0 and bool(
                        linked_sums(rows, stages[:k], start, {border}, rows.matching.goal - left, back)
                    )
                    assert (place >= 0) == (before and bool(behind))
                    if place >= 0:
                        places += 1
                        assert walk.rest[place, :4] == pytest.approx(np.min(behind, axis=0))
    assert places > 40


@pytest.mark.parametrize("name", ["tree.most_cells", "tree.most_table"])
def test_a_walk_that_would_take_too_much_has_looked_at_nothing(name: str, monkeypatch) -> None:
    """Also where no column comes in at the first border."""
    set_parameter(monkeypatch, name, 0)
    rng = np.random.default_rng(3)
    stuck = 0
    for order in ([0, 1, 2], [2, 1, 0]) * 60:
        walk = ChoiceWalk(random_rows(rng, 2, 0), np.array(order))
        if walk.stuck:
            stuck += 1
            assert walk.done() == 0.0 and not len(walk.finished()) and walk.steps == 0
    assert stuck > 10


def test_rows_find_room_until_there_is_none(monkeypatch) -> None:
    rows = random_rows(np.random.default_rng(2), 1, 0)
    costs, most = np.ones(len(rows.members)), DEFAULT_PARAMS.tree.most_new_rows
    assert all(rows.add(costs, 1.0) for _ in range(most)) and not rows.add(costs, 1.0)
    assert rows.costs.shape[1] == len(rows.values) == rows.number == most + 4
    set_parameter(monkeypatch, "tree.most_cells", 2 * len(rows.members) * DEFAULT_PARAMS.tree.spare_rows)
    rows = random_rows(np.random.default_rng(2), 1, 0)
    assert sum(rows.add(costs, 1.0) for _ in range(most)) == DEFAULT_PARAMS.tree.spare_rows


def test_borders_are_where_neighbour_stages_meet() -> None:
    """By hand: two interleaves in phases of a pattern of three layers; on a V the second runs back."""
    begin, end = np.array([[0, 2], [1, 0]], dtype=np.int8), np.array([[1, 0], [2, 2]], dtype=np.int8)
    phases = Phases(3, begin, end)
    ring = build_schedule(ScheduleSpec("interleaved"), 2, 2, 4)
    found = borders_of(phases, 2, ring, 8)
    assert found.number == 9
    assert found.low.tolist() == [0 + 3 * 2, 1 + 3 * 0] and found.high.tolist() == [1 + 3 * 0, 2 + 3 * 2]
    # The second interleave begins in the phase q that the first one left, and the model ends in phase 8 % 3.
    assert found.ends.tolist() == [[0 + 3 * q, q + 3 * 2] for q in range(3)]
    v = build_schedule(ScheduleSpec("zero_bubble_v"), 2, 2, 4)
    found = borders_of(phases, 2, v, 8)
    assert found.low.tolist() == [0 + 3 * 0, 1 + 3 * 2] and found.high.tolist() == [1 + 3 * 2, 2 + 3 * 0]
    assert found.ends.tolist() == [[0 + 3 * 2, q + 3 * q] for q in range(3)]
    assert borders_of(None, 2, ring, 8).number == 1


def phased_search(problem: PipelineProblem, above: float) -> Search | None:
    """A tree of the columns below a step time, matching apart by phases."""
    paths = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))
    generation = Generation(
        problem, above, WorkLimits(problem, paths.graph), paths, Stopper(None), ordered=False, period=period_of(problem)
    )
    if generation.bound(above) >= above or (found := generation.columns_under(above, 20_000)) is None:
        return None
    search = Search(problem, found.columns, paths, 0.0, 0, Stopper(None), above)
    start_search(search, None)
    return search


@pytest.mark.slow
def test_columns_with_phases_are_enumerated_to_the_best_of_all_plans() -> None:
    """Against the enumeration of every plan, below its optimum and above, where the period is exact and where not."""
    ended = 0
    for (problem, truth), _ in zip(periodic_problems(13), range(60), strict=False):
        search = phased_search(problem, truth.objective * 1.05)
        if search is None:
            continue
        bound_root(search)
        for cutoff in (truth.objective * (1 - 1e-9), truth.objective * 1.04):
            afresh(search)
            every = np.ones(len(search.columns), dtype=bool)
            durations = search.plans.durations_of(search.columns.start[:-1])
            if not looked_through(search, every, cutoff, durations=durations):
                continue
            ended += 1
            assert (cutoff > truth.objective) == (search.plans.best is not None)
            if search.plans.best is not None:
                assert search.plans.best_time == pytest.approx(truth.objective, rel=1e-9)
                plan = search.plan_of(search.plans.best)
                assert plan is not None and not check(problem, plan)
    assert ended > 40


def test_trees_with_it_end_at_the_best_of_all_plans() -> None:
    rng = np.random.default_rng(6)
    for _ in range(15):
        problem, truth = comparable_problem(rng, 20_000)
        if problem.interleaves > 1 and np.isfinite(truth.objective):
            found = branch_and_cut(problem, SolveOptions(gap=0.0))
            assert found.status == OPTIMAL
            assert found.objective == pytest.approx(truth.objective, rel=1e-9)
