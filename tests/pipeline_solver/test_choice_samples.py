"""Samples of walks: what they expect, against the walk itself, and the choices that they make whole."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from taylor.pipeline_solver.columns.phases import Borders
from taylor.pipeline_solver.tree import choice_samples
from taylor.pipeline_solver.tree.choice_kernels import CLOSED
from taylor.pipeline_solver.tree.choice_samples import sample
from taylor.pipeline_solver.tree.choice_walk import ChoiceWalk, Matching, Rows
from tests.pipeline_solver.test_enumeration import fits
from tests.solver_cases import python_of

STAGES = 5


def random_rows(rng: np.random.Generator, kinds: int) -> Rows:
    """Five stages of a few columns each."""
    first = np.concatenate([[0], np.cumsum(rng.integers(2, 7, STAGES))])
    n = int(first[-1])
    none = np.zeros(n, dtype=np.int64)
    late, early = rng.integers(0, 8, (n, kinds)), rng.integers(-1, 4, (n, kinds))
    borders = Borders(1, none, none, np.zeros((1, 2), dtype=np.int64))
    matching = Matching(rng.integers(0, 4, n), 7, borders, late, early)
    costs = rng.uniform(0, 10, (6, n)).T
    rows = Rows(np.arange(n), first, matching, np.zeros(6))
    rows.costs[:, :6] = costs
    return rows


def walks(rng: np.random.Generator, number: int, kinds: int) -> list[tuple[Rows, NDArray[np.int64], float]]:
    """Rows, an order of the stages, and a step time below which some choices lie."""
    found = []
    while len(found) < number:
        rows, order = random_rows(rng, kinds), rng.permutation(STAGES)
        walk = ChoiceWalk(rows, order)
        if walk.sampled:
            found.append((rows, order, float(walk.rest[0].max() * rng.uniform(1.05, 1.4))))
    return found


def looked_at(rows: Rows, order: NDArray[np.int64], cutoff: float) -> int:
    """Columns that the whole walk looks at, no row joining on the way."""
    walk = ChoiceWalk(rows, order)
    while walk.go_on(10**9, cutoff) != CLOSED:
        pass
    return int(walk.state[1])


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "groups"), [(0, 64), (0, 2), (2, 64)])
def test_samples_expect_what_the_walk_looks_at(kinds: int, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bias, however few groups of places there are."""
    if groups != choice_samples.GROUPS:  # the number of groups is compiled in
        monkeypatch.setattr(choice_samples, "GROUPS", groups)
        monkeypatch.setattr(choice_samples, "sample_steps", fresh(choice_samples.sample_steps))
    rng = np.random.default_rng(3 + kinds)
    shares = []
    for rows, order, cutoff in walks(rng, 60, kinds):
        walk = ChoiceWalk(rows, order)
        steps = [sample(walk, cutoff, seed).steps for seed in range(120)]
        shares.append(np.mean(steps) / looked_at(rows, order, cutoff))
        assert np.mean(steps) == pytest.approx(looked_at(rows, order, cutoff), rel=0.5)
    assert np.mean(shares) == pytest.approx(1.0, abs=0.02)


def fresh(kernel):
    """A kernel compiled anew, with what its module holds now."""
    import numba

    return numba.njit(python_of(kernel))


@pytest.mark.parametrize("kinds", [0, 2])
def test_the_choice_of_a_sample_goes_together_and_is_the_same_for_a_seed(kinds: int) -> None:
    rng = np.random.default_rng(8 + kinds)
    whole = 0
    for rows, order, cutoff in walks(rng, 80, kinds):
        walk = ChoiceWalk(rows, order)
        for seed in range(3):
            one, again = (sample(walk, cutoff, seed) for _ in range(2))
            assert one.looked > 0
            if one.choice is None:
                assert kinds and again.choice is None  # else a place has a way on to the end
                continue
            whole += 1
            assert one.choice.tolist() == again.choice.tolist()
            assert (rows.stage[one.choice] == np.arange(STAGES)).all()
            assert fits(rows.matching, tuple(one.choice.tolist()))
    assert whole > 40


def test_a_choice_comes_from_the_depth_of_the_walk() -> None:
    """Where choices below the step time are left, a sample that comes to the end has met one."""
    rng = np.random.default_rng(21)
    met = 0
    for rows, order, _ in walks(rng, 60, 0):
        walk = ChoiceWalk(rows, order)
        found = sample(walk, 1e6, 0)  # nothing is ruled out
        assert found.choice is not None
        cutoff = float(rows.costs[found.choice, : rows.number].sum(axis=0).max()) * 1.0001
        below = sample(walk, cutoff, 1)
        assert below.choice is not None
        met += float(rows.costs[below.choice, : rows.number].sum(axis=0).max()) < cutoff
    assert met > 45


def test_a_sample_takes_the_rows_that_have_joined() -> None:
    rows, order, _ = walks(np.random.default_rng(4), 1, 0)[0]
    walk = ChoiceWalk(rows, order)
    every = sample(walk, 1e6, 0)
    assert rows.add(np.full(len(rows.members), 1e7), 0.0)
    first = sample(walk, 1e6, 0)
    # The first level is looked at, and nothing behind it.
    assert every.steps > first.steps == first.looked > 0
