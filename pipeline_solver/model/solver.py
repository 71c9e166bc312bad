"""The protocol of a solver: a problem and options in, a solution out."""

from __future__ import annotations

from typing import Protocol

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress
from taylor.pipeline_solver.model.solution import Solution


class Solver(Protocol):
    """Solves a pipeline problem; the options' `solver` is already resolved."""

    def __call__(
        self,
        problem: PipelineProblem,
        options: SolveOptions = DEFAULT_OPTIONS,
        *,
        warm_start: PipelinePlan | None = None,
        on_progress: OnProgress | None = None,
    ) -> Solution:
        """The best plan found with its lower bound; a time limit or Ctrl-C ends the search, not the program."""
