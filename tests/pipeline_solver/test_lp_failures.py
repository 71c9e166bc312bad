"""An LP that fails proves nothing: whatever share of them fails, the answer stays right."""

from __future__ import annotations

import os
from functools import cache

import numpy as np
import pytest

from benchmarks.brute_force import random_problem
from benchmarks.reliability.solver import medium_problem, stopped_faults
from taylor.base.errors import OutsideProgramError
from taylor.pipeline_solver.bounds.count_master import CountMaster
from taylor.pipeline_solver.bounds.master import Master
from taylor.pipeline_solver.bounds.path_lp import LpResult
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.tree import worker_pool
from tests.solver_params import set_parameter

pytestmark = pytest.mark.usefixtures("without_enumeration")


@cache
def problems_and_solutions():
    """Sixteen random problems, every third a larger one, each with its solution."""
    rng = np.random.default_rng(1)
    problems = [random_problem(rng) if number % 3 else medium_problem(rng, 5) for number in range(16)]
    return [(problem, solve(problem)) for problem in problems]


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "share"), [(1, 0.1), (1, 0.7), (1, 1.0), (2, 0.3), (2, 1.0)])
def test_failing_lps_never_prove_a_wrong_optimum(monkeypatch, share, workers):
    chance, failed = np.random.default_rng(2), []

    def failing(real):
        def solve_or_fail(self, iteration_limit=None):
            if chance.random() < share:
                failed.append(1)
                return LpResult(-np.inf, -np.inf)
            return real(self, iteration_limit)

        return solve_or_fail

    solved = problems_and_solutions()
    set_parameter(monkeypatch, "tree.first_slice", 60)
    for problem, truth in solved:
        with monkeypatch.context() as patched:
            for kind in (Master, CountMaster):
                patched.setattr(kind, "solve", failing(kind.solve))
            solution = solve(problem, SolveOptions(time_limit=60, workers=workers))
        assert stopped_faults(problem, solution, truth) == []
        assert solution.status == truth.status
    assert failed


def test_a_solver_process_that_dies_is_told_with_what_helps(monkeypatch):
    set_parameter(monkeypatch, "tree.first_slice", 10)
    monkeypatch.setattr(worker_pool, "_work", lambda *_: os._exit(9))
    rng = np.random.default_rng(8)
    with pytest.raises(OutsideProgramError, match="Fewer -workers"):
        for _ in range(6):
            solve(medium_problem(rng), SolveOptions(workers=2))
