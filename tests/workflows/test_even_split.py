"""Evenly spread layers on stages of several kinds of devices, at borders where chunks may begin."""

from __future__ import annotations

from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.workflows.solving.even_split import even_split
from tests.pipeline_solver.test_joined import first_layers, shared_choices


def test_an_even_split_moves_to_the_nearest_layer_that_chooses_tokens() -> None:
    problem = shared_choices(12, 4, 3, stages=3)
    even = even_split(problem, SolveOptions())
    assert even is not None and even.plan is not None
    assert first_layers(even.plan) == [1, 3, 7]  # 5 and 9 would be even
    assert check(problem, even.plan, even.objective) == []


def test_no_even_split_where_a_chunk_has_given_layers_or_may_not_have_as_many() -> None:
    problem = shared_choices(12, 4, 3, stages=3)
    assert even_split(problem.replace(max_layers={(0, 2): 1}), SolveOptions()) is None
    assert even_split(problem.replace(fixed_layers={(0, 0): 2}), SolveOptions()) is None
