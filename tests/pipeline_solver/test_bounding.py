"""The bound of a node."""

from __future__ import annotations

import numpy as np
import pytest

from taylor.pipeline_solver.bounds.bounding import cut_loop
from taylor.pipeline_solver.bounds.cut_pool import PathCuts
from taylor.pipeline_solver.bounds.master import Master
from taylor.pipeline_solver.columns.columns import build_columns
from taylor.pipeline_solver.columns.stage_tuples import stage_tuples
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import schedule_of
from taylor.pipeline_solver.timing.event_graph import EventGraph
from tests.solver_cases import reference_problem
from tests.solver_params import set_parameter


def test_a_path_that_is_known_and_not_in_the_lp_still_cuts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = reference_problem()
    columns = build_columns(problem, stage_tuples(problem, 2000), 20_000)
    paths = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))
    every = np.arange(len(columns))
    # Of the many paths met, the newest are tried on a new point; here the longest is never among them.
    set_parameter(monkeypatch, "bounds.recent_cuts", 0)
    first = cut_loop(Master(columns, every, paths.pool), paths, Stopper(None), np.inf, 600, lambda bound: None)
    again = cut_loop(Master(columns, every, paths.pool), paths, Stopper(None), np.inf, 600, lambda bound: None)
    for bound, _, length in (first, again):
        assert bound == pytest.approx(length, rel=1e-6)
    assert again[0] == pytest.approx(first[0], rel=1e-6)


@pytest.mark.parametrize("known", [1, 6])
def test_an_lp_takes_the_longest_known_paths_so_many_a_round_and_those_found_for_it(known: int) -> None:
    problem = reference_problem()
    columns = build_columns(problem, stage_tuples(problem, 2000), 20_000)
    paths = PathCuts(problem, EventGraph.from_schedule(schedule_of(problem), problem.boundary_lags))
    every = np.arange(len(columns))
    cut_loop(Master(columns, every, paths.pool), paths, Stopper(None), np.inf, 40)
    plain = Master(columns, every, paths.pool)
    point = plain.solve().point
    assert point is not None
    durations = plain.durations(point)
    longest = [cut for _, cut in paths.pool.longest(durations, 2 * known, DEFAULT_PARAMS.bounds.recent_cuts)][:known]
    fresh = Master(columns, every, paths.pool)
    cut_loop(fresh, paths, Stopper(None), np.inf, 1, known=known)
    assert set(fresh.kept) == {*longest, paths.path(durations)[1], paths.path(durations, 1)[1]}
