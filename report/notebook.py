"""Drawings and progress for a notebook: a plan's pipeline, a ranking, a line during a solve."""

from __future__ import annotations

import base64
import time
from html import escape
from typing import TYPE_CHECKING, Any

import pandas as pd

from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.report.compress import number, strategy_text
from taylor.report.palette import LINES
from taylor.report.picture import drawing_style, picture_bytes, picture_figure
from taylor.report.planned import planned_timeline
from taylor.report.ranking import tied_with_first
from taylor.report.terminal import progress_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_TASKS = 20_000
"""Tasks of a step above which its pipeline is not drawn without a request."""

MOST_BARS = 20
"""Candidates of a ranking that are drawn."""


def plan_figure(problem: PipelineProblem, plan: PipelinePlan, title: str) -> Figure:
    """Pipeline of a plan over time, with the memory of its stages."""
    return picture_figure(planned_timeline(problem, plan, title))


def plan_image(problem: PipelineProblem, plan: PipelinePlan, title: str) -> str:
    """Pipeline of a plan as an HTML image; empty where it has very many tasks."""
    if 2 * problem.stages * problem.interleaves * problem.micro_batches > MOST_TASKS:
        return ""
    data = base64.b64encode(picture_bytes(planned_timeline(problem, plan, title), "png")).decode()
    return f'<img style="max-width:100%" alt="{escape(title)}: pipeline" src="data:image/png;base64,{data}">'


def ranking_figure(table: pd.DataFrame) -> Figure:
    """Step of the first candidates of a ranking, those that are a tie with the best in another colour."""
    from matplotlib.figure import Figure

    rows: list[dict[str, Any]] = [
        {str(name): cell for name, cell in row.items()}
        for row in table.to_dict("records")
        if not number(row.get("own"))
    ]
    shown = [row for row in rows if number(row.get("cost")) is not None][:MOST_BARS]
    ties = tied_with_first(shown)
    with drawing_style():
        figure = Figure(figsize=(7, 0.8 + 0.3 * max(1, len(shown))), layout="constrained")
        axes = figure.subplots()
        names = [strategy_text(row) for row in shown]
        colours = [LINES[0] if at < ties else LINES[6] for at in range(len(shown))]
        axes.barh(range(len(shown)), [float(row["cost"]) for row in shown], color=colours)
        axes.set_yticks(range(len(shown)), names)
        axes.invert_yaxis()
        axes.set_xlabel("step, ms" + (f"; the first {ties} are a tie" if ties > 1 else ""))
    return figure


class ProgressLine:
    """Progress of a solve in one line that changes: in a notebook's cell, else on the terminal.

    Give an object of it as `on_progress`.
    """

    def __init__(self, title: str = "solving") -> None:
        self.title, self.started = title, time.monotonic()
        self._cell: Any = None

    def __call__(self, progress: Any) -> None:
        """Show a report of the solver."""
        text = progress_text(self.title, time.monotonic() - self.started, progress).plain
        try:
            from IPython import get_ipython
            from IPython.display import display

            shell = get_ipython()
        except ImportError:
            shell = None
        if shell is None:  # IPython prints the raw data where no shell of it runs
            print(f"\r{text}", end="", flush=True)
            return
        if self._cell is None:
            self._cell = display({"text/plain": text}, raw=True, display_id=True)
        if self._cell is not None:
            self._cell.update({"text/plain": text}, raw=True)
