"""Finished solves, each kept in a file named by its content, so that no later run repeats one."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from taylor.base.console import log
from taylor.base.errors import WriteError
from taylor.base.interrupts import delay_interrupts
from taylor.base.isolated import isolate_solver
from taylor.base.kept import read_kept, write_kept
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.plugged import plugged_schedules
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress
from taylor.pipeline_solver.model.solution import CUT_OFF, INFEASIBLE, OPTIMAL, Solution, Termination
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import step_time

FOLDER = "solved"
"""Folder of the kept solves, below the folder of the results."""

DECIDING = ("highspy", "numba", "numpy")
"""Libraries whose version may change a plan."""

START_SECONDS = 0.5
"""Difference of time limits, s, up to which a solve serves another: a command may use that much before it solves."""

_SOLUTION = TypeAdapter(Solution)

_WORTH_KEEPING = (Termination.TIME_LIMIT, Termination.ROUND_LIMIT, Termination.STALLED)
"""Ends of an unfinished proof that the same options would reach again."""


@dataclass(frozen=True)
class KeptSolve:
    """Solve of an earlier run.

    Parameters
    ----------
    solution : Solution
    time_limit : float or None
        Its time limit in seconds.
    date : str
        Local time of its end: that of the file, whose content does not depend on the time of writing.
    """

    solution: Solution
    time_limit: float | None
    date: str

    def serves(self, how: SolveOptions) -> bool:
        """Return whether a solve with these options would find no more than is known."""
        solution = self.solution
        if solution.status in (OPTIMAL, INFEASIBLE):
            return True
        if solution.status is CUT_OFF:
            to_beat = math.inf if how.cutoff is None else how.cutoff()
            return solution.bound is not None and solution.bound >= to_beat
        if solution.termination is Termination.TIME_LIMIT:
            if self.time_limit is None or how.time_limit is None:
                return False
            return how.time_limit <= self.time_limit + START_SECONDS
        return True


@dataclass(frozen=True)
class SolveStore:
    """Kept solves below a folder of results.

    Parameters
    ----------
    output : Path
        The folder of the results.
    """

    output: Path

    def find(self, problem: PipelineProblem, how: SolveOptions) -> KeptSolve | None:
        """Solve of this very problem by this very code, where an earlier one serves; its limits may be wider."""
        kept = self._read(problem, how)
        return kept if kept is not None and kept.serves(how) else None

    def keep(self, problem: PipelineProblem, how: SolveOptions, solution: Solution) -> None:
        """Save a finished solve, in place of one with less information."""
        finished = solution.status in (OPTIMAL, INFEASIBLE, CUT_OFF)
        if solution.termination is Termination.INTERRUPTED or not (finished or solution.termination in _WORTH_KEEPING):
            return
        before = self._read(problem, how)
        if before is not None and before.solution.status in (OPTIMAL, INFEASIBLE):
            return
        data: dict[str, Any] = {
            "time_limit": how.time_limit,
            "solution": _SOLUTION.dump_python(solution, mode="json"),
        }
        try:
            write_kept(self._path(problem, how), data)
        except WriteError as error:
            log.warning("the solve is not kept for a later run: %s", error)

    def are_there(self, problem: PipelineProblem, solution: Solution, form: str, files: Sequence[Path]) -> bool:
        """Return whether the files of a model are those that an earlier run wrote for this very solution, byte by
        byte.
        """
        present = _digests(files)
        return present is not None and read_kept(self._files_path(problem, solution, form)) == present

    def note_files(self, problem: PipelineProblem, solution: Solution, form: str, files: Sequence[Path]) -> None:
        """Record the files of a model as they have just been written."""
        with suppress(WriteError):
            write_kept(self._files_path(problem, solution, form), _digests(files))

    def _files_path(self, problem: PipelineProblem, solution: Solution, form: str) -> Path:
        # As JSON: `repr` writes a number that was read back otherwise than numpy's.
        plain = solution.replace(seconds=0.0, solved_on="")
        solved = json.dumps(_SOLUTION.dump_python(plain, mode="json"))
        stated = (problem.fingerprint(), solved, form, code_hash())
        return self.output / FOLDER / f"{hashlib.sha256(repr(stated).encode()).hexdigest()[:24]}.files.json"

    def _read(self, problem: PipelineProblem, how: SolveOptions) -> KeptSolve | None:
        path = self._path(problem, how)
        data = read_kept(path)
        try:
            date = datetime.fromtimestamp(path.stat().st_mtime).isoformat(" ", "seconds")
            return KeptSolve(_SOLUTION.validate_python(data["solution"]), data["time_limit"], date)
        except (OSError, TypeError, KeyError, ValidationError):
            return None

    def _path(self, problem: PipelineProblem, how: SolveOptions) -> Path:
        """Name with everything that the plan depends on but the clock: problem, solver, gap, parameters, code."""
        changed = sorted(how.params.changed().items())
        stated = (problem.fingerprint(), how.solver.upper(), how.gap, how.seed, changed, code_hash())
        digest = hashlib.sha256(repr(stated).encode())
        return self.output / FOLDER / f"{digest.hexdigest()[:24]}.json"


def solve_or_find(
    problem: PipelineProblem,
    how: SolveOptions,
    on_progress: OnProgress | None,
    store: SolveStore | None,
    name: str,
    known: PipelinePlan | None = None,
) -> Solution:
    """Solution of a problem: an earlier run's, or a new one, which is saved.

    Parameters
    ----------
    store : SolveStore or None
        None keeps nothing.
    name : str
        Name of the problem in messages.
    known : PipelinePlan, optional
        Plan to start from, and to be no worse than; one that breaks the problem's rules is skipped.
    """
    isolate_solver(how.solver)
    if store is None:
        return solve(problem, how, warm_start=known, on_progress=on_progress)
    kept = store.find(problem, how)
    if kept is not None and not _is_beaten(problem, kept.solution, known):
        log.info("%s: found again: solved on %s in %.1f s", name, kept.date, kept.solution.seconds)
        return kept.solution.replace(solved_on=kept.date)
    solution = solve(problem, how, warm_start=known, on_progress=on_progress)
    if solution.plan is not None or solution.status is CUT_OFF:  # an error is not saved
        try:
            with delay_interrupts():
                store.keep(problem, how, solution)
        except KeyboardInterrupt:
            return solution.replace(termination=Termination.INTERRUPTED)
    return solution


def _is_beaten(problem: PipelineProblem, solution: Solution, known: PipelinePlan | None) -> bool:
    """Return whether a plan that obeys the problem's rules beats the result of a solve ended by its time limit."""
    if known is None or solution.status in (OPTIMAL, INFEASIBLE, CUT_OFF) or check(problem, known):
        return False
    return solution.objective is None or step_time(problem, known) < solution.objective


def _digests(files: Sequence[Path]) -> dict[str, str] | None:
    """Name and content hash of each file; None where one is missing."""
    try:
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    except OSError:
        return None


@cache
def code_hash() -> str:
    """Hash of the code that solves, with the versions of the libraries that affect its result."""
    digest = hashlib.sha256(repr([(name, version(name)) for name in DECIDING]).encode())
    root = Path(__file__).resolve().parents[2]
    for source in sorted([*(root / "pipeline_solver").glob("**/*.py"), *(root / "pipeline").glob("**/*.py")]):
        digest.update(source.read_bytes())
    for schedule in plugged_schedules().values():
        digest.update(schedule.digest().encode())
    return digest.hexdigest()
