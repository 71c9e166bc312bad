"""Compiled kernels within a time limit: two separate processes compile what no earlier run has cached on disk.

A compilation cannot be interrupted, and all of them take half a minute on two cores. So a solve with a limit waits for
those processes, and plans without kernels where the limit comes first. What was compiled until then is kept.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable

from taylor.base.console import log
from taylor.pipeline.plan import FULL
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem

POLL_SECONDS = 0.05


def kernels_by(deadline: float | None) -> bool:
    """Return whether the solver's kernels are ready in time; compile the missing ones meanwhile.

    Parameters
    ----------
    deadline : float or None
        `time.monotonic()` up to which to wait; None does not wait: each kernel is compiled at its first call.
    """
    if deadline is None or not _may_fork():
        return True
    from taylor.base.compiled import are_kept
    from taylor.pipeline_solver.tree.branch_and_cut import KERNELS_OF_LIMITED

    if are_kept(KERNELS_OF_LIMITED) is not False:
        return True
    log.warning("compiling the solver's kernels: once, about half a minute, which the time limit counts")
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=_compile, args=(part,), daemon=True) for part in (search_plans, search_tree)]
    for child in children:
        child.start()
    try:
        while any(child.is_alive() for child in children) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return not any(child.is_alive() for child in children)
    finally:
        for child in children:
            child.kill()
            child.join()


def _may_fork() -> bool:
    """Return whether this process can fork another that keeps what is loaded."""
    return hasattr(os, "fork") and threading.active_count() == 1 and not multiprocessing.current_process().daemon


def _compile(part: Callable[[], None]) -> None:
    """Call the kernels of one part of a solve, in a process of its own."""
    os.setsid()  # Ctrl-C is the parent's
    log.setLevel(logging.ERROR)
    part()


def search_plans() -> None:
    """Search a small problem's first plans, which calls every kernel of the local search: half of all compilation."""
    from taylor.pipeline_solver.heuristics.first_plans import FirstPlans
    from taylor.pipeline_solver.model.stopping import Stopper
    from taylor.pipeline_solver.timing.durations import graph_of

    problem = small_problem(2)
    FirstPlans(problem, graph_of(problem), 0, Stopper(None)).begin(None)


def search_tree() -> None:
    """Solve small problems, which calls every other kernel of a solve with its argument types."""
    from taylor.pipeline_solver.solving.uniform_recompute import solve_uniform
    from taylor.pipeline_solver.tree.branch_and_cut import branch_and_cut

    problem = small_problem(2)
    branch_and_cut(small_problem(1))
    branch_and_cut(problem)
    uniform = problem.replace(uniform_recompute=((FULL, 0), (FULL, 1), (FULL, 2)))
    solve_uniform(uniform, DEFAULT_OPTIONS, run=branch_and_cut, one_by_one=True)


def small_problem(interleaves: int) -> PipelineProblem:
    """A problem of two stages whose memory leaves a choice."""
    kinds = (
        LayerKind("dense", 5, 0.5, 100.0, {"none": 50.0, FULL: 5.0}),
        LayerKind("moe", 8, 1.0, 200.0, {"none": 80.0, FULL: 5.0}),
    )
    name = "1f1b" if interleaves == 1 else "megatron-interleaved"
    return PipelineProblem(
        2, interleaves, 4, kinds, (100.0, 300.0), (2600.0, 2600.0), schedule=ScheduleSpec(name), head_forward=0.5
    )
