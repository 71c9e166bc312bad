"""What columns cost at the prices of an LP, and which of them these rule out."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from taylor.pipeline_solver.bounds import column_floors
from taylor.pipeline_solver.bounds.column_floors import ColumnFloors, column_costs, rule_out
from taylor.pipeline_solver.bounds.path_lp import Prices
from taylor.pipeline_solver.bounds.price_pool import PricePool
from taylor.pipeline_solver.columns.columns import build_columns
from taylor.pipeline_solver.columns.phases import Phases
from taylor.pipeline_solver.columns.stage_tuples import stage_tuples
from tests.pipeline_solver.column_cases import priced, three_kinds
from tests.solver_cases import python_of
from tests.solver_params import set_parameter

INFINITE = float("inf")

plain_rule_out = python_of(rule_out)


def ruled(
    values: list[float], costs: list[list[float]], start: list[int], cutoff: float, gone: tuple[int, ...] = ()
) -> tuple[float, list[int]]:
    mask = np.ones(len(costs[0]), dtype=bool)
    mask[list(gone)] = False
    bound, left = plain_rule_out(np.array(values), np.array(costs), np.array(start), mask, cutoff)
    assert mask.sum() == len(mask) - len(gone)
    return float(bound), np.flatnonzero(left).tolist()


def test_columns_that_alone_lift_a_price_above_the_step_time_are_ruled_out() -> None:
    """The LP's value is 10; columns of stage 0 cost 0, 1 and 3 more, of stage 1 0.5 and 2: 10.5 at the least."""
    costs = [0.0, 1.0, 3.0, 0.5, 2.0]
    assert ruled([10.0], [costs], [0, 3, 5], 20.0) == (10.5, [0, 1, 2, 3, 4])
    # Below 11.5 the second of stage 0 just lies, for plans at the step time itself are kept; that of stage 1 at 12.
    assert ruled([10.0], [costs], [0, 3, 5], 11.5) == (10.5, [0, 1, 3])
    assert ruled([10.0], [costs], [0, 3, 5], 11.5 * (1 - 2e-9)) == (10.5, [0, 3])
    assert ruled([10.0], [costs], [0, 3, 5], 12.0) == (10.5, [0, 1, 3, 4])
    # At the bound itself nothing is left to rule out.
    assert ruled([10.0], [costs], [0, 3, 5], 10.5) == (10.5, [0, 1, 2, 3, 4])
    assert ruled([10.0], [costs], [0, 3, 5], 20.0, gone=(0,)) == (11.5, [1, 2, 3, 4])
    assert ruled([10.0], [costs], [0, 3, 5], 20.0, gone=(3, 4)) == (INFINITE, [])
    assert ruled([-10.0], [costs], [0, 3, 5], -8.1) == (-9.5, [0, 1, 3])


def test_what_one_price_rules_out_lifts_the_next_and_once_more_the_first() -> None:
    """Below 12 the first price rules out column 2, at 13. Without it the second price's least is 10 + 1 on stage 0,
    which rules out column 4 (1.5 more); and without that the first one's least is 10.5 + 1 on stage 1."""
    costs = [[0.5, 0.0, 3.0, 0.0, 0.0, 1.0], [1.0, 2.0, 0.0, 0.0, 1.5, 0.5]]
    assert ruled([10.0, 10.0], costs, [0, 3, 6], 12.0) == (11.0, [0, 1, 3, 5])
    assert column_floors.WORTH == 0.01
    late = [[0.0, 9.0, 0.0, 0.5], [0.0, 0.0, 1.0, 0.0]]
    # Only the second price knows that column 2 is at 11; the first one knows of 1 and, in the end, of 3 as the least.
    assert ruled([10.0, 10.0], late, [0, 2, 4], 10.9) == (10.5, [0, 3])


def test_prices_are_gone_through_again_while_they_rule_out_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time two of four columns go; once more, and the first price knows of 10.5."""
    costs = [[0.0, 9.0, 0.0, 0.5], [0.0, 0.0, 1.0, 0.0]]
    for worth, bound in ((0.5, 10.0), (0.49, 10.5)):
        monkeypatch.setattr(column_floors, "WORTH", worth)
        assert ruled([10.0, 10.0], costs, [0, 2, 4], 10.9) == (bound, [0, 3])


def test_no_row_of_columns_below_the_step_time_is_ruled_out() -> None:
    rng = np.random.default_rng(12)
    closed = 0
    for _ in range(60):
        costs = rng.integers(0, 30, (3, 9)) / 8
        values = rng.integers(70, 90, 3) / 8
        start = [0, 3, 5, 9]
        rows = list(itertools.product(range(3), range(3, 5), range(5, 9)))
        bounds = {row: max(values[p] + costs[p, list(row)].sum() for p in range(3)) for row in rows}
        cutoff = float(rng.integers(90, 120)) / 8
        bound, left = ruled(values.tolist(), costs.tolist(), start, cutoff)
        assert min(bound, cutoff) <= min(bounds.values())
        below = {c for row, value in bounds.items() if value < cutoff for c in row}
        assert below <= set(left)
        least = max(values[p] + sum(costs[p, a:b].min() for a, b in itertools.pairwise(start)) for p in range(3))
        assert bound >= min(least, cutoff)
        closed += bound >= cutoff
    assert 5 < closed < 55


def test_floors_hold_the_newest_prices_and_read_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, rng = three_kinds(), np.random.default_rng(6)
    columns = build_columns(problem, stage_tuples(problem, 10_000), 10_000)
    n = len(columns)
    assert ColumnFloors(columns, PricePool()).capacity == min(400, 4_000_000 // n)
    set_parameter(monkeypatch, "bounds.most_costs", 6 * n + n - 1)
    assert ColumnFloors(columns, PricePool()).capacity == 6
    set_parameter(monkeypatch, "bounds.most_costs", 1)
    pool = PricePool()
    floors = ColumnFloors(columns, pool)
    assert floors.capacity == 4
    every = np.ones(n, dtype=bool)
    bound, left = floors.tighten(every, 1.0)
    assert bound == -np.inf and left.all() and left is not every
    some = [priced(rng, problem) for _ in range(9)]
    table = column_costs(columns, some)
    read = 0
    for upto in (1, 3, 4, 5, 9):
        for k in range(read, upto):
            pool.add(float(k), some[k])
        read = upto
        newest = range(max(0, upto - 4), upto)
        under = floors.under_prices()
        assert sorted(under[:, 0].tolist()) == pytest.approx(sorted(table[list(newest), 0].tolist()))
        assert sorted(floors.values[: floors.known].tolist()) == [float(k) for k in newest]
        for at, k in enumerate(floors.values[: floors.known].tolist()):
            assert under[at].tolist() == pytest.approx(table[int(k)].tolist())
        least = [k + sum(table[k, a:b].min() for a, b in itertools.pairwise(columns.start.tolist())) for k in newest]
        bound, left = floors.tighten(every, INFINITE)
        assert bound == pytest.approx(max(least)) and left.all() and every.all()
    none = every.copy()
    none[: columns.start[1]] = False
    bound, left = floors.tighten(none, INFINITE)
    assert bound == INFINITE and not left.any() and none.any()


def test_a_columns_cost_is_that_of_its_layers_and_tasks_less_its_stages() -> None:
    """Two layers at 10, times of 1 and 2 at 1 and 3, less a half; three layers at 10, times of 3 and 5 at 2 and 4."""
    columns = SimpleNamespace(
        layers=np.zeros((2, 1, 1), dtype=np.int16), totals=np.array([[2], [3]]), start=np.array([0, 1, 2]),
        durations=np.array([[1.0, 2.0], [3.0, 5.0]]), phases=None,
    )  # fmt: skip
    none = np.zeros((0, 1, 2))
    prices = Prices(np.array([0.5, 0.25]), np.array([10.0]), np.array([[[1.0, 2.0]], [[3.0, 4.0]]]), none, none)
    expected = [20 + 1 + 6 - 0.5, 30 + 6 + 20 - 0.25]
    assert column_costs(columns, [prices]).tolist() == [expected]  # type: ignore[arg-type]
    # The first begins in phase 2 of three and ends before 1, the second begins in 1 and ends before 0.
    columns.phases = Phases(3, np.array([[2], [1]], dtype=np.int8), np.array([[1], [0]], dtype=np.int8))
    begin = np.array([[[1.0, 2.0]], [[4.0, 8.0]], [[16.0, 32.0]]])
    told = prices._replace(begin=begin, end=100 * begin)
    both = column_costs(columns, [prices, told])  # type: ignore[arg-type]
    assert both.tolist() == [expected, [expected[0] + 16 + 400, expected[1] + 8 + 200]]
