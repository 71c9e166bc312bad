"""The solvers by name; each is loaded at first use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Callable

from taylor.pipeline_solver.model.solver import Solver


@dataclass(frozen=True)
class SolverEntry:
    """One solver of the table.

    Parameters
    ----------
    name : str
        As in `SolveOptions.solver`, in capitals.
    summary : str
        Description in a few words.
    load : callable
        Imports and returns the solver; Pyomo's solvers take a second.
    one_recompute_choice : bool
        The solver takes one choice of a problem's `uniform_recompute` at a time.
    """

    name: str
    summary: str
    load: Callable[[], Solver]
    one_recompute_choice: bool = False


def solver_named(name: str) -> SolverEntry:
    """The table's entry of a name in any case of letters, or one for the solver that Pyomo knows by this name.

    Raises
    ------
    InputError
        From `load`, when Pyomo has no such solver or cannot run it here.
    """
    wanted = name.strip().upper()
    known = SOLVERS.get(wanted)
    return known or SolverEntry(wanted, f"the compact MILP under Pyomo's {name.strip()}", partial(_pyomo, name))


def _exact() -> Solver:
    from taylor.pipeline_solver.solving.exact import solve_exact

    return solve_exact


def _compact_highs() -> Solver:
    from taylor.pipeline_solver.milp.compact_milp import solve_compact

    return solve_compact


def _pyomo(name: str) -> Solver:
    from taylor.pipeline_solver.milp.compact_milp import solve_compact
    from taylor.pipeline_solver.milp.pyomo_solver import pyomo_solver_maker

    return partial(solve_compact, solver_name=name.strip().upper(), make_solver=pyomo_solver_maker(name))


SOLVERS = {
    entry.name: entry
    for entry in (
        SolverEntry("HIGHS", "the busiest stage, then branch-and-cut, LPs by HiGHS", _exact, True),
        SolverEntry("HIGHS-MILP", "the compact MILP under HiGHS", _compact_highs),
        SolverEntry("CBC", "the compact MILP under CBC", partial(_pyomo, "CBC")),
    )
}
"""Solvers that every installation brings, by name."""
