"""Results of the functions of `taylor`: a plan with its basis, and the strategies that a search found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.time.throughput import Throughput
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
from taylor.workflows.statement.measured_run import StageMeasurement

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SHOWN = 10
"""Most rows of a table in a notebook's cell."""


@dataclass(frozen=True, repr=False)
class Planned:
    """Pipeline plan, solved or evaluated, with its problem.

    Parameters
    ----------
    result : Result
        Problem, solution, and the sources of their figures.
    config : TrainingConfig or None
        Configuration that is planned, with the schedule of the plan; None for a problem of one's own.
    planned : PlannedFile or None
        Basis of the plan: device, times, memory, the baseline; None for a problem of one's own.
    """

    result: Result
    config: TrainingConfig | None = None
    planned: PlannedFile | None = None

    @property
    def problem(self) -> PipelineProblem:
        """Pipeline problem."""
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
        """Fit of the plan, as in the result's ``verdict``; None for a problem of one's own."""
        return None if self.planned is None else self.planned.fit

    @property
    def own(self) -> Solution | None:
        """Plan in the configuration, evaluated; None where it has none that can be."""
        return None if self.planned is None else self.planned.own

    @property
    def learned(self) -> list[str]:
        """Sentences on what measured peaks, and stages that ran out of memory, changed in the memory model."""
        known = None if self.planned is None else self.planned.facts.learned
        return [] if known is None else list(known.sentences)

    @property
    def measurements(self) -> tuple[StageMeasurement, ...]:
        """Measurements that the memory is corrected by, for `earlier` of the next call."""
        known = None if self.planned is None else self.planned.facts.learned
        return () if known is None else known.seen

    @property
    def assumed(self) -> list[str]:
        """Sentence for each value that no input gave."""
        return [] if self.planned is None else self.planned.assumed

    @property
    def unmodelled(self) -> list[str]:
        """Sentence for each flag of the configuration whose effect is in none of the figures."""
        return list(self.result.unmodelled)

    def to_dict(self) -> dict[str, Any]:
        """Problem and solution as plain data, as in a ``--result_json`` file."""
        return self.result.to_dict()

    def summary(self) -> str:
        """Text of the planned job, the step time, and the plan by stage."""
        return "\n".join([*self._head(), self.solution.summary()])

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        from html import escape

        head = "<br>".join(map(escape, self._head()))
        picture = ""
        if self.solution.plan is not None:
            from taylor.report.notebook import plan_image

            picture = plan_image(self.problem, self.plan, self._title())
        return (f"<p>{head}</p>" if head else "") + summary_html(self.solution) + picture

    def plot(self) -> Figure:
        """Pipeline over time and memory by stage, a matplotlib figure."""
        from taylor.report.notebook import plan_figure

        return plan_figure(self.problem, self.plan, self._title())

    def _title(self) -> str:
        return "plan" if self.config is None else self.config.path.stem

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
                lines.append(speed_text(speed, self.planned.facts.length))
            lines += [*self.learned, *verdict(self.planned)]
        return lines


@dataclass(frozen=True, repr=False)
class Found:
    """Strategies that a search found for a configuration.

    Parameters
    ----------
    config : TrainingConfig
        Configuration whose strategies were searched.
    result : SearchResult
        Candidates, their memory, and what was pruned.
    images : str
        Images of a job with an encoder, as they were stated.
    """

    config: TrainingConfig
    result: SearchResult
    images: str = ""

    @property
    def strategies(self) -> list[Strategy]:
        """Strategies chosen for profiling or ranking, the fastest by the estimate first."""
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
