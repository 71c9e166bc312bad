"""Smallest change with which a candidate that does not fit would fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from taylor.base.errors import TaylorError
from taylor.base.files import printable
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import INFEASIBLE, OVER_LIMIT
from taylor.pipeline_solver.solving.result import plan_of_row
from taylor.workflows.ranking.candidate_file import CandidateFile
from taylor.workflows.showing.memory_levers import can_be_judged, smallest_change_of

CURED_CANDIDATES = 10
"""Candidates whose smallest change is computed, of those that do not fit: it takes about as long as a quick solve."""

COLUMN = "smallest_change"
"""Column of the change, in words; empty where a candidate fits, no single change is enough, or none was computed."""


def with_smallest_changes(
    table: pd.DataFrame, candidates: Sequence[CandidateFile], problems: Mapping[int, PipelineProblem]
) -> pd.DataFrame:
    """A ranked table with the smallest change of each of its first candidates that do not fit.

    Parameters
    ----------
    problems : mapping of int to PipelineProblem
        Problem of each candidate that has one, by its number.
    """
    by_file = {printable(str(candidates[number].path)): number for number in problems}
    misfits = table[table["status"].isin([str(OVER_LIMIT), str(INFEASIBLE)])].head(CURED_CANDIDATES)
    found = pd.Series("", index=table.index, dtype=object)
    for at, row in misfits.iterrows():
        number = by_file.get(str(row["file"]))
        if number is not None:
            found[at] = _change(candidates[number], problems[number], {str(name): row[name] for name in row.index})
    return table.assign(**{COLUMN: found})


def _change(candidate: CandidateFile, problem: PipelineProblem, row: Mapping[str, Any]) -> str:
    """Change in words; empty where none alone is enough or the memory is no estimate."""
    config, memory, device = candidate.config, candidate.memory, candidate.device
    if config is None or memory is None or device is None:
        return ""
    try:
        plan = plan_of_row(row)
        if not can_be_judged(memory.source, problem, plan):
            return ""
        lever = smallest_change_of(config, plan, device.spec, problem.limit_mib, candidate.seen.learned)
    except (TaylorError, ValueError):  # a changed job that cannot be stated
        return ""
    return "" if lever is None else f"{lever.name}: {lever.largest_mib:,.0f} MiB on the fullest stage"
