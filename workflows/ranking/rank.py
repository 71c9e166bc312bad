"""Many candidates: each solved on its own, saved when done, ranked by step time."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from taylor.base.errors import TaylorError
from taylor.base.files import printable, write_atomic
from taylor.base.interrupts import delay_interrupts
from taylor.cost_model.job.length import UNSTATED, TrainingLength
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import FEASIBLE, Solution
from taylor.workflows.ranking.candidate_file import CandidateFile
from taylor.workflows.ranking.own_plans import best_entries, given_entries, own_solution, problem_of
from taylor.workflows.ranking.rank_levers import COLUMN, with_smallest_changes
from taylor.workflows.ranking.rank_solves import RankSolves
from taylor.workflows.ranking.rank_table import NOT_SOLVED, RankEntry, failed_row, ranked_table, solved_row
from taylor.workflows.running.kept_solves import SolveStore
from taylor.workflows.running.process_pool import Failed
from taylor.workflows.running.run_folder import new_run_folder
from taylor.workflows.showing.planned_outputs import write_or_note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_COLUMNS = ("dp", "tp", "pp", "ep", "vpp", "mbs", "micro_batches", "cost", "gap", "status")
SHOWN_CANDIDATES = 10
"""Columns and most rows of a ranking in a notebook."""

PROVEN_CANDIDATES = 5
"""Number of best candidates that are solved to their end."""

SOLVED = "solved_config"
"""Folder, in that of a run, of the configurations with their plans."""


@dataclass(frozen=True)
class RankOptions:
    """Settings of the solves, and paths of the results.

    Parameters
    ----------
    how : SolveOptions
        Settings of each candidate's solve.
    workers : int
        Candidates solved at once, a process each.
    report : Path or bool
        The page to write; True puts it beside the table, False writes none.
    output : Path
        Folder of the table, the finished solves, and the folders of the runs.
    prove : int or None
        Number of best candidates that are solved to their end; the others stop where it is proven that they are not
        among them. None: all are.
    length : TrainingLength
        Length of the training, for its days and hours.
    made_for_model : bool
        Whether the files were made for a model: the plans in them are nobody's, so that nothing is compared with them.
    """

    how: SolveOptions = DEFAULT_OPTIONS
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    report: Path | bool = True
    output: Path = Path("pipeline_output")
    prove: int | None = PROVEN_CANDIDATES
    length: TrainingLength = UNSTATED
    made_for_model: bool = False


@dataclass(frozen=True, repr=False)
class Ranking:
    """Ranked table (best first, failures last), the files written, and the folder of the run.

    Parameters
    ----------
    model, device, ranks : str, str, int
        Of the first candidate that can be read.
    unwritten : sequence of str
        Requested files that could not be written; the reasons are logged.
    """

    table: pd.DataFrame
    csv: Path
    report: Path | None
    folder: Path | None = None
    model: str = ""
    device: str = ""
    ranks: int = 0
    unwritten: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"{self._head()}\n{self._shown().to_string(index=False)}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._head())}</p>{self._shown().to_html(index=False)}"

    def plot(self) -> Figure:
        """Steps of the first candidates, ties marked, a matplotlib figure."""
        from taylor.report.notebook import ranking_figure

        return ranking_figure(self.table)

    def _head(self) -> str:
        candidates = self.table[self.table["own"] == 0]
        solved = int(candidates["objective"].notna().sum())
        return f"{solved} of {len(candidates)} candidates solved, cost in ms a step; {self.csv}"

    def _shown(self) -> pd.DataFrame:
        return self.table[list(SHOWN_COLUMNS)].head(SHOWN_CANDIDATES)


def rank(
    candidates: Sequence[CandidateFile],
    options: RankOptions,
    executor: Executor | None = None,
    pruned: pd.DataFrame | None = None,
    own: CandidateFile | bool = True,
) -> Ranking:
    """Solve every candidate and rank them by step time.

    Each finished solve is saved at once, so that a killed run, started again, solves only what is missing. A failed
    candidate keeps its row with the reason. The files that the table names lie in a folder of this run alone.

    Parameters
    ----------
    executor : concurrent.futures.Executor, optional
        Executor of the solves; a pool of `options.workers` processes when not given.
    pruned : DataFrame, optional
        Strategies that the search removed and why, for the report.
    own : CandidateFile or bool
        Baseline in a row of its own: the plan of the configuration that the candidates come from; True: for each job,
        the best plan in their files; False: none.

    Raises
    ------
    KeyboardInterrupt
        After the rows finished so far were written.
    """
    rows: dict[int, Mapping[str, Any]] = {}
    problems: dict[int, PipelineProblem] = {}
    for number, candidate in enumerate(candidates):
        try:
            problems[number] = problem_of(candidate)
        except TaylorError as error:
            rows[number] = failed_row(str(error))
    own = False if options.made_for_model else own
    own_plans = _own_plans(candidates, problems) if own is True else {}
    compared = best_entries(candidates, problems, own_plans) if own is True else given_entries(own)

    def keep(number: int, found: Solution | Failed) -> None:
        if isinstance(found, Failed):
            rows[number] = failed_row(found.reason)
        else:
            rows[number] = solved_row(problems[number], found)

    rivals = {number: candidates[number].job for number in problems}
    solves = RankSolves(problems, rivals, options.prove, options.how, SolveStore(options.output), keep, own_plans)
    for number, solution in own_plans.items():
        if solution.status == FEASIBLE:
            solves.note_step(number, solution.objective)
    run = new_run_folder(options.output)
    csv = options.output / f"test_result_{run.name}.csv"
    try:
        solves.run(options.workers, executor)
    finally:
        with delay_interrupts():
            solved = [RankEntry(one, rows.get(number, NOT_SOLVED)) for number, one in enumerate(candidates)]
            table = ranked_table([*solved, *compared], run / SOLVED, options.length, stated=not options.made_for_model)
            _write_table(table.assign(**{COLUMN: ""}), run, csv)
    table = with_smallest_changes(table, candidates, problems)
    with delay_interrupts():
        _write_table(table, run, csv)
    report, unwritten = None, list[str]()
    if options.report:
        report = options.report if isinstance(options.report, Path) else csv.with_suffix(".html")
        from taylor.workflows.ranking.rank_page import write_ranking_page

        drawn = {printable(candidates[number].path.name): problem for number, problem in problems.items()}
        page = partial(write_ranking_page, report, table, drawn, candidates, pruned)
        if write_or_note("report", report, page, unwritten):
            copy = run / csv.with_suffix(".html").name
            write_or_note("report's copy", copy, partial(write_atomic, copy, report.read_bytes()), [])
        else:
            report = None
    named = isinstance(options.report, Path)
    return Ranking(table, csv, report, run, *_job(candidates), tuple(unwritten) if named else ())


def _write_table(table: pd.DataFrame, run: Path, csv: Path) -> None:
    text = table.to_csv(index=False, lineterminator="\n")
    for path in (run / csv.name, csv):
        write_atomic(path, text)


def _job(candidates: Sequence[CandidateFile]) -> tuple[str, str, int]:
    """Model, device and ranks of the first candidate that can be read."""
    for one in candidates:
        if one.config is not None:
            device = "" if one.device is None else one.device.spec.name
            return one.config.model.name, device, one.config.strategy.world_size
    return "", "", 0


def _own_plans(candidates: Sequence[CandidateFile], problems: Mapping[int, PipelineProblem]) -> dict[int, Solution]:
    """Plans in the candidates' files, by the candidate's number."""
    found = {number: own_solution(candidates[number], problem) for number, problem in problems.items()}
    return {number: solution for number, solution in found.items() if solution is not None}
