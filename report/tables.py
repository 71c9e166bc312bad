"""A solution in lines of details."""

from __future__ import annotations

from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution
from taylor.report.compress import compress
from taylor.report.compress import gap_text as gap_text


def summary_lines(problem: PipelineProblem, solution: Solution) -> list[str]:
    """Lines of a summary: status, step time, bound, bubble, and the offset and recompute lists."""
    unit = (
        ""
        if problem.unit_ms is None or solution.objective is None
        else (f" = {solution.objective * problem.unit_ms:,.2f} ms")
    )
    lines = [f"status {solution.status}, {solution.solver or 'no solver'}, {solution.seconds:.2f} s"]
    if solution.objective is not None:
        lines.append(f"step {solution.objective:,.2f} body-layer forwards{unit}")
    if solution.bound is not None:
        proof = "no bound yet" if solution.gap is None else f"bound {solution.bound:,.2f}, gap {gap_text(solution.gap)}"
        lines.append(proof)
    if solution.bubble is not None:
        b = solution.bubble
        lines.append(
            f"bubble {b.total:.2%}: ideal {b.ideal:.2%}, imbalance {b.imbalance:.2%}, "
            f"recompute {b.recompute:.2%}, communication {b.communication:.2%}"
        )
    if solution.plan is not None:
        uncounted = [kind.name for kind in problem.kinds if kind.pinned]
        lines.append(f"offset {compress(solution.plan.offset(uncounted))}")
        lines += [
            f"{'recompute' if mode == FULL else mode + ' recompute'} {compress(grid)}"
            for mode, grid in solution.plan.recompute.items()
        ]
    if solution.message:
        lines.append(solution.message)
    return lines
