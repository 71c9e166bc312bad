"""The LP over counts against the same LP stated anew, and the splits of columns counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.bounds.count_master import CountMaster, master_of
from taylor.pipeline_solver.bounds.cut_pool import CutPool, PathCuts
from taylor.pipeline_solver.bounds.master import Master
from taylor.pipeline_solver.bounds.path_lp import LpResult
from taylor.pipeline_solver.columns.columns import ColumnSet, build_columns
from taylor.pipeline_solver.columns.splits import Split, StageSplits
from taylor.pipeline_solver.columns.stage_tuples import stage_tuples
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem
from taylor.pipeline_solver.model.uniform_rule import counts_suffice
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from tests.solver_cases import small_problem
from tests.solver_params import set_parameter

KEPT = {NONE: 4.0, FULL: 1.0, SELECT: 2.0}


def folded(**changes: Any) -> PipelineProblem:
    """Ten layers on two stages of two chunks, of which each recomputes two layers; little memory."""
    problem = small_problem(
        interleaves=2,
        micro_batches=4,
        kinds=(LayerKind("body", 10, 0.5, 10.0, KEPT), LayerKind("mtp", 1, 0.25, 6.0, KEPT, pinned_last=True)),
        schedule=ScheduleSpec("interleaved"),
        limit_mib=(96.0, 95.0),
        head_forward=0.75,
        embedding_forward=0.125,
        slowness=(1.0, 1.25),
        lag=0.25,
        tail=(1.0, 0.5),
        uniform_recompute=((FULL, 2),),
    )
    return problem.replace(**changes)


PROBLEMS = [
    folded(),
    folded(min_layers=0, limit_mib=(500.0, 80.0)),
    folded(recompute_ratio={FULL: 1.0, SELECT: 0.25}, uniform_recompute=((SELECT, 3),)),
    folded(uniform_recompute=((FULL, 0),), limit_mib=(140.0, 120.0)),
    folded(recompute_ratio={}, uniform_recompute=(), limit_mib=(140.0, 120.0)),
    folded(schedule=ScheduleSpec("zbv"), weight_gradient_share=0.4, limit_mib=(110.0, 100.0)),
    folded(interleaves=1, schedule=ScheduleSpec("1f1b"), limit_mib=(90.0, 90.0)),
]


def columns_of(problem: PipelineProblem) -> ColumnSet:
    return build_columns(problem, stage_tuples(problem, 10_000), 10_000)


def with_cuts(problem: PipelineProblem) -> tuple[CountMaster, CutPool]:
    """The LP with the seeds and the longest paths under some durations as cuts."""
    paths = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))
    rng = np.random.default_rng(3)
    for _ in range(6):
        paths.path(rng.random(paths.classes))
    paths.seeds()
    master = CountMaster(columns_of(problem), paths.pool)
    for cut in range(paths.pool.size):
        master.keep(cut)
    return master, paths.pool


def value_stated_anew(problem: PipelineProblem, pool: CutPool, columns: ColumnSet, mask: NDArray[np.bool_]) -> float:
    """Least step time over counts of layers, and of recomputed ones, in the ranges of the allowed columns."""
    schedule, V, S = schedule_of(problem), problem.interleaves, problem.stages
    body = problem.placed_kinds[0]
    mode, most = problem.uniform_recompute[0] if problem.uniform_recompute else (NONE, 0)
    D = 3 if problem.schedule.name == "zbv" else 2
    share = problem.weight_gradient_share if D == 3 else 0.0
    n = 1 + 2 * V * S
    rows, sides, equal, exact, bounds = [], [], [], [], [(0.0, None)] + [(0.0, None)] * (n - 1)

    def x(v: int, s: int) -> int:
        return 1 + v * S + s

    def y(v: int, s: int) -> int:
        return 1 + V * S + v * S + s

    def at_most(terms: dict[int, float], side: float) -> None:
        row = np.zeros(n)
        for column, value in terms.items():
            row[column] += value
        rows.append(row)
        sides.append(side)

    everything = np.zeros(n)
    everything[1 : 1 + V * S] = 1.0
    equal.append(everything)
    exact.append(body.count)
    times: dict[tuple[int, int, int], tuple[float, float, float]] = {}
    for v in range(V):
        for s in range(S):
            place = schedule.position(v, s)
            besides = problem.embedding_forward * (place == 0)
            if place == schedule.chunks - 1:
                besides += problem.head_forward + sum(k.forward * k.count for k in problem.kinds if k.pinned_last)
            pace, beta = problem.pace[s], problem.backward_ratio
            again = problem.recompute_ratio.get(mode, 0.0) * body.forward
            times[0, v, s] = (pace * body.forward, 0.0, pace * besides)
            inputs = pace * beta * (1 - share)
            times[1, v, s] = (inputs * body.forward, pace * again, inputs * besides)
            times[2, v, s] = (pace * beta * share * body.forward, 0.0, pace * beta * share * besides)
    for s in range(S):
        held = columns.layers[columns.start[s] : columns.start[s + 1], :, 0].astype(int)
        held = held[mask[columns.start[s] : columns.start[s + 1]]]
        if not len(held):
            return float("inf")
        at_most({x(v, s): 1.0 for v in range(V)}, float(held.sum(axis=1).max()))
        at_most({x(v, s): -1.0 for v in range(V)}, -float(held.sum(axis=1).min()))
        pinned = [k for k in problem.kinds if k.pinned_last] if schedule.chunk_at(schedule.chunks - 1)[1] == s else []
        last = schedule.chunk_at(schedule.chunks - 1)[0]
        for alive in alive_vectors(schedule)[s].tolist():
            static = problem.static_mib[s] + sum(k.layer_mib + alive[last] * k.activation_mib[NONE] for k in pinned)
            terms = {x(v, s): body.layer_mib + alive[v] * 4.0 for v in range(V)}
            terms |= {y(v, s): alive[v] * (body.activation_mib[mode] - 4.0) for v in range(V)}
            at_most(terms, problem.limit_mib[s] + 1e-6 - static)
        for v in range(V):
            low, high = int(held[:, v].min()), int(held[:, v].max())
            bounds[x(v, s)] = (low, high)
            few, many = min(low, most), min(high, most)
            bounds[y(v, s)] = (few, many)
            at_most({y(v, s): 1.0, x(v, s): -1.0}, 0.0)
            slope = (many - few) / (high - low) if high > low else 0.0
            at_most({y(v, s): -1.0, x(v, s): slope}, slope * low - few)
    for cut in range(pool.size):
        terms, constant = {0: -1.0}, float(pool.constant[cut])
        for d, v, s in ((d, v, s) for d in range(D) for v in range(V) for s in range(S)):
            count = float(pool.counts[cut, (d * V + v) * S + s])
            layer, again, besides = times[d, v, s]
            terms[x(v, s)] = terms.get(x(v, s), 0.0) + count * layer
            terms[y(v, s)] = terms.get(y(v, s), 0.0) + count * again
            constant += count * besides
        at_most(terms, -constant)
    cost = np.zeros(n)
    cost[0] = 1.0
    found = linprog(cost, np.array(rows), np.array(sides), np.array(equal), np.array(exact), bounds)
    return float(found.fun) if found.status == 0 else float("inf")


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_lp_is_that_over_counts_whatever_columns_are_allowed(problem: PipelineProblem) -> None:
    master, pool = with_cuts(problem)
    columns = master.columns
    rng = np.random.default_rng(5)
    masks = [np.ones(len(columns), dtype=bool)]
    # One stage is changed alone, and both.
    for share in (0.6, 0.3, 0.15, 0.15):
        mask = rng.random(len(columns)) < share
        mask[: columns.start[1]] |= share == 0.3
        masks += [mask, masks[0]]
    finite = 0
    for mask in masks:
        master.allow(mask)
        result = master.solve()
        expected = value_stated_anew(problem, pool, columns, mask)
        assert result.value == pytest.approx(expected, rel=1e-6)
        if np.isfinite(expected):
            assert result.bound >= result.value * (1 - 1e-6)
            assert result.point is not None
            durations = master.durations(result.point)
            longest = float((pool.counts[: pool.size] @ durations + pool.constant[: pool.size]).max())
            assert longest == pytest.approx(result.value, rel=1e-6)
            finite += 1
    assert finite > 5
    master.allow(masks[0])
    first = master.solve().value
    master.rebuild(master.active)
    assert master.solve().value == pytest.approx(first, rel=1e-9)


def test_the_bound_is_that_of_the_cheapest_columns_under_the_weights_of_the_paths() -> None:
    """Under any weights of the paths, and any price of a layer, the columns' cost bounds the step time."""
    for problem in PROBLEMS[:4]:
        master, pool = with_cuts(problem)
        columns = master.columns
        result = master.solve()
        assert result.reduced is not None and result.least is not None
        prices = master.prices()
        weight = prices.duration.reshape(-1)
        # The durations' prices are a mean of the paths' counts.
        assert weight.sum() >= pool.counts[: pool.size].sum(axis=1).min() - 1e-6
        assert weight.sum() <= pool.counts[: pool.size].sum(axis=1).max() + 1e-6
        for s in range(2):
            own = slice(columns.start[s], columns.start[s + 1])
            by_chunk = prices.duration[:, :, s].reshape(-1)
            cost = columns.durations[own] @ by_chunk + columns.totals[own, 0] * prices.layer[0] - prices.stage[s]
            assert result.reduced[own].tolist() == pytest.approx(cost.tolist(), abs=1e-7)
            assert result.least[s] == pytest.approx(cost.min(), abs=1e-7)
        assert result.bound == pytest.approx(result.value + result.least.sum(), rel=1e-9)
        assert prices.late.shape == prices.early.shape == (0, 2, 2)


def test_without_columns_without_paths_and_without_time_the_lp_tells_no_bound() -> None:
    problem = folded()
    columns = columns_of(problem)
    pool = CutPool(8)
    master = CountMaster(columns, pool)
    bare = master.solve()
    assert (bare.bound, bare.value, bare.point) == (-np.inf, -np.inf, None)
    mask = np.ones(len(columns), dtype=bool)
    mask[columns.start[1] :] = False
    master.allow(mask)
    assert master.empty.tolist() == [False, True]
    none = master.solve()
    assert (none.bound, none.value) == (np.inf, np.inf)
    master, _ = with_cuts(problem)
    assert master.solve(0).bound == -np.inf
    assert np.isfinite(master.solve().bound)
    master.allowed = None
    with pytest.raises(RuntimeError, match="allow must be called before solve"):
        master.solve()


def test_counts_suffice_where_nothing_but_counts_is_to_be_chosen() -> None:
    problem = folded()
    assert counts_suffice(problem)
    assert not counts_suffice(problem.replace(uniform_recompute=()))
    assert counts_suffice(problem.replace(uniform_recompute=(), recompute_ratio={}))
    assert counts_suffice(problem.replace(uniform_recompute=(), unsearched=(FULL,)))
    assert not counts_suffice(problem.replace(uniform_recompute=((FULL, 1), (FULL, 2))))
    body = problem.kinds[0]
    assert not counts_suffice(problem.replace(kinds=(body, LayerKind("b", 2, 1.0, 1.0, KEPT))))
    assert counts_suffice(problem.replace(kinds=(body, LayerKind("b", 0, 1.0, 1.0, KEPT))))
    off = LayerKind("body", 10, 0.5, 10.0, {**KEPT, "off": 1.0}, choices={"off": LayerChoice()})
    assert not counts_suffice(problem.replace(kinds=(off,), choices=("off",)))


@pytest.mark.parametrize(
    ("changes", "most_weighed", "lp"),
    [
        ({}, len(columns_of(folded())), Master),
        ({}, len(columns_of(folded())) - 1, CountMaster),
        ({"uniform_recompute": ((FULL, 0),)}, 10_000, CountMaster),
        ({"uniform_recompute": (), "recompute_ratio": {}}, 10_000, CountMaster),
        ({"uniform_recompute": ()}, 0, Master),
    ],
    ids=["few columns", "many columns", "nothing recomputed", "no recompute", "recompute to choose"],
)
def test_the_lp_over_counts_stands_for_many_columns_or_where_nothing_is_recomputed(
    changes: dict[str, Any], most_weighed: int, lp: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_parameter(monkeypatch, "bounds.price_above", most_weighed)
    problem = folded(limit_mib=(140.0, 120.0), **changes) if changes else folded()
    assert isinstance(master_of(columns_of(problem), np.arange(2), CutPool(8)), lp)


# Splits


def grid_of(problem: PipelineProblem, layers: list[tuple[int, ...]], stages: int = 1) -> ColumnSet:
    """Columns of stages alike, of so many layers each by chunk, that take 1 and 2 a piece for each of them."""
    held = np.array(layers * stages, dtype=np.int16)[:, :, None]
    n = len(held)
    forward = held[:, :, 0] / problem.schedule.seq_splits
    start = np.arange(stages + 1) * len(layers)
    none = np.zeros((n, held.shape[1], 0), dtype=np.int16)
    return ColumnSet(problem, start, held, none, np.hstack([forward, 2.0 * forward]), np.arange(n))


GRID = [(a, b) for a in (1, 2, 3) for b in (1, 2, 3)]
EVERY = np.ones(9, dtype=bool)


def told(splits: list[Split]) -> list[tuple[float, list[int], list[int]]]:
    return [(round(one.merit, 9), one.below.tolist(), one.above.tolist()) for one in splits]


def of(*counts: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Layers and times of one stage at these counts."""
    layers = np.array(counts)[:, None]
    return layers, np.stack([layers, 2 * layers])


def test_counts_between_whole_ones_part_the_columns_there() -> None:
    """At 1.5 and 2 layers: works of 9 and 12 lie about 10.5, the least is 6 and the greatest 18. The second chunk has
    a whole count, at which nothing is parted while another one is not whole."""
    splits = StageSplits(grid_of(folded(), GRID), 2)
    few, many = [0, 1, 3], [2, 4, 5, 6, 7, 8]
    expected = [(0.5 * 12.0, few, many), (0.5, [0, 1, 2], [3, 4, 5, 6, 7, 8])]
    found, whole = splits.between(*of(1.5, 2.0), EVERY)
    assert told(found) == expected and not whole
    # Nearer to one side: a quarter of the way.
    found, whole = splits.between(*of(1.25, 2.0), EVERY)
    assert [merit for merit, _, _ in told(found)] == [0.25 * 12.0, 0.25]
    found, _ = splits.between(*of(1.75, 2.0), EVERY)
    assert [merit for merit, _, _ in told(found)] == [0.25 * 12.0, 0.25]


def test_whole_counts_part_the_columns_at_them_on_either_side() -> None:
    splits = StageSplits(grid_of(folded(), GRID), 2)
    found, whole = splits.between(*of(2.0, 1.0), EVERY)
    assert whole and told(found) == [
        (0.0, [0, 1, 3], [2, 4, 5, 6, 7, 8]),
        (0.0, [0], [1, 2, 3, 4, 5, 6, 7, 8]),
        (0.0, [0, 1, 2, 3, 4, 5], [6, 7, 8]),
        (0.0, [0, 1, 2], [3, 4, 5, 6, 7, 8]),
        (0.0, [0, 3, 6], [1, 2, 4, 5, 7, 8]),
    ]
    # What is as near to a whole count as rounding is one.
    assert splits.between(*of(2.0 + 1e-7, 1.0), EVERY)[1]
    assert not splits.between(*of(2.0 + 1e-4, 1.0), EVERY)[1]


def test_only_columns_of_the_node_are_parted_stage_by_stage() -> None:
    columns = grid_of(folded(), [(1, 1), (2, 1), (3, 1)], 2)
    splits = StageSplits(columns, 2)
    layers = np.array([[1.5, 2.5], [1.0, 1.0]])
    time = np.stack([layers, 2 * layers])
    every = np.ones(6, dtype=bool)
    found, whole = splits.between(layers, time, every)
    # Works of 6, 9 and 12; layers, forward and time of the first chunk part as the work does.
    assert not whole and told(found) == [(3.0, [0], [1, 2]), (3.0, [3, 4], [5])]
    mask = np.array([True, False, True, False, True, True])
    found, _ = splits.between(layers, time, mask)
    # Between 6 and 12 at 7.5; of stage 1 between 9 and 12 at 10.5.
    assert told(found) == [(0.25 * 6.0, [0], [2]), (0.5 * 3.0, [4], [5])]
    mask[[0, 3, 4]] = False
    assert splits.between(layers, time, mask) == ([], True)


def test_pieces_of_a_sequence_make_up_the_work() -> None:
    """Pieces of a half: the work of 1.5 layers is 4.5 all the same, between 3 and 6."""
    problem = small_problem(schedule=ScheduleSpec("seqpipe", seq_splits=2))
    splits = StageSplits(grid_of(problem, [(1,), (2,), (4,)]), 1)
    layers = np.array([[1.5]])
    found, whole = splits.between(layers, np.stack([layers / 2, layers]), np.ones(3, dtype=bool))
    assert told(found) == [(0.5 * 9.0, [0], [1, 2])] and not whole


def test_shares_of_columns_part_them_at_their_mean() -> None:
    columns = grid_of(folded(), [(1, 2), (2, 1), (3, 1), (1, 4)], 2)
    splits = StageSplits(columns, 2)
    mask = np.ones(8, dtype=bool)
    weights = np.array([0.25, 0.0, 0.75, 0.0, 0.0, 1.0, 0.0, 0.0])
    # Works 9, 9, 12, 15, on the mean 11.25; the first chunk's layers 1, 2, 3, 1 on the mean 2.5; the second's
    # 2, 1, 1, 4 on 1.25, below which are those that have three quarters.
    assert told(splits.ways(weights, mask)) == [
        (0.25 * 6.0, [0, 1], [2, 3]),
        (0.25, [0, 1, 3], [2]),
        (0.25, [1, 2], [0, 3]),
    ]
    mask[1] = False
    assert told(splits.ways(weights, mask))[0] == (0.25 * 6.0, [0], [2, 3])
    # A stage on which the LP has decided is not parted.
    assert splits.ways(np.array([1.0, 0, 0, 0, 0, 1.0 - 1e-7, 0, 0]), mask) == []
    assert splits.ways(np.array([1.0 - 2e-6, 0, 2e-6, 0, 0, 1.0, 0, 0]), mask)


def test_columns_that_nothing_tells_apart_are_parted_at_the_one_with_most() -> None:
    splits = StageSplits(grid_of(folded(), [(1, 2), (1, 2), (1, 2)]), 2)
    mask = np.ones(3, dtype=bool)
    assert told(splits.ways(np.array([0.25, 0.625, 0.125]), mask)) == [(0.375, [1], [0, 2])]
    assert told(splits.ways(np.array([0.375, 0.25, 0.375]), mask)) == [(0.375, [0], [1, 2])]


# Splits at the count


def lp_result(x: list[float], y: list[float]) -> LpResult:
    return LpResult(0.0, 0.0, np.array([*x, *y]))


def test_a_chunk_short_of_recomputed_layers_is_parted_at_the_count() -> None:
    """With 2 to be recomputed, a chunk of 3 layers that recomputes 1.5 is half a layer short."""
    problem = folded(limit_mib=(500.0, 500.0))
    columns = columns_of(problem)
    master = CountMaster(columns, CutPool(8))
    splits = StageSplits(columns, 2)
    every = np.ones(len(columns), dtype=bool)
    short = np.array([[0.0, 0.5], [0.0, 0.0]])
    ((merit, above, below),) = master._at_the_count(short, every)
    own = np.arange(columns.start[1], columns.start[2])
    few = own[columns.layers[own, 0, 0] < 2]
    assert merit == 0.5 and below.tolist() == few.tolist() and len(few)
    assert above.tolist() == own[columns.layers[own, 0, 0] >= 2].tolist()
    assert master._at_the_count(np.full((2, 2), 1e-7), every) == []
    assert len(master._at_the_count(np.full((2, 2), 1e-5), every)) == 4
    # A node that has few of them, or more alone, is not parted there.
    for keep in (few, np.setdiff1d(own, few)):
        mask = every.copy()
        mask[own] = False
        mask[keep] = True
        assert master._at_the_count(short, mask) == []
    # Variables are the first chunks of both stages, then the second ones.
    found, whole = master.ways(splits, lp_result([3.0, 2.0, 2.0, 3.0], [1.5, 2.0, 2.0, 2.0]), every)
    assert not whole  # as the time of the one that is short is that of no count
    own = np.arange(columns.start[0], columns.start[1])
    below_two = own[columns.layers[own, 0, 0] < 2].tolist()
    assert sum(split.below.tolist() == below_two for split in found) == 1
    assert found[-1].below.tolist() == below_two and found[-1].merit == 0.5
    # At 2 layers the split at the count is there already, and comes once.
    found, whole = master.ways(splits, lp_result([2.0, 2.0, 3.0, 3.0], [1.5, 2.0, 2.0, 2.0]), every)
    assert sum(split.below.tolist() == below_two for split in found) == 1
    # Counts next to whole ones are whole; others are not.
    assert master.ways(splits, lp_result([2.0 + 9e-7, 2.0, 3.0 - 9e-7, 3.0], [2.0] * 4), every)[1]
    assert not master.ways(splits, lp_result([2.01, 2.0, 2.99, 3.0], [2.0] * 4), every)[1]


def test_the_columns_of_the_lps_counts_are_chosen_where_they_are_allowed() -> None:
    problem = folded(limit_mib=(500.0, 500.0))
    columns = columns_of(problem)
    master = CountMaster(columns, CutPool(8))
    every = np.ones(len(columns), dtype=bool)
    chosen = master.chosen(lp_result([3.0 - 1e-7, 2.2, 1.0, 4.0], [2.0] * 4), every)
    assert chosen is not None
    assert columns.layers[chosen, :, 0].tolist() == [[3, 1], [2, 4]] and columns.stage[chosen].tolist() == [0, 1]
    every[chosen[1]] = False
    assert master.chosen(lp_result([3.0, 2.2, 1.0, 4.0], [2.0] * 4), every) is None
