"""What the functions of `taylor` return: a plan with what it rests on, and the strategies that a search found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taylor.cost_model.strategy import Strategy
from taylor.cost_model.throughput import Throughput
from taylor.nd_search.emit import candidate_frame
from taylor.nd_search.search import SearchResult
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution, summary_html
from taylor.pipeline_solver.solving.result import Result
from taylor.workflows.showing.fit import FitVerdict
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.showing.verdict import speed_text, verdict

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 10
"""Rows of a table that a notebook's cell shows."""


@dataclass(frozen=True, repr=False)
class Planned:
    """A pipeline plan, solved or evaluated, with its problem.

    Parameters
    ----------
    result : Result
        Problem, solution, and where their figures come from.
    config : TrainingConfig or None
        The configuration that is planned, with the schedule that the plan is for; None for a problem of one's own.
    planned : PlannedFile or None
        What the plan rests on: device, times, memory, the file's own plan; None for a problem of one's own.
    """

    result: Result
    config: TrainingConfig | None = None
    planned: PlannedFile | None = None

    @property
    def problem(self) -> PipelineProblem:
        """The pipeline problem."""
        return self.result.problem

    @property
    def solution(self) -> Solution:
        """Status, step time, bound, memory and bubble."""
        return self.result.solution

    @property
    def plan(self) -> PipelinePlan:
        """Layers and recompute of every chunk."""
        return self.result.plan

    @property
    def step_ms(self) -> float | None:
        """Time of one step, ms; None where no real time is known, only the ratio of times."""
        if self.solution.objective is None or self.problem.unit_ms is None:
            return None
        return self.solution.objective * self.problem.unit_ms

    @property
    def speed(self) -> Throughput | None:
        """Tokens a second, of the job and of a device, and MFU; None for a problem of one's own."""
        return None if self.planned is None else self.planned.speed

    @property
    def fit(self) -> FitVerdict | None:
        """Whether the plan fits, as the result's ``verdict`` says it; None for a problem of one's own."""
        return None if self.planned is None else self.planned.fit

    @property
    def own(self) -> Solution | None:
        """The configuration's own plan, evaluated; None where it has none that can be."""
        return None if self.planned is None else self.planned.own

    @property
    def assumed(self) -> list[str]:
        """A sentence for each value that no input gave."""
        return [] if self.planned is None else self.planned.assumed

    @property
    def unmodelled(self) -> list[str]:
        """A sentence for each flag of the configuration whose effect is in none of the figures."""
        return list(self.result.unmodelled)

    def to_dict(self) -> dict[str, Any]:
        """Problem and solution as plain data, as a ``--result_json`` file holds them."""
        return self.result.to_dict()

    def summary(self) -> str:
        """What was planned, the step time, and the plan by stage, as a text."""
        return "\n".join([*self._head(), self.solution.summary()])

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        from html import escape

        head = "<br>".join(map(escape, self._head()))
        return (f"<p>{head}</p>" if head else "") + summary_html(self.solution)

    def _head(self) -> list[str]:
        lines = []
        if self.config is not None:
            lines.append(
                f"{self.config.path.name}: {self.config.model.name}, {self.config.strategy.name}, "
                f"{self.problem.schedule.name}, {self.problem.micro_batches} micro-batches"
            )
        if self.planned is not None:
            facts, memory = self.planned.facts, self.planned.memory.source
            times = "" if facts.ratios is None else f", times: {facts.ratios.ratios.source}"
            lines.append(f"device: {facts.device.described}{times}, memory: {memory}")
        if self.step_ms is not None and self.planned is None:
            lines.append(f"step time {self.step_ms:,.1f} ms")
        if self.planned is not None:
            if (speed := self.planned.speed) is not None:
                lines.append(speed_text(speed, self.planned.facts.train_tokens))
            lines += verdict(self.planned)
        return lines


@dataclass(frozen=True, repr=False)
class Found:
    """The strategies that a search found for a configuration.

    Parameters
    ----------
    config : TrainingConfig
        The configuration whose strategies were searched.
    result : SearchResult
        Candidates, their memory, and what was pruned.
    """

    config: TrainingConfig
    result: SearchResult

    @property
    def strategies(self) -> list[Strategy]:
        """The strategies chosen for profiling or ranking, the one estimated quickest first."""
        return [self.result.candidates.row(int(number)) for number in self.result.chosen]

    @property
    def table(self) -> pd.DataFrame:
        """Every strategy that obeys the rules and fits, the chosen ones first; peaks in MiB, times in ms."""
        return candidate_frame(self.result)

    def __repr__(self) -> str:
        return f"{self._head()}\n{self._shown().to_string(index=False)}"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(self._head())}</p>{self._shown().to_html(index=False)}"

    def _head(self) -> str:
        counts = ", ".join(f"{count} {step}" for step, count in self.result.counts.items())
        return f"strategies of {self.config.path.name} for {self.result.device.name}: {counts}"

    def _shown(self) -> pd.DataFrame:
        columns = ["dp", "tp", "pp", "ep", "vpp", "mbs", "micro_batches", "peakMem", "estimated_ms"]
        shown: pd.DataFrame = self.table[columns].head(SHOWN)
        return shown
