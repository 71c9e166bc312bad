"""The programme over the stages: by place in the model, and by layers of every kind."""

from __future__ import annotations

import numpy as np

from benchmarks.brute_force import random_problem
from taylor.pipeline_solver.columns import stage_programs
from taylor.pipeline_solver.columns.columns import build_columns
from taylor.pipeline_solver.columns.stage_programs import StagePrograms
from taylor.pipeline_solver.columns.stage_tuples import stage_tuples
from tests.solver_cases import small_problem


def test_by_place_and_by_kinds_the_cheapest_choice_is_the_same(monkeypatch):
    rng = np.random.default_rng(7)
    compared = 0
    while compared < 25:
        problem = random_problem(rng, most_kinds=4)
        if problem.interleaves > 1 or len(problem.placed_kinds) < 2:
            continue
        tuples = stage_tuples(problem, 100_000)
        if any(not len(part.members) for part in tuples):
            continue
        columns = build_columns(problem, tuples, 100_000)
        if (np.diff(columns.start) == 0).any():
            continue
        by_kind = StagePrograms(columns)
        monkeypatch.setattr(stage_programs, "FEW_KINDS", 1)
        by_place = StagePrograms(columns)
        monkeypatch.undo()
        if by_kind.places is not None or by_place.places is None:
            continue
        weights = rng.random(len(columns))
        one, other = by_kind.best(weights), by_place.best(weights)
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert np.isclose(weights[one].sum(), weights[other].sum())
            compared += 1


def test_with_one_kind_the_cheapest_choice_is_that_of_all_choices():
    """Two stages that hold four equal layers together: every pair of columns whose layers add up to four."""
    problem = small_problem()
    columns = build_columns(problem, stage_tuples(problem, 1000), 1000)
    programs = StagePrograms(columns)
    layers = columns.totals.sum(axis=1)
    first, second = np.arange(columns.start[1]), np.arange(columns.start[1], columns.start[2])
    rng = np.random.default_rng(3)
    for _ in range(5):
        weights = rng.random(len(columns))
        least = min(weights[a] + weights[b] for a in first for b in second if layers[a] + layers[b] == 4)
        best = programs.best(weights)
        assert best is not None and layers[best].sum() == 4
        assert np.isclose(weights[best].sum(), least)


def test_a_table_of_the_largest_size_is_still_filled(monkeypatch):
    problem = small_problem()
    columns = build_columns(problem, stage_tuples(problem, 1000), 1000)
    size = StagePrograms(columns).states * problem.stages
    for largest, exact in ((size, True), (size - 1, False)):
        monkeypatch.setattr(stage_programs, "MAX_TABLE", largest)
        programs = StagePrograms(columns)
        assert programs.exact == exact
        assert (programs.best(np.ones(len(columns))) is not None) == exact
