"""A solve on another machine: named by its content, and done once where a folder is shared with that machine."""

from __future__ import annotations

import hashlib
import secrets
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.base.files import read_text, write_atomic
from taylor.base.isolated import isolate_solver
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.running.kept_solves import SolveStore, code_hash
from taylor.workflows.running.process_pool import FarExecutor

MARKER = ".shared"
"""File in the folder of the results whose content identifies the folder to another machine."""


@dataclass(frozen=True)
class SharedFolder:
    """Folder of results that other machines may or may not see.

    Parameters
    ----------
    output : Path
        Absolute.
    token : str
        Content of its marker.
    """

    output: Path
    token: str

    @classmethod
    def marked(cls, output: Path) -> SharedFolder:
        """Mark a folder, so that others recognize it.

        Raises
        ------
        WriteError
            When nothing can be written there.
        """
        place = output.absolute()
        with suppress(InputError):
            if token := read_text(place / MARKER, limit_bytes=100):
                return cls(place, token)
        token = secrets.token_hex(16)
        write_atomic(place / MARKER, token)
        return cls(place, token)

    def seen_here(self) -> bool:
        """Return whether this machine sees the very folder."""
        try:
            return read_text(self.output / MARKER, limit_bytes=100) == self.token
        except InputError:
            return False


def sharing(executor: Executor | None, output: Path) -> Executor | None:
    """Executor for work that writes files; None where its machines do not see the folder of the results."""
    if not isinstance(executor, FarExecutor):
        return executor
    place = SharedFolder.marked(output)
    if executor.everywhere(place.seen_here):
        return executor
    log.info("cluster: its workers do not see %s, so that dry-runs run on this machine", place.output)
    return None


@dataclass(frozen=True)
class FarSolve:
    """Solve that is sent to another machine.

    Its result is saved at once where the folder of the results is shared: a machine that is lost later costs nothing,
    and the next one finds the work done. Elsewhere the result comes back by value alone.
    """

    problem: PipelineProblem
    how: SolveOptions
    start: PipelinePlan | None
    place: SharedFolder

    @property
    def key(self) -> str:
        """Name of this work: everything that its result depends on."""
        how = self.how
        cutoff = getattr(how.cutoff, "__name__", how.cutoff)  # a function by its name, a reader by its content
        stated = (self.problem.fingerprint(), how.replace(cutoff=None), cutoff, self.start, code_hash())
        return f"solve-{hashlib.sha256(repr(stated).encode()).hexdigest()[:32]}"

    def __call__(self) -> Solution:
        """Solve, or find the solve of another machine."""
        how = self.how.replace(workers=1)  # a worker of a cluster starts no processes of its own
        isolate_solver(how.solver)
        if not self.place.seen_here():
            return solve(self.problem, how, warm_start=self.start)
        store = SolveStore(self.place.output)
        kept = store.find(self.problem, how)
        if kept is not None:
            return kept.solution
        found = solve(self.problem, how, warm_start=self.start)
        store.keep(self.problem, how, found)
        return found
