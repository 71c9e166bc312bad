"""Plans of a language model solved for an encoder in its bubbles: the memory that they leave, and the bound."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from taylor.base.budget import TimeBudget
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.model.insertion import EncoderWork
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.solving.insertion import best_insertion
from taylor.workflows.solving import bubbles
from taylor.workflows.statement.bubbles import BubbleJob

KIND = LayerKind("dense", 2, 1.0, 1.0, {"none": 20.0, FULL: 2.0})


@pytest.mark.parametrize("limits", [(200.0, 26.0), (46.0, 200.0), (200.0, 200.0), (26.0, 26.0)])
def test_the_plan_is_the_best_of_all_and_no_bound_is_above_it(
    limits: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 26 MiB a stage has memory for its micro-batch or, recomputed, for the encoder, too."""
    problem = PipelineProblem(2, 1, 2, (KIND,), (0.0, 0.0), limits, ScheduleSpec("1f1b"), backward_ratio=2.0)
    work = EncoderWork(pieces=1, forward=0.2, backward=0.3, kept_mib=10.0)
    best = min(
        found.step
        for again in itertools.product((0, 1), repeat=2)
        if (found := best_insertion(problem, PipelinePlan({"dense": ((1, 1),)}, {FULL: (again,)}), work).insertion)
    )
    monkeypatch.setattr(bubbles, "bubble_jobs", lambda *_: [BubbleJob("", work, problem)])
    planned: Any = SimpleNamespace(config=None, problem=None, facts=SimpleNamespace(device=SimpleNamespace(spec=None)))
    found = bubbles.best_in_bubbles(planned, SolveOptions(gap=0.0), TimeBudget.of(None))
    assert found is not None and found.insertion.step == pytest.approx(best)
    assert found.bound <= best + 1e-9
