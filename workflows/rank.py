"""Many candidates: each solved on its own, kept when done, ranked by step time."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from taylor.base.console import hold_interrupts, log, progress
from taylor.base.errors import TaylorError
from taylor.base.files import printable, write_atomic
from taylor.pipeline_solver.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.result import Result
from taylor.pipeline_solver.solution import Solution
from taylor.pipeline_solver.solve import solve
from taylor.workflows.candidate_file import CandidateFile
from taylor.workflows.kept_solves import SolveStore
from taylor.workflows.problem import build_problem
from taylor.workflows.process_pool import Failed, run_in_processes
from taylor.workflows.rank_table import failed_row, ranked_table
from taylor.workflows.schedules import require_schedule, require_start

SHOWN_COLUMNS = ("dp", "tp", "pp", "ep", "vpp", "mbs", "micro_batches", "cost", "gap", "status")
SHOWN_CANDIDATES = 10
"""What a notebook shows of a ranking."""


@dataclass(frozen=True)
class RankOptions:
    """How candidates are solved and where the results go.

    Parameters
    ----------
    how : SolveOptions
        How each candidate is solved.
    workers : int
        Candidates solved at once, a process each.
    report : Path or bool
        The page to write; True puts it beside the table, False writes none.
    output : Path
        Folder of the table, the rows that are done and the solved configurations.
    train_tokens : float or None
        Tokens of the whole training, for its length in days.
    """

    how: SolveOptions = DEFAULT_OPTIONS
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    report: Path | bool = True
    output: Path = Path("pipeline_output")
    train_tokens: float | None = None


@dataclass(frozen=True, repr=False)
class Ranking:
    """The ranked table (best first, failures last) and the files written."""

    table: pd.DataFrame
    csv: Path
    report: Path | None

    def __repr__(self) -> str:
        return f"{self._head()}\n{self._shown().to_string(index=False)}"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self._head())}</p>{self._shown().to_html(index=False)}"

    def _head(self) -> str:
        solved = int(self.table["objective"].notna().sum())
        return f"{solved} of {len(self.table)} candidates solved, cost in ms a step; {self.csv}"

    def _shown(self) -> pd.DataFrame:
        return self.table[list(SHOWN_COLUMNS)].head(SHOWN_CANDIDATES)


def rank(
    candidates: Sequence[CandidateFile],
    options: RankOptions,
    executor: Executor | None = None,
    pruned: pd.DataFrame | None = None,
) -> Ranking:
    """Solve every candidate and rank them by step time.

    Each finished row is kept on disk at once, so that a killed run, started again, solves only what
    is missing. A candidate that fails keeps its row with the reason.

    Parameters
    ----------
    executor : concurrent.futures.Executor, optional
        Where the solves run; a pool of `options.workers` processes when not given.
    pruned : DataFrame, optional
        What the search removed and why, for the report.

    Raises
    ------
    KeyboardInterrupt
        After the rows finished so far were written.
    """
    rows: dict[int, dict[str, Any]] = {}
    waiting: dict[int, PipelineProblem] = {}
    problems: dict[str, PipelineProblem] = {}
    store = SolveStore(options.output)
    for number, candidate in enumerate(candidates):
        try:
            problem = _problem_of(candidate)
        except TaylorError as error:
            rows[number] = failed_row(str(error))
            continue
        problems[printable(candidate.path.name)] = problem
        kept = store.find(problem, options.how)
        if kept is None:
            waiting[number] = problem
        else:
            rows[number] = Result(problem, kept.solution).row()
    if rows and waiting:
        log.info("%d of %d candidates were solved by an earlier run or need no solve", len(rows), len(candidates))
    stamp = datetime.now().strftime("%Y%m%d%H%M%S")
    csv = options.output / f"test_result_{stamp}.csv"
    try:
        _solve_all(waiting, rows, store, options, executor)
    finally:
        with hold_interrupts():
            table = ranked_table(candidates, rows, options.output / "solved_config")
            write_atomic(csv, table.to_csv(index=False, lineterminator="\n"))
    report = None
    if options.report:
        report = options.report if isinstance(options.report, Path) else csv.with_suffix(".html")
        from taylor.workflows.rank_page import write_ranking_page

        write_ranking_page(report, table, problems, candidates, pruned)
    return Ranking(table, csv, report)


def _problem_of(candidate: CandidateFile) -> PipelineProblem:
    if candidate.failure or candidate.config is None or candidate.memory is None or candidate.ratios is None:
        raise TaylorError(candidate.failure or "no memory profile or time ratios")
    require_start(candidate.config)
    require_schedule(candidate.config)
    return build_problem(candidate.config, candidate.memory, candidate.ratios)


def _solve_all(
    waiting: Mapping[int, PipelineProblem],
    rows: dict[int, dict[str, Any]],
    store: SolveStore,
    options: RankOptions,
    executor: Executor | None,
) -> None:
    """Solve what is waiting; each row goes to `rows`, and is kept on disk, as soon as it is done."""
    # The hardest (most stages) first, so that no long solve is left alone at the end.
    order = sorted(waiting, key=lambda number: -waiting[number].stages * waiting[number].micro_batches)
    with progress("solving", len(waiting)) as advance:

        def keep(number: int, found: Solution | Failed) -> None:
            if isinstance(found, Failed):
                rows[number] = failed_row(found.reason)
            else:
                rows[number] = Result(waiting[number], found).row()
                store.keep(waiting[number], options.how, found)
            advance(1, str(rows[number]["status"]))

        tasks = {number: partial(solve, waiting[number], options.how) for number in order}
        run_in_processes(tasks, options.workers, keep, executor)
