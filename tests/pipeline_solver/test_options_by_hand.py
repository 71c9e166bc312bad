"""What can be asked of a solve, and what is asked by default."""

from __future__ import annotations

from typing import Any

import pytest

from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS, SolveOptions


@pytest.mark.parametrize("limit", [None, 0, 0.5])
def test_what_can_be_asked(limit: float | None) -> None:
    options = SolveOptions(time_limit=limit, gap=0.0, workers=1)
    assert (options.time_limit, options.gap, options.workers) == (limit, 0.0, 1)
    assert options.replace(gap=0.5).gap == 0.5


@pytest.mark.parametrize(
    "wrong", [{"time_limit": -0.1}, {"time_limit": float("nan")}, {"gap": -1e-9}, {"gap": float("nan")}, {"workers": 0}]
)
def test_what_cannot_be_asked_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SolveOptions(**wrong)


def test_by_default_one_process_proves_the_optimum() -> None:
    stated = (DEFAULT_OPTIONS.solver, DEFAULT_OPTIONS.time_limit, DEFAULT_OPTIONS.gap, DEFAULT_OPTIONS.workers)
    assert stated == ("HIGHS", None, 1e-6, 1)
    assert (DEFAULT_OPTIONS.seed, DEFAULT_OPTIONS.cutoff, DEFAULT_OPTIONS.memory) == (0, None, None)
