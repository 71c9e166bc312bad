"""The solved model as files: `.mps` with readable names and every cut, `.sol` with the variables' values."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.budget import TimeBudget
from taylor.base.errors import InputError
from taylor.base.files import write_atomic
from taylor.pipeline_solver.milp.linear_form import INFINITY, Row, write_mps_file
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS
from taylor.pipeline_solver.model.places import placements, settled
from taylor.pipeline_solver.model.problem import PipelineProblem, card_rows
from taylor.pipeline_solver.model.solution import MILP_ROUNDS, OPTIMAL, Solution
from taylor.pipeline_solver.model.stopping import Stopper
from taylor.pipeline_solver.timing.durations import chunk_durations

if TYPE_CHECKING:
    from taylor.pipeline_solver.milp.compact_model import CompactModel

FORMS = ("compact", "full")

CUTS_SUFFICE = "path_cut: these alone give the objective"
"""Start of the comment in a model file whose cuts suffice for the proof."""

COMPLETION_ROUNDS = 4
COMPLETION_CELLS = 600
"""Limits on the search for path cuts that a solution lacks: MILP rounds, and chunks times kinds of layers. Few kinds
without virtual stages take a fraction of a second, eight chunks of two virtual stages twice as long as the proof, which
the row of the lower bound completes there. Without a deadline the same solution gives the same file."""


def write_model(
    problem: PipelineProblem,
    solution: Solution,
    mps: Path,
    sol: Path,
    form: str = "compact",
    deadline: float | None = None,
) -> bool:
    """Write both files of a solution from one model, which takes a while to build for many kinds.

    Parameters
    ----------
    mps, sol : Path
        Paths of `write_mps` and `write_sol`.
    form : str
        As in `write_mps`.
    deadline : float, optional
        `time.monotonic()` after which neither file is written; cuts are searched for up to halfway there.

    Returns
    -------
    bool
        Whether the files are those that a call without a deadline writes.

    Raises
    ------
    InputError
        When the form is unknown or a file cannot be written.
    OutOfTime
        If the deadline came first; the files are unchanged.
    """
    stopper = Stopper(deadline)
    stopper.check()
    shared = _compact(_of_plan(problem, solution), stopper) if form == "compact" else None
    began = time.monotonic()
    halfway = None if deadline is None else (began + deadline) / 2
    write_mps(problem, solution, mps, form, shared, halfway)
    whole = halfway is None or time.monotonic() < halfway
    write_sol(problem, solution, sol, shared)
    return whole


def write_mps(
    problem: PipelineProblem,
    solution: Solution,
    path: str | Path,
    form: str = "compact",
    model: CompactModel | None = None,
    deadline: float | None = None,
) -> Path:
    """Write the model of a solution; any MPS reader finds the reported optimum in it.

    Parameters
    ----------
    form : str
        ``compact``: the plan's variables and the path cuts T >= n_P·d + lag_P that were found, with the lower bound as
        one more row. ``full``: one start variable a task, no cuts.
    model : CompactModel, optional
        The problem's compact model where it exists; the cuts are added to it.
    deadline : float, optional
        `time.monotonic()` at which to stop searching for cuts that the solution lacks.

    Raises
    ------
    InputError
        When the form is unknown or the file cannot be written.
    """
    problem = _of_plan(problem, solution)
    if form not in FORMS:
        raise InputError("no such form of the model file", field="mps_form", value=form, cure=f"use {', '.join(FORMS)}")
    comments = [
        f"{problem.stages} stages, {problem.interleaves} virtual stages, {problem.micro_batches} micro-batches, "
        f"{problem.schedule.name}; minimise step_time, in forward times of a body layer",
        f"{solution.status}; objective {solution.objective!r}; proven bound {solution.bound!r}",
        "x_KIND[stage,virtual stage]: layers; recompute_KIND, select_KIND: those fully, selectively recomputed",
    ]
    if problem.choices:
        comments.append(f"choice_NAME_KIND: those under another choice, in this order: {', '.join(problem.choices)}")
    comments += [
        f"{kind.count} {kind.name} on the chunk at position {kind.places[0]} of the model's"
        for kind in problem.pinned_kinds
        if kind.places
    ]
    if problem.cards:
        comments.append(f"stages on {card_rows(problem.cards)}")
    if problem.slowness:
        comments.append(f"stages take {', '.join(f'{slow:g}' for slow in problem.slowness)} times as long")
    if problem.pairing is not None:
        comments.append(
            "forward_beside_N, backward_beside_N: tasks of combined passes, at the least: which layers have one beside "
            "them follows from the order of kinds in a chunk, which the rows leave open. A relaxation; the objective "
            "above is exact"
        )
    if form == "full":
        from taylor.pipeline_solver.milp.start_time_milp import start_time_model

        return write_mps_file(start_time_model(problem)[1], path, comments)
    model = model or _compact(problem)
    if _add_cuts(model, problem, solution, deadline):
        comments.append(f"{CUTS_SUFFICE}; proven_bound only shortens the way")
    else:
        comments.append("path_cut: not all that there are; proven_bound is what the search proved beyond them")
    return write_mps_file(model.form, path, comments)


def write_sol(
    problem: PipelineProblem, solution: Solution, path: str | Path, model: CompactModel | None = None
) -> Path:
    """Write a solution as text: status, objective and bound, then ``name value`` a line.

    The names are those of the compact model's variables, as in the `.mps`.

    Parameters
    ----------
    model : CompactModel, optional
        The problem's compact model where it exists.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    lines = [
        f"# status {solution.status}",
        f"# objective {'unknown' if solution.objective is None else repr(solution.objective)}",
        f"# bound {'unknown' if solution.bound is None else repr(solution.bound)}",
        f"# solver {solution.solver}",
    ]
    if problem.cards:
        lines.append(f"# stages on {card_rows(problem.cards)}")
    if solution.plan is not None:
        model = model or _compact(_of_plan(problem, solution))
        values = model.point_of(solution.plan)
        for name, integer, value in zip(model.form.names, model.form.integer, values.tolist(), strict=True):
            lines.append(f"{name} {round(value) if integer else value!r}")
    return write_atomic(path, "\n".join([*lines, ""]))


def _of_plan(problem: PipelineProblem, solution: Solution) -> PipelineProblem:
    """The problem with pinned kinds where the solution has them: a model file has one place of each."""
    return placements(problem)[0] if solution.plan is None else settled(problem, solution.plan)


def _compact(problem: PipelineProblem, stopper: Stopper | None = None) -> CompactModel:
    from taylor.pipeline_solver.milp.compact_model import CompactModel

    return CompactModel.build(problem, stopper)


def _add_cuts(model: CompactModel, problem: PipelineProblem, solution: Solution, deadline: float | None = None) -> bool:
    """Add the solution's cuts to the model; return whether they alone make its optimum the reported one.

    The model's step time of a plan comes only from the paths among its cuts. A search by the compact MILP gives all
    that matter, one by branch and cut those that closed its last branches: MILP rounds, started at the plan, add the
    missing ones.
    """
    from taylor.pipeline_solver.milp.compact_milp import solve_compact

    cuts = list(solution.cuts)
    complete = solution.status == OPTIMAL and MILP_ROUNDS in solution.statistics
    few_cells = problem.stages * problem.interleaves * len(problem.placed_kinds) <= COMPLETION_CELLS
    if solution.status == OPTIMAL and not complete and few_cells and problem.interleaves == 1:
        again = solve_compact(
            problem,
            DEFAULT_OPTIONS.replace(time_limit=TimeBudget(deadline).left),
            warm_start=solution.plan,
            most_rounds=COMPLETION_ROUNDS,
            cuts=cuts,
        )
        cuts += again.cuts
        complete = again.status == OPTIMAL
    if not cuts:
        model.seed()
        if few_cells:  # beyond, a search without cuts was a short one: its file must not take longer
            model.tighten_relaxation(deadline)
    for cut in cuts:
        model.add_cut(cut)
    if solution.plan is not None:
        model.cut_at(chunk_durations(problem, solution.plan))
    if solution.bound is not None and 0 < solution.bound < INFINITY:
        model.form.rows.append(Row("proven_bound", (model.step_time,), (1.0,), lower=float(solution.bound)))
    return complete
