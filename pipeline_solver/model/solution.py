"""The outcome of a solve: the plan, its step time, the lower bound, and the reason for its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from html import escape
from typing import Any, Mapping

from taylor.pipeline.plan import FULL, Grid, PipelinePlan, mode_title

MILP_ROUNDS = "milp_rounds"
"""Name of the statistic of a solution whose cuts suffice for its model."""

RANGED_ROUNDS = "ranged_rounds"
"""Name of the statistic of a solution that needs more than cuts: ranges of layers, or the proof of other choices."""


class Status(str, Enum):
    """Result of a solve."""

    OPTIMAL = "optimal"
    """A plan with a proven gap within the tolerance."""
    FEASIBLE = "feasible"
    """A plan; the proof that it is the best was stopped."""
    OVER_LIMIT = "over_limit"
    """A given plan was evaluated, and a stage exceeds its memory limit."""
    INFEASIBLE = "infeasible"
    """No plan exists, proven."""
    NO_SOLUTION = "no_solution"
    """The search was stopped before a plan was found."""
    CUT_OFF = "cut_off"
    """Proven that no plan beats the cutoff; the bound is valid for all plans."""

    def __str__(self) -> str:
        return self.value


OPTIMAL, FEASIBLE, OVER_LIMIT, INFEASIBLE, NO_SOLUTION, CUT_OFF = Status


UNLENT_OBJECTIVE, UNLENT_BOUND = "unlent_objective", "unlent_bound"
"""Statistics of a solution whose stages may lend memory: the best step time without, and its lower bound."""


class Termination(str, Enum):
    """Reason for the end of a solve."""

    PROVEN = "proven"
    """The bound meets the step time, up to `PROVEN_GAP`."""
    GAP_REACHED = "gap reached"
    """The bound meets the step time up to the requested gap, which is wider than `PROVEN_GAP`."""
    TIME_LIMIT = "time limit"
    ROUND_LIMIT = "round limit"
    INTERRUPTED = "interrupted"
    """Ctrl-C."""
    INFEASIBLE = "infeasible"
    """It is proven that no plan exists."""
    STALLED = "stalled"
    """The solver made no progress and hit no limit: its tolerances are wider than the requested gap."""
    SOLVER_FAILURE = "solver failure"
    """The solver itself reported an error."""
    NOT_COMPILED = "not compiled"
    """The time limit came before the solver's kernels were compiled, on the first run on a machine."""
    CUT_OFF = "cut off"
    """The bound reached the cutoff."""
    NOT_SOLVED = "not solved"
    """A given plan was evaluated; nothing was searched."""

    def __str__(self) -> str:
        return self.value

    @property
    def sentence(self) -> str:
        """The message for a reader; empty for an end that needs no explanation."""
        return _SENTENCES.get(self, "")


_SENTENCES = {
    Termination.TIME_LIMIT: "the time limit ended the search",
    Termination.ROUND_LIMIT: "the limit of rounds ended the search",
    Termination.INTERRUPTED: "the search was interrupted",
    Termination.STALLED: "the solver made no headway",
    Termination.SOLVER_FAILURE: "the solver failed",
    Termination.NOT_COMPILED: (
        "the time limit ended the compiling of the solver's kernels: only even plans were compared, and the next run "
        "compiles the rest"
    ),
    Termination.CUT_OFF: "no plan can beat the step time that was to be beaten",
}

PROVEN_GAP = 1e-6
"""Relative gap below which the rounding in LPs decides, not the search."""


@dataclass(frozen=True)
class BubbleShares:
    """Parts of the step in which an average stage does no first-time forward or backward work.

    `total` = `ideal` + `imbalance` + `recompute` + `communication`, each a fraction of the step.
    """

    total: float
    ideal: float
    imbalance: float
    recompute: float
    communication: float


@dataclass(frozen=True)
class Solution:
    """The outcome of one solve.

    Parameters
    ----------
    status : Status
        Result of the solve.
    termination : Termination or None
        Reason for the end; None when unknown, as in a result read from a file.
    plan : PipelinePlan or None
    objective, bound : float or None
        Step time of the plan and lower bound, in body-layer forward times.
    solver : str
        Solver that found it.
    seconds : float
        Wall time of the solve.
    peak_memory_mib, memory_limit_mib : tuple of float [S]
    bubble : BubbleShares or None
    statistics : mapping
        Counts for the log: nodes, cuts, rounds, ….
    cuts : tuple of tuple of float
        Path cuts found, for the model file: count of each duration class on a critical path [R] (see
        `event_graph`), then the path's total lag.
    message : str
        For a reader: why there is no plan, or why the proof stopped. Programs read `termination`.
    params : mapping
        Parameters of the solver that differed from the defaults, by name (`SolverParams.changed`).
    solved_on : str
        Local time at which an earlier run solved it; empty for a solve of this run.
    """

    status: Status
    termination: Termination | None = None
    plan: PipelinePlan | None = None
    objective: float | None = None
    bound: float | None = None
    solver: str = ""
    seconds: float = 0.0
    peak_memory_mib: tuple[float, ...] = ()
    memory_limit_mib: tuple[float, ...] = ()
    bubble: BubbleShares | None = None
    statistics: Mapping[str, float] = field(default_factory=dict)
    cuts: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    message: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    solved_on: str = field(default="", compare=False)

    @property
    def gap(self) -> float | None:
        """(objective − bound) / objective, at least 0; None when either is unknown or the bound is 0."""
        if self.objective is None or self.bound is None or self.bound <= 0 < self.objective:
            return None
        return max(0.0, (self.objective - self.bound) / self.objective) if self.objective else 0.0

    def replace(self, **changes: Any) -> Solution:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def closed(self, *, interrupted: bool = False) -> Solution:
        """A copy with an optimal plan: proven, or to the requested gap.

        With `interrupted`, Ctrl-C came in the last moments: the proof is complete, but the user asked to stop.
        """
        proven = self.gap is not None and self.gap <= PROVEN_GAP
        end = Termination.PROVEN if proven else Termination.GAP_REACHED
        if interrupted:
            end = Termination.INTERRUPTED
        return replace(self, status=OPTIMAL, termination=end, message="")

    def ended_by(self, end: Termination) -> Solution:
        """A copy with the reason that ended the search before its plan, if any, was proven optimal."""
        if end is Termination.CUT_OFF:
            return replace(self, status=CUT_OFF, termination=end, message=end.sentence)
        status = NO_SOLUTION if self.plan is None else FEASIBLE
        message = end.sentence if self.plan is not None else f"{end.sentence} before a plan was found"
        return replace(self, status=status, termination=end, message=message)

    def bubble_dict(self) -> dict[str, float] | None:
        """The bubble shares as plain data."""
        return None if self.bubble is None else asdict(self.bubble)

    def summary(self) -> str:
        """The solution as a text of a page width: its quality, then the plan by stage.

        The text starts with status, step time and bound; a table follows with the layers of every kind, the
        recomputed layers and the peak memory against its limit, one line a stage. With virtual stages a cell lists
        their numbers in order: ``2+1``.
        """
        return summary_text(self)

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """Notebook output: the summary with its table as HTML."""
        return summary_html(self)


def proven_within(objective: float, bound: float, gap: float) -> bool:
    """Return whether a bound proves a plan of this step time optimal to a relative gap."""
    return objective - bound <= gap * abs(objective)


def better_of(first: Solution, second: Solution, gap: float) -> Solution:
    """The better plan and the better bound of two solutions of one problem, the second begun after the first."""
    if second.status is INFEASIBLE:
        return second
    plans = [part for part in (first, second) if part.objective is not None]
    if not plans:
        return second
    best = min(plans, key=lambda part: float(part.objective or 0.0))
    objective = float(best.objective or 0.0)
    bound = min(objective, max(float(part.bound or 0.0) for part in (first, second)))
    merged = best.replace(
        bound=bound,
        statistics={**second.statistics, **first.statistics},
        cuts=tuple(dict.fromkeys((*first.cuts, *second.cuts))),
    )
    if proven_within(objective, bound, gap):
        return merged.closed(interrupted=second.termination is Termination.INTERRUPTED)
    return merged.ended_by(second.termination or Termination.STALLED)


def summary_text(solution: Solution) -> str:
    """Head lines, then the plan by stage as an aligned table; no table without a plan."""
    lines = head_lines(solution)
    if solution.plan is not None:
        rows = stage_rows(solution)
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines += [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
    return "\n".join(lines)


def summary_html(solution: Solution) -> str:
    """The same for a notebook."""
    parts = [f"<p>{'<br>'.join(map(escape, head_lines(solution)))}</p>"]
    if solution.plan is not None:
        head, *rows = (list(map(escape, row)) for row in stage_rows(solution))
        parts.append(
            "<table><thead><tr>"
            + "".join(f"<th>{cell}</th>" for cell in head)
            + "</tr></thead><tbody>"
            + "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
            + "</tbody></table>"
        )
    return "".join(parts)


def head_lines(solution: Solution) -> list[str]:
    """Status, step time, bound and bubble, a line each."""
    how = f" ({solution.termination})" if solution.termination not in (None, solution.status.value) else ""
    who = f", {solution.solver}, {solution.seconds:.2f} s" if solution.solver else ""
    lines = [f"{solution.status}{how}{who}"]
    if solution.objective is not None:
        lines.append(f"step time {solution.objective:.6f} body-layer forwards")
    if solution.bound is not None:
        gap = "" if solution.gap is None else f", gap {solution.gap:.2e}" if solution.gap else ", gap 0"
        lines.append(f"proven bound {solution.bound:.6f}{gap}")
    if solution.bubble is not None:
        b = solution.bubble
        lines.append(
            f"bubble {b.total:.2%}: ideal {b.ideal:.2%}, imbalance {b.imbalance:.2%}, "
            f"recompute {b.recompute:.2%}, communication {b.communication:.2%}"
        )
    if solution.message:
        lines.append(solution.message)
    return lines


def stage_rows(solution: Solution) -> list[list[str]]:
    """Headings, then a row a stage: layers by kind, recomputed layers by mode, and MiB peak, limit and free."""
    plan = solution.plan
    assert plan is not None
    modes = [mode for mode, grid in plan.recompute.items() if mode == FULL or any(map(any, grid))]
    peaks, limits = solution.peak_memory_mib, solution.memory_limit_mib
    kinds = plan.by_kind()
    head = ["stage", *kinds, *map(mode_title, modes)]
    rows = [[*head, *(["peak MiB"] if peaks else []), *(["limit MiB", "free MiB"] if peaks and limits else [])]]
    for s in range(plan.stages):
        grids = [*kinds.values(), *(plan.recompute[mode] for mode in modes)]
        row = [str(s), *(_by_interleave(grid, s) for grid in grids)]
        if peaks:
            row.append(f"{peaks[s]:,.0f}")
        if peaks and limits:
            row += [f"{limits[s]:,.0f}", f"{round(limits[s] - peaks[s]):,}"]
        rows.append(row)
    return rows


def _by_interleave(grid: Grid | Sequence[Sequence[int]], stage: int) -> str:
    return "+".join(str(row[stage]) for row in grid)
