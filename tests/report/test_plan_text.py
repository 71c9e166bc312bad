"""A plan on a terminal: every number whole, at any width, for few and many stages and interleaves."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.report.plan_text import pair_lines, plan_table
from tests.report.test_terminal import deepseek, even_plan


def shown(problem, solution, width):
    out = io.StringIO()
    Console(file=out, width=width, legacy_windows=False).print(plan_table(problem, solution, width))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("stages, interleaves, width", [(4, 2, 80), (32, 4, 80), (16, 1, 60), (32, 4, 120)])
def test_every_stage_has_a_line_and_every_number_is_whole(stages, interleaves, width):
    schedule = "interleaved" if interleaves > 1 else "1f1b"
    problem = deepseek(stages, interleaves, 2 * stages, schedule)
    if problem.layers < stages * interleaves:
        problem = problem.replace(kinds=tuple(replace(kind, count=4 * kind.count) for kind in problem.kinds))
    solution = evaluate(problem, even_plan(problem))
    lines = shown(problem, solution, width)
    assert all(len(line) <= width and "…" not in line for line in lines)
    rows = [line.split() for line in lines if re.match(r" +\d+ ", line)]
    assert [row[0] for row in rows] == [str(stage) for stage in range(stages)]
    for stage, row in enumerate(rows):
        peak, limit = solution.peak_memory_mib[stage], problem.limit_mib[stage]
        assert row[-2:] == [f"{peak:,.0f}", f"{limit - peak:,.0f}"]
        layers = sum(grid[v][stage] for grid in solution.plan.layers.values() for v in range(interleaves))
        assert layers == sum(int(part) for cell in row[1 : 1 + len(problem.kinds)] for part in cell.split("+"))
    assert any(f"{problem.limit_mib[0]:,.0f} MiB" in line for line in lines)


def test_where_interleaves_are_too_wide_their_sums_are_told():
    problem = deepseek(4, 2, 8, "interleaved")
    solution = evaluate(problem, even_plan(problem))
    wide, narrow = (shown(problem, solution, width) for width in (80, 52))
    assert any("+" in line for line in wide) and not any("+" in line for line in narrow)


def test_limits_that_differ_have_a_column_of_their_own():
    problem = deepseek(4, 1, 8)
    problem = problem.replace(limit_mib=(50000.0, 50000.0, 50000.0, 40000.0))
    lines = shown(problem, evaluate(problem, even_plan(problem)), 80)
    assert any("limit MiB" in line for line in lines) and any(" 40,000 " in line for line in lines)


@given(st.lists(st.integers(0, 99_999), min_size=1, max_size=60), st.integers(40, 120))
def test_a_long_text_goes_on_below_itself_with_its_numbers_whole(values, width):
    text = ", ".join(map(str, values))
    lines = pair_lines([("offset", text)], width)
    assert all(len(line) <= width for line in lines)
    assert [int(word) for line in lines for word in line.replace("offset:", "").replace(",", " ").split()] == values
    assert pair_lines([("offset", text)], None) == [f"      offset: {text}"]
