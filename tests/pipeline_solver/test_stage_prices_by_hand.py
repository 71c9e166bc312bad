"""A stage's options, the search over them and what they cost, each against plain enumeration or by hand."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline_solver.bounds import stage_pricing
from taylor.pipeline_solver.bounds.column_floors import column_costs
from taylor.pipeline_solver.bounds.path_lp import Prices
from taylor.pipeline_solver.bounds.stage_pricing import (
    StageOptions,
    alike,
    all_below,
    cheapest,
    columns_of,
    reduced_costs,
    stage_options,
)
from taylor.pipeline_solver.columns.chunk_types import ChunkChoices, ChunkType
from taylor.pipeline_solver.columns.columns import build_columns
from taylor.pipeline_solver.columns.stage_tuples import TooManyColumns, fixed_parts, stage_tuples
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.model.problem import LayerChoice, PipelineProblem
from taylor.pipeline_solver.timing.durations import schedule_of
from tests.pipeline_solver.column_cases import kind, priced, three_kinds, two_kinds
from tests.solver_cases import small_problem
from tests.solver_params import set_parameter

INFINITE = float("inf")


# Options of a stage


@pytest.mark.parametrize(
    "problem", [two_kinds(), two_kinds(min_layers=0), two_kinds(recompute_ratio={FULL: 1.0, SELECT: 0.25})]
)
def test_options_tell_the_time_and_the_memory_of_their_layers(problem: PipelineProblem) -> None:
    schedule = schedule_of(problem)
    modes = problem.searched_modes
    for s, stage in enumerate(stage_options(problem, np.full(2, 1e6))):
        alive = alive_vectors(schedule)[s]
        room, besides = fixed_parts(problem, schedule, s, alive)
        assert stage.free.tolist() == room.tolist()
        assert stage.start.tolist() == [0, *np.cumsum([int((stage.chunk == v).sum()) for v in range(2)])]
        before: tuple[int, int] | None = None
        for i, v in enumerate(stage.chunk.tolist()):
            of = stage.types[v][stage.type[i]]
            layers = [each for each, n in zip(problem.placed_kinds, of.layers, strict=True) for _ in range(n)]
            taken = of.choices.recompute[stage.choice[i]].tolist()
            again = [mode for mode, n in zip(modes, taken, strict=True) for _ in range(n)]
            again += [NONE] * (len(layers) - len(again))
            forward = besides[v] + sum(each.forward for each in layers)
            extra = sum(
                problem.recompute_ratio.get(mode, 0.0) * each.forward for each, mode in zip(layers, again, strict=True)
            )
            kept = sum(each.activation_mib[mode] for each, mode in zip(layers, again, strict=True))
            assert stage.layers[i].tolist() == list(of.layers)
            assert stage.forward[i] == pytest.approx(forward)
            assert stage.extra[:, i].tolist() == pytest.approx([0.0, extra, 0.0])
            assert stage.work[i] == pytest.approx((3.0 * forward + extra) * problem.pace[s])
            need = [sum(each.layer_mib for each in layers) + kept * float(row[v]) for row in alive]
            assert stage.need[i].tolist() == pytest.approx(need)
            assert stage.window[i].tolist() == [of.first, of.last, len(layers)]
            if stage.choice[i] == 0:
                assert stage.beyond[i].tolist() == [[INFINITE] * len(alive)]
            else:
                assert before == (v, int(stage.type[i]))
                assert stage.beyond[i, 0].tolist() == pytest.approx((stage.need[i - 1] - stage.need[i]).tolist())
            before = (v, int(stage.type[i]))
        # Every chunk but a stage's has one to three layers less than others leave; behind stage 0's first comes one.
    one, two = stage_options(two_kinds(max_layers={(0, 1): 2, (1, 0): 3}), np.full(2, 1e6))
    assert one.between.tolist() == [[0, 0], [1, 2]] and two.between.tolist() == [[1, 4], [1, 3]]


def test_a_work_limit_leaves_the_layers_that_it_has_time_for() -> None:
    """Four layers of 3 a micro-batch: 6 is time for two of them, and the other stage has two or three then."""

    def held(*limits: float, **changes: Any) -> list[list[int]]:
        problem = small_problem(limit_mib=(500.0, 500.0), recompute_ratio={}, **changes)
        return [sorted(stage.layers[:, 0].tolist()) for stage in stage_options(problem, np.array(limits))]

    assert held(100.0, 100.0) == [[1, 2, 3], [1, 2, 3]]
    assert held(6.0, 100.0) == [[1, 2], [2, 3]]
    assert held(6.0 * (1 - 1e-8), 100.0) == [[1], [3]]
    assert held(6.0 * (1 + 1e-10), 100.0) == [[1, 2], [2, 3]]
    assert held(100.0, 6.0) == [[2, 3], [1, 2]]
    assert held(6.0, 100.0, slowness=(2.0, 1.0)) == [[1], [3]]
    assert held(6.0, 100.0, slowness=(0.75, 1.0)) == [[1, 2], [2, 3]]
    # A head of 0.5 takes 1.5 more on the last stage: its one layer is within 4.5, and two are not.
    assert held(100.0, 4.5, head_forward=0.5) == [[3], [1]]
    assert held(2.0, 2.0) == [[], []]
    assert held(2.0, 100.0) == [[], []]


def test_the_chunks_of_a_stage_leave_each_other_time() -> None:
    """Of 9 one layer of the other chunk takes 3, so that each has two at the most."""
    problem = two_kinds(
        kinds=(kind("a", 8),), slowness=(), head_forward=0.0, embedding_forward=0.0, limit_mib=(900.0,) * 2
    )
    one, two = stage_options(problem.replace(recompute_ratio={}), np.array([9.0, 100.0]))
    assert sorted(one.layers[:, 0].tolist()) == [1, 1, 2, 2]
    assert sorted(set(two.layers[:, 0].tolist())) == [1, 2, 3, 4, 5]
    # Two kinds: that of the least time tells how many may fit; the options tell the rest. Here one a (1.5) or one b.
    mixed = two_kinds(slowness=(), head_forward=0.0, embedding_forward=0.0, limit_mib=(900.0,) * 2, recompute_ratio={})
    one, _ = stage_options(mixed, np.array([6.0, 100.0]))
    first = one.layers[one.chunk == 0].tolist()
    assert sorted(first) == [[1, 0], [2, 0], [3, 0]]
    assert [0, 1] in one.layers[one.chunk == 1].tolist() and [0, 2] not in one.layers[one.chunk == 1].tolist()


def test_of_choices_in_no_order_the_quicker_ones_that_take_the_least_more_are_rivals() -> None:
    """Six choices with rising time: of the last one the five others are quicker, of which the four nearest count."""
    n = 6
    extra = np.zeros((3, n))
    extra[1] = np.arange(n)
    activation = np.array([30.0, 10.0, 50.0, 20.0, 40.0, 5.0])
    zeros = np.zeros(n)
    choices = ChunkChoices(extra, activation, np.zeros((n, 1), dtype=np.int64), zeros, zeros, zeros, zeros)
    off = kind("a", 4, choices={"off": LayerChoice()})
    problem = small_problem(kinds=(off,), choices=("off",), recompute_ratio={})
    alive = np.array([2.0])
    need = choices.need(alive).T
    more = stage_pricing._more(problem, ChunkType((1,), 0, 0, choices), need, alive)
    assert more.shape == (6, 4, 1)
    assert more[0, :, 0].tolist() == [INFINITE] * 4
    assert more[1, :, 0].tolist() == [40.0, INFINITE, INFINITE, INFINITE]
    assert more[3, :, 0].tolist() == [-20.0, 20.0, 60.0, INFINITE]
    assert more[5, :, 0].tolist() == [10.0, 30.0, 50.0, 70.0]
    # Quicker is what takes no longer in any task and less in one.
    extra[:, :3] = [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    three = choices.take(np.arange(3))
    more = stage_pricing._more(problem, ChunkType((1,), 0, 0, three), need[:3], alive)
    assert np.isinf(more[:2]).all() and more[2, :, 0].tolist() == [-80.0, -40.0, INFINITE, INFINITE]
    # What is nearest goes by the resource that rises the most.
    wide = np.column_stack([need[:3], -2 * need[:3]])
    more = stage_pricing._more(problem, ChunkType((1,), 0, 0, three), wide, alive)
    assert more[2, :2].tolist() == [[-40.0, 80.0], [-80.0, 160.0]]


def test_host_memory_is_a_resource_of_its_own() -> None:
    """A layer's choice keeps 1.5 MiB on the device; on the host 2 MiB a micro-batch and 3 of states."""
    off = {"off": LayerChoice(backward=0.5, states_mib=-1.0, host_mib=2.0, host_states_mib=3.0)}
    problem = small_problem(
        kinds=(kind("a", 4, choices=off),), choices=("off",), recompute_ratio={}, host_limit_mib=(40.0, 50.0)
    )
    for s, stage in enumerate(stage_options(problem, np.full(2, 1e6))):
        alive = 2.0 - s
        assert stage.free.tolist() == [95.0 - 2 * s, 40.0 + 10 * s]
        for i in range(len(stage.work)):
            n, off_count = (
                int(stage.layers[i, 0]),
                int(stage.types[0][stage.type[i]].choices.recompute[stage.choice[i], 0]),
            )
            device = 10.0 * n - off_count + alive * (4.0 * (n - off_count) + 1.5 * off_count)
            assert stage.need[i].tolist() == [device, off_count * (2.0 * alive + 3.0)]
            assert stage.work[i] == 3.0 * n + 0.5 * off_count


def test_kinds_that_cost_the_same_are_one_but_pinned_ones_not_with_free_ones() -> None:
    problem = small_problem(
        kinds=(
            kind("a", 1), kind("b", 2, 0.5), kind("c", 3), kind("d", 4, 0.5, 11.0), kind("e", 5, pinned_last=True),
            kind("f", 1, 0.5),
        )
    )  # fmt: skip
    merged = alike(problem)
    assert [(each.name, each.count, each.pinned_last) for each in merged.kinds] == [
        ("a", 4, False), ("b", 3, False), ("d", 4, False), ("e", 5, True),
    ]  # fmt: skip
    assert [each.count for each in problem.kinds] == [1, 2, 3, 4, 5, 1]


def test_options_of_merged_kinds_are_those_of_the_kinds_with_their_layers_added() -> None:
    """Kinds a b a: a stage that begins with the first and one that begins with the second a both hold one a and a b."""
    problem = small_problem(
        kinds=(kind("a", 1), kind("b", 2, 0.5), kind("c", 1)), limit_mib=(500.0, 500.0), recompute_ratio={}, stages=2
    )
    merged = alike(problem)
    first, last = stage_options(problem, np.full(2, 1e6), merged)
    assert [(row.tolist(), window.tolist()) for row, window in zip(first.layers, first.window, strict=True)] == [
        ([1, 0], [0, 0, 1]), ([1, 1], [0, 0, 2]), ([1, 2], [0, 0, 3]),
    ]  # fmt: skip
    assert sorted(last.layers.tolist()) == [[1, 0], [1, 1], [1, 2]]
    assert last.forward.tolist() == [float(a + 0.5 * b) for a, b in last.layers.tolist()]
    three = problem.replace(stages=3, static_mib=(0.0,) * 3, limit_mib=(500.0,) * 3, min_layers=0)
    middle = stage_options(three, np.full(3, 1e6), alike(three))[1]
    found = {
        tuple(row): tuple(window) for row, window in zip(middle.layers.tolist(), middle.window.tolist(), strict=True)
    }
    assert len(found) == len(middle.layers)
    assert (
        found[1, 1] == (0, 2, 2) and found[1, 0] == (0, 3, 1) and found[0, 1] == (1, 2, 1) and found[2, 2] == (0, 0, 4)
    )


# The search


class Found(NamedTuple):
    chosen: tuple[int, ...]
    cost: float


def drawn_options(rng: np.random.Generator, chunks: int, resources: int = 2) -> StageOptions:
    """Options of whole needs; those with even numbers have a quicker rival that takes more."""
    sizes = rng.integers(2, 6, chunks)
    n = int(sizes.sum())
    need = rng.integers(0, 10, (n, resources)).astype(float)
    beyond = np.full((n, 2, resources), INFINITE)
    beyond[::2, 0] = rng.integers(1, 9, (len(beyond[::2]), resources))
    beyond[::4, 1] = rng.integers(1, 5, (len(beyond[::4]), resources))
    least = rng.integers(0, 5, n) * rng.integers(0, 2, n)
    window = np.column_stack([least, least + rng.integers(0, 9, n), rng.integers(1, 4, n)])
    between = np.array([[0, 0], *([int(low), int(low + more)] for low, more in rng.integers(0, 3, (chunks - 1, 2)))])
    none = np.zeros(n, dtype=np.int64)
    return StageOptions(
        [[] for _ in sizes], np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64), none, none, none[:, None],
        np.zeros(n), np.zeros((3, n)), rng.integers(1, 9, n).astype(float), need, beyond, window.astype(np.int64),
        between.astype(np.int64), np.full(resources, float(rng.integers(6 * chunks, 8 * chunks))), 1,
        none.astype(np.int8),
    )  # fmt: skip


def by_enumeration(stage: StageOptions, cost: NDArray[np.float64], work_limit: float, below: float) -> list[Found]:
    chunks = [range(a, b) for a, b in itertools.pairwise(stage.start.tolist())]
    found = []
    for chosen in itertools.product(*chunks):
        rows = list(chosen)
        used = stage.need[rows].sum(axis=0)
        total = float(cost[rows].sum())
        if not (used <= stage.free).all() or stage.work[rows].sum() > work_limit or total >= below:
            continue
        begin = until = 0
        for v, i in enumerate(rows):
            low, high = stage.between[v].tolist()
            first, last, count = stage.window[i].tolist()
            begin, until = max(begin + low, first), min(until + high, last)
            if begin > until:
                break
            begin, until = begin + count, until + count
        else:
            rivals = [rival for i in rows for rival in stage.beyond[i] if np.isfinite(rival).all()]
            if not any((used + rival <= stage.free).all() for rival in rivals):
                found.append(Found(chosen, total))
    return found


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_the_search_finds_what_enumeration_finds(chunks: int) -> None:
    rng = np.random.default_rng(chunks)
    met = dominated = 0
    for _ in range(40):
        stage = drawn_options(rng, chunks)
        cost = rng.integers(-50, 50, len(stage.work)) / 16 + np.arange(len(stage.work)) / 2**20
        limit = float(rng.integers(4 * chunks, 8 * chunks))
        for below in (INFINITE, 1.0, float(np.median(cost) * chunks)):
            expected = by_enumeration(stage, cost, limit, below)
            found, price = all_below(stage, cost, limit, below, 1000)
            assert sorted(map(tuple, found.tolist())) == [each.chosen for each in expected]
            assert price.tolist() == pytest.approx([float(cost[row].sum()) for row in found], abs=1e-12)
            for most in (1, 2, 5):
                _, few = cheapest(stage, cost, limit, below, most)
                costs = sorted(each.cost for each in expected)[:most]
                assert sorted(few.tolist()) == pytest.approx(costs, abs=1e-12)
            if expected:
                assert len(all_below(stage, cost, limit, below, len(expected))[0]) == len(expected)
                with pytest.raises(TooManyColumns, match=f"more than {len(expected) - 1} configurations"):
                    all_below(stage, cost, limit, below, len(expected) - 1)
            met += len(expected)
        free = stage._replace(beyond=np.full((len(stage.work), 1, 2), INFINITE))
        dominated += len(by_enumeration(free, cost, limit, INFINITE)) > len(
            by_enumeration(stage, cost, limit, INFINITE)
        )
    assert met > 40 and dominated > 4


def two_options(**changes: Any) -> StageOptions:
    """One chunk, whose options need 3 and 5 MiB, and as much work."""
    none = np.zeros(2, dtype=np.int64)
    stage = StageOptions(
        [[]], np.array([0, 2]), none, none, none[:, None], np.zeros(2), np.zeros((3, 2)), np.array([3.0, 5.0]),
        np.array([[3.0], [5.0]]), np.full((2, 1, 1), INFINITE), np.array([[0, 0, 1], [0, 0, 1]]), np.array([[0, 0]]),
        np.array([5.0]), 1, np.zeros(2, dtype=np.int8),
    )  # fmt: skip
    return stage._replace(**changes)


@pytest.mark.parametrize(
    ("room", "limit", "below", "number"),
    [
        (5.0, 5.0, INFINITE, 2),
        (5.0 - 0.9e-6, 5.0, INFINITE, 2),  # a byte
        (5.0 - 1.1e-6, 5.0, INFINITE, 1),
        (5.0, 4.9, INFINITE, 1),
        (5.0, 2.9, INFINITE, 0),
        (2.9, 5.0, INFINITE, 0),
        (-1.0, 5.0, INFINITE, 0),
        (0.0, 5.0, INFINITE, 0),
        (5.0, 5.0, 2.0, 1),  # what costs as much is not below
        (5.0, 5.0, 2.1, 2),
        (5.0, 5.0, 1.0, 0),
    ],
)
def test_options_fit_up_to_a_byte_and_cost_less_than_asked(
    room: float, limit: float, below: float, number: int
) -> None:
    stage = two_options(free=np.array([room]))
    assert len(all_below(stage, np.array([1.0, 2.0]), limit, below, 9)[0]) == number
    empty = stage._replace(start=np.array([0, 2, 2]))
    assert all_below(empty, np.array([1.0, 2.0]), limit, below, 9)[0].shape == (0, 2)


def test_an_option_whose_quicker_rival_just_fits_is_left_out() -> None:
    """The first option needs 3 of 5 (and a byte): a rival that takes 2 more fits, one that takes 2.1 more does not."""
    for more, number in ((2.0, 1), (2.0 + 0.9e-6, 1), (2.1, 2), (INFINITE, 2)):
        beyond = np.full((2, 1, 1), INFINITE)
        beyond[0] = more
        assert len(all_below(two_options(beyond=beyond), np.array([1.0, 2.0]), 9.0, INFINITE, 9)[0]) == number


def test_a_search_of_too_many_steps_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two options it looks at both; it ends at the first one beyond what it may look at."""
    assert DEFAULT_PARAMS.bounds.pricing_steps == 100_000_000
    set_parameter(monkeypatch, "bounds.pricing_steps", 2)
    assert cheapest(two_options(), np.array([1.0, 2.0]), 9.0, INFINITE, 5)[1].tolist() == [1.0, 2.0]
    set_parameter(monkeypatch, "bounds.pricing_steps", 1)
    with pytest.raises(TooManyColumns, match="takes too long"):
        cheapest(two_options(), np.array([1.0, 2.0]), 9.0, INFINITE, 5)


def test_more_than_a_first_table_of_configurations_are_kept_with_their_costs() -> None:
    n = 40
    none = np.zeros(2 * n, dtype=np.int64)
    stage = StageOptions(
        [[], []], np.array([0, n, 2 * n]), none, none, none[:, None], np.zeros(2 * n), np.zeros((3, 2 * n)),
        np.zeros(2 * n), np.zeros((2 * n, 1)), np.full((2 * n, 1, 1), INFINITE), np.zeros((2 * n, 3), dtype=np.int64),
        np.zeros((2, 2), dtype=np.int64), np.array([5.0]), 1, np.zeros(2 * n, dtype=np.int8),
    )  # fmt: skip
    cost = np.concatenate([np.arange(n), np.arange(n) / 64])
    found, price = all_below(stage, cost, 1.0, INFINITE, 5000)
    assert len({tuple(row) for row in found.tolist()}) == n * n == len(price)
    assert price.tolist() == cost[found].sum(axis=1).tolist()
    few, least = cheapest(stage, cost, 1.0, INFINITE, 1500)
    assert sorted(least.tolist()) == sorted(price.tolist())[:1500]
    assert least.tolist() == cost[few].sum(axis=1).tolist()


# Prices


def cost_of(prices: Prices, s: int, v: int, layers: list[int], times: list[float]) -> float:
    """Of one chunk: its layers, its tasks, and its place in the order of kinds."""
    cost = sum(n * float(price) for n, price in zip(layers, prices.layer, strict=True))
    cost += sum(time * float(prices.duration[d, v, s]) for d, time in enumerate(times))
    holds = [j for j, n in enumerate(layers) if n]
    for j in range(len(layers) - 1):
        cost += float(prices.late[j, v, s]) if any(k > j for k in holds) else 0.0
        cost += float(prices.early[j, v, s]) if any(k <= j for k in holds) else 0.0
    return cost


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("only", [None, "late", "early"])
def test_costs_of_options_and_of_columns_are_those_of_their_chunks(only: str | None, ordered: bool) -> None:
    problem, rng = three_kinds(), np.random.default_rng(4)
    some = [priced(rng, problem, ordered) for _ in range(3)]
    if only is not None:
        other = "early" if only == "late" else "late"
        some = [one._replace(**{other: np.zeros_like(one.late)}) for one in some]
    options = stage_options(problem, np.full(2, 1e6))
    columns = build_columns(problem, stage_tuples(problem, 10_000), 10_000)
    table = column_costs(columns, some)
    for p, prices in enumerate(some):
        for s, stage in enumerate(options):
            costs = reduced_costs(problem, stage, s, prices)
            pace = problem.pace[s]
            for i, v in enumerate(stage.chunk.tolist()):
                times = [pace * stage.forward[i], pace * (2.0 * stage.forward[i] + stage.extra[1, i])]
                assert costs[i] == pytest.approx(cost_of(prices, s, v, stage.layers[i].tolist(), times), abs=1e-9)
        for c in range(0, len(columns), 7):
            s = int(columns.stage[c])
            expected = -float(prices.stage[s])
            for v in range(2):
                times = [float(columns.durations[c, v]), float(columns.durations[c, 2 + v])]
                expected += cost_of(prices, s, v, columns.layers[c, v].tolist(), times)
            assert table[p, c] == pytest.approx(expected, abs=1e-9)


def test_columns_of_chosen_options_say_which_they_are() -> None:
    problem = three_kinds()
    options = stage_options(problem, np.full(2, 1e6))
    rng = np.random.default_rng(8)
    chosen = [all_below(stage, np.zeros(len(stage.work)), 1e6, INFINITE, 100_000)[0] for stage in options]
    chosen = [rows[rng.permutation(len(rows))[:50]] for rows in chosen]
    columns, number = columns_of(problem, options, chosen, ordered=False)
    assert sorted(number.tolist()) == list(range(100)) and not columns.ordered
    assert columns.start.tolist() == [0, 50, 100]
    assert columns_of(problem, options, chosen)[0].ordered
    groups: dict[int, tuple[int, tuple[int, ...]]] = {}
    last: dict[int, float] = {}
    for c, k in enumerate(number.tolist()):
        s = int(columns.stage[c])
        assert k // 50 == s
        stage, row = options[s], chosen[s][k % 50]
        assert columns.layers[c].tolist() == stage.layers[row].tolist()
        recompute = [
            stage.types[v][stage.type[i]].choices.recompute[stage.choice[i]].tolist() for v, i in enumerate(row)
        ]
        assert columns.recompute[c].tolist() == recompute
        pace = problem.pace[s]
        times = [*(pace * stage.forward[row]), *(pace * (2.0 * stage.forward[row] + stage.extra[1, row]))]
        assert columns.durations[c].tolist() == pytest.approx(times)
        group = int(columns.group[c])
        assert groups.setdefault(group, (s, tuple(stage.type[row].tolist()))) == (s, tuple(stage.type[row].tolist()))
        extra = float(stage.extra[:, row].sum())
        assert last.get(group, 0.0) <= extra + 1e-12
        last[group] = extra
    assert len(set(groups.values())) == len(groups) < 100 and sorted(groups) == list(range(len(groups)))
