"""A solution as text and as HTML for a person to read."""

from __future__ import annotations

from html import escape
from typing import Sequence

from taylor.pipeline.plan import FULL, Grid, mode_title
from taylor.pipeline_solver.solution import Solution


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
